# mypy: allow-untyped-defs, allow-untyped-calls
"""What generated JAX modules are made of besides the user's program: what `jax.numpy` and `jax.lax` have no single call for.

The text of those functions that a module uses is copied into it. They see one device's shards.
"""

from functools import partial
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    import jax
    import jax.numpy as jnp
    from jax import lax

MESH: dict[str, int] = {}
"""Name of a mesh axis -> its size; a generated module has its own."""


def in_order(axes):
    """The numbers that `lax.ppermute` gives the devices along some axes, in the order of these axes.

    Whatever order it is told, it counts in the order of the mesh.
    """
    known = [axis for axis in MESH if axis in axes]
    devices = np.arange(np.prod([MESH[axis] for axis in known])).reshape([MESH[axis] for axis in known])
    return devices.transpose([known.index(axis) for axis in axes]).ravel().tolist()


def permute(x, before, after):
    """The shard that this device holds when axes that split a dimension do so in another order."""
    return lax.ppermute(x, before, list(zip(in_order(before), in_order(after), strict=True)))


def shift_shards(x, axes, by, wrap):
    """The shard of the device `by` places back along `axes`; zeros beyond the end, unless it wraps around."""
    devices = in_order((axes,) if isinstance(axes, str) else axes)
    places = [i for i in range(len(devices)) if wrap or 0 <= i + by < len(devices)]
    return lax.ppermute(x, axes, [(devices[i], devices[(i + by) % len(devices)]) for i in places])


def pmax(x, axes):
    """The largest over `axes`, of each array of a tuple. The first device that has it takes the gradient."""

    def slope(primals, tangents):
        (x,), (tangent,) = primals, tangents
        parts = lax.all_gather(x, axes, to="invarying")
        holds = jnp.argmax(parts, axis=0) == lax.axis_index(axes)
        return jnp.max(parts, axis=0), lax.psum(jnp.where(holds, tangent, 0), axes)

    largest = jax.custom_jvp(lambda x: lax.pmax(x, axes))
    largest.defjvp(slope)
    return jax.tree.map(largest, x)


def largest(x, axes):
    """The largest over array axes. The first of equals takes the gradient; `jnp.max` would share it out."""

    def slope(primals, tangents):
        (x,), (tangent,) = primals, tangents
        return jnp.max(x, axes), jnp.sum(jnp.where(is_argmax(x, axes), tangent, 0), axes)

    found = jax.custom_jvp(lambda x: jnp.max(x, axes))
    found.defjvp(slope)
    return found(x)


def smallest(x, axes):
    """The smallest over array axes, like `largest`."""
    return -largest(-x, axes)


def pmin(x, axes):
    """The smallest over `axes`, like `pmax`."""
    return jax.tree.map(jnp.negative, pmax(jax.tree.map(jnp.negative, x), axes))


def along(axis, rank, before, after, between):
    """Padding of one axis, counted from the end, as `lax.pad` takes it; negative numbers cut off."""
    return [(before, after, between) if i == rank + axis else (0, 0, 0) for i in range(rank)]


def turned(product):
    """The transpose of a product of matrices. On CPU XLA would rather take the product the other way round,
    and transpose the larger factor: the barrier prevents that.
    """
    return lax.platform_dependent(product, cpu=lambda x: lax.optimization_barrier(x).T, default=lambda x: x.T)


def all_gather(arrays, axes, dim):
    """Join the shards of several arrays, each along its dimension counted from the end, in one message."""
    flat = lax.all_gather(jnp.concatenate([x.ravel() for x in arrays]), axes, to="invarying")
    parts = jnp.split(flat, np.cumsum([x.size for x in arrays])[:-1], axis=1)
    return [joined(part, x.shape, x.ndim + d) for part, x, d in zip(parts, arrays, dim, strict=True)]


def joined(parts, shape, axis):
    """Arrays of one shape, each a row of `parts`, joined along `axis`."""
    shards = jnp.moveaxis(parts.reshape(-1, *shape), 0, axis)
    return shards.reshape(*shape[:axis], -1, *shape[axis + 1 :])


def bound(number, *arrays):
    """The arrays, which XLA cannot use before the number is known. Each has a barrier: they vary differently."""
    held = [lax.optimization_barrier((x, number))[0] for x in arrays]
    return held if len(held) > 1 else held[0]


