"""Faults of gradient rules: one equation of the backward pass is wrong, and forward mode must find it.

The equations that gradient rules make are changed after differentiation, so every rule of every op is covered without a list of
rules. A fault is a mistake that a rule could have: a wrong sign, a factor too much or too little, swapped operands, a dropped
term, another value of the same type, another op, or an attribute that is wrong by one.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from random import Random
from typing import Any

import attrs

from mtfc.backends.exact.check import Evaluation, ExactReference
from mtfc.backends.exact.prime_field import PrimeField
from mtfc.backends.exact.residues import ExactArray
from mtfc.compiler.ir.core import Attr, Equation, Function, Value, walk
from mtfc.compiler.ir.loops import pairs, region_of
from mtfc.compiler.ir.opdef import OpError, Shard, form_error
from mtfc.compiler.ir.ops import OPS
from mtfc.compiler.ir.types import FLOATS
from tests.mutants.reasons import CAUGHT, MISSED
from tests.mutants.sites import same

OTHER_OPS = {
    "add": "sub", "sub": "add", "mul": "div", "div": "mul", "maximum": "minimum", "minimum": "maximum",
    "lt": "gt", "gt": "lt", "le": "ge", "ge": "le", "eq": "ne", "ne": "eq", "and": "or", "or": "and",
    "sin": "cos", "cos": "sin", "sqrt": "rsqrt", "rsqrt": "sqrt", "exp": "log", "square": "abs", "not": "stop_gradient",
}  # fmt: skip
"""Op -> the op that a fault takes in its place."""

COMMUTATIVE = frozenset({"add", "mul", "maximum", "minimum", "eq", "ne", "and", "or", "einsum"})

LOSSES = {
    **dict.fromkeys(("mask", "where"), "only elements that a mask drops differ"),
    **dict.fromkeys(("mul", "einsum", "div"), "only elements that are multiplied by 0 differ"),
    **dict.fromkeys(("eq", "ne", "lt", "le", "gt", "ge", "sign"), "every comparison is decided alike"),
    **dict.fromkeys(("maximum", "minimum", "relu", "max", "min"), "an extremum is another value"),
    **dict.fromkeys(("square", "abs"), "only a sign differs, which a square drops"),
    **dict.fromkeys(("floor", "cast"), "every number is rounded alike"),
    "sum": "differences cancel in a sum",
    **dict.fromkeys(("shift", "slice", "gather", "fold"), "only elements that a slice leaves out differ"),
}
"""Op at which a difference ends -> the reason."""

DRAWS = 2
"""The draws of `mtfc verify`."""

MORE_DRAWS = 30
"""The draws in which a fault is looked for if no reason is found in the first ones."""

Replacement = tuple[Equation, ...]


@attrs.frozen
class GradientFault:
    """A fault in a body: `eqn` is replaced. within: the loops around the equation, the outermost first."""

    name: str
    eqn: Equation
    replacement: Replacement
    within: tuple[Equation, ...]

    def planted(self) -> tuple[Equation, Replacement]:
        """Return the equation of the function's body that changes, and what takes its place."""
        inner, replacement = self.eqn, self.replacement
        for loop in reversed(self.within):
            region = region_of(loop)
            body = tuple(e for eqn in region.body for e in (replacement if eqn is inner else (eqn,)))
            inner, replacement = loop, (attrs.evolve(loop, regions=(attrs.evolve(region, body=body),)),)
        return inner, replacement


def gradient_faults(
    body: Sequence[Equation], arguments: Iterable[Value], random: Random, within: tuple[Equation, ...] = ()
) -> Iterator[GradientFault]:
    """Yield the faults of the backward equations in a body, and in the bodies of its loops."""
    scope = list(arguments)
    for eqn in body:
        if eqn.regions:
            inside = [argument.value for argument in region_of(eqn).arguments]
            yield from gradient_faults(region_of(eqn).body, inside, random, (*within, eqn))
        if eqn.stage == "backward":
            for name, replacement in _faults(eqn, scope, random):
                yield GradientFault(name, eqn, replacement, within)
        scope += eqn.results


