"""Checks that run one after the other in a process of their own, so that none of them can hang or end the caller.

A loop may not end on drawn numbers, and XLA ends its process where its compiler finds a contradiction. The caller starts a child,
which makes the same list of checks, runs them and sends each result. If the child dies, or exceeds its time, the check at hand
becomes a sentence, and another child goes on with the next check.
"""

from __future__ import annotations

import os
import pickle
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from importlib import import_module
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from pathlib import Path
from tempfile import TemporaryFile
from threading import Thread
from time import monotonic
from typing import IO, Any

import attrs

from mtfc.compiler.activity import doing

LEAST_SECONDS = 60.0
"""The time of a check of a small program, with the start of its process."""

PER_SECOND = 1e5
"""Elements that a slow computer verifies in a second."""

QUICK_TO_COMPILE = {"xla_backend_optimization_level": 0, "xla_llvm_disable_expensive_passes": True}
"""Options under which XLA for CPUs partitions a program as ever, and LLVM optimizes nothing: each program runs few times."""

START = "from mtfc.driver.verification.checks import serve; serve({})"


@attrs.frozen
class Check:
    """A check. what: its name, for the terminal. run: yields its results. seconds: its time.

    blank: a result that gets the reason why the check was `skipped`, or has `failed`.
    """

    what: str
    run: Callable[[], Iterable[Any]]
    blank: Any
    seconds: float = LEAST_SECONDS


@attrs.frozen
class Remade:
    """A list of checks that another process can make: `MODULE:FUNCTION`, and arguments for `pickle`."""

    function: str
    arguments: tuple[Any, ...]

    def checks(self) -> Sequence[Check]:
        """Make the checks by calling the function."""
        module, name = self.function.split(":")
        found: Sequence[Check] = getattr(import_module(module), name)(*self.arguments)
        return found


def seconds_for(elements: int) -> float:
    """Return the time of a check of a program whose values have so many elements."""
    return LEAST_SECONDS + elements / PER_SECOND


def results(
    checks: Sequence[Check],
    remade: Remade,
    budget: float | None = None,
    variables: Mapping[str, str] | None = None,
) -> Iterator[Any]:
    """Yield the results of all checks, which run in children. budget: seconds for all of them. variables: environment variables.

    Checks that no other process can make run in this one, without a limit. Raises what a check raises.
    """
    try:
        pickle.dumps(remade)
    except Exception:  # an argument that is a function of the user
        yield from results_here(checks)
        return
    until = None if budget is None else monotonic() + budget
    number = 0
    while number < len(checks):
        child = _Child.start(remade, number, variables or {})
        try:
            number = yield from _results_of(child, checks, number, until, budget)
        finally:
            child.end()


def uses_children() -> bool:
    """Return True if checks run in children."""
    return results is not results_here


def results_here(checks: Sequence[Check], *_: Any) -> Iterator[Any]:
    """Yield the results of all checks, which run in this process, where no time can be kept."""
    for check in checks:
        with doing(check.what):
            yield from check.run()


def _results_of(
    child: _Child, checks: Sequence[Check], number: int, until: float | None, budget: float | None
) -> Generator[Any, None, int]:
    """Yield the results of a child as long as it goes on. Return the number of the next check."""
    while number < len(checks):
        check = checks[number]
        left = float("inf") if until is None else until - monotonic()
        seconds = check.seconds if until is None else left
        with doing(check.what):
            kind, value = child.message(seconds, until is not None) if left > 0 else LATE
        if kind == "done":
            number += 1
        elif kind == "unknown":
            yield from results_here(checks)
            return len(checks)
        elif kind == "error":
            raise value
        elif kind == "result":
            yield value
        elif kind == "death" or until is None:
            late = f"did not end in {seconds:.0f} s: a budget gives more time"
            yield attrs.evolve(check.blank, failed=late if value is None else value)
            return number + 1
        else:
            reason = f"the budget of {budget:g} s is over"
            yield from (attrs.evolve(each.blank, skipped=reason) for each in checks[number:])
            return len(checks)
    return number


LATE: tuple[str, Any] = ("late", None)
"""The message of a child that has said nothing in time.

The others have a `result`, or say that a check is `done`, that it has raised an `error`, why the child has met its `death`, or
that the checks are `unknown` to the child: an argument has a class that only the caller's process defines.
"""


