"""The data of a report about layouts of several meshes: one JSON record, of the same figures as other commands print.

`steps` are the records of `mtfc simulate --format json`, `costs` the entries of `mtfc cost --format json`. The figures of lines
are those of `mtfc diff`: means of all devices. The other entries split these figures up, by array on each mesh and over the step.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import attrs

from mtfc.compiler.cost.hardware import Hardware
from mtfc.compiler.ir.core import source_file
from mtfc.compiler.ir.printer import layout_summary
from mtfc.meshes.multi_mesh_program import MultiMeshProgram
from mtfc.meshes.segments import CutFunction
from mtfc.reports.difference import ComparedLayout
from mtfc.reports.meshes_report import SimulatedMeshes, multi_mesh_cost_json
from mtfc.reports.page.layout_data import Texts, bar, named_array, target_json


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


def meshes_json(
    layouts: Sequence[ReportedMeshes], hardware: Hardware, sources: Mapping[str, str]
) -> dict[str, Any]:
    """Return the record of a report. sources: each file's text by name."""
    own, texts = layouts[0].simulated.step.cost.file, Texts()
    return {
        "kind": "meshes",
        "target": target_json(hardware),
        "own": own,
        "sources": {file: text for file, text in sources.items() if file == own},
        "steps": [each.simulated.record() for each in layouts],
        "costs": [multi_mesh_cost_json(each.simulated.step.cost) for each in layouts],
        "layouts": [_layout(each, own, texts) for each in layouts],
        "texts": list(texts.numbers),
    }


def _layout(each: ReportedMeshes, own: str | None, texts: Texts) -> dict[str, Any]:
    compared = each.compared
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
        **_timeline(each.simulated, own, texts),
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


def _timeline(simulated: SimulatedMeshes, own: str | None, texts: Texts) -> dict[str, Any]:
    """Return the rows of the timeline and its bars, in seconds."""
    lanes, links = simulated.lanes(), {each.link for each in simulated.step.travels}
    return {
        "lanes": lanes,
        "between": [i for i, lane in enumerate(lanes) if lane in links],
        "events": [[lanes.index(each.device), *bar(each, own, texts)] for each in simulated.events()],
    }
