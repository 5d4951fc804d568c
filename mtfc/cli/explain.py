"""`mtfc explain`: which rule of a layout causes which collective, and through which lines."""

from __future__ import annotations

import argparse
import json
from typing import TYPE_CHECKING, Any

from mtfc.cli.options import add_format, add_selection, add_source
from mtfc.driver.errors import OK
from mtfc.driver.selection import select
from mtfc.driver.sources import Sources

if TYPE_CHECKING:
    from mtfc.compiler.analysis.provenance import Sending
    from mtfc.compiler.cost.volumes import LayoutCost

EXAMPLES = """\
examples:
  mtfc explain model.mtf                                why the first layout sends what it sends
  mtfc explain model.mtf --layout hybrid
  mtfc explain model.mtf --layout "batch:rows;hidden:cols" --mesh "rows:2;cols:4" --format json
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_source(parser)
    add_selection(parser, "the first")
    add_format(parser)


def run(options: argparse.Namespace, sources: Sources) -> int:
    from mtfc.frontend.semantics.names import standard_library
    from mtfc.reports.cost_report import heading
    from mtfc.reports.provenance_report import causes_report

    if options.format == "json":
        print(json.dumps(record(options, sources), indent=2))
        return OK
    cost, found = _explained(options, sources)
    texts = sources.texts | standard_library.texts({each.span.file for each in found if each.span})
    print("\n".join([*heading(cost), ""]))
    print(causes_report(found, cost.file, texts), end="")
    return OK


def record(options: argparse.Namespace, sources: Sources) -> dict[str, Any]:
    """The JSON record; see `docs/command.md`. Raises `CompileError` and `UsageError`."""
    from mtfc.reports.provenance_report import causes_json

    cost, found = _explained(options, sources)
    selected = {"model": cost.model, "layout": cost.layout.name, "mesh": cost.mesh.sizes}
    return {**selected, "collectives": causes_json(found)}


def _explained(options: argparse.Namespace, sources: Sources) -> tuple[LayoutCost, list[Sending]]:
    """The cost of a step, or of a forward pass, and each array that it sends."""
    from mtfc.compiler.analysis.equation_names import names_by_place
    from mtfc.compiler.analysis.provenance import sendings
    from mtfc.compiler.cost.volumes import layout_cost
    from mtfc.driver.layout_targets import prepared

    selection = select(options, sources)
    (case,) = selection.cases
    cost = layout_cost(program := case.lower(selection.program))
    names = names_by_place(prepared(selection.program, case.mesh, case.layout))
    function = program.function("step" if cost.trains else "forward")
    return cost, list(sendings(function, case.mesh, case.layout, names))
