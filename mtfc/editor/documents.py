"""The files of an editor, and their declarations.

The declarations of a file by name, and the symbols that stand for them.

A symbol is known by the place of its first declaration, whichever file uses it. Files are parsed once for each text. Nothing here
needs a file without errors: a declaration that does not parse is missing, and the others stay.

The files that an editor works on: open buffers as they are in the editor, and other files as they are on disk.

A buffer that has no file, such as `untitled:Untitled-1`, has its address as its name. The library's files have the names that
diagnostics give them, `mtfc/std/nn.mtf`, wherever mtfc is installed.

The compiler counts lines and columns from 1, columns in characters, and ends a line at `\\r\\n`, `\\r` and `\\n` alone. The
protocol counts from 0, and columns in units of UTF-16 unless client and server agree on UTF-8 or UTF-32. Python's `splitlines`,
which pygls uses, ends lines at more characters, such as a form feed; so buffers split their text themselves.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import cache, cached_property, lru_cache
from pathlib import Path, PurePath
from typing import Literal, NamedTuple, cast
from urllib.parse import unquote

import attrs
from lsprotocol.types import (
    Position,
    Range,
    TextDocumentContentChangeEvent,
    TextDocumentContentChangePartial,
    TextEdit,
)
from lsprotocol.types import SemanticTokenTypes as Token
from lsprotocol.types import SymbolKind as SymbolShown
from pygls.uris import from_fs_path, to_fs_path

from mtfc.compiler.diagnostics import CompileError, Diagnostics, Span
from mtfc.driver.data.files import read_neighbour
from mtfc.driver.errors import UsageError
from mtfc.driver.loading.sources import Sources
from mtfc.editor.token_kinds import END_OF_LINE
from mtfc.frontend.semantics.calls.function_calls import find_function
from mtfc.frontend.semantics.names import standard_library
from mtfc.frontend.semantics.names.modules import Loader
from mtfc.frontend.semantics.names.scope import Reports, Scope
from mtfc.frontend.semantics.names.standard_library import FOLDER, SHOWN
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
    """The declarations of one file, the first one of each name.

    symbols: the names by kind. axes: the mesh axes by mesh and name.
    """

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


SUFFIX = ".mtf"

WIDTHS: dict[str, tuple[int, ...]] = {"utf-8": (0x7F, 0x7FF, 0xFFFF), "utf-16": (0xFFFF,), "utf-32": ()}
"""For each encoding of positions, the last characters that take one unit, two units, and so on."""


@attrs.frozen(slots=False)
class TextBuffer:
    """The text of a file at one version.

    file: the name of the file in spans. version: the number that the editor gave to this text, None for a file on disk.
    encoding: the units of columns in the protocol.
    """

    uri: str
    file: str
    text: str
    version: int | None = None
    encoding: str = "utf-16"

    @cached_property
    def starts(self) -> list[int]:
        """The offsets at which lines begin."""
        return [0, *(match.end() for match in END_OF_LINE.finditer(self.text))]

    def line(self, number: int) -> str:
        """Return the text of a line, which counts from 1, without its end; empty if there is no such line."""
        if not 0 < number <= len(self.starts):
            return ""
        end = self.starts[number] if number < len(self.starts) else len(self.text)
        return self.text[self.starts[number - 1] : end].rstrip("\r\n")

    def edited(self, range: Range | None, text: str, version: int | None) -> TextBuffer:
        """Return the buffer with a part, or with the whole text for None, replaced."""
        if range is not None:
            start, end = self.offset(range.start), self.offset(range.end)
            text = self.text[:start] + text + self.text[max(start, end) :]
        return attrs.evolve(self, text=text, version=version)

    # From the protocol

    def offset(self, position: Position) -> int:
        """Return the offset of a position; a position behind the end of its line, or of the text, stands for that end."""
        if position.line >= len(self.starts):
            return len(self.text)
        return self.starts[position.line] + self._characters(self.line(position.line + 1), position.character)

    def place(self, position: Position) -> tuple[int, int]:
        """Return line and column as the compiler counts them."""
        return self.place_at(self.offset(position))

    def place_at(self, offset: int) -> tuple[int, int]:
        """Return line and column of an offset."""
        line = bisect_right(self.starts, offset)
        return line, offset - self.starts[line - 1] + 1

    def _characters(self, line: str, units: int) -> int:
        """Return the number of characters in the first units of a line; a position inside of a character is before it."""
        taken = 0
        for index, character in enumerate(line):
            taken += self._width(character)
            if taken > units:
                return index
        return len(line)

    def _width(self, character: str) -> int:
        """Return the units that a character takes."""
        return 1 + sum(ord(character) > last for last in WIDTHS[self.encoding])

    # To the protocol

    def position(self, line: int, column: int) -> Position:
        """Return the position of a line and column as the compiler counts them."""
        before = self.line(line)[: column - 1]
        units = len(before) if before.isascii() else sum(map(self._width, before))
        return Position(max(line - 1, 0), units)

    def range(self, span: Span) -> Range:
        return Range(self.position(span.line, span.column), self.position(span.end_line, span.end_column))

    def whole(self) -> Range:
        """Return the range of the whole text."""
        return Range(Position(0, 0), self.position(*self.place_at(len(self.text))))

    def replaced(self, span: Span, text: str) -> TextEdit:
        return TextEdit(self.range(span), text)

    def inserted(self, line: int, text: str) -> TextEdit:
        """Return the edit that inserts text before a line."""
        position = self.position(*self.place_at(len(self.text)))
        if line <= len(self.starts):
            position = Position(line - 1, 0)
        elif not self.text.endswith("\n"):
            text = "\n" + text
        return TextEdit(Range(position, position), text)

    def span_text(self, span: Span) -> str:
        """Return the text of a span."""
        start, end = self.offsets(span)
        return self.text[start:end]

    def offsets(self, span: Span) -> tuple[int, int]:
        """Return the offsets at which a span begins and ends."""
        begins, ends = (self.starts[min(line, len(self.starts)) - 1] for line in (span.line, span.end_line))
        return begins + span.column - 1, ends + span.end_column - 1


# Files


def file_of(uri: str) -> str:
    """Return the name that a file has in spans."""
    path = to_fs_path(uri) if uri.startswith("file:") else None
    if path is None:
        return str(PurePath(unquote(uri)))
    if PurePath(path).is_relative_to(FOLDER):
        return SHOWN + PurePath(path).relative_to(FOLDER).as_posix()
    return str(PurePath(path))


def is_library(file: str) -> bool:
    return file.startswith(SHOWN)


@cache
def _library_text(file: str) -> str | None:
    path = FOLDER / file.removeprefix(SHOWN)
    return path.read_text("utf-8") if path.is_file() else None


@attrs.frozen
class OpenTexts:
    """The texts of all open buffers at one moment, by file."""

    by_file: Mapping[str, str]

    def read(self, file: str) -> str | None:
        """Return the text of a file: of its buffer, of the library, or on disk. None if there is no such text."""
        if file in self.by_file:
            return self.by_file[file]
        if is_library(file):
            return _library_text(file)
        try:
            return self.on_disk(file)
        except (UsageError, CompileError):
            return None

    @staticmethod
    def on_disk(file: str) -> str | None:
        """Return the text of a file on disk; None if there is none. Raises `UsageError` and `CompileError`."""
        return read_neighbour(file) if PurePath(file).is_absolute() else None

    def beside(self, file: str) -> Iterator[str]:
        """Yield the other files in the folder of a file, which may import the file."""
        folder = PurePath(file).parent
        found = {name for name in self.by_file if PurePath(name).parent == folder}
        if folder.is_absolute():
            with suppress(OSError):
                found |= {str(path) for path in Path(folder).iterdir() if path.suffix == SUFFIX}
        yield from sorted(found - {file})


class EditorSources(Sources):
    """Texts for one check, from open buffers first. `wanted` are the files that imports have asked for, found or not."""

    def __init__(self, texts: OpenTexts) -> None:
        """Start a check.

        open: the texts of open buffers.
        """
        super().__init__()
        self.open = texts
        self.wanted: set[str] = set()

    def read(self, path: str) -> str:
        """Read a file as the editor has it, else from the disk."""
        if path not in self.open.by_file:
            return super().read(path)
        self.texts[path] = self.open.by_file[path]
        return path

    def neighbour(self, path: str) -> str | None:
        """Return the text of another file as the editor has it, else as it is on the disk; None if there is none."""
        self.wanted.add(path)
        text = self.open.by_file.get(path)
        text = self.open.on_disk(path) if text is None else text
        if text is not None:
            self.texts[path] = text
        return text


class OpenDocuments:
    """The open buffers by address."""

    def __init__(self) -> None:
        self.encoding = "utf-16"
        self.buffers: dict[str, TextBuffer] = {}

    def open(self, uri: str, text: str, version: int) -> TextBuffer:
        self.buffers[uri] = TextBuffer(uri, file_of(uri), text, version, self.encoding)
        return self.buffers[uri]

    def change(self, uri: str, changes: list[TextDocumentContentChangeEvent], version: int) -> TextBuffer:
        """Apply edits in order; edits of a buffer that was never opened begin with an empty text."""
        buffer = self.buffers.get(uri) or self.open(uri, "", version)
        for each in changes:
            range = each.range if isinstance(each, TextDocumentContentChangePartial) else None
            buffer = buffer.edited(range, each.text, version)
        self.buffers[uri] = buffer
        return buffer

    def close(self, uri: str) -> None:
        self.buffers.pop(uri, None)

    def texts(self) -> OpenTexts:
        return OpenTexts({buffer.file: buffer.text for buffer in self.buffers.values()})

    def of_file(self, file: str) -> TextBuffer | None:
        """Return the buffer of a file; a file that is not open is read. None if there is no such file."""
        for buffer in self.buffers.values():
            if buffer.file == file:
                return buffer
        text, uri = self.texts().read(file), uri_of(file)
        return None if text is None or uri is None else TextBuffer(uri, file, text, None, self.encoding)

    def of_uri(self, uri: str) -> TextBuffer | None:
        return self.buffers.get(uri) or self.of_file(file_of(uri))


def uri_of(file: str) -> str | None:
    """Return the address of a file that is not open; None for one that has no place on disk."""
    path = str(FOLDER / file.removeprefix(SHOWN)) if is_library(file) else file
    return from_fs_path(path) if PurePath(path).is_absolute() else None
