"""The difference in cost of two layouts, by line of the user's file; the lines add up to the difference of the whole step.

Devices of different meshes do different things, so figures of a layout of several meshes are means of all devices. The time
in which a mesh waits for another has no line.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cached_property
from math import isclose
from typing import Any

import attrs

from mtfc.compiler.cost.hardware import Device, Hardware
from mtfc.compiler.cost.sizes import whole
from mtfc.compiler.cost.step_time import step_time
from mtfc.compiler.cost.volumes import Charge, PlacedCost, layout_cost, total
from mtfc.compiler.diagnostics import Span, text_lines
from mtfc.compiler.ir.core import Program
from mtfc.compiler.ir.printer import bytes_text
from mtfc.meshes.multi_mesh_cost import Travel, multi_mesh_cost
from mtfc.meshes.multi_mesh_program import MultiMeshProgram
from mtfc.meshes.multi_mesh_step import MultiMeshStep, multi_mesh_step
from mtfc.reports.cost_report import LineCost, line_costs, transfers
from mtfc.reports.source_lines import Line, aligned, count_text, fitted, line_of, place_text, source_text
from mtfc.reports.step_report import seconds_text

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
    def of_meshes(cls, program: MultiMeshProgram, hardware: Hardware | None = None) -> ComparedLayout:
        """Return the cost of a program on several meshes, and on a machine the seconds of its step."""
        if hardware is not None:
            return cls.of_step(multi_mesh_step(program, hardware), hardware)
        cost = multi_mesh_cost(program)
        return cls(cost.meshes, travels=cost.travels)

    @classmethod
    def of_step(cls, step: MultiMeshStep, hardware: Hardware) -> ComparedLayout:
        """Return the cost of a layout of several meshes with the seconds of its step on a machine."""
        return cls(step.cost.meshes, step.mean_seconds, hardware, step.cost.travels)

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

        def at(span: Span | None) -> Line:
            return line_of(span.inside(self.cost.file) if span else None)

        def found(line: Line) -> _Found:
            return lines.setdefault(line, _Found([LineCost() for _ in self.costs]))

        for number, cost in enumerate(self.costs):
            for line, each in line_costs(cost, lambda span: [at(span)]).items():
                found(line).parts[number] = each
        for travel in self.travels:
            found(at(travel.span)).travels.append(travel)
        for span, seconds in (self.seconds or {}).items():
            found(at(span)).figures["time"] += seconds
        for own in lines.values():
            sums = [total(each.charges) for each in own.parts]
            sent = sum(travel.bytes for travel in own.travels)
            own.figures.update(
                FLOPs=self._mean(whole(each.flops) for each in sums),
                sent=self._mean((whole(each.sent.bytes) for each in sums), sent),
                memory=self._mean(sum(map(whole, each.occupied)) for each in own.parts),
                stored=self._mean(sum(map(whole, each.stored)) for each in own.parts),
            )
        return lines

    def collectives(self, found: _Found) -> Mapping[str, str]:
        """Return what a line sends: `2 all_reduce{rows}` -> bytes of a device, and `x from front to back` -> bytes of all."""
        names = [cost.mesh.name for cost in self.costs]
        sent: dict[str, str] = {}
        for name, part in zip(names, found.parts, strict=False):
            on = f" on {name}" if len(names) > 1 else ""
            sent |= {f"{kind}{on}": size for kind, size in transfers(part.charges)}
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
    """The cost of a line under one layout. parts: the cost on each mesh, by its number."""

    parts: list[LineCost] = attrs.field(factory=list)
    travels: list[Travel] = attrs.field(factory=list)
    figures: defaultdict[str, float] = attrs.field(factory=lambda: defaultdict(int))


@attrs.frozen
class ComparedLine:
    """A line's figures under both layouts, by name. notes: texts about a line that differs, which a report shows below it.

    others: further keys of the JSON record.
    """

    line: Line
    figures: Mapping[str, Pair]
    differs: bool
    notes: Sequence[str] = ()
    others: Mapping[str, Any] = attrs.field(factory=dict)


@attrs.frozen(eq=False)
class StepDifference:
    """The figures of a model's step under two layouts or placements: of the whole step, and by line of the user's file.

    names: the names of both layouts. totals: the figures of the whole step by name. rows: further rows of their table,
    before and after them. notes: lines at the end of the report. others: further keys of the JSON record.
    """

    model: str
    heading: str
    names: tuple[str, str]
    figures: Mapping[str, ComparedFigure]
    totals: Mapping[str, Pair]
    lines: Sequence[ComparedLine]
    file: str | None
    rows: tuple[Sequence[list[str]], Sequence[list[str]]] = ((), ())
    notes: Sequence[str] = ()
    others: Mapping[str, Any] = attrs.field(factory=dict)

    def record(self) -> dict[str, Any]:
        """Return the figures in pairs: under the first layout and under the second; see `docs/command.md`."""
        keys = {name: each.key for name, each in self.figures.items()}
        return {
            "model": self.model,
            "layouts": list(self.names),
            **self.others,
            **{key: list(self.totals[name]) for name, key in keys.items()},
            "lines": [
                {
                    "file": each.line[0],
                    "line": each.line[1],
                    **{key: list(each.figures[name]) for name, key in keys.items()},
                    **each.others,
                }
                for each in self.lines
            ],
        }

    def report(self, texts: Mapping[str, str]) -> str:
        """Return the totals, and the lines that differ; `texts` holds each file's text by name."""
        rows = [["", *self.names, "difference"], *self.rows[0]]
        for name, (left, right) in self.totals.items():
            text = self.figures[name].text
            rows.append([name, text(left), text(right), signed(right - left, text)])
        totals = aligned([*rows, *self.rows[1]], right=range(1, 4))
        return "\n".join([self.heading, *totals, "", *self._by_line(texts), *self.notes]) + "\n"

    def _by_line(self, texts: Mapping[str, str]) -> list[str]:
        """Return a table of the lines that differ, with their notes, and of the sums of all lines."""
        sources = {file: text_lines(text) for file, text in texts.items()}
        rows = [["line", "source", *self.figures]]
        for each in self.lines:
            if each.differs:
                changes = self._changes(each.figures)
                rows.append([place_text(each.line, self.file), source_text(each.line, sources), *changes])
                rows += [["", f"  {note}", *[""] * len(self.figures)] for note in each.notes]
        sums = {name: _sum(each.figures[name] for each in self.lines) for name in self.figures}
        return fitted([*rows, ["all", "", *self._changes(sums)]])

    def _changes(self, pairs: Mapping[str, Pair]) -> list[str]:
        every = ((each.text, *pairs[name]) for name, each in self.figures.items())
        return ["" if isclose(left, right) else signed(right - left, text) for text, left, right in every]


