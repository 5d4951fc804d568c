"""The `mtfc` command: one file per subcommand, and what they share.

Results go to standard output, diagnostics and progress to standard error. Nothing here imports what a subcommand may not need:
`check` has to start fast, and only `run`, `verify` and the JAX kinds of `compile` touch numpy or jax. This file and `mtfc` itself
import next to nothing, so that an interrupt finds `main` running, which knows how to end.
"""

from __future__ import annotations

import gc
import sys
from collections.abc import Sequence

from mtfc.driver.errors import INTERRUPTED


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command with the given arguments (the process's own by default); the exit status."""
    try:
        from mtfc.cli.command import main as command

        if arguments is not None:
            return command(arguments)
        gc.set_threshold(
            100_000, 50, 100
        )  # a compilation makes many objects and drops few: look for garbage rarely
        return command(sys.argv[1:])
    except KeyboardInterrupt:  # while modules are imported, or options parsed
        print("mtfc: interrupted", file=sys.stderr)
        return INTERRUPTED
