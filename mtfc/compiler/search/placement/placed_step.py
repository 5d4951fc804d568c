"""A step under a strategy as `mtfc simulate` shows it, read off the task graph and the timeline that the search compares by."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import attrs
import numpy as np

from mtfc.compiler.cost.step_time import Event
from mtfc.compiler.diagnostics import Span
from mtfc.compiler.ir.core import Stage
from mtfc.compiler.search.placement.attribution import Blame, blames, operator_of, span_of
from mtfc.compiler.search.placement.graph.block_names import Bundle, Kind, Name, Use
from mtfc.compiler.search.placement.graph.strategy_tasks import Tasks
from mtfc.compiler.search.placement.operators.strategy import Parts
from mtfc.compiler.search.placement.parts.block_arrays import Array
from mtfc.compiler.search.placement.parts.part_costs import ideal
from mtfc.compiler.search.placement.simulator.evaluation import Evaluated

STAGES: Mapping[Kind, Stage] = {
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
    lines: Mapping[Span | None, Blame]
    computing: Array
    held: Array
    memory: Mapping[str, int]
    communicating: float
    busy: Mapping[str, float]
    ideal: float

    @property
    def total(self) -> Blame:
        return sum(self.lines.values(), start=Blame())

    @property
    def utilisation(self) -> float:
        return self.ideal / self.seconds if self.seconds else 0.0


def placed_step(tasks: Tasks, found: Evaluated) -> PlacedStep:
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


def _lines(tasks: Tasks, found: Evaluated) -> dict[Span | None, Blame]:
    lines: dict[Span | None, Blame] = {}
    for operator, blame in blames(tasks, found).items():
        span = None if operator is None else span_of(tasks.graph.operators[operator])
        lines[span] = lines.get(span, Blame()) + blame
    return lines


def _memory(tasks: Tasks, found: Evaluated) -> dict[str, int]:
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


def _ideal(tasks: Tasks, found: Evaluated) -> float:
    """Seconds of the FLOPs of all parts at the device's peak rates."""
    known: dict[object, float] = {}
    total = 0.0
    for operator, chosen in zip(tasks.graph.operators, found.strategy, strict=True):
        parts = Parts(operator, chosen.degrees)
        for step in operator.steps:
            key = tasks.flow.signatures[step], operator.dims, chosen.degrees
            if key not in known:
                known[key] = ideal(tasks.flow, tasks.forms.device, step, parts)
            total += parts.count * known[key]
    return total


def tracks(tasks: Tasks) -> list[str]:
    """The names of all devices and ports, by number."""
    return [f"device {i}" for i in range(tasks.links.count)] + [port.name for port in tasks.links.ports]


def events(tasks: Tasks, found: Evaluated) -> Iterator[Event]:
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


def _text(name: Name, tasks: Tasks) -> str:
    """What a block is of: an operator, a value on its way, or parameters."""
    if isinstance(name.of, Use):
        maker, user = (tasks.graph.operator_of[step].name for step in (name.of.maker, name.of.user))
        return f"{maker} to {user}" if name.kind == "taken" else f"{user} to {maker}"
    if isinstance(name.of, Bundle):
        return "all gradients" if name.kind == "norm" else ", ".join(v.name for v in name.of.parameters)
    return tasks.graph.operator_of[name.of].name if name.of is not None else name.kind
