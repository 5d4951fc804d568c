"""Generating models of `examples/`: tokens generated one position at a time equal the trained model's choices.

Each model runs with the parameters that training has saved, under a layout that splits its caches. The trained model reads whole
sequences, and its output at a position depends only on earlier positions. So one run on the generated sequence gives its output
after each prefix.
"""

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import attrs
import numpy as np
import pytest

from mtfc.driver.loading.choice import Choice
from mtfc.driver.loading.sources import Sources
from mtfc.driver.options import RunOptions
from mtfc.driver.running.run import run

FOLDER = Path(__file__).parents[1] / "examples"
SEED = 7


@attrs.frozen
class Case:
    """An example at a small size; `layout` is on `mesh`, and `text` is the name of the trained model's input."""

    file: str
    text: str
    sizes: dict[str, int]
    layout: str
    mesh: str


def sizes(text: str) -> dict[str, int]:
    return {name: int(size) for name, size in (item.split("=") for item in text.split())}


LM = Case(
    "transformer_lm",
    "tokens",
    sizes("batch=4 length=5 vocab=8 d_model=8 heads=2 d_k=4 d_ff=8 layers=2 choices=4 beam=4 branches=4"),
    "hybrid",
    "rows:2;cols:2",
)
LLAMA = Case(
    "llama",
    "tokens",
    sizes("batch=4 length=5 vocab=8 d_model=8 kv_heads=2 sharers=2 d_k=4 d_ff=8 layers=2 choices=4"),
    "fsdp",
    "data:2;model:2",
)
MOE = Case(
    "moe_lm",
    "text",
    sizes(
        "batch=8 length=5 vocab=8 d_model=8 heads=2 d_k=4 d_ff=8 layers=2 experts=4 groups=4 capacity=10 choices=4"
    ),
    "hybrid",
    "rows:2;cols:2",
)
CASES = (LM, LLAMA, MOE)
TRANSLATION = Case(
    "transformer_seq2seq",
    "targets",
    sizes(
        "batch=4 positions=3 vocab=6 d_model=8 heads=2 d_k=4 d_ff=8 encoder_layers=2 decoder_layers=2 beam=36 branches=6"
    ),
    "hybrid",
    "rows:2;cols:2",
)


@attrs.frozen
class Workplace:
    """A folder with a case's example in f32, so that all its models agree. The example is trained with dropout."""

    case: Case
    folder: Path

    @classmethod
    def trained(cls, case: Case, folder: Path, **inputs: Any) -> "Workplace":
        """Return the case with parameters after a few training steps on these inputs, on NumPy: XLA compiles for seconds."""
        text = (FOLDER / f"{case.file}.mtf").read_text("utf-8")
        text = text.replace("  precision = { params: f32, compute: bf16 }\n", "")
        (folder / "model.mtf").write_text(text, "utf-8")
        workplace = cls(case, folder)
        np.savez(workplace.path("texts.npz"), **inputs)
        files = {"data": workplace.path("texts.npz"), "save": workplace.path("trained.npz")}
        workplace.execute(None, train=True, steps=3, backend="numpy", **files)
        return workplace

    def path(self, name: str) -> str:
        return str(self.folder / name)

    def run(self, model: str | None, backend: str = "numpy", **inputs: Any) -> dict[str, Any]:
        """Return a model's outputs for one batch, or for several in sequence."""
        np.savez(self.path("inputs.npz"), **inputs)
        files = {"params": self.path("trained.npz"), "data": self.path("inputs.npz")}
        self.execute(model, backend=backend, save=self.path("outputs.npz"), **files)
        with np.load(self.path("outputs.npz")) as saved:
            return dict(saved)

    def execute(self, model: str | None, **options: Any) -> None:
        choice = Choice(model, self.case.layout, self.case.mesh, self.case.sizes)
        run_options = RunOptions(self.path("model.mtf"), choice, seed=SEED, **options)
        assert run(run_options, Sources(), lambda _: None).status == 0


def texts(case: Case, batches: int = 1) -> Any:
    shape = (batches * case.sizes["batch"], case.sizes["length"])
    return np.random.default_rng(3).integers(0, case.sizes["vocab"], shape).astype(np.int32)


