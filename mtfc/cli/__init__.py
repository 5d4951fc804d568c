"""The `mtfc` command: one file per subcommand, and what they share.

Results go to standard output, diagnostics and progress to standard error. A subcommand imports only the packages that it needs:
`check` starts fast, and only `run`, `verify` and the JAX kinds of `compile` import numpy or jax. This file and `mtfc/__init__.py`
import almost nothing, so that an interrupt during all other imports is caught in `main`.
"""

from __future__ import annotations

import gc
import sys
from collections.abc import Sequence

from mtfc.driver.errors import INTERRUPTED


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command with the given arguments, by default those of the process, and return the exit status."""
    try:
        if arguments is None and sys.argv[1:2] == ["train"]:
            _let_sigterm_interrupt()
        from mtfc.cli.command import main as command

        if arguments is not None:
            return command(arguments)
        # a compilation makes many objects and drops few: collect garbage rarely
        gc.set_threshold(100_000, 50, 100)
        status = command(sys.argv[1:])
        # the process ends: Python need not search all objects for garbage a last time
        gc.freeze()
        return status
    except KeyboardInterrupt:  # during imports, or while options are parsed
        print("mtfc: interrupted", file=sys.stderr)
        return INTERRUPTED


def _let_sigterm_interrupt() -> None:
    """Let SIGTERM during imports end the process as Ctrl-C does; a cluster sends it. Training has a handler of its own."""
    import signal

    signal.signal(signal.SIGTERM, signal.default_int_handler)
