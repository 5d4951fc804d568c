"""The search over global layouts: the seconds to the proof, and the result beside the best hand-written layout."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Iterator
from typing import Any

from benchmarks.figures import Figure

PROVEN = (
    ("transformer_lm", ("--target", "tpu_v2"), 5.0),
    ("transformer_seq2seq", ("--target", "tpu_v2", "--axes", "2"), None),
    ("transformer_lm", ("--target", "tpu_v2", "--mesh", "grid", "--storage"), None),
    ("llama", ("--target", "h100", "--devices", "64"), None),
    ("soybean_mlp", ("--target", "k80_cluster", "--devices", "8"), None),
    ("soybean_cnn", ("--target", "k80_cluster", "--devices", "8"), None),
    ("alexnet", ("--target", "k80_cluster", "--devices", "8", "--budget", "120"), None),
    ("lenet", ("--target", "k80_cluster", "--devices", "4"), None),
    ("resnet101", ("--target", "p100_cluster", "--devices", "4"), None),
    ("unet", ("--target", "p100_cluster", "--devices", "4"), None),
    ("vgg16", ("--target", "p100_cluster", "--devices", "8"), None),
    ("moe_lm", ("--target", "tpu_v2", "--devices", "16"), None),
    ("nmt", ("--target", "p100_cluster", "--budget", "120"), None),
    ("transformer_lm", ("--target", "tpu_v2", "--storage", "--budget", "120"), None),
    ("llama", ("--target", "h100", "--devices", "64", "--storage", "--budget", "120"), None),
)
"""Searches that end with a proof; their figure is the time."""

BOUNDED = (("inception_v3", ("--target", "p100_cluster", "--devices", "4"), "40"),)
"""Searches that stop after this number of seconds; their figure is the gap."""


def figures() -> Iterator[Figure]:
    for network, options, limit in PROVEN:
        start = time.perf_counter()
        found = searched(network, *options)
        seconds = time.perf_counter() - start
        yield Figure(f"{network} {' '.join(options)}: gap (0: proven)", gap(found), "", 0.0)
        yield from _over_declared(network, found)
        yield Figure(f"{network}: whole command, {found['evaluated']} layouts compiled", seconds, "s", limit)
    for network, options, budget in BOUNDED:
        found = searched(network, *options, "--budget", budget)
        yield Figure(f"{network} {' '.join(options)}: gap after {budget} s", gap(found), "")
        yield from _over_declared(network, found)


def _over_declared(network: str, found: dict[str, Any]) -> Iterator[Figure]:
    """Return the step time of the found layout, relative to the best of the file's layouts and data parallelism."""
    if found["baselines"]:
        best = min(found["baselines"].values())
        yield Figure(f"{network}: step over the best of the others", found["objective_seconds"] / best, "")


def gap(found: dict[str, Any]) -> float:
    return float(found["objective_seconds"] / found["lower_bound_seconds"] - 1)


def searched(network: str, *options: str) -> dict[str, Any]:
    line = [sys.executable, "-m", "mtfc", "search", f"examples/{network}.mtf", *options, "--format", "json"]
    record: dict[str, Any] = json.loads(subprocess.run(line, check=True, capture_output=True).stdout)
    return record
