"""Ops that give data other dimensions: broadcast, transpose, rename, reshape; and `after`, which gives the data as they are.

`rename` and `reshape` keep the data and change the names of dimensions, which may change the layout (paper, section 6.1).
"""

from collections.abc import Sequence
from functools import partial
from math import prod
from typing import Any

from mtfc.compiler.ir.attributes import DIMS, MAPPING, Attribute
from mtfc.compiler.ir.core import Equation
from mtfc.compiler.ir.opdef import (
    Attrs,
    LayoutRule,
    OpDef,
    OpError,
    Shard,
    linear_in_first,
    no_flops,
    rule_by_name,
)
from mtfc.compiler.ir.ops.elementwise import align, dims_text
from mtfc.compiler.ir.types import Dim, TensorType
from mtfc.compiler.records import frozen

TARGET_DIMS = Attribute("dims", DIMS)
RENAMED = Attribute("mapping", MAPPING)


structural = partial(OpDef, arity=(1,), linear=linear_in_first, flops=no_flops, storage="view")
"""Makes an op of one operand that is linear and needs no memory, where its own columns do not say otherwise."""


def linear_if_zero(eqn: Equation) -> tuple[tuple[int, ...], ...]:
    """Linearity of ops that put the constant `value` beside the operand's elements."""
    return ((0,),) if eqn.attrs["value"] == 0 else ()


def need(type: TensorType, dim: Dim) -> None:
    if dim not in type.dims:
        raise OpError(f"no dimension `{dim.name}`: the operand has {dims_text(type.dims)}")


def replaced(type: TensorType, mapping: dict[Dim, Dim]) -> tuple[TensorType]:
    """Replace dimensions of `type`. Raise `OpError` if the result has a dimension twice."""
    dims = tuple(mapping.get(dim, dim) for dim in type.dims)
    if len(set(dims)) != len(dims):
        raise OpError(f"the result would have a dimension twice: {dims_text(dims)}")
    return (TensorType(type.dtype, dims),)


def _as_operand(truths: Sequence[bool | None]) -> bool | None:
    """The logic of ops that only move elements."""
    return truths[0]


# broadcast, transpose


def _broadcast_infer(types: Sequence[TensorType], attributes: Attrs) -> tuple[TensorType, ...]:
    """Return the type with the target's dims, among which all dims of the operand must be."""
    missing = [dim for dim in types[0].dims if dim not in TARGET_DIMS.of(attributes)]
    if missing:
        raise OpError(
            f"broadcast to {dims_text(TARGET_DIMS.of(attributes))} loses {dims_text(missing)} of the operand"
        )
    return (TensorType(types[0].dtype, TARGET_DIMS.of(attributes)),)


def _broadcast(shard: Shard, x: Any) -> Any:
    eqn = shard.eqn
    return shard.np.broadcast_to(align(x, eqn.operands[0].type.names, eqn.result.type.names), shard.shape)


def _transpose_infer(types: Sequence[TensorType], attributes: Attrs) -> tuple[TensorType, ...]:
    """Return the type with the same dims in another order."""
    if set(TARGET_DIMS.of(attributes)) != set(types[0].dims):
        raise OpError(
            f"cannot transpose {dims_text(types[0].dims)} to {dims_text(TARGET_DIMS.of(attributes))}"
        )
    return (TensorType(types[0].dtype, TARGET_DIMS.of(attributes)),)


# rename, reshape


def renaming(attributes: Attrs) -> dict[Dim, Dim]:
    return dict(RENAMED.of(attributes))


def _rename_infer(types: Sequence[TensorType], attributes: Attrs) -> tuple[TensorType, ...]:
    """Return the type with new dims in the places of old ones of the same sizes."""
    for old, new in renaming(attributes).items():
        need(types[0], old)
        if old.size != new.size:
            raise OpError(f"cannot rename `{old.name}` (size {old.size}) to `{new.name}` (size {new.size})")
    return replaced(types[0], renaming(attributes))


def _reshape_infer(types: Sequence[TensorType], attributes: Attrs) -> tuple[TensorType, ...]:
    """Return the type with other dims that have as many elements."""
    dims = TARGET_DIMS.of(attributes)
    if prod(dim.size for dim in dims) != types[0].size:
        raise OpError(
            f"cannot reshape {dims_text(types[0].dims)} ({types[0].size} elements) to {dims_text(dims)}"
            f" ({prod(dim.size for dim in dims)} elements)"
        )
    return (TensorType(types[0].dtype, dims),)


