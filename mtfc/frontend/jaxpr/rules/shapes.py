"""Primitives that move elements: broadcasts, reshapes and transposes, parts of axes, and iota."""

from collections.abc import Sequence
from itertools import accumulate
from math import prod

import attrs

from mtfc.compiler.ir.attributes import INTEGER_RANGE
from mtfc.compiler.ir.core import Value
from mtfc.compiler.ir.ops.structure import same_elements
from mtfc.compiler.ir.types import FLOATS, Dim
from mtfc.frontend.jaxpr.factors import Axis, axis, cut, cut_part, index_of_part, leaves, others_of_part
from mtfc.frontend.jaxpr.flat import AppliedPrimitive, Number, Var, data_of
from mtfc.frontend.jaxpr.primitive_rules import Axes, JaxprEmitter, Linker, PrimitiveRule
from mtfc.frontend.jaxpr.rules.elementwise import EVERY, operands


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
            if j not in x.repeated:
                new.discard(place)
    linker.give(result, tuple(axes))
    result.repeated = frozenset(new)


def _link_transpose(linker: Linker, step: AppliedPrimitive) -> None:
    linker.keep(step, step.params["permutation"])


def _link_squeeze(linker: Linker, step: AppliedPrimitive) -> None:
    """Keep the axes that are not removed."""
    rank = len(step.operands[0].shape)
    gone = {j % rank for j in step.params["dimensions"]}
    linker.keep(step, [j for j in range(rank) if j not in gone])


# reshape


def _link_reshape(linker: Linker, step: AppliedPrimitive) -> None:
    """Split factors where axes are split. If that is not possible, the result has new axes, which never become the operand's."""
    (x, *_), (result,) = step.operands, step.results
    order = _order(step)
    axes: list[Axis] = []
    same = set()
    is_split = True
    for places, after in same_elements([x.shape[j] for j in order], result.shape):
        before = [order[place] for place in places]
        factors = [f for j in before for f in x.axes[j]]
        found = cut(factors, [result.shape[j] for j in after])
        is_split = is_split and found is not None
        axes += found if found is not None else [axis(result.shape[j]) for j in after]
        if found is not None and all(j in x.repeated or x.shape[j] == 1 for j in before):
            same |= {*after}
    linker.give(result, tuple(axes))
    if not is_split:
        linker.space(*x.axes, *axes)
    result.repeated = frozenset(same)


def _emit_reshape(emitter: JaxprEmitter, step: AppliedPrimitive) -> Sequence[Value]:
    """Append a reshape, unless the factors of the axes already stand in the wanted order."""
    (x, *_), (result,) = step.operands, step.results
    value, axes = emitter.operand(step, 0), tuple(x.axes[j] for j in _order(step))
    if leaves(f for each in axes for f in each) == leaves(f for each in result.axes for f in each):
        return (value,)
    return (emitter.as_dims(emitter.whole(value, axes), emitter.dims.of_axes(result.axes)),)


def _order(step: AppliedPrimitive) -> Sequence[int]:
    """Return the order in which a reshape reads the axes."""
    order: Sequence[int] | None = step.params["dimensions"]
    return range(len(step.operands[0].shape)) if order is None else order


# slices


@attrs.frozen
class StridedPart:
    """Some elements of an axis: `start + i * stride` for 0 <= i < size."""

    axis: int
    start: int = attrs.field(converter=int)
    size: int = attrs.field(converter=int)
    stride: int = attrs.field(converter=int, default=1)


def _parts_of_slice(step: AppliedPrimitive) -> list[StridedPart]:
    """Return the part of each axis that is not taken whole."""
    (x,), (result,), params = step.operands, step.results, step.params
    strides = params["strides"] or (1,) * len(x.shape)
    rows = zip(params["start_indices"], result.shape, strides, strict=True)
    parts = [StridedPart(j, start, size, stride) for j, (start, size, stride) in enumerate(rows)]
    return [part for part in parts if part.size != x.shape[part.axis]]


def axes_of_parts(axes: Axes, parts: Sequence[StridedPart]) -> Axes:
    """Return axes of which parts are taken: new ones, unless factors have just these elements, such as one gate of an LSTM.

    Parts with a stride have new ones: the axis would get factors that few layouts split.
    """
    found = [*axes]
    for part in parts:
        cut = cut_part(axes[part.axis], part.start, part.size) if part.stride == 1 else None
        found[part.axis] = axis(part.size) if cut is None else cut
    return tuple(found)


