"""Time from the start of a process to the end of the first training step: `mtfc train` beside Flax NNX and optax.

Each side is a new process that reads the same tokens, builds the same small language model without dropout, and takes its
executables from JAX's compilation cache on disk, which an earlier process has filled. The process trains one step on one device.
`mtfc train` uses its default cache. The processes of both sides run in turn.
"""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from statistics import median

import attrs
import numpy as np

from benchmarks.figures import Figure, seconds
from benchmarks.peer_flax import lm_text

RUNS = 7
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
SETTINGS = ("precision.compute=f32", "optimizer=adamw(learning_rate = 1e-3)")


@attrs.frozen
class Sides:
    """The two sides, and a folder with their program, tokens and caches."""

    folder: Path

    @classmethod
    def in_folder(cls, folder: Path) -> Sides:
        drawn = np.random.default_rng(0).integers(0, DIMS["vocab"], (8 * DIMS["batch"], DIMS["length"]))
        np.savez(folder / "tokens.npz", tokens=drawn.astype(np.int32))
        (folder / "lm.mtf").write_text(lm_text())
        return cls(folder)

    def mtfc(self) -> None:
        sizes = [word for name, size in DIMS.items() for word in ("--dim", f"{name}={size}")]
        settings = [word for setting in SETTINGS for word in ("--set", setting)]
        chosen = ["--model", "transformer_lm", "--layout", "data_parallel", "--mesh", "all:1"]
        data = ["--data", str(self.folder / "tokens.npz"), "--steps", "1"]
        command = ["-m", "mtfc", "train", str(self.folder / "lm.mtf"), *chosen, *sizes, *settings, *data]
        self._run(command, {"XDG_CACHE_HOME": str(self.folder / "mtfc")})

    def flax(self) -> None:
        cache = {
            "JAX_COMPILATION_CACHE_DIR": str(self.folder / "flax"),
            "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
            "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "-1",
        }
        self._run(["-m", "benchmarks.flax_models", str(self.folder / "tokens.npz"), json.dumps(DIMS)], cache)

    def _run(self, command: list[str], more: dict[str, str]) -> None:
        """Run a new process on one device. Installed packages have compiled bytecode."""
        left_out = ("PYTHONDONTWRITEBYTECODE", "XLA_FLAGS", "JAX_COMPILATION_CACHE_DIR")
        kept = {name: value for name, value in os.environ.items() if name not in left_out}
        subprocess.run([sys.executable, *command], check=True, capture_output=True, env={**kept, **more})


def cpu_seconds() -> float:
    """Return the CPU time of all processes that this one has waited for."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def figures() -> Iterator[Figure]:
    with tempfile.TemporaryDirectory() as folder:
        sides = Sides.in_folder(Path(folder))
        both = (sides.mtfc, sides.flax)
        for side in both:
            side()
        pairs, used = list[tuple[float, float]](), list[tuple[float, float]]()
        for _ in range(RUNS):
            before = cpu_seconds()
            ours, between = seconds(sides.mtfc), cpu_seconds()
            pairs.append((ours, seconds(sides.flax)))
            used.append((between - before, cpu_seconds() - between))
    yield from map(partial(_time, pairs), (0, 1), ("mtfc train", "Flax NNX and optax"))
    yield Figure("mtfc train over Flax NNX and optax", median(a / b for a, b in pairs), "x", LIMIT)
    yield Figure(
        "CPU time of mtfc train over that of Flax NNX and optax", median(a / b for a, b in used), "x"
    )


def _time(pairs: list[tuple[float, float]], side: int, name: str) -> Figure:
    found = median(pair[side] for pair in pairs)
    return Figure(f"start to first step of a small LM, warm compile cache: {name}", found, "s")
