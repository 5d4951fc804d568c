"""Test division of integers, order statistics and shifts by data against NumPy and JAX."""

from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest

from mtfc.driver.loading.choice import Choice
from mtfc.driver.loading.selection import choose
from tests.harness import call, jax_module, numpy_module
from tests.library.networks import Network, agrees

DIVISION = """
import tensors
dim rows = 512
mesh line = [all: 2]
layout rows on line = { rows: all }
model division(x: i32[rows], y: i32[rows]) {
  quotient = tensors.floor_div(x, y)
  rest = tensors.mod(x, y)
  by_seven = tensors.floor_div(x, 7)
  clock = tensors.mod(x, -12)
  by_least = tensors.floor_div(x, -2147483648)
  return quotient, rest, by_seven, clock, by_least
}
"""

EXTREMES = (
    -(2**31),
    -(2**31) + 1,
    -(2**24) - 1,
    -(2**24),
    -7,
    -2,
    -1,
    0,
    1,
    2,
    3,
    7,
    2**24,
    2**24 + 1,
    2**31 - 2,
    2**31 - 1,
)


@pytest.mark.parametrize("backend", [numpy_module, jax_module])
def test_integers_are_divided_exactly(backend: Any) -> None:
    """Generate integers of any number of digits, and extremes."""
    random = np.random.default_rng(0)
    digits = random.integers(0, 31, (2, 512))
    x, y = random.integers(-(2**31) + 1, 2**31, (2, 512)) >> digits
    pairs = np.array([(a, b) for a in EXTREMES for b in EXTREMES if b])
    x[: len(pairs)], y[: len(pairs)] = pairs.T
    y[y == 0] = 5
    arrays = {"x": x.astype(np.int32), "y": y.astype(np.int32)}
    selection = choose(DIVISION, "test.mtf", Choice(None, "rows", None, {}))
    placed = selection.cases[0].lower(selection.program, "forward")
    found = call(backend(placed), placed.function("forward"), arrays)
    np.testing.assert_array_equal(found["quotient"], (x // y).astype(np.int32))  # -2**31 by -1 wraps
    np.testing.assert_array_equal(found["rest"], x % y)
    np.testing.assert_array_equal(found["by_seven"], x // 7)
    np.testing.assert_array_equal(found["by_least"], x // -(2**31))
    np.testing.assert_array_equal(found["clock"], x % -12)


def test_nth_largest() -> None:
    network = Network(
        imports=["tensors"],
        dims={"batch": 4, "length": 8, "d": 6},
        layouts=["batch: a, length: b", "d: (a)"],
        inputs={"x": "f32[batch, length, d]"},
        body="""
          first = tensors.nth_largest(x)
          third = tensors.nth_largest(x, length, n = 2)
          least = tensors.nth_largest(x, d, n = 5)
        """,
        outputs={"first": "batch, length", "third": "batch, d", "least": "batch, length"},
    )

    def expected(x: Any) -> dict[str, Any]:
        return {"first": x.max(-1), "third": jnp.sort(x, 1)[:, -3], "least": x.min(-1)}

    agrees(network, expected)


def test_dynamic_shift() -> None:
    network = Network(
        imports=["tensors"],
        dims={"batch": 4, "length": 6, "d": 2},
        layouts=["batch: a, d: b", "length: b"],
        inputs={"x": "f32[batch, length, d]", "by": "i32[batch]", "all": "i32[]"},
        body="""
          lost = tensors.dynamic_shift(x, by - 3, length)
          turned = tensors.dynamic_shift(x, by * 3 - 9, length, wrap = true)
          together = tensors.dynamic_shift(x, all, length)
        """,
        outputs=dict.fromkeys(("lost", "turned", "together"), "batch, d, length"),
        below={"by": 7, "all": 4},
    )

    def expected(x: Any, by: Any, all: Any) -> dict[str, Any]:
        x = jnp.swapaxes(x, 1, 2)
        wide = jnp.pad(x, ((0, 0), (0, 0), (6, 6)))
        return {
            "lost": jnp.stack([wide[i, :, 6 - n : 12 - n] for i, n in enumerate(by - 3)]),
            "turned": jnp.stack([jnp.roll(x[i], n, -1) for i, n in enumerate(by * 3 - 9)]),
            "together": wide[:, :, 6 - all : 12 - all],
        }

    agrees(network, expected)


SHIFTS = """
import attention
import tensors
dim n = 16
dim d = 6
dim buckets = 32
mesh line = [all: 2]
layout split on line = { n: all }
layout along on line = { d: all }
model shifts(x: [n, d], by: i32[n]) {
  turned = tensors.dynamic_shift(x, by, d, wrap = true)
  lost = tensors.dynamic_shift(x, by, d)
  both = attention.relative_bucket[buckets = buckets](by)
  past = attention.relative_bucket[buckets = buckets](by, causal = true)
  return turned, lost, both, past
}
"""


@pytest.mark.parametrize("backend", [numpy_module, jax_module])
@pytest.mark.parametrize("layout", ["split", "along"])
def test_distances_at_the_extremes(layout: str, backend: Any) -> None:
    """No distance overflows: neither a shift around the end, nor the bucket of a distance."""
    x = np.arange(16 * 6, dtype=np.float32).reshape(16, 6)
    arrays = {"x": x, "by": np.array(EXTREMES, np.int32)}
    selection = choose(SHIFTS, "test.mtf", Choice(None, layout, None, {}))
    placed = selection.cases[0].lower(selection.program, "forward")
    found = call(backend(placed), placed.function("forward"), arrays)
    wide = np.pad(x, ((0, 0), (6, 6)))
    for i, by in enumerate(EXTREMES):
        kept = max(-6, min(6, by))
        np.testing.assert_array_equal(found["turned"][i], np.roll(x[i], by % 6))
        np.testing.assert_array_equal(found["lost"][i], wide[i, 6 - kept : 12 - kept])
    far = np.array([abs(by) > 128 for by in EXTREMES])
    sign = np.sign(EXTREMES)
    np.testing.assert_array_equal(found["both"][far], np.where(sign > 0, 31, 15)[far])
    np.testing.assert_array_equal(found["past"][far], np.where(sign > 0, 0, 31)[far])