def _faults(eqn: Equation, scope: Sequence[Value], random: Random) -> Iterator[tuple[str, Replacement]]:
    if eqn.regions:
        other_way = {**eqn.attrs, "reverse": not eqn.attrs["reverse"]}
        yield "other direction", (attrs.evolve(eqn, attrs=other_way),)
        return
    yield from _of_result(eqn)
    changed = [*_of_operands(eqn, scope, random), *_of_attributes(eqn)]
    if eqn.op in OTHER_OPS:
        changed.append((OTHER_OPS[eqn.op], _typed(eqn, OTHER_OPS[eqn.op], eqn.operands, eqn.attrs)))
    yield from ((name, (made,)) for name, made in changed if made is not None)


def _of_result(eqn: Equation) -> Iterator[tuple[str, Replacement]]:
    """Yield wrong signs and factors of a result."""
    if len(eqn.results) > 1 or eqn.result.type.dtype not in FLOATS:
        return
    right = Value(f"{eqn.result.name}.right", eqn.result.type)
    first = attrs.evolve(eqn, results=(right,))
    yield "other sign", (first, _result_of(eqn, "neg", right))
    yield "doubled", (first, _result_of(eqn, "add", right, right))
    yield "squared", (first, _result_of(eqn, "mul", right, right))
    yield "zero", (first, _result_of(eqn, "sub", right, right))


def _result_of(eqn: Equation, op: str, *operands: Value) -> Equation:
    return attrs.evolve(eqn, op=op, operands=operands, attrs={})


def _of_operands(
    eqn: Equation, scope: Sequence[Value], random: Random
) -> Iterator[tuple[str, Equation | None]]:
    """Yield swapped and dropped operands, and other values of an operand's type."""
    given = eqn.operands
    if len(given) > 1 and eqn.op not in COMMUTATIVE:
        yield "swapped", _typed(eqn, eqn.op, (*given[:-2], given[-1], given[-2]), eqn.attrs)
    for i, operand in enumerate(given):
        without = (*given[:i], *given[i + 1 :])
        if eqn.op == "einsum" and without:
            yield f"without factor {i}", _typed(eqn, eqn.op, without, eqn.attrs)
        yield f"only operand {i}", _typed(eqn, "transpose", (operand,), {"dims": eqn.results[0].type.dims})
        others = [value for value in scope if value.type == operand.type and value is not operand]
        if others:
            other = random.choice(others)
            yield (
                f"{other.name} as operand {i}",
                _typed(eqn, eqn.op, (*given[:i], other, *given[i + 1 :]), eqn.attrs),
            )


def _of_attributes(eqn: Equation) -> Iterator[tuple[str, Equation | None]]:
    for name, value in eqn.attrs.items():
        for other in _others(value):
            yield f"{name} = {other}", _typed(eqn, eqn.op, eqn.operands, {**eqn.attrs, name: other})


def _others(value: Attr) -> tuple[Attr, ...]:
    if isinstance(value, bool):
        return (not value,)
    return (value + 1, value - 1) if isinstance(value, int | float) else ()


def _typed(
    eqn: Equation, op: str, operands: tuple[Value, ...], attributes: Mapping[str, Attr]
) -> Equation | None:
    """Return the equation with another right side, or None if that has another type."""
    if form_error(OPS[op], len(operands), attributes) is not None:
        return None
    try:
        types = OPS[op].infer([value.type for value in operands], attributes)
    except OpError:
        return None
    if tuple(types) != tuple(value.type for value in eqn.results):
        return None
    return attrs.evolve(eqn, op=op, operands=operands, attrs=attributes)


# Planting


