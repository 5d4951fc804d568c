"""Ops that move elements along dimensions: slice, pad, shift, flip, interleave, concat. Each needs them whole on every processor.

The `distribute` rules of slice, pad, shift and flip keep it split, and send halos instead (`ir/halos.py`), or a few elements.
"""

from collections.abc import Sequence
from typing import Any

import attrs

from mtfc.compiler.ir.attributes import DIM, DIM_LIST, FLAG, INT, Attribute
from mtfc.compiler.ir.core import Equation, Value
from mtfc.compiler.ir.halos import NeededRange, needed_range, range_of, shift_elements, take_range
from mtfc.compiler.ir.opdef import (
    Attrs,
    BlockRewriter,
    Code,
    LayoutRule,
    OpBuilder,
    OpError,
    Shard,
    linear_in_all,
    same_types,
)
from mtfc.compiler.ir.ops.creation import VALUE, check_value, literal
from mtfc.compiler.ir.ops.elementwise import NUMBERS, check_dtypes
from mtfc.compiler.ir.ops.structure import linear_if_zero, need, replaced, structural
from mtfc.compiler.ir.types import FLOATS, Dim, TensorType

SOURCE, TARGET, DIM_MOVED = Attribute("source", DIM), Attribute("target", DIM), Attribute("dim", DIM)
START, STRIDE, BEFORE, BY = (Attribute(name, INT) for name in ("start", "stride", "before", "by"))
WRAP = Attribute("wrap", FLAG)
AMONG, BACK = Attribute("among", DIM), Attribute("back", FLAG)
SOURCES = Attribute("sources", DIM_LIST)


def _slice_infer(types: Sequence[TensorType], attributes: Attrs) -> tuple[TensorType, ...]:
    """Return the type with the target in the place of the source; refuse a slice that runs past the source."""
    source, target = SOURCE.of(attributes), TARGET.of(attributes)
    start, stride = START.of(attributes), STRIDE.of(attributes)
    need(types[0], source)
    if start < 0 or stride < 1:
        raise OpError(f"start = {start}, stride = {stride}: start counts from 0 and stride from 1")
    if start + stride * (target.size - 1) >= source.size:
        raise OpError(
            f"slicing `{target.name}` (size {target.size}) from {start} by {stride} runs past `{source.name}`"
            f" (size {source.size})"
        )
    return replaced(types[0], {source: target})


def _within(eqn: Equation) -> LayoutRule:
    source, target = SOURCE.of(eqn.attrs), TARGET.of(eqn.attrs)
    return LayoutRule(index={source.name: None}, whole=frozenset({target.name}))


def _slice_gradient(b: OpBuilder, e: Equation, g: Sequence[Value]) -> tuple[Value]:
    """Pad the cotangent with zeros at the elements that the slice left out."""
    source, target = SOURCE.of(e.attrs), TARGET.of(e.attrs)
    padded = b(
        "pad",
        g[0],
        source=target,
        target=source,
        before=START.of(e.attrs),
        stride=STRIDE.of(e.attrs),
        value=0.0 if g[0].type.dtype in FLOATS else 0,
    )
    return (padded,)


def _slice_of(eqn: Equation) -> slice:
    start, stride = START.of(eqn.attrs), STRIDE.of(eqn.attrs)
    return slice(start, start + stride * (TARGET.of(eqn.attrs).size - 1) + 1, stride)


def _slice(shard: Shard, x: Any) -> Any:
    axis = shard.eqn.operands[0].type.names.index(SOURCE.of(shard.eqn.attrs).name)
    return x[(slice(None),) * axis + (_slice_of(shard.eqn),)]


def _slice_text(code: Code) -> str:
    cut, axis = _slice_of(code.eqn), code.axis(0, SOURCE.of(code.eqn.attrs).name)
    step = f":{cut.step}" if cut.step > 1 else ""
    return f"{code.args[0]}[..., {cut.start}:{cut.stop}{step}{', :' * (-axis - 1)}]"


