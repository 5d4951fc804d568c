"""Indices out of range mean in an imported function what they mean in JAX, under every layout, and so in gradients.

The indices are below, at and beyond both ends of an axis, and the extremes of their dtype.
"""

from collections.abc import Callable
from itertools import product
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.lax import GatherScatterMode as Mode

import mtfc
from mtfc.compiler.passes.pipelines import lower
from mtfc.driver.jax_functions.comparison import drawn_arguments, with_far_indices
from tests.jax_functions.arguments import interpreted, program_arguments, run
from tests.jax_functions.test_primitives import MESH, layouts
from tests.sampling import some

SIZE = 8
ENDS = (-SIZE - 1, -SIZE, -SIZE + 1, -1, 0, SIZE - 1, SIZE, SIZE + 1)
MODES = {"clip": Mode.CLIP, "fill": Mode.FILL_OR_DROP, "promise": Mode.PROMISE_IN_BOUNDS}


def indices(dtype: str) -> Any:
    """Return twelve indices; those that the dtype cannot hold are its extremes."""
    limits = np.iinfo(dtype)
    return jnp.asarray(np.clip([*ENDS, limits.min, limits.max, 3, 3], limits.min, limits.max).astype(dtype))


def raw_gather(mode: Mode) -> Callable[..., Any]:
    """Return a lookup of rows whose indices JAX does not normalize."""
    numbers = lax.GatherDimensionNumbers((1,), (0,), (0,))
    return lambda x, i: lax.gather(x, i[:, None], numbers, (1, x.shape[1]), mode=mode)


def raw_scatter(scatter: Callable[..., Any], mode: Mode) -> Callable[..., Any]:
    """Return an update of rows whose indices JAX does not normalize."""
    numbers = lax.ScatterDimensionNumbers((1,), (0,), (0,))

    def updated(x: Any, i: Any) -> Any:
        updates = jnp.arange(12 * x.shape[1]).reshape(12, -1).astype(x.dtype)
        return scatter(x, i[:, None], updates, numbers, mode=mode)

    return updated


