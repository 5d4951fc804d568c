"""Costs for `mtfc cost`: one layout by line of the file, several layouts side by side, formulas, and the JSON record.

The first part of the formulas is Table 1 of the Mesh-TensorFlow paper, with the constant factors that the paper drops. For each
layout it has the leading terms of computation, communication, their ratio, and memory per processor. The second part has the
complete formulas. The paper's two layers are in the middle of a network, so the paper counts the gradient of their input. A
training step needs that gradient only if a layer comes before.

The causes of a layout's collectives, and the effects of a memory limit, as text and as JSON, for `mtfc explain`.

A memory limit keeps some values for the backward pass, and others are computed again.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import chain, repeat
from typing import Any, TypeVar, get_args

import attrs

from mtfc.compiler.analysis.provenance import AppliedRule, CollectiveCause, SentArray
from mtfc.compiler.cost.sizes import Amount, Formula, FormulaSizes, formula, ratio, whole
from mtfc.compiler.cost.step_time import Seconds
from mtfc.compiler.cost.volumes import (
    Charge,
    CostTotals,
    PipelineCost,
    PlacedCost,
    SentVolume,
    grouped,
    layout_cost,
    total,
)
from mtfc.compiler.diagnostics import Span, text_lines
from mtfc.compiler.ir.core import Equation, Program, Stage
from mtfc.compiler.ir.ops.collectives import KINDS
from mtfc.compiler.ir.printer import bytes_text, layout_summary
from mtfc.compiler.ir.types import Axes
from mtfc.compiler.passes.fuse_attention import Reason
from mtfc.compiler.records import Summed, sums
from mtfc.reports.source_lines import (
    aligned,
    count_text,
    fitted,
    flops_text,
    line_of,
    line_rows,
    place_json,
    place_text,
    source_text,
    wrapped,
)


def layout_report(cost: PlacedCost, sources: Mapping[str, str]) -> str:
    """Return the cost of a layout on one device, in total and by source line; `sources` holds each file's text by name."""
    legend = "  By line: FLOPs per stage, bytes sent, and bytes stored: parameters, and values that the backward pass reads."
    lines = [*heading(cost), *_summary(cost), "", legend, *_by_line(cost, sources)]
    return "\n".join(lines) + "\n"


def heading(cost: PlacedCost) -> list[str]:
    """Return the model, the layout, the mesh, and the unit of the cost: a training step or a forward pass."""
    unit = "training step" if cost.trains else "forward pass"
    count = cost.mesh.devices
    devices = "one device" if count == 1 else f"each of {count} devices"
    return [
        f"{cost.model}, layout {cost.layout.name}: one {unit} on {devices} [{cost.mesh.axes_text}]",
        f"  {layout_summary(cost.layout)}",
    ]


def _summary(cost: PlacedCost) -> list[str]:
    """Return the first lines of the report: FLOPs by stage, bytes sent, memory by use, pipelines and loops."""
    totals, memory = total(cost.step), cost.memory
    by_stage = grouped(cost.step, lambda charge: charge.stage)
    stages = [f"{stage} {_flops(total(by_stage[stage]).flops)}" for stage in _stages(cost)]
    sent = f"{_bytes(totals.sent.bytes)} ({_bytes(totals.sent.wire_bytes)} on the wire)"
    parts = [f"{name} {_bytes(amount)}" for name, amount in memory.parts().items() if name != "total"]
    if memory.peak:
        parts[-1] += f" (in {memory.peak.seen_from(cost.file)})"
    return [
        *_itemized(f"computed  {_flops(totals.flops)}", stages),
        *_itemized(
            f"sent      {sent if totals.sent.count else 'nothing'}",
            (f"{kind} {size}" for kind, size in transfers(cost.step)),
        ),
        *_itemized(f"memory    {_bytes(memory.total)}", parts),
        *(f"  pipeline  {_pipeline(each)}" for each in cost.pipelines),
        *_loops(cost),
    ]


def _loops(cost: PlacedCost) -> list[str]:
    """Return a line about the loops that only data ends, whose number of iterations is unknown."""
    found = {line_of(span): number for span, number in cost.counted_iterations.items()}
    each = (f"{number:,} iterations in line {place_text(line, cost.file)}" for line, number in found.items())
    return wrapped([f"loops     that only data ends, counted as {', '.join(each)}"], 12) if found else []


