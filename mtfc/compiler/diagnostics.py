"""Diagnostics as data.

Every phase of the compiler reports problems as `Diagnostic` values that point into the user's text. `diagnostic_text.py` of the
reports renders them. A phase that can continue after an error appends to a `Diagnostics` collector. A phase that cannot continue
raises `CompileError`. The command shows all diagnostics, sorted by position. The Python API attaches to each diagnostic the
command's paragraph, so `str` of a diagnostic is the command's output.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from io import StringIO
from typing import Literal

import attrs

from mtfc.compiler.records import frozen

Severity = Literal["error", "warning"]


def text_lines(text: str) -> list[str]:
    """Return the lines of a text with their ends, as spans count them: `splitlines` also ends lines at form feeds."""
    return list(StringIO(text, newline=""))


@frozen(order=True)
class Span:
    """A range of a source file; lines and columns count from 1, and the end is exclusive.

    call: the place of the call, if the range is inside a function.
    """

    file: str
    line: int
    column: int
    end_line: int
    end_column: int
    call: Span | None = attrs.field(default=None, order=False)

    def __str__(self) -> str:
        return f"{self.file}:{self.line}:{self.column}"

    @classmethod
    def of_line(cls, file: str, text: str, line: int = 1) -> Span:
        """Return the place of a text that is a whole line, such as that of an option."""
        return cls(file, line, 1, line, 1 + len(text))

    def to(self, last: Span) -> Span:
        """Return the range from the start of this one to the end of another one."""
        return attrs.evolve(self, end_line=last.end_line, end_column=last.end_column)

    def inside(self, file: str | None) -> Span:
        """Return this place if it is in `file`, else the innermost call in `file` that led to it, else the outermost call."""
        return self if self.file == file or self.call is None else self.call.inside(file)

    def seen_from(self, file: str | None) -> str:
        """Return the line for a text about `file`: `line 12`, or `nn.mtf:12 in line 40` for a function that line 40 calls."""
        own = self.inside(file)
        line = f"line {own.line}" if own.file == file else f"{own.file.rpartition('/')[2]}:{own.line}"
        return line if own is self else f"{self.file.rpartition('/')[2]}:{self.line} in {line}"


class Located:
    """A base of records with a span: their file, line and column."""

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


@frozen
class Label(Located):
    """A second place that matters to a diagnostic, with a message about the place."""

    span: Span
    message: str


@frozen
class Diagnostic(Located):
    """A problem: a stable code, the finding, the place, further places, and a remedy.

    text: the paragraph that the command shows, set when the Python API hands the diagnostic out.
    """

    code: str
    message: str
    span: Span
    labels: tuple[Label, ...] = ()
    help: str | None = None
    text: str | None = attrs.field(default=None, eq=False, repr=False)

    @property
    def severity(self) -> Severity:
        return "warning" if self.code.startswith("W") else "error"

    @property
    def spans(self) -> tuple[Span, ...]:
        """All places that the diagnostic points to."""
        return (self.span, *(label.span for label in self.labels))

    def __str__(self) -> str:
        """Return the paragraph that the command shows; inside the compiler, without a paragraph, return a line."""
        return self.text or f"{self.span}: {self.code}: {self.message}"


MOST = 100
"""Most diagnostics that are shown at once."""


def rest_text(count: int) -> str:
    """Return the line that stands for the diagnostics after the first `MOST`."""
    return f"... and {count - MOST:,} more"


class CompileError(Exception):
    """An error that ends a compilation. `str` returns its diagnostics as the command shows them."""

    def __init__(self, diagnostics: Iterable[Diagnostic]) -> None:
        self.diagnostics = tuple(diagnostics)
        super().__init__(self.diagnostics)

    def __str__(self) -> str:
        is_shown = any(each.text is not None for each in self.diagnostics)
        shown = [*map(str, self.diagnostics[:MOST])]
        rest = [rest_text(len(self.diagnostics))] if len(self.diagnostics) > MOST else []
        return ("\n\n" if is_shown else "; ").join([*shown, *rest])

    def _render_traceback_(self) -> list[str]:
        """Return the lines that a notebook shows: the diagnostics with their carets, and no frames of Python."""
        return str(self).splitlines()


class Diagnostics:
    """A collector of diagnostics, which keeps equal diagnostics once."""

    def __init__(self) -> None:
        self._found: dict[Diagnostic, None] = {}

    def add(
        self, code: str, message: str, span: Span, labels: Iterable[Label] = (), help: str | None = None
    ) -> None:
        self._found[Diagnostic(code, message, span, tuple(labels), help)] = None

    def extend(self, diagnostics: Iterable[Diagnostic]) -> None:
        self._found.update(dict.fromkeys(diagnostics))

    def __iter__(self) -> Iterator[Diagnostic]:
        """Yield the diagnostics in source order: by file, line and column, then by code."""
        return iter(sorted(self._found, key=_source_order))

    @property
    def errors(self) -> tuple[Diagnostic, ...]:
        return tuple(d for d in self if d.severity == "error")

    def raise_if_errors(self) -> None:
        """Raise `CompileError` with all diagnostics if at least one of them is an error."""
        if self.errors:
            raise CompileError(self)


def _source_order(diagnostic: Diagnostic) -> tuple[str | int, ...]:
    """Return a key that sorts diagnostics by place, then by code and message."""
    span = diagnostic.span
    place = span.file, span.line, span.column, span.end_line, span.end_column
    return (*place, diagnostic.code, diagnostic.message)


def failure(
    code: str, message: str, span: Span, help: str | None = None, labels: Iterable[Label] = ()
) -> CompileError:
    """Return the exception of a single error."""
    return CompileError([Diagnostic(code, message, span, tuple(labels), help)])


def nearest(name: str, candidates: Iterable[str]) -> str | None:
    """Return the candidate closest to `name`, regardless of capitals, or None if no candidate is close."""
    from difflib import get_close_matches

    folded = {each.casefold(): each for each in candidates}
    matches = get_close_matches(name.casefold(), folded, n=1, cutoff=0.6)
    return folded[matches[0]] if matches else None


def did_you_mean(name: str, candidates: Iterable[str], otherwise: str | None = None) -> str | None:
    """Return help that suggests the candidate closest to `name`, or else another help."""
    near = nearest(name, candidates)
    return f"did you mean `{near}`?" if near else otherwise
