"""Elaboration: a syntax tree to programs, meshes and layouts; everything that a file can get wrong about names, types and shapes.

All errors of a file are found in one run: see `scope.py` for how one mistake gives one diagnostic.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TypeVar

import attrs

from mtfc.compiler.diagnostics import Diagnostics, Span
from mtfc.compiler.ir.core import Program
from mtfc.compiler.ir.types import Dim, Mesh
from mtfc.frontend import ast
from mtfc.frontend.declarations import Sizes, declare_dims, declare_meshes
from mtfc.frontend.models import Model, elaborate_model
from mtfc.frontend.rules import DeclaredLayout, declare_layouts
from mtfc.frontend.scope import Scope
from mtfc.frontend.training import train_models

D = TypeVar("D", bound=ast.Node)


@attrs.frozen
class Module:
    """What a file declares, as far as it is right; `places` says where each dimension is declared."""

    dims: Mapping[str, Dim]
    places: Mapping[str, Span]
    meshes: dict[str, Mesh]
    layouts: tuple[DeclaredLayout, ...]
    programs: tuple[Program, ...]

    def scope_for_text(self) -> Scope:
        """A scope with this file's dimensions, for text that the command line gives."""
        scope = Scope(Diagnostics())
        scope.dims.update(self.dims)
        scope.places.update(self.places)
        return scope


def elaborate(
    file: ast.File, diagnostics: Diagnostics, dims: Sizes | None = None, model: str | None = None
) -> Module:
    """Elaborate a file, with the sizes of some dimensions overridden; `model` chooses one of its models.

    An option that is wrong is reported in a file `<--dim>` (one line for each override) or `<--model>`.
    """
    scope = Scope(diagnostics, frozenset(_doubtful(file)))
    declare_dims(_all(file, ast.DimDecl), dims or {}, scope)
    meshes = declare_meshes(_all(file, ast.MeshDecl), scope)
    layouts = declare_layouts(_all(file, ast.LayoutDecl), meshes, scope)
    _declare_functions(file, scope)
    models = _models(file, scope)
    optimizers = frozenset(decl.name.text for decl in _all(file, ast.OptimizerDecl))
    trained = train_models(models, _all(file, ast.TrainDecl), scope, optimizers)
    return Module(
        {name: dim for name, dim in scope.dims.items() if dim is not None},
        scope.places,
        {name: mesh for name, mesh in meshes.items() if mesh is not None},
        layouts,
        tuple(each.program for each in _chosen(trained, model, scope)),
    )


def _all(file: ast.File, kind: type[D]) -> list[D]:
    return [decl for decl in file.declarations if isinstance(decl, kind)]


def _doubtful(file: ast.File) -> Iterable[str]:
    """The names in the stretches of the file that did not parse."""
    waiting: list[ast.Node] = [file]
    while waiting:
        node = waiting.pop()
        if isinstance(node, ast.Broken):
            yield from node.names
        elif isinstance(node, ast.File | ast.ModelDecl):
            waiting += ast.children(node)


def _declare_functions(file: ast.File, scope: Scope) -> None:
    """What the language has and the compiler not yet: uses are passed over in silence."""
    for decl in file.declarations:
        if isinstance(decl, ast.ImportDecl):
            scope.modules.add(decl.name.text)
        elif isinstance(decl, ast.FnDecl):
            scope.functions.add(decl.name.text)
        elif not isinstance(decl, ast.OptimizerDecl):
            continue
        what = {ast.ImportDecl: "import", ast.FnDecl: "fn", ast.OptimizerDecl: "optimizer"}[type(decl)]
        scope.error("E110", f"`{what}` is not supported yet", decl.name.span)


def _models(file: ast.File, scope: Scope) -> dict[str, Model]:
    places: dict[str, Span] = {}
    decls = [decl for decl in _all(file, ast.ModelDecl) if scope.declare("model", decl.name, places)]
    scope.models.update(places)
    return {decl.name.text: elaborate_model(decl, scope) for decl in decls}


def _chosen(models: Mapping[str, Model], name: str | None, scope: Scope) -> Iterable[Model]:
    if name is None:
        return models.values()
    if name not in models:
        option = ast.Name(Span("<--model>", 1, 1, 1, 1 + len(name)), name)
        scope.unknown("E106", f"unknown model `{name}`", option, models)
        return ()
    return (models[name],)
