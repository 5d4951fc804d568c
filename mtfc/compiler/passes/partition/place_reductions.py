"""place-reductions: complete each pending sum where that sends the fewest bytes.

A sum that is pending over an axis may pass through linear equations instead of being completed at once: several pending sums
are added first and reduced together, and one that a later equation makes smaller is reduced there. For each mesh axis, which
values stay pending is a minimum cut: every value that can be pending costs twice its size if it is pending and somebody needs
it complete (an all-reduce), or just its size if all such uses want it split over the axis (a reduce-scatter); a source (a
split contraction) is pending in any case; a linear equation gives a pending result only from pending operands. Of equally
cheap cuts the one that completes the fewest sums wins, and of those the earliest. In a loop each value counts once for every
iteration; a sum that a loop carries may stay pending all the way around, and what it yields may be completed as a stack.

Input:   %a: f32[io] +{rows} = sum %x; %a_2 = reshard %a; %b: f32[io] +{rows} = sum %z; %b_2 = reshard %b; %c = add %a_2, %b_2
Output:  %a: f32[io] +{rows} = sum %x; %b: f32[io] +{rows} = sum %z; %c: f32[io] +{rows} = add %a, %b; %c_2 = reshard %c
After this pass no other choice of where to complete pending sums would send fewer bytes.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import ClassVar

import attrs

from mtfc.compiler.analysis.mincut import INFINITE, SINK, SOURCE, Graph
from mtfc.compiler.ir.core import Argument, Equation, Function, Output, Program, Value
from mtfc.compiler.ir.loops import carried, dim_of, map_regions, pairs, region_of
from mtfc.compiler.ir.ops import OPS, has_trait
from mtfc.compiler.ir.rewrite import Substitution
from mtfc.compiler.ir.types import FLOATS, Axes, Mesh
from mtfc.compiler.passes.partition.reshard_inserter import Passing, realize, wanted_type
from mtfc.compiler.passes.pass_base import Pass

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
        if has_trait(eqn, "reshard"):
            origin[eqn.result] = eqn.operands[0]
        else:
            body.append(map_regions(origin.equation(eqn), without_reshards))
    return origin.function(function, body)


@attrs.frozen
class Problem:
    """Where sums over one axis may be pending: it is set up by a walk over a function.

    sources: values that their own equation leaves pending. through: result -> the operands of its equation that must be
    pending for it to be. uses: value -> results that can be pending through it. needed: values that some other use needs
    complete. whole: values that some use does not want split over the axis. times: how often a value is made, where that is
    more than once. fates: what a loop carries, and the result that it leaves as: both are pending or neither. starts: value ->
    what is carried in a loop that starts with it. loops: results of loops.
    """

    axis: str
    sources: dict[Value, None] = attrs.field(factory=dict)
    through: dict[Value, Group] = attrs.field(factory=dict)
    uses: dict[Value, list[Value]] = attrs.field(factory=dict)
    needed: dict[Value, None] = attrs.field(factory=dict)
    whole: set[Value] = attrs.field(factory=set)
    times: dict[Value, int] = attrs.field(factory=dict)
    fates: list[tuple[Value, Value]] = attrs.field(factory=list)
    starts: list[tuple[Value, Value]] = attrs.field(factory=list)
    loops: set[Value] = attrs.field(factory=set)

    def can_be_pending(self, value: Value) -> bool:
        return value in self.sources or value in self.through

    def body(self, body: Iterable[Equation], times: int) -> None:
        for eqn in body:
            if times > 1:
                self.times.update(dict.fromkeys(eqn.results, times))
            if eqn.regions:
                self._loop(eqn, times)
            else:
                self._equation(eqn)

    def _equation(self, eqn: Equation) -> None:
        way = self._way(eqn)
        for i, value in enumerate(eqn.operands):
            if self.can_be_pending(value):
                self._use(eqn, i, i in way)
        if way:
            self.through[eqn.result] = way
        if self.axis in _sources(eqn):
            self.sources.update(dict.fromkeys(eqn.results))

    def output(self, output: Output) -> None:
        """What leaves a function is complete."""
        if self.can_be_pending(output.value):
            self.needed[output.value] = None
            self._placed(output.value, output)

    def _placed(self, value: Value, output: Output) -> None:
        if not _splits(output, self.axis):
            self.whole.add(value)

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
        if self.axis not in wanted_type(eqn, operand).split_axes:
            self.whole.add(value)

    def _loop(self, eqn: Equation, times: int) -> None:
        region, times = region_of(eqn), times * dim_of(eqn).size
        going: dict[Value, None] = around(region, self.axis)
        self.times.update(dict.fromkeys(going, times))
        self.through.update(dict.fromkeys(going, ()))
        self.body(region.body, times)
        carries = {value.name: value for value in going}
        for i, (operand, argument) in enumerate(pairs(eqn)):
            if argument.value in going:
                self.starts.append((operand, argument.value))
            elif self.can_be_pending(operand):
                self._use(eqn, i, passes=False)
        for result, output in zip(eqn.results, region.outputs, strict=True):
            self._leaves(result, output, carries)

    def _leaves(self, result: Value, output: Output, carries: Mapping[str, Value]) -> None:
        """An output of a region goes on to the next iteration, to the stack, or must be complete."""
        carried = carries.get(output.updates or "")
        if not self.can_be_pending(output.value):
            return
        if carried is not None:
            self.uses.setdefault(output.value, []).append(carried)
            self._placed(output.value, output)
            self.fates.append((carried, result))
        elif output.updates is None and not _splits(output, self.axis):
            self.uses.setdefault(output.value, []).append(result)
            self.whole.add(output.value)
        else:
            self.output(output)
            return
        self.through[result] = ()
        self.loops.add(result)


def _splits(output: Output | Argument, axis: str) -> bool:
    return any(axis in axes for axes in (output.layout or {}).values())


def around(region: Function, axis: str) -> dict[Value, None]:
    """What a loop carries that may be pending over the axis as it goes around: a sum of pending sums, for example."""
    found: dict[Value, None] = {
        a.value: None for a in carried(region) if a.value.type.dtype in FLOATS and not _splits(a, axis)
    }
    updates = {output.updates: output.value for output in region.outputs}
    while True:
        problem = Problem(axis, through=dict.fromkeys(found, ()))
        problem.body(region.body, 1)
        kept = {value: None for value in found if problem.can_be_pending(updates[value.name])}
        if kept == found:
            return found
        found = kept


def _sources(eqn: Equation) -> Axes:
    """Axes over which the equation itself leaves a sum pending."""
    rule = OPS[eqn.op].layout_rule(eqn)
    if rule.reduction != "sum":
        return ()
    return tuple(axis for dim in rule.reduced for axis in (eqn.layout or {}).get(dim.name, ()))


def set_up(function: Function, axis: str) -> Problem:
    """What there is to decide about `axis`."""
    problem = Problem(axis)
    problem.body(function.body, 1)
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
        bytes = (2 if value in problem.whole else 1) * value.type.local_bytes(mesh)
        cost = problem.times.get(value, 1) * (bytes + ONE_MORE)
        graph.arc((value, "made"), (value, "kept"), cost)
    for value, users in problem.uses.items():
        for user in users:
            graph.arc((value, "kept"), (user, "made"), INFINITE)
            graph.arc((user, "made"), (value, "made"), INFINITE)
    for one, other in problem.fates:
        graph.arc((one, "made"), (other, "made"), INFINITE)
        graph.arc((other, "made"), (one, "made"), INFINITE)
    for start, value in problem.starts:
        if problem.can_be_pending(start):
            graph.arc((start, "kept"), (value, "made"), INFINITE)
    for value in problem.needed:
        graph.arc((value, "kept"), SINK, INFINITE)
    side = graph.source_side()
    return {value for value in problem.through if (value, "made") in side}


def placed(function: Function, mesh: Mesh) -> Function:
    plain = without_reshards(function)
    passing = Passing({}, {})
    for axis in mesh.names:
        problem = set_up(plain, axis)
        for value in solve(problem, mesh) if problem.through else ():
            _pass(passing, problem, value)
    return realize(plain, mesh, passing) if passing.through or passing.loops else function


def _pass(passing: Passing, problem: Problem, value: Value) -> None:
    """Note that `value` is pending over the problem's axis, and through which operands."""
    if value in problem.loops:
        passing.loops[value] = (*passing.loops.get(value, ()), problem.axis)
    for i in problem.through[value]:
        entry = passing.through.setdefault(value, {})
        entry[i] = (*entry.get(i, ()), problem.axis)
