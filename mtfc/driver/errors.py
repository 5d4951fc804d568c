"""Errors of usage, exit statuses, and how the Python API raises errors.

A user of the API sees their own call, one frame of mtfc, and a sentence or the diagnostics as the command shows them. Frames of
the compiler would only hide these. Errors that are bugs in mtfc keep their traceback.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import wraps
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, ParamSpec, TypeVar

if TYPE_CHECKING:
    from mtfc.compiler.diagnostics import Diagnostic

P = ParamSpec("P")
R = TypeVar("R")


OK, ERRORS, USAGE, ENVIRONMENT, BUG, INTERRUPTED = 0, 1, 2, 3, 70, 130
"""Exit statuses of the command: success; errors of a program; wrong usage; an incomplete environment; a bug of mtfc; Ctrl-C."""


def say(message: str) -> None:
    """Print a line on standard error."""
    print(f"mtfc: {message}", file=sys.stderr)


def reason_of(error: Exception) -> str:
    """Return the reason of an error, for the end of a sentence: the system's words without the path, and a similar path."""
    if not isinstance(error, OSError):
        return str(error)
    path = error.filename if isinstance(error, FileNotFoundError | IsADirectoryError) else None
    return (error.strerror or str(error)).lower() + (similar_path(path) if isinstance(path, str) else "")


MOST_NAMES = 1000
"""Most names of a folder among which a similar one is looked for."""


def similar_path(path: str, is_folder: bool = False) -> str:
    """Return `: did you mean ...?` with a path that exists and is similar to a missing one; empty if there is none."""
    from mtfc.compiler.diagnostics import nearest

    found, rest = Path(path), list[str]()
    if found.is_dir():
        programs = sorted(found.glob("*.mtf"))
        return f": did you mean {programs[0]}?" if programs else ""
    while found != found.parent and not found.parent.is_dir():
        rest.insert(0, found.name)
        found = found.parent
    with suppress(OSError, ValueError):
        near_by = islice(found.parent.iterdir(), MOST_NAMES)
        names = [each.name for each in near_by if each.is_dir() or not (rest or is_folder)]
        stems = {name.removesuffix(found.suffix): name for name in names if name.endswith(found.suffix)}
        near = nearest(found.stem, stems) or nearest(found.name, {*names}.difference(stems.values()))
        if near:
            place = found.parent / stems.get(near, near)
            whole = place.joinpath(*rest)
            meant, here = whole if whole.exists() else place, Path.cwd()
            return f": did you mean {meant.relative_to(here) if meant.is_relative_to(here) else meant}?"
    return ""


class UsageError(Exception):
    """An impossible request of the user. The message names the request and the choices. The API raises `ValueError` instead."""


class FailedRequest(Exception):
    """A correct request without a result. The command shows the message and ends with the status of an error in a program."""


@contextmanager
def raised_as(kind: Callable[[str], Exception], message: str, *errors: type[Exception]) -> Iterator[None]:
    """Raise an error of a kind for some errors of the block, by default those of files: a message and the reason's first line."""
    kinds = errors or (OSError,)
    try:
        yield
    except kinds as error:
        reason = reason_of(error).partition("\n")[0]
        raise kind(f"{message}: {reason}") from None


def public(function: Callable[P, R]) -> Callable[P, R]:
    """Raise the errors of a function of the API without the frames between the caller and the error."""

    @wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        __tracebackhide__ = True  # notebooks and pytest leave this frame out, too
        try:
            return function(*args, **kwargs)
        except Exception as error:
            shown = _shown(error)
            if shown is None:
                raise
        raise shown.with_traceback(None) from None

    return call


def _shown(error: Exception) -> Exception | None:
    """Return the error as users of the API get it; None for an internal error."""
    from mtfc.backends.common.devices import Unavailable
    from mtfc.compiler.diagnostics import CompileError
    from mtfc.compiler.search.found import NothingFits

    if isinstance(error, UsageError):
        unread = error.__context__
        return unread if isinstance(unread, OSError) else ValueError(in_python(str(error)))
    if type(error) in (Unavailable, NothingFits):
        return type(error)(in_python(str(error)))
    return error if isinstance(error, (CompileError, OSError)) else None


def in_python(message: str) -> str:
    """Write options in a message as arguments of a Python call: `--why-not` becomes `why_not`.

    A command in backticks stays as it is.
    """
    return OPTION.sub(_argument, message)


OPTION = re.compile(
    r"`mtfc [^`]*`|`--([a-z][a-z-]*)(?: ([^`]+))?`|(?<!=)--([a-z][a-z-]*)(?: NAME=SIZE| KEY=VALUE)?"
)
"""A command in backticks, an option in backticks that may have a value, or an option."""

ARGUMENTS = {"dim": "dims"}
"""The arguments that have other names than the options."""


def _argument(match: re.Match[str]) -> str:
    """Return an option of the command in a message, such as `--memory 8GiB`, as the argument of Python: `memory='8GiB'`."""
    option = match[1] or match[3]
    if option is None:
        return match[0]
    name = ARGUMENTS.get(option, option.replace("-", "_"))
    value = (match[2] or "").strip('"')
    return f"`{name}`" if match[2] is None else f"`{name}={value!r}`"


def diagnostic_in_python(each: Diagnostic) -> Diagnostic:
    """Return a diagnostic with the options in its message and help as arguments of a Python call."""
    import attrs

    help = None if each.help is None else in_python(each.help)
    return attrs.evolve(each, message=in_python(each.message), help=help)
