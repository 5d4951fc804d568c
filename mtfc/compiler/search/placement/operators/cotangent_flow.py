"""How cotangents flow between steps: which values have one, and which parts of the backward pass there are."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import attrs

from mtfc.compiler.ir.core import Value
from mtfc.compiler.search.placement.operators.operator_graph import OperatorGraph, Step
from mtfc.compiler.search.placement.operators.operator_parts import Local, localize
from mtfc.compiler.search.placement.operators.strategy import Parts

Signature = tuple[Any, ...]

IRRELEVANT = ("start", "stream")
"""Attributes that say which elements an equation takes of arguments or draws, and not how many."""


@attrs.frozen(eq=False)
class Flow:
    """The backward pass of a graph: `seeds` are values with a cotangent, `gradients` the inputs and parameters that each step
    gives one to, `signatures` are numbers, equal for steps that differ in names, slices of arguments and numbers drawn alone.
    """

    graph: OperatorGraph
    seeds: frozenset[Value]
    gradients: Mapping[Step, frozenset[Value]]
    signatures: Mapping[Step, int]

    def returns(self, value: Value, step: Step) -> bool:
        """Whether a step sends an input's cotangent to its maker, which passes it on."""
        return value in self.gradients[step] and bool(self.gradients[self.graph.makers[value]])

    def local(self, step: Step, parts: Parts, place: Mapping[str, int]) -> Local:
        """One part of a step with its gradient."""
        return _local(self.graph, self.seeds, step, parts, place)


def flow(graph: OperatorGraph) -> Flow:
    """From the loss backwards: a value has a cotangent where a step that uses it gives one."""
    seeds = {graph.loss} if graph.loss is not None else set()
    gradients: dict[Step, frozenset[Value]] = {}
    signatures: dict[Step, int] = {}
    known: dict[Signature, tuple[int, frozenset[int]]] = {}
    for step in reversed(graph.steps):
        given = (*step.inputs, *step.arguments)
        own = _signature(step, graph.active, seeds)
        if own not in known:
            parts = Parts(graph.operator_of[step], ())
            found = _local(graph, seeds, step, parts, {}).gradients
            known[own] = (len(known), frozenset(i for i, value in enumerate(given) if value in found))
        signatures[step], positions = known[own]
        gradients[step] = frozenset(given[i] for i in positions)
        seeds |= gradients[step] & set(step.inputs)
    return Flow(graph, frozenset(seeds), gradients, signatures)


def _local(
    graph: OperatorGraph,
    seeds: set[Value] | frozenset[Value],
    step: Step,
    parts: Parts,
    place: Mapping[str, int],
) -> Local:
    given = [value for value in step.outputs if value in seeds]
    wanted = [value for value in (*step.inputs, *step.arguments) if value in graph.active]
    return localize(step, parts.needs[step], place, given, wanted)


def _signature(step: Step, active: frozenset[Value], seeds: set[Value]) -> Signature:
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
