"""Test that the message about a mistake in Python names a remedy, and that the remedy works: see `tests/mistakes.py`."""

import functools
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import mtfc
from tests.mistakes import IN_PYTHON


def f(w: Any, x: Any) -> Any:
    return jnp.tanh(x @ w).sum()


def step(w: Any, x: Any) -> Any:
    loss, gradient = jax.value_and_grad(f)(w, x)
    return w - 0.1 * gradient, loss


@pytest.fixture(scope="module")
def names() -> dict[str, Any]:
    """Names that the calls of the table use."""
    w, x = jnp.ones((16, 32)), jnp.ones((8, 16))
    gone = jnp.ones((16, 32))
    gone.delete()
    p = mtfc.from_jax(step, w, x)
    plan = p.plan({"batch": "data"}, {"data": 4})
    from flax import linen

    model = linen.Dense(4)
    flax = {"model": model, "v": model.init(jax.random.key(0), x)}
    arrays = {"w": w, "x": x, "gone": gone, "x10": jnp.ones((10, 16)), "x12": jnp.ones((12, 16))}
    modules = {
        "jax": jax,
        "jnp": jnp,
        "np": np,
        "mtfc": mtfc,
        "functools": functools,
        "P": jax.sharding.PartitionSpec,
    }
    return {
        **arrays,
        **modules,
        **flax,
        "f": f,
        "step": step,
        "p": p,
        "plan": plan,
        "from_jax": mtfc.from_jax,
    }


@pytest.mark.parametrize(("wrong", "message", "remedy", "right"), IN_PYTHON)
def test_mistakes_in_python(wrong: str, message: str, remedy: str, right: str, names: dict[str, Any]) -> None:
    with pytest.raises((ValueError, mtfc.CompileError, mtfc.NothingFits, mtfc.Unavailable)) as raised:
        eval(wrong, dict(names))
    assert message in str(raised.value) and remedy in str(raised.value)
    eval(right, dict(names))


def test_a_missing_folder_is_named_by_the_users_path(names: dict[str, Any], tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError) as raised:
        names["plan"].save(str(tmp_path / "missing" / "plan.json"))
    assert raised.value.filename == str(tmp_path / "missing")
