"""Warn about a legal layout that wastes processors: W601 for duplicated work, W602 for two rules that need one mesh axis.

The readme of Mesh-TensorFlow ("How do I pick a layout?") gives the rule: every expensive einsum should use all mesh axes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cached_property

import attrs

from mtfc.compiler.diagnostics import Diagnostic, Label, Span
from mtfc.compiler.ir.core import Equation, Program, Value, walk
from mtfc.compiler.ir.loops import dim_of, region_of
from mtfc.compiler.ir.ops import OPS
from mtfc.compiler.ir.ops.contraction import iteration_dims, reduced_dims
from mtfc.compiler.ir.types import Axes, Dim, Layout, Mesh
from mtfc.compiler.records import frozen
from mtfc.frontend.layouts.allowed_warnings import Allowed
from mtfc.frontend.layouts.declared_layouts import DeclaredLayout, DeclaredRule, Section
from mtfc.frontend.layouts.program_index import ProgramIndex, in_main_file
from mtfc.frontend.semantics.names.scope import count

MACHINE = "h100"
"""The library's machine on which steps are predicted."""

LEAST = 1.05
"""Least predicted speedup of a step for which a rule is advised."""

Faster = Callable[[Program, Equation, Mesh, Layout, Sequence[Layout]], Sequence[float] | None]
"""A function that predicts the speedup of a program under each of some other layouts.

The other layouts differ in the layout of the given equation. The function returns None if the prediction takes too long, or the
machine has no room for the mesh.
"""


def unpredicted(
    program: Program, eqn: Equation, mesh: Mesh, layout: Layout, others: Sequence[Layout]
) -> None:
    """Predict nothing: there is no simulator."""


def no_predictions() -> Faster:
    return unpredicted


@frozen(slots=False)
class Advice:
    """Options of the warnings about layouts.

    allowed: warnings that the file allows. several: True if the file has several models. predictor: makes the function that
    predicts speedups, on demand.
    """

    allowed: Allowed = attrs.field(factory=Allowed)
    several: bool = False
    predictor: Callable[[], Faster] = no_predictions

    @cached_property
    def faster(self) -> Faster:
        return self.predictor()


MOST_PLACES = 3
"""Maximum number of places that a warning shows beside the first."""


def check_efficiency(
    facts: ProgramIndex, declared: DeclaredLayout, advice: Advice, is_legal: Callable[[DeclaredLayout], bool]
) -> Iterator[Diagnostic]:
    """Yield W601 and W602 for one model under a legal layout; `is_legal` tests another layout."""
    check = _Check(facts, declared, advice, is_legal)
    if "W601" not in declared.allowed and not advice.allowed.at("W601", declared.span):
        yield from check.duplicated()
    if "W602" not in declared.allowed:
        for eqn in facts.equations if declared.values else ():
            yield from check.conflicts(eqn)


