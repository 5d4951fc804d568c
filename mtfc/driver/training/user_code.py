"""Functions of the user, `MODULE:FUNCTION`: how they are imported, and how their errors are shown.

An error in such a function becomes a message with the last lines of its traceback.
"""

import importlib
import os
import re
import sys
import traceback
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from operator import attrgetter
from pathlib import Path
from typing import Any

from mtfc.compiler.diagnostics import did_you_mean
from mtfc.driver.errors import UsageError

FUNCTION = re.compile(r"([^\W\d][\w.]*):([^\W\d][\w.]*)")
"""`MODULE:FUNCTION`; both may have dots."""

OWN = str(Path(__file__).parents[2]) + os.sep
"""The folder of mtfc."""

JAX = f"{os.sep}jax{os.sep}_src{os.sep}"
"""A part of the paths of JAX's own files."""

FRAMES = 3
"""The number of lines of a traceback in a message."""


def imported_function(spec: str, option: str, expected: str) -> Callable[..., Any]:
    """Import a function, from the current directory too. Raises `UsageError`.

    option: the option that names the function, for messages. expected: what the function does.
    """
    function: Callable[..., Any] = imported_value(spec, option, expected)
    if not callable(function):
        name, function_name = f"{option} {spec}".strip(), spec.partition(":")[2]
        raise UsageError(f"{name}: {function_name} is {kind_of_value(function)}; expected {expected}")
    return function


def imported_value(spec: str, option: str, expected: str, kind: str = "FUNCTION") -> Any:
    """Import a value of a module. Arguments and errors are those of `imported_function`. kind: the value's word in messages."""
    name = f"{option} {spec}".strip()
    if FUNCTION.fullmatch(spec) is None:
        raise UsageError(f"{name}: expected MODULE:{kind}, {expected}")
    module_name, value_name = spec.split(":")
    if str(Path.cwd()) not in sys.path:
        sys.path.insert(0, str(Path.cwd()))
    try:
        with explained(f"importing {module_name}", ModuleNotFoundError):
            module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if not f"{module_name}.".startswith(f"{error.name}."):
            raise UsageError(f"{module_name} needs the module {error.name}, which is not installed") from None
        if module_name.endswith(".py"):
            written = f"{module_name.removesuffix('.py')}:{value_name}"
            raise UsageError(f"{name}: a module has no .py in its name; write {written}") from None
        message = f"{name}: no module {error.name} in this directory or installed, and no file {module_name}"
        raise _unknown(message, module_name, (path.stem for path in Path.cwd().glob("*.py"))) from None
    try:
        return attrgetter(value_name)(module)
    except AttributeError:
        message = f"{name}: the module {module_name} has no {kind.lower()} {value_name}"
        raise _unknown(message, value_name, vars(module)) from None


def _unknown(message: str, name: str, known: Iterable[str]) -> UsageError:
    """Return the error for an unknown name, with the most similar known one."""
    help = did_you_mean(name, known)
    return UsageError(f"{message}: {help}" if help else message)


def kind_of_value(value: Any) -> str:
    """Return `a list`, `an int`, or `None`."""
    name = type(value).__name__
    return "None" if value is None else f"a{'n' * (name[0] in 'aeiouAEIOU')} {name}"


@contextmanager
def explained(what: str, *passed: type[Exception]) -> Iterator[None]:
    """Raise `UsageError` with the last lines of the traceback for an error in code of the user, unless it is one of `passed`.

    An exit of the program counts as an error too: in a thread it would end nothing.
    """
    unchanged: tuple[type[BaseException], ...] = (UsageError, KeyboardInterrupt, *passed)
    try:
        yield
    except unchanged:
        raise
    except BaseException as error:
        notes = sum(len(f"{note}".splitlines()) for note in getattr(error, "__notes__", ()))
        shown = "".join(traceback.format_exception_only(error)).splitlines()
        text = "".join(shown[: len(shown) - notes][-1:]).strip()
        lines = "".join(f"\n  {line}" for line in frames_of(error))
        raise UsageError(f"{what} raised {text}{lines}") from None


def frames_of(error: BaseException) -> list[str]:
    """Return place and text of the innermost lines of a traceback; lines of mtfc, of JAX and of Python's imports are left out."""
    frames = [
        each
        for each in traceback.extract_tb(error.__traceback__)
        if each.filename != importlib.__file__
        and not each.filename.startswith(("<frozen", OWN))
        and JAX not in each.filename
    ]
    return [f"{_shown(each.filename)}:{each.lineno} in {each.name}: {each.line}" for each in frames[-FRAMES:]]


def _shown(path: str) -> str:
    """Return a path from the current directory, if it is inside."""
    relative = os.path.relpath(path)
    return path if relative.startswith("..") else relative
