# mypy: allow-untyped-defs, allow-untyped-calls
"""Functions that are copied into generated JAX modules, for what `jax.numpy` and `jax.lax` have no single call.

A module gets the text of the functions that it uses. Arrays are one device's shards.
"""

import math
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from mtfc.backends.common.arrays import is_argmax, set_at, wide

if TYPE_CHECKING:
    import jax
    import jax.numpy as jnp
    from jax import lax


def mesh_order(axes):
    """Return axes in the order of the mesh on which the caller runs: `lax.ppermute` takes no other."""
    return tuple(axis for axis in jax.sharding.get_abstract_mesh().axis_names if axis in axes)


def in_order(axes):
    """Return the devices along `axes`, numbered as `lax.ppermute` counts them, in the order of `axes`."""
    known, sizes = mesh_order(axes), jax.sharding.get_abstract_mesh().shape
    devices = np.arange(np.prod([sizes[axis] for axis in known])).reshape([sizes[axis] for axis in known])
    return devices.transpose([known.index(axis) for axis in axes]).ravel().tolist()


def permute(x, before, after):
    """Return this device's shard after the axes that split a dimension are reordered."""
    return lax.ppermute(x, mesh_order(before), list(zip(in_order(before), in_order(after), strict=True)))


def shift_shards(x, axes, by, wrap):
    """Return the shard of the device `by` places back along `axes`.

    Beyond the end the result is zeros, unless `wrap` is true.
    """
    axes = (axes,) if isinstance(axes, str) else axes
    devices = in_order(axes)
    places = [i for i in range(len(devices)) if wrap or 0 <= i + by < len(devices)]
    return lax.ppermute(x, mesh_order(axes), [(devices[i], devices[(i + by) % len(devices)]) for i in places])


def flip_shards(x, axes):
    """Return the shard of the device that is as far from the end along `axes` as this one is from the start."""
    devices = in_order((axes,) if isinstance(axes, str) else axes)
    return lax.ppermute(x, axes, list(zip(devices, reversed(devices), strict=True)))


