"""Single collectives for `calibrate` to measure.

Each kernel is a function from a device's array to an array of the same size, so that kernels can be chained. Making the result as
large as the operand costs little beside the collective itself.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


def _all_reduce(array: Any, axis: str, members: int) -> Any:
    import jax

    total = jax.lax.psum(array, axis)  # type: ignore[no-untyped-call]
    return jax.lax.pcast(total, axis, to="varying")


def _all_gather(array: Any, axis: str, members: int) -> Any:
    """Return one of the gathered parts: device i returns the part of device n - 1 - i."""
    import jax

    whole = jax.lax.all_gather(array, axis, tiled=True)
    place = (members - 1 - jax.lax.axis_index(axis)) * len(array)
    return jax.lax.dynamic_slice(whole, (place,), array.shape)


def _reduce_scatter(array: Any, axis: str, members: int) -> Any:
    """Return the array with the sums written over its first elements."""
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
"""Kind of collective -> kernel: (a device's array, the mesh axis, its number of devices) -> array.

A collective without a kernel gets the bandwidth that its link has for all-reduces.
"""
