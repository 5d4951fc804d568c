"""A graph of `mtfc.graph` in the place of a .mtf file: `MODULE:GRAPH`, or `MODULE:FUNCTION` for a function that returns one."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable
from contextlib import redirect_stdout
from os import PathLike, fspath
from pathlib import Path
from typing import Any

from mtfc.driver.training.user_code import FUNCTION, explained, imported_value


def graph_file(spec: str) -> tuple[Any, str]:
    """Return a graph and the path of its file, which is there as long as the graph; or None and the text as it is.

    Raises `UsageError` if the module cannot be imported, and the errors of a graph.
    """
    if FUNCTION.fullmatch(spec) is None or Path(spec).exists():
        return None, spec
    with redirect_stdout(sys.stderr):  # standard output is for results alone
        value = imported_value(spec, "", "a graph, or a function of JAX with --args", "VALUE")
        if callable(value) and not isinstance(value, PathLike) and _needs_nothing(value):
            with explained(f"calling {spec}"):
                value = value()
        return (value, fspath(value)) if isinstance(value, PathLike) else (None, spec)


def _needs_nothing(function: Callable[..., Any]) -> bool:
    """Return True if a function can be called without arguments."""
    try:
        inspect.signature(function).bind()
    except (TypeError, ValueError):
        return False
    return True
