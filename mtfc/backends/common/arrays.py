# mypy: allow-untyped-defs, allow-untyped-calls
"""Functions of arrays that are copied into generated modules of both backends. In JAX modules `np.` is `jnp.`."""

import numpy as np


def interleave(x, axis, among, back):
    """Number the elements along `axis` and `among` row by row, and deal them out along `axis`; or collect them again."""
    ends = (among, axis) if back else (axis, among)
    parts = np.moveaxis(x, ends, (0, 1))
    dealt = parts.reshape(parts.shape[1], parts.shape[0], *parts.shape[2:])
    return np.moveaxis(dealt, (1, 0), ends)


def wide(x):
    """Return `x` in the dtype of its sums: 32 bits for 16-bit numbers."""
    return x.astype(np.float32) if x.dtype.itemsize == 2 else x


def is_argmax(x, axes):
    """Mark the largest element over `axes`: the first of equal ones, in the order of `axes`."""
    parts = np.moveaxis(x, axes, range(len(axes)))
    flat = parts.reshape(-1, *parts.shape[len(axes) :])
    number = np.arange(len(flat)).reshape(-1, *[1] * (flat.ndim - 1))
    found = (np.argmax(flat, axis=0) == number).reshape(parts.shape)
    return np.moveaxis(found, range(len(axes)), axes)


def set_at(table, updates, ids, axis, shared=()):
    """Return `table` with `updates` at the places that `gather` would read. The table has all axes of `ids`."""
    own = (table.ndim + i for i, _ in sorted(shared, key=lambda pair: pair[1]))
    first = [*range(ids.ndim - len(shared)), *own]  # in NumPy, the axes of the mesh are in front
    axis += table.ndim
    order = [*first, *(i for i in range(table.ndim) if i not in (*first, axis)), axis]
    ids = np.moveaxis(ids.reshape(ids.shape + (1,) * (table.ndim - ids.ndim)), range(table.ndim), order)
    updates = np.moveaxis(updates[..., None], range(table.ndim), order)
    places = np.arange(table.shape[axis]).reshape(-1, *(1,) * (table.ndim - 1 - axis))
    return np.where(ids == places, updates, table)
