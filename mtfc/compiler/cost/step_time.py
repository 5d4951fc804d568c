"""Step times on a machine: an SPMD program as a task graph for the event simulator.

All processors run the same program, so one stands for all. Its computation is tasks on the device `processor 0`; its part of each
collective is tasks on the lanes that the collective uses (`topology.py`). So the size of the mesh does not matter.

- An equation that computes is a task with the seconds of its roofline (`roofline.py`).
- A collective is a task on each of its lanes. It starts when its operands are ready, and queues on each lane. It ends when its
  last task ends. Equations wait for a collective only if they use its results.
- In a shared memory processors run collectives themselves. Such a collective starts after all computation before it, and all
  computation after it waits.
- The body of a loop is simulated once. As in XLA, an iteration starts when the one before has ended. In the graph around the
  loop, the loop is a task on `processor 0` with the time of all iterations, and a task on each lane with the time of its
  collectives there. Iterations of an unrolled loop that run in one are simulated together.

So `processor 0` pauses only for communication, and step = computation + exposed communication holds exactly. Exposed time is
charged to
the collectives that caused it: from the end of each pause back along the tasks that made it late.

Searches compare seconds without overlap (`seconds_of`): the sum of the kernels by their rooflines and of the collectives by their
links.

As a baseline, parameter servers can take the place of the all-reduces of gradients (SoyBean, section 2.2). Each device pushes its
gradient to a server, which adds up all of them and updates the parameter, and then pulls the parameter. The servers share each
parameter equally. A server is one more device on the link over which gradients are summed. All devices push at once, so the port
of the server is what limits them; it receives and sends at the same time. The update on the server takes as long as the update of
the devices, which stays in the step. All devices wait for all parameters before the next step (bulk synchronous).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Generic, TypeVar

import attrs

from mtfc.compiler.cost.effects.roofline import KernelWork, computation_of, work
from mtfc.compiler.cost.event_simulator import Id, Task, TaskGraph, Timeline, makespan, simulate
from mtfc.compiler.cost.hardware import Device, Hardware
from mtfc.compiler.cost.topology import Topology
from mtfc.compiler.diagnostics import Span
from mtfc.compiler.ir.core import Equation, Function, Value
from mtfc.compiler.ir.loops import dim_of, executed, joined_iterations, operand_owner, region_of, unroll_of
from mtfc.compiler.ir.ops import has_trait
from mtfc.compiler.ir.ops.collectives import axes_of, collective_of, kind_of
from mtfc.compiler.ir.types import Axes, Mesh
from mtfc.compiler.records import Summed, frozen, sums

COMPUTE = "processor 0"
"""The device that computes. No link has this name."""

IN_LOOPS = " in loops"


@frozen
class Seconds(Summed):
    """Seconds of one line: computing, communicating, and waiting for communication."""

    compute: float = 0.0
    communication: float = 0.0
    exposed: float = 0.0

    def times(self, factor: float) -> Seconds:
        return Seconds(self.compute * factor, self.communication * factor, self.exposed * factor)


Lines = Mapping[Span | None, Seconds]


@frozen
class Event:
    """One bar of a timeline: a device is busy from `start` to `end`, in seconds from the start of the step.

    The first iteration of a loop lies inside the loop. Its communication has devices of its own, `lane in loops`.
    """

    device: str
    name: str
    start: float
    end: float
    span: Span | None
    stage: str
    detail: Mapping[str, float | str]


Figure = TypeVar("Figure")


@frozen
class TimedStep(Generic[Figure]):
    """The seconds of a step, in total and by source line. ideal: seconds of the FLOPs at the peak rates of the devices."""

    seconds: float
    lines: Mapping[Span | None, Figure]
    ideal: float

    @property
    def utilisation(self) -> float:
        return self.ideal / self.seconds if self.seconds else 0.0


@frozen
class StepTime(TimedStep[Seconds]):
    """The seconds of one execution of a function, and its timeline.

    busy: seconds of each lane. dtypes: the dtypes of dots.
    """

    busy: Mapping[str, float]
    dtypes: frozenset[str]
    events: tuple[Event, ...]

    @property
    def total(self) -> Seconds:
        return sum(self.lines.values(), start=Seconds())


def step_time(
    function: Function, mesh: Mesh, hardware: Hardware, order: Sequence[str] = (), servers: int = 0
) -> StepTime:
    """Return the time of a placed function with explicit collectives. order: the mesh axes, the innermost first.

    servers: the number of parameter servers that add up gradients in place of all-reduces.
    """
    topology = Topology.of(mesh, hardware, order)
    replacing = ParameterServers.of(function, topology, servers) if servers else None
    return _Simulator(topology, hardware.device, replacing).run(function)


@frozen
class _Item:
    """An equation in the graph: its seconds on each device, and its part of reports. ideal: the seconds at the peak rate.

    inside: the simulated iteration of a loop. occupies: it keeps the memory busy. in_turn: it uses one device after the
    other.
    """

    eqn: Equation
    seconds: Mapping[str, float]
    lines: Lines
    ideal: float = 0.0
    inside: StepTime | None = None
    occupies: bool = False
    """True if the processor does nothing else meanwhile, although `seconds` does not have the processor as a device."""
    in_turn: bool = False
    """True if each device begins when the one before it has ended."""

    @property
    def dtypes(self) -> frozenset[str]:
        """The dtypes of dots in the item."""
        if self.inside is not None:
            return self.inside.dtypes
        return frozenset({self.eqn.operands[0].type.dtype}) if has_trait(self.eqn, "dot") else frozenset()

    @property
    def communicates(self) -> bool:
        return self.inside is None and COMPUTE not in self.seconds


@frozen
class _Simulator:
    """Simulates a function on one device: an item for each equation, and a task for each thing that an item occupies.

    servers: the servers that complete sums of gradients, if the step has any.
    """

    topology: Topology
    device: Device
    servers: ParameterServers | None = None

    def run(self, function: Function) -> StepTime:
        """Return the time of a step that runs a function."""
        makers = {value: eqn for eqn in function.body for value in eqn.results}
        works = work(function, self.topology.mesh, self.device)
        items = [self._item(eqn, each, makers) for eqn, each in zip(function.body, works, strict=True)]
        graph = TaskGraph(_tasks(items))
        timeline = simulate(graph)
        return _summary(items, graph, timeline)

    def _item(self, eqn: Equation, work: KernelWork, makers: Mapping[Value, Equation]) -> _Item:
        """Return the item of an equation: its seconds by device of the timeline, its lines, and its seconds at peak rate."""
        if eqn.regions:
            return self._loop(eqn, work)
        if has_trait(eqn, "sends"):
            return self._collective(eqn, makers)
        seconds = {COMPUTE: work.seconds} if work.seconds else {}
        dtype = (eqn.operands or eqn.results)[0].type.dtype
        ideal = work.flops / self.device.rate(dtype).peak
        return _Item(eqn, seconds, {eqn.span: Seconds(compute=work.seconds)} if seconds else {}, ideal)

    def _loop(self, eqn: Equation, work: KernelWork) -> _Item:
        """Return the item of a loop: one simulated iteration, as often as the loop runs, and the loop's own kernels."""
        trips, iteration = _trips(eqn), self.run(joined_iterations(eqn))
        seconds = {COMPUTE: iteration.seconds, **iteration.busy} if iteration.seconds else {}
        seconds = {device: each * trips for device, each in seconds.items()}
        lines = {span: each.times(trips) for span, each in iteration.lines.items()}
        if work.seconds:
            seconds = sums((*seconds.items(), (COMPUTE, work.seconds)))
            lines = sums((*lines.items(), (eqn.span, Seconds(compute=work.seconds))))
        return _Item(eqn, seconds, lines, iteration.ideal * trips, iteration)

    def _collective(self, eqn: Equation, makers: Mapping[Value, Equation]) -> _Item:
        """Return the item of a collective. The bytes of each operand of a combined collective count for the operand's line."""
        sizes = [value.type.local_bytes(self.topology.mesh) for value in eqn.operands]
        in_turn = self.servers is not None and eqn in self.servers.sums
        seconds = self.servers.seconds(eqn) if self.servers and in_turn else lanes_of(eqn, self.topology)
        whole = sum(seconds.values()) if in_turn else max(seconds.values(), default=0.0)
        occupies = any(crossing.is_memory for crossing in self.topology.crossings(axes_of(eqn)))
        shares = [size / sum(sizes) if sum(sizes) else 0.0 for size in sizes]
        lines = sums(
            (operand_owner(eqn, value, makers).span, Seconds(communication=whole * share))
            for value, share in zip(eqn.operands, shares, strict=True)
        )
        return _Item(eqn, seconds, lines if whole else {}, occupies=occupies, in_turn=in_turn)


