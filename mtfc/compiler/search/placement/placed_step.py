"""Which operators a step's time, bytes and memory come from, so that they add up to those of the whole.

Time is that of one longest path through the timeline: each task on it begins when the one before it ends, which it needs or which
runs before it on its device. So the path takes as long as the step, and every task of it belongs to an operator: it computes
there, or on a port it communicates, and that is waited for. What is sent counts for the operator that takes it, or that gives it
back in the backward pass; gradients of shared parameters for the first of their users. Memory is that of the device that holds
the most.


A step under a strategy as `mtfc simulate` shows it, read off the task graph and the timeline that the search compares by."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import attrs
import numpy as np

from mtfc.compiler.cost.step_time import Event
from mtfc.compiler.diagnostics import Span
from mtfc.compiler.ir.core import Stage
from mtfc.compiler.search.placement.operators.operator_graph import Operator
from mtfc.compiler.search.placement.operators.operator_parts import OperatorParts
from mtfc.compiler.search.placement.part_costs import peak_seconds
from mtfc.compiler.search.placement.simulator.evaluation import EvaluatedStrategy, SimulatedGraph
from mtfc.compiler.search.placement.task_graph import (
    BlockKind,
    BlockName,
    ParameterBundle,
    StrategyTasks,
    ValueUse,
)
from mtfc.compiler.search.placement.task_graph_builder import Array


@attrs.frozen
class Attribution:
    """Of one operator: seconds on the path, bytes that are sent among devices, and bytes held on one."""

    compute: float = 0.0
    exposed: float = 0.0
    sent: int = 0
    memory: int = 0

    @property
    def time(self) -> float:
        return self.compute + self.exposed

    def __add__(self, other: Attribution) -> Attribution:
        return Attribution(
            self.compute + other.compute,
            self.exposed + other.exposed,
            self.sent + other.sent,
            self.memory + other.memory,
        )


def attributions(tasks: StrategyTasks, found: EvaluatedStrategy) -> dict[int | None, Attribution]:
    """By number of the operator; None for the norm of all gradients. Only where the timeline is known."""
    graph, total = found.base.graph, dict[int | None, Attribution]()
    device = int(np.argmax(found.held))
    seconds = np.zeros((len(tasks.names), 2))
    for task in longest_path(found.base):
        block = np.searchsorted(graph.offsets, task, side="right") - 1
        seconds[block, int(graph.device[task] >= tasks.links.count)] += graph.seconds[task]
    for number, name in enumerate(tasks.names):
        compute, exposed = map(float, seconds[number])
        size = int(graph.sent[number]), int(graph.held[number, device])
        operator = operator_of(name, tasks)
        total[operator] = total.get(operator, Attribution()) + Attribution(compute, exposed, *size)
    return total


def span_of(operator: Operator) -> Span | None:
    """The place that what an operator does counts for: that of its last equation."""
    spans = [eqn.span for step in operator.steps for eqn in step.equations if eqn.span is not None]
    return spans[-1] if spans else None


def operator_of(name: BlockName, tasks: StrategyTasks) -> int | None:
    """The number of the operator that a block counts for."""
    if name.kind in ("read", "norm", "known"):
        return None
    if isinstance(name.of, ValueUse):
        return tasks.number[name.of.user]
    return tasks.number[name.of.steps[0] if isinstance(name.of, ParameterBundle) else name.of]


def longest_path(base: SimulatedGraph) -> Iterator[int]:
    """Tasks, the last one first, each of which begins when the next one ends; the earliest begins at 0."""
    graph, times = base.graph, base.timeline
    task = int(np.argmax(times.end)) if len(times.end) else None
    while task is not None:
        yield task
        task = _before(task, base, float(times.end[task] - graph.seconds[task]))


def _before(task: int, base: SimulatedGraph, begin: float) -> int | None:
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


STAGES: Mapping[BlockKind, Stage] = {
    "taken": "forward",
    "step": "forward",
    "summed": "forward",
    "returned": "backward",
    "collected": "backward",
    "back": "backward",
    "added": "backward",
    "read": "update",
    "norm": "update",
    "known": "update",
    "stored": "forward",
    "updated": "update",
}


@attrs.frozen(eq=False)
class PlacedStep:
    """Where the time, the bytes and the memory of a step go.

    seconds: of the step. lines: of the longest path, which takes as long. computing, held [device]: seconds that it computes, and
    bytes that it holds. memory: what the bytes are of the device that holds the most. communicating: seconds in which anything is
    sent. busy: of each lane the seconds of the port that is used most. ideal: what the FLOPs of all parts would take at the peak
    rates, if each device had as many.
    """

    seconds: float
    lines: Mapping[Span | None, Attribution]
    computing: Array
    held: Array
    memory: Mapping[str, int]
    communicating: float
    busy: Mapping[str, float]
    ideal: float

    @property
    def total(self) -> Attribution:
        return sum(self.lines.values(), start=Attribution())

    @property
    def utilisation(self) -> float:
        return self.ideal / self.seconds if self.seconds else 0.0


def placed_step(tasks: StrategyTasks, found: EvaluatedStrategy) -> PlacedStep:
    """The step of a strategy whose timeline is known."""
    graph, end, count = found.base.graph, found.base.timeline.end, tasks.links.count
    working = np.bincount(graph.device, graph.seconds, tasks.links.idle)
    is_sent = (graph.device >= count) & (graph.seconds > 0)
    busy: dict[str, float] = {}
    for port, seconds in zip(tasks.links.ports, working[count:], strict=False):
        busy[port.lane] = max(busy.get(port.lane, 0.0), float(seconds))
    return PlacedStep(
        seconds=found.seconds,
        lines=_lines(tasks, found),
        computing=working[:count],
        held=found.held,
        memory=_memory(tasks, found),
        communicating=_covered(end[is_sent] - graph.seconds[is_sent], end[is_sent]),
        busy={lane: seconds for lane, seconds in busy.items() if seconds},
        ideal=_ideal(tasks, found) / count,
    )


def _lines(tasks: StrategyTasks, found: EvaluatedStrategy) -> dict[Span | None, Attribution]:
    lines: dict[Span | None, Attribution] = {}
    for operator, blame in attributions(tasks, found).items():
        span = None if operator is None else span_of(tasks.graph.operators[operator])
        lines[span] = lines.get(span, Attribution()) + blame
    return lines


def _memory(tasks: StrategyTasks, found: EvaluatedStrategy) -> dict[str, int]:
    """As `cost/memory.py` names its parts. Of each parameter there is a copy; of one that is trained, its gradient and the
    optimizer's state.
    """
    device = int(np.argmax(found.held))
    kinds, own = np.array([name.kind for name in tasks.names]), found.base.graph.held[:, device]
    copies, stored = int(own[kinds == "updated"].sum()), int(own[kinds == "stored"].sum())
    size, total = copies // (2 + tasks.states), int(found.held[device])
    return {
        "parameters": size + stored,
        "gradients": size,
        "optimizer": tasks.states * size,
        "activations_peak": total - copies - stored,
        "total": total,
    }


def _covered(begin: Array, end: Array) -> float:
    """How long at least one of some intervals lasts."""
    order = np.argsort(begin)
    last = np.maximum.accumulate(end[order])
    before = np.concatenate([[0.0], last[:-1]])
    return float((last - np.maximum(begin[order], before)).sum()) if len(begin) else 0.0


def _ideal(tasks: StrategyTasks, found: EvaluatedStrategy) -> float:
    """Seconds of the FLOPs of all parts at the device's peak rates."""
    known: dict[object, float] = {}
    total = 0.0
    for operator, chosen in zip(tasks.graph.operators, found.strategy, strict=True):
        parts = OperatorParts(operator, chosen.degrees)
        for step in operator.steps:
            key = tasks.flow.signatures[step], operator.dims, chosen.degrees
            if key not in known:
                known[key] = peak_seconds(tasks.flow, tasks.forms.device, step, parts)
            total += parts.count * known[key]
    return total


