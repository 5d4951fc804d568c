"""Updates of parts of a split array: `x.at[...]` and `lax.scatter` are those of JAX, and nothing is gathered."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

import mtfc

Update = Callable[[Any, Any, Any], Any]

WINDOW = lax.ScatterDimensionNumbers((0, 1), (), (0,))

CASES: dict[str, tuple[Update, Any]] = {
    "twice": (lambda x, u, i: x.at[i].set(u), [7, 7, -1]),
    "outside": (lambda x, u, i: x.at[i].set(u), [7, 700, -100]),
    "two_axes": (
        lambda x, u, i: x.at[i].set(u[:, None] * jnp.arange(1.0, 3)[:, None]),
        [[1, 2], [2, 5], [60, 3]],
    ),
    "unsigned": (lambda x, u, i: x.at[i.astype("uint32")].set(u), [0, 5, 63]),
    "truth": (lambda x, u, i: (x > 0).at[i].set(u > 0), [6, 3, 3]),
    "integers": (lambda x, u, i: (x * 10).astype(int).at[i].set((u * 10).astype(int)), [6, 6, 3]),
    "half": (lambda x, u, i: x.astype("bfloat16").at[i].set(u.astype("bfloat16")), [6, 3, 3]),
    "promised": (lambda x, u, i: x.at[i].set(u, mode="promise_in_bounds"), [7, 3, 9]),
    "slice": (lambda x, u, i: x.at[2:5].set(u), [0]),
    "slice_added": (lambda x, u, i: x.at[2:5].add(u), [0]),
    "one": (lambda x, u, i: x.at[i[0]].set(u[0]), [-1]),
    "one_outside": (lambda x, u, i: x.at[i[0]].set(u[0]), [70]),
    "one_multiplied": (lambda x, u, i: x.at[i[0]].multiply(u[0]), [3]),
    "part_of_one": (lambda x, u, i: x.at[i[0], 2:5].max(u[0, 2:5]), [-1]),
    "element": (lambda x, u, i: x.at[i[0], i[1]].set(5.0), [6, 3]),
    "window": (lambda x, u, i: lax.scatter(x, i, u, WINDOW), [61]),
    "window_outside": (lambda x, u, i: lax.scatter(x, i, u, WINDOW), [62]),
    "window_clipped": (lambda x, u, i: lax.scatter_add(x, i, u, WINDOW, mode="clip"), [62]),
    "each_row": (lambda x, u, i: jax.vmap(lambda row, k: row.at[k].set(9.0))(x, jnp.arange(64) % i), [7]),
    "largest": (lambda x, u, i: x.at[i].max(u), [7, 7, -1]),
    "largest_integer": (lambda x, u, i: (x * 10).astype(int).at[i].max((u * 10).astype(int)), [6, 6, 3]),
    "smallest_clipped": (lambda x, u, i: x.at[i].min(u, mode="clip"), [70, 3, 63]),
    "multiplied": (lambda x, u, i: x.at[i].multiply(jnp.round(u)), [7, 7, 700]),
    "largest_of_many": (
        lambda x, u, i: x.at[i].max(jnp.tile(u, (16, 1))),
        [*range(0, 80, 2), 7, 7, *range(6)],
    ),
    "many_multiplied": (
        lambda x, u, i: x.at[i].multiply(jnp.tile(jnp.round(u), (16, 1))),
        [7, *range(20, 67)],
    ),
    "subtracted": (lambda x, u, i: x.at[i].subtract(u), [7, -1, 700]),
    "added_clipped": (lambda x, u, i: x.at[i].add(u, mode="clip"), [7, 70, -100]),
    "set_clipped": (lambda x, u, i: x.at[i].set(u, mode="clip"), [7, 70, -100]),
    "line": (lambda x, u, i: x[:, 0].at[i].set(u[:, 0]), [7, 7, -1]),
    "largest_of_line": (lambda x, u, i: x[:, 0].at[i].max(u[:, 0]), [7, 7, -1]),
    "none": (lambda x, u, i: x.at[i[:0]].set(u[:0]), [0]),
}
"""Name -> the update of x: f32[64, 32] by u: f32[3, 32], and indices."""


def test_parts_are_updated_where_they_are() -> None:
    """All in one program, as each would be compiled for longer than it runs."""

    def function(x: Any, u: Any, ids: Any) -> Any:
        return {name: update(x, u, ids[name]) for name, (update, _) in CASES.items()}

    random = np.random.default_rng(0)
    x, u = (random.normal(size=(n, 32)).astype("float32") for n in (64, 3))
    ids = {name: np.array(each, "int32") for name, (_, each) in CASES.items()}
    program = mtfc.from_jax(function, x, u, ids, names={"x": "rows cols"})
    plan = program.plan({"rows": "a"}, {"a": 4})
    assert plan.cost()["forward"]["wire_bytes_per_device"] == 0
    assert "whole on every device" not in str(program.coverage())
    found, expected = plan.step(x, u, ids), jax.jit(function)(x, u, ids)
    for name in CASES:
        np.testing.assert_array_equal(np.asarray(found[name]), np.asarray(expected[name]), err_msg=name)


def test_many_updates_stay_a_scatter() -> None:
    """More comparisons than the table has elements would be slower than the scatter."""
    x, ids = np.zeros((64, 2), "float32"), np.arange(100, dtype="int32") % 64
    program = mtfc.from_jax(lambda x, i: x.at[i].set(1.0), x, ids, names={"x": "rows cols"})
    assert "scatter" in program.plan({"cols": "a"}, {"a": 2}).ir()
