"""Train `digits.mtf` on real scans of handwritten digits, with both backends, and compare its layouts.

The 1,797 scans of 8 by 8 pixels come with scikit-learn. They are shuffled, and 360 of them are for testing only. The other 1,437
make 12 batches of 120; the first three scans repeat at the end.

    python examples/digits.py                train and compare, as `make demo` does
    python examples/digits.py --write-only   only write the arrays, to build/digits/
"""

from __future__ import annotations

import shlex
import subprocess
import sys
from pathlib import Path

import numpy as np
from sklearn.datasets import load_digits

EXAMPLE = "examples/digits.mtf"
FOLDER = Path("build/digits")
BATCH, TEST = 120, 360


def write_arrays() -> None:
    """Write `train.npz` and `test.npz`, each with `images` (0 is white, 1 is black) and `labels`."""
    digits = load_digits()
    order = np.random.default_rng(0).permutation(len(digits.images))
    test, train = order[:TEST], order[TEST:]
    train = np.resize(train, -(-len(train) // BATCH) * BATCH)
    FOLDER.mkdir(parents=True, exist_ok=True)
    for name, indices in (("train", train), ("test", test)):
        images = (digits.images[indices] / 16).astype(np.float32)
        np.savez(FOLDER / f"{name}.npz", images=images, labels=digits.target[indices].astype(np.int32))


def show(command: str) -> None:
    """Run a command as a user would."""
    print(f"\n$ {command}", flush=True)
    subprocess.run(shlex.split(command), check=True)


def main() -> None:
    write_arrays()
    if "--write-only" in sys.argv:
        return
    for backend, layout in (("numpy", "hidden_split"), ("jax", "tiled")):
        show(
            f"mtfc run {EXAMPLE} --train --steps 240 --backend {backend} --layout {layout}"
            f" --data {FOLDER}/train.npz --eval {FOLDER}/test.npz --save {FOLDER}/{backend}.npz"
        )
    show(f"mtfc cost {EXAMPLE}")


if __name__ == "__main__":
    main()
