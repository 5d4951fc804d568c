"""Primitives that move elements: broadcasts, reshapes and transposes, parts of axes, and iota."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from mtfc.compiler.ir.attributes import INTEGER_RANGE
from mtfc.compiler.ir.core import Value
from mtfc.compiler.ir.types import FLOATS, Dim
from mtfc.frontend.jaxpr.emitting import JaxprEmitter
from mtfc.frontend.jaxpr.factors import Axis, axis, cut, leaves
from mtfc.frontend.jaxpr.flat import AppliedPrimitive, Number, Operand, Var
from mtfc.frontend.jaxpr.linking import Axes, Linker, PrimitiveRule
from mtfc.frontend.jaxpr.rules.elementwise import EVERY


def repeated(operand: Operand) -> frozenset[int]:
    return operand.repeated if isinstance(operand, Var) else frozenset()


def _same(emitter: JaxprEmitter, step: AppliedPrimitive) -> Sequence[Value]:
    return (emitter.operand(step, 0),)


# broadcast, transpose, squeeze


def _link_broadcast(linker: Linker, step: AppliedPrimitive) -> None:
    """Axes of size 1 are repeated, so they get new axes."""
    x, (result,) = step.operands[0], step.results
    places = step.params["broadcast_dimensions"]
    axes = [axis(size) for size in result.shape]
    new = set(range(len(result.shape)))
    for j, place in enumerate(places):
        if x.shape[j] == result.shape[place]:
            axes[place] = x.axes[j]
            if j not in repeated(x):
                new.discard(place)
    linker.give(result, tuple(axes))
    result.repeated = frozenset(new)


def _link_transpose(linker: Linker, step: AppliedPrimitive) -> None:
    (x,), (result,) = step.operands, step.results
    order = step.params["permutation"]
    linker.give(result, tuple(x.axes[j] for j in order))
    result.repeated = frozenset(i for i, j in enumerate(order) if j in repeated(x))


def _link_squeeze(linker: Linker, step: AppliedPrimitive) -> None:
    (x,), (result,) = step.operands, step.results
    gone = {j % len(x.shape) for j in step.params["dimensions"]}
    kept = [j for j in range(len(x.shape)) if j not in gone]
    linker.give(result, tuple(x.axes[j] for j in kept))
    result.repeated = frozenset(i for i, j in enumerate(kept) if j in repeated(x))


# reshape


def _groups(before: Sequence[int], after: Sequence[int]) -> list[tuple[range, range]]:
    """Return the finest groups of adjacent axes that hold the same elements, by their numbers before and after."""
    groups, i, j = [], 0, 0
    while i < len(before) or j < len(after):
        first, second = i, j
        i, j = min(i + 1, len(before)), min(j + 1, len(after))
        while (a := prod(before[first:i])) != (b := prod(after[second:j])):
            i, j = (i + 1, j) if a < b else (i, j + 1)
        groups.append((range(first, i), range(second, j)))
    return groups


def _link_reshape(linker: Linker, step: AppliedPrimitive) -> None:
    """Split factors where axes are split. If that is not possible, the result has new axes, which never become the operand's."""
    (x, *_), (result,) = step.operands, step.results
    order = _order(step)
    axes: list[Axis] = []
    same = set()
    is_split = True
    for places, after in _groups([x.shape[j] for j in order], result.shape):
        before = [order[place] for place in places]
        factors = [f for j in before for f in x.axes[j]]
        found = cut(factors, [result.shape[j] for j in after])
        is_split = is_split and found is not None
        axes += found if found is not None else [axis(result.shape[j]) for j in after]
        if found is not None and all(j in repeated(x) or x.shape[j] == 1 for j in before):
            same |= {*after}
    linker.give(result, tuple(axes))
    if not is_split:
        linker.space(*x.axes, *axes)
    result.repeated = frozenset(same)


