"""How the command ends: exit statuses, and the errors that lead to them.

Status 0 is success, 1 a program with errors (`CompileError`, or a mismatch that `verify` found), 2 wrong usage, 3 an environment
that lacks something. Others are no errors of the user: 70 is a bug in mtfc, 130 an interrupt.
"""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Callable

OK, ERRORS, USAGE, ENVIRONMENT, BUG, INTERRUPTED = 0, 1, 2, 3, 70, 130

BROKEN_PIPE = 141
"""What a shell reports for a process that SIGPIPE ended."""

OUT_OF_MEMORY = "out of memory: use more devices, or smaller dimensions with --dim NAME=SIZE"

REPORT = """\
This is a bug in mtfc, not in your program. Please report it, with the command and the .mtf file.
MTFC_DEBUG=1 in the environment shows where it happened."""


class UsageError(Exception):
    """The command line asks for something that it cannot: says what, and what can be asked for."""


def say(message: str) -> None:
    """A line on standard error."""
    print(f"mtfc: {message}", file=sys.stderr)


def encode_anything() -> None:
    """Let output have characters that the terminal's encoding lacks."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def guarded(action: Callable[[], int]) -> int:
    """The status of `action`; an error that is not a diagnostic becomes a sentence and a status, never a traceback."""
    from mtfc.backends.devices import Unavailable

    try:
        status = action()
        sys.stdout.flush()
        return status
    except UsageError as error:
        return _ended(f"{error}", USAGE)
    except Unavailable as error:
        return _ended(f"{error}", ENVIRONMENT)
    except BrokenPipeError:
        return _abandoned()
    except KeyboardInterrupt:
        return _ended("interrupted", INTERRUPTED)
    except MemoryError as error:
        return _ended(f"{OUT_OF_MEMORY} ({error})" if str(error) else OUT_OF_MEMORY, ENVIRONMENT)
    except Exception as error:
        if "RESOURCE_EXHAUSTED" in str(error):  # XLA's word for a device without memory left
            return _ended(OUT_OF_MEMORY, ENVIRONMENT)
        if os.environ.get("MTFC_DEBUG"):
            raise
        return _ended(f"internal error: {type(error).__name__}: {error}\n{REPORT}", BUG)


def _ended(message: str, status: int) -> int:
    say(message)
    return status


def _abandoned() -> int:
    """Whoever reads the output has gone: end quietly, and keep Python from complaining at exit."""
    for stream in (sys.stdout, sys.stderr):
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
    return BROKEN_PIPE
