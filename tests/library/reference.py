"""The summary of the library, from the comments of `mtfc/std/*.mtf`.

A module begins with a comment about all of it, and a blank line. Directly above each declaration stands a comment: a first line
with one sentence, paragraphs, and a list that names arguments and generic dimensions, `returns`, and where they say something
`parameters`, `splitting` (what is sent where a dimension is split) and `source`.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import takewhile
from pathlib import Path

import attrs

from mtfc.compiler.diagnostics import Diagnostics
from mtfc.frontend.syntax import ast
from mtfc.frontend.syntax.parser import parse
from tests.documents import ROOT

STANDARD = ROOT / "mtfc/std"
MODULES = sorted(STANDARD.glob("*.mtf"))


@attrs.frozen
class Entry:
    """One function or optimizer: its declaration, its signature as text, and the comment above it."""

    module: str
    decl: ast.FnDecl | ast.OptimizerDecl
    signature: str
    comment: str

    @property
    def summary(self) -> str:
        """The first sentence of the comment."""
        return self.comment.partition("\n")[0]

    @property
    def name(self) -> str:
        """The name as users write it: optimizers need no import."""
        plain = self.decl.name.text
        return plain if isinstance(self.decl, ast.OptimizerDecl) else f"{self.module}.{plain}"


def _uncommented(lines: list[str]) -> str:
    return "\n".join(line.removeprefix("#").removeprefix(" ") for line in lines)


def introduction(path: Path) -> str:
    """Return the comment at the top of a module."""
    return _uncommented(
        list(takewhile(lambda line: line.startswith("#"), path.read_text("utf-8").split("\n")))
    )


def entries(path: Path) -> Iterator[Entry]:
    """Return the declarations of a module, in order."""
    text = path.read_text("utf-8")
    lines = text.split("\n")
    for decl in parse(text, path.name, Diagnostics()).declarations:
        if isinstance(decl, ast.FnDecl | ast.OptimizerDecl):
            start = decl.span.line - 1
            above = list(takewhile(lambda line: line.startswith("#"), reversed(lines[:start])))
            signature = "\n".join(lines[start:]).partition("{")[0].strip()
            yield Entry(path.stem, decl, signature, _uncommented(above[::-1]))


def reference() -> str:
    """Return a table for each module in Markdown."""
    return "\n".join(map(_module, MODULES))


def _module(path: Path) -> str:
    """Return a row for all declarations of a name, of which the first that fits is used."""
    by_name: dict[str, list[Entry]] = {}
    for entry in entries(path):
        by_name.setdefault(entry.name, []).append(entry)
    rows = [f"| `{name}` | {entry.summary} |" for name, (entry, *_) in by_name.items()]
    first = introduction(path).partition("\n\n")[0]
    link = f"More: [`{path.name}`](../{path.relative_to(ROOT)}), or `mtfc help {path.stem}`."
    return "\n".join([f"## {path.stem}\n", f"{first} {link}", "\n| | |\n| --- | --- |", *rows, ""])
