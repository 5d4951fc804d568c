"""Single collectives for `calibrate` to measure.

Each is a function from a device's array to one of the same size, so that they can be chained. What makes the result of a
collective as large as its operand costs little beside it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


def _all_reduce(array: Any, axis: str, members: int) -> Any:
    import jax

    total = jax.lax.psum(array, axis)  # type: ignore[no-untyped-call]
    return jax.lax.pcast(total, axis, to="varying")


def _all_gather(array: Any, axis: str, members: int) -> Any:
    """One of the parts that come together: that of the device as far from the last as this is from the first."""
    import jax

    whole = jax.lax.all_gather(array, axis, tiled=True)
    place = (members - 1 - jax.lax.axis_index(axis)) * len(array)
    return jax.lax.dynamic_slice(whole, (place,), array.shape)


def _reduce_scatter(array: Any, axis: str, members: int) -> Any:
    """The array, in which the sums are written over the first of it."""
    import jax

    sums = jax.lax.psum_scatter(array, axis, tiled=True)  # type: ignore[no-untyped-call]
    return jax.lax.dynamic_update_slice(array, sums, (0,))


def _all_to_all(array: Any, axis: str, members: int) -> Any:
    import jax

    return jax.lax.all_to_all(array.reshape(members, -1), axis, 0, 0).reshape(-1)  # type: ignore[no-untyped-call]


def _permute(array: Any, axis: str, members: int) -> Any:
    import jax

    around = [(i, (i + 1) % members) for i in range(members)]
    return jax.lax.ppermute(array, axis, around)  # type: ignore[no-untyped-call]


COLLECTIVES: dict[str, Callable[[Any, str, int], Any]] = {
    "all_reduce": _all_reduce,
    "all_gather": _all_gather,
    "reduce_scatter": _reduce_scatter,
    "all_to_all": _all_to_all,
    "permute": _permute,
}
"""By kind: from a device's array, the mesh axis, and how many devices it has."""

PARTS = ("all_gather", "all_to_all")
"""Those of which each device has a part of the whole array."""
