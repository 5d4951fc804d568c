"""Measure the solver on instances of the IOPDDL contest, beside the best contest entries.

`IOPDDL` in the environment names a folder with the instances `asplos-2025-iopddl-A.json.gz` and so on, from google/iopddl. The
command solves each in a process of its own, within the contest's time limit.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from benchmarks.figures import Figure

LIMITS = {"A": 60, "B": 60, "D": 60, "G": 120, "M": 180, "T": 240}
"""Seconds for an instance; others get 60."""

BEST = {
    "A": 6_548_641_531,
    "B": 532_843,
    "D": 313_613_524_736,
    "G": 217_039,
    "M": 49_928_460_991,
    "T": 682_895_254_913,
}
"""The cost of the contest's best entry."""

RATIOS = {"A": 1.05, "B": 1.0, "D": 1.05, "G": 1.0, "M": 1.0, "T": 1.05}
"""The limit of our cost, divided by the best entry's."""

SECONDS = {"B": 5.0, "G": 5.0}
"""The most seconds that a proof may take."""


def figures() -> Iterator[Figure]:
    folder = os.environ.get("IOPDDL")
    for path in sorted(Path(folder).glob("asplos-2025-iopddl-*.json.gz")) if folder else ():
        yield from _instance(path, path.name.removesuffix(".json.gz").rpartition("-")[2])


def _instance(path: Path, name: str) -> Iterator[Figure]:
    limit = LIMITS.get(name, 60)
    start = time.perf_counter()
    command = [sys.executable, "-m", "mtfc", "solve", str(path), "--time-limit", str(limit)]
    result = subprocess.run(command, capture_output=True, text=True, check=True)
    seconds = time.perf_counter() - start
    record = json.loads(result.stdout)
    cost, bound = record["cost"], record["lower_bound"]
    yield Figure(f"{name}: cost {cost:,}; at least {bound:,}; gap", (cost - bound) / cost, "")
    if name in BEST:
        yield Figure(f"{name}: over the best entry, {BEST[name]:,}", cost / BEST[name], "", RATIOS[name])
    yield Figure(f"{name}: whole command", seconds, "s", SECONDS.get(name, limit))
