"""Texts that diagnostics may point into: files as they were read, and options as they were given."""

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Protocol

import attrs

from mtfc.compiler.diagnostics import MOST, CompileError, Diagnostic, Span, text_lines
from mtfc.driver.data.files import LARGEST_TEXT, STANDARD, read_bytes, read_neighbour
from mtfc.driver.errors import UsageError, diagnostic_in_python
from mtfc.driver.loading.choice import Choice

STDIN = "<stdin>"


def known_as(path: str) -> str:
    """Return the name that diagnostics give a file."""
    return STDIN if path == STANDARD else path


def line_span(file: str, text: str, number: int) -> Span:
    """Return the span of a line, from 1, without the blanks around it; of the last line if the file is shorter."""
    lines = text_lines(text) or [""]
    number = max(1, min(number, len(lines)))
    line = lines[number - 1].rstrip("\r\n")
    start = 1 + len(line) - len(line.lstrip())
    return Span(file, number, start, number, max(start + 1, 1 + len(line.rstrip())))


class Reported(Protocol):
    """A result of a command: a record, and a report that shows source lines."""

    def record(self) -> dict[str, Any]:
        """Return the JSON record."""
        ...

    def report(self, texts: Mapping[str, str]) -> str:
        """Return the report; `texts` holds each file's text by name."""
        ...


class Sources:
    """Texts by the file name that spans have."""

    def __init__(self) -> None:
        self.texts: dict[str, str] = {}

    def read(self, path: str) -> str:
        """Read a .mtf file and return its name in diagnostics.

        Raises `UsageError`, and `CompileError` for a file that is not text.
        """
        from mtfc.frontend.syntax.lexer import decode

        file = known_as(path)
        self.texts[file] = decode(read_bytes(path, LARGEST_TEXT), file)
        if file.endswith(".py"):
            step = f"`{file[:-3]}:step --args {file[:-3]}:example`"
            raise UsageError(f"{file} has Python: name a function of JAX, {step}")
        return file

    def neighbour(self, path: str) -> str | None:
        """Read a file that another file imports; None if the file does not exist. Raises the errors of `read`."""
        text = read_neighbour(path)
        if text is not None:
            self.texts[path] = text
        return text

    def add_choice(self, choice: Choice) -> None:
        """Add the options whose text diagnostics may point into."""
        for name, text in (("mesh", choice.mesh), ("layout", choice.layout), ("memory", choice.memory)):
            if text is not None:
                self.texts[f"<--{name}>"] = text
        self.texts["<--set>"] = "\n".join(choice.settings)
        self.texts["<--dim>"] = "\n".join(f"{name}={size}" for name, size in choice.dims.items())

    def with_library(self) -> dict[str, str]:
        """Return all texts, and those of the library."""
        from mtfc.frontend.semantics.names import standard_library

        return self.texts | standard_library.texts()

    def shown(self, diagnostics: Iterable[Diagnostic]) -> list[Diagnostic]:
        """Return the diagnostics, each with the paragraph that the command shows for it, as far as it shows them."""
        from mtfc.reports.diagnostic_text import paragraphs

        found = list(diagnostics)
        texts = paragraphs(found[:MOST], self.with_library())
        shown = [
            attrs.evolve(each, text=text.removesuffix("\n")) for each, text in zip(found, texts, strict=False)
        ]
        return [*shown, *found[MOST:]]


@contextmanager
def showing(sources: Sources) -> Iterator[None]:
    """Attach to raised diagnostics the paragraphs that the command shows, with options written as arguments in Python."""
    try:
        yield
    except CompileError as error:
        raise CompileError(sources.shown(map(diagnostic_in_python, error.diagnostics))) from None
