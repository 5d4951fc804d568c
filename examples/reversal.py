"""Teach `transformer_seq2seq.mtf` to write sequences of words from last to first, and count the right words on held-out ones.

A source has 4 to 11 of 30 words, in random order. In a target word 1 stands at the end, and word 0 means no word. Sequences whose
words add up to a multiple of ten are held out: no training step sees one.

    python examples/reversal.py FOLDER        train, translate the held-out sequences, and print the share of right words
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np

EXAMPLE = Path(__file__).with_name("transformer_seq2seq.mtf")
BATCH, POSITIONS, WORDS, SHORTEST = 128, 9, 20, 3
STEPS, HELD_OUT = 450, 4
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
    "optimizer": "adam(learning_rate = schedules.cosine(step, peak = 5e-3, warmup = 50, steps = 450), beta2 = 0.98)",
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
