"""Elaborate a syntax tree into programs, meshes, layouts, placements and hardware; check names, types and shapes.

One run finds all errors of a file. `scope.py` says how one mistake gives one diagnostic.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING

from mtfc.compiler.diagnostics import Diagnostic, Diagnostics, Span
from mtfc.compiler.ir.core import Program
from mtfc.compiler.ir.initializers import DISTRIBUTIONS
from mtfc.compiler.ir.training import TRAINING
from mtfc.compiler.ir.types import WRITTEN_BYTES, Dim, Mesh
from mtfc.compiler.records import frozen
from mtfc.frontend.layouts.declared_layouts import (
    DeclaredLayout,
    MultiMeshLayout,
    declare_layouts,
    declare_multi_mesh,
    named_once,
)
from mtfc.frontend.semantics.bodies.parameters_and_states import never_updated
from mtfc.frontend.semantics.calls.builtin_calls import USAGES
from mtfc.frontend.semantics.calls.function_calls import check_signature, find_function
from mtfc.frontend.semantics.models import Model, elaborate_model
from mtfc.frontend.semantics.names.constants import Sizes, declare_meshes
from mtfc.frontend.semantics.names.modules import Loader, Neighbour, declarations_of, no_neighbour
from mtfc.frontend.semantics.names.scope import ANY, STEP, Reports, Scope, unknown_function
from mtfc.frontend.semantics.names.unused_values import TAKE_VARIABLES, unrolled_layers, value_names
from mtfc.frontend.semantics.training.optimizers import check_optimizers
from mtfc.frontend.semantics.training.train_blocks import train_models
from mtfc.frontend.syntax import ast, other_libraries
from mtfc.frontend.syntax.ast import children, variables, walk

if TYPE_CHECKING:
    from mtfc.compiler.cost.hardware import Machine
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
    from mtfc.frontend.hardware.declarations import declare_hardware

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
    """Return the models of a file by name, and make their dimensions known to the layouts that follow."""
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
    """Return the model of `--model`, or all models without it; none, with a diagnostic (E106), for an unknown name."""
    if name is None:
        return models.values()
    if name not in models:
        option = ast.Name(Span.of_line("<--model>", name), name)
        scope.unknown("E106", f"unknown model `{name}`", option, models)
        return ()
    return (models[name],)


def check_uncalled(decl: ast.FnDecl, scope: Scope) -> None:
    """Report the names in a function's body that nothing declares."""
    inside = scope.inside(())
    own = (*decl.generics, *(node.name for node in walk(decl) if isinstance(node, ast.DimDecl)))
    inside.dims.update((name.text, None) for name in own)
    values = {*variables((each.name for each in decl.args), decl.body), TRAINING}
    for node in _expressions(decl):
        _check(node, inside, values)
    known = {*values, *inside.dims, *WRITTEN_BYTES, ANY}
    for name in (name for node in decl.body for name in value_names(node) if name.text not in known):
        inside.unknown("E101", f"unknown value `{name.text}`", name, values)


def as_function(decl: ast.OptimizerDecl) -> ast.FnDecl:
    """Return a function with the body of an optimizer, and with the names that the optimizer knows as arguments."""
    dims = decl.pattern.dims if decl.pattern else ()
    given = (*(hyper.name for hyper in decl.hypers), decl.parameter, decl.gradient, ast.Name(decl.span, STEP))
    arguments = tuple(ast.FnArg(name.span, name, None, None) for name in given)
    generics = tuple(dim for dim in dims if isinstance(dim, ast.Name))
    return ast.FnDecl(decl.span, decl.name, generics, arguments, (), decl.body)


def _expressions(node: ast.Node) -> Iterator[ast.Node]:
    """Yield all expressions, types and lists of dimensions in the body of a function, from the outside in."""
    takes_variables = isinstance(node, ast.Call) and node.function.text in TAKE_VARIABLES
    for child in children(node):
        if isinstance(child, ast.Name | ast.FnArg | ast.Broken):
            continue
        if takes_variables and isinstance(child, ast.DimList):
            continue
        yield child
        yield from _expressions(child)


def _check(node: ast.Node, scope: Scope, values: Collection[str]) -> None:
    """Report unknown functions and dimensions, and the operator `@`, in a body that is not elaborated."""
    if isinstance(node, ast.Call) and not _exists(node.function, scope):
        unknown_function(scope, node.function, values, USAGES)
    if isinstance(node, ast.Binary) and node.op == "@":
        scope.error("E004", other_libraries.NO_PRODUCT, node.span, help=other_libraries.EINSUM)
    if isinstance(node, ast.Type | ast.DimList):
        for dim in node.dims:
            if not isinstance(dim, ast.Ellipsis):
                scope.dim(dim)


def _exists(name: ast.Name | ast.Path, scope: Scope) -> bool:
    """Return True if there is a function or an initializer of this name."""
    return find_function(scope, name) is not None or name.text in USAGES or name.text in DISTRIBUTIONS
