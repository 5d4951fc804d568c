"""The time of a step on several meshes: segments as tasks on their meshes, and values that travel as tasks between meshes.

A mesh is one device of the event simulator: all its processors do the same, and its collectives are inside of its segments. A
value travels on the innermost link that connects both meshes. All devices of a mesh send and receive at once, each its share.
"""

from collections.abc import Iterator, Mapping, Sequence
from math import inf

import attrs

from mtfc.compiler.cost.event_simulator import Id, Task, TaskGraph, makespan, simulate
from mtfc.compiler.cost.hardware import Hardware
from mtfc.compiler.cost.sizes import whole
from mtfc.compiler.cost.step_time import Event, Lines, Seconds, StepTime, TimedStep, step_time
from mtfc.compiler.cost.topology import Lane, lanes
from mtfc.compiler.diagnostics import Span
from mtfc.compiler.ir.types import Mesh
from mtfc.compiler.records import sums
from mtfc.meshes.multi_mesh_cost import MultiMeshCost, Travel, multi_mesh_cost
from mtfc.meshes.multi_mesh_program import MultiMeshProgram


@attrs.frozen
class TravelTime:
    """A value that travels, the name of the link that it takes, and its seconds there."""

    travel: Travel
    link: str
    seconds: float


@attrs.frozen
class MultiMeshStep(TimedStep[Seconds]):
    """A simulated step. mesh_seconds, mesh_lines: the seconds of the segments of each mesh, and by line. lines: the sums over all
    meshes, with travels.
    """

    cost: MultiMeshCost
    mesh_seconds: tuple[float, ...]
    mesh_lines: tuple[Lines, ...]
    travels: tuple[TravelTime, ...]
    dtypes: frozenset[str]
    events: tuple[Event, ...]

    @property
    def by_mesh(self) -> list[tuple[Mesh, float, int]]:
        """The seconds of the segments of each mesh, and the bytes of one of its devices."""
        seconds = zip(self.cost.meshes, self.mesh_seconds, strict=True)
        return [(each.mesh, busy, whole(each.memory.total)) for each, busy in seconds]

    @property
    def memory(self) -> int:
        """The bytes of the device that needs most."""
        return max(held for _, _, held in self.by_mesh)

    @property
    def mean_seconds(self) -> Mapping[Span | None, float]:
        """The seconds in which devices compute and wait for collectives, by line, in the mean of all devices.

        The rest of the step has no line: a mesh waits for another.
        """
        meshes = [each.mesh for each in self.cost.meshes]
        devices = sum(mesh.devices for mesh in meshes)
        found: dict[Span | None, float] = sums(
            (span, (each.compute + each.exposed) * mesh.devices / devices)
            for mesh, lines in zip(meshes, self.mesh_lines, strict=True)
            for span, each in lines.items()
        )
        return {**found, None: found.get(None, 0.0) + self.seconds - sum(found.values())}


def multi_mesh_step(multi_mesh: MultiMeshProgram, hardware: Hardware) -> MultiMeshStep:
    """Simulate a step on a machine, whose first devices belong to the first mesh."""
    cost = multi_mesh_cost(multi_mesh)
    function = multi_mesh.function("step" if cost.trains else "forward")
    timed = _TimedStep(
        multi_mesh.meshes,
        [
            (each.part, step_time(each.function, multi_mesh.meshes[each.part], hardware))
            for each in function.segments
        ],
        [_travel_time(each, multi_mesh.meshes, hardware) for each in cost.travels],
    )
    graph = TaskGraph(timed.tasks())
    timeline = simulate(graph)
    events = [
        event
        for id, slot in sorted(timeline.items())
        for event in timed.events(id, slot.start, graph.tasks[id])
    ]
    return MultiMeshStep(
        makespan(timeline),
        timed.lines,
        timed.ideal,
        cost,
        timed.busy,
        tuple(timed.mesh_lines(part) for part in range(len(multi_mesh.parts))),
        tuple(timed.travels),
        frozenset[str]().union(*(step.dtypes for _, step in timed.segments)),
        tuple(events),
    )


@attrs.frozen
class _TimedStep:
    """The segments of a step and the values that travel, with their times. segments: the number of the mesh and the time of each.

    The id of a task has two numbers: those of the segment that reads the value and of the travel, or those of the segment and of
    all travels.
    """

    meshes: Sequence[Mesh]
    segments: Sequence[tuple[int, StepTime]]
    travels: Sequence[TravelTime]

    def tasks(self) -> Iterator[Task]:
        """Yield the tasks of segments, and before each one the travels that it waits for."""
        last: dict[int, Id] = {}
        for number, (part, step) in enumerate(self.segments):
            arriving = list(self._travels_to(number))
            yield from arriving
            previous = [last[part]] if part in last else []
            last[part] = self._segment(number)
            awaited = (*previous, *(each.id for each in arriving))
            yield Task(last[part], self.meshes[part].name, step.seconds, awaited)
        yield from self._travels_to(None)

    def _travels_to(self, reader: int | None) -> Iterator[Task]:
        """Yield the tasks of the values that a segment reads, or that the function returns."""
        for order, each in enumerate(self.travels):
            if each.travel.reader == reader:
                maker = each.travel.maker
                waits_for = () if maker is None else (self._segment(maker),)
                id = (len(self.segments) if reader is None else reader, order)
                yield Task(id, each.link, each.seconds, waits_for)

    def _segment(self, number: int) -> Id:
        return number, len(self.travels)

    def events(self, id: Id, start: float, task: Task) -> Iterator[Event]:
        """Yield the events of a task that starts at a time."""
        number, order = id
        if order < len(self.travels):
            travel = self.travels[order].travel
            detail: dict[str, float | str] = {"bytes": travel.bytes}
            end = start + task.seconds
            yield Event(task.device, travel.value, start, end, travel.span, "forward", detail)
            return
        for event in self.segments[number][1].events:
            device = f"{task.device}: {event.device}"
            yield attrs.evolve(event, device=device, start=event.start + start, end=event.end + start)

    @property
    def lines(self) -> dict[Span | None, Seconds]:
        """The seconds of each line of the source, in all segments and travels."""
        entries = [entry for _, step in self.segments for entry in step.lines.items()]
        entries += [(each.travel.span, Seconds(communication=each.seconds)) for each in self.travels]
        return sums(entries)

    def mesh_lines(self, mesh: int) -> dict[Span | None, Seconds]:
        """Return the seconds of each line of the source in the segments of a mesh."""
        return sums(entry for part, step in self.segments if part == mesh for entry in step.lines.items())

    @property
    def busy(self) -> tuple[float, ...]:
        """The seconds of the segments of each mesh."""
        return tuple(
            sum(step.seconds for part, step in self.segments if part == number)
            for number in range(len(self.meshes))
        )

    @property
    def ideal(self) -> float:
        """The seconds of the arithmetic at the peak rate of all devices."""
        work = sum(step.ideal * self.meshes[part].devices for part, step in self.segments)
        return work / sum(mesh.devices for mesh in self.meshes)


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