def _pipeline(each: PipelineCost) -> str:
    """Return a line about a pipeline: stages, micro-batches, idle ticks and kept bytes."""
    chunks = f" of {each.chunks} chunks" if each.chunks > 1 else ""
    kept = f", keeps {_bytes(each.kept)} for the backward pass" if each.kept else ""
    return (
        f"{each.loop}: {each.stages} stages{chunks}, {each.micro_batches} micro-batches, "
        f"idle in {each.idle} of {each.ticks} ticks ({each.idle / each.ticks:.1%}){kept}"
    )


def _itemized(whole: str, parts: Iterable[str]) -> list[str]:
    """Return `whole = part + part ...`, wrapped."""
    return wrapped(
        [whole, *(f"{sign} {part}" for sign, part in zip(chain("=", repeat("+")), parts, strict=False))], 12
    )


def transfers(charges: Iterable[Charge]) -> list[tuple[str, str]]:
    """Return (`2 all_reduce{rows}`, `128 KiB`) for each kind of collective and set of axes, the largest first."""
    found = sent_by_kind(charges).items()
    return [(_kind_text(kind, axes, sent), _bytes(sent.bytes)) for (kind, axes), sent in found]


def sent_by_kind(charges: Iterable[Charge]) -> dict[tuple[str, Axes], SentVolume]:
    """Return what the collectives of each kind and set of axes send, the largest first."""
    groups = grouped(
        (c for c in charges if c.kind is not None), lambda charge: (str(charge.kind), charge.axes)
    )
    sent = {key: sum((charge.sent for charge in group), start=SentVolume()) for key, group in groups.items()}
    return dict(sorted(sent.items(), key=lambda item: -whole(item[1].bytes)))


def _kind_text(kind: str, axes: Axes, sent: SentVolume) -> str:
    """Return the count and kind. A combined collective counts for one of its lines, and is `part of` the others."""
    return f"{sent.count or 'part of'} {kind}{{{', '.join(axes)}}}"


def _stages(cost: PlacedCost) -> list[Stage]:
    """Return the stages that compute anything, in order."""
    found = {charge.stage for charge in cost.step if charge.flops}
    return [stage for stage in get_args(Stage) if stage in found]


@attrs.frozen
class LineCost(Summed):
    """The cost of a line: charges, the bytes that it occupies in memory, the bytes that it stores, and its seconds of a step."""

    charges: list[Charge] = attrs.field(factory=list)
    occupied: list[Amount] = attrs.field(factory=list)
    stored: list[Amount] = attrs.field(factory=list)
    seconds: list[Seconds] = attrs.field(factory=list)


Key = TypeVar("Key")


def line_costs(
    cost: PlacedCost,
    keys: Callable[[Span | None], Iterable[Key]],
    seconds: Mapping[Span | None, Seconds] | None = None,
) -> dict[Key, LineCost]:
    """Return the costs by line. keys: the lines that a place counts for, or other keys."""
    found: dict[Key, LineCost] = {}
    entries: dict[str, Iterable[tuple[Span | None, object]]] = {
        "charges": ((charge.span, charge) for charge in cost.step),
        "occupied": cost.memory.occupied,
        "stored": cost.memory.stored,
        "seconds": (seconds or {}).items(),
    }
    for field, amounts in entries.items():
        for span, amount in amounts:
            for key in keys(span):
                getattr(found.setdefault(key, LineCost()), field).append(amount)
    return found


def _by_line(cost: PlacedCost, sources: Mapping[str, str]) -> list[str]:
    """Return a table of all lines with a cost. The lines of called functions of other files stand below the calling line.

    FLOPs are by stage. Stored bytes belong to the line that defines the array.
    """
    stages, found = _stages(cost), line_costs(cost, lambda span: [span])
    places = [(span, each) for span, each in found.items() if each.charges or each.stored]

    def alone(place: str, source: str, figure: LineCost) -> list[list[str]]:
        """Return a row for the line, and a row for each kind of collective and set of axes."""
        indent = " " * (len(source) - len(source.lstrip()) + 2)
        blank = [""] * len(stages)
        sent = (["", f"{indent}{kind}", *blank, size, ""] for kind, size in transfers(figure.charges))
        return [[place, source, *_cells(figure.charges, stages), "", _kept(figure.stored)], *sent]

    def summed(figure: LineCost) -> list[str]:
        sent = total(figure.charges).sent.bytes
        return [*_cells(figure.charges, stages), _bytes(sent) if sent else "", _kept(figure.stored)]

    head = ["line", "source", *stages, "sent", "stored"]
    return fitted([head, *line_rows(places, cost.file, sources, summed, alone)])


