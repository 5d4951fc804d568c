"""The data of a report about placements: one JSON record, of the same figures as `mtfc simulate` prints.

`steps` are the records of `mtfc simulate --format json`. The other entries split these figures up: by operator, and by task over
the step. Names and files of events are numbers of entries of `texts`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import attrs

from mtfc.compiler.cost.device_graph import DeviceGraph, Machine
from mtfc.compiler.diagnostics import Span
from mtfc.reports.drawing import DrawnOperator
from mtfc.reports.page.layout_data import Texts, bar, place_of, target_json
from mtfc.reports.step_report import SimulatedStep

MOST_EVENTS = 20_000
"""Tasks on a page: of more tasks the longest are shown."""


@attrs.frozen
class ReportedPlacement:
    """A placement of a report: its step, its operators, and the source place of each operator."""

    simulated: SimulatedStep[Any, Any]
    operators: Sequence[DrawnOperator]
    places: Sequence[Span | None]


def placements_json(
    placements: Sequence[ReportedPlacement], machine: Machine, sources: Mapping[str, str]
) -> dict[str, Any]:
    """Return the record of a report. sources: each file's text by name."""
    own, texts = placements[0].simulated.file, Texts()
    return {
        "kind": "placements",
        "target": _graph(machine) if isinstance(machine, DeviceGraph) else target_json(machine),
        "own": own,
        "sources": {file: text for file, text in sources.items() if file == own},
        "steps": [each.simulated.record() for each in placements],
        "placements": [_placement(each, texts) for each in placements],
        "texts": list(texts.numbers),
    }


def _graph(graph: DeviceGraph) -> dict[str, Any]:
    """Return the machine's name and its kinds of devices."""
    caveat = " ".join(graph.caveat).strip()
    return {"name": graph.name, "kinds": graph.summary, "memory": None, "caveat": caveat}


def _placement(each: ReportedPlacement, texts: Texts) -> dict[str, Any]:
    events, own = each.simulated.events(), each.simulated.file
    longest = sorted(events, key=lambda event: event.start - event.end)[:MOST_EVENTS]
    used = {event.device for event in longest}
    lanes = [name for name in each.simulated.lanes() if name in used]
    numbers = {name: i for i, name in enumerate(lanes)}
    return {
        "operators": [
            [operator.name, operator.degrees, operator.devices, place_of(span, own, texts)[1]]
            for operator, span in zip(each.operators, each.places, strict=True)
        ],
        "lanes": lanes,
        "events": [
            [numbers[event.device], *bar(event, own, texts), event.detail["task"]]
            for event in sorted(longest, key=lambda event: event.start)
        ],
        "events_left_out": len(events) - len(longest),
    }
