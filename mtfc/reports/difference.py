"""The difference in cost of two layouts, by line of the user's file; the lines add up to the difference of the whole step.

Devices of different meshes do different things, so figures of a layout of several meshes are means of all devices. The time
in which a mesh waits for another has no line.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from math import isclose
from typing import Any

import attrs

from mtfc.compiler.cost.hardware import Device, Hardware
from mtfc.compiler.cost.sizes import whole
from mtfc.compiler.cost.step_time import step_time
from mtfc.compiler.cost.volumes import Charge, PlacedCost, layout_cost, total
from mtfc.compiler.diagnostics import Span
from mtfc.compiler.ir.core import Program
from mtfc.compiler.ir.printer import bytes_text
from mtfc.meshes.multi_mesh_cost import MultiMeshCost, Travel
from mtfc.meshes.multi_mesh_step import MultiMeshStep
from mtfc.reports.cost_report import transfers
from mtfc.reports.source_lines import Line, fitted, line_of, place_text, source_text
from mtfc.reports.step_report import seconds_text
from mtfc.reports.table import aligned, count_text

Pair = tuple[float, float]
"""A figure under the first layout and under the second. On one mesh all figures but seconds are whole numbers."""

Seconds = Mapping[Span | None, float]


@attrs.frozen
class ComparedFigure:
    """A compared figure of one device: its key in JSON, and its text."""

    key: str
    text: Callable[[Any], str]


FIGURES: Mapping[str, ComparedFigure] = {
    "time": ComparedFigure("seconds", seconds_text),
    "FLOPs": ComparedFigure("flops_per_device", lambda count: count_text(round(count))),
    "sent": ComparedFigure("bytes_per_device", lambda count: bytes_text(round(count))),
    "memory": ComparedFigure("memory_per_device", lambda count: bytes_text(round(count))),
}
"""The compared figures of the whole step and of every line; time needs a machine."""


@attrs.frozen(slots=False)
class ComparedLayout:
    """The cost of a layout on each of its meshes, and with a machine the seconds of each line there.

    travels: the values that go from mesh to mesh.
    """

    costs: tuple[PlacedCost, ...]
    seconds: Seconds | None = None
    hardware: Hardware | None = None
    travels: tuple[Travel, ...] = ()

    @classmethod
    def of(
        cls,
        program: Program,
        hardware: Hardware | None = None,
        overlaps: bool = True,
        device: Device | None = None,
    ) -> ComparedLayout:
        """Return the cost of a lowered program. device: the one whose memory counts without a machine.

        The seconds of a line are its part of the step that `mtfc simulate` predicts. Without overlap they are all its computation
        and communication, as in searches.
        """
        if hardware is None:
            return cls((layout_cost(program, device=device),))
        cost = layout_cost(program, device=hardware.device)
        step = step_time(program.function("step" if cost.trains else "forward"), cost.mesh, hardware)
        seconds = {
            span: line.compute + (line.exposed if overlaps else line.communication)
            for span, line in step.lines.items()
        }
        return cls((cost,), seconds, hardware)

    @classmethod
    def of_meshes(cls, cost: MultiMeshCost) -> ComparedLayout:
        """Return the cost of a layout of several meshes."""
        return cls(cost.meshes, travels=cost.travels)

    @classmethod
    def of_step(cls, step: MultiMeshStep, hardware: Hardware) -> ComparedLayout:
        """Return the cost of a layout of several meshes with the seconds of its step on a machine."""
        return attrs.evolve(cls.of_meshes(step.cost), seconds=step.mean_seconds, hardware=hardware)

    @property
    def cost(self) -> PlacedCost:
        """The cost on the first mesh, which has the names of the model and of the layout."""
        return self.costs[0]

    @property
    def charges(self) -> list[Charge]:
        return [charge for cost in self.costs for charge in cost.step]

    @cached_property
    def devices(self) -> int:
        return sum(cost.mesh.devices for cost in self.costs)

    @property
    def between_meshes(self) -> int:
        return sum(each.bytes for each in self.travels)

    @cached_property
    def names(self) -> list[str]:
        """The names of the compared figures."""
        return [name for name in FIGURES if name != "time" or self.seconds is not None]

    @cached_property
    def figures(self) -> Mapping[str, float]:
        """The figures of the whole step."""
        sums = [total(cost.step) for cost in self.costs]
        return {
            "time": sum((self.seconds or {}).values()),
            "FLOPs": self._mean(whole(each.flops) for each in sums),
            "sent": self._mean((whole(each.sent.bytes) for each in sums), self.between_meshes),
            "memory": self._mean(whole(cost.memory.total) for cost in self.costs),
        }

    @cached_property
    def lines(self) -> Mapping[Line, _Found]:
        """The costs by line of the file; a line has the costs of the functions of other files that it calls."""
        lines: dict[Line, _Found] = {}

        def at(span: Span | None) -> _Found:
            line = line_of(span.inside(self.cost.file) if span else None)
            return lines.setdefault(line, _Found([[] for _ in self.costs]))

        for number, cost in enumerate(self.costs):
            for charge in cost.step:
                at(charge.span).charges[number].append(charge)
            for span, amount in cost.memory.occupied:
                at(span).memory[number] += whole(amount)
            for span, amount in cost.memory.stored:
                at(span).stored[number] += whole(amount)
        for travel in self.travels:
            at(travel.span).travels.append(travel)
        for span, seconds in (self.seconds or {}).items():
            at(span).figures["time"] += seconds
        for found in lines.values():
            sums = list(map(total, found.charges))
            sent = sum(travel.bytes for travel in found.travels)
            found.figures.update(
                FLOPs=self._mean(whole(each.flops) for each in sums),
                sent=self._mean((whole(each.sent.bytes) for each in sums), sent),
                memory=self._mean(found.memory[number] for number in range(len(self.costs))),
                stored=self._mean(found.stored[number] for number in range(len(self.costs))),
            )
        return lines

    def collectives(self, found: _Found) -> Mapping[str, str]:
        """Return what a line sends: `2 all_reduce{rows}` -> bytes of a device, and `x from front to back` -> bytes of all."""
        names = [cost.mesh.name for cost in self.costs]
        sent: dict[str, str] = {}
        for name, charges in zip(names, found.charges, strict=False):
            on = f" on {name}" if len(names) > 1 else ""
            sent |= {f"{kind}{on}": size for kind, size in transfers(charges)}
        between: defaultdict[str, int] = defaultdict(int)
        for each in found.travels:
            between[f"{each.value} from {names[each.source.part]} to {names[each.target.part]}"] += each.bytes
        return sent | {key: bytes_text(size) for key, size in between.items()}

    def _mean(self, amounts: Iterable[int], between: int = 0) -> float:
        """Return the mean over all devices of amounts per device of each mesh, and of what travels between meshes."""
        pairs = zip(amounts, self.costs, strict=False)
        sum_of_all = sum(amount * cost.mesh.devices for amount, cost in pairs) + between
        return sum_of_all // self.devices if sum_of_all % self.devices == 0 else sum_of_all / self.devices


@attrs.define
class _Found:
    """The cost of a line under one layout. charges, memory, stored: those of each mesh, by its number."""

    charges: Sequence[list[Charge]] = ()
    memory: defaultdict[int, int] = attrs.field(factory=lambda: defaultdict(int))
    stored: defaultdict[int, int] = attrs.field(factory=lambda: defaultdict(int))
    travels: list[Travel] = attrs.field(factory=list)
    figures: defaultdict[str, float] = attrs.field(factory=lambda: defaultdict(int))


@attrs.frozen
class ComparedLine:
    """The figures of a line in pairs, by name. details: rows below the line. more: further keys of the record."""

    line: Line
    figures: Mapping[str, Pair]
    differs: bool
    details: Sequence[str] = ()
    more: Mapping[str, Any] = attrs.field(factory=dict)


@attrs.frozen(eq=False)
class StepDifference:
    """A step under two layouts or placements: figures in pairs, in total and by line of the user's file.

    names: of both. totals: the figures of `figures` for the whole step. rows: the rows of the table of totals. about, more: the
    keys of the record before the totals and after them. notes: lines below the report.
    """

    title: str
    names: tuple[str, str]
    file: str | None
    figures: Mapping[str, ComparedFigure]
    totals: Mapping[str, Pair]
    rows: Sequence[tuple[str, Pair, Callable[[Any], str]]]
    lines: Sequence[ComparedLine]
    about: Mapping[str, Any]
    more: Mapping[str, Any] = attrs.field(factory=dict)
    notes: Sequence[str] = ()

    def report(self, texts: Mapping[str, str]) -> str:
        """Return the totals, and the lines that differ with their sums; `texts` holds each file's text by name."""
        totals = [["", *self.names, "difference"]]
        for name, (one, other), text in self.rows:
            totals.append([name, text(one), text(other), signed(other - one, text)])
        table = [*aligned(totals, right=range(1, 4)), "", *self._by_line(texts)]
        return "\n".join([self.title, *table, *self.notes]) + "\n"

    def _by_line(self, sources: Mapping[str, str]) -> list[str]:
        texts = {file: text.splitlines() for file, text in sources.items()}
        rows = [["line", "source", *self.figures]]
        for each in self.lines:
            if each.differs:
                place, source = place_text(each.line, self.file), source_text(each.line, texts)
                rows.append([place, source, *self._changes(each.figures)])
                rows += [["", f"  {text}", *("" for _ in self.figures)] for text in each.details]
        sums = {name: _sum(each.figures[name] for each in self.lines) for name in self.figures}
        return fitted([*rows, ["all", "", *self._changes(sums)]])

    def _changes(self, figures: Mapping[str, Pair]) -> list[str]:
        pairs = ((*figures[name], each.text) for name, each in self.figures.items())
        return ["" if isclose(one, other) else signed(other - one, text) for one, other, text in pairs]

    def record(self) -> dict[str, Any]:
        """Return the figures in pairs: under the first layout or placement and under the second."""
        keys = {name: each.key for name, each in self.figures.items()}
        lines = [
            {
                "file": each.line[0],
                "line": each.line[1],
                **{key: list(each.figures[name]) for name, key in keys.items()},
                **each.more,
            }
            for each in self.lines
        ]
        totals = {key: list(self.totals[name]) for name, key in keys.items()}
        return {**self.about, **totals, **self.more, "lines": lines}


