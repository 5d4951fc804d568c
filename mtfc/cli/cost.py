"""`mtfc cost`: what each layout computes, sends and stores on one device."""

from __future__ import annotations

import argparse
import json
from typing import TYPE_CHECKING, Any

from mtfc.cli.options import add_format, add_selection, add_source
from mtfc.driver.errors import OK
from mtfc.driver.selection import select
from mtfc.driver.sources import Sources

if TYPE_CHECKING:
    from mtfc.compiler.ir.core import Program

EXAMPLES = """\
examples:
  mtfc cost model.mtf                        by line of source, then all layouts side by side
  mtfc cost model.mtf --symbolic             as formulas in the file's own names
  mtfc cost model.mtf --layout hybrid --dim batch=4096
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_source(parser)
    parser.add_argument(
        "--symbolic", action="store_true", help="formulas in place of numbers; with JSON, beside them"
    )
    add_selection(parser, "all")
    add_format(parser)


def run(options: argparse.Namespace, sources: Sources) -> int:
    from mtfc.compiler.cost.volumes import layout_cost
    from mtfc.frontend.semantics.names import standard_library
    from mtfc.reports.cost_report import comparison, layout_report
    from mtfc.reports.formula_report import formula_report, formulas

    if options.format == "json":
        print(json.dumps(record(options, sources), indent=2))
        return OK
    programs = _programs(options, sources)
    if options.symbolic:
        print(formula_report([formulas(program) for program in programs]), end="")
        return OK
    costs = [layout_cost(program) for program in programs]
    places = {charge.span.file for cost in costs for charge in cost.step if charge.span}
    texts = sources.texts | standard_library.texts(places)
    print("\n".join([*(layout_report(cost, texts) for cost in costs), comparison(costs)]), end="")
    return OK


def record(options: argparse.Namespace, sources: Sources) -> dict[str, Any]:
    """The JSON record; see `docs/command.md`. Raises `CompileError` and `UsageError`."""
    from mtfc.compiler.cost.volumes import layout_cost
    from mtfc.reports.cost_json import costs_json
    from mtfc.reports.formula_report import formulas

    programs = _programs(options, sources)
    symbolic = [formulas(program) for program in programs] if options.symbolic else []
    return costs_json([layout_cost(program) for program in programs], symbolic)


def _programs(options: argparse.Namespace, sources: Sources) -> list[Program]:
    """The program of one processor under each layout."""
    selection = select(options, sources, every_layout=True)
    return [case.lower(selection.program) for case in selection.cases]