def interleave_shards(x, axes, among, back):
    """Deal the parts along array axis `among` out to the devices along `axes` in turn, or collect them again.

    Each device has one element of the other array axis. In each turn every device sends one part and receives one.
    """
    axes = (axes,) if isinstance(axes, str) else axes
    devices, number, here = in_order(axes), x.shape[among], lax.axis_index(axes)
    place, result = np.arange(len(devices)), jnp.zeros_like(x)
    for turn in range(number):
        part = (turn + place * math.gcd(number, len(devices)) // len(devices)) % number
        chunk, target = np.divmod(place * number + part, len(devices))
        order = np.argsort(target)
        taken, put = (chunk[order], part) if back else (part, chunk[order])
        pairs = [(devices[i], devices[k]) for i, k in enumerate(target)]
        found = lax.dynamic_slice_in_dim(x, jnp.asarray(taken)[here], 1, among)
        if any(target != place):
            found = lax.ppermute(found, mesh_order(axes), [pair[:: -1 if back else 1] for pair in pairs])
        result = lax.dynamic_update_slice_in_dim(result, found, jnp.asarray(put)[here], among)
    return result


def pmax(x, axes):
    """Return the largest elements over the devices along `axes`; of each array if `x` is a tuple.

    NaN counts as larger than all numbers. The gradient goes to the first device that has the largest element.
    """

    def passed(x, tangent):
        holds = jnp.argmax(lax.all_gather(x, axes, to="invarying"), axis=0) == lax.axis_index(axes)
        return lax.psum(jnp.where(holds, tangent, 0), axes)

    def slope(primals, tangents):
        return largest(*primals), jax.tree.map(passed, *primals, *tangents)

    def over_devices(x):
        found = lax.pmax(jax.tree.map(lambda y: ranked(y), x), axes)
        return jax.tree.map(lambda bits, y: unranked(bits, y), found, x)

    largest = jax.custom_jvp(over_devices)
    largest.defjvp(slope)
    return largest(x)


def pmin(x, axes):
    """Return the smallest elements over the devices along `axes`, with the gradient of `pmax`; NaN if one is NaN."""
    found = pmax(jax.tree.map(lambda y: backwards(y), x), axes)
    return jax.tree.map(lambda y: backwards(y), found)


def sum_bits(total, *arrays):
    """Sum arrays of which only one device has elements that are not 0: the bits keep the sign of -0.0."""

    def of_bits(*arrays):
        return jax.tree.map(lambda bits: unranked(bits, arrays[0]), total(*[ranked(x) for x in arrays]))

    found = jax.custom_jvp(of_bits)
    found.defjvp(lambda primals, tangents: (found(*primals), total(*tangents)))
    return found(*arrays)


def ranked(x):
    """Return integers in the order of the floating-point numbers `x`, with NaN as the largest.

    On some platforms `lax.pmax` loses NaN; it loses no integer.
    """
    if not jnp.issubdtype(x.dtype, jnp.floating):
        return x
    bits = lax.bitcast_convert_type(jnp.where(jnp.isnan(x), jnp.nan, x), f"int{8 * x.dtype.itemsize}")
    return jnp.where(bits < 0, bits ^ jnp.iinfo(bits.dtype).max, bits)


def unranked(bits, x):
    """Return the numbers, in the dtype of `x`, from which `ranked` made integers."""
    if bits.dtype == x.dtype:
        return bits
    return lax.bitcast_convert_type(jnp.where(bits < 0, bits ^ jnp.iinfo(bits.dtype).max, bits), x.dtype)


def backwards(x):
    """Return numbers in the reverse order. The function is its own inverse."""
    return -x if jnp.issubdtype(x.dtype, jnp.floating) else ~x


def largest(x, axes):
    """Return the largest elements over array axes. The gradient goes to the first of equal elements."""

    def slope(primals, tangents):
        (x,), (tangent,) = primals, tangents
        return jnp.max(x, axes), jnp.sum(jnp.where(is_argmax(x, axes), tangent, 0), axes)

    found = jax.custom_jvp(lambda x: jnp.max(x, axes))
    found.defjvp(slope)
    return found(x)


def smallest(x, axes):
    """Return the smallest elements over array axes, with the gradient of `largest`."""
    return -largest(-x, axes)


def along(axis, rank, before, after, between):
    """Return padding for `lax.pad`: of one axis, counted from the end. Negative numbers cut elements off."""
    return [(before, after, between) if i == rank + axis else (0, 0, 0) for i in range(rank)]


def turned(product):
    """Return the transpose of a product of matrices.

    On CPU, XLA would otherwise swap the factors and transpose the larger one. The barrier prevents that.
    """
    return lax.platform_dependent(product, cpu=lambda x: lax.optimization_barrier(x).T, default=lambda x: x.T)


def all_gather(arrays, axes, dim):
    """Join the shards of several arrays, each along its dimension counted from the end, in one message."""
    flat = lax.all_gather(jnp.concatenate([x.ravel() for x in arrays]), axes, to="invarying")
    parts = jnp.split(flat, np.cumsum([x.size for x in arrays])[:-1], axis=1)
    return [joined(part, x.shape, x.ndim + d) for part, x, d in zip(parts, arrays, dim, strict=True)]


def reduce_scatter(arrays, axes, dim):
    """Sum several arrays, and keep this device's part of each along its dimension counted from the end, in one message."""
    number = lax.axis_size(axes)
    parts = [parted(x, number, x.ndim + d) for x, d in zip(arrays, dim, strict=True)]
    flat = jnp.concatenate([part.reshape(number, -1) for part in parts], axis=1)
    sums = jnp.split(lax.psum_scatter(flat, axes), np.cumsum([x.size // number for x in arrays])[:-1])
    return [x.reshape(part.shape[1:]) for x, part in zip(sums, parts, strict=True)]


def parted(x, number, axis):
    """Return an array cut into parts along `axis`, the parts in front."""
    shape = (*x.shape[:axis], number, x.shape[axis] // number, *x.shape[axis + 1 :])
    return jnp.moveaxis(x.reshape(shape), axis, 0)


def joined(parts, shape, axis):
    """Return the rows of `parts`, each an array of this shape, joined along `axis`."""
    shards = jnp.moveaxis(parts.reshape(-1, *shape), 0, axis)
    return shards.reshape(*shape[:axis], -1, *shape[axis + 1 :])


def bound(number, *arrays):
    """Return the arrays in a form that XLA cannot use before the number is known.

    Each array has its own barrier, as the arrays may vary along different axes of the mesh.
    """
    held = [lax.optimization_barrier((x, number))[0] for x in arrays]
    return held if len(held) > 1 else held[0]


def unrolled_scan(body, carry, wholes, stacks, trips, copies, reverse=False):
    """Return what `lax.scan` returns. An iteration of the loop runs `copies` of `body`: one sends while another computes.

    wholes: arrays that are sliced. stacks: zeros in the place of the stacked results.
    """

    def several(found, number):
        carry, stacks = found
        for i in range(copies):
            index = trips - 1 - number * copies - i if reverse else number * copies + i
            taken = partial(lax.dynamic_index_in_dim, index=index, keepdims=False)
            carry, parts = body(carry, jax.tree.map(taken, wholes))
            put = partial(lax.dynamic_update_index_in_dim, index=index, axis=0)
            stacks = jax.tree.map(put, stacks, parts)
        return (carry, stacks), None

    found, _ = lax.scan(several, (carry, stacks), jnp.arange(trips // copies))
    return found


def window(x, axis, size, stride, padding, dilation, value):
    """Return the sliding windows of `x`, with their number and `size` as two axes in place of `axis`."""
    before, after = padding
    padded = lax.pad(x, jnp.asarray(value, x.dtype), along(axis, x.ndim, before, after, 0))
    axis, last = x.ndim + axis, padded.shape[axis] - dilation * (size - 1)
    parts = [lax.slice_in_dim(padded, k * dilation, last + k * dilation, stride, axis) for k in range(size)]
    return jnp.stack(parts, axis + 1)


def fold(x, axis, within, size, stride, before, dilation):
    """Add up the elements of windows at the places that they come from.

    Axis `axis` counts the windows, `within` their elements. The result has `size` elements in place of
    `axis`. Sums of 16-bit numbers are kept in 32 bits.
    """
    wide = x.astype(jnp.promote_types(x.dtype, jnp.float32))
    rank, reach, axis = x.ndim - 1, stride * (x.shape[axis] - 1) + 1, axis + (within > axis)
    total = jnp.zeros((), wide.dtype)
    for k in range(x.shape[within]):
        start = k * dilation - before
        config = along(axis, rank, start, size - start - reach, stride - 1)
        total = total + lax.pad(jnp.take(wide, k, within), jnp.zeros((), wide.dtype), config)
    return total.astype(x.dtype)


def cumsum(x, axis, exclusive=False, reverse=False):
    """Return the sums along `axis` up to each element.

    exclusive: leave the element itself out. reverse: sum from the end.
    """
    sums = lax.cumsum(wide(x), x.ndim + axis, reverse=reverse)
    if exclusive:
        ends = (-1, 1) if reverse else (1, -1)
        sums = lax.pad(sums, jnp.zeros((), sums.dtype), along(axis, x.ndim, *ends, 0))
    return sums.astype(x.dtype)


def top_k(x, k, axis):
    """Return the k largest elements along `axis`, and their indices.

    NaN of either sign is the largest, and -0.0 counts as 0.0: `lax.top_k` would put -NaN last, and 0.0 before -0.0.
    """
    if jnp.issubdtype(x.dtype, jnp.floating):
        x = jnp.where(jnp.isnan(x), jnp.nan, x)
    return lax.top_k(x - lax.stop_gradient(jnp.where(x == 0, x, jnp.zeros((), x.dtype))), k, axis=axis)


def gather(table, ids, axis, shared=()):
    """Return the elements of `table` at the indices `ids` along `axis`; 0 for indices out of range.

    `shared` pairs axes of the table with axes of `ids`: along these, each index reads its own part of the
    table. The result has the axes of `ids`, then the other axes of the table.
    """
    if ids.size == 1 and all(ids.shape[i] == table.shape[a] == 1 for a, i in shared):
        found, inside, _ = one_part(table, ids, axis)
        rest = [n for i, n in enumerate(table.shape, -table.ndim) if i != axis and i not in dict(shared)]
        return jnp.where(inside, found, 0).astype(table.dtype).reshape(*ids.shape, *rest)
    first, places = range(len(shared)), [ids.ndim + i for _, i in shared]
    read = partial(jnp.take, axis=0, mode="fill", fill_value=0)
    for _ in shared:
        read = jax.vmap(read)
    table = jnp.moveaxis(table, [*(i for i, _ in shared), axis], range(len(shared) + 1))
    ids = jnp.moveaxis(ids, places, first).astype(jnp.uint32)  # JAX counts negative indices from the end
    return jnp.moveaxis(read(table, ids), first, places)


def grouped_dot(form, group, x, y, groups, number=None):
    """Multiply each row with the part of its group, or sum the products of each group's rows.

    form: x, y, the rows and the result in letters, such as `mk,gkn,m->mn`. groups: the number of each row's group here; rows with
    other numbers count for nothing. number: of groups in the result; None if y has the groups. Rows are sorted by group.
    """
    terms, result = form.split("->")
    of_x, of_y, rows = terms.split(",")
    sizes = dict(zip(of_x + of_y + rows, (*x.shape, *y.shape, *groups.shape), strict=True))
    count = sizes.setdefault(group, number)
    batches = [c for c in rows if c in (of_y if number is None else result)]
    kept = [[c for c in term if c in result and c not in rows + group] for term in (of_x, of_y)]
    summed = [c for c in of_x if c in of_y and c not in rows]
    parts = count * math.prod(sizes[c] for c in batches)
    holds = ((groups >= 0) & (groups < count)).ravel()
    ids = jnp.where(holds, row_places(groups, rows, batches) * count + groups.ravel(), parts)
    order = jnp.argsort(ids)
    starts = jnp.searchsorted(ids[order], jnp.arange(parts + 1)).astype(jnp.int32)
    of_rows = [[c for c in rows if c in term] for term in (of_x, of_y)]
    sources = [row_places(groups, rows, letters)[order] for letters in of_rows]
    wanted = jnp.promote_types(x.dtype, jnp.float32)
    if number is None:
        left = as_matrices(x, of_x, of_rows[0], kept[0], summed)
        right = as_matrices(y, of_y, [*batches, group], summed, kept[1])
        found = lax.platform_dependent(
            *(left, right, sources[0], starts),
            cpu=lambda *given: dots_in_blocks(wanted, *given),
            default=lambda *given: ragged_dots(wanted, *given),
        )
        found = found[jnp.zeros_like(order).at[order].set(jnp.arange(len(order)))]
        found, letters = jnp.where(holds[:, None, None], found, 0), [*rows, *kept[0], *kept[1]]
    else:
        left = as_matrices(x, of_x, of_rows[0], summed, kept[0])
        right = as_matrices(y, of_y, of_rows[1], summed, kept[1])
        found = lax.platform_dependent(
            *(left, right, *sources, starts),
            cpu=lambda *given: sums_in_blocks(wanted, *given),
            default=lambda *given: ragged_sums(wanted, *given),
        )
        letters = [*batches, group, *kept[0], *kept[1]]
    found = found.reshape([sizes[c] for c in letters]).astype(x.dtype)
    return found.transpose([letters.index(c) for c in result])


def as_matrices(array, term, *parts):
    """Return an array, whose dimensions have letters, with an axis for each list of letters."""
    sizes = dict(zip(term, array.shape, strict=True))
    shape = [math.prod(sizes[c] for c in part) for part in parts]
    return array.transpose([term.index(c) for part in parts for c in part]).reshape(shape)


def row_places(groups, rows, letters):
    """Return for each row its place along some of the dimensions of rows."""
    found = jnp.zeros(groups.shape, jnp.int32)
    for axis in map(rows.index, letters):
        found = found * groups.shape[axis] + lax.broadcasted_iota(jnp.int32, groups.shape, axis)
    return found.ravel()


def ragged_dots(dtype, left, right, source, starts):
    """Return rows of [rows, copies, k] @ [parts, k, n]: place i holds left[source[i]], part p those from starts[p] on."""
    copies = left.shape[1]
    flat, lengths = left[source].reshape(-1, left.shape[2]), (starts[1:] - starts[:-1]) * copies
    found = lax.ragged_dot(flat, right, lengths, preferred_element_type=dtype)
    return found.reshape(len(source), copies, -1)


def ragged_sums(dtype, left, right, left_source, right_source, starts):
    """Return for each part the sum over its places, see `ragged_dots`, of the products of [rows, k, m] and [rows, k, n]."""
    lengths = (starts[1:] - starts[:-1]) * left.shape[1]
    left = left[left_source].reshape(-1, left.shape[2])
    right = right[right_source].reshape(-1, right.shape[2])
    numbers = lax.RaggedDotDimensionNumbers((((0,), (0,)), ((), ())), [0], [])
    return lax.ragged_dot_general(left, right, lengths, numbers, preferred_element_type=dtype)


def dots_in_blocks(dtype, left, right, source, starts):
    """Return what `ragged_dots` returns, by blocks of one part. Rows behind its end are overwritten by the next part."""
    size = block_size(source, starts)
    padded = jnp.pad(source, (0, size))

    def dots(part, start, found):
        rows = left[lax.dynamic_slice_in_dim(padded, start, size)]
        new = jnp.einsum("rck,kn->rcn", rows, right[part], preferred_element_type=dtype)
        return lax.dynamic_update_slice_in_dim(found, new, start, 0)

    shape = (len(padded), left.shape[1], right.shape[2])
    return over_blocks(dots, starts, size, zeros_along(starts, (left, right), shape, dtype))[: len(source)]


def sums_in_blocks(dtype, left, right, left_source, right_source, starts):
    """Return what `ragged_sums` returns, by blocks of one part."""
    size = block_size(left_source, starts)
    sides = [(left, jnp.pad(left_source, (0, size))), (right, jnp.pad(right_source, (0, size)))]

    def sums(part, start, found):
        holds = (start + jnp.arange(size) < starts[part + 1])[:, None, None]
        a, b = (
            jnp.where(holds, each[lax.dynamic_slice_in_dim(source, start, size)], 0) for each, source in sides
        )
        return found.at[part].add(jnp.einsum("rkm,rkn->mn", a, b, preferred_element_type=dtype))

    shape = (len(starts) - 1, left.shape[2], right.shape[2])
    return over_blocks(sums, starts, size, zeros_along(starts, (left, right), shape, dtype))


def block_size(source, starts):
    """Return the rows of a block: the mean number of a part, from 8 to 128."""
    return min(max(len(source) // (len(starts) - 1), 8), 128, len(source))


def over_blocks(function, starts, size, found):
    """Apply `function` to the part of each block, the first place of the block, and what was found before."""
    blocks = -((starts[:-1] - starts[1:]) // size)
    ends = jnp.cumsum(blocks)

    def step(i, found):
        part = jnp.searchsorted(ends, i, side="right")
        return function(part, starts[part] + (i - ends[part] + blocks[part]) * size, found)

    return lax.fori_loop(0, ends[-1], step, found)


def differentiable_grouped_dot(form, group, x, y, groups, number=None):
    """Return what `grouped_dot` returns. Its gradients are grouped dots, too: JAX cannot differentiate blocks."""
    terms, result = form.split("->")
    of_x, of_y, rows = terms.split(",")

    def gradient(a, of_a, b, of_b, wanted, groups, number=None):
        """Return a grouped dot, summed over the rows that an operand lacks."""
        lacks = "" if number else "".join(c for c in rows if c not in wanted)
        found = grouped_dot(f"{of_a},{of_b},{rows}->{lacks}{wanted}", group, a, b, groups, number)
        return wide(found).sum(range(len(lacks))).astype(found.dtype)

    def backward(given, g):
        x, y, groups = given
        count = y.shape[of_y.index(group)] if number is None else None
        dx = gradient(*((g, result, y, of_y) if number is None else (y, of_y, g, result)), of_x, groups)
        return dx, gradient(x, of_x, g, result, of_y, groups, count), None

    call = jax.custom_vjp(lambda x, y, groups: grouped_dot(form, group, x, y, groups, number))
    call.defvjp(lambda *given: (call(*given), given), backward)
    never = zeros_along(groups * 0, (x, y), (), bool)
    return call(jnp.where(never, 0, x), jnp.where(never, 0, y), groups)


def zeros_along(numbers, arrays, shape, dtype):
    """Return zeros that vary over the mesh axes over which one of the arrays does: a loop keeps the axes that it starts with.

    numbers: not negative.
    """
    zero = numbers.ravel()[0] < 0
    for each in arrays:
        zero = zero & (each.ravel()[0] > 0)
    return jnp.full(shape, zero.astype(dtype))


def one_part(table, ids, axis):
    """Return the part of `table` at a single index, if the index is in range, and the place of the part."""
    index = ids.reshape(())
    place = jnp.clip(index, 0, table.shape[axis] - 1).astype(jnp.int32)
    return lax.dynamic_slice_in_dim(table, place, 1, axis), index == place, place


def scatter_add(shape, updates, ids, axis, shared=()):
    """Return zeros of this shape with `updates` added at the places that `gather` would read."""
    return add_at(jnp.zeros(shape, wide(updates).dtype), updates, ids, axis, shared).astype(updates.dtype)


def add_at(table, updates, ids, axis, shared=()):
    """Return `table` with `updates` added at the places that `gather` would read. A single place is changed in place."""

    def add(table, ids, updates):
        return table.at[ids].add(updates, mode="drop")

    if is_one_place(table, ids, shared):
        return with_part(table, ids, axis, lambda found: found + updates.reshape(found.shape))
    first, places = range(len(shared)), [ids.ndim + i for _, i in shared]
    front = [*(i for i, _ in shared), axis]
    for _ in shared:
        add = jax.vmap(add)
    updates, ids = jnp.moveaxis(updates, places, first), jnp.moveaxis(ids, places, first).astype(jnp.uint32)
    moved = jnp.moveaxis(wide(table), front, range(len(front)))
    return jnp.moveaxis(add(moved, ids, wide(updates)), range(len(front)), front).astype(table.dtype)


def set_part(table, updates, ids, axis, shared=()):
    """Return what `set_at` returns. A single place is changed in place."""
    if is_one_place(table, ids, shared):
        return with_part(table, ids, axis, lambda found: updates.reshape(found.shape))
    return set_at(table, updates, ids, axis, shared)


def is_one_place(table, ids, shared):
    """Return True if the indices point at one place of the table along one of its axes."""
    return ids.size == 1 and all(table.shape[i] == 1 for i, _ in shared)


def with_part(table, ids, axis, change):
    """Return `table` with another part at a single index, if the index is in range."""
    found, inside, place = one_part(table, ids, axis)
    new = jnp.where(inside, change(found), found).astype(table.dtype)
    return lax.dynamic_update_slice_in_dim(table, new, place, axis)
