"""place-reductions: complete each pending sum where that sends the fewest bytes.

The pass gives every value its type: the axes that split it, and the axes over which a sum stays pending. `insert-reshards` then
completes a sum on each edge from a pending value to a use that needs a complete one.

A pending sum may pass through linear equations. Several pending sums are then added first and completed together. A sum that a
later equation makes smaller is completed there. For each mesh axis, a minimum cut decides which values stay pending:

- A source (a contraction over a split dimension) is always pending.
- The result of a linear equation can be pending only if the operands of one group are. Other operands must be complete.
- A pending value that some use needs complete costs an all-reduce: twice its size. If all these uses want the value split over
  the axis, it costs a reduce-scatter: its size. Uses through which the sum passes do not count.
- A cast with the attribute `sums` asks for its operand's sum in the wider dtype: completing the operand costs 64 times its size.
- Where two factors of a multiplication are pending, the sum passes through one, and the other is completed. Branch and bound
  finds the best choices of factors for equations that depend on each other.
- Of equally cheap cuts the one that completes the fewest sums wins, and of those the earliest.

In a loop each value counts once for every iteration. A sum that a loop carries may stay pending in all iterations. A value that a
loop yields may be completed once, as a stack, or in every iteration. If both send as much, a sum of at least `in_loops` bytes is
completed in every iteration, where it can be sent while the loop computes. Smaller sums are completed as a stack, and with
`forms: { sums: after }` in the layout all are.

Input:   %a: f32[io] = sum %x layout {batch: rows}; %b: f32[io] = sum %z layout {batch: rows}; %c: f32[io] = add %a, %b layout {}
Output:  %a: f32[io] +{rows} = sum %x layout {batch: rows}; %b: f32[io] +{rows} = sum %z ...; %c: f32[io] +{rows} = add %a, %b
Where the types do not say which factor is completed, a `reshard` does.
After this pass types are split and pending, and no other choice of where to complete sums would send fewer bytes along an axis.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Set
from math import inf, prod
from typing import ClassVar

import attrs

from mtfc.compiler.analysis.disjoint_sets import DisjointSets
from mtfc.compiler.analysis.mincut import INFINITE, SINK, SOURCE, Arc, Node, minimum_cut
from mtfc.compiler.analysis.pending_values import may_be_pending
from mtfc.compiler.analysis.reshard_plans import needed_type
from mtfc.compiler.ir.builder import Names, Substitution, names_of
from mtfc.compiler.ir.core import Equation, Function, Output, Program, Value
from mtfc.compiler.ir.loops import carried, dim_of, pairs, region_of
from mtfc.compiler.ir.ops import OPS, has_trait
from mtfc.compiler.ir.sharding_rules import (
    OperandGroup,
    is_cast_of_terms,
    is_split,
    leaves_sums,
    operand_type,
    operand_types,
    own_axes,
    passing_groups,
    pending_over,
    result_types,
)
from mtfc.compiler.ir.types import Dim, Mesh, TensorType
from mtfc.compiler.ir.verifier import Level
from mtfc.compiler.passes.pass_base import Pass
from mtfc.compiler.records import frozen

Passed = Mapping[str, OperandGroup]
"""Axis -> the operands through which sums over the axis pass to a value, or () for what a loop carries or yields."""

ONE_MORE_SUM = 2.0**-20
"""Bytes that completing a sum costs on top of its size, so that of equal cuts the one with the fewest sums wins."""

TOO_NARROW = 64
"""Factor of the bytes of a sum that is to be completed in a wider dtype."""

MOST_CUTS = 256
"""Most minimum cuts for equations that depend on each other; if these do not suffice, the best solution so far counts."""


@frozen
class PlaceReductions(Pass):
    """in_loops: the least bytes of a sum on a processor that is completed in every iteration of a loop; 0 for none."""

    name: ClassVar[str] = "place-reductions"
    takes: ClassVar[tuple[Level, ...]] = ("assigned", "placed")
    level: ClassVar[Level | None] = "placed"
    in_loops: int = 1 << 20

    def run(self, program: Program) -> Program:
        """Return the program with its sums completed where that costs least."""
        is_after = program.layout is not None and program.layout.forms.sums == "after"
        mesh, least = program.placed_on, inf if is_after else self.in_loops or inf
        return program.map_functions(lambda function: with_sums_placed(function, mesh, least))


def with_sums_placed(function: Function, mesh: Mesh, in_loops: float = inf) -> Function:
    """Return the function with the type of each value: its split, and the sums that stay pending in it."""
    at_once = with_types(without_reshards(function), mesh, {})
    passed: dict[Value, dict[str, OperandGroup]] = defaultdict(dict)
    for axis in mesh.names:
        for value, group in pending_values(cut_problem(at_once, axis, in_loops), mesh).items():
            passed[value][axis] = group
    return with_types(at_once, mesh, passed) if passed else at_once


def without_reshards(function: Function) -> Function:
    """Return the function without the reshards that this pass inserted before."""
    new = Substitution()
    body = []
    for eqn in function.body:
        if has_trait(eqn, "reshard"):
            new[eqn.result] = new[eqn.operands[0]]
        else:
            regions = tuple(without_reshards(region) for region in eqn.regions)
            body.append(attrs.evolve(new.equation(eqn), regions=regions))
    return new.function(function, body)


def with_types(function: Function, mesh: Mesh, passed: Mapping[Value, Passed]) -> Function:
    """Return the function with types that follow from its layouts and from the sums that pass to its values.

    If sums are passed, the other values have such types already.
    """
    new, names = Substitution(), names_of(function)

    def retyped(value: Value, type: TensorType) -> Value:
        new[value] = Value(value.name, type)
        return new[value]

    arguments = tuple(
        attrs.evolve(
            a, value=retyped(a.value, a.value.type.split_by(a.layout or {}, tuple(passed.get(a.value, ()))))
        )
        for a in function.arguments
    )
    body: list[Equation] = []
    for eqn in function.body:
        if passed and not eqn.regions and eqn.results[0] not in passed:
            body.append(new.equation(eqn))
            continue
        operands, types = new.all(eqn.operands), _result_types(eqn, mesh, passed)
        results = tuple(retyped(value, type) for value, type in zip(eqn.results, types, strict=True))
        regions = tuple(with_types(region, mesh, passed) for region in eqn.regions)
        placed = attrs.evolve(eqn, operands=operands, results=results, regions=regions)
        body += [placed] if eqn.regions else _passing(placed, passed.get(eqn.results[0], {}), names)
    return attrs.evolve(new.function(function, body), arguments=arguments)


def _result_types(eqn: Equation, mesh: Mesh, passed: Mapping[Value, Passed]) -> tuple[TensorType, ...]:
    """Return the types of the results of an equation. passed: value -> the axes over which its sum stays pending."""
    if not eqn.regions:
        passing = tuple(passed.get(eqn.results[0], ()))
        return result_types(eqn, OPS[eqn.op].layout_rule(eqn), passing, mesh)
    outputs = zip(eqn.results, region_of(eqn).outputs, strict=True)
    return tuple(value.type.split_by(o.layout or {}, tuple(passed.get(value, ()))) for value, o in outputs)


def _passing(eqn: Equation, passed: Passed, names: Names) -> Iterator[Equation]:
    """Yield the equation, after reshards of the operands to complete, if the types do not say that the sums pass as chosen."""
    if not passed:
        yield eqn
        return
    rule = OPS[eqn.op].layout_rule(eqn)
    chosen = tuple(
        operand_type(rule, eqn, i, tuple(axis for axis, group in passed.items() if i in group))
        for i in range(len(eqn.operands))
    )
    operands = list(eqn.operands)
    for i, value in enumerate(eqn.operands if chosen != operand_types(OPS[eqn.op], eqn) else ()):
        if any(pending_over(axis)(value) and i not in group for axis, group in passed.items()):
            operands[i] = Value(names.fresh(value.name), chosen[i])
            yield Equation("reshard", (value,), (operands[i],), span=eqn.span, stage=eqn.stage, layout={})
    yield attrs.evolve(eqn, operands=tuple(operands))


@frozen
class LinearEquation:
    """An equation through which a sum can pass, and the groups of its operands that can all be pending, largest first.

    pending: the operands that can be pending, by their numbers. unsplit: those that the equation does not want split over the
    axis where they are complete.
    """

    eqn: Equation
    groups: tuple[OperandGroup, ...]
    pending: Mapping[int, Value]
    unsplit: Set[int]

    @property
    def is_open(self) -> bool:
        return len(self.groups) > 1

    def satisfied(self, side: Set[Node]) -> OperandGroup | None:
        """Return a group along which the sum passes at no further cost, if nodes on the source's side are as a cut leaves them.

        All operands of the group are pending, and all others are completed for other uses. Without a pending result, any group
        will do. Returns None if there is none.
        """
        if (self.eqn.result, "made") not in side:
            return self.groups[0]
        return next((group for group in self.groups if self._fits(group, side)), None)

    def _fits(self, group: OperandGroup, side: Set[Node]) -> bool:
        """Return True if the sum can pass along a group of operands: they are pending, and the others are complete.

        side: the pending nodes.
        """
        return all(
            (value, "made") in side
            if i in group
            else (value, "kept") not in side and not (i in self.unsplit and (value, "whole") in side)
            for i, value in self.pending.items()
        )


Choice = Mapping[Value, OperandGroup]
"""The result of a linear equation with several groups -> the operands through which its sum passes."""


@frozen
class CutProblem:
    """The values in which a sum over one axis may be pending, as a walk over a function finds them.

    candidates: all of them.
    sources: values that their own equation leaves pending.
    through: values that can be pending if others are.
    linear: value of `through` -> the equation through which sums pass to it.
    uses: value -> carries and results of loops that can be pending through it.
    needed: values that some other use needs complete.
    whole: those among them that such a use does not want split over the axis.
    times: how often a value is computed, if more than once.
    narrow: values whose sum is to be completed after they are cast to a wider dtype.
    linked: a loop's carry -> the result that it leaves as: both are pending or neither is.
    starts: a loop's carry -> the value that it starts as.
    in_loops: the least bytes of a sum to complete in every iteration of a loop.
    stacked: the dimensions along which loops stack values that can be pending.
    """

    axis: str
    candidates: Set[Value]
    in_loops: float = inf
    sources: dict[Value, None] = attrs.field(factory=dict)
    through: dict[Value, None] = attrs.field(factory=dict)
    linear: dict[Value, LinearEquation] = attrs.field(factory=dict)
    uses: dict[Value, list[Value]] = attrs.field(factory=dict)
    needed: dict[Value, None] = attrs.field(factory=dict)
    whole: set[Value] = attrs.field(factory=set)
    times: dict[Value, int] = attrs.field(factory=dict)
    narrow: set[Value] = attrs.field(factory=set)
    linked: dict[Value, Value] = attrs.field(factory=dict)
    starts: dict[Value, Value] = attrs.field(factory=dict)
    stacked: set[Dim] = attrs.field(factory=set)

    def can_be_pending(self, value: Value) -> bool:
        return value in self.candidates

    def body(self, body: Iterable[Equation], times: int) -> None:
        """Add the equations of a body that runs `times` times."""
        for eqn in body:
            if times > 1:
                self.times.update(dict.fromkeys(eqn.results, times))
            if eqn.regions:
                self._loop(eqn, times)
            else:
                self._equation(eqn)

    def output(self, output: Output) -> None:
        """Add an output that must be complete."""
        if self.can_be_pending(output.value):
            self.needed[output.value] = None
            self._placed(output.value, output)

    def _equation(self, eqn: Equation) -> None:
        """Add an equation: a sum passes through it along a group of operands, or it needs its operands complete, and it may
        leave a sum.
        """
        if self.candidates.isdisjoint(eqn.operands) and self.candidates.isdisjoint(eqn.results):
            return
        pending = {i: value for i, value in enumerate(eqn.operands) if self.can_be_pending(value)}
        groups = passing_groups(OPS[eqn.op], eqn, self.axis, self.can_be_pending) if pending else ()
        if groups:
            unsplit = {i for i in pending if self._wants_whole(eqn, i)}
            self.through[eqn.result] = None
            self.linear[eqn.result] = LinearEquation(eqn, _largest_first(eqn, groups), pending, unsplit)
            self.narrow.update(eqn.operands if is_cast_of_terms(eqn) else ())
        else:
            for i in pending:
                self._use(eqn, i)
        rule = OPS[eqn.op].layout_rule(eqn)
        if leaves_sums(rule) and self.axis in own_axes(rule, eqn):
            self.sources.update(dict.fromkeys(eqn.results))

    def _wants_whole(self, eqn: Equation, operand: int) -> bool:
        return self.axis not in needed_type(eqn, operand).split_axes

    def _use(self, eqn: Equation, operand: int) -> None:
        """Add a use that needs a complete operand."""
        value = eqn.operands[operand]
        self.needed[value] = None
        if self._wants_whole(eqn, operand):
            self.whole.add(value)

    def _placed(self, value: Value, output: Output) -> None:
        if not is_split(output, self.axis):
            self.whole.add(value)

    def _loop(self, eqn: Equation, times: int) -> None:
        """Add a loop that runs `times` times: a carry can stay pending if it is among the candidates, and other uses need
        complete sums.
        """
        region, times = region_of(eqn), times * dim_of(eqn).size
        pending = {a.value: None for a in carried(region) if self.can_be_pending(a.value)}
        self.times.update(dict.fromkeys(pending, times))
        self.through.update(pending)
        self.body(region.body, times)
        carries = {value.name: value for value in pending}
        for i, (operand, argument) in enumerate(pairs(eqn)):
            if argument.value in pending:
                self.starts[argument.value] = operand
            elif self.can_be_pending(operand):
                self._use(eqn, i)
        for result, output in zip(eqn.results, region.outputs, strict=True):
            self._loop_output(result, output, carries)

    def _loop_output(self, result: Value, output: Output, carries: Mapping[str, Value]) -> None:
        """Add an output of a region: it goes to the next iteration, onto the stack, or must be complete."""
        carry = carries.get(output.updates or "")
        if not self.can_be_pending(output.value):
            return
        if carry is not None:
            self.uses.setdefault(output.value, []).append(carry)
            self.linked[carry] = result
        elif output.updates is None and not is_split(output, self.axis):
            self.uses.setdefault(output.value, []).append(result)
            self.stacked.add(result.type.dims[0])
        else:
            self.output(output)
            return
        self.through[result] = None

    def parts(self) -> Iterable[CutProblem]:
        """Return a problem for each group of values that depend on each other. The facts about single values are shared."""
        roots = self._roots()
        found: dict[Value, CutProblem] = {}

        def part(value: Value) -> CutProblem:
            """Return the problem that a value belongs to, made at its first value."""
            root = roots.first(value)
            if root not in found:
                found[root] = CutProblem(
                    self.axis,
                    self.candidates,
                    self.in_loops,
                    whole=self.whole,
                    times=self.times,
                    narrow=self.narrow,
                    stacked=self.stacked,
                )
            return found[root]

        for name in ("sources", "through", "linear", "uses", "needed", "linked", "starts"):
            for value, of in getattr(self, name).items():
                getattr(part(value), name)[value] = of
        return found.values()

    def _roots(self) -> DisjointSets[Value]:
        """Return the sets of values that depend on each other."""
        roots = DisjointSets[Value]()
        pairs = [(v, user) for v, users in self.uses.items() for user in users]
        pairs += [*self.linked.items(), *((start, carry) for carry, start in self.starts.items())]
        pairs += [(v, result) for result, each in self.linear.items() for v in each.eqn.operands]
        for one, other in pairs:
            if self.can_be_pending(one):
                roots.join(one, other)
        return roots


def cut_problem(function: Function, axis: str, in_loops: float = inf) -> CutProblem:
    """Return the problem of one function and axis."""
    problem = CutProblem(axis, may_be_pending(function, axis), in_loops)
    problem.body(function.body, 1)
    for output in function.outputs:
        problem.output(output)
    return problem


def pending_values(problem: CutProblem, mesh: Mesh) -> dict[Value, OperandGroup]:
    """Return the values of `problem.through` that stay pending in the cheapest solution, and the operands that pass the sum."""
    found: dict[Value, OperandGroup] = {}
    for part in problem.parts() if problem.through else ():
        choice, solution = _best_choice(part, mesh)
        first = {result: each.groups[0] for result, each in part.linear.items()} | dict(choice)
        pending = (value for value in part.through if (value, "made") in solution.side)
        found.update((value, first.get(value, ())) for value in pending)
    return found


def _largest_first(eqn: Equation, groups: Iterable[OperandGroup]) -> tuple[OperandGroup, ...]:
    """Sort groups by the elements of their operands: to pass a large sum on is the most promising choice."""

    def size(group: OperandGroup) -> int:
        return sum(prod(dim.size for dim in eqn.operands[i].type.dims) for i in group)

    return tuple(sorted(groups, key=size, reverse=True))


@frozen
class CutSolution:
    """A minimum cut: its cost in bytes, and the nodes on the source's side. `cheapest_solution` says what the nodes mean."""

    cost: float
    side: Set[Node]


