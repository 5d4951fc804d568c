"""Texts as editors edit them: places in the units of the protocol, and edits of a part.

The compiler counts lines and columns from 1, columns in characters, and ends a line at `\\r\\n`, `\\r` and `\\n` alone. The
protocol counts from 0, and columns in units of UTF-16 unless client and server agree on UTF-8 or UTF-32. Python's `splitlines`,
which pygls uses, ends lines at more characters, such as a form feed; so buffers split their text themselves.
"""

from __future__ import annotations

from bisect import bisect_right
from functools import cached_property

import attrs
from lsprotocol.types import Position, Range, TextEdit

from mtfc.compiler.diagnostics import Span
from mtfc.editor.token_kinds import END_OF_LINE

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
