"""The user's lines: of equations, functions and errors."""

import inspect
import sysconfig
from collections.abc import Callable
from contextlib import AbstractContextManager
from functools import cache
from itertools import islice
from typing import Any

from mtfc.compiler.diagnostics import Span

LIBRARIES = tuple({sysconfig.get_path(name) for name in ("stdlib", "platstdlib")})


@cache
def is_library(file: str) -> bool:
    is_installed = "site-packages" in file or "dist-packages" in file
    return is_installed or file.startswith(LIBRARIES) or file.startswith("<")


def definition(function: Callable[..., Any]) -> Span:
    """Return the line on which a function is defined."""
    inner = inspect.unwrap(function) if callable(function) else function
    code = getattr(inner, "__code__", None) or getattr(type(inner).__call__, "__code__", None)
    if code is None:
        return Span("<function>", 1, 1, 1, 2)
    return Span(code.co_filename, code.co_firstlineno, 1, code.co_firstlineno, 2)


def line_of(traceback: Any) -> Span | None:
    """Return the innermost line outside of libraries, or else outside of JAX."""
    from jax._src.source_info_util import user_frames

    if traceback is None:
        return None
    first = None
    for frame in user_frames(traceback):
        if not is_library(frame.file_name):
            return _span(frame)
        first = first or frame
    return None if first is None else _span(first)


def _span(frame: Any) -> Span:
    """Return the span of a frame in the user's file, with columns from 1 on."""
    end = max(frame.end_line, frame.start_line)
    column = max(1, frame.start_column + 1)
    return Span(frame.file_name, frame.start_line, column, end, max(frame.end_column + 1, column + 1))


def line_of_error(error: Exception) -> Span | None:
    """Return the innermost expression of the user that an exception went through."""
    place, traceback = None, error.__traceback__
    while traceback is not None:
        code = traceback.tb_frame.f_code
        if not is_library(code.co_filename) and "/frontend/jaxpr/" not in code.co_filename:
            positions = next(islice(code.co_positions(), traceback.tb_lasti // 2, None), (None,) * 4)
            line, end_line, column, end_column = (each or 0 for each in positions)
            line = line or traceback.tb_lineno
            end_line = max(line, end_line)
            least = column + 2 if end_line == line else 1
            place = Span(code.co_filename, line, column + 1, end_line, max(end_column + 1, least))
        traceback = traceback.tb_next
    return place


def at_line_of(eqn: Any) -> AbstractContextManager[Any]:
    """Return a context in which primitives get the call stack and the name scopes of an equation."""
    from jax._src.source_info_util import current_name_stack, user_context

    source = eqn.source_info
    found: AbstractContextManager[Any] = user_context(
        source.traceback, name_stack=current_name_stack() + source.name_stack
    )
    return found