def _best_choice(problem: CutProblem, mesh: Mesh) -> tuple[Choice, CutSolution]:
    """Return the choice of groups whose minimum cut costs least, and the cut, by branch and bound.

    An equation without a group yet asks nothing of its operands for a pending result, so its cut costs no more than with any
    group. The cut often satisfies a group nevertheless.
    """
    best: tuple[Choice, CutSolution] | None = None
    stack: list[Choice] = [{}]
    cuts = 0
    while stack and (best is None or cuts < MOST_CUTS):
        choice, cuts = stack.pop(), cuts + 1
        solution = cheapest_solution(problem, choice, mesh)
        if best is not None and solution.cost >= best[1].cost:
            continue
        left = {v: each for v, each in problem.linear.items() if each.is_open and v not in choice}
        found = {value: each.satisfied(solution.side) for value, each in left.items()}
        result = next((value for value, group in found.items() if group is None), None)
        if result is None:
            best = (
                {**choice, **{value: group for value, group in found.items() if group is not None}},
                solution,
            )
        else:
            stack += ({**choice, result: group} for group in reversed(left[result].groups))
    assert best is not None
    return best


def cheapest_solution(problem: CutProblem, choice: Choice, mesh: Mesh) -> CutSolution:
    """Return the cheapest solution in which sums pass as chosen.

    A node is on the source's side of the cut for these reasons. (value, "made"): the value is pending when it is computed.
    (value, "kept"): no use needs it complete. (value, "whole"): no use needs it complete and not split over the axis.
    """
    arcs = [*_value_arcs(problem, mesh), *_loop_arcs(problem)]
    for value, each in problem.linear.items():
        arcs += _linear_arcs(each, choice.get(value) if each.is_open else each.groups[0])
    return CutSolution(*minimum_cut(arcs))


