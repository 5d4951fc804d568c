"""The `mtfc` command: one file per subcommand, and what they share.

Results go to standard output, diagnostics and progress to standard error. Nothing here imports what a subcommand may not need:
`check` has to start fast, and only `run`, `verify` and the JAX kinds of `compile` touch numpy or jax.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command with the given arguments (the process's own by default); the exit status."""
    from mtfc.cli.command import main as command

    return command(sys.argv[1:] if arguments is None else arguments)
