"""Sharding rules: the types of an equation's results under its layout. One rule serves every op that computes.

Each operand must be split as the layout says, and so is the result. A reduced dimension that is split leaves a reduction pending.
A pending sum in an operand passes through where `pending_rule.py` says so. Collectives have rules of their own.
"""

from __future__ import annotations

from mtfc.compiler.ir.core import Equation
from mtfc.compiler.ir.opdef import LayoutRule, OpDef
from mtfc.compiler.ir.pending_rule import needed_group, own_axes, passes
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
