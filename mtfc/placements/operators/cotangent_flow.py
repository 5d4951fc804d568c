"""Find which values have a cotangent, which parameters get a gradient, and which steps are alike."""

from collections.abc import Mapping
from typing import Any

import attrs

from mtfc.compiler.ir.core import Value
from mtfc.placements.operators.operator_graph import OperatorGraph, OperatorStep
from mtfc.placements.operators.operator_parts import OperatorParts, PartFunction, part_function

Signature = tuple[Any, ...]

IRRELEVANT = ("start", "stream")
"""Attributes that select elements of an argument or a random stream. They change neither sizes nor costs."""


@attrs.frozen(eq=False)
class CotangentFlow:
    """The backward pass of an operator graph.

    seeds: values that have a cotangent. gradients: for each step, the inputs and parameters that it gives a cotangent to.
    signatures: a number for each step; steps with equal numbers differ only in names, in slices of arguments and in random
    streams.
    """

    graph: OperatorGraph
    seeds: set[Value]
    gradients: dict[OperatorStep, frozenset[Value]]
    signatures: dict[OperatorStep, int]

    def returns(self, value: Value, step: OperatorStep) -> bool:
        """Return whether a step sends the cotangent of an input to its maker, which propagates it further."""
        return value in self.gradients[step] and bool(self.gradients[self.graph.makers[value]])

    def local(self, step: OperatorStep, parts: OperatorParts, place: Mapping[str, int]) -> PartFunction:
        """Return one part of a step, with its backward pass, as a function."""
        given = [value for value in step.outputs if value in self.seeds]
        wanted = [value for value in (*step.inputs, *step.arguments) if value in self.graph.active]
        return part_function(step, parts.needs[step], place, given, wanted)


def cotangent_flow(graph: OperatorGraph) -> CotangentFlow:
    """Propagate cotangents from the loss backwards. A value has a cotangent if a step that uses the value returns one."""
    flow = CotangentFlow(graph, {graph.loss} if graph.loss is not None else set(), {}, {})
    known: dict[Signature, tuple[int, frozenset[int]]] = {}
    for step in reversed(graph.steps):
        operands = (*step.inputs, *step.arguments)
        own = _signature(step, graph.active, flow.seeds)
        if own not in known:
            parts = OperatorParts(graph.operator_of[step], ())
            gradients = flow.local(step, parts, {}).gradients
            known[own] = (len(known), frozenset(i for i, value in enumerate(operands) if value in gradients))
        flow.signatures[step], positions = known[own]
        flow.gradients[step] = frozenset(operands[i] for i in positions)
        flow.seeds.update(flow.gradients[step] & set(step.inputs))
    return flow


def _signature(step: OperatorStep, active: frozenset[Value], seeds: set[Value]) -> Signature:
    """Return a key that is equal for steps that compute the same: types, equations, and which values need cotangents.

    active: the values that have cotangents. seeds: the values whose cotangents are given. Values count by their order in the
    step.
    """
    number: dict[Value, int] = {}
    for value in (*step.inputs, *step.arguments):
        number[value] = len(number)
    given = tuple((value.type, value in active) for value in number)
    equations = []
    received = set(step.inputs)
    for eqn in step.equations:
        operands = tuple(number[value] for value in eqn.operands)
        for value in eqn.results:
            number[value] = len(number)
        omitted = () if received & set(eqn.operands) else IRRELEVANT
        received.update(eqn.results if not omitted else ())
        attributes = tuple((key, value) for key, value in eqn.attrs.items() if key not in omitted)
        equations.append((eqn.op, operands, attributes, tuple(value.type for value in eqn.results)))
    outputs = tuple((number[value], value in step.pending, value in seeds) for value in step.outputs)
    return (given, tuple(equations), outputs)
