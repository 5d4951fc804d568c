"""The declarations of a file by name, and the symbols that stand for them.

A symbol is known by the place of its first declaration, whichever file uses it. Files are parsed once for each text. Nothing here
needs a file without errors: a declaration that does not parse is missing, and the others stay.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from pathlib import PurePath
from typing import Literal, NamedTuple, cast

import attrs
from lsprotocol.types import SemanticTokenTypes as Token
from lsprotocol.types import SymbolKind as SymbolShown

from mtfc.compiler.diagnostics import Diagnostics, Span
from mtfc.editor.documents import is_library
from mtfc.frontend.semantics.calls.function_calls import find_function
from mtfc.frontend.semantics.names import standard_library
from mtfc.frontend.semantics.names.modules import Loader
from mtfc.frontend.semantics.names.scope import Reports, Scope
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
    """The declarations of one file, the first one of each name. symbols: by kind. axes: mesh axes, by mesh and name."""

    tree: ast.File
    symbols: Mapping[str, Symbols]
    axes: Mapping[str, Symbols]

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


class DeclarationKind(NamedTuple):
    """The kind of a declaration's symbol, the keyword of the language, and what the protocol calls the symbol and its token."""

    symbol: SymbolKind
    keyword: str
    shown: SymbolShown
    token: Token


KINDS: Mapping[type[ast.Node], DeclarationKind] = {
    ast.ImportDecl: DeclarationKind("module", "import", SymbolShown.Module, Token.Namespace),
    ast.DimDecl: DeclarationKind("dimension", "dim", SymbolShown.TypeParameter, Token.TypeParameter),
    ast.FnDecl: DeclarationKind("function", "fn", SymbolShown.Function, Token.Function),
    ast.OptimizerDecl: DeclarationKind("optimizer", "optimizer", SymbolShown.Constructor, Token.Function),
    ast.ModelDecl: DeclarationKind("model", "model", SymbolShown.Class, Token.Class),
    ast.MeshDecl: DeclarationKind("mesh", "mesh", SymbolShown.Struct, Token.Struct),
    ast.LayoutDecl: DeclarationKind("layout", "layout", SymbolShown.Interface, Token.Interface),
    ast.PlacementDecl: DeclarationKind("placement", "placement", SymbolShown.Interface, Token.Interface),
    ast.HardwareDecl: DeclarationKind("hardware", "hardware", SymbolShown.Struct, Token.Struct),
}


@lru_cache(64)
def declarations(text: str, file: str) -> Declarations:
    """Return the declarations of a text."""
    tree = parsed(text, file)
    found: dict[str, dict[str, DeclaredSymbol]] = {kind.symbol: {} for kind in KINDS.values()}
    axes: dict[str, dict[str, DeclaredSymbol]] = {}
    for decl in tree.declarations:
        if isinstance(decl, ast.MeshDecl):
            names = reversed([axis.name for axis in decl.axes])
            own = {name.text: DeclaredSymbol(name.text, name.span, "axis") for name in names}
            axes.setdefault(decl.name.text, own)
        if type(decl) in KINDS:
            kind, name = KINDS[type(decl)].symbol, cast(ast.Name, decl.name)  # type: ignore[union-attr]
            found[kind].setdefault(name.text, DeclaredSymbol(name.text, name.span, kind, decl))
    return Declarations(tree, found, axes)


@attrs.frozen
class Project:
    """Files that import each other; the compiler finds their modules, functions and optimizers.

    read: returns the text of a file, None if there is none. scopes: of files that were asked for.
    """

    read: Callable[[str], str | None]
    scopes: dict[str, Scope] = attrs.field(factory=dict, eq=False)

    def declarations(self, file: str) -> Declarations | None:
        text = self.read(file)
        return None if text is None else declarations(text, file)

    def scope(self, file: Declarations) -> Scope:
        """Return the names that a file declares and imports."""
        if file.file not in self.scopes:
            self.scopes[file.file] = Loader(Reports(Diagnostics()), self.read).main(file.tree, {})
        return self.scopes[file.file]

    def modules(self, file: Declarations) -> Mapping[str, Scope]:
        """Return the modules that a file imports, by name."""
        return {name: each for name, each in self.scope(file).modules.items() if each is not None}

    def module_file(self, name: str, file: Declarations) -> str:
        """Return the file of a module: a neighbour, or else one of the library."""
        path = str(PurePath(file.file).parent / f"{name}.mtf")
        is_neighbour = not is_library(file.file) and self.read(path) is not None
        return path if is_neighbour else standard_library.file_of(name)

    def function(self, name: ast.Name | ast.Path, file: Declarations) -> DeclaredSymbol | None:
        """Return the function that a name means in a file."""
        found = find_function(self.scope(file), name)
        if found is None:
            return None
        own = found.decl.name
        return DeclaredSymbol(own.text, own.span, "function", found.decl)

    def optimizers(self, name: ast.Name | ast.Path, file: Declarations) -> Sequence[ast.OptimizerDecl]:
        """Return the declarations of the optimizer that a name means in a file."""
        module, _, last = name.text.rpartition(".")
        scope = self.modules(file).get(module) if module else self.scope(file)
        found = scope.optimizers.get(last) if scope else None
        return found or (() if module else standard_library.optimizers(OPTIMIZERS).get(last, ()))
