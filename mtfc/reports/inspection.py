"""Records of a step as a compiler makes it, beside its prediction: memory, FLOPs, cycles and collectives, as text and as JSON."""

from collections import Counter
from collections.abc import Iterator, Mapping
from functools import cached_property
from math import floor
from typing import Any

import attrs

from mtfc.compiler.cost.sizes import whole
from mtfc.compiler.cost.volumes import Charge, CostTotals, PlacedCost, SentVolume, grouped, total
from mtfc.compiler.diagnostics import Span
from mtfc.compiler.ir.printer import bytes_text
from mtfc.reports.cost_report import heading, sent_json, totals_json
from mtfc.reports.source_lines import (
    Line,
    aligned,
    count_text,
    fitted,
    flops_text,
    line_of,
    line_rows,
    lines_json,
    place_text,
)

ROADS = {
    "predicted": "predicted",
    "compiled": "compiled",
    "apply": "plan.apply",
    "shardings": "shardings alone",
}
"""The key in records of each program -> the head of its column."""

QUANTITIES = ("flops_per_device", "wire_bytes_per_device", "cycles_per_device")
"""The figures of a line."""


@attrs.frozen(slots=False)
class StepFigures:
    """The figures of one device in one step, predicted or compiled.

    memory: bytes by part. charges: FLOPs and collectives by place; the axes of a collective are its groups, `4 of 2`, and whether
    it is asynchronous. cycles: by place; empty where a compiler expects none. is_partial: True if figures count one iteration of
    a loop whose length the compiler does not state.
    """

    memory: Mapping[str, int]
    charges: tuple[Charge, ...]
    cycles: tuple[tuple[Span | None, int], ...] = ()
    is_partial: bool = False

    @cached_property
    def totals(self) -> CostTotals:
        return total(self.charges)

    @property
    def flops(self) -> int:
        return whole(self.totals.flops)

    @property
    def wire_bytes(self) -> float:
        return float(self.totals.sent.wire_bytes)  # type: ignore[arg-type]

    @property
    def total_cycles(self) -> int | None:
        return sum(amount for _, amount in self.cycles) if self.cycles else None

    @property
    def by_groups(self) -> list[tuple[tuple[str, ...], SentVolume]]:
        """The collectives by kind, groups and asynchrony."""
        found = grouped((c for c in self.charges if c.kind), lambda charge: (str(charge.kind), *charge.axes))
        return sorted((key, total(charges).sent) for key, charges in found.items())

    def on_line(self, line: Line) -> float:
        """Return the bytes that leave the device for a line."""
        return float(sum(amounts[QUANTITIES[1]] for span, amounts in self.lines() if line_of(span) == line))

    def lines(self) -> Iterator[tuple[Span | None, dict[str, float]]]:
        """Yield amounts of each place by quantity."""
        for charge in self.charges:
            sent = float(charge.sent.wire_bytes)  # type: ignore[arg-type]
            yield charge.span, dict(zip(QUANTITIES, (whole(charge.flops), sent, 0), strict=True))
        for span, amount in self.cycles:
            yield span, dict(zip(QUANTITIES, (0, 0, amount), strict=True))

    def record(self) -> dict[str, Any]:
        """Return the JSON record; see `docs/command.md`."""
        groups = [
            {
                "kind": kind,
                "groups": text,
                "asynchronous": when == ["asynchronous"] if when else None,
                **sent_json(sent),
            }
            for (kind, text, *when), sent in self.by_groups
        ]
        figures = {
            "cycles_per_device": self.total_cycles,
            "memory_per_device": dict(self.memory),
            "groups": groups,
        }
        return {**totals_json(self.totals), **figures, "is_partial": self.is_partial}