def window(x, axis, size, stride, padding, dilation, value):
    """The windows of `x` along `axis`, which gives way to their number and their `size`."""
    before, after = padding
    padded = lax.pad(x, jnp.asarray(value, x.dtype), along(axis, x.ndim, before, after, 0))
    axis, last = x.ndim + axis, padded.shape[axis] - dilation * (size - 1)
    parts = [lax.slice_in_dim(padded, k * dilation, last + k * dilation, stride, axis) for k in range(size)]
    return jnp.stack(parts, axis + 1)


def fold(x, axis, within, size, stride, before, dilation):
    """The elements of windows (`axis` counts them, `within` their elements) added up where they came from.

    That is a dimension of `size` elements in place of `axis`; sums of 16-bit numbers are kept in 32 bits.
    """
    wide = x.astype(jnp.promote_types(x.dtype, jnp.float32))
    rank, reach, axis = x.ndim - 1, stride * (x.shape[axis] - 1) + 1, axis + (within > axis)
    total = jnp.zeros((), wide.dtype)
    for k in range(x.shape[within]):
        start = k * dilation - before
        config = along(axis, rank, start, size - start - reach, stride - 1)
        total = total + lax.pad(jnp.take(wide, k, within), jnp.zeros((), wide.dtype), config)
    return total.astype(x.dtype)


def wide(x):
    """`x` in the dtype that its sums are kept in: 32 bits for 16-bit numbers."""
    return x.astype(jnp.float32) if x.dtype.itemsize == 2 else x


def cumsum(x, axis, exclusive=False, reverse=False):
    """The sums of the elements along `axis` up to each one, without it or from the end."""
    sums = lax.cumsum(wide(x), x.ndim + axis, reverse=reverse)
    if exclusive:
        ends = (-1, 1) if reverse else (1, -1)
        sums = lax.pad(sums, jnp.zeros((), sums.dtype), along(axis, x.ndim, *ends, 0))
    return sums.astype(x.dtype)


def top_k(x, k, axis):
    """The k largest elements along `axis`, and their indices. JAX puts 0.0 before -0.0: both become 0.0."""
    return lax.top_k(x - lax.stop_gradient(jnp.where(x == 0, x, jnp.zeros((), x.dtype))), k, axis=axis)


def is_argmax(x, axes):
    """Whether each element is the largest one over `axes`, the first among equals in their order."""
    parts = jnp.moveaxis(x, axes, range(len(axes)))
    flat = parts.reshape(-1, *parts.shape[len(axes) :])
    number = jnp.arange(len(flat)).reshape(-1, *[1] * (flat.ndim - 1))
    found = (jnp.argmax(flat, axis=0) == number).reshape(parts.shape)
    return jnp.moveaxis(found, range(len(axes)), axes)


def gather(table, ids, axis, shared=()):
    """The elements of `table` that `ids` point at along `axis`, and 0 where they point outside.

    `shared` pairs axes of the table with those of `ids` along which each index reads its own part. The
    result has the axes of `ids`, then the table's others.
    """
    first, places = range(len(shared)), [ids.ndim + i for _, i in shared]
    read = partial(jnp.take, axis=0, mode="fill", fill_value=0)
    for _ in shared:
        read = jax.vmap(read)
    table = jnp.moveaxis(table, [*(i for i, _ in shared), axis], range(len(shared) + 1))
    ids = jnp.moveaxis(ids, places, first).astype(jnp.uint32)  # JAX counts negative indices from the end
    return jnp.moveaxis(read(table, ids), first, places)


def scatter_add(shape, updates, ids, axis, shared=()):
    """Zeros of this shape, with `updates` added where `gather`, given the same, would read them."""

    def add(table, ids, updates):
        return table.at[ids].add(updates, mode="drop")

    first, places = range(len(shared)), [ids.ndim + i for _, i in shared]
    front = [*(i for i, _ in shared), axis]
    for _ in shared:
        add = jax.vmap(add)
    updates, ids = jnp.moveaxis(updates, places, first), jnp.moveaxis(ids, places, first).astype(jnp.uint32)
    table = jnp.moveaxis(jnp.zeros(shape, wide(updates).dtype), front, range(len(front)))
    return jnp.moveaxis(add(table, ids, wide(updates)), range(len(front)), front).astype(updates.dtype)