def _trips(loop: Equation) -> int:
    return dim_of(loop).size // unroll_of(loop)


def _tasks(items: Sequence[_Item]) -> Iterator[Task]:
    """Yield a task for each device of each equation. Readers of an equation without tasks wait for the tasks before the equation.

    fence: the tasks of the last collective that occupied the processor. before: the tasks that the processor ran since then.
    """
    after: dict[Value, tuple[Id, ...]] = {}
    before: list[Id] = []
    fence: tuple[Id, ...] = ()
    for i, item in enumerate(items):
        dependencies = tuple(dict.fromkeys(id for value in item.eqn.operands for id in after.get(value, ())))
        ids = tuple((i, k) for k in range(len(item.seconds)))
        if item.occupies and ids:
            dependencies, before, fence = (*dependencies, *fence, *before), [], ids
        elif COMPUTE in item.seconds:
            dependencies = (*dependencies, *fence)
            before += ids
        for id, (device, seconds) in zip(ids, item.seconds.items(), strict=True):
            yield Task(id, device, seconds, dependencies)
            dependencies = (id,) if item.in_turn else dependencies
        after.update(dict.fromkeys(item.eqn.results, ids or dependencies))


def _summary(items: Sequence[_Item], graph: TaskGraph, timeline: Timeline) -> StepTime:
    """Return the time of a step, with its lines, its lanes' busy seconds, and its events.

    Time in which a device waits counts for the line of the item that it waits for.
    """
    end = makespan(timeline)
    exposed = (_exposed(items[number], seconds) for number, seconds in _pauses(graph, timeline, end))
    lines = sums(pair for each in (*(item.lines for item in items), *exposed) for pair in each.items())
    busy = sums(pair for item in items for pair in item.seconds.items() if pair[0] != COMPUTE)
    events = [
        event for id, slot in timeline.items() for event in _events(items[id[0]], graph.tasks[id], slot.start)
    ]
    dtypes = frozenset[str]().union(*(item.dtypes for item in items))
    return StepTime(end, lines, sum(item.ideal for item in items), busy, dtypes, tuple(events))


