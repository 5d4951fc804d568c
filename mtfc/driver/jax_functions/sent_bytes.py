"""The bytes that compiled programs of a plan send, beside those that the plan predicts, by line of the user's Python.

XLA's partitioner chooses the collectives of a jitted function. The text of the compiled program names the call stack of each
collective, so the report can say which line sends more than predicted, and whether the constraints of `plan.apply` mend that.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from itertools import takewhile
from pathlib import Path
from typing import Any

import attrs

from mtfc.backends.hlo import SentByStack, sent_by_stack
from mtfc.compiler.cost.volumes import Charge, layout_cost
from mtfc.compiler.ir.core import Program
from mtfc.compiler.ir.ops.collectives import KINDS
from mtfc.driver.training.user_code import OWN
from mtfc.frontend.jaxpr.user_lines import is_library
from mtfc.reports.table import aligned

Place = tuple[str, int]
"""A line of the user's Python: file and number. ("", 0) stands for collectives that XLA links with no line."""


@attrs.frozen
class SentBytes:
    """The bytes of operands that a device sends by collectives, by kind and line. wire_bytes: those that leave the device."""

    by_kind: Mapping[tuple[str, Place], int]
    wire_by_line: Mapping[Place, float]

    @property
    def kinds(self) -> dict[str, int]:
        """The bytes of operands of each kind of collective that occurs."""
        found: Counter[str] = Counter()
        for (kind, _), amount in self.by_kind.items():
            found[kind] += amount
        return {kind: found[kind] for kind in KINDS if kind in found}

    @property
    def wire_bytes(self) -> float:
        return sum(self.wire_by_line.values())

    def on_line(self, place: Place) -> float:
        """Return the bytes that leave the device for a line."""
        return self.wire_by_line.get(place, 0.0)


@attrs.frozen
class BytesComparison:
    """The bytes that a device sends: as predicted, and in three compiled programs.

    step: `plan.packed_step`. applied: `plan.apply`. shardings: the user's function with the shardings of arguments and results
    alone.
    """

    predicted: SentBytes
    step: SentBytes
    applied: SentBytes
    shardings: SentBytes

    @property
    def roads(self) -> dict[str, SentBytes]:
        """Key in JSON of each road -> the bytes that it sends."""
        names = ("predicted", "step", "apply", "shardings")
        return dict(zip(names, (self.predicted, self.step, self.applied, self.shardings), strict=True))

    @property
    def exceeding(self) -> tuple[Place, ...]:
        """The lines where XLA's partitioner sends more than predicted, with or without constraints, the worst first.

        There are none if the program as a whole sends no more: then XLA links a collective with another line than mtfc does.
        """
        known = self.predicted
        roads = [
            road for road in (self.applied, self.shardings) if _is_more(road.wire_bytes, known.wire_bytes)
        ]
        excess = {
            place: max(road.on_line(place) for road in roads) - known.on_line(place)
            for place in {place for road in roads for place in road.wire_by_line}
        }
        return tuple(sorted((p for p in excess if _is_more(excess[p])), key=lambda p: (-excess[p], p)))

    def verdict(self, place: Place) -> str:
        """Return whether `plan.apply` mends a line where XLA's partitioner sends more than predicted."""
        known, applied, alone = (
            each.on_line(place) for each in (self.predicted, self.applied, self.shardings)
        )
        if not _is_more(applied, known) or not _is_more(self.applied.wire_bytes, self.predicted.wire_bytes):
            return "plan.apply mends it"
        return "plan.apply mends a part" if _is_more(alone, applied) else "only plan.step avoids it"

    def record(self) -> dict[str, Any]:
        """Return the JSON record; see `docs/command.md`."""
        roads = self.roads
        lines = [
            {
                "file": file,
                "line": line,
                **{
                    name: round(roads[name].on_line((file, line)))
                    for name in ("predicted", "apply", "shardings")
                },
                "verdict": self.verdict((file, line)),
            }
            for file, line in self.exceeding
        ]
        totals = {
            name: {"bytes_per_device": each.kinds, "wire_bytes_per_device": round(each.wire_bytes)}
            for name, each in roads.items()
        }
        return {**totals, "lines": lines}

    def __str__(self) -> str:
        roads = self.roads.values()
        kinds = [kind for kind in KINDS if any(kind in each.kinds for each in roads)]
        heads = ("a device sends", "predicted", "plan.step", "plan.apply", "shardings alone")
        rows: list[tuple[str, ...]] = [heads]
        rows += [(kind, *(f"{each.kinds.get(kind, 0):,} B" for each in roads)) for kind in kinds]
        rows.append(("on the wire", *(f"{round(each.wire_bytes):,} B" for each in roads)))
        lines = aligned(rows, right=(1, 2, 3, 4), indent="")
        if self.exceeding:
            lines += ["", "Lines where XLA's partitioner sends more than predicted, in bytes on the wire:"]
            lines += aligned(
                [("line", *heads[1:2], *heads[3:], ""), *map(self._row, self.exceeding)], right=(1, 2, 3)
            )
        return "\n".join(lines)

    def _row(self, place: Place) -> tuple[str, ...]:
        roads = (self.predicted, self.applied, self.shardings)
        amounts = (f"{round(each.on_line(place)):,} B" for each in roads)
        file, line = place
        return (f"{Path(file).name}:{line}" if file else "(no line)", *amounts, self.verdict(place))


def _is_more(a: float, b: float = 0.0) -> bool:
    """Return True if an amount is larger by more than rounding."""
    return a > b + 0.5


def compared_bytes(program: Program, step: Any, applied: Any, shardings: Any) -> BytesComparison:
    """Compile three lowered functions of JAX, and return what they send beside what one processor's program does."""
    compiled = (sent_bytes(each.compile()) for each in (step, applied, shardings))
    return BytesComparison(_predicted(layout_cost(program).step), *compiled)


def sent_bytes(compiled: Any) -> SentBytes:
    """Return what a compiled function of JAX sends."""
    found = sent_by_stack(compiled.as_text())
    return _summed((each.kind, _place(each), each.bytes, each.wire_bytes) for each in found)


def _place(sent: SentByStack) -> Place:
    """Return the innermost line of the imported function outside of libraries, or else the innermost one."""
    frames = [*takewhile(lambda frame: not frame[0].startswith(OWN), sent.frames)]
    own = (frame for frame in frames if not is_library(frame[0]))
    return next(own, frames[0] if frames else ("", 0))


def _predicted(charges: Sequence[Charge]) -> SentBytes:
    def place(charge: Charge) -> Place:
        return (charge.span.file, charge.span.line) if charge.span else ("", 0)

    sending = (charge for charge in charges if charge.kind is not None)
    return _summed((str(c.kind), place(c), int(c.sent.bytes), float(c.sent.wire_bytes)) for c in sending)  # type: ignore[arg-type]


def _summed(parts: Iterable[tuple[str, Place, int, float]]) -> SentBytes:
    by_kind: Counter[tuple[str, Place]] = Counter()
    wire: Counter[Place] = Counter()
    for kind, place, amount, wire_amount in parts:
        by_kind[kind, place] += amount
        wire[place] += wire_amount  # type: ignore[assignment]
    return SentBytes(by_kind, wire)
