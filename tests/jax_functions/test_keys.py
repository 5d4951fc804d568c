"""Random keys that an imported function returns can be read under every layout, also one that splits their words."""

from collections.abc import Callable
from typing import Any

import jax
import numpy as np
import pytest

import mtfc
from mtfc.compiler.search.usual_layouts import model_dims
from tests.jax_functions.arguments import data
from tests.sampling import some

X = np.ones((8, 4), np.float32)
KEYS = {"new": jax.random.key(1), "old": jax.random.PRNGKey(1), "rbg": jax.random.key(1, impl="rbg")}


def in_a_scan(key: Any, x: Any) -> Any:
    def draw(key: Any, _: Any) -> Any:
        key, own = jax.random.split(key)
        return key, jax.random.normal(own, (4,))

    return jax.lax.scan(draw, key, None, length=4)


def of_examples(key: Any, x: Any) -> Any:
    keys = jax.random.split(key, 8)
    return keys, jax.vmap(lambda k: jax.random.fold_in(k, 1))(keys), keys[3]


FUNCTIONS: dict[str, Callable[..., Any]] = {
    "the same": lambda key, x: (key, x),
    "split": lambda key, x: (*jax.random.split(key), x),
    "in a scan": in_a_scan,
    "of examples": of_examples,
}


@pytest.mark.parametrize("kind", some(KEYS, 2))
@pytest.mark.parametrize("name", FUNCTIONS)
def test_returned_keys(name: str, kind: str) -> None:
    function, key = FUNCTIONS[name], KEYS[kind]
    expected = [data(y) for y in jax.tree.leaves(jax.jit(function)(key, X))]
    program = mtfc.from_jax(function, key, X)
    for dim in [name for name, size in program.dims.items() if size % 2 == 0]:
        plan = program.plan({dim: "a"}, {"a": 2})
        results = jax.tree.leaves(plan.step(key, X))
        for found, wanted in zip(map(data, results), expected, strict=True):
            np.testing.assert_allclose(found, wanted, rtol=1e-6, err_msg=dim)


@pytest.mark.parametrize("kind", ["new", "old"])
def test_a_search_splits_no_words_of_keys(kind: str) -> None:
    def drop(w: Any, key: Any) -> Any:
        return w @ w * jax.random.bernoulli(key, 0.9, w.shape)

    found = mtfc.from_jax(drop, np.ones((64, 64), np.float32), KEYS[kind]).search(2, budget=1)
    assert found.rules and not any(name.startswith("key") for name in found.rules), found


def test_model_parallelism_splits_no_words_of_keys() -> None:
    model = {"w": np.ones((4, 4), np.float32), "key": KEYS["old"]}
    program = mtfc.from_jax(
        lambda model, x: x @ model["w"] * jax.random.bernoulli(model["key"], 0.9, (8, 4)), model, X
    )
    split = model_dims(program.program.function("forward"), 2)
    assert split and not any("key" in dim.name for dims in split for dim in dims)
