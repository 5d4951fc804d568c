"""Bind `training`, the truth value that tells a training step from other runs of a model, to true or false.

    %training: bool[] = training                          %training: bool[] = constant value=true dtype="bool"
    %y: f32[batch] = where %training, %dropped, %x        %y: f32[batch] = transpose %dropped dims=[batch]

Binding evaluates logic on the flag and picks one side of each choice by it, in loops too. Nothing then uses the other side: no
gradient reaches that side, and `dce` drops it. Results keep their names and types.
"""

from __future__ import annotations

from collections.abc import Mapping

import attrs

from mtfc.compiler.ir.core import Attr, Equation, Function, Value, walk
from mtfc.compiler.ir.loops import outputs_of, pairs, region_of
from mtfc.compiler.ir.opdef import SameAs
from mtfc.compiler.ir.ops import OPS, has_trait
from mtfc.compiler.ir.ops.attention import without_operands
from mtfc.compiler.ir.ops.creation import VALUE
from mtfc.compiler.ir.types import FLOATS

TRAINING = "training"

Truths = dict[Value, bool]
"""Values whose elements are all known to be true, or all false."""


def asks_for_training(function: Function) -> bool:
    return any(has_trait(eqn, "training") for eqn in walk(function.body))


def bound(function: Function, training: bool) -> Function:
    """Return the function as it is in training, or outside of training."""
    return _bound(function, training, {}) if asks_for_training(function) else function


def _bound(function: Function, training: bool, known: Truths) -> Function:
    return attrs.evolve(function, body=tuple(_equation(eqn, training, known) for eqn in function.body))


def _equation(eqn: Equation, training: bool, known: Truths) -> Equation:
    """Bind one equation, and add to `known` the results whose truth follows."""
    if eqn.regions:
        return _loop(eqn, training, known)
    found = training if has_trait(eqn, "training") else _follows(eqn, known)
    if isinstance(found, bool):
        known[eqn.result] = found
        return _made(eqn, found)
    if has_trait(eqn, "attention", "attention_gradient"):
        return without_operands(eqn, {value for value, truth in known.items() if truth})
    if has_trait(eqn, "cast") and eqn.operands[0] in known:
        return _made(eqn, known[eqn.operands[0]])
    return _renamed(eqn, eqn.operands[found.operand]) if found else eqn


def _loop(eqn: Equation, training: bool, known: Truths) -> Equation:
    """Return a loop in which `training` is bound.

    known: values that are known to be true or false; the loop's results join them.
    """
    region = region_of(eqn)
    inside = {a.value: known[v] for v, a in pairs(eqn) if a.role != "carried" and v in known}
    smaller = _bound(region, training, inside)
    known.update({v: inside[o.value] for v, o in outputs_of(eqn) if o.updates is None and o.value in inside})
    return attrs.evolve(eqn, regions=(smaller,))


def _follows(eqn: Equation, known: Mapping[Value, bool]) -> bool | SameAs | None:
    """Return the truth of all elements of the result, or the operand that the result equals; None if neither is known."""
    if has_trait(eqn, "filled"):
        value = VALUE.of(eqn.attrs)
        return value if isinstance(value, bool) else None
    logic = OPS[eqn.op].logic
    return logic([known.get(value) for value in eqn.operands]) if logic else None


def _made(eqn: Equation, truth: bool) -> Equation:
    """Replace an equation by a constant: the truth value, or as a number 1 or 0."""
    type = eqn.result.type
    value = truth if type.dtype == "bool" else float(truth) if type.dtype in FLOATS else int(truth)
    attributes: dict[str, Attr] = {"value": value, "dtype": type.dtype}
    if type.dims:
        return attrs.evolve(eqn, op="full", operands=(), attrs={"dims": type.dims, **attributes})
    return attrs.evolve(eqn, op="constant", operands=(), attrs=attributes)


def _renamed(eqn: Equation, same: Value) -> Equation:
    """Replace an equation by a copy of `same` under its name and dimensions. `simplify` drops copies that change nothing."""
    dims = eqn.result.type.dims
    op = "transpose" if len(dims) == len(same.type.dims) else "broadcast"
    return attrs.evolve(eqn, op=op, operands=(same,), attrs={"dims": dims})
