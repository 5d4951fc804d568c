"""Time from the start of a process to the end of the first training step: mtfc beside Flax NNX and optax.

Each side is a new process that imports, builds the same small language model, takes its executables from JAX's compilation cache
on disk, which earlier processes have filled, and trains one step on one device. The processes run in turn.

    python -m benchmarks.first_step mtfc     one side: the loss of the first step
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from functools import partial
from typing import Any

from benchmarks.figures import Figure, median_ratio

RUNS = 9
LIMIT = 1.2
DIMS = {
    "batch": 8,
    "length": 64,
    "vocab": 256,
    "d_model": 128,
    "heads": 4,
    "d_k": 32,
    "d_ff": 512,
    "layers": 6,
}
FILE = "examples/transformer_lm.mtf"


def batch() -> dict[str, Any]:
    import numpy as np

    return {"tokens": np.random.default_rng(0).integers(0, 256, (DIMS["batch"], DIMS["length"]), np.int32)}


def by_mtfc() -> float:
    """Return the loss of the first step of the generated module."""
    import mtfc

    compiled = mtfc.compile(
        FILE,
        model="transformer_lm",
        layout="data_parallel",
        mesh={"all": 1},
        dims=DIMS,
        set={"precision.compute": "f32", "optimizer": "adamw(learning_rate = 1e-3)"},
    )
    _, metrics = compiled.train_step(compiled.init(seed=0), batch())
    return float(metrics["loss"])


def by_flax() -> float:
    """Return the loss of the first step of the Flax module."""
    import optax
    from flax import nnx

    from benchmarks.flax_models import LanguageModel, train_step

    model = LanguageModel(DIMS, nnx.Rngs(0))
    optimizer = nnx.Optimizer(model, optax.adamw(1e-3, weight_decay=0.01), wrt=nnx.Param)
    return float(train_step(model, optimizer, batch()))


SIDES = {"mtfc": by_mtfc, "flax": by_flax}


def run(side: str, cache: str) -> None:
    """Run one side as a new process."""
    environment = {
        **{name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"},
        "XLA_FLAGS": "",
        "JAX_COMPILATION_CACHE_DIR": cache,
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
        "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "-1",
    }
    command = [sys.executable, "-m", "benchmarks.first_step", side]
    subprocess.run(command, check=True, capture_output=True, env=environment)


def figures() -> Iterator[Figure]:
    with tempfile.TemporaryDirectory() as cache:
        ours, theirs, ratio = median_ratio(partial(run, "mtfc", cache), partial(run, "flax", cache), RUNS)
    yield Figure("start to first step of a small LM, warm cache: mtfc", ours, "s")
    yield Figure("start to first step of a small LM, warm cache: Flax NNX and optax", theirs, "s")
    yield Figure("start to first step: mtfc over Flax NNX and optax", ratio, "", LIMIT)


if __name__ == "__main__":
    print(SIDES[sys.argv[1]]())
