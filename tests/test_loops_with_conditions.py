"""Loops with `while`: they end when data says so, and mean the same under every layout and on both backends."""

from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import mtfc
from mtfc import ir
from mtfc.backends.hlo import collectives
from mtfc.backends.interpreter import interpret
from mtfc.compiler.ir.printer import print_program
from tests.harness import call, jax_module, load, lowered, numpy_module

SOURCE = """
dim batch = 8; dim io = 4; dim hidden = 8; dim steps = 6
mesh grid = [rows: 2, cols: 2]
layout whole on grid = { allow W601 }
layout data on grid = { batch: (rows, cols) }
layout both on grid = { batch: rows, hidden: cols }
layout looped on grid = { steps: rows, batch: cols }

model m(x: [batch, io], limit: [batch], most: i32[]) {
  param w: [io, hidden] = normal(stddev = 0.5)
  param v: [hidden, io] = normal(stddev = 0.5)
  n = cast(0, i32)
  total = zeros([batch])
  repeat steps while any(total < limit) and n < most {
    param bias: [io] = constant(0.1)
    x = tanh(einsum(relu(einsum(x, w -> [batch, hidden])), v -> [batch, io]) + bias)
    total = total + sum(abs(x), over = io)
    n = n + 1
    yield totals = total
    yield under = total < limit
  }
  return n, x, total, totals, under
}
"""


def expected(
    x: np.ndarray, limit: np.ndarray, most: int, params: dict[str, np.ndarray]
) -> dict[str, np.ndarray]:
    n, total = 0, np.zeros(8, np.float32)
    totals, under = np.zeros((6, 8), np.float32), np.zeros((6, 8), bool)
    while n < 6 and (total < limit).any() and n < most:
        hidden = np.maximum(x @ params["w"], 0)
        x = np.tanh(hidden @ params["v"] + params["steps.bias"][n])
        total = total + np.abs(x).sum(1)
        totals[n], under[n] = total, total < limit
        n += 1
    return {"n": np.int32(n), "x": x, "total": total, "totals": totals, "under": under}


CASES = {"none": (-1.0, 9), "some": (6.0, 9), "three": (99.0, 3), "all": (99.0, 9)}
"""The number of iterations -> the limit of the last row, and the most iterations."""


@pytest.mark.parametrize("layout", ["whole", "data", "both", "looped"])
def test_a_loop_ends_when_its_condition_is_false(layout: str) -> None:
    """It runs no iteration, some, or all, as the data says, and values of iterations that do not run are 0."""
    program = lowered(SOURCE, layout=layout)
    modules = [numpy_module(program), jax_module(program)]
    random = np.random.default_rng(0)
    dims = {"x": (8, 4), "w": (4, 8), "v": (8, 4), "steps.bias": (6, 4)}
    arrays: dict[str, Any] = {name: random.normal(size=n).astype(np.float32) for name, n in dims.items()}
    numbers = set()
    for last, most in CASES.values():
        given = {**arrays, "limit": np.linspace(-1, last, 8, dtype=np.float32), "most": np.int32(most)}
        wanted = expected(given["x"], given["limit"], most, arrays)
        numbers.add(int(wanted["n"]))
        assert interpret(program.function("forward"), program, given)["n"] == wanted["n"]
        for module in modules:
            found = call(module, program.function("forward"), given)
            for name, array in wanted.items():
                np.testing.assert_allclose(found[name], array, rtol=2e-5, atol=1e-6, err_msg=name)
    assert {0, 3, 6} < numbers, "and some"


def test_costs_count_all_iterations_as_compiled() -> None:
    """The prediction is that of the most iterations, and so is the count of collectives in XLA's text."""
    compiled = mtfc.compile_text(SOURCE, layout="both")
    predicted = compiled.cost()["forward"]["collectives"]["all_reduce"]
    hlo = ir.emit(lowered(SOURCE, layout="both"), "hlo")
    assert collectives(hlo)["all_reduce"]["bytes_per_device"] == predicted["bytes_per_device"]


