"""Predicted time of a step: the report, the JSON record and the timeline of `mtfc simulate`; and the machines that it knows.

Costs and predicted times under a layout of several meshes, as text and as JSON, for `mtfc cost`, `explain` and
`simulate`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, ClassVar, Generic, TypeVar

import attrs

from mtfc.compiler.cost.hardware import DeviceGraph, Hardware, Machine, kinds_of
from mtfc.compiler.cost.sizes import whole
from mtfc.compiler.cost.step_time import COMPUTE, Event, Seconds, StepTime, TimedStep
from mtfc.compiler.cost.volumes import PlacedCost
from mtfc.compiler.ir.printer import bytes_text
from mtfc.meshes.multi_mesh_cost import MultiMeshCost, Travel
from mtfc.meshes.multi_mesh_step import MultiMeshStep
from mtfc.reports.cost_report import heading, layout_json, layout_report
from mtfc.reports.source_lines import aligned, count_text, fitted, line_of, line_rows, lines_json, place_text

UNITS = ((1.0, "s"), (1e-3, "ms"), (1e-6, "us"), (1e-9, "ns"))

Step = TypeVar("Step", bound=TimedStep[Any])
On = TypeVar("On", bound=Machine)


@attrs.frozen(eq=False)
class SimulatedStep(Generic[Step, On]):
    """A step of a program, simulated on a machine.

    name: of the layout or the placement. file: the user's. memory, room: the bytes that the fullest device needs, and has.
    heads, legend: the heads of the columns for the figures of a line, and the text above the table.
    """

    step: Step
    hardware: On
    model: str
    name: str
    file: str | None
    devices: int
    memory: int
    room: int

    kind: ClassVar[str] = "layout"
    heads: ClassVar[Sequence[str]]
    legend: ClassVar[str]

    @property
    def title(self) -> str:
        return f"{self.model}, {self.kind} {self.name}"

    @property
    def fits(self) -> bool:
        """True if the memory of each device suffices."""
        return self.memory <= self.room

    def record(self) -> dict[str, Any]:
        """Return the JSON record; see `docs/command.md`. `lines` are those of the user's file."""
        return {
            "model": self.model,
            "target": self.hardware.name,
            "layout": self.name,
            "mesh": {},
            "devices": self.devices,
            "peak_figures": self.hardware.has_peak_figures,
            "step_seconds": self.step.seconds,
            "utilisation": self.step.utilisation,
            "memory_of_device": self.room,
            "fits": self.fits,
            **self._figures(),
            "lines": lines_json(self.step.lines.items(), self.file, self._line_json),
        }

    def report(self, texts: Mapping[str, str]) -> str:
        """Return the parts of a step's time, the memory, and each line's share; `texts` holds each file's text by name."""
        by_line = line_rows(self.step.lines.items(), self.file, texts, self._cells)
        sections = [
            [*self._summary(), *self.hardware.caveat],
            *self._tables(),
            [f"  By line: {self.legend}.", *fitted([["line", "source", *self.heads], *by_line])],
        ]
        return "\n\n".join("\n".join(lines) for lines in sections) + "\n"

    def trace(self) -> dict[str, Any]:
        """Return the timeline in Chrome's trace event format, which Perfetto opens too: a thread for each lane."""
        threads = {lane: i for i, lane in enumerate(self.lanes())}
        named = [_name("process_name", 0, f"{self.title} on {self.hardware.name}")]
        named += [_name("thread_name", i, lane) for lane, i in threads.items()]
        shown = [_event(event, threads[event.device]) for event in self.events()]
        return {"traceEvents": [*named, *shown], "displayTimeUnit": "ms"}

    def lanes(self) -> list[str]:
        """Return the rows of the timeline."""
        return list(dict.fromkeys(event.device for event in self.events()))

    def events(self) -> Sequence[Event]:
        """Return the bars of the timeline that are longer than zero."""
        raise NotImplementedError

    def _summary(self) -> list[str]:
        """Return the title, and the figures of the whole step."""
        raise NotImplementedError

    def _tables(self) -> Sequence[list[str]]:
        """Return the tables above that of the lines."""
        return ()

    def _cells(self, figure: Any) -> Iterable[str]:
        """Return the figures of a line as text."""
        raise NotImplementedError

    def _figures(self) -> dict[str, Any]:
        """Return the entries of the record that only this kind of step has."""
        raise NotImplementedError

    def _line_json(self, figure: Any) -> Mapping[str, Any]:
        return seconds_json(figure)

    def _parts(
        self, total: Seconds, notes: Iterable[str], lanes: str, waits: str, more: Iterable[Sequence[str]] = ()
    ) -> list[str]:
        """Return the parts of the step's time, and the memory, as a table. lanes, waits: notes about communication."""
        room = bytes_text(self.room)
        rows = [
            ["step", seconds_text(self.step.seconds), f"{self.step.utilisation:.1%} of the peak FLOP/s"],
            ["computation", seconds_text(total.compute), ", ".join(notes)],
            ["communication", seconds_text(total.communication), lanes],
            ["  exposed", seconds_text(total.exposed), waits],
            *more,
            ["memory", bytes_text(self.memory), f"of {room}" if self.fits else f"does NOT fit in {room}"],
        ]
        return aligned(rows, right={1})

    def _rates(self, dtypes: Iterable[str]) -> list[str]:
        """Return a note for each dtype without a FLOP rate of its own on the machine."""
        return [
            f"{dtype} at the rate of {rated}: {own.name} has none of its own"
            for own in kinds_of(self.hardware)
            for dtype in sorted(dtypes)
            if (rated := own.device.rated(dtype)) != dtype
        ]


