"""Predicted time of a step under a placement, by its task graph and timeline: report, JSON record and trace of `mtfc
simulate`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import attrs

from mtfc.compiler.cost.hardware import DeviceGraph, Machine
from mtfc.compiler.cost.step_time import Event
from mtfc.compiler.ir.core import source_file
from mtfc.compiler.ir.ops import has_trait
from mtfc.compiler.ir.printer import bytes_text
from mtfc.placements.placed_step import Attribution, PlacedStep, device_names, events, placed_step, tracks
from mtfc.placements.placement_search import PlacementSpace
from mtfc.placements.simulator.evaluation import EvaluatedStrategy
from mtfc.reports.source_lines import aligned, devices_text
from mtfc.reports.step_report import SimulatedStep, lanes_text, seconds_json, seconds_text, share_text


@attrs.frozen(eq=False)
class SimulatedPlacement(SimulatedStep[PlacedStep, Machine]):
    """A step of a program under a placement."""

    space: PlacementSpace
    found: EvaluatedStrategy

    kind = "placement"
    heads = ("compute", "waits", "step", "sent", "memory")

    @classmethod
    def of(
        cls, model: str, name: str, hardware: Machine, space: PlacementSpace, found: EvaluatedStrategy
    ) -> SimulatedPlacement:
        """Return the step of a strategy whose timeline is known."""
        tasks = space.evaluator.tasks
        step = placed_step(tasks, found)
        file, room = source_file([space.graph.function]), int(tasks.room[step.fullest])
        memory = step.memory["total"]
        return cls(step, hardware, model, name, file, space.devices, memory, room, space, found)

    @property
    def legend(self) -> str:  # type: ignore[override]
        return (
            "time on the longest path, for computation and waiting for communication;"
            f" bytes sent, and stored on {self.fullest}"
        )

    @property
    def fullest(self) -> str:
        """The name of the device whose memory is the fullest."""
        return self.lanes()[self.step.fullest]

    def lanes(self) -> list[str]:
        return tracks(self.space.evaluator.tasks)

    def events(self) -> Sequence[Event]:
        return list(events(self.space.evaluator.tasks, self.found))

    def _figures(self) -> dict[str, Any]:
        """Return the figures of the step for JSON, with those of each device."""
        step, is_graph = self.step, isinstance(self.hardware, DeviceGraph)
        return {
            **seconds_json(step.parts),
            "links": dict(step.busy),
            "bytes_sent": step.total.sent,
            "memory_per_device": dict(step.memory),
            "by_device": [
                {
                    "device": i,
                    **({"name": name} if is_graph else {}),
                    "compute_seconds": float(seconds),
                    "memory": int(memory),
                }
                for i, (name, seconds, memory) in enumerate(self._devices())
            ],
        }

    def _devices(self) -> Iterator[tuple[str, float, int]]:
        """Yield the name of each device, the seconds that it computes, and the bytes of its memory."""
        names = device_names(self.space.evaluator.tasks)
        return zip(names, self.step.computing, self.step.device_memory, strict=True)

    def _line_json(self, figure: Attribution) -> Mapping[str, Any]:
        """Return the figures of a line, which adds up to the step with all others."""
        return {
            "compute_seconds": figure.compute,
            "exposed_communication_seconds": figure.exposed,
            "bytes_sent": figure.sent,
            "memory": figure.memory,
        }

    def _summary(self) -> list[str]:
        """Return the first lines of the report: the time of the step, its parts, and the busiest ports."""
        unit = "training step" if self.space.graph.loss is not None else "forward pass"
        body = self.space.graph.function.body
        notes = self._rates({eqn.operands[0].type.dtype for eqn in body if has_trait(eqn, "dot")})
        ports = lanes_text("busiest ports", self.step.busy)
        sent = ["sent", bytes_text(self.step.total.sent), ""]
        waits = "the longest path waits for it"
        return [
            f"{self.title}: one {unit} on {devices_text(self.hardware.name, self.devices)}",
            *self._parts(self.step.parts, ["on the longest path", *notes], ports, waits, [sent]),
        ]

    def _tables(self) -> Sequence[list[str]]:
        """Return a table of the devices: seconds of computation, their share of the step, and memory."""
        rows = [["device", "computes", "of the step", "memory"]]
        for name, seconds, memory in self._devices():
            share = share_text(seconds, self.step.seconds)
            rows.append([name, seconds_text(seconds), share, bytes_text(int(memory))])
        return (aligned(rows, right=range(4)),)

    def _cells(self, figure: Attribution) -> Iterator[str]:
        """Yield the figures of a line as text, in the order of `heads`."""
        yield from (seconds_text(each) if each else "" for each in (figure.compute, figure.exposed))
        yield share_text(figure.time, self.step.seconds)
        yield from (bytes_text(each) if each else "" for each in (figure.sent, figure.memory))
