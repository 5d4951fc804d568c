"""Predicted time of a step under a placement, by its task graph and timeline: report, JSON record and trace of `mtfc
simulate`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any

import attrs

from mtfc.compiler.cost.device_graph import DeviceGraph, Machine, kinds_of
from mtfc.compiler.ir.core import Function, source_file
from mtfc.compiler.ir.ops import has_trait
from mtfc.compiler.ir.printer import bytes_text
from mtfc.placements.placed_step import Attribution, PlacedStep, device_names, events, tracks
from mtfc.placements.placement_search import PlacementSpace
from mtfc.placements.simulator.evaluation import EvaluatedStrategy
from mtfc.reports.source_lines import fitted, line_rows, lines_json
from mtfc.reports.step_report import replaced, seconds_text, trace
from mtfc.reports.table import aligned, devices_text

LEGEND = (
    "  By line: time on the longest path, for computation and waiting for communication;"
    " bytes sent, and stored on {device}."
)


@attrs.frozen(eq=False)
class SimulatedPlacement:
    """A step of a program under a placement, simulated on a machine."""

    model: str
    name: str
    hardware: Machine
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
        """True if the memory of each device suffices."""
        return bool((self.step.device_memory <= self.space.evaluator.tasks.room).all())

    @property
    def fullest(self) -> str:
        """The name of the device whose memory is the fullest."""
        return tracks(self.space.evaluator.tasks)[self.step.fullest]

    @property
    def room(self) -> int:
        """The bytes of memory of this device."""
        return int(self.space.evaluator.tasks.room[self.step.fullest])

    def report(self, texts: Mapping[str, str]) -> str:
        """Return the parts of a step's time, and the shares of each device and each line. texts: each file's text by name."""
        unit = "training step" if self.space.graph.loss is not None else "forward pass"
        where = devices_text(self.hardware.name, self.space.devices)
        legend = LEGEND.format(device=self.fullest)
        lines = [f"{self.title}: one {unit} on {where}", *_summary(self), ""]
        return "\n".join([*lines, *_by_device(self), "", legend, *_by_line(self, texts)]) + "\n"

    def record(self) -> dict[str, Any]:
        """Return the keys of a layout's record that make sense for a placement; see `docs/command.md`."""
        step, total = self.step, self.step.total
        return {
            "model": self.model,
            "target": self.hardware.name,
            "layout": self.name,
            "mesh": {},
            "devices": self.space.devices,
            "peak_figures": self.hardware.has_peak_figures,
            "step_seconds": step.seconds,
            "compute_seconds": total.compute,
            "communication_seconds": step.communicating,
            "exposed_communication_seconds": total.exposed,
            "utilisation": step.utilisation,
            "links": dict(step.busy),
            "bytes_sent": total.sent,
            "memory_per_device": dict(step.memory),
            "memory_of_device": self.room,
            "fits": self.fits,
            "by_device": [
                {"device": i, **_named(self, i), "compute_seconds": float(seconds), "memory": int(memory)}
                for i, (seconds, memory) in enumerate(zip(step.computing, step.device_memory, strict=True))
            ],
            "lines": lines_json(step.lines.items(), source_file([self.function]), _figures),
        }

    def trace(self) -> dict[str, Any]:
        """Return the timeline: a thread for each device, and for each port."""
        tasks = self.space.evaluator.tasks
        title = f"{self.title} on {self.hardware.name}"
        return trace(tracks(tasks), events(tasks, self.found), title)


def _named(each: SimulatedPlacement, device: int) -> dict[str, str]:
    is_graph = isinstance(each.hardware, DeviceGraph)
    return {"name": device_names(each.space.evaluator.tasks)[device]} if is_graph else {}


def _figures(blame: Attribution) -> dict[str, float]:
    return {
        "compute_seconds": blame.compute,
        "exposed_communication_seconds": blame.exposed,
        "bytes_sent": blame.sent,
        "memory": blame.memory,
    }


def _summary(each: SimulatedPlacement) -> list[str]:
    step, total = each.step, each.step.total
    dtypes = {eqn.operands[0].type.dtype for eqn in each.function.body if has_trait(eqn, "dot")}
    ports = ", ".join(f"{lane} {seconds_text(seconds)}" for lane, seconds in step.busy.items())
    room = bytes_text(each.room)
    notes = [note for own in kinds_of(each.hardware) for note in replaced(dtypes, own)]
    rows = [
        ["step", seconds_text(step.seconds), f"{step.utilisation:.1%} of the peak FLOP/s"],
        ["computation", seconds_text(total.compute), ", ".join(["on the longest path", *notes])],
        ["communication", seconds_text(step.communicating), f"busiest ports: {ports}" if ports else ""],
        ["  exposed", seconds_text(total.exposed), "the longest path waits for it"],
        ["sent", bytes_text(total.sent), ""],
        ["memory", bytes_text(total.memory), f"of {room}" if each.fits else f"does NOT fit in {room}"],
    ]
    return [*aligned(rows, right={1}), *each.hardware.caveat]


def _by_device(each: SimulatedPlacement) -> list[str]:
    rows, step = [["device", "computes", "of the step", "memory"]], each.step
    names = device_names(each.space.evaluator.tasks)
    for name, seconds, memory in zip(names, step.computing, step.device_memory, strict=True):
        share = seconds / step.seconds if step.seconds else 0.0
        rows.append([name, seconds_text(seconds), f"{share:.1%}", bytes_text(int(memory))])
    return aligned(rows, right=range(4))


def _by_line(each: SimulatedPlacement, sources: Mapping[str, str]) -> list[str]:
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
