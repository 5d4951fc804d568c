"""The difference in cost of two layouts, by line of the user's file; the lines add up to the difference of the whole step."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from functools import cached_property
from math import isclose
from typing import Any

import attrs

from mtfc.compiler.cost.hardware import Hardware
from mtfc.compiler.cost.sizes import whole
from mtfc.compiler.cost.step_time import step_time
from mtfc.compiler.cost.volumes import Charge, PlacedCost, layout_cost, total
from mtfc.compiler.diagnostics import Span
from mtfc.compiler.ir.core import Program
from mtfc.compiler.ir.printer import bytes_text
from mtfc.reports.cost_report import transfers
from mtfc.reports.source_lines import Line, fitted, line_of, place_text, source_text
from mtfc.reports.step_report import seconds_text
from mtfc.reports.table import aligned, count_text

Pair = tuple[float, float]
"""A figure under the first layout and under the second. All figures but seconds are whole numbers."""

Seconds = Mapping[Span | None, float]


@attrs.frozen
class ComparedFigure:
    """A compared figure of one device: its key in JSON, and its text."""

    key: str
    text: Callable[[Any], str]


FIGURES: Mapping[str, ComparedFigure] = {
    "time": ComparedFigure("seconds", seconds_text),
    "FLOPs": ComparedFigure("flops_per_device", count_text),
    "sent": ComparedFigure("bytes_per_device", bytes_text),
    "memory": ComparedFigure("memory_per_device", bytes_text),
}
"""The compared figures of the whole step and of every line; time needs a machine."""


@attrs.frozen(slots=False)
class ComparedLayout:
    """The cost of a layout, and with a machine the seconds of each line there."""

    cost: PlacedCost
    seconds: Seconds | None = None
    hardware: Hardware | None = None

    @classmethod
    def of(cls, program: Program, hardware: Hardware | None = None, overlaps: bool = True) -> ComparedLayout:
        """Return the cost of a lowered program.

        The seconds of a line are its part of the step that `mtfc simulate` predicts. Without overlap they are all its computation
        and communication, as in searches.
        """
        cost = layout_cost(program)
        if hardware is None:
            return cls(cost)
        step = step_time(program.function("step" if cost.trains else "forward"), cost.mesh, hardware)
        return cls(
            cost,
            {
                span: line.compute + (line.exposed if overlaps else line.communication)
                for span, line in step.lines.items()
            },
            hardware,
        )

    @cached_property
    def names(self) -> list[str]:
        """The names of the compared figures."""
        return [name for name in FIGURES if name != "time" or self.seconds is not None]

    @cached_property
    def figures(self) -> Mapping[str, float]:
        """The figures of the whole step."""
        sums = total(self.cost.step)
        return {
            "time": sum((self.seconds or {}).values()),
            "FLOPs": whole(sums.flops),
            "sent": whole(sums.sent.bytes),
            "memory": whole(self.cost.memory.total),
        }

    @cached_property
    def lines(self) -> Mapping[Line, _Found]:
        """The costs by line of the file; a line has the costs of the functions of other files that it calls."""
        lines: dict[Line, _Found] = {}

        def at(span: Span | None) -> _Found:
            return lines.setdefault(line_of(span.inside(self.cost.file) if span else None), _Found())

        for charge in self.cost.step:
            at(charge.span).charges.append(charge)
        for span, amount in self.cost.memory.occupied:
            at(span).figures["memory"] += whole(amount)
        for span, amount in self.cost.memory.stored:
            at(span).figures["stored"] += whole(amount)
        for span, seconds in (self.seconds or {}).items():
            at(span).figures["time"] += seconds
        for found in lines.values():
            sums = total(found.charges)
            found.figures.update(FLOPs=whole(sums.flops), sent=whole(sums.sent.bytes))
        return lines


@attrs.define
class _Found:
    """The cost of a line under one layout."""

    charges: list[Charge] = attrs.field(factory=list)
    figures: defaultdict[str, float] = attrs.field(factory=lambda: defaultdict(int))


@attrs.frozen
class ComparedLine:
    """A line's figures under both layouts, by the names of `FIGURES`, and the `stored` bytes of `mtfc cost`.

    collectives: the collectives of the line under both layouts: `2 all_reduce{rows}` -> bytes.
    """

    line: Line
    figures: Mapping[str, Pair]
    collectives: tuple[Mapping[str, str], Mapping[str, str]]

    @property
    def differs(self) -> bool:
        compared = (self.figures[name] for name in FIGURES)
        return self.collectives[0] != self.collectives[1] or not all(
            isclose(one, other) for one, other in compared
        )


def differences(one: ComparedLayout, other: ComparedLayout) -> list[ComparedLine]:
    """Return the cost of each line under both layouts, in order."""
    nothing = _Found()
    return [
        _compared(line, one.lines.get(line, nothing), other.lines.get(line, nothing))
        for line in sorted({*one.lines, *other.lines})
    ]


def _compared(line: Line, one: _Found, other: _Found) -> ComparedLine:
    figures: dict[str, Pair] = {
        name: (one.figures[name], other.figures[name]) for name in (*FIGURES, "stored")
    }
    return ComparedLine(line, figures, (dict(transfers(one.charges)), dict(transfers(other.charges))))


def difference_report(one: ComparedLayout, other: ComparedLayout, sources: Mapping[str, str]) -> str:
    """Return the totals of both layouts, and the lines that differ; `sources` holds each file's text by name."""
    return "\n".join([*_totals(one, other), "", *_lines(one, other, sources)]) + "\n"


