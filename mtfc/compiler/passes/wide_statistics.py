"""Wide statistics: sums of 16-bit numbers, and what follows from them element by element, are computed in f32 and rounded once.

The square of 300 is no number of f16, and the sum of 1,024 numbers of size 100 is none either, while their mean is. So a sum of
16-bit numbers is an f32 sum of casts. Three kinds of values around it are f32 too:

- a term: a number of which only f32 equations make use, such as the square under a mean;
- a statistic: a function of sums and of no larger values, such as a mean, or the root of a variance;
- an applied statistic: a larger tensor combined with statistics, and with further smaller tensors: a normalized tensor, its scale
  and its bias.

Where any other equation reads such a value, a cast rounds it. Gradients follow: `differentiate` comes later, so cotangents of f32
values are f32.

A bf16 number has the range of f32. There only squares and products under a sum are f32, and the sum itself until it is multiplied
by a number. The cast to bf16 that follows has the attribute `sums`: processors send terms of 16 bits.

A pipeline adds up the terms of micro-batches. Such a carry is f32, too, and is rounded after the loop.

Input:   %a: f16[batch, d] = square %x; %b: f16[batch] = sum %a; %c: f16[batch] = mul %b, %n; %y: f16[batch, d] = mul %x, %c
Output:  %x_2: f32[batch, d] = cast %x; %a_2 = square %x_2; %b_2: f32[batch] = sum %a_2; ...; %y: f16[batch, d] = cast %y_2
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Literal

import attrs

from mtfc.compiler.analysis.buffer_kinds import readers_and_outputs
from mtfc.compiler.ir.builder import Builder, is_narrow
from mtfc.compiler.ir.core import Attr, Equation, Function, Value
from mtfc.compiler.ir.loops import pairs, region_of
from mtfc.compiler.ir.ops import OPS, has_trait
from mtfc.compiler.ir.ops.creation import VALUE
from mtfc.compiler.ir.rewrite import names_of
from mtfc.compiler.ir.types import FLOATS

WIDE = "f32"

Kind = Literal["term", "statistic", "applied"]


def with_wide_statistics(function: Function, stored: Collection[Value] = ()) -> Function:
    """Return the function with wide statistics. stored: arguments that are read in their own dtype, not rounded to f16."""
    body = list[Equation]()
    for eqn in function.body:
        body.append(_loop_widened(eqn, stored) if eqn.regions else eqn)
    function = attrs.evolve(function, body=tuple(body))
    return attrs.evolve(function, body=StatisticsWidener(function, stored).rewritten())


def _loop_widened(eqn: Equation, stored: Collection[Value]) -> Equation:
    inside = {a.value for v, a in pairs(eqn) if v in stored and a.role != "carried"}
    return attrs.evolve(eqn, regions=(with_wide_statistics(region_of(eqn), inside),))


def _is_elementwise(eqn: Equation) -> bool:
    """Return True for an equation that makes 16-bit floats of floats of that dtype element by element, or is a view of them."""
    if eqn.regions or len(eqn.results) != 1 or not eqn.operands or not is_narrow(eqn.result.type):
        return False
    is_plain = OPS[eqn.op].storage in ("fused", "view") and not has_trait(eqn, "cast", "indexes", "random")
    return is_plain and all(v.type.dtype == eqn.result.type.dtype for v in _floats(eqn))


def _floats(eqn: Equation) -> list[Value]:
    return [value for value in eqn.operands if value.type.dtype in FLOATS]


class _Kinds:
    """Decides which values of a function are f32: see the module's docstring.

    uses: value -> the equations that read it, and None for each use by an output.
    """

    def __init__(self, function: Function) -> None:
        self.body, self.uses = function.body, readers_and_outputs(function)
        self.found: dict[Value, Kind] = {}
        self.numbers = {eqn.result for eqn in self.body if has_trait(eqn, "filled")}

    def run(self) -> dict[Value, Kind]:
        for eqn in self.body:
            kind = self._statistic(eqn)
            if kind is not None:
                self.found[eqn.result] = kind
        for eqn in reversed(self.body):
            if self._is_term(eqn):
                self.found[eqn.result] = "term"
        for eqn in self.body:
            if len(eqn.results) == 1 and eqn.result in self.found and not self._changes(eqn):
                del self.found[eqn.result]
        return self.found

    def _changes(self, eqn: Equation) -> bool:
        """Return False where f32 would round nothing less: for views, and for bf16 sums that are not scaled.

        Windows are f32, so that a sum of windows stays one op of the backend.
        """
        if any(value in self.found for value in eqn.operands):
            return True
        if has_trait(eqn, "sum") and eqn.result.type.dtype == "bf16":
            return any(user and user.results[0] in self.found for user in self.uses.get(eqn.result, ()))
        return has_trait(eqn, "window") or not _only_moves(eqn)

    def _statistic(self, eqn: Equation) -> Kind | None:
        if has_trait(eqn, "sum") and is_narrow(eqn.result.type):
            return "statistic"
        if not _is_elementwise(eqn) or not any(value in self.found for value in eqn.operands):
            return None
        rule = self._f16_statistic if eqn.result.type.dtype == "f16" else self._scaled_sum
        return rule(eqn)

    def _f16_statistic(self, eqn: Equation) -> Kind | None:
        """Follow statistics through all equations, and applied ones through those with smaller tensors."""
        wide = [value for value in eqn.operands if value in self.found]
        narrow = [value for value in _floats(eqn) if value not in self.found]
        rank = len(eqn.result.type.dims)
        if any(self.found[value] == "applied" for value in wide):
            smaller = all(len(value.type.dims) < rank for value in narrow)
            return "applied" if smaller and len(_floats(eqn)) > 1 else None
        is_small = _only_moves(eqn) or any(len(value.type.dims) == rank for value in wide)
        return "statistic" if is_small else "applied"

    def _scaled_sum(self, eqn: Equation) -> Kind | None:
        """Follow a bf16 sum, if nothing else reads it, to where it is multiplied by a number."""
        (wide, *_) = [value for value in eqn.operands if value in self.found]
        others = [value for value in eqn.operands if value is not wide]
        scales = has_trait(eqn, "multiply") and bool(others) and self.numbers.issuperset(others)
        alone = len(self.uses[wide]) == 1
        return "statistic" if alone and (scales or has_trait(eqn, "transpose")) else None

    def _is_term(self, eqn: Equation) -> bool:
        """Return True if only f32 equations read the result, and the equation can make it in f32."""
        if len(eqn.results) != 1 or eqn.result in self.found:
            return False
        users = self.uses.get(eqn.result, [])
        if not users or not all(user and user.results[0] in self.found for user in users):
            return False
        if eqn.result.type.dtype == "f16":
            return _is_elementwise(eqn) or has_trait(eqn, "window")
        sums = all(user and has_trait(user, "sum") for user in users)
        whole = all(v in self.numbers or v.type.dims == eqn.result.type.dims for v in eqn.operands)
        return sums and whole and _is_elementwise(eqn) and has_trait(eqn, "square", "multiply")


def _only_moves(eqn: Equation) -> bool:
    return has_trait(eqn, "window") or (not eqn.regions and OPS[eqn.op].storage == "view")


class StatisticsWidener:
    """Writes the equations of a body again, with some of its values in f32.

    wide: value of the body -> the same in f32. numbers, casts: the equations that define numbers, and casts of stored values.
    """

    def __init__(self, function: Function, stored: Collection[Value]) -> None:
        self.body, self.stored = function.body, stored
        kinds = _Kinds(function)
        self.kinds, self.uses = kinds.run(), kinds.uses
        self.builder = Builder(names_of(function))
        self.wide: dict[Value, Value] = {}
        self.defined = {value: eqn for eqn in self.body for value in eqn.results}

    def rewritten(self) -> tuple[Equation, ...]:
        for eqn in self.body:
            self.builder.span, self.builder.stage = eqn.span, eqn.stage
            if eqn.results and eqn.results[0] in self.kinds:
                self._widen(eqn)
            elif self._casts_wide(eqn):
                self.builder.append(attrs.evolve(eqn, operands=(self.wide[eqn.operands[0]],)))
            else:
                self.builder.append(eqn)
        return tuple(self.builder.body)

    def _widen(self, eqn: Equation) -> None:
        old = eqn.result
        operands = tuple(self._read(value) if is_narrow(value.type) else value for value in eqn.operands)
        rounds = any(self._rounds(user) for user in self.uses.get(old, ()))
        name, path = (self.builder.names.fresh(old.name), None) if rounds else (old.name, eqn.path)
        self.wide[old] = new = Value(name, old.type.with_dtype(WIDE))
        self.builder.append(attrs.evolve(eqn, operands=operands, results=(new,), path=path))
        if rounds:
            attributes: dict[str, Attr] = {"dtype": old.type.dtype}
            attributes |= {"sums": True} if old.type.dtype == "bf16" else {}
            cast = Equation("cast", (new,), (old,), attributes, span=eqn.span, stage=eqn.stage, path=eqn.path)
            self.builder.append(cast)

    def _rounds(self, user: Equation | None) -> bool:
        """Return True if a use reads the value in 16 bits."""
        return user is None or not (user.results[0] in self.kinds or self._casts_wide(user))

    def _casts_wide(self, eqn: Equation) -> bool:
        """Return True for a cast of a wide value to floats. It needs no rounding to f16 before."""
        if not has_trait(eqn, "cast") or eqn.result.type.dtype not in FLOATS:
            return False
        return eqn.operands[0] in self.kinds and eqn.operands[0].type.dtype == "f16"

    def _read(self, value: Value) -> Value:
        """Return an operand in f32."""
        if value not in self.wide:
            self.wide[value] = self._cast(value)
        return self.wide[value]

    def _cast(self, value: Value) -> Value:
        eqn = self.defined.get(value)
        if eqn is not None and has_trait(eqn, "constant"):
            return self.builder.constant(VALUE.of(eqn.attrs), WIDE)
        if eqn is not None and has_trait(eqn, "cast") and self._is_stored(eqn):
            return eqn.operands[0]
        return self.builder.cast(value, WIDE)

    def _is_stored(self, eqn: Equation) -> bool:
        """Return True for the cast to f16 of a state, which may be larger than an f16."""
        (value,) = eqn.operands
        return value in self.stored and (value.type.dtype, eqn.result.type.dtype) == (WIDE, "f16")
