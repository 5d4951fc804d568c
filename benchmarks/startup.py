"""`mtfc check` as a new process, by the clock and beside an import of NumPy."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from statistics import median

from benchmarks.figures import Figure, median_seconds, processor_seconds

RUNS = 11

FILES = ("lenet", "transformer_lm", "two_layer", "digits")
"""Examples without warnings, then examples of which W601 needs predictions."""

NUMPY = [sys.executable, "-c", "import numpy"]


def check(name: str) -> list[str]:
    return [sys.executable, "-m", "mtfc", "check", f"examples/{name}.mtf"]


def figures() -> Iterator[Figure]:
    # installed packages have compiled bytecode
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}

    def run() -> None:
        subprocess.run(check("digits"), check=True, capture_output=True, env=environment)

    yield Figure("mtfc check examples/digits.mtf, cold process", median_seconds(run, RUNS), "s", 0.3)
    for name in FILES:
        commands = (check(name), NUMPY)
        pairs = [[processor_seconds(each, environment) for each in commands] for _ in range(RUNS)]
        ratio = median(own / numpy for own, numpy in pairs)
        yield Figure(f"processor time of mtfc check examples/{name}.mtf over import numpy", ratio, "x", 1.3)
