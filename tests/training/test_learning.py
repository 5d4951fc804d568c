"""Further examples learn on eight devices: a residual network, a mixture of experts, a translator of reversed words."""

import os
import re
from pathlib import Path

import numpy as np
import pytest

from tests.training.commands import EXAMPLES, figures, imported, mtfc, options, python

TEXT_SIZES = {
    "batch": 16, "length": 128, "vocab": 256, "d_model": 64, "heads": 4, "d_k": 16, "d_ff": 128, "layers": 2, "experts": 8,
    "groups": 16,
}  # fmt: skip
STEPS = 40

EVERY = pytest.mark.skipif("EVERY_LAYOUT" not in os.environ, reason="it trains for a minute: make examples")


@EVERY
def test_the_residual_network_reads_digits(tmp_path: Path) -> None:
    """At least 95 % of the scans kept for testing are read, with the running statistics of batch normalization."""
    digits, example = EXAMPLES / "digits.py", str(EXAMPLES / "digits_resnet.mtf")
    python(digits, "--write-only", folder=tmp_path)
    data = ("--data", "build/digits/train.npz", "--eval", "build/digits/test.npz")
    log = tmp_path / "digits.jsonl"
    mtfc("train", example, *data, "--epochs", "7", "--eval-every", "84", "--log", str(log), folder=tmp_path)
    assert figures(log)[-1]["eval/accuracy"] > 0.95


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The text of Python's library."""
    folder = tmp_path_factory.mktemp("text")
    python(EXAMPLES / "pylib_lm" / "prepare.py", ".", folder=folder)
    return folder


@EVERY
def test_experts_learn_by_all_to_all(text: Path) -> None:
    """Tokens travel to experts on other processors under both layouts, and the losses agree.

    Where two experts are almost equally good, rounding may send a token to the other one, so later losses differ a little.
    """
    example = (str(EXAMPLES / "moe_lm.mtf"), *options("--dim", TEXT_SIZES))
    rate = "optimizer.learning_rate=schedules.warmup_rsqrt(step, peak = 0.01, warmup = 30)"
    losses = []
    for layout in (("expert_parallel", "all:8"), ("hybrid", "rows:2;cols:4")):
        chosen = ("--layout", layout[0], "--mesh", layout[1])
        assert "8 all_to_all{" in mtfc("cost", *example, *chosen)
        log = ("--steps", str(STEPS), "--log", f"{layout[0]}.jsonl")
        mtfc("train", *example, *chosen, *log, "--data", "train.bin:uint8", "--set", rate, folder=text)
        losses.append([step["loss"] for step in figures(text / f"{layout[0]}.jsonl")])
    np.testing.assert_allclose(losses[0][:10], losses[1][:10], rtol=0, atol=1e-4)
    np.testing.assert_allclose(*losses, rtol=0, atol=1e-2)
    assert losses[0][-1] < 0.6 * losses[0][0]


@EVERY
def test_the_translator_reverses_words(tmp_path: Path) -> None:
    """More than 99 % of the words that beam search finds for held-out sequences are right."""
    shown = python(EXAMPLES / "reversal.py", tmp_path)
    found = re.search(r"^([\d.]+)% of ([\d,]+) held-out words are right$", shown, re.MULTILINE)
    assert found is not None
    assert float(found[1]) > 99
    assert int(found[2].replace(",", "")) > 2000


def test_reversed_words_are_held_out_by_their_sum() -> None:
    reversal = imported(EXAMPLES / "reversal.py")
    trained, held_out = reversal.batches(3), [*reversal.batches()]
    assert len(held_out) == reversal.HELD_OUT
    for each, remainders in ((next(trained), {*range(1, 10)}), (held_out[0], {0})):
        assert {*(each["sources"].sum(axis=1) % 10).tolist()} <= remainders
        for source, target in zip(each["sources"].tolist(), each["targets"].tolist(), strict=True):
            words = [word for word in source if word]
            assert target == [*words[::-1], 1, *[0] * (len(target) - len(words) - 1)]


@EVERY
def test_the_translator_learns_numerals(tmp_path: Path) -> None:
    """The larger of two models translates better, by BLEU, and nearly without a mistake."""
    shown = python(EXAMPLES / "numerals.py", tmp_path, "1", "8")
    small, large = map(float, re.findall(r"^\d heads: BLEU ([\d.]+)$", shown, re.MULTILINE))
    assert small < large
    assert large > 90


def test_numerals_are_translated_by_rule_and_held_out_by_remainder() -> None:
    numerals = imported(EXAMPLES / "numerals.py")
    words = {342: ("three hundred and forty two", "drei hundert zwei und vierzig")}
    words |= {20_017: ("twenty thousand seventeen", "zwanzig tausend siebzehn"), 1: ("one", "ein")}
    for number, (source, target) in words.items():
        assert (numerals.english(number), numerals.german(number)) == (source.split(), target.split())
        assert numerals.text(numerals.batch(np.array([number]))["targets"][0]) == target
    longest = numerals.batch(np.array([999_999, 777_777]))
    assert all((each[:, -1] <= numerals.END).all() for each in longest.values())
    held_out = [*numerals.batches()]
    assert len(held_out) == numerals.HELD_OUT
    sentences = {tuple(row) for each in held_out for row in each["sources"].tolist()}
    assert sentences.isdisjoint(map(tuple, next(numerals.batches(3))["sources"].tolist()))
