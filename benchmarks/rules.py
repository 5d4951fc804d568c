"""The search over global layouts: how soon the best is proven, and what it takes beside the best that a person wrote."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

from benchmarks.figures import Figure, median_seconds

RUNS = 3

PROVEN = (
    ("transformer_lm", ("--target", "tpu_v2"), 5.0),
    ("transformer_seq2seq", ("--target", "tpu_v2", "--axes", "2"), None),
    ("transformer_lm", ("--target", "tpu_v2", "--mesh", "grid", "--storage"), None),
    ("llama", ("--target", "h100", "--devices", "64"), None),
)
"""Searches that end with a proof, whose time counts."""

BOUNDED = (
    ("llama", ("--target", "h100", "--devices", "64", "--axes", "2", "--storage")),
    ("moe_lm", ("--target", "tpu_v2")),
    ("alexnet", ("--target", "p2_8xlarge")),
    ("nmt", ("--target", "p100_cluster")),
)
"""Searches that are stopped after `BUDGET` seconds, whose gap counts."""

BUDGET = "20"


def figures() -> Iterator[Figure]:
    for network, options, limit in PROVEN:
        found = searched(network, *options)
        yield Figure(f"{network} {' '.join(options)}: gap (0: proven)", gap(found), "", 0.0)
        yield from _over_declared(network, found)
        seconds = median_seconds(lambda: searched(network, *options), RUNS)  # noqa: B023
        yield Figure(f"{network}: whole command, {found['evaluated']} layouts compiled", seconds, "s", limit)
    for network, options in BOUNDED:
        found = searched(network, *options, "--budget", BUDGET)
        yield Figure(f"{network} {' '.join(options)}: gap after {BUDGET} s", gap(found), "")
        yield from _over_declared(network, found)


def _over_declared(network: str, found: dict[str, Any]) -> Iterator[Figure]:
    """The step of the layout that was found, over the best one of the file and data parallelism."""
    if found["baselines"]:
        best = min(found["baselines"].values())
        yield Figure(f"{network}: step over the best of the others", found["objective_seconds"] / best, "")


def gap(found: dict[str, Any]) -> float:
    return float(found["objective_seconds"] / found["lower_bound_seconds"] - 1)


def searched(network: str, *options: str) -> dict[str, Any]:
    line = [sys.executable, "-m", "mtfc", "search", f"examples/{network}.mtf", *options, "--format", "json"]
    record: dict[str, Any] = json.loads(subprocess.run(line, check=True, capture_output=True).stdout)
    return record
