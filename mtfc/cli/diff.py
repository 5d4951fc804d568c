"""`mtfc diff`: what one layout computes, sends and stores more or less than another, by line of source."""

from __future__ import annotations

import argparse
import copy
import json

from mtfc.cli.errors import OK, UsageError
from mtfc.cli.options import add_format, add_selection, add_source
from mtfc.cli.selection import select
from mtfc.cli.sources import Sources
from mtfc.compiler.ir.core import Program

EXAMPLES = """\
examples:
  mtfc diff model.mtf                                               the first two declared layouts
  mtfc diff model.mtf --layout data_parallel --layout hybrid
  mtfc diff model.mtf --layout "batch:rows" --layout "batch:rows;hidden:cols" --mesh "rows:2;cols:4"

Every figure is of one device; the lines add up to the whole difference.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_source(parser)
    add_selection(parser, "the first two", several_layouts=True)
    add_format(parser)


def run(options: argparse.Namespace, sources: Sources) -> int:
    from mtfc.compiler.analysis.cost import layout_cost
    from mtfc.compiler.analysis.difference import difference_json, difference_report
    from mtfc.frontend import library

    one, other = (layout_cost(program) for program in _programs(options, sources))
    if options.format == "json":
        print(json.dumps(difference_json(one, other), indent=2))
    else:
        places = {charge.span.file for cost in (one, other) for charge in cost.step if charge.span}
        print(difference_report(one, other, sources.texts | library.texts(places)), end="")
    return OK


def _programs(options: argparse.Namespace, sources: Sources) -> list[Program]:
    """The model lowered under both layouts."""
    if len(options.layout) not in (0, 2):
        raise UsageError("diff compares two layouts: --layout A --layout B")
    chosen = []
    for layout in options.layout or [None]:
        each = copy.copy(options)
        each.layout = layout
        sources.add_options(each)  # what an error in this one points into
        selection = select(each, sources, every_layout=not options.layout)
        chosen += [(selection.program, case) for case in selection.cases]
    if len(chosen) < 2:
        raise UsageError(f"{options.file} has no two layouts to compare: say --layout A --layout B")
    return [case.lower(program) for program, case in chosen[:2]]