def _distribute_slice(b: BlockRewriter, eqn: Equation) -> tuple[Value] | None:
    """Each block takes the elements that it needs, from other blocks too. A result that is whole is gathered after that.

    A few elements come from the blocks that have them.
    """
    source, target = SOURCE.of(eqn.attrs), TARGET.of(eqn.attrs)
    start, stride, x = START.of(eqn.attrs), STRIDE.of(eqn.attrs), eqn.operands[0]
    needed = needed_range(b, eqn, source, target, start, stride)
    if needed is not None:
        return (_sliced(b, x, needed, target, stride),)
    split = None if b.axes(eqn, target) else b.split(eqn, source)
    if split is None:
        return None
    count = split.blocks.size
    even = b.new_dim(f"{target.name}.even", -(-target.size // count) * count, split.axes)
    needed = range_of(split, even.size, start, stride)
    halos = needed.left + max(0, needed.right) if needed else source.size
    sent = even.size + halos * count / (count - 1)
    if 2 * target.size < min(sent, source.size):  # an all-reduce sends twice what an all-gather does
        index = b.build(
            "slice", b.build("range", dim=source), source=source, target=target, start=start, stride=stride
        )
        return (b.build.ordered(b.build("gather", x, index, dim=source), eqn.result.type.dims),)
    if needed is None or sent >= source.size:
        return None
    x = _sliced(b, x, needed, even, stride)
    return (b.build("slice", x, source=even, target=target, start=0, stride=1),)


def _sliced(b: BlockRewriter, x: Value, needed: NeededRange, target: Dim, stride: int) -> Value:
    """Return a slice on blocks: each block takes the range that it needs, and every `stride`-th element of it.

    needed: the range of each block.
    """
    x, part = take_range(b, x, needed)
    if stride > 1:
        whole, part = part, b.part(target, target.size // needed.split.blocks.size)
        x = b.build("slice", x, source=whole, target=part, start=0, stride=stride)
    return b.merged(x, needed.split.blocks, part, target)


WIDENED = dict.fromkeys(("bool", "i8", "u8", "i16", "u16"), "i32")
"""Dtypes without sums, and the dtype in which their elements are added to zeros."""


def _distribute_pad(b: BlockRewriter, eqn: Equation) -> tuple[Value] | None:
    """Without a stride, a pad is a slice that reaches beyond the ends. With a stride, and zeros around, it transposes a slice.

    Each element of a block reads its own of a few elements, which are whole, and elements outside of their range read 0.
    """
    source, target, value = SOURCE.of(eqn.attrs), TARGET.of(eqn.attrs), VALUE.of(eqn.attrs)
    before, stride, y, type = BEFORE.of(eqn.attrs), STRIDE.of(eqn.attrs), eqn.operands[0], eqn.result.type
    if stride == 1:
        if b.axes(eqn, target) and not b.axes(eqn, source) and value == 0 and 2 * source.size < target.size:
            place = b.build("sub", b.build("range", dim=target), b.build.constant(before, "i32"))
            return (b.build.ordered(b.build("gather", y, place, dim=source), type.dims),)
        needed = needed_range(b, eqn, source, target, -before)
        if needed is None:
            return None
        x, part = take_range(b, y, needed, value)
        return (b.merged(x, needed.split.blocks, part, target),)
    back = needed_range(b, eqn, target, source, before, stride)
    summed = type.dtype if type.dtype in NUMBERS else WIDENED.get(type.dtype)
    if back is None or value != 0 or summed is None:
        return None
    y, wide = b.build.cast(y, summed), attrs.evolve(type, dtype=summed)
    found = b.transposed(lambda b, x: _sliced(b, x, back, source, stride), wide, y)
    return (b.build.cast(found, type.dtype),)


def _pad_infer(types: Sequence[TensorType], attributes: Attrs) -> tuple[TensorType, ...]:
    """Return the type with the target in the place of the source; refuse a source that does not fit into the target."""
    source, target = SOURCE.of(attributes), TARGET.of(attributes)
    before, stride = BEFORE.of(attributes), STRIDE.of(attributes)
    need(types[0], source)
    check_value(VALUE.of(attributes), types[0].dtype)
    if stride < 1:
        raise OpError(f"stride = {stride}: stride counts from 1")
    if before < 0 or before + stride * (source.size - 1) >= target.size:
        raise OpError(
            f"`{source.name}` (size {source.size}) after {before} does not fit in `{target.name}` (size {target.size})"
        )
    return replaced(types[0], {source: target})


def _pad_gradient(b: OpBuilder, e: Equation, g: Sequence[Value]) -> tuple[Value]:
    """Slice the cotangent at the places where the elements were put."""
    source, target = SOURCE.of(e.attrs), TARGET.of(e.attrs)
    return (
        b("slice", g[0], source=target, target=source, start=BEFORE.of(e.attrs), stride=STRIDE.of(e.attrs)),
    )


def _pad(shard: Shard, x: Any) -> Any:
    """Put the elements `stride` apart into an array of the padding's value."""
    source, target = SOURCE.of(shard.eqn.attrs), TARGET.of(shard.eqn.attrs)
    before, stride = BEFORE.of(shard.eqn.attrs), STRIDE.of(shard.eqn.attrs)
    axis = shard.eqn.operands[0].type.names.index(source.name)
    result = shard.np.full(
        (*x.shape[:axis], target.size, *x.shape[axis + 1 :]), VALUE.of(shard.eqn.attrs), x.dtype
    )
    result[(slice(None),) * axis + (slice(before, before + stride * (source.size - 1) + 1, stride),)] = x
    return result


def _padding(eqn: Equation) -> tuple[int, int, int]:
    """Return the numbers of constants that a pad puts before, after and between the elements."""
    source, target = SOURCE.of(eqn.attrs), TARGET.of(eqn.attrs)
    before, stride = BEFORE.of(eqn.attrs), STRIDE.of(eqn.attrs)
    return before, target.size - before - stride * (source.size - 1) - 1, stride - 1


def _pad_text(code: Code) -> str:
    before, after, between = _padding(code.eqn)
    axis, value = code.axis(0, SOURCE.of(code.eqn.attrs).name), literal(VALUE.of(code.eqn.attrs))
    return f"pad({code.args[0]}, {axis}, {before}, {after}, {between + 1}, {value})"


def _lax_pad(code: Code, dim: str, padding: tuple[int, int, int], value: object) -> str:
    """`lax.pad` of one dimension by numbers before, after and between the elements; negative numbers cut off."""
    config = tuple(padding if name == dim else (0, 0, 0) for name in code.eqn.operands[0].type.names)
    return f"lax.pad({code.args[0]}, {code.dtype}({literal(value)}), {config})"


def _jax_pad(code: Code) -> str:
    return _lax_pad(code, SOURCE.of(code.eqn.attrs).name, _padding(code.eqn), VALUE.of(code.eqn.attrs))


def _shift_infer(types: Sequence[TensorType], attributes: Attrs) -> tuple[TensorType, ...]:
    need(types[0], DIM_MOVED.of(attributes))
    return (types[0],)


def _shift_rule(eqn: Equation) -> LayoutRule:
    """A dimension may be split into single elements: each processor then sends its element to another processor."""
    return LayoutRule(single=frozenset({DIM_MOVED.of(eqn.attrs).name}))


def _distribute_shift(b: BlockRewriter, eqn: Equation) -> tuple[Value] | None:
    """Each block sends the elements that leave it to the blocks where they arrive."""
    dim, by, wrap = DIM_MOVED.of(eqn.attrs), BY.of(eqn.attrs), WRAP.of(eqn.attrs)
    split = b.split(eqn, dim)
    if split is None:
        return None
    half = dim.size // 2
    by = (by + half) % dim.size - half if wrap else by  # go round the shorter way
    x, part = shift_elements(b, b.cut(eqn.operands[0], split), split, by, wrap)
    return (b.merged(x, split.blocks, part, dim),)


def _distribute_flip(b: BlockRewriter, eqn: Equation) -> tuple[Value] | None:
    """Each block is reversed, and sent to the block at its place from the other end."""
    dim = DIM_MOVED.of(eqn.attrs)
    split = b.split(eqn, dim)
    if split is None:
        return None
    x = b.build("flip", b.cut(eqn.operands[0], split), dim=split.inner)
    return (b.merged(b.build("flip", x, dim=split.blocks), split.blocks, split.inner, dim),)


def _shift_gradient(b: OpBuilder, e: Equation, g: Sequence[Value]) -> tuple[Value]:
    return (b("shift", g[0], dim=DIM_MOVED.of(e.attrs), by=-BY.of(e.attrs), wrap=WRAP.of(e.attrs)),)


def shifted_array(shard: Shard, x: Any) -> Any:
    """Return a shard shifted along a dimension, with zeros where nothing arrives unless it wraps around."""
    axis = shard.eqn.operands[0].type.names.index(DIM_MOVED.of(shard.eqn.attrs).name)
    by, size = BY.of(shard.eqn.attrs), x.shape[axis]
    rolled = shard.np.roll(x, by, axis)
    if not WRAP.of(shard.eqn.attrs):
        empty = slice(0, min(by, size)) if by >= 0 else slice(max(size + by, 0), size)
        rolled[(slice(None),) * axis + (empty,)] = 0
    return rolled


def _shift_text(code: Code) -> str:
    axis = code.axis(0, DIM_MOVED.of(code.eqn.attrs).name)
    return f"shift({code.args[0]}, {axis}, {code.eqn.attrs['by']}, wrap={code.eqn.attrs['wrap']})"


def _jax_shift(code: Code) -> str:
    """Write a cyclic shift as `jnp.roll`, and any other as a pad with zeros on one side that cuts the other side off."""
    dim, by = DIM_MOVED.of(code.eqn.attrs), BY.of(code.eqn.attrs)
    if WRAP.of(code.eqn.attrs):
        return f"jnp.roll({code.args[0]}, {by}, axis={code.axis(0, dim.name)})"
    lost = max(-dim.size, min(by, dim.size))
    return _lax_pad(code, dim.name, (lost, -lost, 0), 0)


def flipped_array(shard: Shard, x: Any) -> Any:
    axis = shard.eqn.operands[0].type.names.index(DIM_MOVED.of(shard.eqn.attrs).name)
    return shard.np.flip(x, axis)


# interleave


def _interleave_rule(eqn: Equation) -> LayoutRule:
    among = AMONG.of(eqn.attrs).name
    return attrs.evolve(_shift_rule(eqn), whole=frozenset({among}), index={among: None})


def _interleave_gradient(b: OpBuilder, e: Equation, g: Sequence[Value]) -> tuple[Value]:
    back = not BACK.of(e.attrs)
    return (b("interleave", g[0], dim=DIM_MOVED.of(e.attrs), among=AMONG.of(e.attrs), back=back),)


def interleaved_array(shard: Shard, x: Any) -> Any:
    """Number the elements of [dim, among] row by row, and deal them out along `dim`; or collect them again."""
    names, given = shard.eqn.operands[0].type.names, shard.eqn.attrs
    axes = [names.index(dim.name) for dim in (DIM_MOVED.of(given), AMONG.of(given))]
    ends = axes[:: -1 if BACK.of(given) else 1]
    parts = shard.np.moveaxis(x, ends, (0, 1))
    dealt = parts.reshape(parts.shape[1], parts.shape[0], *parts.shape[2:])
    return shard.np.moveaxis(dealt, (1, 0), ends)


def _interleave_text(code: Code) -> str:
    given = code.eqn.attrs
    axis, among = (code.axis(0, dim.name) for dim in (DIM_MOVED.of(given), AMONG.of(given)))
    return f"interleave({code.args[0]}, {axis}, {among}, back={BACK.of(given)})"


# concat


def _concat_infer(types: Sequence[TensorType], attributes: Attrs) -> tuple[TensorType, ...]:
    """Check that the operands have the same other dims, in the same order."""
    check_dtypes(types, frozenset({types[0].dtype}))
    sources = SOURCES.of(attributes)
    if len(sources) != len(types):
        raise OpError(f"{len(types)} operands, and {len(sources)} dimensions that they are joined along")
    target = TARGET.of(attributes)
    total = sum(dim.size for dim in sources)
    if total != target.size:
        raise OpError(f"the operands' sizes add up to {total}, and `{target.name}` has size {target.size}")
    results: list[TensorType] = []
    for type, source in zip(types, sources, strict=True):
        need(type, source)
        results += replaced(type, {source: target})
    for result in results:
        if result != results[0]:
            raise OpError(f"cannot concatenate {results[0]} and {result}")
    return (results[0],)


def _concat_rule(eqn: Equation) -> LayoutRule:
    sources = SOURCES.of(eqn.attrs)
    target = TARGET.of(eqn.attrs).name
    return LayoutRule(index={dim.name: None for dim in sources}, whole=frozenset({target}))


def _concat_gradient(b: OpBuilder, e: Equation, g: Sequence[Value]) -> tuple[Value, ...]:
    """Slice the cotangent into those of the parts."""
    parts, start = [], 0
    for dim in SOURCES.of(e.attrs):
        parts.append(b("slice", g[0], source=TARGET.of(e.attrs), target=dim, start=start, stride=1))
        start += dim.size
    return tuple(parts)


def _concat(shard: Shard, *arrays: Any) -> Any:
    axis = shard.eqn.result.type.names.index(TARGET.of(shard.eqn.attrs).name)
    return shard.np.concatenate(arrays, axis)


def _concat_text(code: Code) -> str:
    names = code.eqn.result.type.names
    axis = names.index(TARGET.of(code.eqn.attrs).name) - len(names)
    return f"np.concatenate([{', '.join(code.args)}], axis={axis})"


OPS = (
    structural(
        name="slice", attributes=(SOURCE, TARGET, START, STRIDE), infer=_slice_infer, layout_rule=_within,
        gradient=_slice_gradient, evaluate=_slice, numpy=_slice_text,
        doc="Every stride-th element of a dimension, from start on.", distribute=_distribute_slice,
        traits=frozenset({"slice"}),
    ),
    structural(
        name="pad", attributes=(SOURCE, TARGET, BEFORE, STRIDE, VALUE), infer=_pad_infer, layout_rule=_within,
        gradient=_pad_gradient, evaluate=_pad, numpy=_pad_text, jax=_jax_pad,
        doc="A dimension extended by a constant before, after and (with a stride) between its elements.",
        linear=linear_if_zero, distribute=_distribute_pad, storage="fused", traits=frozenset({"pad"}),
    ),
    structural(
        name="shift", attributes=(DIM_MOVED, BY, WRAP), infer=_shift_infer, layout_rule=_shift_rule,
        gradient=_shift_gradient, evaluate=shifted_array, numpy=_shift_text, jax=_jax_shift,
        doc="Element i moved to i + by; what falls off the end is lost, or wraps around.", distribute=_distribute_shift,
        storage="kernel", traits=frozenset({"shift"}),
    ),
    structural(
        name="flip", attributes=(DIM_MOVED,), infer=_shift_infer, layout_rule=_shift_rule,
        gradient=lambda b, e, g: (b("flip", g[0], dim=DIM_MOVED.of(e.attrs)),), evaluate=flipped_array,
        numpy=lambda code: f"np.flip({code.args[0]}, {code.axis(0, DIM_MOVED.of(code.eqn.attrs).name)})",
        doc="The elements of a dimension in reverse order.", distribute=_distribute_flip,
        storage="kernel", traits=frozenset({"flip"}),
    ),
    structural(
        name="interleave", attributes=(DIM_MOVED, AMONG, BACK), infer=same_types, layout_rule=_interleave_rule,
        gradient=_interleave_gradient, evaluate=interleaved_array, numpy=_interleave_text,
        doc="The elements of [dim, among], counted row by row, dealt out in turn along dim; or the other way back.",
        storage="kernel", traits=frozenset({"interleave"}),
    ),
    structural(
        name="concat", attributes=(SOURCES, TARGET), infer=_concat_infer, layout_rule=_concat_rule,
        gradient=_concat_gradient, evaluate=_concat, numpy=_concat_text, doc="Tensors joined along a dimension.",
        linear=linear_in_all, storage="kernel", arity=(1, None), traits=frozenset({"concat"}),
    ),
)  # fmt: skip
