"""The step of a placement as `mtfc simulate` and `--why-not` show it: time, bytes and memory, by operator and by source line.

Time is attributed along one longest path through the timeline. Each task on it starts when the task before it ends, which it
needs or which precedes it on its device. So the path takes as long as the step. A task counts as compute on a device, as
exposed communication on a port. A transfer counts for the operator that receives it, or that returns it in the backward pass;
gradients of shared parameters count for the first user. Memory is that of the device whose memory is the fullest.
"""

from collections.abc import Iterator, Mapping, Sequence

import attrs

from mtfc.compiler.cost.device_models import fusion_of
from mtfc.compiler.cost.effects.roofline import work_in
from mtfc.compiler.cost.hardware import Device, DeviceGraph
from mtfc.compiler.cost.step_time import Event, Seconds, TimedStep
from mtfc.compiler.diagnostics import Span
from mtfc.compiler.ir.core import Stage
from mtfc.compiler.records import Summed, sums
from mtfc.placements.operators.cotangent_flow import CotangentFlow
from mtfc.placements.operators.operator_graph import Operator, OperatorStep
from mtfc.placements.operators.operator_parts import OperatorParts
from mtfc.placements.simulator.evaluation import EvaluatedStrategy, SimulatedGraph
from mtfc.placements.strategy_tasks import (
    ONE,
    BlockKind,
    BlockName,
    ParameterBundle,
    StrategyTasks,
    ValueUse,
    middle,
)
from mtfc.placements.task_graph_builder import Array


@attrs.frozen
class Attribution(Summed):
    """The part of a step that an operator accounts for: seconds on the path, bytes sent between devices, bytes on one device."""

    compute: float = 0.0
    exposed: float = 0.0
    sent: int = 0
    memory: int = 0

    @property
    def time(self) -> float:
        return self.compute + self.exposed


def attributions(tasks: StrategyTasks, found: EvaluatedStrategy) -> dict[int | None, Attribution]:
    """Attribute a step to operators, by number; None stands for the norm of all gradients. Requires a known timeline."""
    graph, total = found.base.graph, dict[int | None, Attribution]()
    device = fullest(tasks, found)
    seconds = [[0.0, 0.0] for _ in tasks.names]
    for task in longest_path(found.base):
        block = int(graph.offsets.searchsorted(task, side="right")) - 1
        seconds[block][int(graph.device[task] >= tasks.links.count)] += float(graph.seconds[task])
    for number, name in enumerate(tasks.names):
        compute, exposed = seconds[number]
        size = int(graph.sent[number]), int(graph.memory[number, device])
        operator = operator_of(name, tasks)
        total[operator] = total.get(operator, Attribution()) + Attribution(compute, exposed, *size)
    return total


def fullest(tasks: StrategyTasks, found: EvaluatedStrategy) -> int:
    """Return the device whose memory is the fullest."""
    return int((found.memory / tasks.room).argmax())


def span_of(operator: Operator) -> Span | None:
    """Return the source line that an operator counts for: the line of its last equation."""
    spans = [eqn.span for step in operator.steps for eqn in step.equations if eqn.span is not None]
    return spans[-1] if spans else None


def operator_of(name: BlockName, tasks: StrategyTasks) -> int | None:
    """Return the number of the operator that a block counts for."""
    if name.kind in ("read", "norm", "known"):
        return None
    return tasks.number[name.steps[-1 if isinstance(name.of, ValueUse) else 0]]


def longest_path(base: SimulatedGraph) -> Iterator[int]:
    """Yield tasks from the last to the first, each of which starts when the next one ends. The first starts at 0."""
    graph, times = base.graph, base.timeline
    task = int(times.end.argmax()) if len(times.end) else None
    while task is not None:
        yield task
        task = _before(task, base, float(times.end[task] - graph.seconds[task]))


def _before(task: int, base: SimulatedGraph, begin: float) -> int | None:
    """Return the task that ends when a task begins, among its predecessors or before it on its device."""
    graph, times = base.graph, base.timeline
    sources, targets = graph.ends
    needed = sources[targets == task]
    ended = needed[times.end[needed] == begin]
    if len(ended):
        return int(ended.min())
    device = graph.device[task]
    queue = times.order[graph.device[times.order] == device]
    place = int((queue == task).nonzero()[0][0])
    return int(queue[place - 1]) if place and times.end[queue[place - 1]] == begin else None


KINDS_OF: Mapping[Stage, tuple[BlockKind, ...]] = {
    "forward": ("taken", "step", "summed", "stored"),
    "backward": ("returned", "collected", "back", "added"),
    "update": ("read", "norm", "known", "updated"),
}
STAGES = {kind: stage for stage, kinds in KINDS_OF.items() for kind in kinds}