def tracks(tasks: StrategyTasks) -> list[str]:
    """The names of all devices and ports, by number."""
    return [f"device {i}" for i in range(tasks.links.count)] + [port.name for port in tasks.links.ports]


def events(tasks: StrategyTasks, found: EvaluatedStrategy) -> Iterator[Event]:
    """What happens when, in the order of blocks."""
    graph, end, devices = found.base.graph, found.base.timeline.end, tracks(tasks)
    for number, name in enumerate(tasks.names):
        operator = operator_of(name, tasks)
        span = None if operator is None else span_of(tasks.graph.operators[operator])
        for task in range(graph.offsets[number], graph.offsets[number + 1]):
            if graph.seconds[task] > 0:
                times = float(end[task] - graph.seconds[task]), float(end[task])
                device = devices[graph.device[task]]
                yield Event(device, _text(name, tasks), *times, span, STAGES[name.kind], {"task": name.kind})


def _text(name: BlockName, tasks: StrategyTasks) -> str:
    """What a block is of: an operator, a value on its way, or parameters."""
    if isinstance(name.of, ValueUse):
        maker, user = (tasks.graph.operator_of[step].name for step in (name.of.maker, name.of.user))
        return f"{maker} to {user}" if name.kind == "taken" else f"{user} to {maker}"
    if isinstance(name.of, ParameterBundle):
        return "all gradients" if name.kind == "norm" else ", ".join(v.name for v in name.of.parameters)
    return tasks.graph.operator_of[name.of].name if name.of is not None else name.kind
