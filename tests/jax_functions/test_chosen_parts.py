"""`top_k` along an axis of which another result has parts."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import mtfc


@pytest.mark.parametrize("k", [1, 4, 6])
@pytest.mark.parametrize(
    "other",
    [
        lambda x, y: jnp.split(x, 2)[0].sum() + (y * x[: len(y)]).sum(),
        lambda x, y: x.reshape(2, 3)[0].sum() + (y.reshape(-1, min(len(y), 2)) ** 2).sum(),
    ],
    ids=["split", "reshape"],
)
def test_chosen_elements_can_be_parted(other: Callable[..., Any], k: int) -> None:
    def chosen(x: Any) -> Any:
        y, places = lax.top_k(x, k)
        return y, places, other(x, y), jax.grad(lambda x: other(x, lax.top_k(x, k)[0]))(x)

    x = np.random.default_rng(0).standard_normal(6).astype("float32")
    program = mtfc.from_jax(chosen, x)
    for dim in (*program.dims, None):
        rules = {dim: "a"} if dim and program.dims[dim] == 2 else {}
        found = program.plan(rules, {"a": 2}).step(x)
        for actual, wanted in zip(found, chosen(x), strict=True):
            np.testing.assert_allclose(actual, wanted, rtol=1e-6)
