"""`mtfc check` as a new process."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator

from benchmarks.figures import Figure, median_seconds

RUNS = 11


def figures() -> Iterator[Figure]:
    command = [sys.executable, "-m", "mtfc", "check", "examples/digits.mtf"]

    # installed packages have compiled bytecode
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}

    def check() -> None:
        subprocess.run(command, check=True, capture_output=True, env=environment)

    yield Figure("mtfc check examples/digits.mtf, cold process", median_seconds(check, RUNS), "s", 0.3)
