"""`mtfc check`: all diagnostics of a file."""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from mtfc.cli.options import add_format, add_selection, add_source
from mtfc.compiler.diagnostics import CompileError, Diagnostic
from mtfc.driver.errors import ERRORS, OK
from mtfc.driver.sources import Sources, known_as

if TYPE_CHECKING:
    from mtfc.compiler.ir.core import Program
    from mtfc.compiler.ir.types import Layout, Mesh
    from mtfc.frontend.layouts.efficiency import Faster
    from mtfc.frontend.layouts.program_index import Tensor

EXAMPLES = """\
examples:
  mtfc check model.mtf
  mtfc check model.mtf --format json
  mtfc check model.mtf --mesh "rows:2;cols:4" --layout "batch:rows;hidden:cols"
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_source(parser)
    add_selection(parser, "all")
    add_format(parser)


def run(options: argparse.Namespace, sources: Sources) -> int:
    diagnostics = found(options, sources)
    if options.format == "json":
        from mtfc.reports.diagnostic_text import to_json

        print(json.dumps(to_json(diagnostics), indent=2))
    else:
        sources.report(diagnostics, "text")
        print(f"{known_as(options.file)}: {verdict(diagnostics)}")
    return ERRORS if count(diagnostics, "error") else OK


def found(options: argparse.Namespace, sources: Sources) -> list[Diagnostic]:
    """Return all diagnostics of a file, including that it is not text. Raises `UsageError`."""
    try:
        file = sources.read(options.file)
    except CompileError as error:
        return list(error.diagnostics)
    return found_in(file, options, sources)


def found_in(file: str, options: argparse.Namespace, sources: Sources) -> list[Diagnostic]:
    """Return all diagnostics of a file whose text is known."""
    from mtfc.frontend.check import check

    text, neighbour = sources.texts[file], sources.neighbour
    given = options.dims, options.model, options.layout, options.mesh
    return list(check(text, file, *given, neighbour, _placeable, options.settings, _predictor))


def _placeable(program: Program, mesh: Mesh, layout: Layout) -> Mapping[str, Tensor]:
    """The passes are needed only where a layout names what no line of the file does."""
    from mtfc.driver.layout_targets import placeable

    return placeable(program, mesh, layout)


def _predictor() -> Faster:
    """Import the simulator late: only a wasteful layout needs predictions."""
    from mtfc.driver.layout_advice import predictor

    return predictor()


def count(diagnostics: Sequence[Diagnostic], severity: str) -> int:
    return sum(diagnostic.severity == severity for diagnostic in diagnostics)


def verdict(diagnostics: Sequence[Diagnostic]) -> str:
    """`2 errors, 1 warning`"""
    counts = {severity: count(diagnostics, severity) for severity in ("error", "warning")}
    texts = [f"{count} {severity}{'s' if count > 1 else ''}" for severity, count in counts.items() if count]
    return ", ".join(texts) or "no errors"
