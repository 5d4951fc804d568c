"""Teach `transformer_seq2seq.mtf` to translate English numerals into German ones, at several sizes, and measure BLEU.

German says the units before the tens: `three hundred and forty two` is `drei hundert zwei und vierzig`. One number in seventeen
is held out. As in Table 3 of the Mesh-TensorFlow paper, a larger model has more heads and hidden units. BLEU is sacrebleu's.

    python examples/numerals.py FOLDER [HEADS ...]        train, translate held-out numbers, and print BLEU for each size
"""

from __future__ import annotations

import shlex
import subprocess
import sys
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import numpy as np

EXAMPLE = Path(__file__).with_name("transformer_seq2seq.mtf")
BATCH, POSITIONS, LARGEST, ONE_IN = 128, 12, 999_999, 17
STEPS, HELD_OUT = 600, 4
HEADS = (1, 2, 4, 8)

WORDS = """
one ein, two zwei, three drei, four vier, five fünf, six sechs, seven sieben, eight acht, nine neun, ten zehn, eleven elf,
twelve zwölf, thirteen dreizehn, fourteen vierzehn, fifteen fünfzehn, sixteen sechzehn, seventeen siebzehn, eighteen achtzehn,
nineteen neunzehn, twenty zwanzig, thirty dreißig, forty vierzig, fifty fünfzig, sixty sechzig, seventy siebzig, eighty achtzig,
ninety neunzig, hundred hundert, thousand tausend, and und
"""
ENGLISH, GERMAN = zip(*(pair.split() for pair in WORDS.split(",")), strict=True)
NOTHING, END, FIRST = 0, 1, 2
"""Tokens: no word, the end of a target, and the first word."""


def english(number: int) -> list[str]:
    """Return the words of a number from 1 to 999,999."""
    thousands, rest = divmod(number, 1000)
    if thousands:
        return [*english(thousands), "thousand", *(english(rest) if rest else [])]
    hundreds, rest = divmod(number, 100)
    if hundreds:
        return [ENGLISH[hundreds - 1], "hundred", *(["and", *english(rest)] if rest else [])]
    tens, units = divmod(number, 10)
    if number < 20:
        return [ENGLISH[number - 1]]
    return [ENGLISH[17 + tens], *([ENGLISH[units - 1]] if units else [])]


def german(number: int) -> list[str]:
    """Return the same in German, with the parts of its long words apart."""
    thousands, rest = divmod(number, 1000)
    if thousands:
        return [*german(thousands), "tausend", *(german(rest) if rest else [])]
    hundreds, rest = divmod(number, 100)
    if hundreds:
        return [GERMAN[hundreds - 1], "hundert", *(german(rest) if rest else [])]
    tens, units = divmod(number, 10)
    if number < 20:
        return [GERMAN[number - 1]]
    return [*([GERMAN[units - 1], "und"] if units else []), GERMAN[17 + tens]]


def batches(seed: int | None = None) -> Iterator[dict[str, np.ndarray]]:
    """Yield batches for training without end, or the held-out ones if there is no seed: so `--data` and `--eval` call it."""
    generator = np.random.default_rng(seed or 0)
    number = 0
    while seed is not None or number < HELD_OUT:
        drawn = generator.integers(1, LARGEST + 1, 100 * BATCH)
        yield batch(drawn[(drawn % ONE_IN == 0) == (seed is None)][:BATCH])
        number += 1


def batch(numbers: np.ndarray) -> dict[str, np.ndarray]:
    """Return i32 arrays of shape [batch, positions]: `sources` and `targets`."""
    sources, targets = np.zeros((2, len(numbers), POSITIONS), np.int32)
    for i, number in enumerate(numbers.tolist()):
        words, translation = english(number), german(number)
        sources[i, : len(words)] = [FIRST + ENGLISH.index(word) for word in words]
        targets[i, : len(translation) + 1] = [*(FIRST + GERMAN.index(word) for word in translation), END]
    return {"sources": sources, "targets": targets}


def text(tokens: np.ndarray) -> str:
    """Return the German words before the end."""
    words = tokens.tolist()
    return (
        " ".join(GERMAN[t - FIRST] for t in words[: words.index(END)] if t >= FIRST) if END in words else ""
    )


def show(*arguments: str) -> None:
    """Run mtfc as a user would, beside this file, so that `numerals:batches` is found."""
    print(f"\n$ mtfc {shlex.join(arguments)}", flush=True)
    subprocess.run([sys.executable, "-m", "mtfc", *arguments], cwd=EXAMPLE.parent, check=True)


def bleu(folder: Path, heads: int) -> float:
    """Train a model with so many heads, and return the BLEU of its translations of held-out numbers."""
    from sacrebleu.metrics import BLEU

    sizes = {
        "batch": BATCH,
        "positions": POSITIONS,
        "vocab": FIRST + len(ENGLISH) + 2,
        "d_model": 16,
        "heads": heads,
        "d_k": 4,
        "d_ff": 8 * heads,
        "encoder_layers": 2,
        "decoder_layers": 2,
    }
    dims = [word for name, size in sizes.items() for word in ("--dim", f"{name}={size}")]
    rate = f"schedules.cosine(step, peak = 5e-3, warmup = 50, steps = {STEPS})"
    settings = (
        "--set",
        "precision.compute=f32",
        "--set",
        f"optimizer=adam(learning_rate = {rate}, beta2 = 0.98)",
    )
    example, run = (EXAMPLE.name, *dims, "--mesh", "all:8", "--layout", "batch:all"), f"{folder}/run{heads}"
    data = ("--data", "numerals:batches", "--eval", "numerals:batches")
    show("train", *example, *settings, *data, "--steps", str(STEPS), "--dir", run)
    held_out = {name: np.concatenate([each[name] for each in batches()]) for name in ("sources", "targets")}
    np.savez(folder / "held_out.npz", sources=held_out["sources"])
    files = (
        "--params",
        run,
        "--data",
        f"{folder}/held_out.npz",
        "--save",
        f"{folder}/written{heads}.npz",
    )
    show("run", *example, "--model", "translate", "--backend", "jax", *files)
    written = np.load(folder / f"written{heads}.npz")["best"]
    right = [text(each) for each in held_out["targets"]]
    return float(BLEU(tokenize="none").corpus_score([text(each) for each in written], [right]).score)


def main(name: str, *heads: str) -> None:
    if find_spec("sacrebleu") is None:
        sys.exit("numerals.py measures BLEU with sacrebleu: pip install sacrebleu")
    folder = Path(name).resolve()
    folder.mkdir(parents=True, exist_ok=True)
    for each in map(int, heads or map(str, HEADS)):
        print(f"{each} heads: BLEU {bleu(folder, each):.1f}", flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
