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
    layouts, compared = (one, other), list[ComparedLine]()
    for line in sorted({*one.lines, *other.lines}):
        left, right = (each.lines.get(line, _Found()) for each in layouts)
        figures = {name: (left.figures[name], right.figures[name]) for name in (*FIGURES, "stored")}
        compared.append(ComparedLine(line, figures, (one.collectives(left), other.collectives(right))))
    return compared


def difference_report(one: ComparedLayout, other: ComparedLayout, sources: Mapping[str, str]) -> str:
    """Return the totals of both layouts, and the lines that differ; `sources` holds each file's text by name."""
    return "\n".join([*_totals(one, other), "", *_lines(one, other, sources)]) + "\n"


def _totals(one: ComparedLayout, other: ComparedLayout) -> list[str]:
    layouts = [each.cost.layout.name for each in (one, other)]
    unit = "training step" if one.cost.trains else "forward pass"
    several = len(one.costs) > 1 or len(other.costs) > 1
    of = "in the mean of all devices" if several else "on one device"
    heading = f"{one.cost.model}, one {unit} {of}: from layout {layouts[0]} to layout {layouts[1]}"
    devices = [each.devices for each in (one, other)]
    rows = [
        ["", *layouts, "difference"],
        ["devices", *map(str, devices), signed(devices[1] - devices[0], str)],
    ]
    for name in one.names:
        text, left, right = FIGURES[name].text, one.figures[name], other.figures[name]
        rows.append([name, text(left), text(right), signed(right - left, text)])
    if several:
        between = [each.between_meshes for each in (one, other)]
        fullest = [max(whole(cost.memory.total) for cost in each.costs) for each in (one, other)]
        for name, (first, second) in {"between meshes": between, "fullest device": fullest}.items():
            rows.append([name, bytes_text(first), bytes_text(second), signed(second - first, bytes_text)])
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
        "bytes_between_meshes": [one.between_meshes, other.between_meshes],
        "lines": [
            {
                "file": each.line[0],
                "line": each.line[1],
                **{key: list(each.figures[name]) for name, key in (keys | {"stored": "stored"}).items()},
            }
            for each in differences(one, other)
        ],
    }
