"""The files that an editor works on: open buffers as they are in the editor, and other files as they are on disk.

A buffer that has no file, such as `untitled:Untitled-1`, has its address as its name. The library's files have the names that
diagnostics give them, `mtfc/std/nn.mtf`, wherever mtfc is installed.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import suppress
from functools import cache
from pathlib import Path, PurePath
from urllib.parse import unquote

import attrs
from lsprotocol.types import TextDocumentContentChangeEvent, TextDocumentContentChangePartial
from pygls.uris import from_fs_path, to_fs_path

from mtfc.compiler.diagnostics import CompileError
from mtfc.driver.data.files import read_neighbour
from mtfc.driver.errors import UsageError
from mtfc.driver.loading.sources import Sources
from mtfc.editor.buffers import TextBuffer
from mtfc.frontend.semantics.names.standard_library import FOLDER, SHOWN

SUFFIX = ".mtf"


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
