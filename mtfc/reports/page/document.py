"""A report as one HTML document: styles, scripts and data stand in the page, and its policy forbids everything from elsewhere.

Data is JSON in a script element that no browser runs. `<`, `>` and `&` are escaped there, so no text of a user can end the
element. The scripts of the page put texts into it as text, never as HTML.

The data of a report about a training run: its figures over the steps, and its checkpoints, as one JSON record.

A long run has more steps than a screen has columns. Of each stretch of steps a curve keeps the first, the least, the largest and
the last value, so that it is drawn as all of its values would be.

The data of reports about layouts of several meshes, and about placements: one JSON record, of the figures that commands print.

`steps` are the records of `mtfc simulate --format json`, `costs` the entries of `mtfc cost --format json`. The figures of lines
are those of `mtfc diff`: means of all devices. The other entries split these figures up: by array on each mesh, by operator, and
over the step. Names and files of events are numbers of entries of `texts`.
"""

import base64
import hashlib
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from html import escape
from pathlib import Path
from statistics import median
from typing import Any

import attrs

from mtfc.compiler.cost.hardware import DeviceGraph, Machine
from mtfc.compiler.diagnostics import Span
from mtfc.compiler.ir.core import source_file
from mtfc.compiler.ir.printer import layout_summary
from mtfc.meshes.multi_mesh_program import MultiMeshProgram
from mtfc.meshes.segments import CutFunction
from mtfc.reports.array_summary import finite, scalars
from mtfc.reports.difference import ComparedLayout
from mtfc.reports.drawing import DrawnOperator
from mtfc.reports.page.layout_data import Texts, bars, named_array, place_of, target_json
from mtfc.reports.step_report import SimulatedMeshes, SimulatedStep, multi_mesh_cost_json

FORMAT = 1
"""The version of the records of pages."""

ASSETS = Path(__file__).parent / "assets"

STYLES = ("uPlot.min.css", "page.css")
SCRIPTS: Mapping[str, Sequence[str]] = {
    "layouts": ("uPlot.iife.min.js", "page.js", "charts.js", "drawings.js", "what_if.js", "layouts.js"),
    "placements": ("page.js", "drawings.js", "own_lines.js", "placements.js"),
    "meshes": ("page.js", "drawings.js", "own_lines.js", "meshes.js"),
    "run": ("uPlot.iife.min.js", "page.js", "charts.js", "run.js"),
}
"""The scripts of a page, by the kind of its data."""


def document(title: str, data: Mapping[str, Any]) -> str:
    """Return the page of a record, which names its `kind`."""
    style = "\n".join(map(_asset, STYLES))
    scripts = [_asset(name) for name in SCRIPTS[data["kind"]]]
    sources = " ".join(map(_hash, scripts))
    parts = {
        "title": escape(title),
        "policy": f"default-src 'none'; style-src {_hash(style)}; script-src {sources}; base-uri 'none'; form-action 'none'",
        "style": style,
        "data": data_text(data),
        "scripts": "\n".join(f"<script>{each}</script>" for each in scripts),
    }
    return re.sub(r"\{\{(\w+)\}\}", lambda match: parts[match[1]], _asset("page.html"))


def data_text(data: Any) -> str:
    """Return JSON that may stand between script tags; numbers that are not finite are null."""
    text = json.dumps(finite(data), separators=(",", ":"), allow_nan=False)
    return text.replace("&", r"\u0026").replace("<", r"\u003c").replace(">", r"\u003e")


def _asset(name: str) -> str:
    return (ASSETS / name).read_text("utf-8")


def _hash(text: str) -> str:
    """Return the source expression of a Content-Security-Policy that allows this text alone."""
    digest = hashlib.sha256(text.encode()).digest()
    return f"'sha256-{base64.b64encode(digest).decode()}'"


MOST_STEPS, STRETCHES = 4000, 1000
"""Steps from which curves are thinned out, and the stretches of a thinned curve."""

Points = list[tuple[int, float | None]]
"""Steps with their values, in order; None for a value that is not finite."""


def run_json(name: str, lines: Sequence[Mapping[str, Any]], checkpoints: Sequence[int]) -> dict[str, Any]:
    """Return the record of a run. lines: the objects of `metrics.jsonl`, by rising steps. checkpoints: their steps.

    An element of a vector is a curve `NAME/INDEX`; `predicted_seconds` is a curve if a machine was named.
    """
    curves: dict[str, Points] = {}
    for line in lines:
        for figure, value in _scalars(line).items():
            curves.setdefault(figure, []).append((int(line["step"]), value))
    seconds = [line["seconds"] for line in lines[1:] or lines if line.get("seconds") is not None]
    return {
        "kind": "run",
        "name": name,
        "steps": len(lines),
        "first": lines[0]["step"],
        "last": {figure: value for figure, value in lines[-1].items() if not isinstance(value, list)},
        "median_seconds": median(seconds) if seconds else None,
        "checkpoints": list(checkpoints),
        "curves": {figure: _columns(thinned(points)) for figure, points in curves.items()},
    }


def _scalars(line: Mapping[str, Any]) -> dict[str, float | None]:
    """Return the numbers in a line of a run's log, and the predicted seconds of the step if a machine was named."""
    every = {name: value for name, value in scalars(line).items() if name != "step"}
    found = {name: value for name, value in every.items() if value is None or isinstance(value, int | float)}
    share, seconds = found.get("predicted_share"), found.get("seconds")
    if share is not None and seconds is not None:
        found["predicted_seconds"] = share * seconds
    return found


def thinned(points: Points) -> Points:
    """Return the points, or of a long curve the first, least, largest and last point of each stretch."""
    if len(points) <= MOST_STEPS:
        return points
    kept: Points = []
    for i in range(STRETCHES):
        part = points[i * len(points) // STRETCHES : (i + 1) * len(points) // STRETCHES]
        finite = [point for point in part if point[1] is not None]
        ends = [min(finite, key=_value), max(finite, key=_value)] if finite else []
        kept += sorted({part[0], *ends, part[-1]}, key=lambda point: point[0])
    return kept


def _value(point: tuple[int, float | None]) -> float:
    return point[1] or 0.0


def _columns(points: Points) -> list[list[Any]]:
    return [[step for step, _ in points], [value for _, value in points]]


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
