"""Bind `training`, the truth value that tells a training step from other runs of a model, to true or false.

    %training: bool[] = training                          %training: bool[] = constant value=true dtype="bool"
    %y: f32[batch] = where %training, %dropped, %x        %y: f32[batch] = transpose %dropped dims=[batch]

Binding evaluates logic on the flag and picks one side of each choice by it, in loops too. Nothing then uses the other side: no
gradient reaches that side, and `dce` drops it. Results keep their names and types.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import attrs

from mtfc.compiler.ir.core import Attr, Equation, Function, Value, walk
from mtfc.compiler.ir.loops import pairs, region_of
from mtfc.compiler.ir.ops import has_trait
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
    truth = training if has_trait(eqn, "training") else _truth(eqn, known)
    if truth is not None:
        known[eqn.result] = truth
        return _made(eqn, truth)
    if has_trait(eqn, "cast") and eqn.operands[0] in known:
        return _made(eqn, known[eqn.operands[0]])
    same = _same_as(eqn, known)
    return eqn if same is None else _renamed(eqn, same)


def _loop(eqn: Equation, training: bool, known: Truths) -> Equation:
    region = region_of(eqn)
    inside = {a.value: known[v] for v, a in pairs(eqn) if a.role != "carried" and v in known}
    smaller = _bound(region, training, inside)
    yielded = zip(eqn.results, region.outputs, strict=True)
    known.update({v: inside[o.value] for v, o in yielded if o.updates is None and o.value in inside})
    return attrs.evolve(eqn, regions=(smaller,))


def _truth(eqn: Equation, known: Mapping[Value, bool]) -> bool | None:
    """Return the truth of all elements of the result, or None where it is not known."""
    truths = [known.get(value) for value in eqn.operands]
    match eqn.op, truths:
        case (("constant" | "full"), _):
            value = eqn.attrs["value"]
            return value if isinstance(value, bool) else None
        case (("transpose" | "broadcast" | "rename"), [x]):
            return x
        case "not", [bool(x)]:
            return not x
        case (("eq" | "ne"), [bool(x), bool(y)]):
            return (x == y) == (eqn.op == "eq")
        case "and", _:
            return _decided(False, truths)
        case "or", _:
            return _decided(True, truths)
        case "where", [bool(holds), x, y]:
            return x if holds else y
    return None


def _decided(deciding: bool, truths: Sequence[bool | None]) -> bool | None:
    """Evaluate `and` (false decides) or `or` (true decides) of operands that may be unknown."""
    if deciding in truths:
        return deciding
    return None if None in truths else not deciding


def _same_as(eqn: Equation, known: Mapping[Value, bool]) -> Value | None:
    """Return the operand that equals the result, if any: where(true, x, y) == x, true and x == x, false or x == x."""
    if eqn.op == "where" and eqn.operands[0] in known:
        return eqn.operands[1 if known[eqn.operands[0]] else 2]
    if eqn.op in ("and", "or"):
        return _other(eqn.op == "and", eqn.operands, known)
    return None


def _other(neutral: bool, operands: tuple[Value, ...], known: Mapping[Value, bool]) -> Value | None:
    """Return the operand beside one that is known to be neutral."""
    x, y = operands
    if known.get(x) is neutral:
        return y
    return x if known.get(y) is neutral else None


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
