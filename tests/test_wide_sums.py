"""`reduce: f32`: gradients of parameters are summed in f32, over processors, uses and iterations."""

from typing import Any

import numpy as np
import pytest

from mtfc.compiler.ir.core import Function, walk
from mtfc.compiler.ir.ops.collectives import KIND_OF
from mtfc.compiler.ir.ops.elementwise import numpy_dtype
from tests.harness import Arrays, call, jax_module, load, lowered, numpy_module, reference, stages

RECURRENT = """
dim batch = 8; dim time = {time}; dim io = 8; dim units = io
mesh line = [data: 8]
layout data on line = {{ batch: data }}
layout zero on line = {{ batch: data, optimizer: {{ *: data }} }}
layout fsdp on line = {{ batch: data, params: {{ *: data }} }}
model m(x: [time, batch, io]) {{
  param w: [io, units] = normal(stddev = 0.3)
  param bias: [io] = zeros()
  h = zeros([batch, io])
  scan x_t = x along time {{
    h = tanh(rename(einsum(h, w -> [batch, units]), units -> io) + x_t)
  }}
  loss = mean(square(cast(h + bias, f32) - 1.0))
  return loss
}}
train m {{
  minimize loss
  optimizer = sgd(learning_rate = 1.0)
  precision = {{ params: f32, compute: bf16{reduce} }}
  {more}
}}
"""

SHARED = """
dim batch = 8; dim time = 400; dim io = 8; dim units = 4
mesh line = [data: 8]
layout data on line = {{ batch: data }}
layout fsdp on line = {{ batch: data, params: {{ *: data }} }}
model m(x: [time, batch, io]) {{
  param w: [io, units] = normal(stddev = 0.3)
  loss = 0.0
  scan x_t = x along time {{
    loss = loss + mean(square(cast(einsum(x_t, w -> [batch, units]), f32) - 1.0))
  }}
  return loss
}}
train m {{
  minimize loss
  optimizer = sgd(learning_rate = 1.0)
  precision = {{ params: f32, compute: bf16{reduce} }}
}}
"""

LAYERED = """
dim batch = 8; dim d = 8; dim hidden = 16; dim layers = 3
mesh grid = [data: 4, model: 2]
layout hybrid on grid = {{ batch: data, hidden: model }}
layout zero on grid = {{ batch: (data, model), optimizer: {{ *: (data, model) }} }}
layout fsdp on grid = {{ batch: (data, model), params: {{ *: (data, model) }} }}
model m(x: [batch, d]) {{
  param scale: [d] = ones()
  x = x * scale
  repeat layers {{
    param w: [d, hidden] = normal(stddev = 0.5)
    param v: [hidden, d] = normal(stddev = 0.5)
    x = x * scale + einsum(tanh(einsum(x, w -> [batch, hidden])), v -> [batch, d])
  }}
  loss = mean(square(cast(x, f32)))
  return loss
}}
train m {{
  minimize loss
  optimizer = momentum(learning_rate = 0.5)
  precision = {{ params: f32, compute: bf16{reduce} }}
  {more}
}}
"""

CASES = [
    (RECURRENT, "data"),
    (RECURRENT, "zero"),
    (RECURRENT, "fsdp"),
    (LAYERED, "zero"),
    (LAYERED, "fsdp"),
]
"""Layouts that split only the batch: every sum over processors is a sum of gradients, or the loss."""


def text_of(source: str, reduce: str = "", more: str = "", time: int = 6) -> str:
    return source.format(reduce=reduce and f", reduce: {reduce}", more=more, time=time)


def summed_dtypes(function: Function) -> set[str]:
    """Return the dtypes of tensors that are summed over processors."""
    sums = [eqn for eqn in walk(function.body) if KIND_OF.get(eqn.op) in ("all_reduce", "reduce_scatter")]
    return {value.type.dtype for eqn in sums for value in eqn.operands if value.type.dims}


@pytest.mark.parametrize("more", ["", "accumulate = 2", "clip = 1.0"])
@pytest.mark.parametrize(("source", "layout"), CASES)
def test_gradients_are_summed_in_f32(source: str, layout: str, more: str) -> None:
    wide = lowered(text_of(source, "f32", more), "step", layout).function("step")
    assert summed_dtypes(wide) == {"f32"}
    plain = lowered(text_of(source, "", more), "step", layout).function("step")
    is_carried = more.startswith("accumulate") and layout != "fsdp"
    assert summed_dtypes(plain) == ({"f32"} if is_carried else {"bf16"})


