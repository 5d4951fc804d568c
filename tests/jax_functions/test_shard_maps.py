"""A `jax.shard_map` inside of an imported function means the same on every mesh."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.sharding import AxisType
from jax.sharding import PartitionSpec as P

import mtfc
from mtfc.compiler.diagnostics import CompileError
from tests.sampling import some

MESH = jax.sharding.Mesh(
    np.array(jax.devices()[:8]).reshape(2, 4), ("a", "b"), axis_types=(AxisType.Auto,) * 2
)
X = jnp.arange(128.0).reshape(16, 8) / 100
W = jnp.arange(64.0).reshape(8, 8) / 50
RING = [(i, (i + 1) % 4) for i in range(4)]
LAYOUTS = ({}, {"m": 4}), ({"batch": "m"}, {"m": 2}), ({"batch": "a"}, {"a": 2, "b": 4})


def on_mesh(function: Any, into: Any, out: Any, **options: Any) -> Any:
    return jax.shard_map(function, mesh=MESH, in_specs=into, out_specs=out, **options)


def product(x: Any, w: Any) -> Any:
    return on_mesh(lambda x, w: lax.psum(x @ w, "b"), (P("a", "b"), P("b", None)), P("a", None))(x, w)


def ring(x: Any, w: Any) -> Any:
    def step(_: Any, carry: Any) -> Any:
        total, part = carry
        return total + part, lax.ppermute(part, "b", RING)

    def rounds(x: Any) -> Any:
        return lax.fori_loop(0, 4, step, (jnp.zeros_like(x), x))[0]

    return on_mesh(rounds, P("b", None), P("b", None), check_vma=False)(x)


def nested(x: Any, w: Any) -> Any:
    def inner(x: Any) -> Any:
        own = jax.shard_map(
            lambda x: x / lax.psum(x.sum(), "b"),
            in_specs=P(None, "b"),
            out_specs=P(None, "b"),
            axis_names={"b"},
        )
        return own(x)

    return on_mesh(inner, P("a"), P("a"), axis_names={"a"})(x)


FUNCTIONS: dict[str, Callable[..., Any]] = {
    "product": product,
    "gradient": jax.grad(lambda x, w: (product(x, w) ** 2).sum(), (0, 1)),
    "recomputed": jax.grad(lambda x, w: jax.checkpoint(lambda x: product(jnp.sin(x), w))(x).sum()),
    "in a scan": lambda x, w: lax.scan(lambda c, _: (product(c, w) / 100, c.sum()), x, None, length=3),
    "ring": ring,
    "nested": nested,
    "part of a ring": lambda x, w: on_mesh(lambda x: lax.ppermute(x, "b", [(0, 1), (2, 3)]), P("b", "a"), P("b", "a"))(x),
    "places": lambda x, w: on_mesh(
        lambda x: x + lax.axis_index("a") * 10 + lax.axis_index("b"), P(("b", "a"), None), P(("b", "a"), None)
    )(x),
    "all to all": lambda x, w: on_mesh(lambda x: lax.all_to_all(x, "b", 1, 0, tiled=True), P("b", None), P("b", None))(x),
    "reduce-scatter": lambda x, w: on_mesh(
        lambda x: lax.psum_scatter(x, "b", scatter_dimension=0, tiled=True), P("a", "b"), P(("a", "b"), None)
    )(x),
    "means": lambda x, w: on_mesh(lambda x: (lax.pmean(x, "a"), lax.pmax(x, ("a", "b"))), P("a", "b"), (P(None, "b"), P()))(x),
}  # fmt: skip


@pytest.mark.parametrize("name", some(FUNCTIONS, 6))
def test_as_in_jax_under_every_layout(name: str) -> None:
    function = FUNCTIONS[name]
    expected = jax.tree.leaves(jax.jit(function)(X, W))
    program = mtfc.from_jax(function, X, W)
    assert str(program.coverage()) == "every primitive is known"
    for layout, axes in LAYOUTS:
        plan = program.plan(layout, axes)
        planned = jax.jit(plan.apply(), in_shardings=plan.in_shardings, out_shardings=plan.out_shardings)
        for road in (plan.step, planned):
            found = jax.tree.leaves(road(X, W))
            for left, right in zip(found, expected, strict=True):
                np.testing.assert_allclose(left, right, rtol=1e-4, atol=1e-5)
    assert program.verify(plan).ok


def test_what_is_no_batch_is_refused_with_the_line() -> None:
    def groups(x: Any) -> Any:
        return on_mesh(
            lambda x: lax.psum(x, "b", axis_index_groups=[[0, 1], [2, 3]]), P("b"), P("b"), check_vma=False
        )(x)

    with pytest.raises(CompileError, match=r"E807.*this `shard_map` cannot be computed as a batch") as caught:
        mtfc.from_jax(groups, X)
    assert "test_shard_maps.py" in str(caught.value)
