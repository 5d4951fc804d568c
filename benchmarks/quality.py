"""Held-out bits of a byte at four sizes of a Transformer, as in Table 2 of the Mesh-TensorFlow paper, under three layouts.

`examples/pylib_lm/sizes.mtf` learns the source text of Python's standard library on four virtual CPU devices. Larger models have
more heads and hidden units. `build/quality` keeps the figures of each run, so a second call reads them; all runs take 20 minutes
on two cores.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benchmarks.figures import Figure
from mtfc.driver.loading.choice import Choice
from mtfc.driver.loading.selection import select
from mtfc.driver.loading.sources import Sources

EXAMPLE, FOLDER = Path("examples/pylib_lm"), Path("build/quality")
HEADS = (4, 8, 16, 32)
LAYOUTS = ("hybrid", "data_parallel", "model_parallel")
STEPS = 400
APART = 0.02
"""The most bits between layouts: each step rounds its own way, and the differences grow."""


def figures() -> Iterator[Figure]:
    before = None
    for heads in HEADS:
        found = {layout: evaluated(heads, layout) for layout in LAYOUTS}
        first = found[LAYOUTS[0]]
        bits = {layout: each["eval/bits_per_byte"] for layout, each in found.items()}
        size = f"{parameters(heads) / 1e6:.2f} million parameters"
        yield Figure(f"{heads} heads, {size}: held-out bits of a byte", bits[LAYOUTS[0]], "bits", before)
        yield Figure("    with 0.9 x logits", first["eval/scaled_bits"], "bits")
        yield Figure(
            "    largest distance of a layout", max(bits.values()) - min(bits.values()), "bits", APART
        )
        before = bits[LAYOUTS[0]]


def parameters(heads: int) -> int:
    """Return the number of parameters of a size."""
    case = select(f"{EXAMPLE}/sizes.mtf", Choice(dims={"heads": heads}), Sources())
    forward = case.program.function("forward")
    return sum(each.value.type.size for each in forward.arguments if each.role == "parameter")


def evaluated(heads: int, layout: str) -> dict[str, Any]:
    """Return the figures of the last step of a run."""
    log = FOLDER / f"{heads}_{layout}.jsonl"
    if not log.exists():
        if not (FOLDER / "train.bin").exists():
            subprocess.run([sys.executable, EXAMPLE / "prepare.py", FOLDER], check=True)
        data = ("--data", f"{FOLDER}/train.bin:uint8", "--eval", f"{FOLDER}/held_out.bin:uint8")
        sizes = ("--dim", f"heads={heads}", "--dim", f"steps={STEPS}", "--steps", f"{STEPS}")
        options = ("--layout", layout, "--eval-every", f"{STEPS}", "--log", f"{log}.part")
        command = [sys.executable, "-m", "mtfc", "train", f"{EXAMPLE}/sizes.mtf", *data, *sizes, *options]
        subprocess.run(command, check=True)
        Path(f"{log}.part").rename(log)
    found: dict[str, Any] = json.loads(log.read_text("utf-8").splitlines()[-1])
    return found
