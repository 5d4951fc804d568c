"""Numbers that follow each other are not merged by XLA where that overflows or underflows, or hides that the program does."""

import numpy as np
import pytest

from mtfc.backends.jax import backend
from tests.harness import call, jax_module, lowered, numpy_module

pytestmark = pytest.mark.usefixtures("optimized")

HEAD = "dim n = 4; dim m = n; dim k = 2\nmesh one = [a: 1]\nlayout whole on one = { allow W601 }\n"

CHAINS = {
    "f16": [
        "x * 300 * (1 / 300)",
        "x * 0.0001 * 0.0001 * 10000 * 10000",
        "x / 300 / 300 / 300 * 300 * 300 * 300",
        "x * 300 * 300 / 300 / 300",
        "rename(x * 300, n -> m) * (1 / 300)",
        "broadcast(x * 300 -> [k, n]) / 300",
        "(x + 60000) - 60000",
        "(x - 60000) + 60000 + 60000",
        "x * 2 * 300 * 0.001",
        "x / 30000",
        "x / 30000 / 2",
    ],
    "f32": [
        "x * 1e30 * 1e-30",
        "x * 1e-30 * 1e-30 * 1e30 * 1e30",
        "x * 1e38 * 1e38 / 1e38 / 1e38",
        "x / 1e30 / 1e30 * 1e30 * 1e30",
        "rename(x * 1e30, n -> m) * 1e-30",
        "(x + 3e38) - 3e38",
        "(x - 3e38) + 3e38 + 3e38",
        "(x + 1e8) - 1e8",
        "x * 1e28 / 1e38",
        "x * 1e4 / 2e38 * 1e38",
    ],
}

PLAIN = ["x * 0.1 * 0.3", "x / 3 / 3", "x * 10 * 0.1", "x * 0.5 + 1 - 0.3", "(x + 1) * 300 - 2"]


def text_of(dtype: str, body: str) -> str:
    return f"{HEAD}model net(x: {dtype}[n]) {{ y = {body}; return y }}\n"


@pytest.mark.parametrize(("dtype", "body"), [(dtype, body) for dtype in CHAINS for body in CHAINS[dtype]])
def test_both_backends_overflow_and_underflow_alike(dtype: str, body: str) -> None:
    program = lowered(text_of(dtype, body))
    forward = program.function("forward")
    x = np.array([1, -3, 300, 1e4 if dtype == "f16" else 1e10], np.float16 if dtype == "f16" else np.float32)
    with np.errstate(all="ignore"):
        wanted = call(numpy_module(program), forward, {"x": x})["y"]
    found = call(jax_module(program), forward, {"x": x})["y"]
    np.testing.assert_array_equal(np.isfinite(found), np.isfinite(wanted))
    np.testing.assert_array_equal(np.isnan(found), np.isnan(wanted))
    np.testing.assert_allclose(found, wanted, rtol=0.05 if dtype == "f16" else 1e-5)


@pytest.mark.parametrize("dtype", ["f16", "f32"])
@pytest.mark.parametrize("body", PLAIN)
def test_ordinary_chains_keep_their_text(dtype: str, body: str) -> None:
    assert "optimization_barrier" not in backend.generate(lowered(text_of(dtype, body)))


def test_chains_in_loops_and_under_gradients() -> None:
    text = """
dim n = 4; dim steps = 3
mesh two = [a: 2]
layout split on two = { n: a }
model net(x: [n]) {
  h = x
  repeat steps { h = h * 1e30 * 1e-30 }
  loss = sum(h)
  return loss
}
"""
    program = lowered(text, "gradients")
    function, arrays = program.function("gradients"), {"x": np.array([1, 2, 3, 1e10], np.float32)}
    assert backend.generate(program).count("optimization_barrier") >= 2
    with np.errstate(all="ignore"):
        wanted = call(numpy_module(program), function, arrays)
    found = call(jax_module(program), function, arrays)
    for name, value in wanted.items():
        np.testing.assert_allclose(found[name], value, rtol=1e-5)
