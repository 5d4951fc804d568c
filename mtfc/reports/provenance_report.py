"""The causes of a layout's collectives, and the effects of a memory limit, as text and as JSON, for `mtfc explain`.

A memory limit keeps some values for the backward pass, and others are computed again.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import attrs

from mtfc.compiler.analysis.provenance import AppliedRule, CollectiveCause, SentArray
from mtfc.compiler.cost.sizes import whole
from mtfc.compiler.cost.volumes import PlacedCost, grouped
from mtfc.compiler.diagnostics import Span
from mtfc.compiler.ir.core import Equation
from mtfc.compiler.ir.printer import bytes_text
from mtfc.compiler.passes.fuse_attention import Reason
from mtfc.compiler.records import Summed, sums
from mtfc.reports.source_lines import fitted, line_of, line_rows, place_json, place_text, source_text
from mtfc.reports.table import aligned, count_text, flops_text

NoKernel = tuple[Equation, str, str]
"""An equation of attention, `TPU` or `GPU`, and why no kernel computes the equation there."""


def provenance_report(found: Sequence[SentArray], own: str | None, texts: Mapping[str, str]) -> str:
    """Return the collectives with their causes by line of the user's file, then the bytes by rule.

    texts: each file's text by name.
    """
    lines = grouped(found, lambda each: line_of(each.span.inside(own) if each.span else None))
    split = {file: text.splitlines() for file, text in texts.items()}
    parts = []
    for line in sorted(lines):
        parts.append(f"  line {place_text(line, own)}  {source_text(line, split)}".rstrip())
        alike = grouped(lines[line], lambda each: str([*_rows(each, own)]))
        parts += aligned([row for each in alike.values() for row in _rows(_sum(each), own)], indent="    ")
    if not found:
        return "  Nothing is sent.\n"
    return "\n".join([*parts, "", "  Bytes that each rule has a part in:", *_by_rule(found), ""])


def _sum(alike: Sequence[SentArray]) -> SentArray:
    """Return arrays that have equal rows as one, such as the gradients of separate layers."""
    return attrs.evolve(
        alike[0], bytes=sum(each.bytes for each in alike), times=sum(each.times for each in alike)
    )


def _rows(each: SentArray, own: str | None) -> Iterator[list[str]]:
    """Yield a row with the first cause, and a row for each further cause."""
    often = f"{each.times} x " if each.times > 1 else ""
    cells = [f"{often}{each.kind}{{{', '.join(each.axes)}}}", bytes_text(each.bytes), each.stage]
    for cause in each.causes or (None,):
        yield [*cells, *_because(cause, each, own)]
        cells = ["", "", ""]


def _because(cause: CollectiveCause | None, each: SentArray, own: str | None) -> list[str]:
    if cause is None:
        return ["", "neighbours along a dimension that is split"]
    text = f"{_place(cause.span, own)} {cause.what}"
    if cause.what.endswith("in parts") and not cause.what.startswith("wants"):
        text += f"; {_place(each.used, own)} needs it otherwise"
    return [str(cause.rule), text]


def _place(span: Span | None, own: str | None) -> str:
    """Return `line 21`, or `nn.mtf:280` for a line of another file."""
    if span is None:
        return "the result"
    text = place_text(line_of(span), own)
    return f"line {text}" if text.isdigit() else text


def _by_rule(found: Sequence[SentArray]) -> list[str]:
    totals: dict[AppliedRule, int] = sums(
        (rule, each.bytes)
        for each in found
        for rule in dict.fromkeys(cause.rule for cause in each.causes if cause.rule.is_written)
    )
    rows = [[str(rule), bytes_text(size)] for rule, size in sorted(totals.items(), key=lambda item: -item[1])]
    return aligned(rows, right={1}, indent="    ") if rows else []


def separate_report(found: Sequence[Reason], own: str | None) -> str:
    """Return the softmaxes between two dots that stay separate ops, with the reason; an empty text if there are none."""
    rows = [[place_text(line_of(each.eqn.span), own), each.text] for each in found]
    return _listed("Softmaxes between two dots that are not one op, so their weights are stored:", rows)


def _listed(title: str, rows: Sequence[Sequence[str]]) -> str:
    return "\n".join([f"\n  {title}", *aligned(rows, indent="    line "), ""]) if rows else ""


def separate_json(found: Sequence[Reason]) -> list[dict[str, Any]]:
    """Return a record for each softmax between two dots that stays separate ops."""
    return [{**place_json(each.eqn.span), "why": each.text} for each in found]


def kernels_report(found: Sequence[NoKernel], own: str | None) -> str:
    """Return the attention that a kind of device computes without a kernel, with the reason; an empty text if there is none."""
    places = dict.fromkeys((line_of(eqn.span), device, text) for eqn, device, text in found)
    rows = [[place_text(line, own), f"on {device}s", text] for line, device, text in places]
    return _listed("Attention that JAX computes in blocks, without a kernel:", rows)


def kernels_json(found: Sequence[NoKernel]) -> list[dict[str, Any]]:
    """Return a record for each line of attention that a kind of device computes without a kernel."""
    by_line = {(line_of(eqn.span), device, text): eqn for eqn, device, text in found}
    return [
        {**place_json(eqn.span), "device": device, "why": text} for (_, device, text), eqn in by_line.items()
    ]


def provenance_json(found: Sequence[SentArray]) -> list[dict[str, Any]]:
    """Return a record for each array that is sent; bytes are those of one device in a step."""
    return [
        {
            "kind": each.kind,
            "axes": list(each.axes),
            "bytes_per_device": each.bytes,
            "count": each.times,
            "stage": each.stage,
            **place_json(each.span),
            "used": place_json(each.used),
            "causes": [
                {"rule": str(cause.rule), "dim": cause.rule.dim, "what": cause.what, **place_json(cause.span)}
                for cause in each.causes
            ],
        }
        for each in found
    ]


# Memory limits


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

    def report(self, sources: Mapping[str, str]) -> str:
        """Return what the limit keeps and what is computed again, by line; `sources` holds each file's text by name."""
        before, after = (bytes_text(whole(each.memory.total)) for each in (self.without, self.within))
        on = f" on {self.machine}" if self.machine else ""
        limit = f"limit {bytes_text(self.limit)}" if isinstance(self.limit, int) else f"by `{self.limit}`"
        limit, total = f"  Memory {limit}{on}:", self.total
        if not (total.saved_bytes or total.added_flops or total.added_sent_bytes):
            fits = " and fits" * isinstance(self.limit, int)
            return f"{limit} the step takes {before}{fits}: nothing is computed again.\n"
        more = [flops_text(total.added_flops)]
        more += [f"{bytes_text(total.added_sent_bytes)} sent"] if total.added_sent_bytes else []
        head = [
            f"{limit} {after} in place of {before}, for {' and '.join(more)} more.",
            "  By line: bytes kept for the backward pass, bytes no longer kept, and what computing again adds.",
        ]
        if self.machine is None:
            head.append(
                "  Each value counts with its own size: `--memory SIZE@HW` counts the arrays that a machine stores."
            )
        rows = [["line", "source", "kept", "no longer", "FLOPs", "sent"]]
        rows += line_rows(self.lines(), self.within.file, sources, _cells)
        return "\n".join([*head, *fitted(rows)]) + "\n"

    def record(self) -> dict[str, Any]:
        """Return the record: the limit, the memory without and with it, and the figures of each place."""
        return {
            "limit": self.limit,
            "machine": self.machine,
            "memory_without": whole(self.without.memory.total),
            "memory_within": whole(self.within.memory.total),
            "lines": [{**place_json(span), **attrs.asdict(line)} for span, line in self.lines()],
        }


def _figures(sign: int, cost: PlacedCost) -> Iterator[tuple[Span | None, KeptLine]]:
    """Yield the figures of each place in a step, which count with a sign."""
    for charge in cost.step:
        flops, sent = sign * whole(charge.flops), sign * whole(charge.sent.bytes)
        yield charge.span, KeptLine(added_flops=flops, added_sent_bytes=sent)
    for span, size in cost.memory.kept:
        yield span, KeptLine(whole(size) if sign > 0 else 0, -sign * whole(size))


def _cells(line: KeptLine) -> list[str]:
    texts = (bytes_text, bytes_text, count_text, bytes_text)
    figures = zip(texts, attrs.astuple(line), strict=True)
    return [text(figure) if figure > 0 else "" for text, figure in figures]