class _Check:
    def __init__(
        self,
        facts: ProgramIndex,
        declared: DeclaredLayout,
        advice: Advice,
        is_legal: Callable[[DeclaredLayout], bool],
    ) -> None:
        self.facts, self.declared = facts, declared
        self.advice, self.is_legal = advice, is_legal
        self.mesh = declared.mesh
        self.stages = _stages(facts, declared)

    def _rules(self, eqn: Equation, reduced: Iterable[Dim]) -> dict[str, DeclaredRule]:
        """Return the rules of an equation: those for its first result, and those for the `reduced` dimensions."""
        result = eqn.results[0]
        own = self._section(result)
        kept = {name: own[name] for name in result.type.names if name in own}
        compute = self.declared.compute
        return {**kept, **{dim.name: compute[dim.name] for dim in reduced if dim.name in compute}}

    # W601

    def duplicated(self) -> Iterator[Diagnostic]:
        """Yield a warning for each set of unused axes of equations: all processors along these axes do the same work."""
        groups: dict[tuple[str, ...], list[Equation]] = {}
        for eqn in self.facts.heavy:
            used = {axis for rule in self._rules(eqn, reduced_dims(eqn)).values() for axis in rule.axes}
            used |= self.stages.get(eqn, frozenset())
            unused = tuple(axis for axis, size in self.mesh.axes if size > 1 and axis not in used)
            if unused and eqn.span and not self.advice.allowed.at("W601", in_main_file(eqn.span)):
                groups.setdefault(unused, []).append(eqn)
        for axes, equations in groups.items():
            yield self._duplicated(axes, sorted(equations, key=lambda eqn: -self.facts.heavy[eqn]))

    def _duplicated(self, unused: Sequence[str], equations: Sequence[Equation]) -> Diagnostic:
        """Return the warning about equations, the heaviest first."""
        eqn, *others = equations
        assert eqn.span is not None, "others are left out"
        axes = f"mesh {'axes' if len(unused) > 1 else 'axis'} {_list(unused)}"
        more = f" and in {count(len(others), 'more equation')}" if others else ""
        message = f"layout `{self.declared.name}` leaves {axes} unused here{more}: this work is done"
        message += f" {self.mesh.size(unused)} times over"
        labels = [Label(self.declared.span, "under this layout"), *_inside(eqn.span)]
        places = dict.fromkeys(in_main_file(each.span) for each in others if each.span)
        also = [Label(place, "and here") for place in places if place != in_main_file(eqn.span)]
        help = "; ".join(text for axis in unused if (text := self._help(eqn, axis)))
        return Diagnostic(
            "W601", message, in_main_file(eqn.span), (*labels, *also[:MOST_PLACES]), help or None
        )

    def _help(self, eqn: Equation, axis: str) -> str | None:
        """Return the rules for an axis that are predicted to make a step faster."""
        dims = [dim for dim in iteration_dims(eqn) if self._may_split(dim, axis)]
        others = [self.declared.with_rule(dim.name, (*self._axes(dim.name), axis)) for dim in dims]
        legal = {dim.name: each for dim, each in zip(dims, others, strict=True) if self.is_legal(each)}
        if not legal:
            return f"none of its dimensions can be split over `{axis}` as well"
        layouts = [each.layout for each in legal.values()]
        program, layout = self.facts.program, self.declared.layout
        found = self.advice.faster(program, eqn, self.mesh, layout, layouts)
        if found is None:
            return None
        best = sorted(zip(found, legal, strict=True), reverse=True)
        rules = [(self._extended(dim, axis), f"{times:.1f} times") for times, dim in best if times >= LEAST]
        if not rules:
            meant = "`allow W601` in the layout says that this is meant"
            return f"no rule for `{axis}` is predicted to be faster on {MACHINE}; {meant}"
        (rule, times), *more = rules
        rest = "".join(f", {rule} {times}" for rule, times in more)
        return (
            f"split a dimension over `{axis}`: on {MACHINE} {rule} is predicted to be {times} as fast{rest}"
        )

    def _axes(self, name: str) -> Axes:
        rule = self.declared.compute.get(name)
        return rule.axes if rule else ()

    def _may_split(self, dim: Dim, axis: str) -> bool:
        """Return True if a dimension can be split over an axis as well.

        The size must divide evenly, and no tensor may have another dimension that is split over the axis.
        """
        divides = dim.size % self.mesh.size((*self._axes(dim.name), axis)) == 0
        return divides and all(axis not in self._axes(name) for name in self.facts.neighbours[dim.name])

    def _extended(self, dim: str, axis: str) -> str:
        before = self._axes(dim)
        return f"`{dim}: ({', '.join((*before, axis))})`" if before else f"`{dim}: {axis}`"

    # W602

    def conflicts(self, eqn: Equation) -> Iterator[Diagnostic]:
        """Yield W602 for each axis over which two dimensions of the equation are split, if no tensor has both dimensions.

        Only `value` rules can cause this: without them, one of the two dimensions is summed away before the other is met.
        """
        users: dict[str, list[DeclaredRule]] = {}
        for rule in self._rules(eqn, _reduced(eqn)).values():
            for axis in rule.axes:
                users.setdefault(axis, []).append(rule)
        for axis, rules in users.items():
            if len(rules) > 1 and self.mesh.sizes[axis] > 1 and not self._is_error(eqn, axis, rules):
                yield self._conflict(eqn, axis, rules)

    def _is_error(self, eqn: Equation, axis: str, rules: Sequence[DeclaredRule]) -> bool:
        """Return True if one tensor of the equation has two of the dimensions, which is E301."""
        tensors = (*eqn.operands, *eqn.results)
        return any(sum(self._splits(value, rule.dim, axis) for rule in rules) > 1 for value in tensors)

    def _section(self, value: Value) -> Section:
        return self.declared.values.get(self.facts.paths.get(value, ""), self.declared.compute)

    def _splits(self, value: Value, dim: str, axis: str) -> bool:
        """Return True if the rules for a value split this dimension over the axis."""
        rule = self._section(value).get(dim)
        return rule is not None and dim in value.type.names and axis in rule.axes

    def _conflict(self, eqn: Equation, axis: str, rules: Sequence[DeclaredRule]) -> Diagnostic:
        names = _list([rule.dim for rule in rules])
        message = f"{names} are both split over mesh axis `{axis}` and meet here: only one of them can be"
        labels = tuple(Label(rule.span, f"`{rule.dim}` is split over `{axis}` here") for rule in rules)
        help = "the other one stays whole in this equation; give the dimensions different axes to avoid that"
        assert eqn.span is not None, "the user's equations have a place in the source"
        return Diagnostic("W602", message, in_main_file(eqn.span), (*labels, *_inside(eqn.span)), help)


def _stages(facts: ProgramIndex, declared: DeclaredLayout) -> dict[Equation, frozenset[str]]:
    """Return the mesh axes along which stages of a pipeline compute each equation, for the equations of pipelines."""
    loops = {each.pipeline.loop for each in declared.pipelines}
    found: dict[Equation, frozenset[str]] = {}
    for eqn in facts.loops:
        if dim_of(eqn).name in loops:
            axes = frozenset(declared.compute[dim_of(eqn).name].axes)
            found |= {each: axes | found.get(each, frozenset()) for each in walk(region_of(eqn).body)}
    return found


def _inside(span: Span) -> Iterator[Label]:
    """Yield a label at a place in a function of another file; nothing for a place in the main file."""
    if in_main_file(span).file != span.file:
        yield Label(attrs.evolve(span, call=None), "by this")


def _reduced(eqn: Equation) -> tuple[Dim, ...]:
    """Return the dimensions that the equation itself sums away: a dimension of one operand alone is summed before."""
    reduced = OPS[eqn.op].layout_rule(eqn).reduced
    if len(eqn.operands) == 1:
        return reduced
    return tuple(dim for dim in reduced if sum(dim in value.type.dims for value in eqn.operands) > 1)


def _list(names: Sequence[str]) -> str:
    return " and ".join(f"`{name}`" for name in names)
