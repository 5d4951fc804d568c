"""The time of a step on several meshes: segments as tasks on their meshes, and values that travel as tasks between meshes.

A mesh is one device of the event simulator: all its processors do the same, and its collectives are inside of its segments. A
value travels on the innermost link that connects both meshes. All devices of a mesh send and receive at once, each its share.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import inf

import attrs

from mtfc.compiler.cost.event_simulator import makespan, simulate
from mtfc.compiler.cost.hardware import Hardware
from mtfc.compiler.cost.step_time import Event, Lines, Seconds, StepTime, step_time
from mtfc.compiler.cost.task_graph import Id, Task, TaskGraph
from mtfc.compiler.cost.topology import Lane, lanes
from mtfc.compiler.diagnostics import Span
from mtfc.compiler.ir.types import Mesh
from mtfc.meshes.divided_cost import DividedCost, Travel, divided_cost
from mtfc.meshes.divided_program import DividedProgram


@attrs.frozen
class TravelTime:
    """A value that travels, the name of the link that it takes, and its seconds there."""

    travel: Travel
    link: str
    seconds: float


@attrs.frozen
class DividedStep:
    """A simulated step. mesh_seconds: the seconds of the segments of each mesh. lines: the sums over all meshes."""

    cost: DividedCost
    seconds: float
    mesh_seconds: tuple[float, ...]
    travels: tuple[TravelTime, ...]
    lines: Lines
    ideal: float
    dtypes: frozenset[str]
    events: tuple[Event, ...]

    @property
    def utilisation(self) -> float:
        return self.ideal / self.seconds if self.seconds else 0.0


def divided_step(divided: DividedProgram, hardware: Hardware) -> DividedStep:
    """Simulate a step on a machine, whose first devices belong to the first mesh."""
    cost = divided_cost(divided)
    function = divided.function("step" if cost.trains else "forward")
    steps = [step_time(each.function, divided.meshes[each.part], hardware) for each in function.segments]
    times = [_travel_time(each, divided.meshes, hardware) for each in cost.travels]
    names = [divided.meshes[each.part].name for each in function.segments]
    graph = TaskGraph(_tasks(names, steps, times))
    timeline = simulate(graph)
    lines: dict[Span | None, Seconds] = {}
    for step in steps:
        for span, seconds in step.lines.items():
            lines[span] = lines.get(span, Seconds()) + seconds
    for each in times:
        span = each.travel.span
        lines[span] = lines.get(span, Seconds()) + Seconds(communication=each.seconds)
    busy = [
        sum(step.seconds for step, each in zip(steps, function.segments, strict=True) if each.part == n)
        for n in range(len(divided.parts))
    ]
    sizes = [divided.meshes[each.part].devices for each in function.segments]
    work = sum(step.ideal * size for step, size in zip(steps, sizes, strict=True))
    events = [
        event
        for id, slot in sorted(timeline.items())
        for event in _events(id, slot.start, graph.tasks[id], names, steps, times)
    ]
    return DividedStep(
        cost,
        makespan(timeline),
        tuple(busy),
        tuple(times),
        lines,
        work / sum(mesh.devices for mesh in divided.meshes),
        frozenset[str]().union(*(step.dtypes for step in steps)),
        tuple(events),
    )


def _tasks(names: Sequence[str], steps: Sequence[StepTime], times: Sequence[TravelTime]) -> Iterator[Task]:
    """Yield the tasks of segments, and before each one the travels that it waits for. The id of a travel has two numbers."""
    last: dict[str, Id] = {}
    copies: dict[tuple[str, int], Id] = {}
    for number, step in enumerate(steps):
        after = [last[names[number]]] if names[number] in last else []
        for order, each in enumerate(times):
            if each.travel.reader == number:
                id = (number, order)
                maker = () if each.travel.maker is None else ((each.travel.maker, len(times)),)
                yield Task(id, each.link, each.seconds, maker)
                copies[each.travel.value, each.travel.target.part] = id
                after.append(id)
        last[names[number]] = (number, len(times))
        yield Task((number, len(times)), names[number], step.seconds, tuple(dict.fromkeys(after)))
    for order, each in enumerate(times):
        if each.travel.reader is None:
            maker = () if each.travel.maker is None else ((each.travel.maker, len(times)),)
            yield Task((len(steps), order), each.link, each.seconds, maker)


def _events(
    id: Id,
    start: float,
    task: Task,
    names: Sequence[str],
    steps: Sequence[StepTime],
    times: Sequence[TravelTime],
) -> Iterator[Event]:
    number, order = id
    if order < len(times):
        travel = times[order].travel
        detail: dict[str, float | str] = {"bytes": travel.bytes}
        yield Event(task.device, travel.value, start, start + task.seconds, travel.span, "forward", detail)
        return
    for event in steps[number].events:
        device = f"{names[number]}: {event.device}"
        yield attrs.evolve(event, device=device, start=event.start + start, end=event.end + start)


# Links


def _travel_time(travel: Travel, meshes: Sequence[Mesh], hardware: Hardware) -> TravelTime:
    """Return the time of a value on the link between two meshes: that of the device which sends or receives most."""
    source, target = meshes[travel.source.part], meshes[travel.target.part]
    lane = _joining(travel, meshes, hardware)
    name = f"{source.name} -> {target.name}" if source is not target else f"{source.name} (another split)"
    if lane is None:
        return TravelTime(travel, name, 0.0)
    share = max(travel.bytes / target.devices, travel.bytes / source.devices)
    rate = lane.link.rate("permute").at(share) / min(lane.link.shared, max(source.devices, target.devices))
    return TravelTime(travel, name, lane.link.latency + share / rate)


def _joining(travel: Travel, meshes: Sequence[Mesh], hardware: Hardware) -> Lane | None:
    """Return the innermost link that connects all devices of both meshes; None on a machine without links."""
    firsts = [sum(mesh.devices for mesh in meshes[:number]) for number in range(len(meshes))]
    parts = (travel.source.part, travel.target.part)
    first = min(firsts[part] for part in parts)
    last = max(firsts[part] + meshes[part].devices for part in parts) - 1
    found, room = None, 1.0
    for found in lanes(hardware):
        room *= inf if found.size is None else found.size
        if room == inf or first // int(room) == last // int(room):
            return found
    return found
