"""Values that a memory limit keeps for the backward pass, and values that are computed again, as text and as JSON."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import attrs

from mtfc.compiler.cost.sizes import whole
from mtfc.compiler.cost.volumes import PlacedCost
from mtfc.compiler.diagnostics import Span
from mtfc.compiler.ir.printer import bytes_text
from mtfc.compiler.records import Summed, sums
from mtfc.reports.source_lines import fitted, line_rows, place_json
from mtfc.reports.table import count_text, flops_text


@attrs.frozen
class KeptLine(Summed):
    """The figures of a line, in a step on one device, by their keys in JSON: bytes kept for the backward pass, bytes no longer
    kept, and the FLOPs and the bytes sent that recomputation adds.
    """

    kept_bytes: int = 0
    saved_bytes: int = 0
    added_flops: int = 0
    added_sent_bytes: int = 0


@attrs.frozen
class Recomputation:
    """A step without and with a memory limit, under one layout: bytes, or a word. machine: the one whose memory counts."""

    limit: int | str
    machine: str | None
    without: PlacedCost
    within: PlacedCost

    def lines(self) -> list[tuple[Span | None, KeptLine]]:
        """Return the figures of each place where the limit keeps something, or changed something."""
        found = sums((*_figures(-1, self.without), *_figures(1, self.within)))
        return [(span, line) for span, line in found.items() if any(attrs.astuple(line))]

    @property
    def total(self) -> KeptLine:
        return sum((line for _, line in self.lines()), start=KeptLine())


def _figures(sign: int, cost: PlacedCost) -> Iterator[tuple[Span | None, KeptLine]]:
    """Yield the figures of each place in a step, which count with a sign."""
    for charge in cost.step:
        flops, sent = sign * whole(charge.flops), sign * whole(charge.sent.bytes)
        yield charge.span, KeptLine(added_flops=flops, added_sent_bytes=sent)
    for span, size in cost.memory.kept:
        yield span, KeptLine(whole(size) if sign > 0 else 0, -sign * whole(size))


def recompute_report(found: Recomputation, sources: Mapping[str, str]) -> str:
    """Return what the limit keeps and what is computed again, by line; `sources` holds each file's text by name."""
    before, after = (bytes_text(whole(each.memory.total)) for each in (found.without, found.within))
    on = f" on {found.machine}" if found.machine else ""
    limit = f"limit {bytes_text(found.limit)}" if isinstance(found.limit, int) else f"by `{found.limit}`"
    limit, total = f"  Memory {limit}{on}:", found.total
    if not (total.saved_bytes or total.added_flops or total.added_sent_bytes):
        return f"{limit} the step takes {before}, so nothing is computed again.\n"
    more = [flops_text(total.added_flops)]
    more += [f"{bytes_text(total.added_sent_bytes)} sent"] if total.added_sent_bytes else []
    head = [
        f"{limit} {after} in place of {before}, for {' and '.join(more)} more.",
        "  By line: bytes kept for the backward pass, bytes no longer kept, and what computing again adds.",
    ]
    if found.machine is None:
        head.append(
            "  Each value counts with its own size: `--memory SIZE@HW` counts the arrays that a machine stores."
        )
    rows = [["line", "source", "kept", "no longer", "FLOPs", "sent"]]
    rows += line_rows(found.lines(), found.within.file, sources, _cells)
    return "\n".join([*head, *fitted(rows)]) + "\n"


def _cells(line: KeptLine) -> list[str]:
    texts = (bytes_text, bytes_text, count_text, bytes_text)
    figures = zip(texts, attrs.astuple(line), strict=True)
    return [text(figure) if figure > 0 else "" for text, figure in figures]


def recompute_json(found: Recomputation) -> dict[str, Any]:
    """Return the record: the limit, the memory without and with it, and the figures of each place."""
    return {
        "limit": found.limit,
        "machine": found.machine,
        "memory_without": whole(found.without.memory.total),
        "memory_within": whole(found.within.memory.total),
        "lines": [{**place_json(span), **attrs.asdict(line)} for span, line in found.lines()],
    }
