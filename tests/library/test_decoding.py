"""Test drawing tokens, and one position of a beam search. `test_generation.py` tests the layers."""

from typing import Any

import numpy as np
import pytest

from mtfc.driver.loading.choice import Choice
from mtfc.driver.loading.selection import choose
from tests.harness import Arrays, call, jax_module, numpy_module

ROWS, WORDS, BEAM = 4096, 6, 3

DRAW = """
import decoding
dim rows = 4096; dim words = 6; dim few = {choices}
mesh line = [all: 2]
layout rows on line = {{ rows: all }}
layout words on line = {{ words: all }}
model draw(logits: [words], temperature: [], seed: i32[]) {{
  same = broadcast(logits -> [rows, words])
  drawn = decoding.draw[choices = few](same, temperature, seed = seed)
  return drawn
}}
"""

LOGITS = np.array([1.0, -0.5, 0.3, 2.0, 0.9, -2.0], np.float32)


def run(source: str, layout: str, backend: str, arrays: Arrays) -> Arrays:
    """Return the outputs of the source's model on a backend."""
    selection = choose(source, "test.mtf", Choice(None, layout, None, {}))
    placed = selection.cases[0].lower(selection.program, "forward")
    make = jax_module if backend == "jax" else numpy_module
    return call(make(placed), placed.function("forward"), arrays)


def drawn(
    choices: int, temperature: float, seed: int = 0, layout: str = "rows", backend: str = "numpy"
) -> Any:
    arrays = {"logits": LOGITS, "temperature": np.float32(temperature), "seed": np.int32(seed)}
    return run(DRAW.format(choices=choices), layout, backend, arrays)["drawn"]


def shares(tokens: Any) -> Any:
    return np.bincount(tokens, minlength=WORDS) / ROWS


@pytest.mark.parametrize(("choices", "temperature"), [(6, 1.0), (6, 2.0), (3, 1.0), (3, 0.5)])
def test_tokens_are_drawn_as_the_logits_say(choices: int, temperature: float) -> None:
    """The frequencies of tokens are those of the softmax of the best ones, within four standard deviations."""
    best = np.argsort(-LOGITS)[:choices]
    expected = np.zeros(WORDS)
    expected[best] = np.exp(LOGITS[best] / temperature)
    expected /= expected.sum()
    found = shares(drawn(choices, temperature))
    assert (np.abs(found - expected) <= 4 * np.sqrt(expected * (1 - expected) / ROWS)).all()


def test_temperature_zero_takes_the_most_probable() -> None:
    assert (drawn(6, 0.0) == LOGITS.argmax()).all()


def test_every_layout_and_backend_draws_the_same_and_another_seed_something_else() -> None:
    first = drawn(3, 1.0)
    for layout, backend in (("words", "numpy"), ("rows", "jax"), ("words", "jax")):
        assert (drawn(3, 1.0, layout=layout, backend=backend) == first).all()
    assert (drawn(3, 1.0, seed=1) != first).mean() > 0.2


EXTENDED = """
import decoding
dim rows = 2; dim beam = 3; dim words = 6; dim branches = 3
mesh line = [all: 2]
layout words on line = { words: all }
model extend(logits: [rows, beam, words], scores: [rows, beam], over: bool[rows, beam]) {
  kept, token, parent = decoding.extended[branches = branches](logits, scores, over)
  carried = decoding.followed[beam = beam](scores, parent)
  return kept, token, parent, carried
}
"""


@pytest.mark.parametrize("backend", ["numpy", "jax"])
def test_a_position_of_a_beam_search(backend: str) -> None:
    """The result equals the best of all continuations of all hypotheses."""
    random = np.random.default_rng(0)
    logits = random.normal(size=(2, BEAM, WORDS)).astype(np.float32)
    scores = random.normal(size=(2, BEAM)).astype(np.float32)
    over = np.array([[False, True, False], [False, False, False]])
    found = run(EXTENDED, "words", backend, {"logits": logits, "scores": scores, "over": over})
    gains = logits - np.log(np.exp(logits).sum(-1, keepdims=True))
    gains[over] = [0, *[-np.inf] * (WORDS - 1)]
    total = (scores[..., None] + gains).reshape(2, -1)
    order = np.argsort(-total, axis=-1)[:, :BEAM]
    np.testing.assert_allclose(found["kept"], np.take_along_axis(total, order, -1), rtol=1e-5)
    assert (found["token"] == order % WORDS).all()
    assert (found["parent"] == order // WORDS).all()
    assert (found["carried"] == np.take_along_axis(scores, order // WORDS, -1)).all()