def differences(one: ComparedLayout, other: ComparedLayout) -> list[ComparedLine]:
    """Return the cost of each line under both layouts, in order, with the `stored` bytes of `mtfc cost`.

    The notes of a line are its collectives under both layouts, if these differ.
    """
    layouts, compared = (one, other), list[ComparedLine]()
    for line in sorted({*one.lines, *other.lines}):
        left, right = (each.lines.get(line, _Found()) for each in layouts)
        figures = {name: (left.figures[name], right.figures[name]) for name in FIGURES}
        stored = [left.figures["stored"], right.figures["stored"]]
        sent = one.collectives(left), other.collectives(right)
        every = zip(layouts, sent, strict=True)
        notes = [
            f"{own.cost.layout.name}: {kind} {size}" for own, each in every for kind, size in each.items()
        ]
        is_sent = sent[0] != sent[1]
        differs = is_sent or not all(isclose(*figures[name]) for name in FIGURES)
        compared.append(ComparedLine(line, figures, differs, notes if is_sent else (), {"stored": stored}))
    return compared


def difference_of(one: ComparedLayout, other: ComparedLayout, notes: Sequence[str] = ()) -> StepDifference:
    """Return the difference of two layouts. notes: lines at the end of the report."""
    first, second = one.cost.layout.name, other.cost.layout.name
    unit = "training step" if one.cost.trains else "forward pass"
    several = len(one.costs) > 1 or len(other.costs) > 1
    of = "in the mean of all devices" if several else "on one device"
    between = one.between_meshes, other.between_meshes
    after = []
    if several:
        fullest = [max(whole(cost.memory.total) for cost in each.costs) for each in (one, other)]
        for name, (left, right) in {"between meshes": between, "fullest device": fullest}.items():
            after.append([name, bytes_text(left), bytes_text(right), signed(right - left, bytes_text)])
    peak = {"peak_figures": one.hardware.has_peak_figures} if one.hardware else {}
    devices = ["devices", str(one.devices), str(other.devices), signed(other.devices - one.devices, str)]
    return StepDifference(
        one.cost.model,
        f"{one.cost.model}, one {unit} {of}: from layout {first} to layout {second}",
        (first, second),
        {name: FIGURES[name] for name in one.names},
        {name: (one.figures[name], other.figures[name]) for name in one.names},
        differences(one, other),
        one.cost.file,
        ([devices], after),
        notes,
        {**peak, "bytes_between_meshes": list(between)},
    )


def _sum(pairs: Iterable[Pair]) -> Pair:
    left, right = zip((0, 0), *pairs, strict=True)
    return sum(left), sum(right)


def signed(change: float, text: Callable[[Any], str]) -> str:
    """Return `+512 KiB`, `-3`, or `0`."""
    return f"{'-' if change < 0 else '+' if change else ''}{text(abs(change))}"