class Recorder(Evaluation):
    """An evaluation that keeps all values: in loops, one for each iteration."""

    def __init__(self, field: PrimeField) -> None:
        super().__init__(field)
        self.seen: dict[Value, list[ExactArray]] = {}

    def __call__(self, shard: Shard, *arrays: ExactArray) -> Any:
        found = super().__call__(shard, *arrays)
        for value, x in zip(shard.eqn.results, found if isinstance(found, tuple) else (found,), strict=True):
            self.seen.setdefault(value, []).append(x)
        return found

    def values(self, body: Iterable[Equation], given: Mapping[Value, ExactArray]) -> dict[Value, ExactArray]:
        """Keep the results of loops, too; of loops in loops, the values in each iteration that they come from."""
        body = tuple(body)
        found = super().values(body, given)
        for eqn in (each for each in walk(body) if each.regions):
            for value, output in zip(eqn.results, region_of(eqn).outputs, strict=True):
                known = [found[value]] if value in found else self.seen.get(output.value, [])
                self.seen[value] = known
        return found


@attrs.frozen
class Draw:
    """The right values of one draw: of the function's body, and of all equations with each iteration of a loop."""

    number: int
    known: Mapping[Value, ExactArray]
    seen: Mapping[Value, list[ExactArray]]


@attrs.frozen
class GradientBench:
    """The function of gradients, whose right values are known."""

    reference: ExactReference
    function: Function
    draws: tuple[Draw, ...]
    needed: frozenset[Value]
    more: dict[int, Draw] = attrs.field(factory=dict)
    """Draws in which faults are looked for that the first ones do not show."""

    @classmethod
    def of(cls, reference: ExactReference) -> "GradientBench":
        function = reference.functions["gradients"][0]
        draws = tuple(_draw(reference, function, number) for number in range(DRAWS))
        outputs = [output.value for output in function.outputs if output.name.startswith("d_")]
        return cls(reference, function, draws, frozenset(_needed(function.body, outputs)))

    def mutants(self, random: Random) -> Iterator[tuple[str, Callable[[], str]]]:
        """Yield the faults with their outcomes."""
        arguments = [argument.value for argument in self.function.arguments]
        for fault in gradient_faults(self.function.body, arguments, random):
            yield f"{fault.eqn.op} {fault.eqn.results[0]}, {fault.name}", partial(self.outcome, fault)

    def outcome(self, fault: GradientFault) -> str:
        """Return `CAUGHT`, `MISSED`, or the reason why no gradient changes.

        A reason tells where the difference ends: at a value of the site, or at an equation that drops it.
        """
        if self.needed.isdisjoint(fault.eqn.results):
            return "no gradient depends on the site"
        old, new = fault.planted()
        for draw in self.draws:
            try:
                known, seen = self._with(old, new, draw)
            except Exception:  # a fault may make indices that NumPy refuses
                return CAUGHT
            gradients = {o.name: known[o.value] for o in self.function.outputs}
            if not self.reference.agrees(gradients, draw.number):
                return CAUGHT
            if any(not same(gradients[o.name], draw.known[o.value]) for o in self.function.outputs):
                return MISSED
        return self._reason(fault, new, seen)

    def _with(
        self, old: Equation, new: Replacement, draw: Draw
    ) -> tuple[dict[Value, ExactArray], dict[Value, list[ExactArray]]]:
        """Return the values of the body with a fault: what does not depend on it is not computed again."""
        known, recorder = dict(draw.known), Recorder(self.reference.field(draw.number))
        changed = set[Value]()
        for eqn in (*new, *self.function.body[self.function.body.index(old) + 1 :]):
            if eqn not in new and changed.isdisjoint(eqn.operands):
                continue
            known |= recorder.values([eqn], {value: known[value] for value in eqn.operands})
            right = draw.known
            changed.update(v for v in eqn.results if v not in right or not same(known[v], right[v]))
        return known, recorder.seen

    def _reason(self, fault: GradientFault, new: Replacement, seen: Mapping[Value, list[ExactArray]]) -> str:
        right = self.draws[-1].seen
        changed = {value for value, found in seen.items() if not _all_same(found, right.get(value, found))}
        if changed.isdisjoint(fault.eqn.results):
            return "the fault gives the same value at the site"
        ends = {*_losses((*new, *self.function.body), changed)}
        if MISSED in ends:
            ignored = self._is_ignored(fault)
            return "no gradient depends on the elements that differ" if ignored else self._hidden(fault)
        return min(ends, default="no iteration that counts reads the difference")

    def _hidden(self, fault: GradientFault) -> str:
        """Return why a fault changes no gradient in the draws of `mtfc verify`: no draw shows it, or few do."""
        old, new = fault.planted()
        for number in range(DRAWS, MORE_DRAWS):
            if number not in self.more:
                self.more[number] = _draw(self.reference, self.function, number)
            draw = self.more[number]
            known, _ = self._with(old, new, draw)
            gradients = {o.name: known[o.value] for o in self.function.outputs}
            if any(not same(gradients[o.name], draw.known[o.value]) for o in self.function.outputs):
                agrees = self.reference.agrees(gradients, number)
                return MISSED if agrees else "a decision, a bound or a sign hides it in most draws"
        return "no gradient changes in any draw"

    def _is_ignored(self, fault: GradientFault) -> bool:
        """Return True if gradients stay the same with any numbers at the elements that the fault changes.

        The site gives right + (wrong - right) exp(wrong - right): `exp` is pseudo-random over a field.
        """
        eqn = fault.eqn
        if eqn.regions or len(eqn.results) > 1 or eqn.result.type.dtype not in FLOATS:
            return False
        names = ("kept", "wrong", "difference", "drawn", "product")
        kept, wrong, difference, drawn, product = (
            Value(f"{eqn.result.name}.{name}", eqn.result.type) for name in names
        )
        *before, last = fault.replacement
        steps = (("sub", (wrong, kept), difference), ("exp", (difference,), drawn))
        steps += (("mul", (difference, drawn), product), ("add", (kept, product), eqn.result))
        made = [attrs.evolve(_result_of(eqn, op, *given), results=(result,)) for op, given, result in steps]
        changed = (attrs.evolve(last, results=(wrong,)), attrs.evolve(eqn, results=(kept,)))
        old, new = attrs.evolve(fault, replacement=(*before, *changed, *made)).planted()
        found = ((draw, self._with(old, new, draw)[0]) for draw in self.draws)
        outputs = [output.value for output in self.function.outputs]
        return all(same(known[value], draw.known[value]) for draw, known in found for value in outputs)