def _totals(one: ComparedLayout, other: ComparedLayout) -> list[str]:
    layouts = [each.cost.layout.name for each in (one, other)]
    unit = "training step" if one.cost.trains else "forward pass"
    heading = f"{one.cost.model}, one {unit} on one device: from layout {layouts[0]} to layout {layouts[1]}"
    devices = [each.cost.mesh.devices for each in (one, other)]
    rows = [
        ["", *layouts, "difference"],
        ["devices", *map(str, devices), signed(devices[1] - devices[0], str)],
    ]
    for name in one.names:
        text, left, right = FIGURES[name].text, one.figures[name], other.figures[name]
        rows.append([name, text(left), text(right), signed(right - left, text)])
    return [heading, *aligned(rows, right=range(1, 4))]


def _lines(one: ComparedLayout, other: ComparedLayout, sources: Mapping[str, str]) -> list[str]:
    """Return the lines that differ, each with its collectives under both layouts, and their sums."""
    texts = {file: text.splitlines() for file, text in sources.items()}
    rows = [["line", "source", *one.names]]
    lines = differences(one, other)
    for each in lines:
        if each.differs:
            changes = _changes(each.figures, one.names)
            rows.append([place_text(each.line, one.cost.file), source_text(each.line, texts), *changes])
            for layout, collectives in zip(
                (one.cost.layout, other.cost.layout), each.collectives, strict=True
            ):
                if each.collectives[0] != each.collectives[1]:
                    blank = [""] * len(one.names)
                    rows += [
                        ["", f"  {layout.name}: {kind} {size}", *blank] for kind, size in collectives.items()
                    ]
    sums = {name: _sum(each.figures[name] for each in lines) for name in one.names}
    rows.append(["all", "", *_changes(sums, one.names)])
    return fitted(rows)


def _sum(pairs: Iterable[Pair]) -> Pair:
    left, right = zip((0, 0), *pairs, strict=True)
    return sum(left), sum(right)


def _changes(figures: Mapping[str, Pair], names: list[str]) -> list[str]:
    pairs = ((name, *figures[name]) for name in names)
    return [
        "" if isclose(left, right) else signed(right - left, FIGURES[name].text)
        for name, left, right in pairs
    ]


def signed(change: float, text: Callable[[Any], str]) -> str:
    """Return `+512 KiB`, `-3`, or `0`."""
    return f"{'-' if change < 0 else '+' if change else ''}{text(abs(change))}"


def difference_json(one: ComparedLayout, other: ComparedLayout) -> dict[str, Any]:
    """Return the figures in pairs: under the first layout and under the second."""
    keys = {name: FIGURES[name].key for name in one.names}
    return {
        "model": one.cost.model,
        "layouts": [one.cost.layout.name, other.cost.layout.name],
        **({"peak_figures": one.hardware.has_peak_figures} if one.hardware else {}),
        **{key: [one.figures[name], other.figures[name]] for name, key in keys.items()},
        "lines": [
            {
                "file": each.line[0],
                "line": each.line[1],
                **{key: list(each.figures[name]) for name, key in (keys | {"stored": "stored"}).items()},
            }
            for each in differences(one, other)
        ],
    }