def _link_slice(linker: Linker, step: AppliedPrimitive) -> None:
    """Give the result the axes of the parts that a slice takes."""
    (x,), (result,) = step.operands, step.results
    linker.give(result, axes_of_parts(x.axes, _parts_of_slice(step)))
    result.repeated = x.repeated


def _emit_slice(emitter: JaxprEmitter, step: AppliedPrimitive) -> Sequence[Value]:
    value, x = emitter.operand(step, 0), step.operands[0]
    return (parts_of(emitter, value, x.axes, _parts_of_slice(step), step.results[0].axes),)


def parts_of(
    emitter: JaxprEmitter, value: Value, axes: Axes, parts: Sequence[StridedPart], targets: Axes
) -> Value:
    """Return parts of an array's axes under the axes `targets`.

    A part that no factors have gets a new dimension until all are taken: its target may have factors of another axis, or of its
    own, where these have other elements.
    """
    made = []
    for part in parts:
        own, target = axes[part.axis], targets[part.axis]
        if not emitter.has(value, own):
            continue
        if found := others_of_part(own, target, part.start, part.stride):
            value, dim = emitter.merged(value, found[:1], 0)
            value = _dropped(emitter, value, dim, found[1])
        else:
            value, dim = sliced(emitter, *emitter.merged(value, axes, part.axis), part)
            made.append((dim, target))
    return all_parted(emitter, value, made)


def sliced(emitter: JaxprEmitter, value: Value, dim: Dim, part: StridedPart) -> tuple[Value, Dim]:
    """Return a part of a dimension, and its new dimension."""
    new = emitter.dims.new(dim.name, part.size)
    found = emitter.build("slice", value, source=dim, target=new, start=part.start, stride=part.stride)
    return found, new


def all_parted(emitter: JaxprEmitter, value: Value, made: Sequence[tuple[Dim, Axis]]) -> Value:
    """Return a value in which several dimensions are replaced by axes' own ones."""
    for dim, target in made:
        value = emitter.parted(value, dim, target)
    return value


def _dropped(emitter: JaxprEmitter, value: Value, dim: Dim, index: int) -> Value:
    """Return the elements with one index, without the dimension."""
    one = emitter.dims.new("one", 1)
    found = emitter.build("slice", value, source=dim, target=one, start=index, stride=1)
    return emitter.as_dims(found, tuple(d for d in found.type.dims if d != one))


def _parts_of_split(step: AppliedPrimitive) -> list[list[StridedPart]]:
    """Return for each result the part that it is, or none for a single result."""
    j, sizes = step.params["axis"], step.params["sizes"]
    rows = zip(accumulate(sizes, initial=0), sizes, strict=False)
    parts = [StridedPart(j, *row) for row in rows]
    return [[part] if len(parts) > 1 else [] for part in parts]


def _link_split(linker: Linker, step: AppliedPrimitive) -> None:
    for result, parts in zip(step.results, _parts_of_split(step), strict=True):
        linker.give(result, axes_of_parts(step.operands[0].axes, parts))


def _emit_split(emitter: JaxprEmitter, step: AppliedPrimitive) -> Sequence[Value]:
    """Emit a slice for each part of a split."""
    value, axes = emitter.operand(step, 0), step.operands[0].axes
    pairs = zip(step.results, _parts_of_split(step), strict=True)
    return [parts_of(emitter, value, axes, parts, result.axes) for result, parts in pairs]


def _link_unstack(linker: Linker, step: AppliedPrimitive) -> None:
    """Give each result all axes but the one that is unstacked."""
    (x,), j = step.operands, step.params["axis"]
    for result in step.results:
        linker.give(result, (*x.axes[:j], *x.axes[j + 1 :]))


def _emit_unstack(emitter: JaxprEmitter, step: AppliedPrimitive) -> Sequence[Value]:
    """Append a slice for each index along an axis."""
    (x,), j = step.operands, step.params["axis"]
    value, targets = emitter.operand(step, 0), tuple(() if k == j else a for k, a in enumerate(x.axes))
    parts = ([StridedPart(j, i, 1)] for i in range(len(step.results)))
    return [parts_of(emitter, value, x.axes, each, targets) for each in parts]


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
    return (_joined_new(emitter, operands(emitter, step), step.results[0].axes[step.params["axis"]]),)


def _joined_new(emitter: JaxprEmitter, values: Sequence[Value], factors: Axis) -> Value:
    """Join values along a new axis."""
    if len(values) == 1:
        return values[0]
    sources = [emitter.dims.new("part", 1) for _ in values]
    parts = [emitter.as_dims(v, (*v.type.dims, s)) for v, s in zip(values, sources, strict=True)]
    return _joined(emitter, parts, sources, factors)


