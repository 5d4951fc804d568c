"""Find all diagnostics of a file, under every declared layout or a given one, as `mtfc check` shows them."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from mtfc.compiler.diagnostics import CompileError, Diagnostic, Diagnostics
from mtfc.compiler.ir.core import Program
from mtfc.frontend.elaborate import elaborate
from mtfc.frontend.layout_options import chosen_layouts, multi_mesh_named
from mtfc.frontend.layouts.allowed_warnings import on_lines
from mtfc.frontend.layouts.legality import (
    Advice,
    Faster,
    FindTargets,
    check_layouts,
    no_predictions,
    no_targets,
)
from mtfc.frontend.semantics.names.modules import Neighbour, declarations_of, no_neighbour
from mtfc.frontend.syntax import ast
from mtfc.frontend.syntax.parser import parse

if TYPE_CHECKING:
    from mtfc.frontend.layouts.declared_layouts import MultiMeshLayout
    from mtfc.placements.declarations import DeclaredPlacement

CheckPlacements = Callable[[Program, "Sequence[DeclaredPlacement]"], Iterable[Diagnostic]]
CheckMultiMesh = Callable[[Sequence[Program], "Sequence[MultiMeshLayout]"], Iterable[Diagnostic]]


def check(
    text: str,
    file: str,
    dims: Mapping[str, int] | None = None,
    model: str | None = None,
    layout: str | None = None,
    mesh: str | None = None,
    neighbour: Neighbour = no_neighbour,
    layout_targets: FindTargets = no_targets,
    settings: Sequence[str] = (),
    predictor: Callable[[], Faster] = no_predictions,
    check_placements: CheckPlacements = lambda program, placements: (),
    check_multi_mesh: CheckMultiMesh = lambda programs, layouts: (),
) -> Diagnostics:
    """Return all diagnostics of a file.

    text: the contents of `file`. dims, model, layout, mesh, settings: the options of the command. neighbour: reads imported
    files beside the file. layout_targets: returns the values besides variables that a layout can name. predictor: makes the
    function that predicts speedups. check_placements: finds the mistakes of placements in the operators of the first model,
    which needs the compiler's passes. check_multi_mesh: finds the mistakes of layouts of several meshes.
    """
    diagnostics = Diagnostics()
    tree = parse(text, file, diagnostics)
    module = elaborate(tree, diagnostics, dims, model, neighbour, settings)
    allowed = on_lines(text, file, module.scope)
    named = multi_mesh_named(layout, module) if mesh is None else None
    try:
        layouts = () if named else chosen_layouts(module, layout, mesh, model)
    except CompileError as error:
        diagnostics.extend(error.diagnostics)
        return diagnostics
    known = no_targets if diagnostics.errors else layout_targets
    advice = Advice(
        allowed,
        len(module.scope.models) > 1,
        tuple(decl.model.text for decl in declarations_of(tree, ast.TrainDecl)),
        no_predictions if diagnostics.errors else predictor,
    )
    found = check_layouts(module.programs, layouts, known, module.unused, advice)
    if diagnostics.errors:  # a missing value or equation would cause the others
        found = [each for each in found if each.severity == "error" and each.code != "E305"]
    elif module.programs and module.placements:
        found = [*found, *check_placements(module.programs[0], module.placements)]
    multi_mesh = (named,) if named else module.multi_mesh if layout is None and mesh is None else ()
    if multi_mesh and not diagnostics.errors:
        found = [*found, *check_multi_mesh(module.programs, multi_mesh)]
    wanted = Diagnostics()
    wanted.extend(each for each in (*diagnostics, *found) if not allowed.at(each.code, each.span))
    return wanted
