"""The data of reports about layouts of several meshes, and about placements: one JSON record, of the figures that commands print.

`steps` are the records of `mtfc simulate --format json`, `costs` the entries of `mtfc cost --format json`. The figures of lines
are those of `mtfc diff`: means of all devices. The other entries split these figures up: by array on each mesh, by operator, and
over the step. Names and files of events are numbers of entries of `texts`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import attrs

from mtfc.compiler.cost.device_graph import DeviceGraph, Machine
from mtfc.compiler.diagnostics import Span
from mtfc.compiler.ir.core import source_file
from mtfc.compiler.ir.printer import layout_summary
from mtfc.meshes.multi_mesh_program import MultiMeshProgram
from mtfc.meshes.segments import CutFunction
from mtfc.reports.difference import ComparedLayout
from mtfc.reports.drawing import DrawnOperator
from mtfc.reports.meshes_report import SimulatedMeshes, multi_mesh_cost_json
from mtfc.reports.page.layout_data import Texts, bars, named_array, place_of, target_json
from mtfc.reports.step_report import SimulatedStep

MOST_EVENTS = 20_000
"""Tasks on a page: of more tasks the longest are shown."""


@attrs.frozen(eq=False)
class ReportedMeshes:
    """A layout of several meshes of a report: its program, and its step on a machine."""

    program: MultiMeshProgram
    simulated: SimulatedMeshes

    @property
    def function(self) -> CutFunction:
        """The function whose cost is reported: a training step, or a forward pass."""
        return self.program.function("step" if self.simulated.step.cost.trains else "forward")

    @property
    def compared(self) -> ComparedLayout:
        return ComparedLayout.of_step(self.simulated.step, self.simulated.hardware)


@attrs.frozen
class ReportedPlacement:
    """A placement of a report: its step, its operators, and the source place of each operator."""

    simulated: SimulatedStep[Any, Any]
    operators: Sequence[DrawnOperator]
    places: Sequence[Span | None]


def steps_json(
    found: Sequence[ReportedMeshes] | Sequence[ReportedPlacement],
    machine: Machine,
    sources: Mapping[str, str],
) -> dict[str, Any]:
    """Return the record of a report. sources: each file's text by name."""
    own, texts = found[0].simulated.file, Texts()
    described = [_layout(x, texts) if isinstance(x, ReportedMeshes) else _placement(x, texts) for x in found]
    costs = [multi_mesh_cost_json(x.simulated.step.cost) for x in found if isinstance(x, ReportedMeshes)]
    return {
        "kind": "meshes" if costs else "placements",
        "target": _graph(machine) if isinstance(machine, DeviceGraph) else target_json(machine),
        "own": own,
        "sources": {file: text for file, text in sources.items() if file == own},
        "steps": [each.simulated.record() for each in found],
        **({"costs": costs, "layouts": described} if costs else {"placements": described}),
        "texts": list(texts.numbers),
    }


def _graph(graph: DeviceGraph) -> dict[str, Any]:
    """Return the machine's name and its kinds of devices."""
    caveat = " ".join(graph.caveat).strip()
    return {"name": graph.name, "kinds": graph.summary, "memory": None, "caveat": caveat}


def _layout(each: ReportedMeshes, texts: Texts) -> dict[str, Any]:
    """Return the data of a layout on several meshes for the page."""
    compared, simulated = each.compared, each.simulated
    lanes, links = simulated.lanes(), {each.link for each in simulated.step.travels}
    return {
        "meshes": [
            {
                "name": part.mesh.name,
                "axes": [[name, size] for name, size in part.mesh.axes],
                "rules": layout_summary(part.layout),
                "arrays": list(_arrays(each, number, texts)),
            }
            for number, part in enumerate(each.program.parts)
        ],
        "lines": [
            {
                "file": file,
                "line": line,
                **found.figures,
                "between": sum(travel.bytes for travel in found.travels),
                "sends": list(compared.collectives(found).items()),
            }
            for (file, line), found in sorted(compared.lines.items())
        ],
        "lanes": lanes,
        "between": [i for i, lane in enumerate(lanes) if lane in links],
        "events": bars(simulated.events(), lanes, simulated.file, texts),
    }


def _arrays(each: ReportedMeshes, part: int, texts: Texts) -> Iterator[list[Any]]:
    """Yield the arrays on a mesh that a user can name: those that are stored or arrive there, and named values."""
    function, mesh = each.function, each.program.meshes[part]
    own = source_file(each.program.program.functions)
    places, seen = each.program.places_for(function.name), set[str]()
    for argument in function.whole.arguments:
        name, place = argument.value.name, places[argument.value.name]
        if place.part == part and argument.span is not None:
            yield named_array(place.type, name, argument.role, argument.span, mesh, own, texts)
    for segment in (segment for segment in function.segments if segment.part == part):
        for eqn in segment.function.body:
            path, span = eqn.path, eqn.span
            if path and span and path not in seen and eqn.stage == "forward" and not eqn.regions:
                seen.add(path)
                yield named_array(eqn.results[0].type, path, "value", span, mesh, own, texts)


def _placement(each: ReportedPlacement, texts: Texts) -> dict[str, Any]:
    """Return the data of a placement for the page, with the longest tasks of the step."""
    events, own = each.simulated.events(), each.simulated.file
    longest = sorted(events, key=lambda event: event.start - event.end)[:MOST_EVENTS]
    used = {event.device for event in longest}
    lanes = [name for name in each.simulated.lanes() if name in used]
    return {
        "operators": [
            [operator.name, operator.degrees, operator.devices, place_of(span, own, texts)[1]]
            for operator, span in zip(each.operators, each.places, strict=True)
        ],
        "lanes": lanes,
        "events": bars(sorted(longest, key=lambda event: event.start), lanes, own, texts, "task"),
        "events_left_out": len(events) - len(longest),
    }
