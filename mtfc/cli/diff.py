"""`mtfc diff`: what one layout computes, sends and stores more or less than another, by line of source."""

from __future__ import annotations

import argparse
import copy
import json
from typing import TYPE_CHECKING, Any

import attrs

from mtfc.cli.options import add_format, add_selection, add_source
from mtfc.driver.errors import OK, UsageError
from mtfc.driver.selection import select
from mtfc.driver.sources import Sources
from mtfc.driver.target import check_room, target_of

if TYPE_CHECKING:
    from mtfc.compiler.ir.types import Layout
    from mtfc.reports.difference import Priced

EXAMPLES = """\
examples:
  mtfc diff model.mtf                                               the first two declared layouts
  mtfc diff model.mtf --layout data_parallel --layout hybrid
  mtfc diff model.mtf --layout data_parallel --layout hybrid --target h100   and what the lines take on a machine
  mtfc diff model.mtf --layout "batch:rows" --layout "batch:rows;hidden:cols" --mesh "rows:2;cols:4"

Every figure is of one device; the lines add up to the whole difference.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_source(parser)
    parser.add_argument(
        "--target",
        metavar="HW",
        help="a machine: also what each line takes there, as `mtfc simulate` predicts it",
    )
    add_selection(parser, "the first two", several_layouts=True)
    add_format(parser)


def run(options: argparse.Namespace, sources: Sources) -> int:
    from mtfc.frontend.semantics.names import standard_library
    from mtfc.reports.difference import difference_report

    if options.format == "json":
        print(json.dumps(record(options, sources), indent=2))
        return OK
    one, other = _priced(options, sources)
    places = {charge.span.file for each in (one, other) for charge in each.cost.step if charge.span}
    print(difference_report(one, other, sources.texts | standard_library.texts(places)), end="")
    for line in one.hardware.caveat if one.hardware else ():
        print(line)
    return OK


def record(options: argparse.Namespace, sources: Sources) -> dict[str, Any]:
    """The JSON record; see `docs/command.md`. Raises `CompileError` and `UsageError`."""
    from mtfc.reports.difference import difference_json

    return difference_json(*_priced(options, sources))


def _priced(options: argparse.Namespace, sources: Sources) -> list[Priced]:
    """The model under both layouts."""
    from mtfc.reports.difference import Priced

    if len(options.layout) not in (0, 2):
        raise UsageError("diff compares two layouts: --layout A --layout B")
    priced: list[Priced] = []
    for layout in options.layout or [None]:
        each = copy.copy(options)
        each.layout = layout
        sources.add_options(each)  # what an error in this one points into
        selection = select(each, sources, every_layout=not options.layout)
        for case in selection.cases[: 2 - len(priced)]:
            hardware = target_of(options.target, selection.hardware, sources) if options.target else None
            if hardware is not None:
                check_room(hardware, case.mesh, options.target)
            program = attrs.evolve(case, layout=_distinct(case.layout, priced)).lower(selection.program)
            priced.append(Priced.of(program, hardware))
    if len(priced) < 2:
        raise UsageError(f"{options.file} has no two layouts to compare: say --layout A --layout B")
    return priced


def _distinct(layout: Layout, before: list[Priced]) -> Layout:
    """The layout with a name of its own, where another one has it already: all rules of the command line are `given`."""
    same_name = any(each.cost.layout.name == layout.name for each in before)
    if not same_name or any(each.cost.layout == layout for each in before):
        return layout
    return attrs.evolve(layout, name=f"{layout.name}_2")
