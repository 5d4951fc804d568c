"""Columns of plain text."""

from __future__ import annotations

import textwrap
from collections.abc import Collection, Container, Iterable, Sequence

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