def test_loops_with_conditions_are_built_from_python() -> None:
    """Double a number until it is above 10."""
    build = ir.ProgramBuilder("doubling")
    steps, x, limit = build.dim("steps", 9), build.input("x", "f32"), build.constant(10, "f32")

    def body(inner: Any, goes_on: Any, x: Any, limit: Any) -> Any:
        x = inner("add", x, x)
        return [inner("lt", x, limit), x], [x]

    start = build("lt", x, limit)
    found = ir.loop(build, steps, body, carried=[start, x], invariant=[limit], has_condition=True)
    build.output("last", found[1])
    build.output("all", found[2])
    outputs = ir.interpret(build.program(), {"x": np.float32(3)})
    assert outputs["last"] == 12
    assert outputs["all"].tolist() == [6, 12, *[0] * 7]


def test_an_unread_condition_stays() -> None:
    """Nothing but the loop reads what its condition is computed from."""
    source = """
dim batch = 4; dim steps = 5
model m(x: [batch], y: [batch]) {
  repeat steps while any(y > 0) {
    y = y - 1
    x = 2 * x
  }
  return x
}
"""
    (program,) = load(source).programs
    ones = np.ones(4, np.float32)
    found = ir.interpret(ir.run_passes(program, "simplify,cse,dce"), {"x": ones, "y": 3 * ones})
    np.testing.assert_array_equal(found["x"], 8 * ones)


def test_a_gradient_beside_a_loop_with_a_condition(tmp_path: Path) -> None:
    """A model trains if its gradients go around the loop."""
    source = """
dim batch = 4; dim steps = 5
mesh line = [all: 2]
layout data on line = { batch: all }
model m(x: [batch], y: [batch]) {
  param w: [batch] = normal()
  repeat steps while any(abs(y) > 0.5) {
    y = y / 2
    z = stop_gradient(w) * y
    y = where(z > 3, 0.0, y)
  }
  loss = mean(square(w * x - y))
  slope = gradients(loss, w)
  return loss, slope
}
train m { minimize loss; optimizer = sgd(0.1) }
"""
    file = tmp_path / "m.mtf"
    file.write_text(source)
    assert mtfc.verify(file)["ok"]


def test_the_first_carry_must_be_a_truth_value() -> None:
    text = print_program(load(SOURCE).programs[0], locations=True)
    assert print_program(ir.parse_program(text), locations=True) == text
    ir.verify(ir.parse_program(text), "global")
    wrong = text.replace("= loop %and, ", "= loop ", 1)
    with pytest.raises(Exception, match="operand"):
        ir.verify(ir.parse_program(wrong), "global")
    numbered = text.replace(
        "dim=steps reverse=false checkpoint=false while=true",
        "dim=steps reverse=false checkpoint=false while=3",
    )
    with pytest.raises(ir.ReadError, match="attribute while is 3, and must be true or false"):
        ir.parse_program(numbered)


TRAINED = """
dim batch = 4; dim io = 3; dim hidden = 4; dim steps = 6; dim outer = 2
mesh grid = [rows: 2, cols: 2]
layout data on grid = { batch: (rows, cols) }
layout both on grid = { batch: rows, hidden: cols }
model m(x: [batch, io], limit: []) {
  param w: [io, hidden] = normal(stddev = 0.6)
  param v: [hidden, io] = normal(stddev = 0.6)
  scale = cast(1, f32)
  repeat steps while sum(square(x)) > limit {
    param bias: [io] = constant(0.05)
    x = 0.5 * x + 0.3 * einsum(tanh(einsum(x, w -> [batch, hidden])), v -> [batch, io]) + bias
    scale = scale * 0.9
    yield sizes = sqrt(sum(square(x), over = io))
    yield small = x > 0
  }
  loss = scale * sum(square(x)) + mean(sizes)
  return loss, x, small
}
train m { minimize loss; optimizer = adam(0.1) }
"""


def iterated(params: dict[str, Any], x: Any, trips: int) -> Any:
    """Return the loss of a number of iterations, for `jax.grad`."""
    scale, sizes = 1.0, 0.0
    for i in range(trips):
        x = 0.5 * x + 0.3 * (jnp.tanh(x @ params["w"]) @ params["v"]) + params["steps.bias"][i]
        scale, sizes = scale * 0.9, sizes + jnp.sum(jnp.sqrt(jnp.sum(x * x, 1)))
    return scale * jnp.sum(x * x) + sizes / 24


