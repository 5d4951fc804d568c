"""Means and norms of 16-bit numbers are computed in f32 and rounded once, even where sums and squares are no numbers of f16."""

from functools import cache

import numpy as np
import pytest

from mtfc.backends.interpreter import interpret
from mtfc.compiler.ir.core import Program, walk
from mtfc.compiler.ir.ops.collectives import KIND_OF
from mtfc.compiler.ir.printer import print_program
from mtfc.compiler.passes.mixed_precision import MixedPrecision, everything_in
from tests.harness import Arrays, call, differentiated, jax_module, load, lowered, numpy_module
from tests.sampling import some

ULP = {"f16": 2.0**-11, "bf16": 2.0**-8}
"""The largest relative error of one rounding."""

SMALLEST = 2.0**-24
"""The smallest f16, between multiples of which gradients may lie."""

BODIES = {
    "rms_norm": "y = nn.rms_norm(x, d)",
    "layer_norm": "y = nn.layer_norm(x, d)",
    "mean": "y = mean(x, over = d)",
    "moments": "average, variance = nn.moments(x); y = average + sqrt(variance + 1e-5)",
    "batch_norm": "y = nn.batch_norm(x)",
}

SIBLINGS = {
    "tracked_batch_norm": "y = nn.tracked_batch_norm(x)", "softmax": "y = nn.softmax(x * 0.001, d)",
    "log_softmax": "y = nn.log_softmax(x * 0.001, d)", "logsumexp": "y = nn.logsumexp(x * 0.001, d)",
    "mean_squared_error": "y = losses.mean_squared_error(x, k) * 0.001", "l2": "y = losses.l2(x, weight = 1e-5)",
    "root": "y = sqrt(mean(square(x)))", "product": "y = mean(x * x, over = d) * 0.0001",
    "local_response_norm": "y = conv.local_response_norm[near = near](x)",
    "windows": "y = mean(conv.windows[out_length = d, k_length = near](square(x)), over = near) * 0.0001",
    "pooled": "y = conv.avg_pool1d[length = batch, out_length = batch, k_length = near](x, stride = 1)",
}  # fmt: skip

SOURCE = """
import nn
import conv
import losses
dim batch = 8; dim d = {size}; dim near = 5
mesh two = [a: 2]
layout whole on two = {{ allow W601 }}
layout split on two = {{ d: a }}
layout rows on two = {{ batch: a }}
model net(k: [batch, d]) {{
  param x: [batch, d] = ones()
  {body}
  loss = sum(cast(y * k, f32)) * {share}
  return y, loss
}}
train net {{ minimize loss; optimizer = sgd(learning_rate = 0.1); precision = {{ params: f32, compute: {dtype} }} }}
"""


def source(body: str, dtype: str = "f16", size: int = 1024, share: float = 1.0) -> str:
    return SOURCE.format(body=body, dtype=dtype, size=size, share=share)


def data(program: Program, magnitude: float) -> Arrays:
    """Draw arguments: multiples of 1/16 around 1, which 16-bit floats hold, and `x` of the magnitude, with a mean of its own."""
    random = np.random.default_rng(3)
    arrays: Arrays = {}
    for argument in program.function("forward").arguments:
        shape = tuple(dim.size for dim in argument.value.type.dims)
        arrays[argument.value.name] = (random.integers(8, 25, shape) / 16).astype(np.float32)
    drawn = random.integers(-100, 125, arrays["x"].shape) / 64
    arrays["x"] = (drawn * magnitude).astype(np.float16).astype(np.float32)
    return arrays


@cache
def expected(text: str, magnitude: float) -> Arrays:
    """Return the outputs and gradients of the undistributed program, computed in f64."""
    wide = everything_in(load(text).programs[0], "f64")
    return interpret(differentiated(wide, "gradients").function("gradients"), wide, data(wide, magnitude))


def check(text: str, magnitude: float, roundings: float, dtype: str = "f16") -> None:
    """Assert that all layouts on both backends give the numbers of f64, up to some roundings of the largest number.

    XLA takes long to compile, and `rows` has all of `d` on each device, so JAX does without `whole`.
    """
    for layout in ("whole", "split", "rows"):
        program = lowered(text, "gradients", layout)
        function, arrays = program.function("gradients"), data(program, magnitude)
        for module in (numpy_module(program), *([jax_module(program)] if layout != "whole" else [])):
            found = call(module, function, arrays)
            for name, wanted in expected(text, magnitude).items():
                least = SMALLEST if dtype == "f16" else 0.0
                atol = roundings * ULP[dtype] * np.abs(wanted).max(initial=0) + least
                actual = found[name].astype(np.float64)
                np.testing.assert_allclose(actual, wanted, rtol=0, atol=atol, err_msg=f"{layout}: {name}")


