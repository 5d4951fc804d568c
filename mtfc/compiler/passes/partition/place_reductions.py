"""place-reductions: complete each pending sum where that sends the fewest bytes.

The pass gives every value its type: the axes that split it, and the axes over which a sum stays pending. `insert-reshards` then
completes a sum on each edge from a pending value to a use that needs a complete one.

A pending sum may pass through linear equations. Several pending sums are then added first and completed together. A sum that a
later equation makes smaller is completed there. For each mesh axis, a minimum cut decides which values stay pending:

- A source (a contraction over a split dimension) is always pending.
- The result of a linear equation can be pending only if its operands are.
- A pending value that some use needs complete costs an all-reduce: twice its size. If all these uses want the value split over
  the axis, it costs a reduce-scatter: its size.
- A cast with the attribute `sums` asks for its operand's sum in the wider dtype: completing the operand costs 64 times its size.
- Of equally cheap cuts the one that completes the fewest sums wins, and of those the earliest.

In a loop each value counts once for every iteration. A sum that a loop carries may stay pending in all iterations. A value that a
loop yields may be completed once, as a stack.

Input:   %a: f32[io] = sum %x layout {batch: rows}; %b: f32[io] = sum %z layout {batch: rows}; %c: f32[io] = add %a, %b layout {}
Output:  %a: f32[io] +{rows} = sum %x layout {batch: rows}; %b: f32[io] +{rows} = sum %z ...; %c: f32[io] +{rows} = add %a, %b
After this pass types are split and pending, and no other choice of where to complete sums would send fewer bytes.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import ClassVar

import attrs

from mtfc.compiler.analysis.mincut import INFINITE, SINK, SOURCE, FlowNetwork
from mtfc.compiler.analysis.reshard_plans import needed_type
from mtfc.compiler.ir.core import Argument, Equation, Function, Output, Program, Value
from mtfc.compiler.ir.loops import carried, dim_of, pairs, region_of
from mtfc.compiler.ir.ops import OPS
from mtfc.compiler.ir.rewrite import Substitution
from mtfc.compiler.ir.sharding_rules import is_cast_of_terms, result_types
from mtfc.compiler.ir.types import FLOATS, Axes, Mesh, TensorType
from mtfc.compiler.ir.verifier import Level
from mtfc.compiler.passes.pass_base import Pass

OperandGroup = tuple[int, ...]
"""Numbers of the operands through which a pending sum passes together."""

ONE_MORE_SUM = 2.0**-20
"""Bytes that completing a sum costs on top of its size, so that of equal cuts the one with the fewest sums wins."""

TOO_NARROW = 64
"""Factor of the bytes of a sum that is to be completed in a wider dtype."""


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
    at_once = with_types(function, mesh, {})
    passed: dict[Value, Axes] = {}
    for axis in mesh.names:
        problem = cut_problem(at_once, axis)
        for value in pending_values(problem, mesh) if problem.through else ():
            passed[value] = (*passed.get(value, ()), axis)
    return with_types(at_once, mesh, passed) if passed else at_once


def with_types(function: Function, mesh: Mesh, passed: Mapping[Value, Axes]) -> Function:
    """Return the function with types that follow from its layouts.

    passed: axes over which sums pass from the operands to a result, or stay pending in what a loop carries or yields.
    """
    new = Substitution()

    def retyped(value: Value, type: TensorType) -> Value:
        new[value] = Value(value.name, type)
        return new[value]

    arguments = tuple(
        attrs.evolve(
            a, value=retyped(a.value, a.value.type.split_by(a.layout or {}, passed.get(a.value, ())))
        )
        for a in function.arguments
    )
    body = []
    for eqn in function.body:
        operands, types = new.all(eqn.operands), _result_types(eqn, mesh, passed)
        results = tuple(retyped(value, type) for value, type in zip(eqn.results, types, strict=True))
        regions = tuple(with_types(region, mesh, passed) for region in eqn.regions)
        body.append(attrs.evolve(eqn, operands=operands, results=results, regions=regions))
    return attrs.evolve(new.function(function, body), arguments=arguments)


def _result_types(eqn: Equation, mesh: Mesh, passed: Mapping[Value, Axes]) -> tuple[TensorType, ...]:
    if not eqn.regions:
        return result_types(eqn, OPS[eqn.op].layout_rule(eqn), passed.get(eqn.results[0], ()), mesh)
    outputs = zip(eqn.results, region_of(eqn).outputs, strict=True)
    return tuple(value.type.split_by(o.layout or {}, passed.get(value, ())) for value, o in outputs)


@attrs.frozen
class CutProblem:
    """The values in which a sum over one axis may be pending, as a walk over a function finds them.

    sources: values that their own equation leaves pending.
    through: result -> the operands of its equation that must be pending for the result to be pending.
    uses: value -> results that can be pending through it.
    needed: values that some other use needs complete.
    whole: values that some use does not want split over the axis.
    times: how often a value is computed, if more than once.
    narrow: values whose sum is to be completed after they are cast to a wider dtype.
    linked: a loop's carry and the result that it leaves as: both are pending or neither is.
    starts: a value and the carry that starts as it.
    """

    axis: str
    sources: dict[Value, None] = attrs.field(factory=dict)
    through: dict[Value, OperandGroup] = attrs.field(factory=dict)
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
        group = self._group(eqn)
        for i, value in enumerate(eqn.operands):
            if self.can_be_pending(value):
                self._use(eqn, i, i in group)
        if group:
            self.through[eqn.result] = group
            self.narrow.update(eqn.operands if is_cast_of_terms(eqn) else ())
        if self.axis in _own_sums(eqn):
            self.sources.update(dict.fromkeys(eqn.results))

    def _group(self, eqn: Equation) -> OperandGroup:
        """Return the first group of linear operands that can all be pending, or ()."""
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
        if self.axis not in needed_type(eqn, operand).split_axes:
            self.whole.add(value)

    def _placed(self, value: Value, output: Output) -> None:
        if not _splits(output, self.axis):
            self.whole.add(value)

    def _loop(self, eqn: Equation, times: int) -> None:
        region, times = region_of(eqn), times * dim_of(eqn).size
        pending = pending_carries(region, self.axis)
        self.times.update(dict.fromkeys(pending, times))
        self.through.update(dict.fromkeys(pending, ()))
        self.body(region.body, times)
        carries = {value.name: value for value in pending}
        for i, (operand, argument) in enumerate(pairs(eqn)):
            if argument.value in pending:
                self.starts.append((operand, argument.value))
            elif self.can_be_pending(operand):
                self._use(eqn, i, passes=False)
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
        elif output.updates is None and not _splits(output, self.axis):
            self.uses.setdefault(output.value, []).append(result)
            self.whole.add(output.value)
        else:
            self.output(output)
            return
        self.through[result] = ()


def _splits(end: Output | Argument, axis: str) -> bool:
    return any(axis in axes for axes in (end.layout or {}).values())


def pending_carries(region: Function, axis: str) -> dict[Value, None]:
    """Return the carries of a loop that may stay pending over the axis in all iterations, such as a sum of pending sums."""
    found: dict[Value, None] = {
        a.value: None for a in carried(region) if a.value.type.dtype in FLOATS and not _splits(a, axis)
    }
    updates = {output.updates: output.value for output in region.outputs}
    while True:
        problem = CutProblem(axis, through=dict.fromkeys(found, ()))
        problem.body(region.body, 1)
        kept = {value: None for value in found if problem.can_be_pending(updates[value.name])}
        if kept == found:
            return found
        found = kept


def _own_sums(eqn: Equation) -> Axes:
    """Return the axes over which the equation itself leaves a sum pending."""
    rule = OPS[eqn.op].layout_rule(eqn)
    if rule.reduction != "sum":
        return ()
    return tuple(axis for dim in rule.reduced for axis in (eqn.layout or {}).get(dim.name, ()))


def cut_problem(function: Function, axis: str) -> CutProblem:
    """Return the problem of one function and axis."""
    problem = CutProblem(axis)
    problem.body(function.body, 1)
    for output in function.outputs:
        problem.output(output)
    return problem


def pending_values(problem: CutProblem, mesh: Mesh) -> set[Value]:
    """Return the values of `problem.through` that stay pending in the cheapest solution.

    Node (value, "made") is on the source's side of the cut if the value is pending when it is computed. Node (value, "kept") is
    on the source's side if no use needs the value complete.
    """
    network = FlowNetwork()
    for value in problem.sources:
        network.arc(SOURCE, (value, "made"), INFINITE)
    for value in (*problem.sources, *problem.through):
        bytes = (2 if value in problem.whole else 1) * value.type.local_bytes(mesh)
        bytes *= TOO_NARROW if value in problem.narrow else 1
        cost = problem.times.get(value, 1) * (bytes + ONE_MORE_SUM)
        network.arc((value, "made"), (value, "kept"), cost)
    for value, users in problem.uses.items():
        for user in users:
            network.arc((value, "kept"), (user, "made"), INFINITE)
            network.arc((user, "made"), (value, "made"), INFINITE)
    for one, other in problem.linked:
        network.arc((one, "made"), (other, "made"), INFINITE)
        network.arc((other, "made"), (one, "made"), INFINITE)
    for start, value in problem.starts:
        if problem.can_be_pending(start):
            network.arc((start, "kept"), (value, "made"), INFINITE)
    for value in problem.needed:
        network.arc((value, "kept"), SINK, INFINITE)
    side = network.source_side()
    return {value for value in problem.through if (value, "made") in side}
