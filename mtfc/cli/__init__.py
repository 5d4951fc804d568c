"""The `mtfc` command: one file per subcommand, and what they share.

Results go to standard output, diagnostics and progress to standard error. A subcommand imports only the packages that it needs:
`check` starts fast, and only `run`, `verify` and the JAX kinds of `compile` import numpy or jax. This file and `mtfc/__init__.py`
import almost nothing, so that an interrupt during all other imports is caught in `main`.
"""

import gc
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext

from mtfc.driver.errors import INTERRUPTED


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command with the given arguments, by default those of the process, and return the exit status."""
    given = sys.argv[1:] if arguments is None else arguments
    try:
        with _sigterm_interrupts() if list(given[:1]) == ["train"] else nullcontext():
            from mtfc.cli.command import main as command

            if arguments is not None:
                return command(arguments)
            # a compilation makes many objects and drops few: collect garbage rarely
            gc.set_threshold(100_000, 50, 100)
            status = command(given)
            # the process ends: Python need not search all objects for garbage a last time
            gc.freeze()
            return status
    except KeyboardInterrupt:  # during imports, or while options are parsed
        print("mtfc: interrupted", file=sys.stderr)
        return INTERRUPTED


@contextmanager
def _sigterm_interrupts() -> Iterator[None]:
    """Let SIGTERM end the block as Ctrl-C does; a cluster sends it. During the steps training has a handler of its own.

    Only the main thread can have handlers.
    """
    import signal
    from threading import current_thread, main_thread

    if current_thread() is not main_thread():
        yield
        return
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
