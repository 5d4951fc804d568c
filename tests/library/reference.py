"""The summary of the library, from the comments of `mtfc/std/*.mtf`.

A module begins with a comment about all of it, and a blank line. Directly above each declaration stands a comment: a first line
with one sentence, paragraphs, and a list that names arguments and generic dimensions, `returns`, and where they say something
`parameters`, `splitting` (what is sent where a dimension is split) and `source`.
"""

import re
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


PARTS = (
    "attention.frequencies",
    "attention.local_mask",
    "attention.relative_bucket",
    "attention.turned",
    "conv.transposed_filter",
    "conv.transposed_windows",
    "decoding.followed",
    "decoding.written",
    "moe.balance",
    "moe.best",
    "moe.dropless_feed_forwards",
    "moe.feed_forwards",
    "moe.places",
    "nn.finite_max",
    "nn.moments",
    "nn.normalize",
    "nn.running_batch_norm",
    "rnn.gru_step",
    "rnn.lstm_step",
    "tensors.quotient",
)
"""Functions that other functions of the library are made of; the page only names them."""

DIMENSIONS = re.compile(r"[123]d")
NUMBERS = {"1d": "one", "2d": "two", "3d": "three"}


def reference() -> str:
    """Return a list for each module in Markdown, but for `optimizers`, which the reference of the language lists."""
    return "\n".join(_module(path) for path in MODULES if path.stem != "optimizers")


def _module(path: Path) -> str:
    """Return a line for all declarations of a name, and of names that differ in a number of dimensions."""
    alike: dict[str, list[Entry]] = {}
    for entry in entries(path):
        if entry.name not in PARTS:
            alike.setdefault(DIMENSIONS.sub("", entry.name), []).append(entry)
    parts = ", ".join(f"`{name}`" for name in PARTS if name.startswith(f"{path.stem}."))
    first = introduction(path).partition("\n\n")[0]
    return (
        f"## {path.stem}\n\n{first}\n\n"
        + "".join(map(_line, alike.values()))
        + (f"- Parts of these: {parts}.\n" if parts else "")
    )


def _line(alike: list[Entry]) -> str:
    """Return one line for functions that differ in the number of dimensions alone."""
    names = dict.fromkeys(entry.name for entry in alike)
    counts = dict.fromkeys(NUMBERS[found[0]] for name in names if (found := DIMENSIONS.search(name)))
    summary = alike[0].summary
    if len(counts) > 1:
        *first, last = counts
        summary = summary.replace("one dimension", f"{', '.join(first)} or {last} dimensions")
    return f"- {', '.join(f'`{name}`' for name in names)}: {summary}\n"
