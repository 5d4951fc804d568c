"""Lines of source in reports: their place, their text, and tables that have a row for each."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from mtfc.compiler.analysis.table import WIDTH, aligned, shortened
from mtfc.compiler.diagnostics import Span

Line = tuple[str, int]
"""A file and a line of it."""


def line_of(span: Span | None) -> Line:
    return (span.file, span.line) if span else ("", 0)


def place_text(line: Line, own: str | None) -> str:
    """The number of a line, with the file if that is not the user's own."""
    file, number = line
    return str(number or "-") if file in ("", own) else f"{file.rpartition('/')[2]}:{number}"


def source_text(line: Line, texts: Mapping[str, Sequence[str]]) -> str:
    file, number = line
    text = texts.get(file, ())
    return text[number - 1].strip() if 0 < number <= len(text) else ""


def fitted(rows: list[list[str]]) -> list[str]:
    """The rows as a table, the text of the lines (column 1) cut so that it fits."""
    columns = range(len(rows[0]))
    taken = sum(2 + max(len(row[i]) for row in rows) for i in columns if i != 1)
    cut = [[row[0], shortened(row[1], max(16, WIDTH - taken)), *row[2:]] for row in rows]
    return aligned(cut, right={i for i in columns if i != 1})
