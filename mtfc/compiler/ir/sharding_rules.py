"""Sharding rules: the types of an equation's results under its layout. One rule serves every op that computes.

Each operand must be split as the layout says, and so is the result. A reduced dimension that is split leaves a reduction pending.
Collectives have rules of their own.

An op's record names its groups of linear operands. A sum that is pending in all operands of one group passes to the result, and
every other operand is complete. An equation that is split over the axis passes no sum over it. A multiplication has two groups,
and its sum passes through one: any one, so a pass chooses. The verifier, the passes, the cost bounds and the searches ask here.

This file takes an op's record as an argument, because the records are built on the sharding rule.
"""

from collections.abc import Callable

from mtfc.compiler.ir.core import Argument, Equation, Output, Value
from mtfc.compiler.ir.opdef import LayoutRule, OpDef
from mtfc.compiler.ir.types import ITEM_BYTES, Axes, Mesh, TensorType


class PlacementError(Exception):
    """An equation's operands are not placed as its layout needs them, so the compiler has a bug."""


def operand_type(rule: LayoutRule, eqn: Equation, operand: int, pending: Axes = ()) -> TensorType:
    """Return the type that operand number `operand` must have under the equation's layout."""
    type = eqn.operands[operand].type
    layout = eqn.layout or {}
    return type.split_into(tuple([rule.operand_axes(dim.name, layout) for dim in type.dims]), pending)


def result_types(eqn: Equation, rule: LayoutRule, passed: Axes, mesh: Mesh) -> tuple[TensorType, ...]:
    """Return the results' types under the equation's layout, if sums over the axes `passed` are pending in operands."""
    layout = eqn.layout or {}
    pending = mesh.ordered((*own_axes(rule, eqn), *passed))
    return tuple(value.type.split_by(layout, pending, rule.reduction) for value in eqn.results)


def operand_types(opdef: OpDef, eqn: Equation) -> tuple[TensorType, ...]:
    """Return the types that an equation's operands must have for its layout and the types of its results.

    A sum that is pending in the results, and that the equation does not leave pending itself, passes through the first group of
    linear operands that are all pending. Every other operand must be complete.
    """
    rule = opdef.layout_rule(eqn)
    pending: dict[int, Axes] = {}
    for axis in eqn.results[0].type.pending:
        for i in needed_group(opdef, eqn, axis):
            pending[i] = (*pending.get(i, ()), axis)
    return tuple(operand_type(rule, eqn, i, pending.get(i, ())) for i in range(len(eqn.operands)))


def is_cast_of_terms(eqn: Equation) -> bool:
    """Return True for a cast of terms whose pending sum is to be completed after the cast, in the wider dtype."""
    wider = ITEM_BYTES[eqn.result.type.dtype] > ITEM_BYTES[eqn.operands[0].type.dtype]
    return bool(eqn.attrs.get("sums")) and wider


def type_with(eqn: Equation, dim: str) -> TensorType:
    """Return the type of a result, or else of an operand, that has dimension `dim`: it shows how the equation splits `dim`."""
    return next(v.type for v in (*eqn.results, *eqn.operands) if dim in v.type.names)


def placed_types(opdef: OpDef, eqn: Equation, mesh: Mesh) -> tuple[TensorType, ...]:
    """Check the operands' placement and return the results' types. Raise `PlacementError`."""
    if opdef.place is not None:
        return opdef.place(opdef, eqn, mesh)
    rule = opdef.layout_rule(eqn)
    passed = mesh.ordered(axis for value in eqn.operands for axis in value.type.pending)
    for axis in passed:
        if not passes(opdef, eqn, axis):
            raise PlacementError(f"a sum pending over {axis} does not pass through {eqn.op}")
    for i, value in enumerate(eqn.operands):
        wanted = operand_type(rule, eqn, i, value.type.pending)
        if value.type != wanted:
            raise PlacementError(f"operand {value} is {value.type}, and the layout needs {wanted}")
    types = result_types(eqn, rule, passed, mesh)
    for type in types:
        used = (*type.split_axes, *type.pending)
        if len(set(used)) != len(used):
            raise PlacementError(f"{eqn.op} gives {type}, which uses one axis twice")
    return types


