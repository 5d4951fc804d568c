"""FlexFlow's Figure 7 (arXiv:1807.05358, section 8.2): samples a second on each GPU, for six networks on two clusters.

Data parallelism, the expert's strategy and the found placement on 1 to 16 P100s and 1 to 64 K80s, in simulated time. The batch
stays the same on all numbers of GPUs. `build/throughput` keeps each row as soon as it is measured, so a second call goes on where
the first one ended. A search ends at a local optimum, or after `SECONDS` of processor time times `THROUGHPUT_SCALE` of the
environment, so that other work on the machine does not change results much. All rows take ten minutes of one core. A row that had
less time is measured again. `THROUGHPUT` selects rows, as in `THROUGHPUT="nmt 64 k80"`.

`python -m benchmarks.plots throughput` draws the rows.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator
from itertools import count, product
from math import inf
from pathlib import Path
from typing import Any

from benchmarks.figures import Figure
from benchmarks.soap import TABLE, prepared
from mtfc.backends.common.allocator import keep_memory
from mtfc.compiler.search.found import NothingFits
from mtfc.frontend.hardware_targets import find_hardware
from mtfc.placements.mcmc import ChainSettings, SearchBudget
from mtfc.placements.operators.strategy import Strategy
from mtfc.placements.placement_search import placement_search, placement_space

CLUSTERS = {"p100": 16, "k80": 64}
"""The number of GPUs of each cluster (section 8.1)."""
FOLDER = Path("build/throughput")
SECONDS = {1: 0.1, 2: 3.0, 4: 3.0, 8: 6.0, 16: 10.0, 32: 15.0, 64: 20.0}
"""Seconds of processor time for a search, by the number of GPUs."""
SCALE = float(os.environ.get("THROUGHPUT_SCALE", "1"))
STRATEGIES = ("data_parallel", "expert", "found")


def figures() -> Iterator[Figure]:
    wanted = set(os.environ.get("THROUGHPUT", "").split())
    keep_memory()
    for gpus, network, cluster in product(SECONDS, TABLE, CLUSTERS):
        if gpus <= CLUSTERS[cluster] and wanted <= {network, str(gpus), cluster}:
            row = measured(network, gpus, cluster)
            for strategy in STRATEGIES:
                problem = ", does not fit into memory" if row[strategy] is None else ""
                what = f"{network}, {gpus} {cluster}: {strategy}{problem}"
                yield Figure(what, rate(row, strategy), "samples/s/GPU")


def rows(network: str, cluster: str) -> list[dict[str, Any]]:
    """Return the rows of a network on a cluster."""
    return [measured(network, gpus, cluster) for gpus in SECONDS if gpus <= CLUSTERS[cluster]]


def rate(row: dict[str, Any], strategy: str) -> float:
    """Return the samples a second on each GPU, 0 if memory does not suffice."""
    seconds: float | None = row[strategy]
    return 0.0 if seconds is None else row["samples"] / seconds / row["gpus"]


def measured(network: str, gpus: int, cluster: str) -> dict[str, Any]:
    """Return a row: the seconds of a step under each strategy, and what the search took. Read it if it is known."""
    file, seconds = FOLDER / f"{network}_{gpus}_{cluster}.json", SCALE * SECONDS[gpus]
    if file.exists():
        known: dict[str, Any] = json.loads(file.read_text("utf-8"))
        if known["locally_optimal"] or known["processor_seconds"] >= seconds:
            return known
    row = _searched(network, gpus, cluster, seconds)
    FOLDER.mkdir(parents=True, exist_ok=True)
    part = file.with_suffix(".part")
    part.write_text(json.dumps(row, indent=2), "utf-8")
    part.rename(file)
    return row


def _searched(network: str, gpus: int, cluster: str, seconds: float) -> dict[str, Any]:
    """Search in rounds of `seconds` of the clock, each from the result of the one before, until processor time is spent."""
    program = prepared(network)
    space = placement_space(program, find_hardware(f"{cluster}_cluster", {}), gpus)
    steps = {"data_parallel": space.data_parallel().seconds, "expert": space.expert().seconds, "found": inf}
    given, spent, evaluated, is_local = dict[str, Strategy](), 0.0, 0, False
    for seed in count():
        begin = time.process_time()
        try:
            found = placement_search(
                space, SearchBudget(seconds), ChainSettings(seed=seed), given=given, starts=given or None
            )
        except NothingFits:
            break
        spent += time.process_time() - begin
        steps["found"], given = found.best.seconds, {"before": found.best.strategy}
        evaluated, is_local = evaluated + found.evaluated, found.locally_optimal
        if is_local or spent >= seconds:
            break
    return {
        "samples": program.dims["batch"].size,
        "gpus": gpus,
        **{name: None if each == inf else each for name, each in steps.items()},
        "processor_seconds": spent,
        "evaluated": evaluated,
        "locally_optimal": is_local,
    }
