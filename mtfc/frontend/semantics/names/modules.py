"""Files that import each other: a scope for each.

`import NAME` is the file `NAME.mtf` beside the one that imports it, and else the module of the standard library. A neighbour wins
so that a module which is added to the library never changes what a program means. The library's own modules see each other and
never a user's file.

Nothing here reads files: the command gives a function that does.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import PurePath
from typing import TypeVar

import attrs

from mtfc.compiler.diagnostics import CompileError, Label, Span
from mtfc.compiler.ir.builder import Names
from mtfc.frontend.semantics.names import standard_library
from mtfc.frontend.semantics.names.declarations import Sizes, declare_dims
from mtfc.frontend.semantics.names.scope import Reports, Scope
from mtfc.frontend.syntax import ast
from mtfc.frontend.syntax.ast import walk
from mtfc.frontend.syntax.parser import parse

Neighbour = Callable[[str], str | None]
"""The text of the file with this path, None where there is none. Raises `CompileError` where it is not text."""

D = TypeVar("D", bound=ast.Node)


def no_neighbour(path: str) -> None:
    """For texts that stand in no folder."""


def all_of(file: ast.File, kind: type[D]) -> list[D]:
    return [decl for decl in file.declarations if isinstance(decl, kind)]


@attrs.define
class Loader:
    """Reads the files of one run, each once.

    `texts` are those of neighbours by path, None where there is no such file; `loaded` what has been made of them, None where
    that failed. `loading` are the files whose imports are being read, with the place of the import. `names` are the names of
    modules: two of one name, a neighbour and one that the library imports, are told apart.
    """

    reports: Reports
    neighbour: Neighbour
    texts: dict[str, str | None] = attrs.field(factory=dict)
    loaded: dict[str, Scope | None] = attrs.field(factory=dict)
    loading: dict[str, Span] = attrs.field(factory=dict)
    names: Names = attrs.field(factory=Names)

    def main(self, file: ast.File, sizes: Sizes) -> Scope:
        """The scope of the file that is compiled, with the sizes of some dimensions overridden."""
        path = str(PurePath(file.span.file))
        self.loading[path] = file.span
        scope = self._declared(file, Scope(self.reports, frozenset(_doubtful(file))), sizes)
        del self.loading[path]
        return scope

    def _declared(self, file: ast.File, scope: Scope, sizes: Sizes) -> Scope:
        """The scope with what the file declares."""
        self._import_all(all_of(file, ast.ImportDecl), file.span.file, scope)
        declare_dims(all_of(file, ast.DimDecl), sizes, scope)
        places: dict[str, Span] = {}
        functions = [
            decl for decl in all_of(file, ast.FnDecl) if scope.declare("function", decl.name, places)
        ]
        scope.functions = {decl.name.text: decl for decl in functions}
        optimizers: dict[str, tuple[ast.OptimizerDecl, ...]] = {}
        for decl in all_of(file, ast.OptimizerDecl):
            optimizers[decl.name.text] = (*optimizers.get(decl.name.text, ()), decl)
        scope.optimizers = optimizers
        return scope

    def _import_all(self, decls: Iterable[ast.ImportDecl], file: str, scope: Scope) -> None:
        places: dict[str, Span] = {}
        for decl in decls:
            if scope.declare("module", decl.name, places):
                scope.modules[decl.name.text] = self._module(decl.name, file, scope)

    def _module(self, name: ast.Name, importer: str, scope: Scope) -> Scope | None:
        """The scope of an imported file; None, and an error, where it cannot be had."""
        path = str(PurePath(importer).parent / f"{name.text}.mtf")
        if importer.startswith(standard_library.SHOWN) or (
            path not in self.loading and not self._exists(path)
        ):
            return self._of_library(name, scope)
        if path in self.loading:
            self._report_cycle(path, name, scope)
            return None
        if path not in self.loaded:
            self.loaded[path] = self._load(path, name)
        return self.loaded[path]

    def _exists(self, path: str) -> bool:
        """Whether there is such a file; what it says is in `texts` then, or else it is loaded as nothing."""
        if path not in self.texts:
            try:
                self.texts[path] = self.neighbour(path)
            except CompileError as error:
                self.reports.diagnostics.extend(error.diagnostics)
                self.texts[path], self.loaded[path] = "", None
        return self.texts[path] is not None

    def _report_cycle(self, path: str, name: ast.Name, scope: Scope) -> None:
        cycle = list(self.loading)[list(self.loading).index(path) :]
        labels = [Label(self.loading[each], "by way of this import") for each in cycle[1:]]
        files = " -> ".join(PurePath(each).name for each in (*cycle, path))
        scope.error("E120", f"`{name.text}` is imported by what it imports: {files}", name.span, labels)

    def _load(self, path: str, name: ast.Name) -> Scope:
        """The scope of a neighbouring file."""
        self.loading[path] = name.span
        file = parse(self.texts[path] or "", path, self.reports.diagnostics)
        scope = Scope(self.reports, frozenset(_doubtful(file)), self.names.fresh(name.text))
        scope = self._declared(file, scope, {})
        del self.loading[path]
        return scope

    def _of_library(self, name: ast.Name, scope: Scope) -> Scope | None:
        if standard_library.text(name.text) is not None:
            return self.library(name.text)
        help = f"a module is a file beside this one, `{name.text}.mtf`, or of the library"
        known = standard_library.modules()
        scope.unknown("E119", f"there is no module `{name.text}`", name, known, f"{help}: {', '.join(known)}")
        return None

    def library(self, module: str) -> Scope:
        """The scope of a module of the library, which exists."""
        path = standard_library.file_of(module)
        found = self.loaded.get(path)
        if found is None:
            found = self.loaded[path] = Scope(self.reports, module=self.names.fresh(module))
            declare_dims(standard_library.declarations(module, ast.DimDecl), {}, found)
            found.functions = standard_library.functions(module)
            found.optimizers = standard_library.optimizers(module)
            self._import_all(standard_library.declarations(module, ast.ImportDecl), path, found)
        return found


def _doubtful(file: ast.File) -> Iterable[str]:
    """The names in the stretches of the file that did not parse."""
    for node in walk(file):
        if isinstance(node, ast.Broken):
            yield from node.names