def _joined(emitter: JaxprEmitter, values: Sequence[Value], sources: Sequence[Dim], factors: Axis) -> Value:
    """Join values along their dimensions `sources`."""
    pairs = [*zip(values, sources, strict=True)]
    dims = tuple(dict.fromkeys(d for value, source in pairs for d in value.type.dims if d != source))
    parts = [emitter.with_dims(value, (*dims, source)) for value, source in pairs]
    target = emitter.dims.new("joined", sum(source.size for source in sources))
    found = emitter.build("concat", *parts, sources=tuple(sources), target=target)
    return emitter.parted(found, target, factors)


def _link_tile(linker: Linker, step: AppliedPrimitive) -> None:
    """Repeat an axis along a new major factor."""
    (x,), (result,) = step.operands, step.results
    pairs = zip(x.axes, step.params["reps"], strict=True)
    linker.give(result, tuple((*axis(times), *each) for each, times in pairs))


def _link_concatenate(linker: Linker, step: AppliedPrimitive) -> None:
    """Join equal parts along new major factors, and other parts along a new axis.

    The other axes are fitted to those of the largest part.
    """
    j, (result,) = step.params["dimension"], step.results
    arrays = range(len(step.operands))
    first = max(arrays, key=lambda i: prod(step.operands[i].shape))
    sizes = {x.shape[j] for x in step.operands}
    base = step.operands[first].axes
    is_equal = len(sizes) == 1
    joined = (*axis(len(step.operands)), *base[j]) if is_equal else axis(result.shape[j])
    for i in arrays:
        if i != first:
            linker.fit(step, i, [target if k != j or is_equal else None for k, target in enumerate(base)])
    linker.give(result, (*base[:j], joined, *base[j + 1 :]))


def _emit_concatenate(emitter: JaxprEmitter, step: AppliedPrimitive) -> Sequence[Value]:
    """Append a concatenation: along a new dimension if all parts have one size, or else along the joined one."""
    j, (result,) = step.params["dimension"], step.results
    values = operands(emitter, step)
    axes = [step.axes(i) for i in range(len(step.operands))]
    rows = zip(axes, accumulate((x.shape[j] for x in step.operands), initial=0), strict=False)
    found = [others_of_part(result.axes[j], own[j], start, 1) for own, start in rows]
    others = {each and each[0] for each in found}
    if len(others) == 1 and (lead := others.pop()) is not None:
        return (_joined_new(emitter, values, lead),)
    sources = [emitter.dims.new("part", x.shape[j]) for x in step.operands]
    parts = [emitter.merged(v, own, j, s)[0] for v, own, s in zip(values, axes, sources, strict=True)]
    return (_joined(emitter, parts, sources, result.axes[j]),)


# pad


