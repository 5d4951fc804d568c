"""Predicted time as text: what `mtfc simulate` prints of one layout on one machine."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from functools import partial

from mtfc.compiler.cost.hardware import Hardware
from mtfc.compiler.cost.sizes import whole
from mtfc.compiler.cost.step_time import Seconds, StepTime
from mtfc.compiler.cost.volumes import LayoutCost
from mtfc.compiler.ir.printer import bytes_text
from mtfc.reports.cost_report import heading
from mtfc.reports.source_lines import fitted, line_rows
from mtfc.reports.table import aligned

UNITS = ((1.0, "s"), (1e-3, "ms"), (1e-6, "us"), (1e-9, "ns"))


def step_report(cost: LayoutCost, step: StepTime, hardware: Hardware, sources: Mapping[str, str]) -> str:
    """The parts of the time of a step, memory, and each line's share; `sources` holds each file's text by name."""
    legend = "  By line: time that it computes, communicates, and keeps the processor waiting; the last in per cent of the step."
    title, *rules = heading(cost)
    lines = [f"{title}, on {hardware.name}", *rules, *_summary(cost, step, hardware)]
    return "\n".join([*lines, "", legend, *_by_line(cost, step, sources)]) + "\n"


def fits(cost: LayoutCost, hardware: Hardware) -> bool:
    return whole(cost.memory.total) <= hardware.device.memory


def _summary(cost: LayoutCost, step: StepTime, hardware: Hardware) -> list[str]:
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
    """The dtypes that the machine has no rate for."""
    for dtype in sorted(dtypes):
        if (rated := hardware.device.rated(dtype)) != dtype:
            yield f"{dtype} at the rate of {rated}: {hardware.name} has none of its own"


def _by_line(cost: LayoutCost, step: StepTime, sources: Mapping[str, str]) -> list[str]:
    heads = ["line", "source", "compute", "communicate", "waits", "step"]
    cells = partial(_cells, step=step.seconds)
    return fitted([heads, *line_rows(step.lines.items(), cost.file, sources, cells)])


def _cells(found: Seconds, step: float) -> Iterator[str]:
    for each in (found.compute, found.communication, found.exposed):
        yield seconds_text(each) if each else ""
    yield f"{(found.compute + found.exposed) / step if step else 0.0:.1%}"


def seconds_text(seconds: float) -> str:
    """A time as people read it: `1.234 ms`."""
    unit, name = next((each for each in UNITS if seconds >= each[0]), UNITS[-1])
    return f"{seconds / unit:.4g} {name}"
