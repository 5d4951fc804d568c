"""The rule of pending sums: where a sum over a mesh axis may be pending, and through which operands it passes.

An op's record names its groups of linear operands. A sum that is pending in all operands of one group passes to the result, and
every other operand is complete. An equation that is split over the axis passes no sum over it. A multiplication has two groups,
and its sum passes through one: any one, so a pass chooses. The verifier, the passes, the cost bounds and the searches ask here.

This file takes an op's record as an argument, because the records are built on the sharding rule, which asks here too.
"""

from __future__ import annotations

from collections.abc import Callable

from mtfc.compiler.ir.core import Argument, Equation, Output, Value
from mtfc.compiler.ir.opdef import LayoutRule, OpDef
from mtfc.compiler.ir.types import Axes

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
    """Return True if the reductions over the axis that are pending in operands are sums, and just those of one group."""
    pending = tuple(i for i, value in enumerate(eqn.operands) if axis in value.type.pending)
    return pending in passing_groups(opdef, eqn, axis, pending_over(axis))