def _loss(eqn: Equation, changed: set[Value]) -> str:
    """Return why a difference ends at an equation."""
    if sum(value in changed for value in eqn.operands) > 1:
        return "two differences cancel"
    return LOSSES.get(eqn.op, MISSED)


def _draw(reference: ExactReference, function: Function, number: int) -> Draw:
    recorder = Recorder(reference.field(number))
    field = reference.field(number)
    known = {a.value: reference.drawn(a, field, number, "gradients") for a in function.arguments}
    known = recorder.values(function.body, known)
    return Draw(number, known, recorder.seen)


def _needed(body: Sequence[Equation], outputs: Iterable[Value]) -> set[Value]:
    """Return the values that outputs depend on. All carries of a loop count if one of its results does."""
    needed = set(outputs)
    for eqn in reversed(body):
        if needed.isdisjoint(eqn.results):
            continue
        needed.update(eqn.operands)
        if eqn.regions:
            region = region_of(eqn)
            results = zip(eqn.results, region.outputs, strict=True)
            needed |= _needed(region.body, [o.value for r, o in results if r in needed or o.updates])
    return needed


def _losses(body: Sequence[Equation], changed: set[Value]) -> Iterator[str]:
    """Yield why a difference ends, at each equation that gets a changed value and gives none."""
    for eqn in body:
        if eqn.regions:
            region = region_of(eqn)
            updates = {o.updates for o in region.outputs if o.value in changed}
            more = {a.value for v, a in pairs(eqn) if v in changed or a.value.name in updates}
            yield from _losses(region.body, changed | more)
        elif not changed.isdisjoint(eqn.operands) and changed.isdisjoint(eqn.results):
            yield _loss(eqn, changed)


def _all_same(left: Sequence[ExactArray], right: Sequence[ExactArray]) -> bool:
    return len(left) == len(right) and all(map(same, left, right))
