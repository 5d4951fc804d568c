"""`mtfc explain`: which rule of a layout causes which collective, and through which lines."""

from __future__ import annotations

import argparse
import json

from mtfc.cli.errors import OK
from mtfc.cli.options import add_format, add_selection, add_source
from mtfc.cli.selection import select
from mtfc.cli.sources import Sources

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
    from mtfc.compiler.analysis.causes import sendings
    from mtfc.compiler.analysis.causes_report import causes_json, causes_report
    from mtfc.compiler.analysis.cost import layout_cost
    from mtfc.compiler.analysis.equation_names import names_by_place
    from mtfc.compiler.analysis.report import heading
    from mtfc.compiler.placeable import prepared
    from mtfc.frontend import library

    selection = select(options, sources)
    (case,) = selection.cases
    cost = layout_cost(program := case.lower(selection.program))
    names = names_by_place(prepared(selection.program, case.mesh, case.layout))
    found = sendings(program.function("step" if cost.trains else "forward"), case.mesh, case.layout, names)
    if options.format == "json":
        record = {"model": cost.model, "layout": case.name, "mesh": case.mesh.sizes}
        print(json.dumps({**record, "collectives": causes_json(found)}, indent=2))
        return OK
    texts = sources.texts | library.texts({each.span.file for each in found if each.span})
    print("\n".join([*heading(cost), ""]))
    print(causes_report(found, cost.file, texts), end="")
    return OK
