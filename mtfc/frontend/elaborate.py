"""Elaborate a syntax tree into programs, meshes, layouts, placements and hardware; check names, types and shapes.

One run finds all errors of a file. `scope.py` says how one mistake gives one diagnostic.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING

from mtfc.compiler.diagnostics import Diagnostic, Diagnostics, Span
from mtfc.compiler.ir.core import Program
from mtfc.compiler.ir.types import Dim, Mesh
from mtfc.compiler.records import frozen
from mtfc.frontend.layouts.declared_layouts import DeclaredLayout, declare_layouts, named_once
from mtfc.frontend.layouts.parts import MultiMeshLayout, declare_multi_mesh
from mtfc.frontend.semantics.bodies.model_state import never_updated
from mtfc.frontend.semantics.calls.function_calls import check_signature
from mtfc.frontend.semantics.models import Model, elaborate_model
from mtfc.frontend.semantics.names.dims_and_meshes import Sizes, declare_meshes
from mtfc.frontend.semantics.names.modules import Loader, Neighbour, declarations_of, no_neighbour
from mtfc.frontend.semantics.names.scope import Reports, Scope
from mtfc.frontend.semantics.names.unrolled_layers import unrolled_layers
from mtfc.frontend.semantics.training.optimizers import check_optimizers
from mtfc.frontend.semantics.training.train_blocks import train_models
from mtfc.frontend.semantics.uncalled_functions import as_function, check_uncalled
from mtfc.frontend.syntax import ast

if TYPE_CHECKING:
    from mtfc.compiler.cost.device_graph import Machine
    from mtfc.placements.declarations import DeclaredPlacement


@frozen
class Module:
    """The declarations of a file that have no error.

    scope: the names of the file, for text from the command line. multi_mesh: the layouts of several meshes. unused: the full
    names of values that no program has, because nothing uses them.
    """

    dims: Mapping[str, Dim]
    scope: Scope
    meshes: dict[str, Mesh]
    layouts: tuple[DeclaredLayout, ...]
    multi_mesh: tuple[MultiMeshLayout, ...]
    programs: tuple[Program, ...]
    hardware: dict[str, Machine]
    placements: tuple[DeclaredPlacement, ...]
    unused: frozenset[str]


def elaborate(
    file: ast.File,
    diagnostics: Diagnostics,
    dims: Sizes | None = None,
    model: str | None = None,
    neighbour: Neighbour = no_neighbour,
    settings: Sequence[str] = (),
) -> Module:
    """Elaborate a file and report its errors.

    dims: sizes that replace those of the file. model: the one model to elaborate; None for all. neighbour: reads imported files
    beside the file. settings: entries of the `train` block, each `KEY=VALUE`: see `option_overrides.py`.

    A wrong option is reported in a file `<--dim>`, with a line for each override, or `<--model>`.
    """
    if settings:
        from mtfc.frontend.semantics.training.option_overrides import with_overrides

        file = with_overrides(file, settings, model, diagnostics)
    loader = Loader(Reports(diagnostics), neighbour)
    scope = loader.main(file, dims or {})
    meshes = declare_meshes(declarations_of(file, ast.MeshDecl), scope)
    scope.machines = hardware = _hardware(file, scope)
    for decl in declarations_of(file, ast.FnDecl):
        check_signature(decl, scope)
    check_optimizers(declarations_of(file, ast.OptimizerDecl), scope)
    models = _models(file, scope)
    layout_decls = named_once(declarations_of(file, ast.LayoutDecl), scope)
    layouts = declare_layouts(layout_decls, meshes, scope)
    places = {each.name.text: each.span for each in declarations_of(file, ast.ModelDecl)}
    multi_mesh = declare_multi_mesh(layout_decls, meshes, places, scope)
    std = partial(loader.library, "optimizers")
    trained = train_models(models, declarations_of(file, ast.TrainDecl), scope, std)
    for function in (
        *declarations_of(file, ast.FnDecl),
        *map(as_function, declarations_of(file, ast.OptimizerDecl)),
    ):
        if function.name.span not in scope.reports.called:
            check_uncalled(function, scope)
    if not diagnostics.errors:  # a line with an error may be the one that uses a value
        diagnostics.extend(_advice(file, scope))
    return Module(
        {name: dim for name, dim in scope.dims.items() if dim is not None},
        scope,
        {name: mesh for name, mesh in meshes.items() if mesh is not None},
        layouts,
        multi_mesh,
        tuple(each.program for each in _chosen(trained, model, scope)),
        {name: each for name, each in hardware.items() if each is not None},
        _placements(file, hardware, scope),
        frozenset(scope.reports.dropped),
    )


def _advice(file: ast.File, scope: Scope) -> Iterator[Diagnostic]:
    """Yield W603, W604 and W607 for the models and functions of a file."""
    decls: list[ast.ModelDecl | ast.FnDecl] = [
        *declarations_of(file, ast.ModelDecl),
        *declarations_of(file, ast.FnDecl),
    ]
    for decl in decls:
        yield from scope.reports.unused(decl).warnings()
        yield from never_updated(decl)
        yield from unrolled_layers(decl)


def _hardware(file: ast.File, scope: Scope) -> dict[str, Machine | None]:
    """Return the machines that a file declares; import their checks only if the file has some."""
    decls = declarations_of(file, ast.HardwareDecl)
    if not decls:
        return {}
    from mtfc.frontend.hardware.device_graphs import declare_hardware

    return declare_hardware(decls, scope)


def _placements(
    file: ast.File, machines: Mapping[str, Machine | None], scope: Scope
) -> tuple[DeclaredPlacement, ...]:
    """Return the placements that a file declares; import their checks, which need NumPy, only if the file has some."""
    decls = declarations_of(file, ast.PlacementDecl)
    if not decls:
        return ()
    from mtfc.placements.declarations import declare_placements

    return declare_placements(decls, machines, scope)


def _models(file: ast.File, scope: Scope) -> dict[str, Model]:
    places: dict[str, Span] = {}
    decls = [
        decl for decl in declarations_of(file, ast.ModelDecl) if scope.declare("model", decl.name, places)
    ]
    scope.models.update(places)
    models = {decl.name.text: elaborate_model(decl, scope) for decl in decls}
    for dims in (scope.reports.dropped_dims, *(model.dims for model in models.values())):
        scope.local_dims |= {name: dim for name, (dim, _) in dims.items()}
        scope.places.update((name, span) for name, (_, span) in dims.items())
    return models


def _chosen(models: Mapping[str, Model], name: str | None, scope: Scope) -> Iterable[Model]:
    if name is None:
        return models.values()
    if name not in models:
        option = ast.Name(Span("<--model>", 1, 1, 1, 1 + len(name)), name)
        scope.unknown("E106", f"unknown model `{name}`", option, models)
        return ()
    return (models[name],)
