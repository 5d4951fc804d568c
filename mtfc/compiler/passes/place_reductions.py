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

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import ClassVar

import attrs

from mtfc.compiler.analysis.mincut import INFINITE, SINK, SOURCE, Graph
from mtfc.compiler.analysis.placement import realize
from mtfc.compiler.ir.core import Equation, Function, Program, Value
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
    """Where one axis may be pending: values left pending by their own equation, and how others can become so.

    through: result -> (its equation, the operands that must then be pending). needed: values that some use, which is not one
    of those ways, needs complete. whole: those of them that some use wants complete and not split over the axis.
    """

    sources: Sequence[Value]
    through: Mapping[Value, tuple[Equation, Group]]
    needed: Iterable[Value]
    whole: Collection[Value]
    uses: Mapping[Value, Sequence[Value]]


def _sources(eqn: Equation) -> Axes:
    """Axes over which the equation itself leaves a sum pending."""
    rule = OPS[eqn.op].layout_rule(eqn)
    if rule.reduction != "sum":
        return ()
    return tuple(axis for dim in rule.reduced for axis in (eqn.layout or {}).get(dim.name, ()))


def _way(eqn: Equation, axis: str, possible: set[Value]) -> Group | None:
    """The operands through which a sum pending over `axis` can pass, if all of them can be pending."""
    if any(axis in axes for axes in (eqn.layout or {}).values()):
        return None
    groups = OPS[eqn.op].linear(eqn)
    return next((group for group in groups if all(eqn.operands[i] in possible for i in group)), None)


def _wants_split(eqn: Equation, operand: int, axis: str) -> bool:
    return axis in operand_type(OPS[eqn.op].layout_rule(eqn), eqn, operand).split_axes


def problem(function: Function, axis: str) -> Problem | None:
    """What there is to decide about `axis`; None where no pending sum could pass through anything."""
    sources: list[Value] = []
    through: dict[Value, tuple[Equation, Group]] = {}
    possible: set[Value] = set()
    needed: dict[Value, None] = {}
    whole: set[Value] = set()
    uses: dict[Value, list[Value]] = {}
    for eqn in function.body:
        way = _way(eqn, axis, possible) if possible and len(eqn.results) == 1 else None
        for i, value in enumerate(eqn.operands):
            if value in possible:
                if way and i in way:
                    uses.setdefault(value, []).append(eqn.result)
                    whole.add(value)
                else:
                    needed[value] = None
                    if not _wants_split(eqn, i, axis):
                        whole.add(value)
        if axis in _sources(eqn):
            sources += eqn.results
        if way:
            through[eqn.result] = (eqn, way)
        if way or axis in _sources(eqn):
            possible.update(eqn.results)
    for output in function.outputs:
        if output.value in possible:
            needed[output.value] = None
            if not any(axis in axes for axes in (output.layout or {}).values()):
                whole.add(output.value)
    return Problem(sources, through, needed, whole, uses) if through else None


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
        found = problem(plain, axis)
        for value in solve(found, mesh) if found else ():
            _, group = found.through[value]  # type: ignore[union-attr]
            for i in group:
                entry = passing.setdefault(value.name, {})
                entry[i] = (*entry.get(i, ()), axis)
    return realize(plain, mesh, passing) if passing else function
