"""place-reductions: complete each pending sum where that sends the fewest bytes.

A sum that is pending over an axis may pass through linear equations instead of being completed at once: several pending sums
are added first and reduced together, and one that a later equation makes smaller is reduced there. For each mesh axis, which
values stay pending is a minimum cut: every value that can be pending costs twice its size if it is pending and somebody needs
it complete (an all-reduce), or just its size if all such uses want it split over the axis (a reduce-scatter); a source (a
split contraction) is pending in any case; a linear equation gives a pending result only from pending operands. Of equally
cheap cuts the one that completes the fewest sums wins, and of those the earliest.

Input:   %a: f32[io] +{rows} = sum %x; %a_2 = reshard %a; %b: f32[io] +{rows} = sum %z; %b_2 = reshard %b; %c = add %a_2, %b_2
Output:  %a: f32[io] +{rows} = sum %x; %b: f32[io] +{rows} = sum %z; %c: f32[io] +{rows} = add %a, %b; %c_2 = reshard %c
After this pass no other choice of where to complete pending sums would send fewer bytes.
"""

from __future__ import annotations

from typing import ClassVar

import attrs

from mtfc.compiler.analysis.mincut import INFINITE, SINK, SOURCE, Graph
from mtfc.compiler.analysis.placement import realize
from mtfc.compiler.ir.core import Equation, Function, Output, Program, Value
from mtfc.compiler.ir.ops import OPS
from mtfc.compiler.ir.place import operand_type
from mtfc.compiler.ir.rewrite import Substitution
from mtfc.compiler.ir.transform import Pass
from mtfc.compiler.ir.types import Axes, Mesh

Group = tuple[int, ...]

ONE_MORE = 2.0**-20
"""What completing one more sum weighs beside the bytes of all: it decides between cuts of equally many bytes."""


@attrs.frozen
class PlaceReductions(Pass):
    name: ClassVar[str] = "place-reductions"

    def run(self, program: Program) -> Program:
        mesh = program.placed_on
        return program.map_functions(lambda function: placed(function, mesh))


def without_reshards(function: Function) -> Function:
    origin = Substitution()
    body = []
    for eqn in function.body:
        if eqn.op == "reshard":
            origin[eqn.result] = eqn.operands[0]
        else:
            body.append(origin.equation(eqn))
    return origin.function(function, body)


@attrs.frozen
class Problem:
    """Where sums over one axis may be pending: it is set up by a walk over a function.

    sources: values that their own equation leaves pending. through: result -> the operands of its equation that must be
    pending for it to be. uses: value -> results that can be pending through it. needed: values that some other use needs
    complete. whole: values that some use does not want split over the axis.
    """

    axis: str
    sources: dict[Value, None] = attrs.field(factory=dict)
    through: dict[Value, Group] = attrs.field(factory=dict)
    uses: dict[Value, list[Value]] = attrs.field(factory=dict)
    needed: dict[Value, None] = attrs.field(factory=dict)
    whole: set[Value] = attrs.field(factory=set)

    def can_be_pending(self, value: Value) -> bool:
        return value in self.sources or value in self.through

    def equation(self, eqn: Equation) -> None:
        way = self._way(eqn)
        for i, value in enumerate(eqn.operands):
            if self.can_be_pending(value):
                self._use(eqn, i, i in way)
        if way:
            self.through[eqn.result] = way
        if self.axis in _sources(eqn):
            self.sources.update(dict.fromkeys(eqn.results))

    def output(self, output: Output) -> None:
        if self.can_be_pending(output.value):
            self.needed[output.value] = None
            if not any(self.axis in axes for axes in (output.layout or {}).values()):
                self.whole.add(output.value)

    def _way(self, eqn: Equation) -> Group:
        """The operands through which a sum can pass, if there are such and all of them can be pending."""
        if any(self.axis in axes for axes in (eqn.layout or {}).values()):
            return ()
        groups = OPS[eqn.op].linear(eqn)
        return next((g for g in groups if all(self.can_be_pending(eqn.operands[i]) for i in g)), ())

    def _use(self, eqn: Equation, operand: int, passes: bool) -> None:
        value = eqn.operands[operand]
        if passes:
            self.uses.setdefault(value, []).append(eqn.result)
        else:
            self.needed[value] = None
        wanted = operand_type(OPS[eqn.op].layout_rule(eqn), eqn, operand)
        if self.axis not in wanted.split_axes:
            self.whole.add(value)


def _sources(eqn: Equation) -> Axes:
    """Axes over which the equation itself leaves a sum pending."""
    rule = OPS[eqn.op].layout_rule(eqn)
    if rule.reduction != "sum":
        return ()
    return tuple(axis for dim in rule.reduced for axis in (eqn.layout or {}).get(dim.name, ()))


def set_up(function: Function, axis: str) -> Problem:
    """What there is to decide about `axis`."""
    problem = Problem(axis)
    for eqn in function.body:
        problem.equation(eqn)
    for output in function.outputs:
        problem.output(output)
    return problem


def solve(problem: Problem, mesh: Mesh) -> set[Value]:
    """The values of `problem.through` that stay pending in the cheapest solution.

    Node (value, "made") is on the source's side when the value is made pending, (value, "kept") when nobody needs it complete.
    """
    graph = Graph()
    for value in problem.sources:
        graph.arc(SOURCE, (value, "made"), INFINITE)
    for value in (*problem.sources, *problem.through):
        factor = 2 if value in problem.whole else 1
        graph.arc((value, "made"), (value, "kept"), factor * value.type.local_bytes(mesh) + ONE_MORE)
    for value, users in problem.uses.items():
        for user in users:
            graph.arc((value, "kept"), (user, "made"), INFINITE)
            graph.arc((user, "made"), (value, "made"), INFINITE)
    for value in problem.needed:
        graph.arc((value, "kept"), SINK, INFINITE)
    side = graph.source_side()
    return {value for value in problem.through if (value, "made") in side}


def placed(function: Function, mesh: Mesh) -> Function:
    plain = without_reshards(function)
    passing: dict[str, dict[int, Axes]] = {}
    for axis in mesh.names:
        problem = set_up(plain, axis)
        for value in solve(problem, mesh) if problem.through else ():
            for i in problem.through[value]:
                entry = passing.setdefault(value.name, {})
                entry[i] = (*entry.get(i, ()), axis)
    return realize(plain, mesh, passing) if passing else function
