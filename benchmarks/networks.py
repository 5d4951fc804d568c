"""The networks of `examples/` at paper size: `check` and `compile` with the training step, each as a new process."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator

from benchmarks.figures import Figure, median_seconds

RUNS = 5

COMMANDS = (
    ("check", ("transformer_lm",), 0.5, "4.9 B parameters, 512 processors"),
    ("compile --train --layout hybrid", ("transformer_lm",), 1.5, "4.9 B parameters, 512 processors"),
    ("compile --train", ("inception_v3", "resnet101"), 5.0, "with gradients"),
)


def taken(command: str, network: str) -> float:
    line = [sys.executable, "-m", "mtfc", *command.split(), f"examples/{network}.mtf"]
    return median_seconds(lambda: subprocess.run(line, check=True, capture_output=True), RUNS)


def figures() -> Iterator[Figure]:
    for command, networks, limit, what in COMMANDS:
        for network in networks:
            yield Figure(f"mtfc {command} {network}.mtf, {what}", taken(command, network), "s", limit)