@attrs.frozen
class Inspection:
    """A step as compiled, beside its prediction. cost: the cost of the layout. seconds: the time of the compilation.

    roads: by the keys of `ROADS`, the figures that are predicted; those of our own program; and of a function of JAX those of
    `plan.apply`, and of the user's function with the shardings of arguments and results alone. texts: of source files.
    is_widened: True if XLA for CPUs has sent floats of 16 bits as f32.
    """

    cost: PlacedCost
    target: str
    compiler: str
    seconds: float
    roads: Mapping[str, StepFigures]
    texts: Mapping[str, str] = attrs.field(factory=dict)
    is_widened: bool = False

    def __getitem__(self, road: str) -> StepFigures:
        return self.roads[road]

    @property
    def heads(self) -> dict[str, str]:
        """Key of each program -> the head of its column."""
        own = {"compiled": "plan.step"} if "apply" in self.roads else {}
        return {road: own.get(road, ROADS[road]) for road in self.roads}

    @property
    def exceeding(self) -> tuple[Line, ...]:
        """The lines where XLA's partitioner sends more than our own program, with or without constraints, the worst first.

        There are none if the program as a whole sends no more: then XLA links a collective with another line than mtfc does.
        """
        known = self["compiled"]
        partitioned = [self.roads[name] for name in ("apply", "shardings") if name in self.roads]
        roads = [road for road in partitioned if _is_more(road.wire_bytes, known.wire_bytes)]
        excess = {
            line: max(road.on_line(line) for road in roads) - known.on_line(line)
            for line in {line_of(charge.span) for road in roads for charge in road.charges}
        }
        return tuple(sorted((p for p in excess if _is_more(excess[p])), key=lambda p: (-excess[p], p)))

    def verdict(self, line: Line) -> str:
        """Return how much of the excess of XLA's partitioner over our own program `plan.apply` avoids at a line."""
        roads = [self[name] for name in ("compiled", "apply", "shardings")]
        known, applied, alone = (each.on_line(line) for each in roads)
        if not _is_more(applied, known) or not _is_more(roads[1].wire_bytes, roads[0].wire_bytes):
            return "plan.apply mends it"
        if not _is_more(alone, applied):
            return "only plan.step avoids it"
        return f"plan.apply avoids {floor(1000 * (alone - applied) / (alone - known)) / 10:g} % of the excess"

    def _lines(self) -> Iterator[tuple[Span | None, Counter[tuple[str, str]]]]:
        """Yield the amounts of each place by program and quantity."""
        for name, road in self.roads.items():
            for span, amounts in road.lines():
                yield span, Counter({(name, quantity): n for quantity, n in amounts.items()})

    def record(self) -> dict[str, Any]:
        """Return the JSON record; see `docs/command.md`."""

        def line(amounts: Counter[tuple[str, str]]) -> dict[str, Any]:
            found = {
                name: {quantity: amounts[name, quantity] for quantity in QUANTITIES} for name in self.roads
            }
            return {**found.pop("compiled"), **found}

        records = {name: road.record() for name, road in self.roads.items()}
        cost = self.cost
        exceeding = [
            {"file": each[0], "line": each[1], "verdict": self.verdict(each)} for each in self.exceeding
        ]
        head: dict[str, Any] = {
            "model": cost.model,
            "layout": cost.layout.name,
            "mesh": cost.mesh.sizes,
            "target": self.target,
            "compiler": self.compiler,
            "compile_seconds": self.seconds,
        }
        lines = lines_json(self._lines(), cost.file, line)
        return {**head, **records.pop("compiled"), **records, "lines": lines, "exceeding": exceeding}

    def report(self, texts: Mapping[str, str]) -> str:
        """Return the figures in total, the collectives, and the lines; `texts` holds each file's text by name."""
        by = f"  compiled for {self.target} in {self.seconds:.1f} s by {self.compiler}"
        parts = [
            [*heading(self.cost), by],
            self._totals(),
            self._collectives(),
            self._by_line(texts),
            self._exceeding(),
        ]
        return "\n\n".join("\n".join(lines) for lines in parts if lines) + "\n"

    def __str__(self) -> str:
        return self.report(self.texts).rstrip("\n")

    def _totals(self) -> list[str]:
        """Return a table of memory, FLOPs, cycles and bytes sent, as predicted and as compiled, with notes."""
        roads, compiled = self.roads.values(), self["compiled"]
        rows = [["", *self.heads.values()]]
        said = compiled.memory
        is_peak = said.get("peak", 0) >= said["total"]  # XLA for CPUs leaves out most
        for part in (each for each in said if is_peak or each != "peak"):
            rows.append(
                [part, *(bytes_text(each.memory[part]) if part in each.memory else "" for each in roads)]
            )
        rows.append(["computed", *(flops_text(each.flops) for each in roads)])
        if compiled.cycles:
            rows.append(["cycles", *(count_text(each.total_cycles or 0) for each in roads)])
        rows.append(["on the wire", *(f"{round(each.wire_bytes):,} B" for each in roads)])
        note = ["  A loop of unknown length counts as one iteration."]
        notes = note * any(each.is_partial for each in roads)
        notes += ["  XLA for CPUs sends floats of 16 bits as f32."] * self.is_widened
        return aligned(rows, right=range(1, len(rows[0]))) + notes

    def _collectives(self) -> list[str]:
        """Return a row for each kind of collective, set of groups and program."""
        rows = [["collectives", "groups", "count", "sent", "on the wire", "", "in"]]
        for name, head in self.heads.items():
            for (kind, groups, *when), sent in self[name].by_groups:
                sizes = (bytes_text(whole(n)) for n in (sent.bytes, sent.wire_bytes))
                rows.append([kind, groups, f"{sent.count:,}", *sizes, *(when or [""]), head])
        return aligned(rows, right=(1, 2, 3, 4)) if rows[1:] else []

    def _by_line(self, texts: Mapping[str, str]) -> list[str]:
        """Return a table of FLOPs, bytes sent and cycles of each line, as predicted and as compiled."""
        columns = [(road, name) for name in QUANTITIES for road in ("predicted", "compiled")]
        columns = columns if self["compiled"].cycles else columns[:4]
        heads = ["FLOPs", "compiled", "on the wire", "compiled", "cycles", "compiled"][: len(columns)]

        def cells(amounts: Counter[tuple[str, str]]) -> list[str]:
            shown = [bytes_text if name == QUANTITIES[1] else count_text for _, name in columns]
            return [
                text(round(amounts[c])) if amounts[c] else "" for text, c in zip(shown, columns, strict=True)
            ]

        rows = [*line_rows(self._lines(), self.cost.file, texts, cells)]
        head = "  By line: each figure as predicted, and as compiled."
        return [head, *fitted([["line", "source", *heads], *rows])] if rows else []

    def _exceeding(self) -> list[str]:
        """Return a table of the lines where XLA's partitioner sends more than `plan.step`, if there are any."""
        if not self.exceeding:
            return []
        rows = [["line", *self.heads.values(), ""]]
        for line in self.exceeding:
            amounts = (f"{round(road.on_line(line)):,} B" for road in self.roads.values())
            rows.append([place_text(line, None) if line[0] else "(no line)", *amounts, self.verdict(line)])
        head = "Lines where XLA's partitioner sends more than plan.step, in bytes on the wire:"
        return [head, *aligned(rows, right=range(1, len(rows[0]) - 1))]


def _is_more(a: float, b: float = 0.0) -> bool:
    """Return True if an amount is larger by more than rounding."""
    return a > b + 0.5
