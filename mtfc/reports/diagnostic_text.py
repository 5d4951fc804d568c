"""Diagnostics as text for people, and as JSON for programs.

The text has the form of rustc's diagnostics. Source lines may hold any characters. Tabs and wide characters leave the carets in
place. Control characters are replaced by visible ones, so that no file can send commands to a terminal. A long line is cut to the
part around the carets.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import accumulate

import attrs

from mtfc.compiler.diagnostics import MOST, Diagnostic, Span, rest_text
from mtfc.compiler.records import frozen

TAB = "    "
WINDOW = 160
"""Most characters of a source line that are shown."""

BEFORE = 60
"""Most characters of a cut line before the first caret."""

RED, YELLOW, BLUE, PLAIN = "1;31", "1;33", "1;34", "1"


def render(diagnostics: Iterable[Diagnostic], sources: Mapping[str, str], color: bool = False) -> str:
    """Return a paragraph for each diagnostic, of the first hundred, and the number of the others.

    sources: the texts of the files whose lines can be shown.
    """
    found = list(diagnostics)
    rest = [f"{rest_text(len(found))}\n"] if len(found) > MOST else []
    return "\n".join([*paragraphs(found[:MOST], sources, color), *rest])


def paragraphs(
    diagnostics: Iterable[Diagnostic], sources: Mapping[str, str], color: bool = False
) -> list[str]:
    """Return the paragraph of each diagnostic."""
    found = list(diagnostics)
    files = {span.file for each in found for span in each.spans}
    lines = {file: re.split(r"\r\n|\r|\n", sources[file]) for file in files if file in sources}
    return [_Renderer(diagnostic, lines, color).text() for diagnostic in found]


def to_json(diagnostics: Iterable[Diagnostic]) -> list[dict[str, object]]:
    """Return the JSON record of each diagnostic."""
    return [
        {
            "code": diagnostic.code,
            "severity": diagnostic.severity,
            "message": diagnostic.message,
            **_place(diagnostic.span),
            "labels": [{"message": label.message, **_place(label.span)} for label in diagnostic.labels],
            "help": diagnostic.help,
        }
        for diagnostic in diagnostics
    ]


def _place(span: Span) -> dict[str, object]:
    return attrs.asdict(span, filter=lambda field, _: field.name != "call")


@frozen
class _Mark:
    """A range of one line, in characters from 0, underlined with `sign`: carets for the place, dashes for labels."""

    line: int
    start: int
    end: int
    sign: str
    message: str


@frozen
class _Renderer:
    """Writes one diagnostic with the source lines that it is about. color: with the colours of a terminal."""

    diagnostic: Diagnostic
    sources: Mapping[str, Sequence[str]]
    color: bool

    def text(self) -> str:
        """Return the diagnostic as text: title, source lines by file with marks below them, and help."""
        diagnostic = self.diagnostic
        title = self._paint(f"{diagnostic.severity}[{diagnostic.code}]", self._severity_color())
        rows = [title + self._paint(f": {_visible(diagnostic.message)}", PLAIN)]
        places = {diagnostic.span.file: [("^", diagnostic.span, "")]}
        for label in diagnostic.labels:
            places.setdefault(label.span.file, []).append(("-", label.span, _visible(label.message)))
        for arrow, marked in zip(("-->", *[":::"] * len(places)), places.values(), strict=False):
            rows += self._place(arrow, marked)
        if diagnostic.help:
            rows += [
                self._bar(),
                self._paint(f"{self._gutter()} = ", BLUE) + f"help: {_visible(diagnostic.help)}",
            ]
        return "\n".join(rows) + "\n"

    def _place(self, arrow: str, marked: Sequence[tuple[str, Span, str]]) -> Iterator[str]:
        """Yield the lines of one file, with their marks."""
        span = marked[0][1]
        yield self._paint(f"{self._gutter()}{arrow} ", BLUE) + _visible(str(span))
        if span.file not in self.sources:
            return
        yield self._bar()
        lines = self.sources[span.file]
        marks = [mark for sign, span, message in marked for mark in _marks(sign, span, message, lines)]
        previous = None
        for number in sorted({mark.line for mark in marks}):
            if previous is not None and number > previous + 1:
                yield self._paint("...", BLUE)
            previous = number
            yield from self._line(number, _line(lines, number), [m for m in marks if m.line == number])

    def _line(self, number: int, text: str, marks: Sequence[_Mark]) -> Iterator[str]:
        """Yield a source line, the carets under it, and the messages: the rightmost one beside the carets, the others below."""
        window = _Window.around(text, marks)
        yield self._paint(f"{number:>{len(self._gutter())}} | ", BLUE) + window.text
        marks = sorted(marks, key=lambda mark: (mark.start, mark.end), reverse=True)
        said = [(window.column(mark.start), mark.message) for mark in marks if mark.message]
        beside = f" {self._paint(said.pop(0)[1], BLUE)}" if marks[0].message else ""
        yield f"{self._bar()} {self._underline(window, marks)}{beside}"
        for column, message in said:
            yield f"{self._bar()} {' ' * column}{self._paint(message, BLUE)}"

    def _underline(self, window: _Window, marks: Sequence[_Mark]) -> str:
        """Return the row of marks below a source line: `^` of the diagnostic over `-` of its labels."""
        row: list[str] = []
        for mark in sorted(marks, key=lambda mark: mark.sign == "^"):
            start = window.column(mark.start)
            end = max(start + 1, window.column(mark.end))
            row += " " * (end - len(row))
            row[start:end] = mark.sign * (end - start)
        carets = re.sub(r"\^+", lambda match: self._paint(match[0], self._severity_color()), "".join(row))
        return re.sub(r"-+", lambda match: self._paint(match[0], BLUE), carets)

    def _gutter(self) -> str:
        """Return blanks of the width of the longest line number."""
        return " " * len(str(max(max(span.line, span.end_line) for span in self.diagnostic.spans)))

    def _bar(self) -> str:
        return self._paint(f"{self._gutter()} |", BLUE)

    def _severity_color(self) -> str:
        return RED if self.diagnostic.severity == "error" else YELLOW

    def _paint(self, text: str, color: str) -> str:
        return f"\x1b[{color}m{text}\x1b[0m" if self.color and text else text


@frozen
class _Window:
    """The part of a line that is shown. offsets: the columns on the terminal of its characters and of its end."""

    text: str
    first: int
    offsets: tuple[int, ...]

    @classmethod
    def around(cls, line: str, marks: Iterable[_Mark]) -> _Window:
        """Return the part of a source line that is shown; of a long one it begins a little before the first mark."""
        first = 0 if len(line) <= WINDOW else max(0, min(mark.start for mark in marks) - BEFORE)
        cells = [_cell(character) for character in line[first : first + WINDOW]]
        before, after = "…" * (first > 0), "…" * (first + WINDOW < len(line))
        offsets = accumulate((sum(map(_width, cell)) for cell in cells), initial=len(before))
        return cls(f"{before}{''.join(cells)}{after}", first, tuple(offsets))

    def column(self, character: int) -> int:
        return self.offsets[max(0, min(character - self.first, len(self.offsets) - 1))]


def _marks(sign: str, span: Span, message: str, lines: Sequence[str]) -> Iterator[_Mark]:
    """Yield the mark of a span. A span over several lines has two marks; the one on the last line has the message."""
    first, last = _line(lines, span.line), _line(lines, span.end_line)
    start = min(span.column - 1, len(first))
    if span.end_line <= span.line:
        yield _Mark(span.line, start, max(start, min(span.end_column - 1, len(first))), sign, message)
        return
    ends_inside = span.end_column > 1
    yield _Mark(span.line, start, len(first), sign, "" if ends_inside else message)
    if ends_inside:
        indent = len(last) - len(last.lstrip())
        yield _Mark(span.end_line, indent, max(indent, min(span.end_column - 1, len(last))), sign, message)


def _line(lines: Sequence[str], number: int) -> str:
    return lines[number - 1] if number <= len(lines) else ""


def _visible(text: str) -> str:
    return "".join(map(_cell, text))


def _cell(character: str) -> str:
    """Return a visible text for a character, for those too that move the cursor, write backwards or cannot be encoded."""
    if character.isprintable():
        return character
    if character == "\t":
        return TAB
    if character < " ":
        return chr(0x2400 + ord(character))
    return " " if unicodedata.category(character) == "Zs" else "\ufffd"


def _width(character: str) -> int:
    """Return the columns that a character takes on a terminal."""
    if unicodedata.combining(character):
        return 0
    return 2 if unicodedata.east_asian_width(character) in "WF" else 1
