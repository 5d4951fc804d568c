"""Predicted time as data: what `mtfc simulate --format json` prints, and the timeline that `--trace` writes."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from mtfc.compiler.cost.hardware import Hardware
from mtfc.compiler.cost.sizes import whole
from mtfc.compiler.cost.step_time import COMPUTE, Event, Seconds, StepTime
from mtfc.compiler.cost.volumes import LayoutCost
from mtfc.reports.source_lines import nested
from mtfc.reports.step_report import fits


def step_json(cost: LayoutCost, step: StepTime, hardware: Hardware) -> dict[str, Any]:
    """Seconds and bytes of one processor; `lines` are the user's."""
    total = step.total
    return {
        "model": cost.model,
        "target": hardware.name,
        "layout": cost.layout.name,
        "mesh": cost.mesh.sizes,
        "devices": cost.mesh.devices,
        "peak_figures": hardware.has_peak_figures,
        "step_seconds": step.seconds,
        **_seconds(total),
        "utilisation": step.utilisation,
        "links": dict(step.busy),
        "memory_per_device": {name: whole(amount) for name, amount in cost.memory.parts().items()},
        "memory_of_device": int(hardware.device.memory),
        "fits": fits(cost, hardware),
        "lines": [
            {"file": file, "line": number, **_seconds(sum(inside.values(), start=Seconds()))}
            for (file, number), inside in nested(step.lines.items(), cost.file).items()
        ],
    }


def _seconds(found: Seconds) -> dict[str, float]:
    return {
        "compute_seconds": found.compute,
        "communication_seconds": found.communication,
        "exposed_communication_seconds": found.exposed,
    }


def step_trace(step: StepTime, title: str) -> dict[str, Any]:
    """The timeline of a step: a thread for computation and one for each lane."""
    return trace((COMPUTE, *step.busy, *(event.device for event in step.events)), step.events, title)


def trace(devices: Iterable[str], events: Iterable[Event], title: str) -> dict[str, Any]:
    """A timeline in Chrome's trace event format, which Perfetto opens too: a thread for each device."""
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
    """Times are in microseconds, which the format wants."""
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