LONG = """
dim batch = 2; dim io = 4096; dim out = 2
mesh line = [data: 2]
layout data on line = { batch: data }
model m(x: DTYPE[batch, io]) {
  param w: DTYPE[io, out] = ones()
  dot = einsum(x, w -> [batch, out])
  total = sum(x -> [batch])
  running = max(cumsum(x, over = io) -> [batch])
  return dot, total, running
}
"""


@pytest.mark.parametrize("backend", ["numpy", "jax"])
@pytest.mark.parametrize(("dtype", "largest"), [("bf16", 256), ("f16", 2048)])
def test_sums_on_one_processor_are_accumulated_in_f32(dtype: str, largest: int, backend: str) -> None:
    """Added one by one in 16 bits, ones would never exceed `largest`."""
    program = lowered(LONG.replace("DTYPE", dtype), "step", "data")
    module = jax_module(program) if backend == "jax" else numpy_module(program)
    ones = np.ones((2, 4096), numpy_dtype(np, dtype))
    found = call(module, program.function("forward"), {"x": ones, "w": ones.T})
    assert largest < 4096
    for name, wanted in (("dot", 4096), ("total", 4096)):
        np.testing.assert_array_equal(found[name].astype(np.float32), wanted, err_msg=name)
    assert np.all(found["running"].astype(np.float32) == 4096)


def test_activations_are_summed_in_the_dtype_of_the_computation() -> None:
    """A sum over `hidden` is no sum of a parameter's gradient."""
    wide = lowered(text_of(LAYERED, "f32"), "step", "hybrid").function("step")
    inside = [eqn for loop in wide.body for region in loop.regions for eqn in walk(region.body)]
    activations = [eqn for eqn in inside if eqn.op in KIND_OF and eqn.attrs.get("axes") == ("model",)]
    assert {value.type.dtype for eqn in activations for value in eqn.operands} == {"bf16"}
    assert summed_dtypes(wide) == {"bf16", "f32"}


def test_same_dtype_changes_nothing() -> None:
    same = text_of(LAYERED, "bf16")
    assert summed_dtypes(lowered(same, "step", "zero").function("step")) == {"bf16"}


def drawn(function: Function) -> Arrays:
    random = np.random.default_rng(0)
    arrays = {}
    for argument in function.arguments:
        shape = tuple(dim.size for dim in argument.value.type.dims)
        number = argument.role == "step"
        arrays[argument.value.name] = (
            np.array(5) if number else random.uniform(-0.5, 0.5, shape).astype(np.float32)
        )
    return arrays


def step_of(source: str, layout: str, backend: str) -> tuple[Function, Any]:
    program = lowered(source, "step", layout)
    module = jax_module(program) if backend == "jax" else numpy_module(program)
    return program.function("step"), module


@pytest.mark.parametrize("backend", ["numpy", "jax"])
@pytest.mark.parametrize("layout", ["data", "fsdp"])
def test_sums_over_iterations_are_exact(layout: str, backend: str) -> None:
    """A weight that 400 iterations share: summed in bf16, its gradient has several times the error of the sum in f32."""
    function, _ = step_of(SHARED.format(reduce=""), layout, backend)
    arrays = drawn(function)
    exact = reference(SHARED.format(reduce="").replace("compute: bf16", "compute: f32"), "step", arrays)
    errors = {}
    for reduce in ("bf16", "f32"):
        function, module = step_of(SHARED.format(reduce=f", reduce: {reduce}"), layout, backend)
        found = call(module, function, arrays)
        step, wanted = arrays["w"] - found["w"], arrays["w"] - exact["w"]
        errors[reduce] = np.linalg.norm(step - wanted) / np.linalg.norm(wanted)
    assert errors["f32"] < 0.004 < 3 * errors["f32"] < errors["bf16"]


@pytest.mark.parametrize("layout", ["hybrid", "zero", "fsdp"])
@pytest.mark.parametrize("more", ["", "accumulate = 2"])
def test_results_are_those_of_one_processor(layout: str, more: str) -> None:
    text = text_of(LAYERED, "f32", more)
    function, _ = step_of(text, layout, "numpy")
    arrays = drawn(function)
    expected = reference(text, "step", arrays)
    for backend in ("numpy", "jax"):
        found = call(step_of(text, layout, backend)[1], function, arrays)
        for name, value in expected.items():
            np.testing.assert_allclose(found[name], value, rtol=0.03, atol=0.01, err_msg=f"{layout}: {name}")


def test_value_and_grad_sums_in_f32() -> None:
    found = load(text_of(LAYERED, "f32"))
    chosen = next(each for each in found.layouts if each.name == "zero")
    _, placed = stages(found.programs[0], chosen, "module")[-1]
    assert summed_dtypes(placed.function("batch_gradients")) == {"f32"}
