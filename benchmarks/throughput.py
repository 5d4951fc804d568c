"""FlexFlow's Figure 7 (arXiv:1807.05358, section 8.2): samples a second on each GPU, for six networks on two clusters.

Data parallelism, the expert's strategy and the found placement on 1 to 64 GPUs, in simulated time. The batch stays the same on
all numbers of GPUs. `build/throughput` keeps each row as soon as it is measured, so a second call goes on where the first one
ended. A search has `SECONDS`, times `THROUGHPUT_SCALE` of the environment: 35 minutes for all rows. A row that had less time is
measured again. `THROUGHPUT` selects rows, as in `THROUGHPUT="nmt 64 k80"`.

`python -m benchmarks.plots throughput` draws the rows that are measured.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator
from itertools import product
from math import inf
from pathlib import Path
from typing import Any

from benchmarks.figures import Figure
from benchmarks.soap import CLUSTERS, TABLE, prepared
from mtfc.backends.common.allocator import keep_memory
from mtfc.compiler.search.found import NothingFits
from mtfc.frontend.hardware_targets import find_hardware
from mtfc.placements.mcmc import SearchBudget
from mtfc.placements.placement_search import placement_search, placement_space

FOLDER = Path("build/throughput")
SECONDS = {1: 1.0, 2: 10.0, 4: 10.0, 8: 20.0, 16: 30.0, 32: 45.0, 64: 60.0}
"""Seconds of a search by the number of GPUs."""
STRATEGIES = ("data_parallel", "expert", "found")


def figures() -> Iterator[Figure]:
    wanted = set(os.environ.get("THROUGHPUT", "").split())
    scale = float(os.environ.get("THROUGHPUT_SCALE", "1"))
    keep_memory()
    for gpus, network, cluster in product(SECONDS, TABLE, CLUSTERS):
        if wanted <= {network, str(gpus), cluster}:
            row = measured(network, gpus, cluster, scale * SECONDS[gpus])
            where = f"{network}, {gpus} {cluster}"
            for strategy in STRATEGIES:
                problem = ", does not fit into memory" if row[strategy] is None else ""
                what = f"{where}: {strategy}{problem}"
                yield Figure(what, throughput(row, strategy), "samples/s/GPU")


def throughput(row: dict[str, Any], strategy: str) -> float:
    """Return the samples a second on each GPU, 0 if memory does not suffice."""
    seconds: float | None = row[strategy]
    return 0.0 if seconds is None else row["samples"] / seconds / row["gpus"]


def measured(network: str, gpus: int, cluster: str, seconds: float) -> dict[str, Any]:
    """Return a row: the seconds of a step under each strategy, and what the search took."""
    file = FOLDER / f"{network}_{gpus}_{cluster}.json"
    if file.exists():
        known: dict[str, Any] = json.loads(file.read_text("utf-8"))
        if known["budget"] >= seconds:
            return known
    row = _searched(network, gpus, cluster, seconds)
    FOLDER.mkdir(parents=True, exist_ok=True)
    part = file.with_suffix(".part")
    part.write_text(json.dumps(row, indent=2), "utf-8")
    part.rename(file)
    return row


def _searched(network: str, gpus: int, cluster: str, seconds: float) -> dict[str, Any]:
    program = prepared(network)
    space = placement_space(program, find_hardware(f"{cluster}_cluster", {}), gpus)
    space.data_parallel()  # compiles
    row = {"samples": program.dims["batch"].size, "gpus": gpus, "budget": seconds}
    before = time.process_time()
    try:
        found = placement_search(space, SearchBudget(seconds))
    except NothingFits:
        return {**row, **dict.fromkeys(STRATEGIES)}
    baselines = {name: each.seconds for name, each in found.baselines.items()}
    return {
        **row,
        **{name: None if each == inf else each for name, each in baselines.items()},
        "found": found.best.seconds,
        "processor_seconds": time.process_time() - before,
        "evaluated": found.evaluated,
        "locally_optimal": found.locally_optimal,
    }
