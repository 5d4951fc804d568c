"""Which blocks a task graph has, and which operators decide each (FlexFlow, section 5.1).

- taken: what the parts of a step take of a value, a transfer for each pair of parts on different devices that share some of it
- step: the forward pass of a step, a task for each part
- summed: the terms of a pending value, added up among those that hold it
- returned, collected, back: the same for the cotangents, from the users to the makers
- added: gradients of parameters, added up among the devices that hold the same part of one
- read, norm, known: where gradients are clipped, all have been read; their norm, added up among all devices that have some;
  nothing is updated before it is known
- updated: the updates on each device
- stored: parameters that are not trained, on each device that uses them; no tasks, only bytes
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cached_property
from typing import Any, Literal

import attrs

from mtfc.compiler.ir.core import Value
from mtfc.compiler.search.placement.operators.cotangent_flow import Flow
from mtfc.compiler.search.placement.operators.operator_graph import OperatorGraph, Step
from mtfc.compiler.search.placement.operators.strategy import users

Kind = Literal[
    "taken", "step", "summed", "returned", "collected", "back", "added", "read", "norm", "known", "updated",
    "stored",
]  # fmt: skip


@attrs.frozen
class Use:
    """A value that a step makes and another uses."""

    value: Value
    maker: Step
    user: Step


@attrs.frozen(eq=False)
class Bundle:
    """Parameters that the same operators use: their gradients are complete at the same time."""

    parameters: tuple[Value, ...]
    steps: tuple[Step, ...]

    @cached_property
    def places(self) -> list[tuple[int | None, ...]]:
        """Of each step: which of its arguments the parameters are, None for those that it does not use."""
        found = [{value: i for i, value in enumerate(step.arguments)} for step in self.steps]
        return [tuple(each.get(value) for value in self.parameters) for each in found]


@attrs.frozen
class Name:
    """Which block: its kind, and the step, the value of a step, the use or the bundle that it belongs to."""

    kind: Kind
    of: Any
    value: Value | None = None


READ, KNOWN = Name("read", None), Name("known", None)
"""One task each, which ends when all gradients have been read, or their norm is known."""


def block_names(flow: Flow, clips: bool) -> Iterator[Name]:
    """All blocks, in an order in which every edge goes upward."""
    graph = flow.graph
    uses: dict[Step, list[Use]] = {step: [] for step in graph.steps}
    for step in graph.steps:
        for value in step.inputs:
            use = Use(value, graph.makers[value], step)
            uses[use.maker].append(use)
            yield Name("taken", use)
        yield Name("step", step)
        yield from (Name("summed", step, value) for value in step.outputs if value in step.pending)
    for step in reversed(graph.steps):
        if not flow.gradients[step]:
            continue
        for use in uses[step]:
            if flow.returns(use.value, use.user):
                yield Name("returned", use)
        for value in step.outputs:
            if value in step.pending and value in flow.seeds:
                yield Name("collected", step, value)
        yield Name("back", step)
    bundles = list(_bundles(flow))
    yield from (Name("added", bundle) for bundle in bundles)
    if clips and bundles:
        yield READ
        yield Name("norm", _all(bundles))
        yield KNOWN
    yield from (Name("updated", bundle) for bundle in bundles)
    yield from (Name("stored", bundle) for bundle in _bundles(flow, trained=False))


def _bundles(flow: Flow, trained: bool = True) -> Iterator[Bundle]:
    """Of the parameters that some step gives a gradient to, or of the others."""
    graph: OperatorGraph = flow.graph
    together: dict[tuple[int, ...], tuple[list[Value], dict[Step, None]]] = {}
    number = {step: i for i, operator in enumerate(graph.operators) for step in operator.steps}
    for parameter, steps in users(graph).items():
        own = [step for step in steps if parameter in flow.gradients[step]]
        if trained != bool(own):
            continue
        own = own or steps
        key = tuple(sorted({number[step] for step in own}))
        parameters, all = together.setdefault(key, ([], {}))
        parameters.append(parameter)
        all.update(dict.fromkeys(own))
    for key, (parameters, all) in together.items():
        if key:
            yield Bundle(tuple(parameters), tuple(all))


def _all(bundles: Sequence[Bundle]) -> Bundle:
    parameters = tuple(value for bundle in bundles for value in bundle.parameters)
    return Bundle(parameters, tuple({step: None for bundle in bundles for step in bundle.steps}))


def touching(names: Sequence[Name], number: dict[Step, int]) -> list[list[int]]:
    """For each operator the blocks that its configuration decides."""
    found: list[list[int]] = [[] for _ in range(max(number.values(), default=-1) + 1)]
    for i, name in enumerate(names):
        if isinstance(name.of, Use):
            steps: tuple[Step, ...] = (name.of.maker, name.of.user)
        elif isinstance(name.of, Bundle):
            steps = name.of.steps
        else:
            steps = (name.of,) if name.of is not None else ()
        for operator in {number[step] for step in steps}:
            found[operator].append(i)
    return found
