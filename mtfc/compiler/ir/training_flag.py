"""`training`, the truth value that tells a training step from the other runs of a model: bind it to true or false.

    %training: bool[] = training                          %training: bool[] = constant value=true dtype="bool"
    %y: f32[batch] = where %training, %dropped, %x        %y: f32[batch] = transpose %dropped dims=[batch]

Choices by the flag are made, and logic on it is computed, in loops too. So nothing uses the side that is not chosen: no gradient
reaches it, and `dce` drops it. Results keep their names and types.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import attrs

from mtfc.compiler.ir.core import Attr, Equation, Function, Value, walk
from mtfc.compiler.ir.loops import pairs, region_of
from mtfc.compiler.ir.types import FLOATS

TRAINING = "training"

Truths = dict[Value, bool]
"""Values whose elements are all known to be true, or all false."""


def asks_for_training(function: Function) -> bool:
    return any(eqn.op == TRAINING for eqn in walk(function.body))


def bound(function: Function, training: bool) -> Function:
    """The function in training, or outside of it."""
    return _bound(function, training, {}) if asks_for_training(function) else function


def _bound(function: Function, training: bool, known: Truths) -> Function:
    return attrs.evolve(function, body=tuple(_equation(eqn, training, known) for eqn in function.body))


def _equation(eqn: Equation, training: bool, known: Truths) -> Equation:
    """The equation with its choices made; `known` learns of its results."""
    if eqn.regions:
        return _loop(eqn, training, known)
    truth = training if eqn.op == TRAINING else _truth(eqn, known)
    if truth is not None:
        known[eqn.result] = truth
        return _made(eqn, truth)
    if eqn.op == "cast" and eqn.operands[0] in known:
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
    """What all elements of the result are, if that is known."""
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
    """`and` of operands of which one is false is false, `or` of operands of which one is true is true."""
    if deciding in truths:
        return deciding
    return None if None in truths else not deciding


def _same_as(eqn: Equation, known: Mapping[Value, bool]) -> Value | None:
    """The operand that the result is equal to, if one is: where(true, x, y) == x, true and x == x, false or x == x."""
    if eqn.op == "where" and eqn.operands[0] in known:
        return eqn.operands[1 if known[eqn.operands[0]] else 2]
    if eqn.op in ("and", "or"):
        return _other(eqn.op == "and", eqn.operands, known)
    return None


def _other(neutral: bool, operands: tuple[Value, ...], known: Mapping[Value, bool]) -> Value | None:
    """The operand beside the one that is neutral."""
    x, y = operands
    if known.get(x) is neutral:
        return y
    return x if known.get(y) is neutral else None


def _made(eqn: Equation, truth: bool) -> Equation:
    """The equation that makes its result of nothing: true or false, or as a number 1 or 0."""
    type = eqn.result.type
    value = truth if type.dtype == "bool" else float(truth) if type.dtype in FLOATS else int(truth)
    attributes: dict[str, Attr] = {"value": value, "dtype": type.dtype}
    if type.dims:
        return attrs.evolve(eqn, op="full", operands=(), attrs={"dims": type.dims, **attributes})
    return attrs.evolve(eqn, op="constant", operands=(), attrs=attributes)


def _renamed(eqn: Equation, same: Value) -> Equation:
    """The equation that gives `same` the name and the dimensions of its result; `simplify` drops what changes nothing."""
    dims = eqn.result.type.dims
    op = "transpose" if len(dims) == len(same.type.dims) else "broadcast"
    return attrs.evolve(eqn, op=op, operands=(same,), attrs={"dims": dims})