@attrs.frozen
class _Child:
    """A child, the connection to it, and what it prints."""

    process: subprocess.Popen[bytes]
    connection: Connection
    printed: IO[bytes]

    @classmethod
    def start(cls, remade: Remade, first: int, variables: Mapping[str, str]) -> _Child:
        """Start a child that makes the checks, and runs those from the first on. variables: environment variables."""
        printed: IO[bytes] = TemporaryFile()  # noqa: SIM115
        connection, theirs = Pipe()
        with theirs:
            number = theirs.fileno()
            process = subprocess.Popen(
                [sys.executable, "-c", START.format(number)],
                pass_fds=[number],
                stdin=subprocess.DEVNULL,
                stdout=printed,
                stderr=printed,
                env={**_environment(), **variables},
            )
        with suppress(OSError):  # it has ended: `message` says why
            connection.send(sys.path)
            connection.send((remade, first))
        return cls(process, connection, printed)

    def message(self, seconds: float, is_strict: bool) -> tuple[str, Any]:
        """Return the next message, or the child's death; `LATE` if there is none in time.

        On a loaded machine a child gets the seconds as processor time, in at most ten times as long; a strict limit is one of the
        clock.
        """
        began, processor = monotonic(), self._processor_seconds()
        while not self.connection.poll(seconds / 10):
            passed, used = monotonic() - began, self._processor_seconds() - processor
            if passed >= seconds and (is_strict or used >= seconds or passed >= 10 * seconds):
                return LATE
        try:
            message: tuple[str, Any] = self.connection.recv()
            return message
        except (EOFError, OSError):
            status = self.process.wait()
            self.printed.seek(0)
            return "death", _reason(status, self.printed.read().decode("utf-8", "replace"))

    def _processor_seconds(self) -> float:
        """Return the processor time of the child; where a system does not say it, the time of the clock."""
        try:
            fields = Path(f"/proc/{self.process.pid}/stat").read_text().rpartition(")")[2].split()
            return (int(fields[11]) + int(fields[12])) / float(os.sysconf("SC_CLK_TCK"))
        except (OSError, IndexError, ValueError):
            return monotonic()

    def end(self) -> None:
        """End the process, and free what it had."""
        self.process.kill()
        self.process.wait()
        self.connection.close()
        self.printed.close()


def _environment() -> dict[str, str]:
    """Return the environment of a child: threads for small products take more time than they save."""
    flags = " ".join(f"--{name}={str(value).lower()}" for name, value in QUICK_TO_COMPILE.items())
    given = f"{os.environ.get('XLA_FLAGS', '')} {flags}".strip()
    return {"OPENBLAS_NUM_THREADS": "1", **os.environ, "XLA_FLAGS": given}


def _reason(status: int, said: str) -> str:
    """Return why a process ended, as a part of a sentence. said: its errors, of which XLA's last one counts."""
    if checks := re.findall(r"Check failed: (.*)", said):
        return f"XLA ended its process: {checks[-1].strip()}"
    if status >= 0:
        return f"its process ended with status {status}"
    name = signal.Signals(-status).name if -status in {*signal.Signals} else f"signal {-status}"
    hint = {
        "SIGABRT": ", as XLA does where it contradicts itself",
        "SIGKILL": ", as a system does that is out of memory",
    }
    return f"its process was ended by {name}{hint.get(name, '')}"


def serve(number: int) -> None:
    """Run the checks of the job that comes from a file descriptor, and send the results to it."""
    connection = Connection(number)
    sys.path[:] = connection.recv()
    try:
        remade, first = connection.recv()
    except (AttributeError, ImportError):
        return _send(connection, "unknown")
    Thread(target=_end_with_caller, args=(connection,), daemon=True).start()
    try:
        for check in remade.checks()[first:]:
            for result in check.run():
                _send(connection, "result", result)
            _send(connection, "done")
    except BaseException as error:
        _send(connection, "error", error)


def _end_with_caller(connection: Connection) -> None:
    """End this process once its caller has ended, however that came."""
    with suppress(EOFError, OSError):
        connection.recv()
    os._exit(1)


def _send(connection: Connection, kind: str, value: Any = None) -> None:
    """Send a message of a kind with a value. An exception that cannot be sent becomes a `RuntimeError` with its text."""
    try:
        text = pickle.dumps((kind, value))
        pickle.loads(text)
    except Exception:  # an exception with arguments of its own
        text = pickle.dumps(("error", RuntimeError(f"{type(value).__name__}: {value}")))
    connection.send_bytes(text)