@attrs.frozen(eq=False)
class SimulatedLayout(SimulatedStep[StepTime, Hardware]):
    """A step of a program under a layout. servers: the number of parameter servers."""

    cost: PlacedCost
    servers: int = 0

    heads = ("compute", "communicate", "waits", "step")
    legend = "computation, communication, waiting for communication, and the share of the step"

    @classmethod
    def of(cls, cost: PlacedCost, step: StepTime, hardware: Hardware, servers: int = 0) -> SimulatedLayout:
        """Return the step of a layout."""
        names = cost.model, cost.layout.name, cost.file
        memory, room = whole(cost.memory.total), int(hardware.device.memory)
        return cls(step, hardware, *names, cost.mesh.devices, memory, room, cost, servers)

    def lanes(self) -> list[str]:
        return list(dict.fromkeys((COMPUTE, *self.step.busy, *super().lanes())))

    def events(self) -> Sequence[Event]:
        return lasting(self.step.events)

    def _summary(self) -> list[str]:
        """Return the title, the rules, and a table of the parts of the step."""
        step, (title, *rules) = self.step, heading(self.cost)
        servers = f", with {self.servers} parameter server{'s' * (self.servers > 1)}" if self.servers else ""
        rates, lanes = self._rates(step.dtypes), lanes_text("links in use", step.busy)
        parts = self._parts(step.total, rates, lanes, "computation waits for it")
        return [f"{title}, on {self.hardware.name}{servers}", *rules, *parts]

    def _cells(self, figure: Seconds) -> Iterator[str]:
        yield from time_cells(figure)
        yield share_text(figure.compute + figure.exposed, self.step.seconds)

    def _figures(self) -> dict[str, Any]:
        """Return the figures of the step for JSON: times, links, and memory by kind."""
        return {
            "mesh": self.cost.mesh.sizes,
            **seconds_json(self.step.total),
            "links": dict(self.step.busy),
            "memory_per_device": {name: whole(amount) for name, amount in self.cost.memory.parts().items()},
            **({"parameter_servers": self.servers} if self.servers else {}),
        }


def lasting(events: Iterable[Event]) -> list[Event]:
    """Return the events that are longer than zero."""
    return [event for event in events if event.end > event.start]


def lanes_text(head: str, busy: Mapping[str, float]) -> str:
    """Return the seconds of each lane as text."""
    return (
        f"{head}: {', '.join(f'{lane} {seconds_text(each)}' for lane, each in busy.items())}" if busy else ""
    )


def time_cells(found: Seconds) -> Iterator[str]:
    """Yield the times of computation, of communication and of waiting for communication as text."""
    for each in (found.compute, found.communication, found.exposed):
        yield seconds_text(each) if each else ""


def share_text(part: float, whole: float) -> str:
    """Return a share as text: `12.5%`."""
    return f"{part / whole if whole else 0.0:.1%}"