def _value_arcs(problem: CutProblem, mesh: Mesh) -> Iterator[Arc]:
    """Yield the arcs of values: sources make sums, completing a sum costs its bytes, and some uses need sums complete."""
    for value in problem.sources:
        yield SOURCE, (value, "made"), INFINITE
    for value in dict.fromkeys((*problem.sources, *problem.through)):
        size, times = _bytes(problem, value, mesh), problem.times.get(value, 1)
        yield (value, "made"), (value, "kept"), times * (size + _sums(problem, value, size) * ONE_MORE_SUM)
        yield (value, "made"), (value, "whole"), times * size
    for value in problem.needed:
        yield from _completing(value, SINK, value in problem.whole)


def _sums(problem: CutProblem, value: Value, size: float) -> int:
    """Return for how many sums a value counts: a stack of large parts for one more than its parts."""
    parts = prod(dim.size for dim in value.type.dims if dim in problem.stacked)
    return parts + 1 if parts > 1 and size / parts >= problem.in_loops else 1


def _loop_arcs(problem: CutProblem) -> Iterator[Arc]:
    """Yield the arcs of loops: a carry that is pending at one end of an iteration must be pending at the other end, and
    afterwards.
    """
    for value, users in problem.uses.items():
        for user in users:
            yield from _completing(value, (user, "made"), unsplit=True)
            yield (user, "made"), (value, "made"), INFINITE
    for carry, result in problem.linked.items():
        yield (carry, "made"), (result, "made"), INFINITE
        yield (result, "made"), (carry, "made"), INFINITE
    for value, start in problem.starts.items():
        if problem.can_be_pending(start):
            yield from _completing(start, (value, "made"), unsplit=True)


def _linear_arcs(each: LinearEquation, group: OperandGroup | None) -> Iterator[Arc]:
    """Yield the arcs of an equation through which a sum passes along a group of operands; None: along any, or none."""
    result = (each.eqn.result, "made")
    for i, value in each.pending.items():
        passes = group is None or i in group
        yield from _completing(value, result if passes else SINK, i in each.unsplit)
        if group is not None and passes:
            yield result, (value, "made"), INFINITE


def _completing(value: Value, where: Node, unsplit: bool) -> Iterator[Arc]:
    """Yield the arcs that complete a value where the node `where` is on the sink's side."""
    yield (value, "kept"), where, INFINITE
    if unsplit:
        yield (value, "whole"), where, INFINITE


def _bytes(problem: CutProblem, value: Value, mesh: Mesh) -> float:
    """Return the bytes of a reduce-scatter of the sum; an all-reduce sends twice as many."""
    pending = attrs.evolve(value.type, pending=mesh.ordered({*value.type.pending, problem.axis}))
    return float(pending.local_bytes(mesh) * (TOO_NARROW if value in problem.narrow else 1))
