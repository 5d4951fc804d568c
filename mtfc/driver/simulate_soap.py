"""`mtfc simulate` of a placement: what a step takes on a machine, by the task graph and the timeline of `search --space soap`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial
from math import inf
from typing import Any

import attrs

from mtfc.compiler.cost.hardware import Hardware
from mtfc.compiler.diagnostics import Diagnostics
from mtfc.compiler.ir.core import Function, Program, source_file
from mtfc.compiler.ir.ops import has_trait
from mtfc.compiler.ir.printer import bytes_text
from mtfc.compiler.passes.pipelines import run, simplification
from mtfc.compiler.search.placement.placed_step import Attribution, PlacedStep, events, placed_step, tracks
from mtfc.compiler.search.placement.placement_search import PlacementSpace, placement_space
from mtfc.compiler.search.placement.simulator.evaluation import EvaluatedStrategy
from mtfc.driver.searching.compilation_time import compiling
from mtfc.driver.searching.search_result import devices_of
from mtfc.frontend.hardware_targets import no_room
from mtfc.frontend.layouts.placements import DeclaredPlacement, strategy_of
from mtfc.reports.source_lines import fitted, line_rows, nested
from mtfc.reports.step_json import trace
from mtfc.reports.step_report import replaced, seconds_text
from mtfc.reports.table import aligned

LEGEND = "  By line: time on the longest path, computing and waiting for communication; bytes sent, and kept on device {device}."


@attrs.frozen(eq=False)
class Simulated:
    """A placement of a program on a machine, and its step."""

    model: str
    name: str
    hardware: Hardware
    space: PlacementSpace
    found: EvaluatedStrategy
    step: PlacedStep

    @property
    def function(self) -> Function:
        return self.space.graph.function

    @property
    def title(self) -> str:
        return f"{self.model}, placement {self.name}"

    @property
    def fits(self) -> bool:
        return self.step.memory["total"] <= self.hardware.device.memory

    def trace(self) -> dict[str, Any]:
        """The timeline: a thread for each device, and for each port."""
        tasks = self.space.evaluator.tasks
        title = f"{self.title} on {self.hardware.name}"
        return trace(tracks(tasks), events(tasks, self.found), title)


def simulated(placement: DeclaredPlacement, program: Program, hardware: Hardware, target: str) -> Simulated:
    """The step under a placement, though memory may not suffice for it.

    Raises `CompileError` where operators are not as the placement says (E317, E319), or there are too few devices (E316).
    """
    _check_room(placement, hardware, target)
    roomy = attrs.evolve(hardware, device=attrs.evolve(hardware.device, memory=inf))
    prepared = run(program, simplification())
    most = max((len(each.devices) for each in placement.operators), default=1)
    space, _ = compiling(lambda: placement_space(prepared, roomy, placement.devices, most), None)
    found = space.evaluator.full(strategy_of(placement, space.graph, Diagnostics()))
    step = placed_step(space.evaluator.tasks, found)
    return Simulated(program.name, placement.name, hardware, space, found, step)


def _check_room(placement: DeclaredPlacement, hardware: Hardware, target: str) -> None:
    has = hardware.devices
    if has is not None and placement.devices > has:
        room = f"`{hardware.name}` has {has} device{'s'[: has - 1]}"
        message = f"placement `{placement.name}` is on {placement.devices} devices, and {room}"
        no_room(target, message, "choose larger hardware, or search for a placement on fewer devices")


def record(each: Simulated) -> dict[str, Any]:
    """The record that a layout has, as far as it has a meaning; see `docs/command.md`."""
    step, total = each.step, each.step.total
    return {
        "model": each.model,
        "target": each.hardware.name,
        "layout": each.name,
        "mesh": {},
        "devices": each.space.devices,
        "peak_figures": each.hardware.has_peak_figures,
        "step_seconds": step.seconds,
        "compute_seconds": total.compute,
        "communication_seconds": step.communicating,
        "exposed_communication_seconds": total.exposed,
        "utilisation": step.utilisation,
        "links": dict(step.busy),
        "bytes_sent": total.sent,
        "memory_per_device": dict(step.memory),
        "memory_of_device": int(each.hardware.device.memory),
        "fits": each.fits,
        "by_device": [
            {"device": i, "compute_seconds": float(seconds), "memory": int(held)}
            for i, (seconds, held) in enumerate(zip(step.computing, step.held, strict=True))
        ],
        "lines": [
            {"file": file, "line": line, **_figures(sum(inside.values(), start=Attribution()))}
            for (file, line), inside in nested(step.lines.items(), source_file([each.function])).items()
        ],
    }


def _figures(blame: Attribution) -> dict[str, float]:
    return {
        "compute_seconds": blame.compute,
        "exposed_communication_seconds": blame.exposed,
        "bytes_sent": blame.sent,
        "memory": blame.memory,
    }


def report(each: Simulated, sources: Mapping[str, str]) -> str:
    """The parts of the time of a step, and how much of them each device and each line has; `sources` holds texts of files."""
    unit = "training step" if each.space.graph.loss is not None else "forward pass"
    where = devices_of(each.hardware, each.space.devices)
    legend = LEGEND.format(device=int(each.step.held.argmax()))
    lines = [f"{each.title}: one {unit} on {where}", *_summary(each), ""]
    return "\n".join([*lines, *_by_device(each.step), "", legend, *_by_line(each, sources)]) + "\n"


def _summary(each: Simulated) -> list[str]:
    step, total, device = each.step, each.step.total, each.hardware.device
    dtypes = {eqn.operands[0].type.dtype for eqn in each.function.body if has_trait(eqn, "dot")}
    ports = ", ".join(f"{lane} {seconds_text(seconds)}" for lane, seconds in step.busy.items())
    room = bytes_text(int(device.memory))
    rows = [
        ["step", seconds_text(step.seconds), f"{step.utilisation:.1%} of the peak FLOP/s"],
        [
            "computation",
            seconds_text(total.compute),
            ", ".join(["on the longest path", *replaced(dtypes, each.hardware)]),
        ],
        ["communication", seconds_text(step.communicating), f"busiest ports: {ports}" if ports else ""],
        ["  exposed", seconds_text(total.exposed), "the longest path waits for it"],
        ["sent", bytes_text(total.sent), ""],
        ["memory", bytes_text(total.memory), f"of {room}" if each.fits else f"does NOT fit in {room}"],
    ]
    return [*aligned(rows, right={1}), *each.hardware.caveat]


def _by_device(step: PlacedStep) -> list[str]:
    rows = [["device", "computes", "of the step", "memory"]]
    for device, (seconds, held) in enumerate(zip(step.computing, step.held, strict=True)):
        share = seconds / step.seconds if step.seconds else 0.0
        rows.append([str(device), seconds_text(seconds), f"{share:.1%}", bytes_text(int(held))])
    return aligned(rows, right=range(4))


def _by_line(each: Simulated, sources: Mapping[str, str]) -> list[str]:
    heads, own = (
        ["line", "source", "compute", "waits", "step", "sent", "memory"],
        source_file([each.function]),
    )
    cells = partial(_cells, step=each.step.seconds)
    return fitted([heads, *line_rows(each.step.lines.items(), own, sources, cells)])


def _cells(blame: Attribution, step: float) -> Iterator[str]:
    yield from (seconds_text(each) if each else "" for each in (blame.compute, blame.exposed))
    yield f"{blame.time / step if step else 0.0:.1%}"
    yield from (bytes_text(each) if each else "" for each in (blame.sent, blame.memory))