@pytest.mark.parametrize("magnitude", some([1, 10, 300], 2))
@pytest.mark.parametrize("name", BODIES)
def test_f16_is_rounded_once(name: str, magnitude: float) -> None:
    """An element of the largest magnitude has one rounding, and its gradient those of the cotangent and of the result."""
    check(source(BODIES[name]), magnitude, 2)


@pytest.mark.parametrize("magnitude", some([1, 10, 300], 2))
@pytest.mark.parametrize("name", BODIES)
def test_bf16_means_are_rounded_where_they_are_sent(name: str, magnitude: float) -> None:
    """The rest of a norm has bf16 numbers: its gradient adds up some of them, which cancel."""
    check(source(BODIES[name], "bf16"), magnitude, 16, "bf16")


@pytest.mark.parametrize("name", SIBLINGS)
def test_other_functions_with_sums_of_f16(name: str) -> None:
    check(source(SIBLINGS[name]), 300, 3)


def test_a_mean_of_many_small_shares() -> None:
    """One over the number of elements is below the normal numbers of f16."""
    check(source("y = mean(x)", size=16384), 10, 2)
    check(source("y = mean(square(x)) * 0.5", size=16384), 10, 2)


def test_norms_in_loops() -> None:
    body = """
  h = x
  repeat layers { h = h * 0.5 + nn.rms_norm(h * k, d) * 100 }
  y = h"""
    check(source(body).replace("dim near", "dim layers = 3; dim near"), 300, 6)


def test_f16_of_the_model_itself() -> None:
    text = """
dim batch = 8; dim d = 2048
mesh two = [a: 2]
layout split on two = { d: a }
model net(x: f16[batch, d]) {
  centred = x - mean(x, over = d)
  y = centred / sqrt(mean(square(centred), over = d))
  largest = max(mean(square(x), over = d) * 0.5)
  return y, largest
}
"""
    program = lowered(text, "gradients")
    x = (np.random.default_rng(0).integers(-8, 9, (8, 2048)) * 50.0).astype(np.float16)
    wide = x.astype(np.float64)
    centred = wide - wide.mean(axis=1, keepdims=True)
    wanted = centred / np.sqrt(np.square(centred).mean(axis=1, keepdims=True))
    for module in (numpy_module(program), jax_module(program)):
        found = call(module, program.function("forward"), {"x": x})
        assert found["y"].dtype == np.float16
        np.testing.assert_allclose(found["y"], wanted, rtol=ULP["f16"], atol=1e-6)
        largest = np.square(wide).mean(axis=1).max() * 0.5
        np.testing.assert_allclose(found["largest"], largest, rtol=2 * ULP["f16"])


@pytest.mark.parametrize("limit", [1.0, 1e-3])
def test_f16_gradients_are_clipped_by_an_f32_norm(limit: float) -> None:
    """The norm is 1.28 million; one over it is no number of f16."""
    text = f"""
dim batch = 2; dim d = 1024
mesh two = [a: 2]
layout split on two = {{ d: a }}
model net(x: f16[batch, d]) {{
  param w: f16[d] = zeros()
  loss = sum(cast(einsum(x, w -> [batch]), f32))
  return loss
}}
train net {{ minimize loss; optimizer = sgd(learning_rate = 1.0); clip = {limit} }}
"""
    program = lowered(text)
    arrays = {"x": np.full((2, 1024), 20000.0, np.float16), "w": np.zeros(1024, np.float16)}
    for module in (numpy_module(program), jax_module(program)):
        found = call(module, program.function("step"), arrays)
        np.testing.assert_allclose(found["w"], -limit / 32, rtol=2 * ULP["f16"], atol=SMALLEST)


@pytest.mark.parametrize("name", [*BODIES, *SIBLINGS])
def test_f32_programs_do_not_change(name: str) -> None:
    text = source({**BODIES, **SIBLINGS}[name])
    (program,) = load(text.replace(" precision = { params: f32, compute: f16 }", "")).programs
    assert print_program(MixedPrecision().run(program)) == print_program(program)


@pytest.mark.parametrize("layout", ["split", "rows"])
@pytest.mark.parametrize("name", [*BODIES, *SIBLINGS])
def test_processors_send_sums_of_bf16_in_bf16(name: str, layout: str) -> None:
    """The only f32 tensor that is sent is the loss, which is f32 in the file."""
    program = lowered(source({**BODIES, **SIBLINGS}[name], "bf16"), "gradients", layout)
    sent = [eqn for eqn in walk(program.function("gradients").body) if eqn.op in KIND_OF]
    wide = [value for eqn in sent for value in eqn.operands if value.type.dtype == "f32"]
    assert all(value.type.dims == () for value in wide)