def _cells(charges: Iterable[Charge], stages: Sequence[Stage]) -> list[str]:
    """Return the FLOPs of each stage as text."""
    by_stage = grouped(charges, lambda charge: charge.stage)
    flops = [total(by_stage.get(stage, [])).flops for stage in stages]
    return [count_text(whole(n)) if n else "" for n in flops]


def _kept(amounts: Sequence[Amount]) -> str:
    return _bytes(sum(amounts, start=0)) if amounts else ""


def comparison(costs: Sequence[PlacedCost]) -> str:
    """Return layouts side by side, on one device: work and memory, then communication."""
    return "\n".join([*_work_and_memory(costs), "", *_communication(costs)]) + "\n"


def _work_and_memory(costs: Sequence[PlacedCost]) -> list[str]:
    """Return a table of the FLOPs and the memory of each layout."""
    rows = [["layout", "devices", "computed", *costs[0].memory.parts()]]
    for cost in costs:
        computed, held = _flops(total(cost.step).flops), map(_bytes, cost.memory.parts().values())
        rows.append([cost.layout.name, str(cost.mesh.devices), computed, *held])
    return aligned(rows, right=range(1, len(rows[0])), indent="")


def _communication(costs: Sequence[PlacedCost]) -> list[str]:
    """Return a column for each kind of collective that occurs, with bytes and count."""
    totals = [total(cost.step) for cost in costs]
    kinds = [kind for kind in KINDS if any(kind in each.collectives for each in totals)]
    rows = [["layout", "sent", "on the wire", *kinds]]
    for cost, each in zip(costs, totals, strict=True):
        found = [each.collectives.get(kind, SentVolume()) for kind in kinds]
        cells = [f"{_bytes(sent.bytes)} in {sent.count}" if sent.count else "-" for sent in found]
        rows.append([cost.layout.name, _bytes(each.sent.bytes), _bytes(each.sent.wire_bytes), *cells])
    return aligned(rows, right=range(1, len(rows[0])), indent="")


def _bytes(amount: Amount) -> str:
    return bytes_text(whole(amount))


def _flops(amount: Amount) -> str:
    return flops_text(whole(amount))


# Formulas


@attrs.frozen
class LayoutFormulas:
    """The cost of a layout as formulas, and the values of the symbols in the file."""

    cost: PlacedCost
    values: dict[str, int]

    @property
    def flops(self) -> Formula:
        return formula(total(self.cost.step).flops)

    @property
    def elements(self) -> Formula:
        """The elements of all collectives' operands: the paper's "values all-reduced per processor"."""
        return formula(total(self.cost.step).sent.elements)

    @property
    def bytes(self) -> dict[str, Formula]:
        """The parts of the memory and their sum."""
        return {name: formula(amount) for name, amount in self.cost.memory.parts().items()}

    @property
    def leading_ratio(self) -> str:
        """The leading terms of the elements sent per FLOP."""
        return ratio(self.elements.leading(), self.flops.leading())


def formulas(program: Program) -> LayoutFormulas:
    """Return the cost of a placed program in the names of its dimensions and mesh axes."""
    assert program.mesh is not None, "only a placed program has a cost"
    scale = FormulaSizes(program.dims.values(), program.mesh)
    return LayoutFormulas(layout_cost(program, scale), scale.values)


def formula_report(layouts: Sequence[LayoutFormulas]) -> str:
    """Return Table 1 for the given layouts, then all terms."""
    return (
        "\n".join([*_leading(layouts), *(line for layout in layouts for line in _all_terms(layout))]) + "\n"
    )


def _leading(layouts: Sequence[LayoutFormulas]) -> Iterator[str]:
    """Yield a section for each column of the paper's table: the formulas are too long for columns."""
    yield "Leading terms, per device. Left out are terms whose dimensions are only a part of another term's."
    sections: dict[str, Callable[[LayoutFormulas], str]] = {
        "computation, in FLOPs": lambda layout: str(layout.flops.leading()),
        "communication, in elements sent by collectives": lambda layout: str(layout.elements.leading()),
        "communication / computation, in elements per FLOP": lambda layout: layout.leading_ratio,
        "memory, in bytes": lambda layout: str(layout.bytes["total"].leading()),
    }
    width = max(len(layout.cost.layout.name) for layout in layouts)
    for title, text in sections.items():
        yield f"\n{title}"
        for layout in layouts:
            first, *more = _pieces(text(layout))
            yield from wrapped([f"{layout.cost.layout.name:<{width}}  {first}", *more], width + 6)


