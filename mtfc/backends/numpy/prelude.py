# mypy: allow-untyped-defs, allow-untyped-calls
"""Functions that are copied into generated NumPy modules.

A module simulates all processors of the mesh at once. An array has one axis for each mesh axis, in front of its own dimensions.
The axis has the size of the mesh axis if processors along it hold different data, and length 1 if they hold the same. So one
operation on the arrays is the operation of every processor, and replicated data is computed once.

A module gets the text of the functions that it uses, after its own tables (`MESH` and the layouts).
"""

import math
import re

import numpy as np

from mtfc.backends.common.arrays import interleave, wide
from mtfc.backends.common.checks import LAYOUTS, argument, check_whole, entries

MESH: dict[str, int] = {}
"""Mesh axis -> its size. A generated module has its own table."""

NARROWED: dict[str, type] = {}
"""Name of a NumPy dtype that the program does not compute in -> the dtype in its place."""

SENT = {
    kind: {"count": 0, "elements_per_device": 0, "bytes_per_device": 0}
    for kind in ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "permute")
}
"""The collectives of one processor since the module was loaded: their number and the size of their operands."""


def shard(arrays, layouts):
    """Split global arrays over the processors, as the layouts say. Raises `ValueError`."""
    check_whole(arrays, layouts)
    return {name: split(np.asarray(x), layouts[name]) for name, x in arrays.items()}


def unshard(arrays, layouts):
    """Return the global arrays that the processors' parts make up."""
    return {name: join(x, layouts[name]) for name, x in arrays.items()}


def iterations():
    """Number the iterations of a loop that only its condition ends."""
    number = 0
    while True:
        yield number
        number += 1


def split(x, layout):
    """Split a global array as its layout says. 64-bit numbers become the narrower ones of the program."""
    x = x.astype(NARROWED.get(x.dtype.name, x.dtype), copy=False)
    stacked = x.reshape((1,) * len(MESH) + x.shape)
    for dim, axes in enumerate(layout):
        if axes is not None:
            stacked = scatter(stacked, axes, dim - len(layout))
    return stacked


def join(x, layout):
    """Return the global array whose parts are stacked in `x`."""
    for dim, axes in enumerate(layout):
        if axes is not None:
            x = collect(x, axes, dim - len(layout))
    return np.asarray(x[(0,) * len(MESH)])


def whole(kind, arrays):
    """Return the dtype and shape of each global array, from the stack of its parts. Raises `ValueError`."""
    layouts, table = LAYOUTS[kind], {"params": "PARAMETERS"}.get(kind, kind.upper())
    found = {}
    for name, x in entries(kind, arrays):
        if not is_placed(x, layouts.get(name, ())):
            label = f'{argument(kind)}["{name}"]'
            raise ValueError(
                f"{label} is not placed on this mesh: place whole arrays with shard(arrays, {table})"
            )
        found[name] = x.dtype.name, whole_shape(x, layouts.get(name, ()))
    return found


def is_placed(x, layout):
    """Return True if the array has every processor's part along the mesh axes that split it."""
    split = {axis for axes in layout for axis in ((axes,) if isinstance(axes, str) else axes or ())}
    lengths = [{size} if axis in split else {1, size} for axis, size in MESH.items()]
    return x.ndim >= len(MESH) and all(x.shape[i] in right for i, right in enumerate(lengths))


def whole_shape(x, layout):
    """Return the shape of the global array.

    The array may have more dimensions than its layout, in front.
    """
    parts = x.shape[len(MESH) :]
    known = ((None,) * len(parts) + tuple(layout))[len(layout) :]
    shards = [math.prod(x.shape[i] for i in numbers(axes or ())) for axes in known]
    return tuple(np.multiply(shards, parts).astype(int).tolist())


def numbers(axes):
    """Return the array axes of one mesh axis or of several."""
    names = (axes,) if isinstance(axes, str) else axes
    return tuple(list(MESH).index(name) for name in names)


