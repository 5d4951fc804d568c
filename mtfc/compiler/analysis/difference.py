"""What another layout changes: the difference of two costs by line of the user's file, which adds up to the whole difference."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import attrs

from mtfc.compiler.analysis.cost import Charge, LayoutCost, total
from mtfc.compiler.analysis.report import transfers, whole
from mtfc.compiler.analysis.source_lines import Line, fitted, line_of, place_text, source_text
from mtfc.compiler.analysis.table import aligned, count_text
from mtfc.compiler.diagnostics import Span
from mtfc.compiler.ir.printer import bytes_text

Pair = tuple[int, int]
"""A figure under the one layout and under the other."""


@attrs.frozen
class LineDifference:
    """One device's FLOPs, bytes sent, stored and held at the peak of memory of a line, under both layouts.

    ways: how it sends, under both: `2 all_reduce{rows}` -> bytes.
    """

    line: Line
    flops: Pair
    sent: Pair
    stored: Pair
    memory: Pair
    ways: tuple[Mapping[str, str], Mapping[str, str]]

    @property
    def differs(self) -> bool:
        return any(one != other for one, other in (self.flops, self.sent, self.memory, self.ways))


@attrs.define
class _Found:
    """What a line costs under one layout."""

    charges: list[Charge] = attrs.field(factory=list)
    stored: int = 0
    memory: int = 0


def differences(one: LayoutCost, other: LayoutCost) -> list[LineDifference]:
    """What each line costs under both layouts, in order; a line that calls functions of other files answers for theirs."""
    left, right = _by_line(one), _by_line(other)
    return [
        _compared(line, left.get(line, _Found()), right.get(line, _Found()))
        for line in sorted({*left, *right})
    ]


def _by_line(cost: LayoutCost) -> dict[Line, _Found]:
    lines: dict[Line, _Found] = {}

    def at(span: Span | None) -> _Found:
        return lines.setdefault(line_of(span.inside(cost.file) if span else None), _Found())

    for charge in cost.step:
        at(charge.span).charges.append(charge)
    for span, amount in cost.memory.stored:
        at(span).stored += whole(amount)
    for span, amount in cost.memory.occupied:
        at(span).memory += whole(amount)
    return lines


def _compared(line: Line, one: _Found, other: _Found) -> LineDifference:
    left, right = total(one.charges), total(other.charges)
    return LineDifference(
        line=line,
        flops=(whole(left.flops), whole(right.flops)),
        sent=(whole(left.sent.bytes), whole(right.sent.bytes)),
        stored=(one.stored, other.stored),
        memory=(one.memory, other.memory),
        ways=(dict(transfers(one.charges)), dict(transfers(other.charges))),
    )


def difference_report(one: LayoutCost, other: LayoutCost, sources: Mapping[str, str]) -> str:
    """The two layouts, their totals, and the lines that differ; `sources` holds each file's text by name."""
    lines = differences(one, other)
    return "\n".join([*_totals(one, other), "", *_lines(lines, one, other, sources)]) + "\n"


def _totals(one: LayoutCost, other: LayoutCost) -> list[str]:
    names = [one.layout.name, other.layout.name]
    unit = "training step" if one.trains else "forward pass"
    heading = f"{one.model}, one {unit} on one device: from layout {names[0]} to layout {names[1]}"
    left, right = _figures(one), _figures(other)
    rows = [["", *names, "difference"]]
    for name, text in FIGURES.items():
        rows.append([name, text(left[name]), text(right[name]), signed(right[name] - left[name], text)])
    return [heading, *aligned(rows, right=range(1, 4))]


FIGURES: Mapping[str, Callable[[int], str]] = {
    "devices": str,
    "FLOPs": count_text,
    "sent": bytes_text,
    "memory": bytes_text,
}
"""What is compared as a whole, and how it is written."""


def _figures(cost: LayoutCost) -> dict[str, int]:
    sums = total(cost.step)
    figures = (cost.mesh.devices, whole(sums.flops), whole(sums.sent.bytes), whole(cost.memory.total))
    return dict(zip(FIGURES, figures, strict=True))


def _lines(
    lines: list[LineDifference], one: LayoutCost, other: LayoutCost, sources: Mapping[str, str]
) -> list[str]:
    """The lines that differ, each with how it sends under both layouts, and their sums."""
    texts = {file: text.splitlines() for file, text in sources.items()}
    rows = [["line", "source", "FLOPs", "sent", "memory"]]
    for each in lines:
        if each.differs:
            changes = _changes(each.flops, each.sent, each.memory)
            rows.append([place_text(each.line, one.file), source_text(each.line, texts), *changes])
            for name, ways in zip((one.layout.name, other.layout.name), each.ways, strict=True):
                if each.ways[0] != each.ways[1]:
                    rows += [["", f"  {name}: {kind} {size}", "", "", ""] for kind, size in ways.items()]
    rows.append(["all", "", *_changes(*_sums(lines))])
    return fitted(rows)


def _sums(lines: list[LineDifference]) -> tuple[Pair, Pair, Pair]:
    def of(pairs: Iterable[Pair]) -> Pair:
        left, right = zip((0, 0), *pairs, strict=True)
        return sum(left), sum(right)

    return (
        of(each.flops for each in lines),
        of(each.sent for each in lines),
        of(each.memory for each in lines),
    )


def _changes(flops: Pair, sent: Pair, memory: Pair) -> list[str]:
    pairs = ((flops, count_text), (sent, bytes_text), (memory, bytes_text))
    return [signed(right - left, text) if left != right else "" for (left, right), text in pairs]


def signed(change: int, text: Callable[[int], str]) -> str:
    """`+512 KiB`, `-3`, or `0`."""
    return f"{'-' if change < 0 else '+' if change else ''}{text(abs(change))}"


def difference_json(one: LayoutCost, other: LayoutCost) -> dict[str, Any]:
    """Figures in pairs: under the first layout and under the second."""
    lines = differences(one, other)
    figures = [_figures(one), _figures(other)]
    return {
        "model": one.model,
        "layouts": [one.layout.name, other.layout.name],
        "flops_per_device": [each["FLOPs"] for each in figures],
        "bytes_per_device": [each["sent"] for each in figures],
        "memory_per_device": [each["memory"] for each in figures],
        "lines": [
            {
                "file": each.line[0],
                "line": each.line[1],
                "flops_per_device": list(each.flops),
                "bytes_per_device": list(each.sent),
                "stored": list(each.stored),
                "memory_per_device": list(each.memory),
            }
            for each in lines
        ],
    }
