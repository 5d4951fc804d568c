"""The end of the command: diagnostics on standard error, and exit statuses instead of tracebacks.

Status 0 is success, 1 a program with errors (`CompileError`, or a mismatch that `verify` found), 2 wrong usage, 3 an incomplete
environment. Two further statuses are no errors of the user: 70 is a bug in mtfc, 130 an interrupt.
"""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import TYPE_CHECKING, NoReturn, TextIO

from mtfc.driver.errors import (
    BUG,
    ENVIRONMENT,
    ERRORS,
    INTERRUPTED,
    USAGE,
    FailedRequest,
    UsageError,
    reason_of,
    say,
)

if TYPE_CHECKING:
    from mtfc.cli.options import Options
    from mtfc.compiler.diagnostics import Diagnostic
    from mtfc.driver.loading.sources import Sources
    from mtfc.driver.training.hosts import Hosts

BROKEN_PIPE = 141
"""The status that a shell reports for a process that SIGPIPE ended."""

OUT_OF_MEMORY = "out of memory: use more devices, or smaller dimensions with --dim NAME=SIZE"

MISSING = "a package that mtfc needs cannot be imported ({error}): pip install . in the checkout of mtfc, or that package"

REPORT = """\
This is a bug in mtfc, not in your program. Please report it, with the command and the .mtf file.
MTFC_DEBUG=1 in the environment shows where it happened."""


def encode_anything() -> None:
    """Let output have characters that the terminal's encoding lacks."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def choose_color(choice: str) -> None:
    """Apply `--color` to this process and to those that it starts; libraries read the same two variables."""
    if choice == "always":
        os.environ.pop("NO_COLOR", None)
        os.environ["FORCE_COLOR"] = "1"
    elif choice == "never":
        os.environ.pop("FORCE_COLOR", None)
        os.environ["NO_COLOR"] = "1"


def has_color(stream: TextIO) -> bool:
    """Return True if a stream gets colours: a terminal does unless NO_COLOR says otherwise, and any stream with FORCE_COLOR.

    See https://no-color.org: a variable counts unless it is empty.
    """
    if os.environ.get("NO_COLOR"):
        return False
    return bool(os.environ.get("FORCE_COLOR")) or (stream.isatty() and os.environ.get("TERM") != "dumb")


def show_diagnostics(diagnostics: Iterable[Diagnostic], sources: Sources, format: str = "text") -> None:
    """Print diagnostics on standard error, as text or JSON, after the results so far. A terminal shows how to read more."""
    found = list(diagnostics)
    if not found and format == "text":
        return
    sys.stdout.flush()
    from mtfc.reports.diagnostic_text import render, to_json

    if format == "json":
        import json

        print(json.dumps(to_json(found), indent=2), file=sys.stderr)
    else:
        print(render(found, sources.with_library(), color=has_color(sys.stderr)), file=sys.stderr, end="")
        if sys.stderr.isatty():
            codes = list(dict.fromkeys(each.code for each in found))
            command, cases = ("CODE", f", for {', '.join(codes)}") if len(codes) > 1 else (codes[0], "")
            print(f"`mtfc explain {command}` says more{cases}", file=sys.stderr)


def diagnosed(action: Callable[[], int], options: Options) -> int:
    """Return the status of `action`; the diagnostics of an error are shown, or that a search has found nothing."""
    from mtfc.compiler.diagnostics import CompileError  # imported late: `--help` needs no compiler

    try:
        return action()
    except CompileError as error:
        show_diagnostics(error.diagnostics, options.sources, getattr(options, "format", "text"))
    except Exception as error:
        from mtfc.compiler.search.found import NothingFits

        if not isinstance(error, NothingFits):
            raise
        say(f"{options.file}: {error}")
    return ERRORS


def run_joined(hosts: Hosts, action: Callable[[], int], options: Options) -> int:
    """Return the status of `action`; one of several processes ends at once, because libraries would wait for the others."""
    from mtfc.driver.training.hosts import keep_libraries_quiet

    if not hosts.are_several:
        return action()
    hosts.check()
    keep_libraries_quiet()
    return leave(guarded(lambda: diagnosed(action, options)))


def guarded(action: Callable[[], int]) -> int:
    """Return the status of `action`; an error that is not a diagnostic becomes a sentence and a status, never a traceback."""
    try:
        status = action()
        sys.stdout.flush()
        return status
    except UsageError as error:
        return _ended(f"{error}", USAGE)
    except FailedRequest as error:
        return _ended(f"{error}", ERRORS)
    except BrokenPipeError:
        return _abandoned()
    except KeyboardInterrupt:
        return _ended("interrupted", INTERRUPTED)
    except Exception as error:
        lacking = _lacking(error)
        if lacking is not None:
            return _ended(lacking, ENVIRONMENT)
        if os.environ.get("MTFC_DEBUG"):
            raise
        if own := _of_an_own_pass(error):
            return _ended(own, USAGE)
        return _ended(f"internal error: {type(error).__name__}: {error}\n{REPORT}", BUG)


def _of_an_own_pass(error: Exception) -> str | None:
    """Return what is wrong with a pass of the user, or None for another error."""
    from mtfc.compiler.passes.pipelines import OWN_PASS

    name = next((each for each in getattr(error, "__notes__", ()) if each.startswith(OWN_PASS)), None)
    if name is None:
        return None
    from mtfc.driver.training.user_code import frames_of

    lines = "".join(f"\n  {line}" for line in frames_of(error))
    return f"{type(error).__name__} {name}: {error}{lines}"


def _lacking(error: Exception) -> str | None:
    """Return what the environment lacks, or None for an error with another cause."""
    from mtfc.backends.common.devices import Unavailable

    if isinstance(error, Unavailable):
        return str(error)
    if isinstance(error, MemoryError):
        return f"{OUT_OF_MEMORY} ({error})" if str(error) else OUT_OF_MEMORY
    if "RESOURCE_EXHAUSTED" in str(error):  # XLA's word for a device without memory left
        return OUT_OF_MEMORY
    if isinstance(error, ImportError) and not (error.name or "").startswith("mtfc"):
        return MISSING.format(error=error)
    if isinstance(error, OSError):
        _drop(sys.stdout)
        return f"cannot read or write: {reason_of(error)}"
    return None


def leave(status: int) -> NoReturn:
    """End the process at once: a thread that hangs, or a library that waits for other processes, would hold it up."""
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError):
            stream.flush()
    os._exit(status)


def _ended(message: str, status: int) -> int:
    """Print a message and return the status. A terminal that has gone gets nothing."""
    try:
        say(message)
        sys.stdout.flush()
    except OSError:  # of a terminal that has gone: nobody reads on
        _abandoned()
    return status


def _abandoned() -> int:
    """End quietly: the reader of the output has gone."""
    for stream in (sys.stdout, sys.stderr):
        _drop(stream)
    return BROKEN_PIPE


def _drop(stream: TextIO) -> None:
    """Keep Python from complaining at exit that the rest of the stream cannot be written."""
    with suppress(OSError):  # a stream that is no file
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