def _exposed(item: _Item, seconds: float) -> Lines:
    """Split a wait for an equation among its lines, in proportion to their communication."""
    whole = sum(each.communication for each in item.lines.values())
    return {
        span: Seconds(exposed=seconds * each.communication / whole)
        for span, each in item.lines.items()
        if each.communication
    }


def _pauses(graph: TaskGraph, timeline: Timeline, end: float) -> Iterator[tuple[int, float]]:
    """Yield (number of equation, seconds) for the causes of each pause of `processor 0`; they add up to the pauses."""
    queues: dict[str, list[Id]] = {}
    for id in sorted(timeline, key=lambda id: (timeline[id].start, timeline[id].ready, id)):
        queues.setdefault(graph.tasks[id].device, []).append(id)
    before = {id: last for queue in queues.values() for last, id in pairwise(queue)}
    done = 0.0
    for id in queues.get(COMPUTE, ()):
        if timeline[id].start > done:
            yield from _chain(_latest(graph.tasks[id].after, timeline), done, graph, timeline, before)
        done = max(done, timeline[id].end)
    if end > done:
        yield from _chain(_latest(timeline, timeline), done, graph, timeline, before)


def _latest(ids: Iterable[Id], timeline: Timeline) -> Id:
    return max(ids, key=lambda id: (timeline[id].end, id))


def _chain(
    last: Id, since: float, graph: TaskGraph, timeline: Timeline, before: Mapping[Id, Id]
) -> Iterator[tuple[int, float]]:
    """Walk back from the task that ends a pause, along the tasks that made it late, to the start of the pause.

    last: the task that ends the pause. since: the start of the pause. before: task -> the task that made it late.
    """
    id, until = last, timeline[last].end
    while until > since:
        slot = timeline[id]
        yield id[0], until - max(slot.start, since)
        until = slot.start
        predecessors = [each for each in (*graph.tasks[id].after, before.get(id)) if each is not None]
        if not predecessors:
            return
        id = _latest(predecessors, timeline)


