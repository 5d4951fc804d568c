"""Diagnostics as data.

Every phase of the compiler reports problems as `Diagnostic` values that point into the user's text; nothing here knows
how they are shown (`render.py` does). A phase that can go on after an error appends to a `Diagnostics` collector; one
that cannot raises `CompileError`. Either way the command shows all of them, sorted by position. The Python API adds the texts
that they point into, so that `str` of a diagnostic is the command's output.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Literal

import attrs

Severity = Literal["error", "warning"]


@attrs.frozen(order=True)
class Span:
    """A stretch of a source file; lines and columns count from 1, the end is exclusive.

    `call` is where the function that it stands in was called, if it stands in one.
    """

    file: str
    line: int
    column: int
    end_line: int
    end_column: int
    call: Span | None = attrs.field(default=None, order=False)

    def __str__(self) -> str:
        return f"{self.file}:{self.line}:{self.column}"

    def inside(self, file: str | None) -> Span:
        """This place if it is in `file`, or the innermost call there that led to it, or the outermost call of all."""
        return self if self.file == file or self.call is None else self.call.inside(file)

    def seen_from(self, file: str | None) -> str:
        """The line as one says it in a text about `file`: `line 12`, or `nn.mtf:12 in line 40` of what line 40 calls."""
        own = self.inside(file)
        line = f"line {own.line}" if own.file == file else f"{own.file.rpartition('/')[2]}:{own.line}"
        return line if own is self else f"{self.file.rpartition('/')[2]}:{self.line} in {line}"


class Located:
    """Something with a span, whose place a program reads as file, line and column."""

    __slots__ = ()
    span: Span

    @property
    def file(self) -> str:
        return self.span.file

    @property
    def line(self) -> int:
        return self.span.line

    @property
    def column(self) -> int:
        return self.span.column


@attrs.frozen
class Label(Located):
    """A second place that matters to a diagnostic, with what there is to say about it."""

    span: Span
    message: str


@attrs.frozen
class Diagnostic(Located):
    """One problem: a stable code, the place, the finding, the expectation, and a remedy.

    sources: the texts of the files that the diagnostic points into, set when it is handed out; `str` shows their lines.
    """

    code: str
    message: str
    span: Span
    labels: tuple[Label, ...] = ()
    help: str | None = None
    sources: Mapping[str, str] | None = attrs.field(default=None, eq=False, repr=False)

    @property
    def severity(self) -> Severity:
        return "warning" if self.code.startswith("W") else "error"

    def __str__(self) -> str:
        """Return the paragraph that the command shows; inside of the compiler, without texts, return a line."""
        if self.sources is None:
            return f"{self.span}: {self.code}: {self.message}"
        from mtfc.reports.diagnostic_text import render

        return render([self], self.sources).removesuffix("\n")


class CompileError(Exception):
    """Raised where compilation cannot go on; carries the diagnostics, and shows them as the command does."""

    def __init__(self, diagnostics: Iterable[Diagnostic]) -> None:
        self.diagnostics = tuple(diagnostics)
        super().__init__(self.diagnostics)

    def __str__(self) -> str:
        is_shown = any(each.sources is not None for each in self.diagnostics)
        return ("\n\n" if is_shown else "; ").join(map(str, self.diagnostics))


class Diagnostics:
    """Collects diagnostics in the order found; a repeated one is kept once."""

    def __init__(self) -> None:
        self._found: dict[Diagnostic, None] = {}

    def add(
        self, code: str, message: str, span: Span, labels: Iterable[Label] = (), help: str | None = None
    ) -> None:
        self._found[Diagnostic(code, message, span, tuple(labels), help)] = None

    def extend(self, diagnostics: Iterable[Diagnostic]) -> None:
        self._found.update(dict.fromkeys(diagnostics))

    def __iter__(self) -> Iterator[Diagnostic]:
        """In source order: by file, line and column, then code."""
        return iter(sorted(self._found, key=lambda d: (d.span, d.code, d.message)))

    @property
    def errors(self) -> tuple[Diagnostic, ...]:
        return tuple(d for d in self if d.severity == "error")

    def raise_if_errors(self) -> None:
        """Raise `CompileError` with everything found when at least one of it is an error."""
        if self.errors:
            raise CompileError(self)


def nearest(name: str, candidates: Iterable[str]) -> str | None:
    """The candidate that `name` most likely meant, whatever its capitals, or None when none is close."""
    from difflib import get_close_matches

    folded = {each.casefold(): each for each in candidates}
    matches = get_close_matches(name.casefold(), folded, n=1, cutoff=0.6)
    return folded[matches[0]] if matches else None