def seconds_text(seconds: float) -> str:
    """Return a time as text: `1.234 ms`."""
    unit, name = next((each for each in UNITS if seconds >= each[0]), UNITS[-1])
    return f"{seconds / unit:.4g} {name}"


def seconds_json(found: Seconds) -> dict[str, float]:
    """Return the same times as numbers."""
    return {
        "compute_seconds": found.compute,
        "communication_seconds": found.communication,
        "exposed_communication_seconds": found.exposed,
    }


def _name(what: str, thread: int, name: str) -> dict[str, Any]:
    return {"name": what, "ph": "M", "pid": 0, "tid": thread, "args": {"name": name}}


def _event(event: Event, thread: int) -> dict[str, Any]:
    """Return an event; the format has times in microseconds."""
    place = {"file": event.span.file, "line": event.span.line} if event.span else {}
    return {
        "name": event.name,
        "cat": event.stage,
        "ph": "X",
        "ts": event.start * 1e6,
        "dur": (event.end - event.start) * 1e6,
        "pid": 0,
        "tid": thread,
        "args": {**event.detail, **place},
    }


# Machines


def machines_json(machines: Mapping[str, Machine]) -> list[dict[str, Any]]:
    """Return a record for each machine; machines with several kinds of devices have a record for each kind in it."""
    return [_machine_json(name, each) for name, each in machines.items()]


def _machine_json(name: str, machine: Machine) -> dict[str, Any]:
    """Return the figures of a machine for JSON."""
    figures: dict[str, Any] = {}
    if isinstance(machine, DeviceGraph):
        figures["kinds"] = [
            {"kind": each.name, "devices": each.count, **_device_figures(own)}
            for each, own in zip(machine.kinds, kinds_of(machine), strict=True)
        ]
    else:
        figures = _device_figures(machine)
    return {
        "target": name,
        "devices": machine.devices,
        **figures,
        "links": [link.name for link in machine.links],
        "peak_figures": machine.has_peak_figures,
    }


def _device_figures(hardware: Hardware) -> dict[str, Any]:
    """Return the FLOP rates by dtype and the memory of a device, for JSON."""
    device = hardware.device
    return {
        "flops": {dtype: rate.peak for dtype, rate in device.flops.items()},
        "memory": int(device.memory),
    }


def machines_text(machines: Mapping[str, Machine]) -> str:
    """Return a table with a line for each machine, or for each kind of its devices."""
    rows = [["target", "devices", "FLOP/s", "memory", "links"]]
    for name, machine in machines.items():
        if isinstance(machine, DeviceGraph):
            devices, between = [f"{kind.count} {kind.name}" for kind in machine.kinds], ", "
        else:
            devices, between = ["any number" if machine.devices is None else str(machine.devices)], " in "
        links = between.join(link.name for link in machine.links)
        for number, (own, count) in enumerate(zip(kinds_of(machine), devices, strict=True)):
            fastest, rate = max(own.device.flops.items(), key=lambda item: (item[0] != "f8", item[1].peak))
            speed, memory = f"{count_text(int(rate.peak))} in {fastest}", bytes_text(int(own.device.memory))
            rows.append([name if not number else "", count, speed, memory, links if not number else ""])
    return "\n".join(aligned(rows, indent=""))


def multi_mesh_cost_text(cost: MultiMeshCost, sources: Mapping[str, str]) -> str:
    """Return the cost of each mesh, and what travels between the meshes; `sources` holds each file's text by name."""
    parts = [f"on mesh {each.mesh.name}: {layout_report(each, sources)}" for each in cost.meshes]
    return "\n".join([*parts, travels_text(cost)])


def travels_text(cost: MultiMeshCost) -> str:
    """Return a line for each value that travels."""
    names = [each.mesh.name for each in cost.meshes]
    total = bytes_text(cost.between_meshes)
    if not cost.travels:
        return "Nothing travels between the meshes.\n"
    rows = [["value", "line", "from", "to", "bytes"]]
    rows += [
        [each.value, _line(each, cost.file), *_ends(each, names), bytes_text(each.bytes)]
        for each in cost.travels
    ]
    return "\n".join([f"{total} travel between the meshes:", *aligned(rows, right={4})]) + "\n"


def _line(travel: Travel, own: str | None) -> str:
    return place_text(line_of(travel.span.inside(own)), own) if travel.span else ""