def scatter(x, axes, dim):
    """Keep each processor's part of dimension `dim`, which becomes split over `axes`."""
    found, sizes = numbers(axes), [MESH[list(MESH)[i]] for i in numbers(axes)]
    x = x[tuple(0 if i in found else slice(None) for i in range(len(MESH)))]
    before, after = x.shape[:dim], x.shape[dim:][1:]
    parts = x.reshape(*before, *sizes, x.shape[dim] // math.prod(sizes), *after)
    return np.moveaxis(parts, range(len(before), len(before) + len(sizes)), found)


def collect(x, axes, dim):
    """Join the parts of dimension `dim` along `axes`, the first axis most major, for all processors."""
    found, dim = numbers(axes), x.ndim + dim
    parts = np.moveaxis(x, found, range(dim - len(found), dim))
    lead = [1 if i in found else x.shape[i] for i in range(len(MESH))]
    return parts.reshape(*lead, *x.shape[len(MESH) : dim], -1, *x.shape[dim + 1 :])


def axis_index(axes, rank):
    """Return every processor's number along `axes`, most major first, broadcast against `rank` dimensions."""
    index = np.zeros((1,) * len(MESH), np.int32)
    for number in numbers(axes):
        coordinates = np.arange(MESH[list(MESH)[number]], dtype=np.int32)
        index = index * coordinates.size + np.expand_dims(
            coordinates, [i for i in range(len(MESH)) if i != number]
        )
    return index.reshape(index.shape + (1,) * rank)


def sent(kind, *operands):
    """Count one collective by the operands of a single processor."""
    elements = [math.prod(x.shape[len(MESH) :]) for x in operands]
    SENT[kind]["count"] += 1
    SENT[kind]["elements_per_device"] += sum(elements)
    SENT[kind]["bytes_per_device"] += sum(n * x.itemsize for n, x in zip(elements, operands, strict=True))


def reduced(function, x, axes):
    """Reduce an array over `axes` for all processors; a tuple of arrays in one message."""
    if isinstance(x, tuple):
        sent("all_reduce", *x)
        return tuple(combined(function, y, axes) for y in x)
    sent("all_reduce", x)
    return combined(function, x, axes)


def combined(function, x, axes):
    """Reduce an array over the processors along `axes`; 16-bit numbers are summed in 32 bits."""
    total = function.reduce(wide(x), axis=numbers(axes), dtype=wide(x).dtype, keepdims=True)
    return total.astype(x.dtype, copy=False)


def psum(x, axes):
    return reduced(np.add, x, axes)


def pmax(x, axes):
    return reduced(np.maximum, x, axes)


def pmin(x, axes):
    return reduced(np.minimum, x, axes)


def all_gather(x, axes, dim):
    """Join the parts of `dim` along `axes` for every processor; a tuple of arrays in one message."""
    if isinstance(x, tuple):
        sent("all_gather", *x)
        return tuple(collect(y, axes, d) for y, d in zip(x, dim, strict=True))
    sent("all_gather", x)
    return collect(x, axes, dim)


def reduce_scatter(x, axes, dim):
    """Sum over `axes`, and keep each processor's part of dimension `dim`; a tuple of arrays in one message."""
    if isinstance(x, tuple):
        sent("reduce_scatter", *x)
        return tuple(scatter(combined(np.add, y, axes), axes, d) for y, d in zip(x, dim, strict=True))
    sent("reduce_scatter", x)
    return scatter(combined(np.add, x, axes), axes, dim)


def all_to_all(x, axes, source, target):
    """Join dimension `source`, which is split over `axes`, and split dimension `target` instead."""
    sent("all_to_all", x)
    return scatter(collect(x, axes, source), axes, target)


def permute(x, before, after):
    """Move parts from the processors in the order of axes `before` to those in the order `after`."""
    sent("permute", x)
    old, new = numbers(before), numbers(after)
    moved = np.moveaxis(x, old, range(len(old)))
    parts = moved.reshape(*(MESH[axis] for axis in after), *moved.shape[len(old) :])
    return np.moveaxis(parts, range(len(new)), new)


def shift_shards(x, axes, by, wrap):
    """Hand every processor's part on by `by` places along `axes`; zeros come in, unless parts wrap around."""
    sent("permute", x)
    return moved(x, axes, lambda shards: shift(shards, 0, by, wrap))


def flip_shards(x, axes):
    """Exchange the parts of the processors along `axes` in reverse order."""
    sent("permute", x)
    return moved(x, axes, lambda shards: np.flip(shards, 0))


def moved(x, axes, function):
    """Apply a function to an array in which the processors along `axes` are the first axis."""
    found = numbers(axes)
    shards = np.moveaxis(x, found, range(len(found)))
    placed = function(shards.reshape(-1, *shards.shape[len(found) :]))
    return np.moveaxis(placed.reshape(shards.shape), range(len(found)), found)


def interleave_shards(x, axes, among, back):
    """Deal the parts along array axis `among` out to the processors along `axes` in turn, or collect them again."""
    places, parts = math.prod(x.shape[axis] for axis in numbers(axes)), x.shape[among]
    for turn in range(parts):
        if turn % places or parts % places > 1:  # else each processor keeps its part
            sent("permute", x.take([0], among))
    return moved(x, axes, lambda shards: interleave(shards, 0, among, back))


def local_slice(x, axes, dim):
    """Keep each processor's part of an array that it has whole. Sends nothing."""
    return scatter(x, axes, dim)


def unreduce(x, axes):
    """Keep the array on the first processor along `axes`; the others get zeros."""
    return np.where(axis_index(axes, x.ndim - len(MESH)) == 0, x, np.zeros((), x.dtype))


def pad(x, axis, before, after, step, value):
    """Pad `x` along `axis` with `value`: before, after and, if `step` is above 1, between its elements."""
    x = np.moveaxis(x, axis, 0)
    size = before + step * (len(x) - 1) + 1 + after
    padded = np.full((size, *x.shape[1:]), value, x.dtype)
    padded[before : size - after : step] = x
    return np.moveaxis(padded, 0, axis)


def shift(x, axis, by, wrap):
    """Move element i along `axis` to i + by; zeros come in, unless elements wrap around."""
    rolled = np.moveaxis(np.roll(x, by, axis), axis, 0)
    if not wrap:
        rolled[: max(by, 0)] = 0
        rolled[max(len(rolled) + min(by, 0), 0) :] = 0
    return np.moveaxis(rolled, 0, axis)


def window(x, axis, size, stride, padding, dilation, value):
    """Return the sliding windows of `x`, with their number and `size` as two axes in place of `axis`.

    The result is a view, unless there is padding.
    """
    before, after = padding
    x = pad(x, axis, before, after, 1, value) if before or after else x
    extent, axis = dilation * (size - 1) + 1, x.ndim + axis
    windows = np.lib.stride_tricks.sliding_window_view(x, extent, axis)[..., ::dilation]
    return np.moveaxis(windows, -1, axis + 1)[(slice(None),) * axis + (slice(None, None, stride),)]


def fold(x, axis, within, size, stride, before, dilation):
    """Add up the elements of windows at the places that they come from.

    Axis `axis` counts the windows, `within` their elements. The result has `size` elements in place of
    `axis`. Sums of 16-bit numbers are kept in 32 bits.
    """
    position = x.ndim + axis - (within < axis)
    parts = np.moveaxis(x, (within, axis), (0, 1))
    reach = stride * (parts.shape[1] - 1) + 1
    length = max(before + size, reach + dilation * (len(parts) - 1))
    total = np.zeros((length, *parts.shape[2:]), np.float32 if x.dtype.itemsize == 2 else x.dtype)
    for k, part in enumerate(parts):
        total[k * dilation : k * dilation + reach : stride] += part
    return np.moveaxis(total[before : before + size], 0, position).astype(x.dtype, copy=False)


def integers(x, dtype):
    """Convert floating-point numbers to integers as JAX does: NaN becomes 0.

    A number out of range becomes the nearest integer of the dtype.
    """
    limits = np.iinfo(dtype)
    return np.clip(np.where(np.isnan(x), 0, x.astype(np.float64)), limits.min, limits.max).astype(dtype)


def cumsum(x, axis, exclusive=False, reverse=False):
    """Return the sums along `axis` up to each element.

    exclusive: leave the element itself out. reverse: sum from the end.
    """
    parts = np.moveaxis(x, axis, 0)[:: -1 if reverse else 1]
    sums = np.cumsum(wide(parts), axis=0, dtype=wide(parts).dtype)
    if exclusive:
        sums = np.concatenate([np.zeros_like(sums[:1]), sums[:-1]])
    return np.moveaxis(sums[:: -1 if reverse else 1], 0, axis).astype(x.dtype, copy=False)


def gather(table, ids, axis, shared=()):
    """Return the elements of `table` at the indices `ids` along `axis`; 0 for indices out of range.

    `shared` pairs axes of the table with axes of `ids`: along these, each index reads its own part of the
    table. The result has the axes of `ids`, then the other axes of the table.
    """
    front, places = indexed(ids, axis, shared)
    table, ids = np.moveaxis(table, front, range(len(front))), np.moveaxis(ids, places, range(len(places)))
    inside, index = inner(table.shape[: len(front)], ids)
    found = table[index]
    inside = inside.reshape(inside.shape + (1,) * (found.ndim - inside.ndim))
    return np.moveaxis(np.where(inside, found, np.zeros((), table.dtype)), range(len(places)), places)


def scatter_add(shape, updates, ids, axis, shared=()):
    """Return zeros of this shape with `updates` added at the places that `gather` would read."""
    return sums_at(shape, updates, ids, axis, shared).astype(updates.dtype, copy=False)


def add_at(table, updates, ids, axis, shared=()):
    """Return `table` with `updates` added at the places that `gather` would read."""
    return (wide(table) + sums_at(table.shape, updates, ids, axis, shared)).astype(table.dtype, copy=False)


def sums_at(shape, updates, ids, axis, shared):
    """Return what `scatter_add` returns, in 32 bits at least."""
    front, places = indexed(ids, axis, shared)
    updates, ids = (np.moveaxis(x, places, range(len(places))) for x in (updates, ids))
    table = np.moveaxis(np.zeros(shape, wide(updates).dtype), front, range(len(front)))
    inside, index = inner(table.shape[: len(front)], ids)
    inside = inside.reshape(inside.shape + (1,) * (updates.ndim - inside.ndim))
    np.add.at(table, index, np.where(inside, wide(updates), np.zeros((), table.dtype)))
    return np.moveaxis(table, range(len(front)), front)


def indexed(ids, axis, shared):
    """Return the axes of a table that need indices, and the axes of `ids` that read parts of their own."""
    mesh = range(len(MESH))
    return [*mesh, *(i for i, _ in shared), axis], [*mesh, *(ids.ndim + i for _, i in shared)]


def inner(sizes, ids):
    """Return which of `ids` are in range of the last of `sizes`, and an index for each of the sizes.

    An index out of range becomes 0.
    """
    inside = (ids >= 0) & (ids < sizes[-1])
    others = np.indices((*sizes[:-1], *(1,) * (ids.ndim - len(sizes) + 1)), sparse=True)
    return inside, (*others[: len(sizes) - 1], np.where(inside, ids, 0))


def top_k(x, k, axis):
    """Return the k largest elements along `axis`, and their indices.

    They are the end of a stable sort, reversed. NumPy sorts NaN in bf16 wrongly, so 16-bit numbers are widened.
    """
    order = np.flip(np.argsort(np.flip(wide(x), axis), axis, kind="stable"), axis)
    indices = (x.shape[axis] - 1 - order).take(range(k), axis)
    return np.take_along_axis(x, indices, axis), indices.astype(np.int32)


def erf(x):
    """Return the error function, in the dtype of `x`."""
    from scipy.special import erf as wide

    return wide(x).astype(x.dtype, copy=False)


def power(x, y):
    """x to the power y. For the number 0.5 NumPy takes the root, which differs at -0.0 and -inf."""
    if isinstance(y, float) and y == 0.5:
        y = np.ascontiguousarray(np.broadcast_to(x.dtype.type(y), x.shape))
    return np.power(x, y)


def sigmoid(x):
    """Return 1 / (1 + exp(-x)) without overflow; 16-bit numbers are computed in 32 bits."""
    e = np.exp(-np.abs(wide(x)))
    return (np.where(x >= 0, 1, e) / (1 + e)).astype(x.dtype, copy=False)


def einsum(subscripts, *operands):
    """Compute `np.einsum` on every processor as few, large matrix products.

    A mesh axis along which an operand varies is one more subscript of it, and is kept in the result. If only
    one operand has the axis, a matrix gets taller or wider; if both have it, there is a batch of products.
    """
    *terms, result = re.split(",|->", subscripts)
    parts = [varying(x, term) for x, term in zip(operands, terms, strict=True)]
    while len(parts) > 1:
        (x, y), rest = parts[:2], parts[2:]
        needed = set(result).union(range(len(MESH)), *(labels for _, labels in rest))
        parts = [contract(x, y, needed), *rest]
    x, labels = summed(parts[0], {*range(len(MESH)), *result})
    x = x.transpose([labels.index(label) for label in (*sorted(set(labels) - set(result)), *result)])
    lead = [i for i in range(len(MESH)) if i not in labels]
    return np.expand_dims(x, lead).astype(operands[0].dtype, copy=False)


def grouped_dot(form, group, x, y, groups, number=None):
    """Multiply each row with the part of its group, or sum the products of each group's rows.

    form: x, y, the rows and the result in letters, such as `mk,gkn,m->mn`. groups: the number of each row's group here; rows with
    other numbers count for nothing. number: of groups in the result; None if y has the groups.
    """
    terms, result = form.split("->")
    of_x, of_y, rows = terms.split(",")
    mesh, inner, result = range(len(MESH)), of_y.replace(group, ""), result.replace(group, "")
    place = len(MESH) + (of_y if number is None else form.split("->")[1]).index(group)
    parts, found = [], np.zeros((), x.dtype)
    both = "".join(c for c in result if c in of_x + inner)

    def selected(holds, each, term):
        whole = "".join(dict.fromkeys(term + rows))
        holds, each = (
            spread(holds, [*mesh, *rows], [*mesh, *whole]),
            spread(each, [*mesh, *term], [*mesh, *whole]),
        )
        return np.where(holds, wide(each), 0), whole

    for i in range(y.shape[place] if number is None else number):
        holds = groups == i
        if number is None:
            product = einsum(f"{of_x},{inner}->{both}", wide(x), wide(y[(slice(None),) * place + (i,)]))
            product = spread(product, [*mesh, *both], [*mesh, *result])
            found = np.where(spread(holds, [*mesh, *rows], [*mesh, *result]), product, found)
        else:
            (left, a), (right, b) = (selected(holds, *each) for each in ((x, of_x), (y, of_y)))
            parts.append(einsum(f"{a},{b}->{result}", left, right))
    return (found if number is None else np.stack(parts, place)).astype(x.dtype)


def varying(x, term):
    """Return `x` without the mesh axes along which it is the same, and its subscripts.

    The subscripts are the numbers of the remaining mesh axes, then the letters of `term`.
    """
    found = [i for i in range(len(MESH)) if x.shape[i] > 1]
    if x.dtype.itemsize == 2:
        x = x.astype(np.float32)  # sums of 16-bit numbers are kept in 32 bits
    return x[tuple(slice(None) if i in found else 0 for i in range(len(MESH)))], [*found, *term]


def summed(part, needed):
    """Sum a labelled array over the subscripts that are not needed."""
    x, labels = part
    gone = tuple(i for i, label in enumerate(labels) if label not in needed)
    kept = [label for label in labels if label in needed]
    return (np.add.reduce(x, axis=gone, dtype=x.dtype), kept) if gone else (x, kept)


def contract(left, right, needed):
    """Multiply two labelled arrays as a batch of matrix products, and sum over subscripts not needed."""
    (x, a), (y, b) = summed(left, {*needed, *right[1]}), summed(right, {*needed, *left[1]})
    batch = majors_first(a, x, [label for label in a if label in b and label in needed])
    larger = (a, x) if x.size > y.size else (b, y)
    inner = majors_first(*larger, [label for label in a if label not in needed])
    rows = majors_first(a, x, [label for label in a if label not in b])
    columns = majors_first(b, y, [label for label in b if label not in a])
    if not inner or not (rows or columns):
        return multiplied(x, a, y, b, (batch, rows, columns, inner))
    x = x.transpose([a.index(label) for label in (*batch, *rows, *inner)])
    y = y.transpose([b.index(label) for label in (*batch, *inner, *columns)])
    g, k = len(batch), len(inner)
    group, height, width = x.shape[:g], x.shape[g:-k], y.shape[g + k :]
    x = matrices(x.reshape(*group, math.prod(height), -1))
    y = matrices(y.reshape(*group, -1, math.prod(width)))
    return (x @ y).reshape(*group, *height, *width), [*batch, *rows, *columns]


def matrices(x):
    """Return `x` with rows or columns that are contiguous in memory.

    NumPy would multiply other matrices without BLAS.
    """
    (down, across), item = x.strides[-2:], x.itemsize
    by_rows = across == item and down >= item * x.shape[-1]
    by_columns = down == item and across >= item * x.shape[-2]
    return x if by_rows or by_columns else np.ascontiguousarray(x)


def majors_first(labels, x, chosen):
    """Return the chosen subscripts of `x` in memory order: joining these axes copies nothing."""
    return sorted(chosen, key=lambda label: -abs(x.strides[labels.index(label)]))


def multiplied(x, a, y, b, groups):
    """Multiply element by element.

    This is for products that no matrix product makes faster: no subscript is summed, or each element is used
    once.
    """
    batch, rows, columns, inner = groups
    order = [*batch, *rows, *columns, *inner]
    product = spread(x, a, order) * spread(y, b, order)
    kept = len(order) - len(inner)
    axes = tuple(range(kept, len(order)))
    return np.add.reduce(product, axis=axes, dtype=x.dtype) if axes else product, order[:kept]


def spread(x, labels, order):
    """Transpose `x` to `order`, with axes of length 1 for the subscripts that it lacks."""
    x = x.transpose([labels.index(label) for label in order if label in labels])
    return np.expand_dims(x, [i for i, label in enumerate(order) if label not in labels])


def everywhere(name, x, same):
    """Return `x` as every processor has it.

    Raises `AssertionError` if processors along the axes `same` hold different bits.
    """
    bits = x.view(f"u{x.itemsize}")
    for number in numbers(same):
        first = bits.take([0], axis=number)
        if not (bits == first).all():
            raise AssertionError(f"{name} differs between processors along {list(MESH)[number]}")
    return np.broadcast_to(x, (*MESH.values(), *x.shape[len(MESH) :]))
