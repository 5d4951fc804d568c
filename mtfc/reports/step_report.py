"""Predicted time of a step under a layout: the report, the JSON record and the timeline of `mtfc simulate`."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from functools import partial
from typing import Any

import attrs

from mtfc.compiler.cost.hardware import Hardware
from mtfc.compiler.cost.sizes import whole
from mtfc.compiler.cost.step_time import COMPUTE, Event, Seconds, StepTime
from mtfc.compiler.cost.volumes import PlacedCost
from mtfc.compiler.ir.printer import bytes_text
from mtfc.reports.cost_report import heading
from mtfc.reports.source_lines import fitted, line_rows, lines_json
from mtfc.reports.table import aligned

UNITS = ((1.0, "s"), (1e-3, "ms"), (1e-6, "us"), (1e-9, "ns"))


@attrs.frozen
class SimulatedLayout:
    """A step of a program under a layout, simulated on a machine."""

    cost: PlacedCost
    step: StepTime
    hardware: Hardware
    servers: int = 0

    def record(self) -> dict[str, Any]:
        """Return the JSON record."""
        servers = {"parameter_servers": self.servers} if self.servers else {}
        return {**step_json(self.cost, self.step, self.hardware), **servers}

    def report(self, texts: Mapping[str, str]) -> str:
        """Return the report; `texts` holds each file's text by name."""
        servers = f", with {self.servers} parameter server{'s' * (self.servers > 1)}" if self.servers else ""
        named = attrs.evolve(self.hardware, name=f"{self.hardware.name}{servers}")
        return step_report(self.cost, self.step, named, texts)

    def trace(self) -> dict[str, Any]:
        """Return the timeline: a thread for computation, and one for each lane of a link."""
        title = f"{self.cost.model}, layout {self.cost.layout.name} on {self.hardware.name}"
        return step_trace(self.step, title)


# Text


def step_report(cost: PlacedCost, step: StepTime, hardware: Hardware, sources: Mapping[str, str]) -> str:
    """Return the parts of a step's time, the memory, and each line's share; `sources` holds each file's text by name."""
    legend = "  By line: computation, communication, waiting for communication, and the share of the step."
    title, *rules = heading(cost)
    lines = [f"{title}, on {hardware.name}", *rules, *_summary(cost, step, hardware)]
    return "\n".join([*lines, "", legend, *_by_line(cost, step, sources)]) + "\n"


def fits(cost: PlacedCost, hardware: Hardware) -> bool:
    """True if the memory of a device suffices."""
    return whole(cost.memory.total) <= hardware.device.memory


def _summary(cost: PlacedCost, step: StepTime, hardware: Hardware) -> list[str]:
    total = step.total
    links = ", ".join(f"{lane} {seconds_text(seconds)}" for lane, seconds in step.busy.items())
    held, room = bytes_text(whole(cost.memory.total)), bytes_text(int(hardware.device.memory))
    rows = [
        ["step", seconds_text(step.seconds), f"{step.utilisation:.1%} of the peak FLOP/s"],
        ["computation", seconds_text(total.compute), ", ".join(replaced(step.dtypes, hardware))],
        ["communication", seconds_text(total.communication), f"links in use: {links}" if links else ""],
        ["  exposed", seconds_text(total.exposed), "computation waits for it"],
        ["memory", held, f"of {room}" if fits(cost, hardware) else f"does NOT fit in {room}"],
    ]
    return [*aligned(rows, right={1}), *hardware.caveat]


def replaced(dtypes: Iterable[str], hardware: Hardware) -> Iterator[str]:
    """Yield a note for each dtype without a FLOP rate of its own on the machine."""
    for dtype in sorted(dtypes):
        if (rated := hardware.device.rated(dtype)) != dtype:
            yield f"{dtype} at the rate of {rated}: {hardware.name} has none of its own"


def _by_line(cost: PlacedCost, step: StepTime, sources: Mapping[str, str]) -> list[str]:
    heads = ["line", "source", "compute", "communicate", "waits", "step"]
    cells = partial(_cells, step=step.seconds)
    return fitted([heads, *line_rows(step.lines.items(), cost.file, sources, cells)])


def _cells(found: Seconds, step: float) -> Iterator[str]:
    yield from time_cells(found)
    yield f"{(found.compute + found.exposed) / step if step else 0.0:.1%}"


def time_cells(found: Seconds) -> Iterator[str]:
    """Yield the times of computation, of communication and of waiting for communication as text."""
    for each in (found.compute, found.communication, found.exposed):
        yield seconds_text(each) if each else ""


def seconds_text(seconds: float) -> str:
    """Return a time as text: `1.234 ms`."""
    unit, name = next((each for each in UNITS if seconds >= each[0]), UNITS[-1])
    return f"{seconds / unit:.4g} {name}"


# JSON


def step_json(cost: PlacedCost, step: StepTime, hardware: Hardware) -> dict[str, Any]:
    """Return seconds and bytes of one processor; `lines` are those of the user's file."""
    total = step.total
    return {
        "model": cost.model,
        "target": hardware.name,
        "layout": cost.layout.name,
        "mesh": cost.mesh.sizes,
        "devices": cost.mesh.devices,
        "peak_figures": hardware.has_peak_figures,
        "step_seconds": step.seconds,
        **seconds_json(total),
        "utilisation": step.utilisation,
        "links": dict(step.busy),
        "memory_per_device": {name: whole(amount) for name, amount in cost.memory.parts().items()},
        "memory_of_device": int(hardware.device.memory),
        "fits": fits(cost, hardware),
        "lines": lines_json(step.lines.items(), cost.file, seconds_json),
    }


def seconds_json(found: Seconds) -> dict[str, float]:
    """Return the same times as numbers."""
    return {
        "compute_seconds": found.compute,
        "communication_seconds": found.communication,
        "exposed_communication_seconds": found.exposed,
    }


def step_trace(step: StepTime, title: str) -> dict[str, Any]:
    """Return the timeline of a step: a thread for computation, and one for each lane of a link."""
    return trace((COMPUTE, *step.busy, *(event.device for event in step.events)), step.events, title)


def trace(devices: Iterable[str], events: Iterable[Event], title: str) -> dict[str, Any]:
    """Return a timeline in Chrome's trace event format, which Perfetto opens too: a thread for each device."""
    threads = {device: i for i, device in enumerate(dict.fromkeys(devices))}
    named = [
        _name("process_name", 0, title),
        *(_name("thread_name", i, each) for each, i in threads.items()),
    ]
    shown = [_event(event, threads[event.device]) for event in events if event.end > event.start]
    return {"traceEvents": [*named, *shown], "displayTimeUnit": "ms"}


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
