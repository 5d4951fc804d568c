"""Solve a network exactly in a process of its own, beside the search on a second processor. It is killed when the time is over.

The process has its own process group, so that the terminal's interrupts reach only the search. It is a subprocess rather than
`multiprocessing`, so that scripts that use the solver need no guard around their main part.
"""

import os
import pickle
import subprocess
import sys
from contextlib import suppress
from threading import Thread
from time import monotonic

from mtfc.compiler.search.solver.assignment_problem import Infeasible
from mtfc.compiler.search.solver.elimination import eliminated
from mtfc.compiler.search.solver.exact import ExactOutcome, solve_exactly
from mtfc.compiler.search.solver.network_reductions import ReducibleNetwork, reduce


class ExactWorker:
    """Solves one network within some seconds."""

    def __init__(self, network: ReducibleNetwork, seconds: float) -> None:
        """Start a process that solves a network, and a thread that waits for its outcome."""
        self.started = monotonic()
        self.outcome: ExactOutcome | None = None
        command = [sys.executable, "-m", __name__]
        pipe = subprocess.PIPE
        self._process = subprocess.Popen(command, stdin=pipe, stdout=pipe, process_group=0)
        self._thread = Thread(target=self._communicate, args=(pickle.dumps((network, seconds)),), daemon=True)
        self._thread.start()

    def _communicate(self, task: bytes) -> None:
        """Send the task to the process, and wait for its outcome; a process that ends early has none."""
        with suppress(OSError, ValueError, EOFError, pickle.UnpicklingError):
            answer, _ = self._process.communicate(task)
            self.outcome = pickle.loads(answer)

    @property
    def is_running(self) -> bool:
        return self._thread.is_alive()

    def wait(self, until: float) -> None:
        self._thread.join(max(until - monotonic(), 0.0))

    def end(self) -> None:
        self._process.kill()
        self._thread.join(1.0)


def solved(network: ReducibleNetwork, seconds: float) -> ExactOutcome:
    """Return the outcome for a network that is not yet reduced."""
    until = monotonic() + seconds
    try:
        reduce(network)
    except Infeasible:
        return ExactOutcome(None, True)
    outcome = eliminated(network) or solve_exactly(network, until)
    if outcome.choices is None:
        return outcome
    return ExactOutcome(network.restore(outcome.choices), outcome.is_optimal)


def main() -> None:
    """Read a task from standard input and write its outcome to standard output, to which nothing else may write."""
    network, seconds = pickle.load(sys.stdin.buffer)
    with os.fdopen(os.dup(1), "wb") as answer:
        os.dup2(2, 1)
        pickle.dump(solved(network, seconds), answer)


if __name__ == "__main__":
    main()