def rows_of(i: Any) -> Any:
    """Return indices for `take_along_axis`."""
    return jnp.stack([i, i[::-1], i // 2, i], 1)


LOOKUPS: dict[str, Callable[..., Any]] = {
    "x[i]": lambda x, i: x[i],
    "x[:, i]": lambda x, i: x.T[:, i],
    "x[i, i]": lambda x, i: x[i, i],
    "each x[i]": lambda x, i: jnp.stack([x[i[k]] for k in range(12)]),
    "vmap x[i]": lambda x, i: jax.vmap(lambda row, k: row[k], (1, None))(x, i),
    "take": jnp.take,
    "take of rows": lambda x, i: jnp.take(x, i, axis=0),
    "take of both axes": lambda x, i: jnp.take(jnp.take(x, i, 0, mode="clip"), i, 1, mode="clip"),
    "take_along_axis": lambda x, i: jnp.take_along_axis(x, rows_of(i), 0),
    "get filled": lambda x, i: x.at[i].get(mode="fill", fill_value=7),
    "dynamic_slice": lambda x, i: jnp.stack([lax.dynamic_slice(x, (k, k), (3, 2)) for k in i]),
    "dynamic_slice_in_dim": lambda x, i: jnp.stack([lax.dynamic_slice_in_dim(x, k, 5) for k in i]),
    "dynamic_index_in_dim": lambda x, i: jnp.stack([lax.dynamic_index_in_dim(x, k, 1) for k in i]),
    "dynamic_update_slice": lambda x, i: jnp.stack(
        [lax.dynamic_update_slice(x, jnp.arange(6).reshape(3, 2).astype(x.dtype), (k, k)) for k in i]
    ),
    "scan of x[i]": lambda x, i: lax.scan(lambda c, k: (c + x[k], x[k]), x[0], i),
    "segment_sum": lambda x, i: jax.ops.segment_sum(jnp.tile(x, (2, 1))[:12], i, SIZE),
    **{f"take {mode}": lambda x, i, m=mode: jnp.take(x, i, 0, mode=m) for mode in ("clip", "fill", "wrap")},
    **{
        f"take_along_axis {mode}": lambda x, i, m=mode: jnp.take_along_axis(x, rows_of(i), 0, mode=m)
        for mode in ("clip", "fill", "promise_in_bounds")
    },
    **{f"gather {name}": raw_gather(mode) for name, mode in MODES.items()},
}
"""Lookups of rows of [8, 4] by twelve indices, and clamped slices."""

SCATTERS: dict[str, Callable[..., Any]] = {
    "at set": lambda x, i: x.at[i[:8]].set(0),
    **{
        f"at {op} {mode}": lambda x, i, o=op, m=mode: getattr(x.at[i], o)(x[:1] + 1, mode=m)
        for op in ("add", "multiply", "min", "max")
        for mode in ("clip", "drop", "promise_in_bounds")
    },
    **{
        f"{scatter.__name__} {name}": raw_scatter(scatter, mode)
        for scatter in (lax.scatter_add, lax.scatter_mul, lax.scatter_max, lax.scatter_min)
        for name, mode in MODES.items()
    },
}
"""Updates of rows of [8, 4]."""


def check(function: Callable[..., Any], *args: Any) -> None:
    """Compare an imported function with JAX: one processor, and every other layout."""
    expected = [np.asarray(x) for x in jax.tree.leaves(jax.jit(function)(*args))]
    program = mtfc.from_jax(function, *args, parameters=())
    arguments = program_arguments(program, args)
    found = {"one processor": interpreted(program, arguments)}
    for layout in layouts(program)[::2]:
        lowered = lower(program.program, MESH, layout)
        found[str(layout.rules)] = run(program, lowered, arguments, "numpy")
    for where, results in found.items():
        for left, right in zip(results, expected, strict=True):
            np.testing.assert_allclose(left, right, rtol=1e-6, err_msg=where)


@pytest.mark.parametrize(
    ("name", "dtype"),
    [
        *product(LOOKUPS, ["int32"]),
        *product(some(LOOKUPS, 4), ["uint32"]),
        *product(SCATTERS, ["int32"]),
        ("x[i]", "int8"),
        ("take", "int8"),
    ],
)
def test_out_of_range(name: str, dtype: str) -> None:
    function = {**LOOKUPS, **SCATTERS}[name]
    x = np.random.default_rng(0).permutation(4 * SIZE).reshape(SIZE, 4) + 1
    check(function, jnp.asarray(x, "int32"), indices(dtype))


@pytest.mark.parametrize("name", some([*LOOKUPS, *SCATTERS], 20))
def test_gradients(name: str) -> None:
    function = {**LOOKUPS, **SCATTERS}[name]

    def loss(x: Any, i: Any) -> Any:
        leaves = jax.tree.leaves(function(x, i))
        return sum(jnp.nansum(y * jnp.arange(y.size, dtype=y.dtype).reshape(y.shape)) for y in leaves)

    if "mul" not in name:
        x = np.random.default_rng(0).standard_normal((SIZE, 4))
        check(jax.grad(loss), jnp.asarray(x, "float32"), indices("int32"))


def test_searchsorted_at_the_ends() -> None:
    x = jnp.asarray([1.0, 2.0, 2.0, 3.0, 5.0, 8.0, 13.0, 21.0])
    v = jnp.asarray([-jnp.inf, 0.0, 1.0, 2.0, 21.0, 22.0, jnp.inf, jnp.nan])
    for side in ("left", "right"):
        for method in ("scan", "sort", "compare_all"):
            check(lambda x, v, s=side, m=method: jnp.searchsorted(x, v, side=s, method=m), x, v)
            check(lambda x, v, s=side, m=method: x[jnp.searchsorted(x, v, side=s, method=m)], x, v)


@pytest.mark.parametrize("index", [2**40, -(2**40), 2**32 + 1, -(2**63), 2**63 - 1])
def test_indices_of_64_bits(index: int) -> None:
    functions: list[Callable[..., Any]] = [
        lambda x, i: x[i],
        lambda x, i: lax.dynamic_slice(x, (i,), (3,)),
        lambda x, i: lax.dynamic_update_slice(x, -jnp.ones(2, "float32"), (i,)),
    ]
    with jax.enable_x64(True):
        args = jnp.arange(float(SIZE), dtype="float32"), jnp.asarray(index)
        for function in functions:
            program = mtfc.from_jax(function, *args, parameters=())
            (found,) = interpreted(program, program_arguments(program, args))
            np.testing.assert_array_equal(found, function(*args))


def several(x: Any, i: Any) -> Any:
    """Return lookups of every mode, and a clamped slice."""
    filled = x.at[i].get(mode="fill", fill_value=7.0)
    return x[i], jnp.take(x, i, axis=0, mode="clip"), filled, lax.dynamic_slice_in_dim(x, i[0], 3)


@pytest.mark.parametrize(
    ("layout", "axes"), [({}, {"a": 2}), ({"batch": "a", "length": "b"}, {"a": 2, "b": 2})]
)
def test_plan_step(layout: Any, axes: Any) -> None:
    x, i = jnp.arange(4.0 * SIZE).reshape(SIZE, 4) + 1, indices("int32")
    program = mtfc.from_jax(several, x, i, names={"x": "length width", "i": "batch"})
    plan = program.plan(layout, axes)
    for found, expected in zip(plan.step(x, i), several(x, i), strict=True):
        np.testing.assert_array_equal(found, expected)


def test_verify_draws_indices_out_of_range() -> None:
    """Only those that keep the results finite: `take` makes NaN of others."""

    def function(x: Any, i: Any, j: Any, k: Any) -> Any:
        return x[i], jnp.take(x, j, axis=0), lax.dynamic_index_in_dim(x, k)

    args = jnp.ones((SIZE, 4)), jnp.zeros(20, int), jnp.zeros(20, int), jnp.asarray(0)
    program = mtfc.from_jax(function, *args)
    plan = program.plan({}, {"a": 2})
    (_, i, j, k), _ = with_far_indices(plan, *drawn_arguments(plan, 0), 0)
    assert i.min() < -SIZE
    assert min(i.max(), k) >= SIZE
    assert (j >= 0).all()
    assert (j < SIZE).all()
    assert program.verify(plan).ok