OperandGroup = tuple[int, ...]
"""Numbers of the operands through which a pending sum passes together."""

IsPending = Callable[[Value], bool]
"""Tells if a sum over the axis in question is, or may be, pending in a value."""


def may_hold(value: Value) -> bool:
    """Return True if a value has a dtype that sums have."""
    return value.type.dtype != "bool"


def is_split(node: Equation | Argument | Output, axis: str) -> bool:
    """Return True if the layout of an equation, or of an end of a region, uses the axis."""
    return any(axis in axes for axes in (node.layout or {}).values())


def holds_terms(eqn: Equation) -> bool:
    """Return True if an operand's or result's array on a processor has a wider dtype than the tensor."""
    return any(value.type.local_dtype != value.type.dtype for value in (*eqn.operands, *eqn.results))


def leaves_sums(rule: LayoutRule) -> bool:
    """Return True for an equation that leaves a pending sum if a dimension that it reduces is split."""
    return bool(rule.reduced) and rule.reduction == "sum"


def own_axes(rule: LayoutRule, eqn: Equation) -> Axes:
    """Return the axes over which an equation itself leaves a reduction pending, under its layout."""
    if not rule.reduced or not eqn.layout:
        return ()
    return tuple(axis for dim in rule.reduced for axis in eqn.layout.get(dim.name, ()))


def linear_groups(opdef: OpDef, eqn: Equation) -> tuple[OperandGroup, ...]:
    """Return every group of operands through which a sum can pass, under some layout."""
    if len(eqn.results) != 1 or not may_hold(eqn.result):
        return ()
    return opdef.linear(eqn)


def linear_operands(opdef: OpDef, eqn: Equation) -> frozenset[int]:
    """Return the operands through which a sum can pass, under some layout."""
    return frozenset(i for group in linear_groups(opdef, eqn) for i in group)


def is_sum_of_all(opdef: OpDef, eqn: Equation) -> bool:
    """Return True if a sum passes through all operands together, as through those of an addition."""
    everything = tuple(range(len(eqn.operands)))
    return bool(everything) and everything in linear_groups(opdef, eqn)


def pending_groups(opdef: OpDef, eqn: Equation, is_pending: IsPending) -> tuple[OperandGroup, ...]:
    """Return the groups with a pending sum in each operand, whatever the equation's layout."""
    return tuple(
        group for group in linear_groups(opdef, eqn) if all(is_pending(eqn.operands[i]) for i in group)
    )


def passing_groups(opdef: OpDef, eqn: Equation, axis: str, is_pending: IsPending) -> tuple[OperandGroup, ...]:
    """Return the groups through which a sum over the axis can pass under the equation's layout."""
    return () if is_split(eqn, axis) else pending_groups(opdef, eqn, is_pending)


def pending_over(axis: str) -> IsPending:
    """Return a test of values whose types say that a sum over the axis is pending."""
    return lambda value: axis in value.type.pending and value.type.reduction == "sum"


def needed_group(opdef: OpDef, eqn: Equation, axis: str) -> OperandGroup:
    """Return the first group in which a sum over the axis is pending, by the operands' types, or ().

    A pass that chooses another group completes the operands of this one before the equation.
    """
    return next(iter(passing_groups(opdef, eqn, axis, pending_over(axis))), ())


def passes(opdef: OpDef, eqn: Equation, axis: str) -> bool:
    """Return True if all reductions over the axis that are pending in operands are sums, and pending in just one group."""
    pending = tuple(i for i, value in enumerate(eqn.operands) if axis in value.type.pending)
    return pending in passing_groups(opdef, eqn, axis, pending_over(axis))
