"""The place in the user's Python code that calls mtfc: its text as a span, and the variables that a result is assigned to."""

import dis
import linecache
import os
import re
import sys
from collections.abc import Sequence
from functools import lru_cache
from itertools import islice
from pathlib import Path
from types import CodeType

from mtfc.compiler.diagnostics import CompileError, Diagnostic, Span
from mtfc.driver.loading.sources import Sources

OWN = f"{Path(__file__).parent}{os.sep}"

NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


def caller() -> tuple[CodeType, int]:
    """Return the code that calls the graph, and its current instruction."""
    frame = sys._getframe(1)
    while frame.f_back is not None and _is_own(frame.f_code.co_filename):
        frame = frame.f_back
    return frame.f_code, frame.f_lasti


def _is_own(file: str) -> bool:
    return file.startswith(OWN) or Path(file).name == "contextlib.py"


def place_of(code: CodeType, instruction: int) -> Span:
    """Return the text of an instruction as a span; columns count characters."""
    file = code.co_filename
    line, end, column, end_column = next(islice(code.co_positions(), instruction // 2, None))
    if line is None or end is None or column is None or end_column is None:
        first = line or code.co_firstlineno
        return Span(file, first, 1, first, 2)
    return Span(file, line, _characters(file, line, column), end, _characters(file, end, end_column))


def _characters(file: str, line: int, column: int) -> int:
    before = linecache.getline(file, line).encode()[:column]
    return 1 + len(before.decode("utf-8", "replace"))


def targets(number: int) -> list[str]:
    """Return the names of the variables that the caller's next instructions bind to the results."""
    code, last = caller()
    following = [each for each in _instructions(code) if each.offset > last][: number + 1]
    if following and following[0].opname == "UNPACK_SEQUENCE" and following[0].arg == number:
        following = following[1:]
    found = list[str]()
    for each in following[:number]:
        names = each.argval if isinstance(each.argval, tuple) else (each.argval,)
        if not each.opname.startswith("STORE_") or not all(
            isinstance(n, str) and NAME.fullmatch(n) for n in names
        ):
            break
        found += names
    return found[:number]


@lru_cache(maxsize=16)
def _instructions(code: CodeType) -> tuple[dis.Instruction, ...]:
    return tuple(each for each in dis.get_instructions(code) if each.opname != "CACHE")


def shown_in_python(errors: Sequence[Diagnostic]) -> CompileError:
    """Return errors with the paragraphs that commands show, which have the lines of Python."""
    sources = Sources()
    for span in {span for each in errors for span in each.spans}:
        sources.texts[span.file] = "".join(linecache.getlines(span.file))
    return CompileError(sources.shown(errors))