@attrs.frozen(eq=False)
class PlacedStep(TimedStep[Attribution]):
    """The time, bytes and memory of a step.

    lines: attribution by source line, which adds up to the step. computing, device_memory [device]: seconds
    of compute, and bytes. fullest: the device whose memory is the fullest, and memory: the kinds of its bytes. communicating:
    seconds in which anything is sent. busy: for each lane, the seconds of its busiest port.
    """

    computing: Array
    device_memory: Array
    fullest: int
    memory: Mapping[str, int]
    communicating: float
    busy: Mapping[str, float]

    @property
    def total(self) -> Attribution:
        return sum(self.lines.values(), start=Attribution())

    @property
    def parts(self) -> Seconds:
        """The seconds of the whole step, as those of other steps."""
        return Seconds(self.total.compute, self.communicating, self.total.exposed)


def placed_step(tasks: StrategyTasks, found: EvaluatedStrategy) -> PlacedStep:
    """Return the step of a strategy whose timeline is known."""
    import numpy as np

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
        device_memory=found.memory,
        fullest=fullest(tasks, found),
        memory=_memory(tasks, found),
        communicating=_covered(end[is_sent] - graph.seconds[is_sent], end[is_sent]),
        busy={lane: seconds for lane, seconds in busy.items() if seconds},
        ideal=_ideal(tasks, found) / count,
    )


def _lines(tasks: StrategyTasks, found: EvaluatedStrategy) -> dict[Span | None, Attribution]:
    """Return the part of the step of each source line."""
    operators = tasks.graph.operators
    found_by = attributions(tasks, found).items()
    return sums((None if number is None else span_of(operators[number]), each) for number, each in found_by)


def _memory(tasks: StrategyTasks, found: EvaluatedStrategy) -> dict[str, int]:
    """Return the kinds of memory of `cost/effects/memory.py`. A trained parameter also has a gradient and optimizer states."""
    device = fullest(tasks, found)
    own = list(zip(tasks.names, found.base.graph.memory[:, device].tolist(), strict=True))
    copies, stored = (int(sum(n for name, n in own if name.kind == kind)) for kind in ("updated", "stored"))
    size, total = copies // (2 + tasks.states), int(found.memory[device])
    return {
        "parameters": size + stored,
        "gradients": size,
        "optimizer": tasks.states * size,
        "activations_peak": total - copies - stored,
        "total": total,
    }


def _covered(begin: Array, end: Array) -> float:
    """Return the time during which at least one of some intervals lasts."""
    import numpy as np

    order = np.argsort(begin)
    last = np.maximum.accumulate(end[order])
    before = np.concatenate([[0.0], last[:-1]])
    return float((last - np.maximum(begin[order], before)).sum()) if len(begin) else 0.0


def _ideal(tasks: StrategyTasks, found: EvaluatedStrategy) -> float:
    """Return the seconds of the FLOPs of all parts on one device with the mean peak rates of the devices."""
    import numpy as np

    counts = np.bincount(tasks.kind, minlength=len(tasks.forms.devices))
    shares = list(zip(tasks.forms.devices, (counts / counts.sum()).tolist(), strict=True))
    known: dict[object, float] = {}
    total = 0.0
    for operator, chosen in zip(tasks.graph.operators, found.strategy, strict=True):
        parts = OperatorParts(operator, chosen.degrees)
        for step in operator.steps:
            key = tasks.flow.signatures[step], operator.dims, chosen.degrees
            if key not in known:
                known[key] = _peak_seconds(tasks.flow, shares, step, parts)
            total += parts.count * known[key]
    return total


def _peak_seconds(
    flow: CotangentFlow, shares: Sequence[tuple[Device, float]], step: OperatorStep, parts: OperatorParts
) -> float:
    """Return the seconds of the FLOPs of both passes of the middle part, at the mean peak rate of devices with some shares."""
    function = flow.local(step, parts, middle(parts.degrees)).function()
    done = work_in(function, fusion_of(function, ONE, shares[0][0]))
    return sum(
        each.flops / _mean_rate(shares, (eqn.operands or eqn.results)[0].type.dtype)
        for eqn, each in zip(function.body, done, strict=True)
    )


def _mean_rate(shares: Sequence[tuple[Device, float]], dtype: str) -> float:
    return sum(share * device.rate(dtype).peak for device, share in shares)


def device_names(tasks: StrategyTasks) -> list[str]:
    """Return the names of the devices: their numbers, or in a device graph the names of their kinds."""
    machine, devices = tasks.machine, range(tasks.links.count)
    return [machine.called(i) if isinstance(machine, DeviceGraph) else str(i) for i in devices]


def tracks(tasks: StrategyTasks) -> list[str]:
    """Return the names of all devices and ports, by number."""
    return [*(f"device {name}" for name in device_names(tasks)), *(port.name for port in tasks.links.ports)]


def events(tasks: StrategyTasks, found: EvaluatedStrategy) -> Iterator[Event]:
    """Yield the tasks of a step that take time, in the order of blocks."""
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
    """Describe a block: an operator, a value in transfer, or parameters."""
    if isinstance(name.of, ValueUse):
        maker, user = (tasks.graph.operator_of[step].name for step in name.steps)
        return f"{maker} to {user}" if name.kind == "taken" else f"{user} to {maker}"
    if isinstance(name.of, ParameterBundle):
        return "all gradients" if name.kind == "norm" else ", ".join(v.name for v in name.of.parameters)
    return tasks.graph.operator_of[name.of].name if name.of is not None else name.kind