@pytest.mark.parametrize(("limit", "trips"), [(-1.0, 6), (0.5, 2), (1e9, 0)])
def test_a_gradient_passes_through_the_iterations_that_ran(limit: float, trips: int) -> None:
    x = np.random.default_rng(0).standard_normal((4, 3)).astype(np.float32)
    compiled = mtfc.compile_text(TRAINED, layout="both")
    params = compiled.init(3).params
    loss, found = compiled.value_and_grad(params, {"x": x, "limit": np.float32(limit)})
    plain = {name: np.asarray(each) for name, each in params.items()}
    expected_loss, wanted = jax.value_and_grad(iterated)(plain, x, trips)
    np.testing.assert_allclose(loss, expected_loss, rtol=1e-5)
    for name, each in wanted.items():
        np.testing.assert_allclose(found[name], each, rtol=1e-4, atol=1e-6, err_msg=name)


VARIANTS = {
    "checkpoint and micro-batches": [
        ("repeat steps while", "repeat steps checkpoint while"),
        ("adam(0.1)", "adam(0.1); accumulate = 2"),
    ],
    "second order": [("  return loss,", "  loss = loss + sum(square(gradients(loss, w)))\n  return loss,")],
    "in a loop": [
        ("  repeat steps while", "  repeat outer {\n  x = x * 1.1\n  repeat steps while"),
        ("  loss = scale", "  ss = mean(sizes)\n  yield all = ss\n  }\n  loss = scale"),
        ("mean(sizes)\n  return loss, x, small", "mean(all)\n  return loss, x"),
    ],
}


@pytest.mark.parametrize("name", VARIANTS)
def test_layouts_agree_on_gradients_through_a_loop_with_a_condition(name: str, tmp_path: Path) -> None:
    text = TRAINED
    for old, new in VARIANTS[name]:
        assert old in text
        text = text.replace(old, new)
    file = tmp_path / "m.mtf"
    file.write_text(text)
    assert mtfc.verify(file, backend="numpy", layout="both", exact=name == "in a loop")["ok"]


def test_iterations_after_the_end_bring_no_nan_into_gradients() -> None:
    """The slope of the root is infinite at 0, where the loop has ended."""
    source = """
dim batch = 4; dim steps = 7
model m(x: [batch]) {
  param w: [] = constant(0.5)
  y = w * x
  total = zeros([batch])
  repeat steps while min(y) > 0 {
    total = total + sqrt(y)
    y = y - 0.25
    yield roots = 1 / y
  }
  loss = sum(total) + sum(y)
  return loss
}
train m { minimize loss; optimizer = sgd(0.1) }
"""
    module = mtfc.compile_text(source).load("numpy")
    inputs = module.shard({"x": np.full(4, 1.0, np.float32)}, module.INPUTS)
    with np.errstate(all="ignore"):
        _, found = module.value_and_grad(module.init(), inputs)

    def loss(w: Any) -> Any:
        return 4 * (jnp.sqrt(w) + jnp.sqrt(w - 0.25) + w - 0.5)

    np.testing.assert_allclose(np.ravel(found["w"]), [jax.grad(loss)(0.5)], rtol=1e-5)


def test_verify_judges_gradients_whose_later_iterations_are_not_finite(tmp_path: Path) -> None:
    file = tmp_path / "m.mtf"
    file.write_text("""
dim batch = 4; dim steps = 9; mesh line = [all: 2]
layout split on line = { batch: all }
model m(x: [batch]) {
  param w: [batch] = constant(3.5)
  left = w + 0 * x
  total = zeros([batch])
  repeat steps while all(left > 0.6) {
    total = total + sqrt(left - 0.5) * w + log(left - 0.5) / (left - 0.5)
    left = left - 1
  }
  loss = sum(total)
  return loss
}
train m { minimize loss; optimizer = sgd(0.1) }
""")
    found = mtfc.verify(file, backend="numpy")
    assert found["ok"] and not any(case["not_finite"] for case in found["cases"])
