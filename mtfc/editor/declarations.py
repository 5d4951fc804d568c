"""The declarations of a file by name, and the symbols that stand for them.

A symbol is known by the place of its first declaration, whichever file uses it. Files are parsed once for each text. Nothing here
needs a file without errors: a declaration that does not parse is missing, and the others stay.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
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


Symbols = Mapping[str, DeclaredSymbol]
"""Symbols by name."""


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
    modules: Symbols
    dims: Symbols
    functions: Symbols
    optimizers: Symbols
    models: Symbols
    meshes: Symbols
    axes: Mapping[str, Symbols]
    layouts: Symbols
    placements: Symbols
    hardware: Symbols

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


KINDS: Mapping[type[ast.Node], tuple[SymbolKind, str]] = {
    ast.ImportDecl: ("module", "modules"),
    ast.DimDecl: ("dimension", "dims"),
    ast.FnDecl: ("function", "functions"),
    ast.OptimizerDecl: ("optimizer", "optimizers"),
    ast.ModelDecl: ("model", "models"),
    ast.MeshDecl: ("mesh", "meshes"),
    ast.LayoutDecl: ("layout", "layouts"),
    ast.PlacementDecl: ("placement", "placements"),
    ast.HardwareDecl: ("hardware", "hardware"),
}
"""The kinds of declarations, each with its field of `Declarations`."""


@lru_cache(64)
def declarations(text: str, file: str) -> Declarations:
    """Return the declarations of a text."""
    tree = parsed(text, file)
    found: dict[str, dict[str, DeclaredSymbol]] = {table: {} for _, table in KINDS.values()}
    axes: dict[str, dict[str, DeclaredSymbol]] = {}
    for decl in tree.declarations:
        if isinstance(decl, ast.MeshDecl):
            names = reversed([axis.name for axis in decl.axes])
            own = {name.text: DeclaredSymbol(name.text, name.span, "axis") for name in names}
            axes.setdefault(decl.name.text, own)
        if type(decl) in KINDS:
            kind, table = KINDS[type(decl)]
            name: ast.Name = decl.name  # type: ignore[union-attr]
            found[table].setdefault(name.text, DeclaredSymbol(name.text, name.span, kind, decl))
    return Declarations(tree=tree, axes=axes, **found)


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
        table: Callable[[Declarations], Symbols],
    ) -> tuple[DeclaredSymbol, Declarations] | None:
        if isinstance(name, ast.Name):
            symbol = table(file).get(name.text)
            return (symbol, file) if symbol else None
        module = self.module(name.parts[0], file) if len(name.parts) == 2 else None
        symbol = table(module).get(name.parts[1]) if module else None
        return (symbol, module) if symbol and module else None