def _pads(step: AppliedPrimitive) -> list[tuple[StridedPart, StridedPart]] | None:
    """Return for each axis that changes the part that stays of it, and the part of the result that this becomes.

    Return None if nothing stays. Element i goes to low + i * stride, if the result has this place.
    """
    found = []
    for j, (low, high, interior) in enumerate(step.params["padding_config"]):
        size, stride = step.results[0].shape[j], int(interior) + 1
        first = max(0, -(int(low) // stride))
        number = min(step.operands[0].shape[j], (size - 1 - int(low)) // stride + 1) - first
        if number < 1:
            return None
        if (low, high, interior) != (0, 0, 0):
            place = StridedPart(j, int(low) + first * stride, number, stride)
            found.append((StridedPart(j, first, number), place))
    return found


def _link_pad(linker: Linker, step: AppliedPrimitive) -> None:
    """An axis that becomes a block of a multiple of it, the transpose of taking the block, gets a major factor."""
    x, (result,) = step.operands[0], step.results
    axes = [*x.axes] if (pads := _pads(step)) is not None else [*map(axis, result.shape)]
    for kept, place in pads or ():
        j, size = place.axis, result.shape[place.axis]
        is_block = kept.size == x.shape[j] and place.stride == 1
        is_part = is_block and index_of_part(size, place.start, 1, place.size) is not None
        axes[j] = (*axis(size // place.size), *x.axes[j]) if is_part else axis(size)
    linker.give(result, tuple(axes))


def _emit_pad(emitter: JaxprEmitter, step: AppliedPrimitive) -> Sequence[Value]:
    """Pad by a number. If it is computed, pad by 0, and choose it outside of the array."""
    build, (x, number), value = emitter.build, step.operands, emitter.operand(step, 0)
    if isinstance(number, Number):
        return (_padded(emitter, step, value, number.value),)
    moved = emitter.dims.of(f for part, _ in _pads(step) or () for f in x.axes[part.axis])
    one = emitter.with_dims(build.constant(1.0, "f32"), moved)
    inside = build("gt", _padded(emitter, step, one, 0.0), build.constant(0.0, "f32"))
    padded = _padded(emitter, step, value, _zero(x.dtype))
    return (emitter.elementwise("where", inside, padded, emitter.operand(step, 1)),)


def _zero(dtype: str) -> bool | int | float:
    return False if dtype == "bool" else 0.0 if dtype in FLOATS else 0


def _padded(emitter: JaxprEmitter, step: AppliedPrimitive, value: Value, number: bool | int | float) -> Value:
    """Return a larger array, in which the value's axes become parts, and a number stands elsewhere: the reverse of
    `parts_of`.
    """
    (x, _), (result,), pads, made = step.operands, step.results, _pads(step), []
    if pads is None:
        return emitter.build.like(number, value)
    for kept, place in pads:
        own, target, length = x.axes[kept.axis], result.axes[kept.axis], result.shape[kept.axis]
        is_whole = kept.size == x.shape[kept.axis]
        if is_whole and (found := others_of_part(target, own, place.start, place.stride)):
            value, source = emitter.merged(value, ((),), 0, emitter.dims.new("one", 1))
            target, before, stride, length = *found, 1, length // place.size
        else:
            value, source = emitter.merged(value, x.axes, kept.axis)
            if not is_whole:
                value, source = sliced(emitter, value, source, kept)
            before, stride = place.start, place.stride
        made.append((emitter.dims.new("padded", length), target))
        value = emitter.build(
            "pad", value, source=source, target=made[-1][0], before=before, stride=stride, value=number
        )
    return all_parted(emitter, value, made)


# shift


def _link_shift(linker: Linker, step: AppliedPrimitive) -> None:
    linker.keep(step, range(len(step.results[0].shape)))
    step.results[0].repeated -= {step.params["axis"]}


def _emit_shift(emitter: JaxprEmitter, step: AppliedPrimitive) -> Sequence[Value]:
    """Emit a shift along an axis, whose factors are merged for it and parted again."""
    (x,), j = step.operands, step.params["axis"]
    value, dim = emitter.merged(emitter.operand(step, 0), x.axes, j)
    found = emitter.build("shift", value, dim=dim, by=step.params["by"], wrap=step.params["wrap"])
    return (emitter.parted(found, dim, x.axes[j]),)


# empty, iota


def _link_empty(linker: Linker, step: AppliedPrimitive) -> None:
    """Give the results of an uninitialized array axes of their own; all their elements count as equal."""
    linker.arguments(step.results)
    for result in step.results:
        result.repeated = frozenset(range(len(result.shape)))


def _emit_empty(emitter: JaxprEmitter, step: AppliedPrimitive) -> Sequence[Value]:
    """Return 0: any number will do, as nothing reads it."""
    return [emitter.build.constant(_zero(result.dtype), result.dtype) for result in step.results]


def _link_iota(linker: Linker, step: AppliedPrimitive) -> None:
    _link_empty(linker, step)
    step.results[0].repeated -= {step.params["dimension"]}


def _counts_exactly(step: AppliedPrimitive) -> bool:
    """Accept dtypes of the language, and integers that have all numbers of the axis."""
    (result,), j = step.results, step.params["dimension"]
    return result.dtype in EVERY or result.shape[j] - 1 in INTEGER_RANGE.get(result.dtype, ())


def _emit_iota(emitter: JaxprEmitter, step: AppliedPrimitive) -> Sequence[Value]:
    """Emit the positions along an axis of the result; they are the same along all other axes."""
    (result,), j = step.results, step.params["dimension"]
    dim = emitter.single(result.axes[j], "index")
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
    "pad": PrimitiveRule(_link_pad, _emit_pad),
    "shift": PrimitiveRule(_link_shift, _emit_shift, moves=True),
    **dict.fromkeys(
        ("empty", "empty2"),
        PrimitiveRule(_link_empty, _emit_empty, lambda step: step.results[0].dtype in EVERY),
    ),
    "iota": PrimitiveRule(_link_iota, _emit_iota, _counts_exactly, moves=True),
}
"""`expand_dims` is a `broadcast_in_dim` or a `reshape` in jaxprs."""
