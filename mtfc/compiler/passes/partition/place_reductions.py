"""place-reductions: complete each pending sum where that sends the fewest bytes.

The pass gives every value its type: the axes that split it, and the axes over which a sum stays pending. `insert-reshards` then
completes a sum on each edge from a pending value to a use that needs a complete one.

A pending sum may pass through linear equations. Several pending sums are then added first and completed together. A sum that a
later equation makes smaller is completed there. For each mesh axis, a minimum cut decides which values stay pending:

- A source (a contraction over a split dimension) is always pending.
- The result of a linear equation can be pending only if the operands of one group are. Other operands must be complete.
- A pending value that some use needs complete costs an all-reduce: twice its size. If all these uses want the value split over
  the axis, it costs a reduce-scatter: its size.
- A cast with the attribute `sums` asks for its operand's sum in the wider dtype: completing the operand costs 64 times its size.
- Where two factors of a multiplication are pending, the sum passes through one, and the other is completed. The pass solves the
  cut for each choice. If equations that depend on each other have too many choices, it starts with the largest factors and
  changes one choice at a time.
- Of equally cheap cuts the one that completes the fewest sums wins, and of those the earliest.

In a loop each value counts once for every iteration. A sum that a loop carries may stay pending in all iterations. A value that a
loop yields may be completed once, as a stack.

Input:   %a: f32[io] = sum %x layout {batch: rows}; %b: f32[io] = sum %z layout {batch: rows}; %c: f32[io] = add %a, %b layout {}
Output:  %a: f32[io] +{rows} = sum %x layout {batch: rows}; %b: f32[io] +{rows} = sum %z ...; %c: f32[io] +{rows} = add %a, %b
Where the types do not say which factor is completed, a `reshard` does.
After this pass types are split and pending, and no other choice that the pass tries would send fewer bytes along a mesh axis.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from itertools import product
from math import prod
from typing import ClassVar

import attrs

from mtfc.compiler.analysis.mincut import INFINITE, SINK, SOURCE, FlowNetwork
from mtfc.compiler.analysis.reshard_plans import needed_type
from mtfc.compiler.ir.builder import Names
from mtfc.compiler.ir.core import Equation, Function, Output, Program, Value
from mtfc.compiler.ir.loops import carried, dim_of, pairs, region_of
from mtfc.compiler.ir.ops import OPS, has_trait
from mtfc.compiler.ir.pending_rule import (
    OperandGroup,
    is_split,
    leaves_sums,
    may_hold,
    own_axes,
    passing_groups,
    pending_over,
)
from mtfc.compiler.ir.rewrite import Substitution, names_of
from mtfc.compiler.ir.sharding_rules import is_cast_of_terms, operand_type, operand_types, result_types
from mtfc.compiler.ir.types import Mesh, TensorType
from mtfc.compiler.ir.verifier import Level
from mtfc.compiler.passes.pass_base import Pass

Passed = Mapping[str, OperandGroup]
"""Axis -> the operands through which sums over the axis pass to a value, or () for what a loop carries or yields."""

ONE_MORE_SUM = 2.0**-20
"""Bytes that completing a sum costs on top of its size, so that of equal cuts the one with the fewest sums wins."""

TOO_NARROW = 64
"""Factor of the bytes of a sum that is to be completed in a wider dtype."""

MOST_CHOICES = 64
"""Most combinations of factors that are all tried, for equations that depend on each other."""


@attrs.frozen
class PlaceReductions(Pass):
    name: ClassVar[str] = "place-reductions"
    takes: ClassVar[tuple[Level, ...]] = ("assigned", "placed")
    level: ClassVar[Level | None] = "placed"

    def run(self, program: Program) -> Program:
        mesh = program.placed_on
        return program.map_functions(lambda function: with_sums_placed(function, mesh))


def with_sums_placed(function: Function, mesh: Mesh) -> Function:
    """Return the function with the type of each value: its split, and the sums that stay pending in it."""
    at_once = with_types(without_reshards(function), mesh, {})
    passed: dict[Value, dict[str, OperandGroup]] = defaultdict(dict)
    for axis in mesh.names:
        for value, group in pending_values(cut_problem(at_once, axis), mesh).items():
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
    """Return the function with types that follow from its layouts and from the sums that pass to its values."""
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
        operands, types = new.all(eqn.operands), _result_types(eqn, mesh, passed)
        results = tuple(retyped(value, type) for value, type in zip(eqn.results, types, strict=True))
        regions = tuple(with_types(region, mesh, passed) for region in eqn.regions)
        placed = attrs.evolve(eqn, operands=operands, results=results, regions=regions)
        body += [placed] if eqn.regions else _passing(placed, passed.get(eqn.results[0], {}), names)
    return attrs.evolve(new.function(function, body), arguments=arguments)


def _result_types(eqn: Equation, mesh: Mesh, passed: Mapping[Value, Passed]) -> tuple[TensorType, ...]:
    if not eqn.regions:
        passing = tuple(passed.get(eqn.results[0], ()))
        return result_types(eqn, OPS[eqn.op].layout_rule(eqn), passing, mesh)
    outputs = zip(eqn.results, region_of(eqn).outputs, strict=True)
    return tuple(value.type.split_by(o.layout or {}, tuple(passed.get(value, ()))) for value, o in outputs)


def _passing(eqn: Equation, passed: Passed, names: Names) -> Iterator[Equation]:
    """Yield the equation, after reshards of the operands to complete, if the types do not say that the sums pass as chosen."""
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


@attrs.frozen
class LinearEquation:
    """An equation through which a sum can pass, and the groups of its operands that can all be pending."""

    eqn: Equation
    groups: tuple[OperandGroup, ...]


Choice = Mapping[Value, OperandGroup]
"""The result of a linear equation -> the group of operands through which its sum passes, if it is not the first."""


@attrs.frozen
class CutProblem:
    """The values in which a sum over one axis may be pending, as a walk over a function finds them.

    sources: values that their own equation leaves pending.
    through: values that can be pending if others are.
    linear: the equations through which sums pass to values of `through`.
    uses: value -> carries and results of loops that can be pending through it.
    needed: values that some other use needs complete.
    whole: values that some use does not want split over the axis.
    times: how often a value is computed, if more than once.
    narrow: values whose sum is to be completed after they are cast to a wider dtype.
    linked: a loop's carry and the result that it leaves as: both are pending or neither is.
    starts: a value and the carry that starts as it.
    """

    axis: str
    sources: dict[Value, None] = attrs.field(factory=dict)
    through: dict[Value, None] = attrs.field(factory=dict)
    linear: list[LinearEquation] = attrs.field(factory=list)
    uses: dict[Value, list[Value]] = attrs.field(factory=dict)
    needed: dict[Value, None] = attrs.field(factory=dict)
    whole: set[Value] = attrs.field(factory=set)
    times: dict[Value, int] = attrs.field(factory=dict)
    narrow: set[Value] = attrs.field(factory=set)
    linked: list[tuple[Value, Value]] = attrs.field(factory=list)
    starts: list[tuple[Value, Value]] = attrs.field(factory=list)

    def can_be_pending(self, value: Value) -> bool:
        return value in self.sources or value in self.through

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
        groups = passing_groups(OPS[eqn.op], eqn, self.axis, self.can_be_pending)
        for i, value in enumerate(eqn.operands):
            if self.can_be_pending(value):
                self._use(eqn, i, needs=not groups)
        if groups:
            self.through[eqn.result] = None
            self.linear.append(LinearEquation(eqn, groups))
            self.narrow.update(eqn.operands if is_cast_of_terms(eqn) else ())
        rule = OPS[eqn.op].layout_rule(eqn)
        if leaves_sums(rule) and self.axis in own_axes(rule, eqn):
            self.sources.update(dict.fromkeys(eqn.results))

    def _use(self, eqn: Equation, operand: int, needs: bool = True) -> None:
        value = eqn.operands[operand]
        if needs:
            self.needed[value] = None
        if self.axis not in needed_type(eqn, operand).split_axes:
            self.whole.add(value)

    def _placed(self, value: Value, output: Output) -> None:
        if not is_split(output, self.axis):
            self.whole.add(value)

    def _loop(self, eqn: Equation, times: int) -> None:
        region, times = region_of(eqn), times * dim_of(eqn).size
        pending = pending_carries(region, self.axis)
        self.times.update(dict.fromkeys(pending, times))
        self.through.update(pending)
        self.body(region.body, times)
        carries = {value.name: value for value in pending}
        for i, (operand, argument) in enumerate(pairs(eqn)):
            if argument.value in pending:
                self.starts.append((operand, argument.value))
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
            self._placed(output.value, output)
            self.linked.append((carry, result))
        elif output.updates is None and not is_split(output, self.axis):
            self.uses.setdefault(output.value, []).append(result)
            self.whole.add(output.value)
        else:
            self.output(output)
            return
        self.through[result] = None

    def parts(self) -> Iterable[CutProblem]:
        """Return the problems of values that do not depend on each other. They share `whole`, `times` and `narrow`."""
        roots = self._roots()
        found: dict[Value, CutProblem] = {}

        def part(value: Value) -> CutProblem:
            root = _root(roots, value)
            if root not in found:
                found[root] = CutProblem(self.axis, whole=self.whole, times=self.times, narrow=self.narrow)
            return found[root]

        for name in ("sources", "through", "uses", "needed"):
            for value, of in getattr(self, name).items():
                getattr(part(value), name)[value] = of
        for each in self.linear:
            part(each.eqn.result).linear.append(each)
        for pair in self.linked:
            part(pair[0]).linked.append(pair)
        for pair in self.starts:
            part(pair[1]).starts.append(pair)
        return found.values()

    def _roots(self) -> dict[Value, Value]:
        """Return a forest, as value -> parent, whose trees hold the values that depend on each other."""
        roots: dict[Value, Value] = {}
        pairs = [(v, user) for v, users in self.uses.items() for user in users] + self.linked + self.starts
        pairs += [(v, each.eqn.result) for each in self.linear for v in each.eqn.operands]
        for one, other in pairs:
            if self.can_be_pending(one):
                roots[_root(roots, one)] = _root(roots, other)
        return roots


def _root(roots: dict[Value, Value], value: Value) -> Value:
    while (above := roots.get(value, value)) != value:
        roots[value] = roots.get(above, above)
        value = above
    return value


def pending_carries(region: Function, axis: str) -> dict[Value, None]:
    """Return the carries of a loop that may stay pending over the axis in all iterations, such as a sum of pending sums."""
    found: dict[Value, None] = {
        a.value: None for a in carried(region) if may_hold(a.value) and not is_split(a, axis)
    }
    updates = {output.updates: output.value for output in region.outputs}
    while True:
        problem = CutProblem(axis, through=dict(found))
        problem.body(region.body, 1)
        kept = {value: None for value in found if problem.can_be_pending(updates[value.name])}
        if kept == found:
            return found
        found = kept


def cut_problem(function: Function, axis: str) -> CutProblem:
    """Return the problem of one function and axis."""
    problem = CutProblem(axis)
    problem.body(function.body, 1)
    for output in function.outputs:
        problem.output(output)
    return problem


def pending_values(problem: CutProblem, mesh: Mesh) -> dict[Value, OperandGroup]:
    """Return the values of `problem.through` that stay pending in the cheapest solution, and the operands that pass the sum."""
    found: dict[Value, OperandGroup] = {}
    for part in problem.parts() if problem.through else ():
        choice, (_, pending) = _best_choice(part, mesh)
        first = {each.eqn.result: each.groups[0] for each in part.linear} | dict(choice)
        found.update((value, first.get(value, ())) for value in part.through if value in pending)
    return found


Solution = tuple[float, set[Value]]
"""The cost of a cut in bytes, and the values that are pending when they are computed."""


def _best_choice(problem: CutProblem, mesh: Mesh) -> tuple[Choice, Solution]:
    """Return the choice of groups whose minimum cut costs least, and the cut."""
    open = {each.eqn.result: each.groups for each in problem.linear if len(each.groups) > 1}
    if prod(map(len, open.values())) <= MOST_CHOICES:
        choices = [dict(zip(open, groups, strict=True)) for groups in product(*open.values())]
        solved = [(choice, minimum_cut(problem, choice, mesh)) for choice in choices]
        return min(solved, key=lambda each: each[1][0])
    eqns = {each.eqn.result: each.eqn for each in problem.linear}

    def size(value: Value, group: OperandGroup) -> int:
        return sum(eqns[value].operands[i].type.local_bytes(mesh) for i in group)

    choice = {value: max(groups, key=lambda group: size(value, group)) for value, groups in open.items()}
    best = minimum_cut(problem, choice, mesh)
    while True:
        before = best[0]
        for value, groups in open.items():
            for group in groups:
                other = minimum_cut(problem, {**choice, value: group}, mesh)
                if other[0] < best[0]:
                    choice, best = {**choice, value: group}, other
        if best[0] == before:
            return choice, best


def minimum_cut(problem: CutProblem, choice: Choice, mesh: Mesh) -> Solution:
    """Return the cheapest solution in which sums pass as chosen.

    Node (value, "made") is on the source's side of the cut if the value is pending when it is computed. Node (value, "kept") is
    on the source's side if no use needs the value complete.
    """
    network = FlowNetwork()
    for value in problem.sources:
        network.arc(SOURCE, (value, "made"), INFINITE)
    costs = {value: _cost(problem, value, mesh) for value in (*problem.sources, *problem.through)}
    for value, cost in costs.items():
        network.arc((value, "made"), (value, "kept"), cost)
    needed = dict(problem.needed)
    passing = [(value, user) for value, users in problem.uses.items() for user in users]
    for each in problem.linear:
        group = choice.get(each.eqn.result, each.groups[0])
        for i, value in enumerate(each.eqn.operands):
            if i in group:
                passing.append((value, each.eqn.result))
            elif problem.can_be_pending(value):
                needed[value] = None
    for value, user in passing:
        network.arc((value, "kept"), (user, "made"), INFINITE)
        network.arc((user, "made"), (value, "made"), INFINITE)
    for one, other in problem.linked:
        network.arc((one, "made"), (other, "made"), INFINITE)
        network.arc((other, "made"), (one, "made"), INFINITE)
    for start, value in problem.starts:
        if problem.can_be_pending(start):
            network.arc((start, "kept"), (value, "made"), INFINITE)
    for value in needed:
        network.arc((value, "kept"), SINK, INFINITE)
    side = network.source_side()
    pending = {value for value in costs if (value, "made") in side}
    return sum(costs[value] for value in costs if value in pending and (value, "kept") not in side), pending


def _cost(problem: CutProblem, value: Value, mesh: Mesh) -> float:
    """Return the bytes of completing the sum in a value, and a little more."""
    pending = attrs.evolve(value.type, pending=mesh.ordered({*value.type.pending, problem.axis}))
    bytes = (2 if value in problem.whole else 1) * pending.local_bytes(mesh)
    bytes *= TOO_NARROW if value in problem.narrow else 1
    return problem.times.get(value, 1) * (bytes + ONE_MORE_SUM)
