"""Numba for the loops of the solver and of the placement search: decorators, the cache of compiled code, warm-up.

Numba is optional. Without it each decorator returns the function unchanged: the same code runs slowly and gives the same results.
This is the only file that touches private parts of Numba.

Numba keeps compiled code on disk, beside the source or in a folder of its own. It checks only the file of the function itself.
But compiled code contains the functions that it calls, so here a change to any file of `compiler/search` invalidates the whole
cache.
"""

from collections.abc import Callable
from functools import cache
from pathlib import Path
from pickle import UnpicklingError
from typing import Any, TypeVar, cast

Function = TypeVar("Function", bound=Callable[..., Any])

INTERNAL = {"no_cpython_wrapper": True, "no_cfunc_wrapper": True}
"""Options that leave out the entry point from Python, which takes long to compile."""


def jit(function: Function) -> Function:
    """Compile a function that Python calls."""
    return _compiled(function)


def jit_internal(function: Function) -> Function:
    """Compile a function that only compiled functions call."""
    return _compiled(function, **INTERNAL)


def jit_no_refcount(function: Function) -> Function:
    """Compile an internal function that makes no arrays: it does not count references to its arguments.

    With many arguments, counting takes longer than the work.
    """
    return _compiled(function, **INTERNAL, _nrt=False)


def jit_inline(function: Function) -> Function:
    """Compile an internal function that makes no arrays into its callers, which saves passing hundreds of arguments."""
    return _compiled(function, **INTERNAL, _nrt=False, forceinline=True)


def warm_up(run: Callable[[], object]) -> None:
    """Run loops on a tiny input, so that they are compiled before a search is timed. Do nothing without Numba."""
    try:
        import numba  # noqa: F401
    except ImportError:
        return
    run()


def _compiled(function: Function, **options: Any) -> Function:
    """Return a function compiled by Numba, with its cache on disk if possible; the function itself without Numba."""
    try:
        from numba import njit
    except ImportError:
        return function
    try:
        found = njit(cache=True, nogil=True, **options)(function)
    except RuntimeError:  # no folder can be written to
        return cast(Function, njit(nogil=True, **options)(function))
    if file := getattr(found._cache, "_cache_file", None):
        file._source_stamp, file._load_index = _stamp(), _tolerant(file._load_index)
    return cast(Function, found)


def _tolerant(load: Callable[[], Any]) -> Callable[[], Any]:
    """Return a loader of Numba's cache index that treats an unreadable index as empty: it may name classes that are gone."""

    def loaded() -> Any:
        """Return what is stored, or nothing if the file is damaged or of another version."""
        try:
            return load()
        except (AttributeError, ImportError, EOFError, UnpicklingError):
            return {}

    return loaded


ROOT, WITH_LOOPS = Path(__file__).parents[2], ("compiler/search", "placements")
"""The package, and its folders with compiled loops."""


@cache
def _stamp() -> tuple[tuple[str, int, int], ...]:
    """Return name, time of change and size of every file that may hold compiled loops."""
    folders = (ROOT / folder for folder in WITH_LOOPS)
    files = {file: file.stat() for folder in folders for file in sorted(folder.rglob("*.py"))}
    return tuple((file.name, state.st_mtime_ns, state.st_size) for file, state in files.items())
