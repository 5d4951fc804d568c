"""The declarations of a file by name, and the symbols that stand for them.

A symbol is known by the place of its first declaration, whichever file uses it. Files are parsed once for each text. Nothing here
needs a file without errors: a declaration that does not parse is missing, and the others stay.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import lru_cache
from pathlib import PurePath
from typing import Literal

import attrs

from mtfc.compiler.diagnostics import Diagnostics, Span
from mtfc.editor.documents import is_library
from mtfc.frontend.semantics.names import standard_library
from mtfc.frontend.syntax import ast
from mtfc.frontend.syntax.parser import parse

SymbolKind = Literal[
    "module", "dimension", "mesh", "axis", "layout", "placement", "hardware", "device", "link", "model",
    "function", "optimizer", "argument", "parameter", "state", "value", "scope",
]  # fmt: skip

OPTIMIZERS = "optimizers"
"""The module of the library whose optimizers need no import."""


@attrs.frozen
class DeclaredSymbol:
    """A named thing. place: its first declaration. node: the declaration, or None."""

    name: str
    place: Span
    kind: SymbolKind = attrs.field(eq=False)
    node: ast.Node | None = attrs.field(eq=False, default=None, repr=False)


@lru_cache(64)
def parsed(text: str, file: str) -> ast.File:
    """Return the syntax tree of a text, without the parts that have syntax errors."""
    return parse(text, file, Diagnostics())


@lru_cache(16)
def syntax_errors(text: str, file: str) -> bool:
    """Return True if a text has syntax errors."""
    found = Diagnostics()
    parse(text, file, found)
    return bool(found.errors)


@attrs.frozen
class Declarations:
    """The declarations of one file, the first one of each name. axes: mesh axes, by mesh and name."""

    tree: ast.File
    modules: Mapping[str, DeclaredSymbol]
    dims: Mapping[str, DeclaredSymbol]
    functions: Mapping[str, DeclaredSymbol]
    optimizers: Mapping[str, DeclaredSymbol]
    models: Mapping[str, DeclaredSymbol]
    meshes: Mapping[str, DeclaredSymbol]
    axes: Mapping[str, Mapping[str, DeclaredSymbol]]
    layouts: Mapping[str, DeclaredSymbol]
    placements: Mapping[str, DeclaredSymbol]
    hardware: Mapping[str, DeclaredSymbol]

    @property
    def file(self) -> str:
        return self.tree.span.file

    def all_optimizers(self, name: str) -> list[ast.OptimizerDecl]:
        """Return the declarations of an optimizer, for parameters of different types."""
        decls = (each for each in self.tree.declarations if isinstance(each, ast.OptimizerDecl))
        return [each for each in decls if each.name.text == name]

    def body_at(self, line: int) -> ast.ModelDecl | ast.FnDecl | ast.OptimizerDecl | None:
        """Return the declaration with a body that a line belongs to."""
        for each in self.tree.declarations:
            is_there = each.span.line <= line <= each.span.end_line
            if is_there and isinstance(each, ast.ModelDecl | ast.FnDecl | ast.OptimizerDecl):
                return each
        return None


KINDS: Mapping[type[ast.Node], SymbolKind] = {
    ast.ImportDecl: "module",
    ast.DimDecl: "dimension",
    ast.FnDecl: "function",
    ast.OptimizerDecl: "optimizer",
    ast.ModelDecl: "model",
    ast.MeshDecl: "mesh",
    ast.LayoutDecl: "layout",
    ast.PlacementDecl: "placement",
    ast.HardwareDecl: "hardware",
}


@lru_cache(64)
def declarations(text: str, file: str) -> Declarations:
    """Return the declarations of a text."""
    tree = parsed(text, file)
    by_kind: dict[str, dict[str, DeclaredSymbol]] = {kind: {} for kind in KINDS.values()}
    for decl in tree.declarations:
        if (kind := KINDS.get(type(decl))) is not None:
            name: ast.Name = decl.name  # type: ignore[union-attr]
            by_kind[kind].setdefault(name.text, DeclaredSymbol(name.text, name.span, kind, decl))
    axes = {name: _first(axis.name for axis in _axes(mesh.node)) for name, mesh in by_kind["mesh"].items()}
    return Declarations(
        tree,
        by_kind["module"],
        by_kind["dimension"],
        by_kind["function"],
        by_kind["optimizer"],
        by_kind["model"],
        by_kind["mesh"],
        axes,
        by_kind["layout"],
        by_kind["placement"],
        by_kind["hardware"],
    )


def _axes(node: ast.Node | None) -> tuple[ast.MeshAxis, ...]:
    assert isinstance(node, ast.MeshDecl)
    return node.axes


def _first(names: Iterable[ast.Name]) -> dict[str, DeclaredSymbol]:
    found: dict[str, DeclaredSymbol] = {}
    for name in names:
        found.setdefault(name.text, DeclaredSymbol(name.text, name.span, "axis"))
    return found


@attrs.frozen
class Project:
    """Files that import each other. read: returns the text of a file, None if there is none."""

    read: Callable[[str], str | None]

    def declarations(self, file: str) -> Declarations | None:
        text = self.read(file)
        return None if text is None else declarations(text, file)

    def imported(self, name: str, importer: str) -> Declarations | None:
        """Return the declarations of the module that `import NAME` means in a file: a neighbour, or else the library's."""
        path = str(PurePath(importer).parent / f"{name}.mtf")
        found = None if is_library(importer) else self.declarations(path)
        return found or self.declarations(standard_library.file_of(name))

    def modules(self, file: Declarations) -> Iterator[tuple[str, Declarations]]:
        """Yield the modules that a file imports."""
        for name in file.modules:
            found = self.imported(name, file.file)
            if found is not None:
                yield name, found

    def module(self, name: str, file: Declarations) -> Declarations | None:
        """Return a module by its name in a file; None if the file does not import it."""
        return self.imported(name, file.file) if name in file.modules else None

    def function(
        self, name: ast.Name | ast.Path, file: Declarations
    ) -> tuple[DeclaredSymbol, Declarations] | None:
        """Return the function that a name means in a file, and the file that declares it."""
        return self._found(name, file, lambda each: each.functions)

    def optimizer(
        self, name: ast.Name | ast.Path, file: Declarations
    ) -> tuple[DeclaredSymbol, Declarations] | None:
        """Return the optimizer that a name means in a file, and the file that declares it."""
        found = self._found(name, file, lambda each: each.optimizers)
        if found is not None or isinstance(name, ast.Path):
            return found
        library = self.declarations(standard_library.file_of(OPTIMIZERS))
        symbol = library.optimizers.get(name.text) if library else None
        return (symbol, library) if symbol and library else None

    def _found(
        self,
        name: ast.Name | ast.Path,
        file: Declarations,
        table: Callable[[Declarations], Mapping[str, DeclaredSymbol]],
    ) -> tuple[DeclaredSymbol, Declarations] | None:
        if isinstance(name, ast.Name):
            symbol = table(file).get(name.text)
            return (symbol, file) if symbol else None
        module = self.module(name.parts[0], file) if len(name.parts) == 2 else None
        symbol = table(module).get(name.parts[1]) if module else None
        return (symbol, module) if symbol and module else None
