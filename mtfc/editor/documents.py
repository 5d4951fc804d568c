"""The files that an editor works on: open buffers as they are in the editor, and other files as they are on disk.

A buffer that has no file, such as `untitled:Untitled-1`, has its address as its name. The library's files have the names that
diagnostics give them, `mtfc/std/nn.mtf`, wherever mtfc is installed.

The compiler counts lines and columns from 1, columns in characters, and ends a line at `\\r\\n`, `\\r` and `\\n` alone. The
protocol counts from 0, and columns in units of UTF-16 unless client and server agree on UTF-8 or UTF-32. Python's `splitlines`,
which pygls uses, ends lines at more characters, such as a form feed; so buffers split their text themselves.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Mapping
from contextlib import suppress
from functools import cache, cached_property
from pathlib import Path, PurePath
from urllib.parse import unquote

import attrs
from lsprotocol.types import (
    Position,
    Range,
    TextDocumentContentChangeEvent,
    TextDocumentContentChangePartial,
    TextEdit,
)
from pygls.uris import from_fs_path, to_fs_path

from mtfc.compiler.diagnostics import CompileError, Span
from mtfc.driver.data.files import read_neighbour
from mtfc.driver.errors import UsageError
from mtfc.driver.loading.sources import Sources
from mtfc.editor.token_kinds import END_OF_LINE
from mtfc.frontend.semantics.names.standard_library import FOLDER, SHOWN

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
        if path not in self.open.by_file:
            return super().read(path)
        self.texts[path] = self.open.by_file[path]
        return path

    def neighbour(self, path: str) -> str | None:
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