def _emit_reshape(emitter: JaxprEmitter, step: AppliedPrimitive) -> Sequence[Value]:
    (x, *_), (result,) = step.operands, step.results
    value = emitter.operand(step, 0)
    own = {f for each in x.axes for f in leaves(each)}
    if all(f in own for each in result.axes for f in leaves(each)):
        return (value,)
    return (emitter.reshaped(emitter.whole(value, tuple(x.axes[j] for j in _order(step))), result.axes),)


def _order(step: AppliedPrimitive) -> Sequence[int]:
    """Return the order in which a reshape reads the axes."""
    order: Sequence[int] | None = step.params["dimensions"]
    return range(len(step.operands[0].shape)) if order is None else order


# slices


def _slices(step: AppliedPrimitive) -> list[tuple[int, int, int, int]]:
    """Return (axis, start, limit, stride) of each axis of which a part is taken."""
    (x,), params = step.operands, step.params
    strides = params["strides"] or (1,) * len(x.shape)
    rows = zip(x.shape, params["start_indices"], params["limit_indices"], strides, strict=True)
    return [
        (j, int(start), int(limit), int(stride))
        for j, (size, start, limit, stride) in enumerate(rows)
        if (start, limit, stride) != (0, size, 1)
    ]


def equal_parts(factors: Axis, size: int, start: int, length: int) -> Axis | None:
    """Return the axis of one of equal parts, the part with the first index `start`, or None if there are no equal parts."""
    if length < 2 or size % length or start % length:
        return None
    found = cut(factors, (size // length, length))
    return found[1] if found is not None else None


def _link_slice(linker: Linker, step: AppliedPrimitive) -> None:
    """A part of an axis has a new axis. One of equal parts, such as a gate of an LSTM, has the minor factors."""
    (x,), (result,) = step.operands, step.results
    axes = list(x.axes)
    for j, start, limit, stride in _slices(step):
        part = equal_parts(x.axes[j], x.shape[j], start, limit - start) if stride == 1 else None
        axes[j] = axis(result.shape[j]) if part is None else part
    linker.give(result, tuple(axes))
    result.repeated = repeated(x)


def _emit_slice(emitter: JaxprEmitter, step: AppliedPrimitive) -> Sequence[Value]:
    (x,), (result,) = step.operands, step.results
    value, axes = emitter.operand(step, 0), list(x.axes)
    for j, start, _, stride in _slices(step):
        value = part_of(emitter, value, tuple(axes), j, start, stride, result.axes[j], result.shape[j])
        axes[j] = result.axes[j]
    return (value,)


def part_of(
    emitter: JaxprEmitter, value: Value, axes: Axes, j: int, start: int, stride: int, target: Axis, size: int
) -> Value:
    """Return a part of one axis, of the given size, under the axis `target`."""
    if not emitter.has(value, axes[j]):
        return value
    if leaves(target) and {*leaves(target)} <= {*leaves(axes[j])}:  # one of equal parts
        lead = tuple(f for f in leaves(axes[j]) if f not in leaves(target))
        value, dim = emitter.merged(value, (lead,), 0)
        return _dropped(emitter, value, dim, start // size)
    value, dim = emitter.merged(value, axes, j)
    if size == 1:
        return _dropped(emitter, value, dim, start)
    part = emitter.dims.new(dim.name, size)
    found = emitter.build("slice", value, source=dim, target=part, start=int(start), stride=stride)
    return emitter.parted(found, part, target)


def _dropped(emitter: JaxprEmitter, value: Value, dim: Dim, index: int) -> Value:
    """Return the elements with one index, without the dimension."""
    one = emitter.dims.new("one", 1)
    found = emitter.build("slice", value, source=dim, target=one, start=int(index), stride=1)
    return emitter.as_dims(found, tuple(d for d in found.type.dims if d != one))


def _link_split(linker: Linker, step: AppliedPrimitive) -> None:
    (x,), j, start = step.operands, step.params["axis"], 0
    for result, size in zip(step.results, step.params["sizes"], strict=True):
        part = equal_parts(x.axes[j], x.shape[j], start, size)
        linker.give(result, (*x.axes[:j], axis(size) if part is None else part, *x.axes[j + 1 :]))
        start += size


def _link_unstack(linker: Linker, step: AppliedPrimitive) -> None:
    (x,), j = step.operands, step.params["axis"]
    for result in step.results:
        linker.give(result, (*x.axes[:j], *x.axes[j + 1 :]))


def _emit_unstack(emitter: JaxprEmitter, step: AppliedPrimitive) -> Sequence[Value]:
    (x,), j = step.operands, step.params["axis"]
    value = emitter.operand(step, 0)
    return [part_of(emitter, value, x.axes, j, i, 1, (), 1) for i in range(len(step.results))]


def _emit_split(emitter: JaxprEmitter, step: AppliedPrimitive) -> Sequence[Value]:
    (x,), j, start = step.operands, step.params["axis"], 0
    value, found = emitter.operand(step, 0), []
    for result, size in zip(step.results, step.params["sizes"], strict=True):
        whole = size == x.shape[j]
        found.append(value if whole else part_of(emitter, value, x.axes, j, start, 1, result.axes[j], size))
        start += size
    return found


# concatenate


def _link_stack(linker: Linker, step: AppliedPrimitive) -> None:
    """Join arrays along a new axis."""
    j, (result,) = step.params["axis"], step.results
    first = max(range(len(step.operands)), key=lambda i: data_of(step.operands[i]))
    base = step.operands[first].axes
    for i, x in enumerate(step.operands):
        if isinstance(x, Var) and i != first:
            linker.fit(step, i, base)
    linker.give(result, (*base[:j], axis(len(step.operands)), *base[j:]))


def _emit_stack(emitter: JaxprEmitter, step: AppliedPrimitive) -> Sequence[Value]:
    values = [emitter.operand(step, i) for i in range(len(step.operands))]
    return (_joined_new(emitter, values, step.results[0].axes[step.params["axis"]]),)


def _joined_new(emitter: JaxprEmitter, values: Sequence[Value], factors: Axis) -> Value:
    """Join values along a new axis."""
    if len(values) == 1:
        return values[0]
    dims = tuple(dict.fromkeys(d for value in values for d in value.type.dims))
    sources = [emitter.dims.new("part", 1) for _ in values]
    parts = [
        emitter.as_dims(emitter.with_dims(v, dims), (*dims, s)) for v, s in zip(values, sources, strict=True)
    ]
    target = emitter.dims.new("joined", len(values))
    found = emitter.build("concat", *parts, sources=tuple(sources), target=target)
    return emitter.parted(found, target, factors)


def data_of(operand: Operand) -> int:
    return prod(size for j, size in enumerate(operand.shape) if j not in repeated(operand))


def _link_tile(linker: Linker, step: AppliedPrimitive) -> None:
    """Repeat an axis along a new major factor."""
    (x,), (result,) = step.operands, step.results
    axes = []
    for each, times in zip(x.axes, step.params["reps"], strict=True):
        axes.append((*axis(times), *each))
    linker.give(result, tuple(axes))


def _link_concatenate(linker: Linker, step: AppliedPrimitive) -> None:
    """Equal parts are joined along new major factors, others along a new axis."""
    j, (result,) = step.params["dimension"], step.results
    arrays = range(len(step.operands))
    first = max(arrays, key=lambda i: prod(step.operands[i].shape))
    sizes = {x.shape[j] for x in step.operands}
    base = step.operands[first].axes
    is_equal = len(sizes) == 1 and len(step.operands) > 1
    joined = (*axis(len(step.operands)), *base[j]) if is_equal else axis(result.shape[j])
    for i in arrays:
        if i != first:
            linker.fit(step, i, [target if k != j or is_equal else None for k, target in enumerate(base)])
    linker.give(result, (*base[:j], joined, *base[j + 1 :]))


def _emit_concatenate(emitter: JaxprEmitter, step: AppliedPrimitive) -> Sequence[Value]:
    j, (result,) = step.params["dimension"], step.results
    values = [emitter.operand(step, i) for i in range(len(step.operands))]
    axes = [step.axes(i) for i in range(len(step.operands))]
    if len({x.shape[j] for x in step.operands}) == 1:
        lead = tuple(f for f in leaves(result.axes[j]) if f not in leaves(axes[0][j]))
        return (_joined_new(emitter, values, lead),)
    sources, parts = [], []
    for value, own, x in zip(values, axes, step.operands, strict=True):
        dim = emitter.dims.new("part", x.shape[j])
        parts.append(emitter.merged(value, own, j, dim)[0])
        sources.append(dim)
    dims = tuple(dict.fromkeys(d for v, s in zip(parts, sources, strict=True) for d in v.type.dims if d != s))
    parts = [emitter.with_dims(v, (*dims, s)) for v, s in zip(parts, sources, strict=True)]
    target = emitter.dims.new("joined", sum(s.size for s in sources))
    found = emitter.build("concat", *parts, sources=tuple(sources), target=target)
    return (emitter.parted(found, target, result.axes[j]),)


# pad


def _is_plain_pad(step: AppliedPrimitive) -> bool:
    """Accept padding that does not both spread and cut an axis."""
    return all(
        interior == 0 or (low >= 0 and high >= 0) for low, high, interior in step.params["padding_config"]
    )


def _pads(step: AppliedPrimitive) -> list[tuple[int, int, int, int]]:
    """Return (axis, low, high, stride) of each axis that changes."""
    rows = enumerate(step.params["padding_config"])
    return [
        (j, int(low), int(high), int(interior) + 1)
        for j, (low, high, interior) in rows
        if (low, high, interior) != (0, 0, 0)
    ]


def _link_pad(linker: Linker, step: AppliedPrimitive) -> None:
    """Padding by whole multiples of the axis, the transpose of taking one of equal parts, adds a major factor."""
    x, (result,) = step.operands[0], step.results
    axes = list(x.axes)
    for j, low, high, stride in _pads(step):
        size = x.shape[j]
        whole = stride == 1 and size > 1 and min(low, high) >= 0 and low % size == 0 and high % size == 0
        new = result.shape[j]
        axes[j] = (*axis(new // size), *x.axes[j]) if whole else axis(new)
    linker.give(result, tuple(axes))


def _emit_pad(emitter: JaxprEmitter, step: AppliedPrimitive) -> Sequence[Value]:
    """Pad by a number. If it is computed, pad by 0, and choose it outside of the array."""
    build, (x, number), value = emitter.build, step.operands, emitter.operand(step, 0)
    if isinstance(number, Number):
        return (_padded(emitter, step, value, number.value),)
    moved = emitter.dims.of(f for j, *_ in _pads(step) for f in x.axes[j])
    one = emitter.with_dims(build.constant(1.0, "f32"), moved)
    inside = build("gt", _padded(emitter, step, one, 0.0), build.constant(0.0, "f32"))
    padded = _padded(emitter, step, value, _zero(x.dtype))
    return (emitter.elementwise("where", inside, padded, emitter.operand(step, 1)),)


def _zero(dtype: str) -> bool | int | float:
    return False if dtype == "bool" else 0.0 if dtype in FLOATS else 0


def _padded(emitter: JaxprEmitter, step: AppliedPrimitive, value: Value, number: bool | int | float) -> Value:
    x, (result,) = step.operands[0], step.results
    axes = list(x.axes)
    for j, low, high, stride in _pads(step):
        target, size = result.axes[j], x.shape[j]
        is_major = leaves(axes[j]) and {*leaves(axes[j])} < {*leaves(target)}
        lead = tuple(f for f in leaves(target) if f not in leaves(axes[j])) if is_major else target
        if is_major:
            source = emitter.dims.new("one", 1)
            value, start, length = (
                emitter.merged(value, ((),), 0, source)[0],
                low // size,
                result.shape[j] // size,
            )
        else:
            if low < 0 or high < 0:
                kept = size + min(low, 0) + min(high, 0)
                part = axis(kept)
                value = part_of(emitter, value, tuple(axes), j, max(-low, 0), 1, part, kept)
                axes[j] = part
            value, source = emitter.merged(value, tuple(axes), j)
            start, length = max(low, 0), result.shape[j]
        dim = emitter.dims.new("padded", length)
        value = emitter.build(
            "pad", value, source=source, target=dim, before=start, stride=stride, value=number
        )
        value = emitter.parted(value, dim, lead)
        axes[j] = target
    return value


# empty, iota


def _link_empty(linker: Linker, step: AppliedPrimitive) -> None:
    (result,) = step.results
    linker.give(result, tuple(map(axis, result.shape)))
    result.repeated = frozenset(range(len(result.shape)))


def _emit_empty(emitter: JaxprEmitter, step: AppliedPrimitive) -> Sequence[Value]:
    """Return 0: any number will do, as nothing reads it."""
    dtype = step.results[0].dtype
    return (emitter.build.constant(_zero(dtype), dtype),)


def _link_iota(linker: Linker, step: AppliedPrimitive) -> None:
    (result,) = step.results
    linker.give(result, tuple(map(axis, result.shape)))
    result.repeated = frozenset(range(len(result.shape))) - {step.params["dimension"]}


def _counts_exactly(step: AppliedPrimitive) -> bool:
    """Accept dtypes of the language, and integers that have all numbers of the axis."""
    (result,) = step.results
    return result.dtype in EVERY or result.shape[step.params["dimension"]] - 1 in INTEGER_RANGE.get(
        result.dtype, ()
    )


def _emit_iota(emitter: JaxprEmitter, step: AppliedPrimitive) -> Sequence[Value]:
    (result,), j = step.results, step.params["dimension"]
    own = emitter.dims.of(result.axes[j])
    dim = own[0] if len(own) == 1 else emitter.dims.new("index", result.shape[j])
    found = emitter.build("range", dim=dim)
    return (emitter.build.cast(emitter.parted(found, dim, result.axes[j]), result.dtype),)


RULES: dict[str, PrimitiveRule] = {
    "broadcast_in_dim": PrimitiveRule(_link_broadcast, _same, moves=True),
    "transpose": PrimitiveRule(_link_transpose, _same, moves=True),
    "squeeze": PrimitiveRule(_link_squeeze, _same, moves=True),
    "reshape": PrimitiveRule(_link_reshape, _emit_reshape, moves=True),
    "slice": PrimitiveRule(_link_slice, _emit_slice, moves=True),
    "split": PrimitiveRule(_link_split, _emit_split, moves=True),
    "concatenate": PrimitiveRule(_link_concatenate, _emit_concatenate, moves=True),
    "stack": PrimitiveRule(_link_stack, _emit_stack, moves=True),
    "unstack": PrimitiveRule(_link_unstack, _emit_unstack, moves=True),
    "tile": PrimitiveRule(
        _link_tile, _same, lambda step: len(step.params["reps"]) == len(step.operands[0].shape), moves=True
    ),
    "pad": PrimitiveRule(_link_pad, _emit_pad, _is_plain_pad),
    **dict.fromkeys(
        ("empty", "empty2"),
        PrimitiveRule(_link_empty, _emit_empty, lambda step: step.results[0].dtype in EVERY),
    ),
    "iota": PrimitiveRule(_link_iota, _emit_iota, _counts_exactly, moves=True),
}
"""`expand_dims` is a `broadcast_in_dim` or a `reshape` in jaxprs."""
