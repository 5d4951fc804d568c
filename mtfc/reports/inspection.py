"""Records of a step as a compiler makes it, beside its prediction: memory, FLOPs, cycles and collectives, as text and as JSON."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from functools import cached_property
from operator import add
from typing import Any

import attrs

from mtfc.compiler.diagnostics import Span
from mtfc.compiler.ir.ops.collectives import KINDS
from mtfc.compiler.ir.printer import bytes_text
from mtfc.compiler.ir.types import Mesh
from mtfc.reports.source_lines import Line, fitted, line_of, line_rows, lines_json, place_text
from mtfc.reports.table import aligned, count_text, flops_text

ROADS = {
    "predicted": "predicted",
    "compiled": "compiled",
    "apply": "plan.apply",
    "shardings": "shardings alone",
}
"""The key in records of each program -> the head of its column."""


@attrs.frozen
class Transfer:
    """Collectives of one kind in groups of devices, on one device. bytes: of operands. wire_bytes: those that leave the device.

    is_asynchronous: None in a prediction.
    """

    kind: str
    groups: int
    members: int
    is_asynchronous: bool | None
    count: int = 0
    bytes: int = 0
    wire_bytes: float = 0.0

    @property
    def key(self) -> tuple[Any, ...]:
        return KINDS.index(self.kind), -self.members, self.groups, self.is_asynchronous or False

    def record(self) -> dict[str, Any]:
        """Return the JSON record; see `docs/command.md`."""
        names = (
            "kind",
            "groups",
            "devices",
            "asynchronous",
            "count",
            "bytes_per_device",
            "wire_bytes_per_device",
        )
        return dict(zip(names, attrs.astuple(self), strict=True))


@attrs.frozen
class StepFigures:
    """The figures of one device in one step, predicted or compiled.

    memory: bytes by part. flops, cycles, wire_bytes: amounts of places. cycles are empty where a compiler expects none.
    transfers: collectives by place. unknown: True if figures count one iteration of a loop whose length the compiler does not
    state.
    """

    memory: Mapping[str, int]
    flops: tuple[tuple[Span | None, int], ...]
    cycles: tuple[tuple[Span | None, int], ...]
    transfers: tuple[tuple[Span | None, Transfer], ...]
    unknown: bool = False

    @cached_property
    def kinds(self) -> dict[str, int]:
        """The bytes of operands of each kind of collective that occurs."""
        found: Counter[str] = Counter()
        for _, each in self.transfers:
            found[each.kind] += each.bytes
        return {kind: found[kind] for kind in KINDS if kind in found}

    @property
    def wire_bytes(self) -> float:
        return sum(each.wire_bytes for _, each in self.transfers)

    def on_line(self, line: Line) -> float:
        """Return the bytes that leave the device for a line."""
        return sum(each.wire_bytes for span, each in self.transfers if line_of(span) == line)

    @cached_property
    def total_flops(self) -> int:
        return _total(self.flops)

    @property
    def total_cycles(self) -> int | None:
        return _total(self.cycles) if self.cycles else None

    @property
    def by_groups(self) -> list[Transfer]:
        """The collectives of all places, by kind, groups and asynchrony."""
        found: dict[tuple[Any, ...], Transfer] = {}
        for _, each in self.transfers:
            before = found.get(each.key, attrs.evolve(each, count=0, bytes=0, wire_bytes=0.0))
            sums = {
                name: getattr(before, name) + getattr(each, name) for name in ("count", "bytes", "wire_bytes")
            }
            found[each.key] = attrs.evolve(before, **sums)
        return [found[key] for key in sorted(found)]

    def record(self) -> dict[str, Any]:
        """Return the JSON record; see `docs/command.md`."""
        kinds: dict[str, dict[str, float]] = {}
        for each in self.by_groups:
            sums = kinds.setdefault(
                each.kind, dict.fromkeys(("count", "bytes_per_device", "wire_bytes_per_device"), 0)
            )
            for name, amount in zip(sums, (each.count, each.bytes, each.wire_bytes), strict=True):
                sums[name] += amount
        return {
            "flops_per_device": self.total_flops,
            "cycles_per_device": self.total_cycles,
            "memory_per_device": dict(self.memory),
            "wire_bytes_per_device": self.wire_bytes,
            "collectives": kinds,
            "groups": [each.record() for each in self.by_groups],
            "loops_of_unknown_length": self.unknown,
        }


def _total(amounts: Iterable[tuple[Span | None, int]]) -> int:
    return sum(amount for _, amount in amounts)


@attrs.frozen
class LineWork:
    """FLOPs, bytes on the wire and cycles of a place, each in the first two programs."""

    amounts: tuple[float, ...]

    def __add__(self, other: LineWork) -> LineWork:
        return LineWork(tuple(map(add, self.amounts, other.amounts)))


@attrs.frozen(slots=False)
class Inspection:
    """A step as compiled, beside its prediction. unit: a training step or a forward pass. file: the user's file.

    compiled: our own program. applied: `plan.apply` of a function of JAX. shardings: the user's function with the shardings of
    arguments and results alone. seconds: the time of the compilation.
    """

    model: str
    unit: str
    file: str | None
    layout: str
    mesh: Mesh
    target: str
    compiler: str
    seconds: float
    predicted: StepFigures
    compiled: StepFigures
    applied: StepFigures | None = None
    shardings: StepFigures | None = None
    texts: Mapping[str, str] = attrs.field(factory=dict)

    @property
    def roads(self) -> dict[str, StepFigures]:
        """Key in JSON of each program -> its figures."""
        found = zip(ROADS, (self.predicted, self.compiled, self.applied, self.shardings), strict=True)
        return {name: figures for name, figures in found if figures is not None}

    def _head(self, road: str) -> str:
        """Return the head of a program's column."""
        return "plan.step" if road == "compiled" and self.applied else ROADS[road]

    @property
    def exceeding(self) -> tuple[Line, ...]:
        """The lines where XLA's partitioner sends more than predicted, with or without constraints, the worst first.

        There are none if the program as a whole sends no more: then XLA links a collective with another line than mtfc does.
        """
        known = self.predicted
        partitioned = (road for road in (self.applied, self.shardings) if road is not None)
        roads = [road for road in partitioned if _is_more(road.wire_bytes, known.wire_bytes)]
        excess = {
            line: max(road.on_line(line) for road in roads) - known.on_line(line)
            for line in {line_of(span) for road in roads for span, _ in road.transfers}
        }
        return tuple(sorted((p for p in excess if _is_more(excess[p])), key=lambda p: (-excess[p], p)))

    def verdict(self, line: Line) -> str:
        """Return whether `plan.apply` mends a line where XLA's partitioner sends more than predicted."""
        assert self.applied is not None and self.shardings is not None
        known, applied, alone = (
            each.on_line(line) for each in (self.predicted, self.applied, self.shardings)
        )
        if not _is_more(applied, known) or not _is_more(self.applied.wire_bytes, self.predicted.wire_bytes):
            return "plan.apply mends it"
        return "plan.apply mends a part" if _is_more(alone, applied) else "only plan.step avoids it"

    @property
    def _lines(self) -> Iterator[tuple[Span | None, LineWork]]:
        """Yield the work of each place: FLOPs, bytes on the wire and cycles, each as predicted and as compiled."""
        for i, road in enumerate((self.predicted, self.compiled)):
            sent = ((span, each.wire_bytes) for span, each in road.transfers)
            for column, amounts in enumerate((road.flops, sent, road.cycles)):
                for span, amount in amounts:
                    yield span, LineWork(tuple(amount * (j == 2 * column + i) for j in range(6)))

    def record(self) -> dict[str, Any]:
        """Return the JSON record; see `docs/command.md`."""
        names = ("flops_per_device", "wire_bytes_per_device", "cycles_per_device")

        def line(work: LineWork) -> dict[str, Any]:
            predicted, compiled = work.amounts[::2], work.amounts[1::2]
            return {
                **dict(zip(names, compiled, strict=True)),
                "predicted": dict(zip(names, predicted, strict=True)),
            }

        records = {name: road.record() for name, road in self.roads.items()}
        return {
            "model": self.model,
            "layout": self.layout,
            "mesh": dict(self.mesh.axes),
            "devices": self.mesh.devices,
            "target": self.target,
            "compiler": self.compiler,
            "compile_seconds": self.seconds,
            **records.pop("compiled"),
            **records,
            "lines": lines_json(self._lines, self.file, line),
            "exceeding": [
                {"file": file, "line": number, "verdict": self.verdict((file, number))}
                for file, number in self.exceeding
            ],
        }

    def report(self, texts: Mapping[str, str]) -> str:
        """Return the figures in total, the collectives, and the lines; `texts` holds each file's text by name."""
        count = self.mesh.devices
        devices = "one device" if count == 1 else f"each of {count} devices [{self.mesh.axes_text}]"
        title = f"{self.model}, layout {self.layout}: one {self.unit} on {devices}"
        by = f"  compiled for {self.target} in {self.seconds:.1f} s by {self.compiler}"
        parts = [[title, by], self._totals(), self._collectives(), self._by_line(texts), self._exceeding()]
        return "\n\n".join("\n".join(lines) for lines in parts if lines) + "\n"

    def __str__(self) -> str:
        return self.report(self.texts).rstrip("\n")

    def _totals(self) -> list[str]:
        roads = self.roads
        rows = [["", *map(self._head, roads)]]
        rows += [
            [part, *(bytes_text(each.memory[part]) if part in each.memory else "" for each in roads.values())]
            for part in self.compiled.memory
        ]
        rows.append(["computed", *(flops_text(each.total_flops) for each in roads.values())])
        if self.compiled.total_cycles is not None:
            cycles = (each.total_cycles for each in roads.values())
            rows.append(["cycles", *("" if n is None else count_text(n) for n in cycles)])
        rows.append(["on the wire", *(f"{round(each.wire_bytes):,} B" for each in roads.values())])
        note = ["  A loop of unknown length counts as one iteration."]
        return aligned(rows, right=range(1, len(rows[0]))) + note * any(
            each.unknown for each in roads.values()
        )

    def _collectives(self) -> list[str]:
        """Return a row for each kind of collective, set of groups and program."""
        rows = [
            [*_transfer_cells(each), self._head(name)]
            for name, road in self.roads.items()
            for each in road.by_groups
        ]
        heads = ["collectives", "groups", "count", "sent", "on the wire", "", "in"]
        return aligned([heads, *rows], right=(1, 2, 3, 4)) if rows else []

    def _by_line(self, texts: Mapping[str, str]) -> list[str]:
        shown = [i for i in range(6) if i < 4 or self.compiled.cycles]
        heads = ["FLOPs", "compiled", "on the wire", "compiled", "cycles", "compiled"]

        def cells(work: LineWork) -> list[str]:
            numbers = [round(amount) for amount in work.amounts]
            texts = [bytes_text(n) if i in (2, 3) else count_text(n) for i, n in enumerate(numbers)]
            return [texts[i] if numbers[i] else "" for i in shown]

        rows = [*line_rows(self._lines, self.file, texts, cells)]
        head = "  By line: each figure as predicted, and as compiled."
        return [head, *fitted([["line", "source", *(heads[i] for i in shown)], *rows])] if rows else []

    def _exceeding(self) -> list[str]:
        if not self.exceeding:
            return []
        roads = {name: road for name, road in self.roads.items() if name != "compiled"}
        rows = [["line", *map(self._head, roads), ""]]
        for line in self.exceeding:
            amounts = (f"{round(each.on_line(line)):,} B" for each in roads.values())
            place = place_text(line, None) if line[0] else "(no line)"
            rows.append([place, *amounts, self.verdict(line)])
        head = "Lines where XLA's partitioner sends more than predicted, in bytes on the wire:"
        return [head, *aligned(rows, right=(1, 2, 3))]


def _transfer_cells(each: Transfer) -> list[str]:
    when = {None: "", True: "asynchronous", False: "synchronous"}[each.is_asynchronous]
    sizes = f"{each.groups} of {each.members}", f"{each.count:,}"
    return [each.kind, *sizes, bytes_text(each.bytes), bytes_text(round(each.wire_bytes)), when]


def _is_more(a: float, b: float = 0.0) -> bool:
    """Return True if an amount is larger by more than rounding."""
    return a > b + 0.5
