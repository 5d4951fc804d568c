"""Tables in reports: columns of text, and rows for source lines.

Columns of plain text.

Source lines in reports: their place, their text, and tables with a row for each line.
"""

import textwrap
from collections.abc import Callable, Collection, Container, Iterable, Iterator, Mapping, Sequence
from functools import reduce
from operator import add
from typing import Any, Protocol, Self, TypeVar

from mtfc.compiler.diagnostics import Span, text_lines

WIDTH = 118


def aligned(rows: Sequence[Sequence[str]], right: Collection[int] = (), indent: str = "  ") -> list[str]:
    """Return the rows with cells padded to columns. right: the numbers of the columns that are aligned to the right."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [
        (indent + "  ".join(_padded(cell, widths[i], i in right) for i, cell in enumerate(row))).rstrip()
        for row in rows
    ]


def _padded(cell: str, width: int, right: bool) -> str:
    return cell.rjust(width) if right else cell.ljust(width)


def shortened(text: str, width: int) -> str:
    return text if len(text) <= width else text[: width - 3].rstrip() + "..."


def wrapped(pieces: Iterable[str], hanging: int) -> list[str]:
    """Return the pieces on lines, without a break inside a piece. Lines from the second on are indented by `hanging`."""
    glue = "\N{NO-BREAK SPACE}"  # at which textwrap does not break
    text = " ".join(piece.replace(" ", glue) for piece in pieces)
    lines = textwrap.wrap(
        text,
        WIDTH,
        initial_indent="  ",
        subsequent_indent=" " * hanging,
        break_long_words=False,
        break_on_hyphens=False,
    )
    return [line.replace(glue, " ") for line in lines]


def count_text(count: int) -> str:
    """Return a number as text: `512`, `42.4 M`."""
    thousands = min((len(str(count)) - 1) // 3, 5)
    return f"{count / 1000**thousands:.4g} {' kMGTP'[thousands]}".rstrip()


def flops_text(count: int) -> str:
    """Return a number of floating-point operations as text: `512 FLOP`, `42.4 MFLOP`."""
    text = count_text(count)
    return f"{text}FLOP" if text[-1].isalpha() else f"{text} FLOP"


def devices_text(machine: str, number: int) -> str:
    """Return `4 devices of h100`."""
    return f"{number} device{'s'[: number - 1]} of {machine}"


def listed(names: Iterable[str]) -> str:
    """Return names in backticks, sorted, and at most the first eight."""
    found = sorted(names)
    shown = ", ".join(f"`{name}`" for name in found[:8]) + (", ..." if len(found) > 8 else "")
    return shown or "nothing"


def free_name(name: str, taken: Container[str]) -> str:
    """Return the name, with a number if the name is taken."""
    number, wanted = 2, name
    while name in taken:
        name, number = f"{wanted}_{number}", number + 1
    return name


Line = tuple[str, int]
"""A file and a line number."""


class Summable(Protocol):
    """A figure of a place that can be added to the figures of other places."""

    def __add__(self, other: Any, /) -> Self: ...


Figure = TypeVar("Figure", bound=Summable)


def line_of(span: Span | None) -> Line:
    return (span.file, span.line) if span else ("", 0)


def nested(figures: Iterable[tuple[Span | None, Figure]], own: str | None) -> dict[Line, dict[Line, Figure]]:
    """Return the figures by line of the user's file, in ascending order, and inside by line of the called function."""
    found: dict[Line, dict[Line, Figure]] = {}
    for span, figure in figures:
        inside = found.setdefault(line_of(span.inside(own) if span else None), {})
        line = line_of(span)
        inside[line] = inside[line] + figure if line in inside else figure
    return dict(sorted(found.items()))


def line_rows(
    figures: Iterable[tuple[Span | None, Figure]],
    own: str | None,
    sources: Mapping[str, str],
    cells: Callable[[Figure], Iterable[str]],
    alone: Callable[[str, str, Figure], Iterable[list[str]]] | None = None,
) -> Iterator[list[str]]:
    """Yield a row for each line of the user's file. Below a line that calls functions of other files come rows for their
    lines.

    alone: returns the rows of a line that calls no other line, for its place and its source.
    """
    texts = {file: text_lines(text) for file, text in sources.items()}
    rows = alone or (lambda place, source, figure: [[place, source, *cells(figure)]])
    for line, inside in nested(figures, own).items():
        if set(inside) == {line}:
            yield from rows(place_text(line, own), source_text(line, texts), inside[line])
            continue
        yield [place_text(line, own), source_text(line, texts), *cells(reduce(add, inside.values()))]
        for place, each in sorted(inside.items(), key=lambda item: (item[0] != line, item[0])):
            yield from rows(place_text(place, own), f"  {source_text(place, texts)}", each)


def lines_json(
    figures: Iterable[tuple[Span | None, Figure]],
    own: str | None,
    json: Callable[[Figure], Mapping[str, Any]],
) -> list[dict[str, Any]]:
    """Return a record for each line of the user's file, with the JSON of its figures."""
    lines = nested(figures, own).items()
    return [
        {"file": file, "line": number, **json(reduce(add, inside.values()))}
        for (file, number), inside in lines
    ]


def place_json(span: Span | None) -> dict[str, Any]:
    """Return the file and the line of a place in a record; None for what the compiler has added."""
    return {"file": span.file if span else None, "line": span.line if span else None}


def chain_of(span: Span | None) -> list[Span]:
    """Return a place and the calls that led there, the innermost first."""
    found = []
    while span is not None:
        found.append(span)
        span = span.call
    return found


def place_text(line: Line, own: str | None) -> str:
    """Return the number of a line, with the file if it is not the user's own."""
    file, number = line
    return str(number or "-") if file in ("", own) else f"{file.rpartition('/')[2]}:{number}"


def source_text(line: Line, texts: Mapping[str, Sequence[str]]) -> str:
    """Return the text of a line; an empty one if it is unknown."""
    file, number = line
    text = texts.get(file, ())
    return text[number - 1].strip() if 0 < number <= len(text) else ""


def fitted(rows: list[list[str]]) -> list[str]:
    """Return the rows as a table. The text of the lines, in column 1, is cut to the width of the report."""
    columns = range(len(rows[0]))
    taken = sum(2 + max(len(row[i]) for row in rows) for i in columns if i != 1)
    cut = [[row[0], shortened(row[1], max(16, WIDTH - taken)), *row[2:]] for row in rows]
    return aligned(cut, right={i for i in columns if i != 1})
