"""Terms of a pending f16 sum are f32 numbers until the sum is complete: partial sums that f16 cannot hold change no result."""

from typing import Any

import numpy as np
import pytest

from mtfc.backends.interpreter import interpret
from mtfc.compiler.ir.core import walk
from mtfc.compiler.ir.ops.collectives import SENDINGS
from tests.harness import call, changes, jax_module, load, lowered, numpy_module, reference

HEAD = """
dim batch = 2048; dim c = 4; dim d = 2; dim steps = 2
mesh two = [a: 2]
layout split on two = { batch: a }
"""

SCATTERED = "layout scattered on two = { batch: a; value r: { c: a } }\n"

BODIES = {
    "sum": "r = sum(x, over = batch)",
    "mean": "r = mean(x, over = batch)",
    "einsum": "r = einsum(x, k -> [c])",
    "scaled": "r = sum(x, over = batch) * 0.5 + einsum(x, k -> [c])",
    "divided": "n = sum(k); r = sum(x, over = batch) / n",
    "cast": "r = cast(sum(x, over = batch), f32) * 2.0",
    "smaller": "q = sum(einsum(x, k -> [c])) * 0.25; r = q * sum(x, over = batch)",
}


def data() -> dict[str, Any]:
    """The rows of each processor add up to 102,400, above the largest number of f16; all rows add up to 0."""
    signs = np.repeat([1.0, -1.0], 1024)[:, None]
    return {"x": (100 * signs * np.ones((2048, 4))).astype(np.float16), "k": np.ones(2048, np.float16)}


def source(body: str, layout: str = "split") -> str:
    extra = SCATTERED if layout == "scattered" else ""
    return f"{HEAD}{extra}model m(x: f16[batch, c], k: f16[batch]) {{ {body}; return r }}\n"


def check(text: str, arrays: dict[str, Any], function: str = "forward", layout: str = "split") -> None:
    """Assert that both backends give the undistributed numbers, which are finite."""
    of = "gradients" if function == "gradients" else "step"
    expected = reference(text, function, arrays)
    program = lowered(text, of, layout)
    for module in (numpy_module(program), jax_module(program)):
        found = call(module, program.function(function), arrays)
        for name, value in expected.items():
            assert np.isfinite(value).all()
            assert found[name].dtype == value.dtype
            np.testing.assert_allclose(found[name], value, rtol=2e-3)


@pytest.mark.parametrize("layout", ["split", "scattered"])
@pytest.mark.parametrize("name", BODIES)
def test_partial_sums_may_be_too_large_for_f16(name: str, layout: str) -> None:
    check(source(BODIES[name], layout), data(), layout=layout)


def test_gradients_are_summed_in_f32() -> None:
    text = f"""{HEAD}
model m(x: f16[batch, c], k: f16[batch]) {{
  param w: f16[c] = ones()
  loss = sum(cast(einsum(x, w -> [batch]) * k, f32))
  return loss
}}
train m {{ minimize loss; optimizer = sgd(learning_rate = 0.1) }}
"""
    check(text, {**data(), "w": np.ones(4, np.float16)}, "gradients")


def test_the_interpreter_keeps_terms_in_f32_at_every_level() -> None:
    text = source(BODIES["scaled"])
    module = load(text)
    for _, program in changes(module.programs[0], module.layouts[0], "step"):
        found = interpret(program.function("forward"), program, data())
        assert (found["r"] == 0).all() and found["r"].dtype == np.float16


@pytest.mark.parametrize("layout", ["split", "scattered"])
def test_the_predicted_bytes_are_those_of_f32(layout: str) -> None:
    """4 sums of 4 bytes are sent, as the generated module counts them."""
    program = lowered(source(BODIES["einsum"], layout), layout=layout)
    assert program.mesh is not None
    forward = program.function("forward")
    predicted = sum(
        value.type.local_bytes(program.mesh)
        for eqn in walk(forward.body)
        if eqn.op in SENDINGS
        for value in eqn.operands
    )
    module = numpy_module(program)
    call(module, forward, data())
    assert predicted == sum(each["bytes_per_device"] for each in module.SENT.values()) == 16


def test_bf16_terms_are_sent_as_computed() -> None:
    """No partial sum of bf16 numbers overflows, and docs/precision.md says that they are rounded before they are sent."""
    program = lowered(source(BODIES["sum"]).replace("f16", "bf16"))
    assert program.mesh is not None
    (eqn,) = (eqn for eqn in program.function("forward").body if eqn.op == "all_reduce")
    assert eqn.operands[0].type.local_bytes(program.mesh) == 8
