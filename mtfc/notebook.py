"""The cell magic `%%mtf` for IPython and Jupyter, which `%load_ext mtfc` adds.

    %%mtf net --layout hybrid --dim batch=64
    dim batch = 32
    ...

compiles the cell, binds the result to `net`, and shows it. Errors are shown as `mtfc check` prints them.
"""

import shlex
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from keyword import iskeyword
from typing import Any

from mtfc.api import Compiled, check_text, compile_text
from mtfc.compiler.diagnostics import CompileError

USAGE = "%%mtf [NAME] [--model NAME] [--layout NAME|RULES] [--mesh NAME|SHAPE] [--dim NAME=SIZE] [--set KEY=VALUE]"

FILE = "<cell>"
"""The name of a cell in diagnostics."""


class CellError(ValueError):
    """A cell that cannot be compiled, for a reason that has no place in its text."""

    def _render_traceback_(self) -> list[str]:
        """Return the line that a notebook shows, without frames of Python."""
        return [f"mtfc: {self}"]


def add_magic(shell: Any) -> None:
    """Register `%%mtf` with IPython's shell; it binds names among those of the user."""

    def mtf(line: str, cell: str) -> Compiled:
        with _without_frames():
            name, options = _read(line)
            compiled = _compiled(cell, options)
        if name is not None:
            shell.user_ns[name] = compiled
        return compiled

    mtf.__doc__ = f"Compile the cell as a .mtf file.\n\n{USAGE}"
    shell.register_magic_function(mtf, "cell", "mtf")


@contextmanager
def _without_frames() -> Iterator[None]:
    """Raise errors of values as `CellError`, which notebooks show without a traceback."""
    try:
        yield
    except ValueError as error:
        raise CellError(str(error)) from None


def _compiled(text: str, options: dict[str, Any]) -> Compiled:
    """Compile a cell, and print its warnings. Raises `CompileError` with all diagnostics of the cell."""
    checked = check_text(text, file=FILE, **options)
    if checked.errors:
        raise CompileError(checked.diagnostics)
    for each in checked.warnings:
        print(each, file=sys.stderr)
    return compile_text(text, file=FILE, **options)


def _read(line: str) -> tuple[str | None, dict[str, Any]]:
    """Return the name and the options of a magic's line. Raises `ValueError`."""
    try:
        words = shlex.split(line)
    except ValueError:
        raise ValueError(f"`{line}` has a quote that does not end: {USAGE}") from None
    name = words.pop(0) if words and not words[0].startswith("-") else None
    if name is not None and (not name.isidentifier() or iskeyword(name)):
        raise ValueError(f"`{name}` is no name of Python: {USAGE}")
    options: dict[str, Any] = {"dims": {}, "set": {}}
    for option, value in zip(words[::2], [*words[1::2], ""], strict=False):
        key, is_pair, entry = value.partition("=")
        if option in ("--model", "--layout", "--mesh") and value:
            options[option[2:]] = value
        elif option == "--dim" and is_pair and entry.isdecimal():
            options["dims"][key] = int(entry)
        elif option == "--set" and is_pair:
            options["set"][key] = entry
        else:
            raise ValueError(f"`{option} {value}`: {USAGE}")
    return name, options
