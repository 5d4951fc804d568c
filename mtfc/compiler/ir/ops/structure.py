"""Ops that give data other dimensions: broadcast, transpose, rename, reshape; and `after`, which gives the data as they are.

`rename` and `reshape` keep the data and change the names of dimensions, which may change the layout (paper, section 6.1).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from math import prod
from typing import Any

import attrs

from mtfc.compiler.ir.attributes import DIMS, MAPPING, Attribute, Stated
from mtfc.compiler.ir.core import Equation, Value
from mtfc.compiler.ir.opdef import (
    Arity,
    Attrs,
    Code,
    Distribute,
    Gradient,
    Infer,
    LayoutRule,
    Linear,
    Logic,
    OpBuilder,
    OpDef,
    OpError,
    Shard,
    Storage,
    Text,
    Trait,
    linear_in_first,
    no_flops,
    rule_by_name,
)
from mtfc.compiler.ir.ops.elementwise import align, dims_text
from mtfc.compiler.ir.types import Dim, Mesh, TensorType
from mtfc.compiler.records import frozen

TARGET_DIMS = Attribute("dims", DIMS)
RENAMED = Attribute("mapping", MAPPING)


def structural(
    name: str,
    attributes: Stated,
    infer: Infer,
    rule: Callable[[Equation], LayoutRule],
    gradient: Gradient,
    evaluate: Callable[..., Any],
    numpy: Text,
    jax: Text,
    doc: str,
    linear: Linear = linear_in_first,
    distribute: Distribute | None = None,
    storage: Storage = "view",
    traits: Iterable[Trait] = (),
    arity: Arity = (1,),
    logic: Logic | None = None,
) -> OpDef:
    return OpDef(
        name=name,
        arity=arity,
        attributes=attributes,
        infer=infer,
        layout_rule=rule,
        distribute=distribute,
        linear=linear,
        gradient=gradient,
        flops=no_flops,
        storage=storage,
        traits=frozenset(traits),
        evaluate=evaluate,
        numpy=numpy,
        jax=jax,
        logic=logic,
        doc=doc,
    )


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
    missing = [dim for dim in types[0].dims if dim not in TARGET_DIMS.of(attributes)]
    if missing:
        raise OpError(
            f"broadcast to {dims_text(TARGET_DIMS.of(attributes))} loses {dims_text(missing)} of the operand"
        )
    return (TensorType(types[0].dtype, TARGET_DIMS.of(attributes)),)


def _broadcast(shard: Shard, x: Any) -> Any:
    eqn = shard.eqn
    return shard.np.broadcast_to(align(x, eqn.operands[0].type.names, eqn.result.type.names), shard.shape)


def _broadcast_text(module: str) -> Callable[[Code], str]:
    return lambda code: f"{module}.broadcast_to({code.aligned[0]}, {code.shape})"


def _transpose_infer(types: Sequence[TensorType], attributes: Attrs) -> tuple[TensorType, ...]:
    if set(TARGET_DIMS.of(attributes)) != set(types[0].dims):
        raise OpError(
            f"cannot transpose {dims_text(types[0].dims)} to {dims_text(TARGET_DIMS.of(attributes))}"
        )
    return (TensorType(types[0].dtype, TARGET_DIMS.of(attributes)),)


def _transpose(shard: Shard, x: Any) -> Any:
    eqn = shard.eqn
    return align(x, eqn.operands[0].type.names, eqn.result.type.names)


# rename, reshape


def renaming(attributes: Attrs) -> dict[Dim, Dim]:
    return dict(RENAMED.of(attributes))


def _rename_infer(types: Sequence[TensorType], attributes: Attrs) -> tuple[TensorType, ...]:
    for old, new in renaming(attributes).items():
        need(types[0], old)
        if old.size != new.size:
            raise OpError(f"cannot rename `{old.name}` (size {old.size}) to `{new.name}` (size {new.size})")
    return replaced(types[0], renaming(attributes))


def _rename_rule(eqn: Equation) -> LayoutRule:
    return LayoutRule(index={old.name: new.name for old, new in renaming(eqn.attrs).items()})


def _rename_gradient(b: OpBuilder, e: Equation, g: Sequence[Value]) -> tuple[Value]:
    return (b("rename", g[0], mapping=tuple((new, old) for old, new in renaming(e.attrs).items())),)


def _reshape_infer(types: Sequence[TensorType], attributes: Attrs) -> tuple[TensorType, ...]:
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


def reshape_groups(sources: Sequence[Dim], targets: Sequence[Dim]) -> list[ReshapeGroup]:
    """Return the finest grouping of a row-major reshape; dimensions of size 1 belong to no group."""
    left, right = [d for d in sources if d.size > 1], [d for d in targets if d.size > 1]
    groups: list[ReshapeGroup] = []
    while left:
        i = j = 1
        while (a := prod(d.size for d in left[:i])) != (b := prod(d.size for d in right[:j])):
            i, j = (i + 1, j) if a < b else (i, j + 1)
        groups.append(ReshapeGroup(tuple(left[:i]), tuple(right[:j])))
        left, right = left[i:], right[j:]
    return groups


def _reshape_rule(eqn: Equation) -> LayoutRule:
    """In each group the most major dimensions may be split alike: equal shards of one are equal shards of the other."""
    groups = reshape_groups(eqn.operands[0].type.dims, eqn.result.type.dims)
    index: dict[str, str | None] = {dim.name: None for dim in eqn.operands[0].type.dims}
    index.update({group.sources[0].name: group.targets[0].name for group in groups})
    split = {group.targets[0].name for group in groups}
    return LayoutRule(index=index, whole=frozenset(eqn.result.type.names) - split)


def _reshape_gradient(b: OpBuilder, e: Equation, g: Sequence[Value]) -> tuple[Value]:
    return (b("reshape", b.ordered(g[0], e.result.type.dims), dims=e.operands[0].type.dims),)


def _reshape_text(code: Code) -> str:
    return f"{code.args[0]}.reshape({code.shape})"


# after


def _after_infer(types: Sequence[TensorType], attributes: Attrs) -> tuple[TensorType, ...]:
    return (types[0],)


def _after_place(opdef: OpDef, eqn: Equation, mesh: Mesh) -> tuple[TensorType, ...]:
    """Operands behind the first may have any type, as their elements are not read."""
    return (eqn.operands[0].type,)


OPS = (
    structural(
        "broadcast", (TARGET_DIMS,), _broadcast_infer, rule_by_name,
        lambda b, e, g: (b.sum_to(g[0], e.operands[0].type.dims),),
        _broadcast, _broadcast_text("np"), _broadcast_text("jnp"), "x repeated along new dimensions.",
        traits=("broadcast",), logic=_as_operand,
    ),
    structural(
        "transpose", (TARGET_DIMS,), _transpose_infer, rule_by_name, lambda b, e, g: (g[0],),
        _transpose, "{0}", "{0}", "x with its dimensions stored in another order.", traits=("transpose",),
        logic=_as_operand,
    ),
    structural(
        "rename", (RENAMED,), _rename_infer, _rename_rule, _rename_gradient, lambda shard, x: x,
        lambda code: code.args[0], lambda code: code.args[0],
        "The same data under other dimension names, and so perhaps in another layout.", traits=("rename",), logic=_as_operand,
    ),
    structural(
        "reshape", (TARGET_DIMS,), _reshape_infer, _reshape_rule, _reshape_gradient, lambda shard, x: x.reshape(shard.shape),
        _reshape_text, _reshape_text, "Dimensions split and merged, row-major.",
        traits=("reshape",), logic=_as_operand,
    ),
    attrs.evolve(
        structural(
            "after", (), _after_infer, rule_by_name, lambda b, e, g: (g[0], *(None for _ in e.operands[1:])),
            lambda shard, x, *others: x, lambda code: code.args[0],
            lambda code: f"lax.optimization_barrier(({', '.join(code.args)},))[0]",
            "The same data as an array of its own, which no compiler reads before it knows the other operands.",
            traits=("after",), arity=(1, None), logic=_as_operand,
        ),
        place=_after_place,
    ),
)  # fmt: skip