def _events(item: _Item, task: Task, start: float) -> Iterator[Event]:
    """Yield the bars of a task in a timeline; for a loop also those of its first iteration. start: when the task starts."""
    eqn = item.eqn
    span, name = eqn.span, eqn.path or eqn.op
    if item.inside is None:
        what = {"op": eqn.op} if not item.communicates else {"op": eqn.op, "axes": ", ".join(axes_of(eqn))}
        yield Event(task.device, name, start, start + task.seconds, span, eqn.stage, what)
        return
    trips = _trips(eqn)
    name = f"{dim_of(eqn).name} x {trips}"
    yield Event(task.device, name, start, start + task.seconds, span, eqn.stage, {"iterations": str(trips)})
    for event in item.inside.events if task.device == COMPUTE else ():
        device = event.device if event.device == COMPUTE else f"{event.device}{IN_LOOPS}"
        yield attrs.evolve(event, device=device, start=event.start + start, end=event.end + start)


# Without overlap


def seconds_of(function: Function, topology: Topology, device: Device) -> tuple[float, float]:
    """Return the seconds that one processor computes and communicates in one execution of a placed function."""
    computing = computation_of(function, topology.mesh, device)
    return computing, communication_of(function, topology)


def communication_of(function: Function, topology: Topology) -> float:
    """Return the seconds of the collectives in one execution of a placed function."""
    total = 0.0
    for eqn in function.body:
        if eqn.regions:
            total += dim_of(eqn).size * communication_of(region_of(eqn), topology)
        elif has_trait(eqn, "sends"):
            total += max(lanes_of(eqn, topology).values(), default=0.0)
    return total


def lanes_of(eqn: Equation, topology: Topology) -> Mapping[str, float]:
    """Return the seconds of a collective on each lane that it uses."""
    (number, parts), (kind, axes, size, hops) = collective_of(eqn).messages(eqn), _sending(eqn, topology)
    found = topology.seconds(kind, axes, size / parts, hops)
    return {lane: number * seconds for lane, seconds in found.items()}


def sent_on_lanes(function: Function, topology: Topology) -> dict[str, float]:
    """Return the bytes that one device sends on each lane in one execution of a placed function."""
    sending = ((eqn, times) for eqn, times in executed(function.body) if has_trait(eqn, "sends"))
    sent = ((topology.sent(*_sending(eqn, topology)), times) for eqn, times in sending)
    return sums((lane, times * bytes) for each, times in sent for lane, bytes in each.items())


def _sending(eqn: Equation, topology: Topology) -> tuple[str, Axes, int, int | None]:
    """Return the kind and the axes of a collective, the bytes of the operands, and the distance of a shift."""
    size = sum(value.type.local_bytes(topology.mesh) for value in eqn.operands)
    by = eqn.attrs.get("by")
    return kind_of(eqn), axes_of(eqn), size, abs(by) if isinstance(by, int) else None


# Parameter servers


IN, OUT = "server receives", "server sends"
"""The lanes of the servers' ports."""


@frozen
class ParameterServers:
    """Some servers beside the devices of a mesh, and the all-reduces of gradients that they replace."""

    number: int
    topology: Topology
    sums: frozenset[Equation]

    @classmethod
    def of(cls, function: Function, topology: Topology, number: int) -> ParameterServers:
        """Return the servers of a step. They replace the all-reduces whose results the update reads.

        number: the number of servers.
        """
        read = {value for eqn in function.body if eqn.stage == "update" for value in eqn.operands}
        sums = (
            eqn for eqn in function.body if has_trait(eqn, "all_reduce") and not read.isdisjoint(eqn.results)
        )
        return cls(number, topology, frozenset(sums))

    def seconds(self, eqn: Equation) -> Mapping[str, float]:
        """Return the seconds in which all devices push a gradient, and then pull the parameter."""
        mesh = self.topology.mesh
        size = sum(value.type.local_bytes(mesh) for value in eqn.operands)
        outermost = self.topology.crossings(axes_of(eqn))[-1]
        link = outermost.lane.link
        pushed = mesh.size(axes_of(eqn)) * size / self.number
        each = link.latency + max(
            pushed / link.bandwidth.at(size), size / self.topology.bandwidth(outermost, "permute", size)
        )
        return {IN: each, OUT: each}
