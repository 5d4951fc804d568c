"""Which operators a step's time, bytes and memory come from, so that they add up to those of the whole.

Time is that of one longest path through the timeline: each task on it begins when the one before it ends, which it needs or which
runs before it on its device. So the path takes as long as the step, and every task of it belongs to an operator: it computes
there, or on a port it communicates, and that is waited for. What is sent counts for the operator that takes it, or that gives it
back in the backward pass; gradients of shared parameters for the first of their users. Memory is that of the device that holds
the most.
"""

from __future__ import annotations

from collections.abc import Iterator

import attrs
import numpy as np

from mtfc.compiler.diagnostics import Span
from mtfc.compiler.search.placement.graph.block_names import Bundle, Name, Use
from mtfc.compiler.search.placement.graph.strategy_tasks import Tasks
from mtfc.compiler.search.placement.operators.operator_graph import Operator
from mtfc.compiler.search.placement.simulator.evaluation import Base, Evaluated


@attrs.frozen
class Blame:
    """Of one operator: seconds on the path, bytes that are sent among devices, and bytes held on one."""

    compute: float = 0.0
    exposed: float = 0.0
    sent: int = 0
    memory: int = 0

    @property
    def time(self) -> float:
        return self.compute + self.exposed

    def __add__(self, other: Blame) -> Blame:
        return Blame(
            self.compute + other.compute,
            self.exposed + other.exposed,
            self.sent + other.sent,
            self.memory + other.memory,
        )


def blames(tasks: Tasks, found: Evaluated) -> dict[int | None, Blame]:
    """By number of the operator; None for the norm of all gradients. Only where the timeline is known."""
    graph, total = found.base.graph, dict[int | None, Blame]()
    device = int(np.argmax(found.held))
    seconds = np.zeros((len(tasks.names), 2))
    for task in longest_path(found.base):
        block = np.searchsorted(graph.offsets, task, side="right") - 1
        seconds[block, int(graph.device[task] >= tasks.links.count)] += graph.seconds[task]
    for number, name in enumerate(tasks.names):
        compute, exposed = map(float, seconds[number])
        size = int(graph.sent[number]), int(graph.held[number, device])
        operator = operator_of(name, tasks)
        total[operator] = total.get(operator, Blame()) + Blame(compute, exposed, *size)
    return total


def span_of(operator: Operator) -> Span | None:
    """The place that what an operator does counts for: that of its last equation."""
    spans = [eqn.span for step in operator.steps for eqn in step.equations if eqn.span is not None]
    return spans[-1] if spans else None


def operator_of(name: Name, tasks: Tasks) -> int | None:
    """The number of the operator that a block counts for."""
    if name.kind in ("read", "norm", "known"):
        return None
    if isinstance(name.of, Use):
        return tasks.number[name.of.user]
    return tasks.number[name.of.steps[0] if isinstance(name.of, Bundle) else name.of]


def longest_path(base: Base) -> Iterator[int]:
    """Tasks, the last one first, each of which begins when the next one ends; the earliest begins at 0."""
    graph, times = base.graph, base.timeline
    task = int(np.argmax(times.end)) if len(times.end) else None
    while task is not None:
        yield task
        task = _before(task, base, float(times.end[task] - graph.seconds[task]))


def _before(task: int, base: Base, begin: float) -> int | None:
    """What ends when a task begins, of what it waits for or what its device does before."""
    graph, times = base.graph, base.timeline
    needed = graph.before.other[graph.before.first[task] : graph.before.first[task + 1]]
    ended = needed[times.end[needed] == begin]
    if len(ended):
        return int(ended.min())
    device = graph.device[task]
    queue = times.order[graph.device[times.order] == device]
    place = int(np.flatnonzero(queue == task)[0])
    return int(queue[place - 1]) if place and times.end[queue[place - 1]] == begin else None