def _ends(travel: Travel, names: Sequence[str]) -> tuple[str, str]:
    return names[travel.source.part], names[travel.target.part]


def multi_mesh_cost_json(cost: MultiMeshCost) -> dict[str, Any]:
    """Return the record of a layout of several meshes in that of `mtfc cost`."""
    return {
        "layout": cost.layout,
        "meshes": [{"name": each.mesh.name, **layout_json(each)} for each in cost.meshes],
        "bytes_between_meshes": cost.between_meshes,
        "travels": travels_json(cost),
    }


def travels_json(cost: MultiMeshCost) -> list[dict[str, Any]]:
    """Return a record for each value that travels."""
    names = [each.mesh.name for each in cost.meshes]
    return [
        {
            "value": each.value,
            "line": each.span.line if each.span else None,
            **dict(zip(("from", "to"), _ends(each, names), strict=True)),
            "bytes": each.bytes,
        }
        for each in cost.travels
    ]


@attrs.frozen(eq=False)
class SimulatedMeshes(SimulatedStep[MultiMeshStep, Hardware]):
    """A step of a program under a layout of several meshes."""

    heads = ("compute", "communicate", "waits")
    legend = "computation, communication, and waiting for collectives, on all meshes together"

    @classmethod
    def of(cls, step: MultiMeshStep, hardware: Hardware) -> SimulatedMeshes:
        """Return the step of a layout of several meshes."""
        cost = step.cost
        devices = sum(each.mesh.devices for each in cost.meshes)
        room = int(hardware.device.memory)
        return cls(step, hardware, cost.model, cost.layout, cost.file, devices, step.memory, room)

    def events(self) -> Sequence[Event]:
        return lasting(self.step.events)

    def _figures(self) -> dict[str, Any]:
        """Return the figures of the step for JSON, by mesh, and what travels between meshes."""
        step, cost = self.step, self.step.cost
        travels = zip(travels_json(cost), step.travels, strict=True)
        return {
            "by_mesh": [
                {"name": mesh.name, "mesh": mesh.sizes, "seconds": seconds, "memory": held}
                for mesh, seconds, held in step.by_mesh
            ],
            "bytes_between_meshes": cost.between_meshes,
            "travels": [{**record, "link": each.link, "seconds": each.seconds} for record, each in travels],
        }

    def _summary(self) -> list[str]:
        """Return the title, the time of the step, and notes about dtypes."""
        step, cost = self.step, self.step.cost
        unit = "training step" if cost.trains else "forward pass"
        meshes = ", ".join(f"{each.mesh.devices} devices of {each.mesh.name}" for each in cost.meshes)
        rows = [["step", seconds_text(step.seconds), f"{step.utilisation:.1%} of the peak FLOP/s"]]
        notes = [f"  {note}" for note in self._rates(step.dtypes)]
        title = f"{self.title}: one {unit} on {meshes}, on {self.hardware.name}"
        return [title, *aligned(rows, right={1}), *notes]

    def _tables(self) -> Sequence[list[str]]:
        return self._by_mesh(), self._by_travel()

    def _cells(self, figure: Seconds) -> Iterator[str]:
        return time_cells(figure)

    def _by_mesh(self) -> list[str]:
        """Return a table of the meshes: devices, busy seconds, and memory of one device."""
        rows = [["mesh", "devices", "busy", "of the step", "memory"]]
        for mesh, seconds, held in self.step.by_mesh:
            fits = "" if held <= self.room else f", does NOT fit in {bytes_text(self.room)}"
            share = share_text(seconds, self.step.seconds)
            figures = [seconds_text(seconds), share, f"{bytes_text(held)}{fits}"]
            rows.append([mesh.name, str(mesh.devices), *figures])
        return aligned(rows, right=range(1, 5))

    def _by_travel(self) -> list[str]:
        """Return a table of what travels between meshes."""
        if not self.step.travels:
            return ["  Nothing travels between the meshes."]
        rows = [["value", "line", "link", "bytes", "seconds"]]
        for each in self.step.travels:
            own = each.travel
            size = bytes_text(own.bytes)
            rows.append(
                [own.value, _line(own, self.step.cost.file), each.link, size, seconds_text(each.seconds)]
            )
        return aligned(rows, right={3, 4})