@frozen
class ReshapeGroup:
    """Adjacent dimensions of the operand, and the adjacent dimensions of the result that hold the same elements."""

    sources: tuple[Dim, ...]
    targets: tuple[Dim, ...]


def same_elements(before: Sequence[int], after: Sequence[int]) -> list[tuple[range, range]]:
    """Return the finest groups of adjacent axes that hold the same elements, by their numbers before and after a reshape."""
    groups, i, j = [], 0, 0
    while i < len(before) or j < len(after):
        first, second = i, j
        i, j = min(i + 1, len(before)), min(j + 1, len(after))
        while (a := prod(before[first:i])) != (b := prod(after[second:j])):
            i, j = (i + 1, j) if a < b else (i, j + 1)
        groups.append((range(first, i), range(second, j)))
    return groups


def reshape_groups(sources: Sequence[Dim], targets: Sequence[Dim]) -> list[ReshapeGroup]:
    """Return the finest grouping of a row-major reshape; dimensions of size 1 belong to no group."""
    left, right = ([dim for dim in dims if dim.size > 1] for dims in (sources, targets))
    found = same_elements([dim.size for dim in left], [dim.size for dim in right])
    return [ReshapeGroup(tuple(left[i] for i in a), tuple(right[j] for j in b)) for a, b in found]


def _reshape_rule(eqn: Equation) -> LayoutRule:
    """In each group the most major dimensions may be split alike: equal shards of one are equal shards of the other."""
    groups = reshape_groups(eqn.operands[0].type.dims, eqn.result.type.dims)
    index: dict[str, str | None] = {dim.name: None for dim in eqn.operands[0].type.dims}
    index.update({group.sources[0].name: group.targets[0].name for group in groups})
    split = {group.targets[0].name for group in groups}
    return LayoutRule(index=index, whole=frozenset(eqn.result.type.names) - split)


OPS = (
    structural(
        name="broadcast", attributes=(TARGET_DIMS,), infer=_broadcast_infer, layout_rule=rule_by_name,
        gradient=lambda b, e, g: (b.sum_to(g[0], e.operands[0].type.dims),), evaluate=_broadcast,
        numpy=lambda code: f"np.broadcast_to({code.aligned[0]}, {code.shape})",
        doc="x repeated along new dimensions.", traits=frozenset({"broadcast"}), logic=_as_operand,
    ),
    structural(
        name="transpose", attributes=(TARGET_DIMS,), infer=_transpose_infer, layout_rule=rule_by_name,
        gradient=lambda b, e, g: (g[0],), numpy="{0}",
        evaluate=lambda shard, x: align(x, shard.eqn.operands[0].type.names, shard.eqn.result.type.names),
        doc="x with its dimensions stored in another order.", traits=frozenset({"transpose"}), logic=_as_operand,
    ),
    structural(
        name="rename", attributes=(RENAMED,), infer=_rename_infer,
        layout_rule=lambda eqn: LayoutRule({old.name: new.name for old, new in renaming(eqn.attrs).items()}),
        gradient=lambda b, e, g: (b("rename", g[0], mapping=tuple((y, x) for x, y in renaming(e.attrs).items())),),
        evaluate=lambda shard, x: x, numpy=lambda code: code.args[0],
        doc="The same data under other dimension names, and so perhaps in another layout.",
        traits=frozenset({"rename"}), logic=_as_operand,
    ),
    structural(
        name="reshape", attributes=(TARGET_DIMS,), infer=_reshape_infer, layout_rule=_reshape_rule,
        gradient=lambda b, e, g: (b("reshape", b.ordered(g[0], e.result.type.dims), dims=e.operands[0].type.dims),),
        evaluate=lambda shard, x: x.reshape(shard.shape), numpy=lambda code: f"{code.args[0]}.reshape({code.shape})",
        doc="Dimensions split and merged, row-major.", traits=frozenset({"reshape"}), logic=_as_operand,
    ),
    structural(
        name="after", infer=lambda types, attributes: (types[0],), layout_rule=rule_by_name,
        # operands behind the first may have any type, as their elements are not read
        place=lambda opdef, eqn, mesh: (eqn.operands[0].type,),
        gradient=lambda b, e, g: (g[0], *(None for _ in e.operands[1:])), evaluate=lambda shard, x, *others: x,
        numpy=lambda code: code.args[0], jax=lambda code: f"lax.optimization_barrier(({', '.join(code.args)},))[0]",
        doc="The same data as an array of its own, which no compiler reads before it knows the other operands.",
        traits=frozenset({"after"}), arity=(1, None), logic=_as_operand,
    ),
)  # fmt: skip
