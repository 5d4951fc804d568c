"""Load imported files, each into a scope of its own.

`import NAME` means the file `NAME.mtf` beside the importing file, or else a module of the standard library. The neighbouring file
comes first, so that a module that is added to the library never changes the meaning of a program. Modules of the library see
each other, and never a user's file.

A function given by the caller reads the files.
"""

from collections.abc import Callable, Iterable
from pathlib import PurePath
from typing import TypeVar

import attrs

from mtfc.compiler.diagnostics import CompileError, Label, Span
from mtfc.compiler.ir.builder import Names
from mtfc.compiler.records import define
from mtfc.frontend.semantics.names import standard_library
from mtfc.frontend.semantics.names.constants import Sizes, declare_dims
from mtfc.frontend.semantics.names.scope import Reports, Scope
from mtfc.frontend.syntax import ast
from mtfc.frontend.syntax.ast import walk
from mtfc.frontend.syntax.parser import parse

Neighbour = Callable[[str], str | None]
"""Returns the text of the file with a path, None if there is no such file. Raises `CompileError` if it is not text."""

D = TypeVar("D", bound=ast.Node)


def no_neighbour(path: str) -> None:
    """Return None: text that is in no folder has no neighbours."""


def declarations_of(file: ast.File, kind: type[D]) -> list[D]:
    return [decl for decl in file.declarations if isinstance(decl, kind)]


@define
class Loader:
    """Loads the files of one run, each once.

    texts: texts of neighbours by path, None if there is no such file. loaded: scopes by path, None for a file with an error.
    loading: files whose imports are being loaded, with the place of the import. names: names of modules; a neighbour and a
    module of the library with the same name get different ones.
    """

    reports: Reports
    neighbour: Neighbour
    texts: dict[str, str | None] = attrs.field(factory=dict)
    loaded: dict[str, Scope | None] = attrs.field(factory=dict)
    loading: dict[str, Span] = attrs.field(factory=dict)
    names: Names = attrs.field(factory=Names)

    def main(self, file: ast.File, sizes: Sizes) -> Scope:
        """Return the scope of the main file, with the sizes of some dimensions overridden."""
        return self._of_file(file, file.span, "", sizes)

    def _of_file(self, file: ast.File, place: Span, module: str, sizes: Sizes) -> Scope:
        """Return a scope with the declarations of a file. place: the place of its import."""
        path = str(PurePath(file.span.file))
        self.loading[path] = place
        scope = Scope(self.reports, frozenset(_doubtful(file)), module)
        self._import_all(declarations_of(file, ast.ImportDecl), file.span.file, scope)
        declare_dims(declarations_of(file, ast.DimDecl), sizes, scope)
        places: dict[str, Span] = {}
        functions = [
            decl for decl in declarations_of(file, ast.FnDecl) if scope.declare("function", decl.name, places)
        ]
        scope.functions = {decl.name.text: decl for decl in functions}
        optimizers: dict[str, tuple[ast.OptimizerDecl, ...]] = {}
        for decl in declarations_of(file, ast.OptimizerDecl):
            optimizers[decl.name.text] = (*optimizers.get(decl.name.text, ()), decl)
        scope.optimizers = optimizers
        del self.loading[path]
        return scope

    def _import_all(self, decls: Iterable[ast.ImportDecl], file: str, scope: Scope) -> None:
        """Load the modules that a file imports, and make them known by their names."""
        places: dict[str, Span] = {}
        for decl in decls:
            if scope.declare("module", decl.name, places):
                scope.modules[decl.name.text] = self._module(decl.name, file, scope)

    def _module(self, name: ast.Name, importer: str, scope: Scope) -> Scope | None:
        """Return the scope of an imported file; None, and an error, if it cannot be loaded."""
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
        """Return True if there is such a file, and keep its text; a file that is not text is noted as an error."""
        if path not in self.texts:
            try:
                self.texts[path] = self.neighbour(path)
            except CompileError as error:
                self.reports.diagnostics.extend(error.diagnostics)
                self.texts[path], self.loaded[path] = "", None
        return self.texts[path] is not None

    def _report_cycle(self, path: str, name: ast.Name, scope: Scope) -> None:
        """Report (E120) a file that is imported while it is being loaded."""
        cycle = list(self.loading)[list(self.loading).index(path) :]
        labels = [Label(self.loading[each], "by way of this import") for each in cycle[1:]]
        files = " -> ".join(PurePath(each).name for each in (*cycle, path))
        scope.error("E120", f"`{name.text}` is imported by what it imports: {files}", name.span, labels)

    def _load(self, path: str, name: ast.Name) -> Scope:
        """Return the scope of a neighbouring file."""
        file = parse(self.texts[path] or "", path, self.reports.diagnostics)
        return self._of_file(file, name.span, self.names.fresh(name.text), {})

    def _of_library(self, name: ast.Name, scope: Scope) -> Scope | None:
        """Return the scope of a module of the library; None, with a diagnostic (E119), if there is no such module."""
        if standard_library.text(name.text) is not None:
            return self.library(name.text)
        help = f"a module is a file beside this one, `{name.text}.mtf`, or of the library"
        known = standard_library.modules()
        scope.unknown("E119", f"there is no module `{name.text}`", name, known, f"{help}: {', '.join(known)}")
        return None

    def library(self, module: str) -> Scope:
        """Return the scope of a module of the library, which must exist."""
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
    """Yield the names in text of the file that did not parse."""
    for node in walk(file):
        if isinstance(node, ast.Broken):
            yield from node.names