def _pieces(formula: str) -> list[str]:
    """Return the terms of a formula's text, each with its sign."""
    return re.split(" (?=[+-] )", formula)


def _all_terms(layout: LayoutFormulas) -> Iterator[str]:
    """Yield each figure of a layout with its value and its whole formula."""
    yield ""
    yield from heading(layout.cost)
    memory = layout.bytes
    rows = {"computation": layout.flops, "communication": layout.elements, "memory": memory.pop("total")}
    for name, amount in {**rows, **{f"  {name}": part for name, part in memory.items()}}.items():
        value = int(amount.evaluate(layout.values))
        first, *more = _pieces(str(amount))
        yield from wrapped([f"{name:<20}{value:>16,} = {first}", *more], 41)


# JSON


def layout_json(cost: PlacedCost) -> dict[str, Any]:
    """Return the record of one layout on one mesh."""
    return {
        "layout": cost.layout.name,
        "mesh": cost.mesh.sizes,
        "devices": cost.mesh.devices,
        "forward": totals_json(total(cost.forward)),
        "step": totals_json(total(cost.step)),
        "memory_per_device": {name: _number(amount) for name, amount in cost.memory.parts().items()},
        "pipelines": [_pipeline_json(each) for each in cost.pipelines],
        "loops_ended_by_data": [
            {**place_json(span), "counted_iterations": number}
            for span, number in cost.counted_iterations.items()
        ],
    }


def _pipeline_json(each: PipelineCost) -> dict[str, Any]:
    """Return the record of a pipeline."""
    return {
        "line": each.span.line if each.span else None,
        "loop": each.loop,
        "stages": each.stages,
        "micro_batches": each.micro_batches,
        "chunks": each.chunks,
        "ticks": each.ticks,
        "kept_bytes": _number(each.kept),
    }


def totals_json(totals: CostTotals) -> dict[str, Any]:
    """Return FLOPs and collectives, with all kinds of collectives, including those that do not occur."""
    return {
        "flops_per_device": _number(totals.flops),
        "collectives": {kind: sent_json(totals.collectives.get(kind, SentVolume())) for kind in KINDS},
        "wire_bytes_per_device": _number(totals.sent.wire_bytes),
    }


def sent_json(sent: SentVolume) -> dict[str, Any]:
    """Return the number and the sizes of collectives."""
    return {
        "count": sent.count,
        "elements_per_device": _number(sent.elements),
        "bytes_per_device": _number(sent.bytes),
        "wire_bytes_per_device": _number(sent.wire_bytes),
    }


def _number(amount: Amount) -> int | float:
    """Return an integer if the amount is whole: only bytes on the wire can be fractions."""
    assert not isinstance(amount, Formula)
    return int(amount) if amount == int(amount) else float(amount)


def formulas_json(layout: LayoutFormulas) -> dict[str, Any]:
    """Return the formulas of a step, and their leading terms."""
    memory = layout.bytes
    return {
        "flops_per_device": str(layout.flops),
        "elements_per_device": str(layout.elements),
        "memory_per_device": {name: str(amount) for name, amount in memory.items()},
        "leading": {
            "flops_per_device": str(layout.flops.leading()),
            "elements_per_device": str(layout.elements.leading()),
            "elements_per_flop": layout.leading_ratio,
            "memory_per_device": str(memory["total"].leading()),
        },
    }


NoKernel = tuple[Equation, str, str]
"""An equation of attention, `TPU` or `GPU`, and why no kernel computes the equation there."""


def provenance_report(found: Sequence[SentArray], own: str | None, texts: Mapping[str, str]) -> str:
    """Return the collectives with their causes by line of the user's file, then the bytes by rule.

    texts: each file's text by name.
    """
    lines = grouped(found, lambda each: line_of(each.span.inside(own) if each.span else None))
    split = {file: text_lines(text) for file, text in texts.items()}
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
    """Return the rule and the line that lead to a collective."""
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
    """Return a table of the bytes that each written rule has a part in, the most first."""
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
        rows += line_rows(self.lines(), self.within.file, sources, _cause_cells)
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


def _cause_cells(line: KeptLine) -> list[str]:
    """Return the figures of a line as text; nothing for those that are not positive."""
    texts = (bytes_text, bytes_text, count_text, bytes_text)
    figures = zip(texts, attrs.astuple(line), strict=True)
    return [text(figure) if figure > 0 else "" for text, figure in figures]
