"""Costs for `mtfc cost`: one layout by line of the file, several layouts side by side, formulas, and the JSON record.

The first part of the formulas is Table 1 of the Mesh-TensorFlow paper, with the constant factors that the paper drops. For each
layout it has the leading terms of computation, communication, their ratio, and memory per processor. The second part has the
complete formulas. The paper's two layers are in the middle of a network, so the paper counts the gradient of their input. A
training step needs that gradient only if a layer comes before.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import chain, repeat
from typing import Any, TypeVar, get_args

import attrs

from mtfc.compiler.cost.sizes import Amount, FormulaSizes, whole
from mtfc.compiler.cost.step_time import Seconds
from mtfc.compiler.cost.symbolic import Formula, formula, ratio
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
from mtfc.compiler.diagnostics import Span
from mtfc.compiler.ir.core import Program, Stage
from mtfc.compiler.ir.ops.collectives import KINDS
from mtfc.compiler.ir.printer import bytes_text, layout_summary
from mtfc.compiler.ir.types import Axes
from mtfc.compiler.records import Summed
from mtfc.reports.source_lines import fitted, line_of, line_rows, place_json, place_text
from mtfc.reports.table import aligned, count_text, flops_text, wrapped


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
    """Return the terms of the text, each with its sign."""
    return re.split(" (?=[+-] )", formula)


def _all_terms(layout: LayoutFormulas) -> Iterator[str]:
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