@pytest.fixture(scope="module", params=CASES, ids=lambda case: case.file)
def trained(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Workplace:
    case = request.param
    return Workplace.trained(case, tmp_path_factory.mktemp(case.file), **{case.text: texts(case, 2)})


@pytest.fixture(scope="module")
def lm(tmp_path_factory: pytest.TempPathFactory) -> Workplace:
    return Workplace.trained(LM, tmp_path_factory.mktemp("lm"), tokens=texts(LM, 2))


# Greedy

GREEDY = {"temperature": np.float32(0), "seed": np.int32(0)}


@pytest.mark.parametrize("backend", ["numpy", "jax"])
def test_greedy_generation_is_the_argmax_of_the_full_forward_pass(trained: Workplace, backend: str) -> None:
    """Each token after the prompt is the trained model's choice; the prompt stays unchanged."""
    case = trained.case
    prompt, given = texts(case), np.arange(case.sizes["batch"], dtype=np.int32) % case.sizes["length"]
    found = trained.run("generate", backend, prompt=prompt, given=given, **GREEDY)[case.text]
    best = trained.run(None, **{case.text: found})["logits"].argmax(-1)
    of_prompt = np.arange(case.sizes["length"]) < given[:, None]
    assert (found == np.where(of_prompt, prompt, best)).all()
    assert (found != prompt).any()


def test_the_full_forward_pass_on_growing_prefixes_says_the_same(lm: Workplace) -> None:
    """Tokens after a prefix do not change the token that follows the prefix."""
    length, batch = LM.sizes["length"], LM.sizes["batch"]
    prompt, given = texts(LM), np.ones(batch, np.int32)
    found = lm.run("generate", prompt=prompt, given=given, **GREEDY)["tokens"]
    prefixes = [np.where(np.arange(length) < end, found, texts(LM) + end & 7) for end in range(1, length)]
    logits = lm.run(None, tokens=np.concatenate(prefixes).astype(np.int32))["logits"]
    for end, each in zip(range(1, length), np.split(logits, length - 1), strict=True):
        assert (each[:, end].argmax(-1) == found[:, end]).all()


# Temperature and top-k


def test_sampling_stays_within_the_most_probable_choices(lm: Workplace) -> None:
    """At a very high temperature each choice, up to the end of its text, is one of the four best, and not always the best."""
    drawn = sampled(lm, seed=1)
    logits = lm.run(None, tokens=drawn)["logits"]
    ends = drawn <= 1
    is_drawn = np.cumsum(ends, axis=1) - ends == 0
    rank = (logits > np.take_along_axis(logits, drawn[..., None], -1)).sum(-1)[is_drawn]
    assert (drawn[~is_drawn] == 0).all()
    assert rank.max() == LM.sizes["choices"] - 1
    assert len(set(rank.ravel())) > 1


def test_samples_depend_on_the_seed_alone(lm: Workplace) -> None:
    first = sampled(lm, seed=1)
    assert (first == sampled(lm, seed=1)).all()
    assert (first != sampled(lm, seed=2)).any()


def sampled(lm: Workplace, seed: int) -> Any:
    given = np.zeros(LM.sizes["batch"], np.int32)
    inputs = {"prompt": texts(LM), "given": given, "temperature": np.float32(100), "seed": np.int32(seed)}
    return lm.run("generate", **inputs)["tokens"]


# Beam search

LogProbs = Callable[[Any], Any]
"""Maps texts [n, length] to the whole model's log-probabilities [n, length, vocab]."""


def log_probs_of(workplace: Workplace, rows: Any, **others: Any) -> Any:
    """Return the whole model's log-probabilities of any number of texts. others: its other inputs, a row for each text."""
    case = workplace.case

    def padded(given: Any) -> Any:
        return np.pad(given, ((0, -len(given) % case.sizes["batch"]), (0, 0))).astype(np.int32)

    inputs = {name: padded(given) for name, given in {case.text: rows, **others}.items()}
    logits = workplace.run(None, **inputs)["logits"][: len(rows)].astype(np.float64)
    return logits - np.log(np.exp(logits).sum(-1, keepdims=True))


def is_over(text: Sequence[int], start: int) -> bool:
    return any(token <= 1 for token in text[start:])


def score(text: Sequence[int], log_probs: Any, start: int) -> float:
    """Return the log-probability of a continuation. After the end token, 0 has probability 1."""
    total = 0.0
    for i in range(start, len(text)):
        total += 0.0 if is_over(text[:i], start) else log_probs[i, text[i]]
    return total


def continuations(prompt: Sequence[int], start: int, length: int, vocab: int) -> list[tuple[int, ...]]:
    """Return every continuation, with only 0 after the end token."""
    texts = [tuple(prompt[:start])]
    for _ in range(start, length):
        texts = [
            (*text, token) for text in texts for token in ((0,) if is_over(text, start) else range(vocab))
        ]
    return texts


def ranking(
    every: Sequence[tuple[int, ...]], log_probs: Any, start: int
) -> list[tuple[float, tuple[int, ...]]]:
    """Return these texts with their scores, the best first. log_probs: those of the whole model for each text."""
    pairs = zip(every, log_probs, strict=True)
    return sorted(((score(text, rows, start), text) for text, rows in pairs), reverse=True)


def test_a_beam_that_is_wide_enough_finds_the_best_of_all_texts(lm: Workplace) -> None:
    """Two tokens are free, so that 8 hypotheses after the first token are all continuations."""
    length, vocab, start = LM.sizes["length"], LM.sizes["vocab"], LM.sizes["length"] - 2
    prompt, given = texts(LM), np.full(LM.sizes["batch"], start, np.int32)
    wide = attrs.evolve(lm, case=attrs.evolve(LM, sizes={**LM.sizes, "beam": 8, "branches": 8}))
    found = wide.run("beam_search", prompt=prompt, given=given)
    every = [continuations(row, start, length, vocab) for row in prompt]
    of_rows = np.split(log_probs_of(lm, np.concatenate(every)), len(every))
    for texts_of_row, log_probs, tokens, scores in zip(
        every, of_rows, found["tokens"], found["scores"], strict=True
    ):
        ranked = ranking(texts_of_row, log_probs, start)
        assert [tuple(text) for text in tokens] == [text for _, text in ranked[:8]]
        np.testing.assert_allclose(scores, [value for value, _ in ranked[:8]], rtol=1e-4, atol=1e-5)


def searched(
    prompt: Sequence[int], start: int, log_probs: LogProbs, beam: int
) -> list[tuple[float, tuple[int, ...]]]:
    """Textbook beam search, which runs the whole model for every position."""
    length, vocab = LM.sizes["length"], LM.sizes["vocab"]
    kept = [(0.0, tuple(prompt[:start]))]
    for i in range(start, length):
        padded = np.array([(*text, *[0] * (length - i)) for _, text in kept])
        rows = log_probs(padded)[:, i]
        options = [
            (value + (0.0 if is_over(text, start) else row[token]), (*text, token))
            for (value, text), row in zip(kept, rows, strict=True)
            for token in ((0,) if is_over(text, start) else range(vocab))
        ]
        kept = sorted(options, reverse=True)[:beam]
    return kept


STARTS = np.array([1, 2, 3, 4], np.int32)


@pytest.fixture(scope="module")
def of_the_textbook(lm: Workplace) -> list[list[tuple[float, tuple[int, ...]]]]:
    """The hypotheses for each prompt, which no backend changes."""
    pairs, log_probs = zip(texts(LM), STARTS, strict=True), partial(log_probs_of, lm)
    return [searched(row, int(start), log_probs, LM.sizes["beam"]) for row, start in pairs]


@pytest.mark.parametrize("backend", ["numpy", "jax"])
def test_beam_search_is_that_of_the_textbook(
    lm: Workplace, of_the_textbook: list[list[tuple[float, tuple[int, ...]]]], backend: str
) -> None:
    found = lm.run("beam_search", backend, prompt=texts(LM), given=STARTS)
    for expected, tokens, scores in zip(of_the_textbook, found["tokens"], found["scores"], strict=True):
        assert [tuple(text) for text in tokens] == [text for _, text in expected]
        np.testing.assert_allclose(scores, [value for value, _ in expected], rtol=1e-4, atol=1e-5)


# Translation


@pytest.fixture(scope="module")
def translating(tmp_path_factory: pytest.TempPathFactory) -> tuple[Workplace, Any, Any]:
    """The trained example, sources, of which one is one word, and the log-probabilities of every text for each source."""
    vocab, length, batch = (TRANSLATION.sizes[name] for name in ("vocab", "positions", "batch"))
    random = np.random.default_rng(5)
    sources, targets = (random.integers(1, vocab, (2 * batch, length)).astype(np.int32) for _ in range(2))
    sources[0, 1:] = 0
    folder = tmp_path_factory.mktemp("translation")
    workplace = Workplace.trained(TRANSLATION, folder, sources=sources, targets=targets)
    every = np.array(continuations((), 0, length, vocab))
    rows, repeated = np.tile(every, (batch, 1)), np.repeat(sources[:batch], len(every), 0)
    log_probs = log_probs_of(workplace, rows, sources=repeated)
    return workplace, sources[:batch], np.split(log_probs, batch)


@pytest.mark.parametrize("backend", ["numpy", "jax"])
def test_the_best_translation_of_all(translating: tuple[Workplace, Any, Any], backend: str) -> None:
    """36 hypotheses after the second word cover all texts of three words. A source of one word is masked after it."""
    workplace, sources, of_sources = translating
    found = workplace.run("translate", backend, sources=sources)
    every = continuations((), 0, TRANSLATION.sizes["positions"], TRANSLATION.sizes["vocab"])
    for i, log_probs in enumerate(of_sources):
        ranked = ranking(every, log_probs, 0)[:36]
        assert [tuple(text) for text in found["words"][i]] == [text for _, text in ranked]
        expected = [value / ((5 + np.count_nonzero(text)) / 6) ** 0.6 for value, text in ranked]
        np.testing.assert_allclose(found["score"][i], expected, rtol=1e-4, atol=1e-5)
        assert tuple(found["best"][i]) == ranked[int(np.argmax(expected))][1]
