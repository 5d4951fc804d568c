"""The texts that diagnostics may point into: files as they were read, and options as they were given."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterable

import attrs

from mtfc.compiler.diagnostics import Diagnostic
from mtfc.driver.data.files import STANDARD, read_bytes, read_neighbour

STDIN = "<stdin>"


def known_as(path: str) -> str:
    """What diagnostics call a file."""
    return STDIN if path == STANDARD else path


class Sources:
    """Texts by the file name that spans have."""

    def __init__(self) -> None:
        self.texts: dict[str, str] = {}

    def read(self, path: str) -> str:
        """Read a .mtf file; the name by which it is known. Raises `UsageError`, and `CompileError` where it is not text."""
        from mtfc.frontend.syntax.lexer import decode

        file = known_as(path)
        self.texts[file] = decode(read_bytes(path), file)
        return file

    def neighbour(self, path: str) -> str | None:
        """Read a file that another imports; None where there is none. Raises like `read`."""
        text = read_neighbour(path)
        if text is not None:
            self.texts[path] = text
        return text

    def add_options(self, options: argparse.Namespace) -> None:
        """Options whose text diagnostics may point into."""
        for name in ("mesh", "layout", "target"):
            if isinstance(getattr(options, name, None), str):
                self.texts[f"<--{name}>"] = getattr(options, name)
        sizes = getattr(options, "dims", {})
        self.texts["<--set>"] = "\n".join(getattr(options, "settings", ()))
        self.texts["<--dim>"] = "\n".join(f"{name}={size}" for name, size in sizes.items())

    def shown(self, diagnostics: Iterable[Diagnostic]) -> list[Diagnostic]:
        """Diagnostics with the texts that they point into."""
        from mtfc.frontend.semantics.names import standard_library

        found = list(diagnostics)
        texts = self.texts | standard_library.texts(_files(found))
        return [attrs.evolve(each, sources=texts) for each in found]

    def report(self, diagnostics: Iterable[Diagnostic], format: str) -> None:
        """Show diagnostics on standard error, as text or JSON."""
        from mtfc.frontend.semantics.names import standard_library
        from mtfc.reports.diagnostic_text import render, to_json

        found = list(diagnostics)
        if format == "json":
            print(json.dumps(to_json(found), indent=2), file=sys.stderr)
        elif found:
            texts = self.texts | standard_library.texts(_files(found))
            print(render(found, texts, color=sys.stderr.isatty()), file=sys.stderr, end="")


def _files(diagnostics: Iterable[Diagnostic]) -> set[str]:
    """The files that diagnostics point into."""
    spans = (span for each in diagnostics for span in (each.span, *(label.span for label in each.labels)))
    return {span.file for span in spans}
