"""Teach `transformer_seq2seq.mtf` to write sequences of words from last to first, and count the right words on held-out ones.

A source has 3 to 7 of 14 words, in random order. In a target word 1 stands at the end, and word 0 means no word. Sequences whose
words add up to a multiple of ten are held out: no training step sees one.

    python examples/reversal.py FOLDER        train, translate the held-out sequences, and print the share of right words
"""

from __future__ import annotations

import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np

EXAMPLE = Path(__file__).with_name("transformer_seq2seq.mtf")
BATCH, POSITIONS, WORDS, SHORTEST = 128, 8, 16, 3
STEPS, HELD_OUT = 600, 4
SIZES = {
    "batch": BATCH,
    "positions": POSITIONS,
    "vocab": WORDS,
    "d_model": 64,
    "heads": 8,
    "d_k": 8,
    "d_ff": 128,
    "encoder_layers": 2,
    "decoder_layers": 2,
}
SETTINGS = {
    "precision.compute": "f32",
    "optimizer": "adam(learning_rate = schedules.cosine(step, peak = 5e-3, warmup = 50, steps = 600), beta2 = 0.98)",
}


def batches(seed: int | None = None) -> Iterator[dict[str, np.ndarray]]:
    """Yield batches for training without end, or the held-out ones if there is no seed: so `--data` and `--eval` call it."""
    generator = np.random.default_rng(seed or 0)
    number = 0
    while seed is not None or number < HELD_OUT:
        yield batch(generator, is_held_out=seed is None)
        number += 1


def batch(generator: np.random.Generator, is_held_out: bool) -> dict[str, np.ndarray]:
    """Return i32 arrays of shape [batch, positions]: `sources` and `targets`."""
    words = generator.integers(2, WORDS, (20 * BATCH, POSITIONS))
    lengths = generator.integers(SHORTEST, POSITIONS, (20 * BATCH, 1))
    sources = np.where(np.arange(POSITIONS) < lengths, words, 0)
    taken = np.flatnonzero((sources.sum(axis=1) % 10 == 0) == is_held_out)[:BATCH]
    return {"sources": sources[taken].astype(np.int32), "targets": reversed_words(sources[taken])}


def reversed_words(sources: np.ndarray) -> np.ndarray:
    """Return the targets of sources."""
    targets = np.zeros_like(sources, np.int32)
    for source, target in zip(sources, targets, strict=True):
        words = source[source > 0]
        target[: len(words)] = words[::-1]
        target[len(words)] = 1
    return targets


def accuracy(written: np.ndarray, targets: np.ndarray) -> float:
    """Return the share of right words, ends included."""
    return float((written == targets)[targets > 0].mean())


def show(*arguments: str) -> None:
    """Run mtfc as a user would, beside this file, so that `reversal:batches` is found."""
    print(f"\n$ mtfc {shlex.join(arguments)}", flush=True)
    subprocess.run([sys.executable, "-m", "mtfc", *arguments], cwd=EXAMPLE.parent, check=True)


def main(name: str) -> None:
    folder = Path(name).resolve()
    folder.mkdir(parents=True, exist_ok=True)
    sizes = [word for name, size in SIZES.items() for word in ("--dim", f"{name}={size}")]
    example = (EXAMPLE.name, *sizes, "--mesh", "all:8", "--layout", "batch:all")
    settings = [word for name, value in SETTINGS.items() for word in ("--set", f"{name}={value}")]
    data = ("--data", "reversal:batches", "--eval", "reversal:batches")
    show("train", *example, *settings, *data, "--steps", str(STEPS), "--dir", f"{folder}/run")
    held_out = {name: np.concatenate([each[name] for each in batches()]) for name in ("sources", "targets")}
    np.savez(folder / "held_out.npz", sources=held_out["sources"])
    files = (
        "--params",
        f"{folder}/run",
        "--data",
        f"{folder}/held_out.npz",
        "--save",
        f"{folder}/written.npz",
    )
    show("run", *example, "--model", "translate", "--backend", "jax", *files)
    written = np.load(folder / "written.npz")["best"]
    print(
        f"\n{accuracy(written, held_out['targets']):.2%} of {(held_out['targets'] > 0).sum():,} held-out words are right"
    )


if __name__ == "__main__":
    main(*sys.argv[1:])
