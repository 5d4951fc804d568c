"""`mtfc run --prompt`: text in and out of a model that writes the byte that follows the last one in a table."""

from pathlib import Path

import numpy as np
import pytest

from tests.cli.conftest import Mtfc

MODEL = """\
import decoding

dim texts = 2
dim length = 12
dim vocab = 256
dim choices = 4
dim before = vocab

mesh line = [all: 2]
layout split on line = { texts: all }

model generate(prompt: i32[texts, length], given: i32[texts], temperature: [], seed: i32[]) {
  param table: [before, vocab] = normal(stddev = 1.0)
  token = zeros([texts], dtype = i32)
  scan t = range(length) along length {
    drawn = decoding.draw[choices = choices](gather(table, token, before), temperature, seed = seed)
    token = where(t < given, gather(prompt, t, length), drawn)
    yield written = token
  }
  tokens = transpose(written -> [texts, length])
  return tokens
}

model best(prompt: i32[texts, length], given: i32[texts]) {
  written = where(broadcast(range(length) -> [texts, length]) < given, prompt, 33)
  return written
}

model tokens(prompt: i32[texts, length], given: i32[texts]) {
  written = where(broadcast(range(length) -> [texts, length]) < given, prompt, 300)
  return written
}

model scores(prompt: i32[texts, length], given: i32[texts]) {
  written = cast(prompt, f32) + cast(given, f32)
  return written
}

model other(prompt: i32[texts, length]) {
  return prompt
}
"""


@pytest.fixture
def written(folder: Path) -> Path:
    """The folder with the model, and parameters by which `b` follows `a`, `c` follows `b` ..., and byte 0 follows `z`."""
    (folder / "lm.mtf").write_text(MODEL)
    table = np.zeros((256, 256), np.float32)
    table[np.arange(255), np.arange(1, 256)] = 50
    table[ord("z")] = np.eye(256, dtype=np.float32)[0]
    np.savez(folder / "params.npz", table=table)
    return folder


RUN = ("run", "lm.mtf", "--params", "params.npz")


@pytest.mark.parametrize("backend", ["numpy", "jax"])
def test_a_prompt_is_printed_with_its_continuation(mtfc: Mtfc, written: Path, backend: str) -> None:
    outcome = mtfc(*RUN, "--backend", backend, "--prompt", "abc")
    assert (outcome.status, outcome.out, outcome.err) == (0, "abcdefghijkl\n", "")


def test_several_prompts_are_texts_of_one_batch(mtfc: Mtfc, written: Path) -> None:
    outcome = mtfc(*RUN, "--prompt", "a", "--prompt", "MN", "--tokens", "3", "--temperature", "0")
    assert outcome.out == f"abcd\n{'-' * 80}\nMNOPQ\n"
    assert mtfc(*RUN, "--prompt", "a", "--format", "json").json["texts"] == ["abcdefghijkl"]


def test_byte_0_ends_a_text(mtfc: Mtfc, written: Path) -> None:
    assert mtfc(*RUN, "--prompt", "wx", "--temperature", "0").out == "wxyz\n"


def test_an_empty_prompt_starts_at_the_first_byte(mtfc: Mtfc, written: Path) -> None:
    outcome = mtfc(*RUN, "--prompt", "", "--format", "json")
    assert outcome.json["texts"] == ["".join(map(chr, range(1, 13)))]


def test_text_is_utf_8(mtfc: Mtfc, written: Path) -> None:
    assert mtfc(*RUN, "--prompt", "é", "--tokens", "1").out.startswith("é")


def test_draws_follow_seed_and_temperature(mtfc: Mtfc, written: Path) -> None:
    np.savez(written / "params.npz", table=np.zeros((256, 256), np.float32))
    texts = [
        mtfc(*RUN, "--prompt", "a", "--seed", seed, "--temperature", temperature, "--format", "json").json[
            "texts"
        ]
        for seed, temperature in (
            ("1", "1"),
            ("1", "1"),
            ("2", "1"),
            ("1", "0"),
            ("2", "0"),
            ("4294967295", "1"),
        )
    ]
    assert texts[0] == texts[1] != texts[2] != texts[5]
    assert texts[3] == texts[4]


def test_a_model_may_lack_temperature_and_seed(mtfc: Mtfc, written: Path) -> None:
    outcome = mtfc("run", "lm.mtf", "--model", "best", "--prompt", "abc", "--tokens", "4")
    assert (outcome.status, outcome.out) == (0, "abc!!!!\n")


def test_a_tokenizer_makes_and_reads_the_tokens(mtfc: Mtfc, written: Path) -> None:
    """The model counts on, and the special token 101 ends a text."""
    package = pytest.importorskip("tokenizers")
    vocabulary = {"one": 97, "two": 98, "three": 99, "four": 100, "</s>": 101, "?": 0}
    tokenizer = package.Tokenizer(package.models.WordLevel(vocabulary, unk_token="?"))
    tokenizer.pre_tokenizer = package.pre_tokenizers.Whitespace()
    tokenizer.add_special_tokens(["</s>"])
    tokenizer.save(str(written / "words.json"))
    words = (*RUN, "--tokenizer", "words.json", "--temperature", "0", "--prompt")
    assert mtfc(*words, "one two").out == "one two three four\n"
    assert mtfc(*words, "two", "--tokens", "1").out == "two three\n"
    found = mtfc(*words, "one " * 12)
    assert (found.status, found.out) == (2, "")
    assert "the prompt has 12 tokens, and a text of the model has length = 12" in found.err
    found = mtfc(*RUN, "--tokenizer", "lm.mtf", "--prompt", "one")
    assert (found.status, found.out) == (2, "")
    assert "--tokenizer lm.mtf: expected a tokenizer.json of the package tokenizers" in found.err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--prompt", "a" * 12), "the prompt has 12 bytes, and a text of the model has length = 12 with what is new"),
        (("--prompt", "a\0b"), "byte 0"),
        (("--prompt", "a", "--prompt", "b", "--prompt", "c"), "3 prompts, and model generate writes 2 at a time"),
        (("--prompt", "a", "--model", "other"), "the inputs of model other are prompt: i32[texts: 2, length: 12]"),
        (("--prompt", "a", "--model", "scores"), "that of model scores is f32[texts: 2, length: 12]"),
        (("--prompt", "a", "--model", "tokens"), "token 300, which is no byte"),
        (("--prompt", "a", "--steps", "1"), "--prompt and --steps"),
        (("--prompt", "a", "--data", "params.npz"), "--prompt and --data"),
        (("--tokens", "3"), "--tokens goes with --prompt"),
        (("--tokenizer", "a.json"), "--tokenizer goes with --prompt"),
        (("--temperature", "0"), "--temperature goes with --prompt"),
        (("--prompt", "a", "--temperature", "-1"), "expected a number from 0 on"),
    ],
)  # fmt: skip
def test_errors(mtfc: Mtfc, written: Path, arguments: tuple[str, ...], message: str) -> None:
    outcome = mtfc("run", "lm.mtf", *arguments)
    assert (outcome.status, outcome.out) == (2, "")
    assert message in outcome.err