def _sum(pairs: Iterable[Pair]) -> Pair:
    left, right = zip((0, 0), *pairs, strict=True)
    return sum(left), sum(right)


def signed(change: float, text: Callable[[Any], str]) -> str:
    """Return `+512 KiB`, `-3`, or `0`."""
    return f"{'-' if change < 0 else '+' if change else ''}{text(abs(change))}"


def difference(one: ComparedLayout, other: ComparedLayout, with_caveat: bool = False) -> StepDifference:
    """Compare the costs of a model under two layouts. with_caveat: True to end the report with the caveat of the machine."""
    both, model = (one, other), one.cost.model
    names = one.cost.layout.name, other.cost.layout.name
    unit = "training step" if one.cost.trains else "forward pass"
    several = len(one.costs) > 1 or len(other.costs) > 1
    of = "in the mean of all devices" if several else "on one device"
    figures = {name: FIGURES[name] for name in one.names}
    totals = {name: (one.figures[name], other.figures[name]) for name in one.names}
    between = one.between_meshes, other.between_meshes
    rows: list[tuple[str, Pair, Callable[[Any], str]]] = [("devices", (one.devices, other.devices), str)]
    rows += [(name, totals[name], each.text) for name, each in figures.items()]
    if several:
        fullest = [max(whole(cost.memory.total) for cost in each.costs) for each in both]
        rows += [
            ("between meshes", between, bytes_text),
            ("fullest device", (fullest[0], fullest[1]), bytes_text),
        ]
    peak = {"peak_figures": one.hardware.has_peak_figures} if one.hardware else {}
    return StepDifference(
        title=f"{model}, one {unit} {of}: from layout {names[0]} to layout {names[1]}",
        names=names,
        file=one.cost.file,
        figures=figures,
        totals=totals,
        rows=rows,
        lines=list(_compared_lines(one, other)),
        about={"model": model, "layouts": list(names), **peak},
        more={"bytes_between_meshes": list(between)},
        notes=one.hardware.caveat if with_caveat and one.hardware else (),
    )


def _compared_lines(one: ComparedLayout, other: ComparedLayout) -> Iterator[ComparedLine]:
    """Yield the cost of each line under both layouts, in order."""
    both = one, other
    for line in sorted({*one.lines, *other.lines}):
        found = [each.lines.get(line, _Found()) for each in both]
        pairs = {name: (found[0].figures[name], found[1].figures[name]) for name in (*FIGURES, "stored")}
        sent = [each.collectives(costs) for each, costs in zip(both, found, strict=True)]
        details = [
            f"{each.cost.layout.name}: {kind} {size}"
            for each, collectives in zip(both, sent, strict=True)
            for kind, size in collectives.items()
            if sent[0] != sent[1]
        ]
        differs = bool(details) or not all(isclose(*pairs[name]) for name in FIGURES)
        yield ComparedLine(line, pairs, differs, details, {"stored": list(pairs["stored"])})
