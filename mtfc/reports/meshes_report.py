"""Costs and predicted times under a layout of several meshes, as text and as JSON, for `mtfc cost`, `explain` and
`simulate`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import attrs

from mtfc.compiler.cost.hardware import Hardware
from mtfc.compiler.cost.step_time import Event, Seconds
from mtfc.compiler.ir.printer import bytes_text
from mtfc.meshes.multi_mesh_cost import MultiMeshCost, Travel
from mtfc.meshes.multi_mesh_step import MultiMeshStep
from mtfc.reports.cost_report import layout_json, layout_report
from mtfc.reports.source_lines import line_of, place_text
from mtfc.reports.step_report import SimulatedStep, lasting, seconds_text, share_text, time_cells
from mtfc.reports.table import aligned


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
