"""The JSON record of `mtfc cost`: numbers per device, and with `--symbolic` each layout's formulas as text."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from mtfc.compiler.cost.sizes import Amount
from mtfc.compiler.cost.symbolic import Formula
from mtfc.compiler.cost.volumes import CostTotals, PipelineCost, PlacedCost, SentVolume, total
from mtfc.compiler.ir.ops.collectives import KINDS
from mtfc.reports.formula_report import LayoutFormulas


def costs_json(costs: Sequence[PlacedCost], formulas: Sequence[LayoutFormulas] = ()) -> dict[str, Any]:
    """Return the costs of a model under at least one layout, with the formulas of the same layouts, if any."""
    layouts = [layout_json(cost) for cost in costs]
    for entry, symbolic in zip(layouts, formulas, strict=False):
        entry["formulas"] = _formulas(symbolic)
    return {"model": costs[0].model, "layouts": layouts}


def layout_json(cost: PlacedCost) -> dict[str, Any]:
    """Return the record of one layout on one mesh."""
    return {
        "layout": cost.layout.name,
        "mesh": cost.mesh.sizes,
        "devices": cost.mesh.devices,
        "forward": _totals(total(cost.forward)),
        "step": _totals(total(cost.step)),
        "memory_per_device": {name: _number(amount) for name, amount in cost.memory.parts().items()},
        "pipelines": [_pipeline(each) for each in cost.pipelines],
        "loops_ended_by_data": [
            {
                "file": span.file if span else None,
                "line": span.line if span else None,
                "counted_iterations": number,
            }
            for span, number in cost.counted_iterations.items()
        ],
    }


def _pipeline(each: PipelineCost) -> dict[str, Any]:
    return {
        "line": each.span.line if each.span else None,
        "loop": each.loop,
        "stages": each.stages,
        "micro_batches": each.micro_batches,
        "chunks": each.chunks,
        "ticks": each.ticks,
        "kept_bytes": _number(each.kept),
    }


def _totals(totals: CostTotals) -> dict[str, Any]:
    """Return FLOPs and collectives, with all kinds of collectives, including those that do not occur."""
    return {
        "flops_per_device": _number(totals.flops),
        "collectives": {kind: _sent(totals.collectives.get(kind, SentVolume())) for kind in KINDS},
        "wire_bytes_per_device": _number(totals.sent.wire_bytes),
    }


def _sent(sent: SentVolume) -> dict[str, Any]:
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


def _formulas(layout: LayoutFormulas) -> dict[str, Any]:
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
