"""The order of steps on eight virtual CPU devices after a calibration, in seconds of the processor.

`accuracy` measures by the clock, on a machine that runs nothing else. Here the calibration and the steps are measured in
seconds of the processor over the number of cores, so that other programs of a shared machine disturb them little.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from itertools import combinations
from time import process_time
from types import SimpleNamespace
from unittest.mock import patch

from benchmarks.accuracy import APART, DEVICES, mean_error, order, predicted, stepping
from benchmarks.figures import Figure
from benchmarks.steps import Case
from mtfc.backends.calibrate import calibration
from mtfc.backends.common.allocator import keep_memory
from mtfc.backends.common.devices import reserve

RUNS = 7
GRID, CLUSTER = "groups:2;gpus:4", "nodes:2;gpus:4"
SMALL = {
    "batch": 16,
    "heads": 8,
    "d_ff": 1024,
    "d_model": 256,
    "length": 128,
    "vocab": 4096,
    "d_k": 32,
    "layers": 2,
}
MODELS: tuple[tuple[str, Mapping[str, str | None], Mapping[str, int]], ...] = (
    ("two_layer", dict.fromkeys(("data_parallel", "model_parallel", "hybrid")), {"batch": 1024, "io": 256}),
    (
        "digits",
        dict.fromkeys(("batch_split", "hidden_split", "tiled")),
        {"batch": 960, "hidden": 2048, "rows": 16, "cols": 16},
    ),
    ("soybean_mlp", {"data": "gpus:8", "hybrid": GRID, "model": GRID}, {"batch": 800, "units": 1024}),
    (
        "transformer_lm",
        {"data_parallel": "all:8", "model_parallel": "all:8", "hybrid": "rows:2;cols:4"},
        SMALL,
    ),
    ("lenet", {"data": "gpus:8", "hybrid": "rows:4;cols:2"}, {"batch": 1024}),
    (
        "rnnlm",
        {"data": CLUSTER, "hybrid": CLUSTER, "model": "gpus:8"},
        {"batch": 64, "units": 512, "words": 4000, "length": 10},
    ),
)


def processor_seconds() -> float:
    """Return the processor time of all threads of this process, over the cores."""
    return process_time() / (os.cpu_count() or 1)


def figures() -> Iterator[Figure]:
    os.environ["JAX_PLATFORMS"] = "cpu"
    reserve(DEVICES)
    keep_memory()
    cases = [
        Case(model, layout, mesh, tuple(dims.items()))
        for model, layouts, dims in MODELS
        for layout, mesh in layouts.items()
    ]
    programs = [case.lowered() for case in cases]
    with patch.object(calibration, "time", SimpleNamespace(perf_counter=processor_seconds)):
        hardware, _ = calibration.with_jax(DEVICES, calibration.Effort())
    found = []
    for case, program in zip(cases, programs, strict=True):
        step, times = stepping(program), []
        for _ in range(RUNS):
            start = processor_seconds()
            step()
            times.append(processor_seconds() - start)
        found.append((predicted(program, hardware).seconds, min(times)))
        yield Figure(f"{case.name}: measured step", min(times), "s")
        yield Figure("    predicted over measured", found[-1][0] / min(times), "")
    yield Figure("mean relative error", mean_error(found), "")
    apart, wrong = order(found)
    yield Figure("pairs that are more than 20 per cent apart", apart, "")
    yield Figure("of these predicted in the wrong order", wrong, "", 0)
    within = [(a, b) for a, b in combinations(range(len(cases)), 2) if cases[a].model == cases[b].model]
    wrong = sum(order([found[a], found[b]])[1] for a, b in within)
    yield Figure(f"of the same model, {APART} apart, in the wrong order", wrong, "", 0)
