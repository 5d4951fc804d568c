"""Ops that move elements along a dimension: slice, pad, shift, concat. Each needs that dimension whole on every processor.

The `distribute` rules of slice, pad and shift keep it split, and send halos instead (`ir/halos.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from mtfc.compiler.ir.core import Equation, Value
from mtfc.compiler.ir.halos import NeededRange, needed_range, shift_elements, take_range
from mtfc.compiler.ir.opdef import (
    Attrs,
    BlockRewriter,
    Code,
    LayoutRule,
    OpBuilder,
    OpError,
    Shard,
    linear_in_all,
)
from mtfc.compiler.ir.ops.creation import literal
from mtfc.compiler.ir.ops.elementwise import check_dtypes
from mtfc.compiler.ir.ops.structure import linear_if_zero, need, replaced, structural
from mtfc.compiler.ir.types import Dim, TensorType


def _dim(attributes: Attrs, key: str) -> Dim:
    return attributes[key]  # type: ignore[return-value]


def _int(attributes: Attrs, key: str) -> int:
    return attributes[key]  # type: ignore[return-value]


def _slice_infer(types: Sequence[TensorType], attributes: Attrs) -> tuple[TensorType, ...]:
    source, target = _dim(attributes, "source"), _dim(attributes, "target")
    start, stride = _int(attributes, "start"), _int(attributes, "stride")
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
    source, target = _dim(eqn.attrs, "source"), _dim(eqn.attrs, "target")
    return LayoutRule(index={source.name: None}, whole=frozenset({target.name}))


def _slice_gradient(b: OpBuilder, e: Equation, g: Sequence[Value]) -> tuple[Value]:
    source, target = _dim(e.attrs, "source"), _dim(e.attrs, "target")
    padded = b(
        "pad",
        g[0],
        source=target,
        target=source,
        before=e.attrs["start"],
        stride=e.attrs["stride"],
        value=0.0,
    )
    return (padded,)


def _slice_of(eqn: Equation) -> slice:
    start, stride = _int(eqn.attrs, "start"), _int(eqn.attrs, "stride")
    return slice(start, start + stride * (_dim(eqn.attrs, "target").size - 1) + 1, stride)


def _slice(shard: Shard, x: Any) -> Any:
    axis = shard.eqn.operands[0].type.names.index(_dim(shard.eqn.attrs, "source").name)
    return x[(slice(None),) * axis + (_slice_of(shard.eqn),)]


def _slice_text(code: Code) -> str:
    cut, axis = _slice_of(code.eqn), code.axis(0, _dim(code.eqn.attrs, "source").name)
    step = f":{cut.step}" if cut.step > 1 else ""
    return f"{code.args[0]}[..., {cut.start}:{cut.stop}{step}{', :' * (-axis - 1)}]"


def _distribute_slice(b: BlockRewriter, eqn: Equation) -> tuple[Value] | None:
    """Each block takes the elements that it needs, from other blocks too."""
    source, target = _dim(eqn.attrs, "source"), _dim(eqn.attrs, "target")
    needed = needed_range(b, eqn, source, target, _int(eqn.attrs, "start"), _int(eqn.attrs, "stride"))
    if needed is None:
        return None
    return (_sliced(b, eqn.operands[0], needed, target, _int(eqn.attrs, "stride")),)


def _sliced(b: BlockRewriter, x: Value, needed: NeededRange, target: Dim, stride: int) -> Value:
    x, part = take_range(b, x, needed)
    if stride > 1:
        whole, part = part, b.part(target, target.size // needed.split.blocks.size)
        x = b.build("slice", x, source=whole, target=part, start=0, stride=stride)
    return b.merged(x, needed.split.blocks, part, target)


def _distribute_pad(b: BlockRewriter, eqn: Equation) -> tuple[Value] | None:
    """Without a stride, a pad is a slice that reaches beyond the ends. With a stride, and zeros around, it transposes a slice."""
    source, target = _dim(eqn.attrs, "source"), _dim(eqn.attrs, "target")
    before, stride = _int(eqn.attrs, "before"), _int(eqn.attrs, "stride")
    if stride == 1:
        needed = needed_range(b, eqn, source, target, -before)
        if needed is None:
            return None
        x, part = take_range(b, eqn.operands[0], needed, eqn.attrs["value"])  # type: ignore[arg-type]
        return (b.merged(x, needed.split.blocks, part, target),)
    back = needed_range(b, eqn, target, source, before, stride)
    if back is None or eqn.attrs["value"] != 0:
        return None
    type, y = eqn.result.type, eqn.operands[0]
    return (b.transposed(lambda b, x: _sliced(b, x, back, source, stride), type, y),)


def _pad_infer(types: Sequence[TensorType], attributes: Attrs) -> tuple[TensorType, ...]:
    source, target = _dim(attributes, "source"), _dim(attributes, "target")
    before, stride = _int(attributes, "before"), _int(attributes, "stride")
    need(types[0], source)
    if before < 0 or before + stride * (source.size - 1) >= target.size:
        raise OpError(
            f"`{source.name}` (size {source.size}) after {before} does not fit in `{target.name}` (size {target.size})"
        )
    return replaced(types[0], {source: target})


def _pad_gradient(b: OpBuilder, e: Equation, g: Sequence[Value]) -> tuple[Value]:
    source, target = _dim(e.attrs, "source"), _dim(e.attrs, "target")
    return (
        b("slice", g[0], source=target, target=source, start=e.attrs["before"], stride=e.attrs["stride"]),
    )


def _pad(shard: Shard, x: Any) -> Any:
    source, target = _dim(shard.eqn.attrs, "source"), _dim(shard.eqn.attrs, "target")
    before, stride = _int(shard.eqn.attrs, "before"), _int(shard.eqn.attrs, "stride")
    axis = shard.eqn.operands[0].type.names.index(source.name)
    result = shard.np.full(
        (*x.shape[:axis], target.size, *x.shape[axis + 1 :]), shard.eqn.attrs["value"], x.dtype
    )
    result[(slice(None),) * axis + (slice(before, before + stride * (source.size - 1) + 1, stride),)] = x
    return result


def _padding(eqn: Equation) -> tuple[int, int, int]:
    """Return the numbers of constants that a pad puts before, after and between the elements."""
    source, target = _dim(eqn.attrs, "source"), _dim(eqn.attrs, "target")
    before, stride = _int(eqn.attrs, "before"), _int(eqn.attrs, "stride")
    return before, target.size - before - stride * (source.size - 1) - 1, stride - 1


def _pad_text(code: Code) -> str:
    before, after, between = _padding(code.eqn)
    axis, value = code.axis(0, _dim(code.eqn.attrs, "source").name), literal(code.eqn.attrs["value"])
    return f"pad({code.args[0]}, {axis}, {before}, {after}, {between + 1}, {value})"


def _lax_pad(code: Code, dim: str, padding: tuple[int, int, int], value: object) -> str:
    """`lax.pad` of one dimension by numbers before, after and between the elements; negative numbers cut off."""
    config = tuple(padding if name == dim else (0, 0, 0) for name in code.eqn.operands[0].type.names)
    return f"lax.pad({code.args[0]}, {code.dtype}({literal(value)}), {config})"


def _jax_pad(code: Code) -> str:
    return _lax_pad(code, _dim(code.eqn.attrs, "source").name, _padding(code.eqn), code.eqn.attrs["value"])


def _shift_infer(types: Sequence[TensorType], attributes: Attrs) -> tuple[TensorType, ...]:
    need(types[0], _dim(attributes, "dim"))
    return (types[0],)


def _shift_rule(eqn: Equation) -> LayoutRule:
    """A dimension may be split into single elements: each processor then sends its element to another processor."""
    return LayoutRule(single=frozenset({_dim(eqn.attrs, "dim").name}))


def _distribute_shift(b: BlockRewriter, eqn: Equation) -> tuple[Value] | None:
    """Each block sends the elements that leave it to the blocks where they arrive."""
    dim, by, wrap = _dim(eqn.attrs, "dim"), _int(eqn.attrs, "by"), bool(eqn.attrs["wrap"])
    split = b.split(eqn, dim)
    if split is None:
        return None
    half = dim.size // 2
    by = (by + half) % dim.size - half if wrap else by  # go round the shorter way
    x, part = shift_elements(b, b.cut(eqn.operands[0], split), split, by, wrap)
    return (b.merged(x, split.blocks, part, dim),)


def _shift_gradient(b: OpBuilder, e: Equation, g: Sequence[Value]) -> tuple[Value]:
    return (b("shift", g[0], dim=e.attrs["dim"], by=-_int(e.attrs, "by"), wrap=e.attrs["wrap"]),)


def shifted_array(shard: Shard, x: Any) -> Any:
    axis = shard.eqn.operands[0].type.names.index(_dim(shard.eqn.attrs, "dim").name)
    by, size = _int(shard.eqn.attrs, "by"), x.shape[axis]
    rolled = shard.np.roll(x, by, axis)
    if not shard.eqn.attrs["wrap"]:
        empty = slice(0, min(by, size)) if by >= 0 else slice(max(size + by, 0), size)
        rolled[(slice(None),) * axis + (empty,)] = 0
    return rolled


def _shift_text(code: Code) -> str:
    axis = code.axis(0, _dim(code.eqn.attrs, "dim").name)
    return f"shift({code.args[0]}, {axis}, {code.eqn.attrs['by']}, wrap={code.eqn.attrs['wrap']})"


def _jax_shift(code: Code) -> str:
    dim, by = _dim(code.eqn.attrs, "dim"), _int(code.eqn.attrs, "by")
    if code.eqn.attrs["wrap"]:
        return f"jnp.roll({code.args[0]}, {by}, axis={code.axis(0, dim.name)})"
    lost = max(-dim.size, min(by, dim.size))
    return _lax_pad(code, dim.name, (lost, -lost, 0), 0)


# concat


def _concat_infer(types: Sequence[TensorType], attributes: Attrs) -> tuple[TensorType, ...]:
    """Check that the operands have the same other dims, in the same order."""
    check_dtypes(types, frozenset({types[0].dtype}))
    sources: tuple[Dim, ...] = attributes["sources"]  # type: ignore[assignment]
    target = _dim(attributes, "target")
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
    sources: tuple[Dim, ...] = eqn.attrs["sources"]  # type: ignore[assignment]
    target = _dim(eqn.attrs, "target").name
    return LayoutRule(index={dim.name: None for dim in sources}, whole=frozenset({target}))


def _concat_gradient(b: OpBuilder, e: Equation, g: Sequence[Value]) -> tuple[Value, ...]:
    parts, start = [], 0
    for dim in e.attrs["sources"]:  # type: ignore[union-attr]
        parts.append(b("slice", g[0], source=e.attrs["target"], target=dim, start=start, stride=1))
        start += dim.size  # type: ignore[union-attr]
    return tuple(parts)


def _concat(shard: Shard, *arrays: Any) -> Any:
    axis = shard.eqn.result.type.names.index(_dim(shard.eqn.attrs, "target").name)
    return shard.np.concatenate(arrays, axis)


def _concat_text(function: str) -> Callable[[Code], str]:
    def text(code: Code) -> str:
        axis = code.eqn.result.type.names.index(_dim(code.eqn.attrs, "target").name) - len(
            code.eqn.result.type.dims
        )
        return f"{function}([{', '.join(code.args)}], axis={axis})"

    return text


OPS = (
    structural(
        "slice", _slice_infer, _within, _slice_gradient, _slice, _slice_text, _slice_text,
        "Every stride-th element of a dimension, from start on.", distribute=_distribute_slice,
        traits=("slice",),
    ),
    structural(
        "pad", _pad_infer, _within, _pad_gradient, _pad, _pad_text, _jax_pad,
        "A dimension extended by a constant before, after and (with a stride) between its elements.",
        linear=linear_if_zero, distribute=_distribute_pad, storage="fused",
    ),
    structural(
        "shift", _shift_infer, _shift_rule, _shift_gradient, shifted_array, _shift_text, _jax_shift,
        "Element i moved to i + by; what falls off the end is lost, or wraps around.",
        distribute=_distribute_shift, storage="kernel", traits=("shift",),
    ),
    structural(
        "concat", _concat_infer, _concat_rule, _concat_gradient, _concat,
        _concat_text("np.concatenate"), _concat_text("jnp.concatenate"), "Tensors joined along a dimension.",
        linear=linear_in_all, storage="kernel",
    ),
)  # fmt: skip
