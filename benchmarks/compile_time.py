"""`mtfc compile --emit spmd` as a new process, for chains of dense layers with their gradients."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from statistics import median

from benchmarks.figures import Figure, seconds
from benchmarks.programs import dense_chain

LAYERS = (500, 1000, 2000)
RUNS = 3


def compile_seconds(file: Path, layout: str) -> float:
    command = [sys.executable, "-m", "mtfc", "compile", str(file), "--emit", "spmd", "--layout", layout]
    return seconds(lambda: subprocess.run([*command, "-o", f"{file}.spmd"], check=True, capture_output=True))


def figures() -> Iterator[Figure]:
    with tempfile.TemporaryDirectory() as folder:
        files = {n: Path(folder, f"chain_{n}.mtf") for n in LAYERS}
        for n, file in files.items():
            file.write_text(dense_chain(n))
        taken = {n: median(compile_seconds(file, "on_8") for _ in range(RUNS)) for n, file in files.items()}
        for n in LAYERS:
            limit = 10.0 if n == LAYERS[-1] else None
            yield Figure(
                f"compile --emit spmd, {n} dense layers and gradients, 8 processors", taken[n], "s", limit
            )
        growth = taken[LAYERS[-1]] / taken[LAYERS[0]] / (LAYERS[-1] / LAYERS[0])
        yield Figure(f"seconds per layer, {LAYERS[-1]} layers over {LAYERS[0]}", growth, "", 1.2)
        pairs = [
            [compile_seconds(files[LAYERS[-1]], layout) for layout in ("on_512", "on_8")] for _ in range(RUNS)
        ]
        ratio = median(large / small for large, small in pairs)
        yield Figure("512 processors over 8, the longest chain", ratio, "", 1.1)
