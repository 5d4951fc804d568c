"""`jax.grad` of emitted modules: ops without a derivative in JAX, or with another derivative, and the examples."""

import os
from typing import Any

import jax
import numpy as np
import pytest

from mtfc.backends.jax.backend import generate
from mtfc.compiler.ir.training_flag import bound
from mtfc.compiler.passes.mixed_precision import everything_in
from mtfc.compiler.passes.pipelines import lower
from mtfc.driver.loading.choice import Choice
from mtfc.driver.loading.selection import choose
from tests.harness import FINE, call, exact_data, generic_data, jax_module, lowered, numpy_module
from tests.jax_gradients import gradients_by_jax
from tests.test_examples import EXAMPLES, Example, path

SPLIT = """
dim batch = 4
dim io = 8
mesh grid = [rows: 2, cols: 2]
layout split on grid = { batch: rows, io: cols }
"""


def agree(source: str, layout: str | None = None) -> None:
    """Assert that JAX and the compiler find the same gradients, in f64 and with many equal elements."""
    placed = lowered(SPLIT + source, "gradients", layout)
    function = placed.function("gradients")
    arrays = exact_data(function, seed=3)
    expected = call(numpy_module(placed), function, arrays)
    actual = gradients_by_jax(placed, arrays)
    trained = [name for name in actual if name.removeprefix("d_") not in placed.states]
    FINE.check(
        {name: actual[name] for name in trained},
        {name: expected[name] for name in trained},
        "jax.grad of forward",
    )


def test_stop_gradient_is_kept() -> None:
    """The loss sum(stop_gradient(w x) w) has the slope w x, and not 2 w x."""
    source = """
model m(x: f64[io]) {
  param w: f64[io] = ones()
  loss = sum(stop_gradient(w * x) * w)
  return loss
}
"""
    agree(source)
    placed = lowered(SPLIT + source, "gradients")
    x, w = np.arange(8.0), np.ones(8)
    found = gradients_by_jax(placed, {"x": x, "w": w})
    np.testing.assert_array_equal(found["d_w"], x)


@pytest.mark.parametrize(
    "loss",
    [
        "sum(nn.softmax(x * w, io) * x)", "sum(max(x * w, over = [io]) * w)", "sum(min(x * w, over = [batch]))", "max(x * w)",
        "sum(abs(x * w))", "sum(relu(x * w)) + sum(maximum(x, w))",
        "sum(best * best + 2.0 * best) + sum(w)",  # zeros among the largest
        "sum(max(window(x * w, io -> [out, kernel], dilation = 2), over = [kernel]))",
    ],
)  # fmt: skip
def test_ops_that_jax_differentiates_otherwise(loss: str) -> None:
    """JAX has no derivative of its own `reduce_window` of dilated windows."""
    agree(f"""
import nn
dim few = 3
dim out = 4
dim kernel = 3
model m(x: f64[batch, io], w: f64[batch, io]) {{
  best, indices = top_k(x, io -> few)
  loss = {loss}
  return loss
}}
""")


def test_maximum_that_a_loop_carries() -> None:
    agree("""
dim layers = 3
model m(x: f64[batch, io]) {
  h = x
  best = x
  repeat layers {
    param w: f64[io] = normal()
    best = max(h, over = [io]) + x
    h = best * w
  }
  loss = sum(h) + sum(best)
  return loss
}
""")


def test_softmax_over_a_split_dimension_stops_the_gradient_before_the_all_reduce() -> None:
    source = """
import nn
model m(x: f32[batch, io]) {
  y = nn.softmax(x, io)
  return y
}
"""
    text = generate(lowered(SPLIT + source, "gradients"))
    forward = text[text.index("def forward") : text.index("def gradients")]
    assert 'pmax(lax.stop_gradient(max), "cols")' in forward


def test_a_loaded_module_runs_under_jit_and_grad_without_a_mesh_that_is_set() -> None:
    """The loss depends on no parameter, so only the mesh says on which devices the gradient is computed."""
    placed = lowered(SPLIT + "model m(x: f32[io]) {\n  loss = sum(x)\n  return loss\n}\n", "gradients")
    module = jax_module(placed)
    inputs = module.shard({"x": np.ones(8, np.float32)}, module.INPUTS)

    def loss(inputs: dict[str, Any]) -> Any:
        return module.forward({}, inputs)["loss"]

    for gradient in (jax.grad(loss), jax.jit(jax.grad(loss))):
        found = gradient(inputs)["x"]
        np.testing.assert_array_equal(found, np.ones(8))
        assert found.sharding.spec == module.INPUTS["x"]


def test_a_loaded_module_makes_and_places_arrays_under_jit() -> None:
    """Shapes without data, as checkpoints need them, and arrays that are placed within a program."""
    source = """
model m(x: f32[batch, io]) {
  param w: f32[io] = normal()
  loss = mean(square(x * w))
  return loss
}
train m { minimize loss; optimizer = momentum(learning_rate = 0.1) }
"""
    module = jax_module(lowered(SPLIT + source))
    shapes = jax.eval_shape(lambda: module.init(0))
    assert shapes["w"].shape == (8,) and jax.eval_shape(module.init_state)["w.velocity"].shape == (8,)
    params = jax.jit(lambda seed: module.init(seed))(1)
    np.testing.assert_array_equal(params["w"], module.init(1)["w"])
    x = np.ones((4, 8), np.float32)
    placed = module.forward(params, module.shard({"x": x}, module.INPUTS))["loss"]
    inside = jax.jit(lambda x: module.forward(params, module.shard({"x": x}, module.INPUTS))["loss"])(x)
    np.testing.assert_allclose(inside, placed, rtol=1e-6)
    assert (
        "all-reduce"
        in module.forward.lower(params, module.shard({"x": x}, module.INPUTS)).compile().as_text()
    )


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda example: example.file)
def test_the_examples(example: Example) -> None:
    """Each example agrees outside of training, in f64, under the file's last layout, which splits most; no elements are equal.

    JAX also differentiates the state of a model, which has no gradient here. `make examples` runs all networks. The gradients of
    the others without a layout are checked in `test_examples.py`.
    """
    if example.in_floats < 2 and "EVERY_LAYOUT" not in os.environ:
        pytest.skip("XLA takes long to compile it: make examples")
    file = path(example)
    selection = choose(
        file.read_text("utf-8"), str(file), Choice(None, None, example.mesh, example.dims), every_layout=True
    )
    program = everything_in(selection.program, "f64").map_functions(lambda f: bound(f, training=False))
    case = selection.cases[-1]
    placed = lower(program, case.mesh, case.layout, "gradients")
    function = placed.function("gradients")
    data = generic_data(function, seed=4)
    arrays = {name: np.abs(x) if x.dtype.kind == "i" else x / 4 for name, x in data.items()}
    expected = call(numpy_module(placed, checked=False), function, arrays)
    actual = gradients_by_jax(placed, arrays)
    trained = [name for name in actual if name.removeprefix("d_") not in placed.states]
    FINE.check(
        {name: actual[name] for name in trained},
        {name: expected[name] for name in trained},
        "jax.grad of forward",
    )
