"""All diagnostics of a file, for `mtfc check`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from mtfc.compiler.diagnostics import CompileError, Diagnostic, Diagnostics
from mtfc.driver.loading.choice import Choice
from mtfc.driver.loading.sources import Sources

if TYPE_CHECKING:
    from mtfc.compiler.ir.core import Program
    from mtfc.compiler.ir.types import Layout, Mesh
    from mtfc.frontend.layouts.declared_layouts import MultiMeshLayout
    from mtfc.frontend.layouts.legality import Faster
    from mtfc.frontend.layouts.program_index import Tensor
    from mtfc.placements.declarations import DeclaredPlacement


def check_file(path: str, choice: Choice, sources: Sources) -> list[Diagnostic]:
    """Return all diagnostics of a file; a file that is not text has one. Raises `UsageError` if the file cannot be read."""
    if choice.source is not None:
        return _check_source_program(path, choice, sources)
    try:
        file = sources.read(path)
    except CompileError as error:
        return list(error.diagnostics)
    return check_source(file, choice, sources)


def check_source(file: str, choice: Choice, sources: Sources) -> list[Diagnostic]:
    """Return all diagnostics of a file whose text is in `sources`."""
    from mtfc.frontend.check import check

    sources.add_choice(choice)
    text = sources.texts[file]
    given = choice.dims, choice.model, choice.layout, choice.mesh, sources.neighbour
    return list(check(text, file, *given, _layout_targets, choice.settings, _predictor, *_CHECKS))


def _check_source_program(path: str, choice: Choice, sources: Sources) -> list[Diagnostic]:
    """Return the diagnostics of a program that is not read from a .mtf file, and of its layout."""
    from mtfc.driver.loading.selection import select

    assert choice.source is not None
    try:
        select(path, choice, sources)
    except CompileError as error:
        return list(error.diagnostics)
    return list(choice.source.warnings)


def verdict(diagnostics: Iterable[Diagnostic]) -> str:
    """Return `2 errors, 1 warning`."""
    found = [each.severity for each in diagnostics]
    counts = {severity: found.count(severity) for severity in ("error", "warning")}
    texts = [f"{count} {severity}{'s' if count > 1 else ''}" for severity, count in counts.items() if count]
    return ", ".join(texts) or "no errors"


def _layout_targets(program: Program, mesh: Mesh, layout: Layout) -> Mapping[str, Tensor]:
    """Import the passes late: only a layout with names that no line of the file has needs them."""
    from mtfc.driver.loading.layout_targets import layout_targets

    return layout_targets(program, mesh, layout)


def _placement_errors(program: Program, placements: Iterable[DeclaredPlacement]) -> Iterable[Diagnostic]:
    """Import the search late: only a placement needs the operators of a model."""
    from mtfc.compiler.passes.pipelines import run, simplification
    from mtfc.placements.declarations import strategy_of
    from mtfc.placements.operators.operator_graph import operators_of

    found = Diagnostics()
    try:
        graph = operators_of(run(program, simplification()))
    except CompileError as error:
        return error.diagnostics
    for each in placements:
        try:
            strategy_of(each, graph, found)
        except CompileError:
            continue
    return found


def _multi_mesh_errors(
    programs: Sequence[Program], layouts: Sequence[MultiMeshLayout]
) -> Iterable[Diagnostic]:
    """Import the labels of meshes late: only a layout of several meshes needs them."""
    from mtfc.driver.loading.cases import check_multi_mesh

    return check_multi_mesh(programs, layouts)


_CHECKS = (_placement_errors, _multi_mesh_errors)


def _predictor() -> Faster:
    """Import the simulator late: only a wasteful layout needs predictions."""
    from mtfc.driver.layout_advice import predictor

    return predictor()
