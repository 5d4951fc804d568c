"""Training beside the same models written by hand in Flax NNX and optax: the losses of every step, under several layouts.

Both sides start at the values that the generated module draws, get the same batches, and compute in f32. mtfc trains on eight
devices, Flax on one. A difference is absolute or relative to the loss, whichever is larger.
"""

from __future__ import annotations

import sysconfig
from collections.abc import Callable, Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import attrs
import numpy as np

import mtfc
from benchmarks.figures import Figure

STEPS = 50
LIMIT = 1e-5
EXAMPLES = Path(__file__).parents[1] / "examples"

Batch = dict[str, Any]

LM_DIMS = {
    "batch": 16,
    "length": 32,
    "vocab": 256,
    "d_model": 32,
    "heads": 8,
    "d_k": 16,
    "d_ff": 64,
    "layers": 2,
}


@attrs.frozen
class Task:
    """A model of `examples/`, the same in Flax, and its training.

    text: the file. options, layouts: options of `mtfc.compile_text`, and those of each layout. model, optimizer: make the Flax
    module, and the equal in optax of the file's optimizer. batch: the number of a step -> its arrays.
    """

    name: str
    text: str
    options: dict[str, Any]
    layouts: dict[str, dict[str, Any]]
    model: Callable[[], Any]
    optimizer: Callable[[], Any]
    batch: Callable[[int], Batch]


def tasks() -> list[Task]:
    """Return the digits, and the language model with two optimizers."""
    import optax

    def decaying() -> Any:
        return optax.adamw(optax.warmup_cosine_decay_schedule(0.0, 3e-3, 10, STEPS), weight_decay=0.01)

    def factored() -> Any:
        return optax.adafactor(optax.linear_schedule(0.0, 0.01, 10), min_dim_size_to_factor=1)

    cosine = f"schedules.cosine(step, peak = 3e-3, warmup = 10, steps = {STEPS})"
    rising = "schedules.linear_warmup(step, peak = 0.01, warmup = 10)"
    return [
        digits_task(),
        lm_task("LM, adamw", f"adamw({cosine})", decaying),
        lm_task("LM, adafactor", f"adafactor({rising})", factored),
    ]


def digits_task() -> Task:
    def model() -> Any:
        from flax import nnx

        from benchmarks.flax_models import Digits

        return Digits(64, 1024, 10, nnx.Rngs(0))

    def optimizer() -> Any:
        import optax

        return optax.sgd(0.2)

    text = (EXAMPLES / "digits.mtf").read_text("utf-8")
    names = ("replicated", "batch_split", "hidden_split", "tiled", "image_split")
    layouts = {name: {"layout": name} for name in names}
    return Task("digits, sgd", text, {}, layouts, model, optimizer, scans)


def lm_task(name: str, call: str, optimizer: Callable[[], Any]) -> Task:
    """Return the training of the language model by a call of the library's optimizer."""

    def model() -> Any:
        from flax import nnx

        from benchmarks.flax_models import LanguageModel

        return LanguageModel(LM_DIMS, nnx.Rngs(0))

    stored = {"d_ff": "all", "heads": "all", "vocab": "all"}
    layouts: dict[str, dict[str, Any]] = {
        "data_parallel": {"layout": "data_parallel", "mesh": {"all": 8}},
        "model_parallel": {"layout": "model_parallel", "mesh": {"all": 8}},
        "hybrid": {"layout": "hybrid", "mesh": {"rows": 2, "cols": 4}},
        "fsdp": {"layout": {"batch": "all", "params": stored}, "mesh": {"all": 8}},
    }
    changed = {"precision.compute": "f32", "optimizer": call}
    options = {"model": "transformer_lm", "dims": LM_DIMS, "set": changed}
    return Task(name, lm_text(), options, layouts, model, optimizer, windows)


def lm_text() -> str:
    """Return `transformer_lm.mtf` without dropout, whose random numbers Flax cannot draw."""
    text = (EXAMPLES / "transformer_lm.mtf").read_text("utf-8")
    assert text.count("rate = 0.1") == 1
    return text.replace("rate = 0.1", "rate = 0.0")


@cache
def _digits() -> Any:
    from sklearn.datasets import load_digits

    return load_digits()


def scans(step: int) -> Batch:
    """Draw 120 scans of handwritten digits."""
    digits = _digits()
    drawn = np.random.default_rng(step).choice(len(digits.images), 120, replace=False)
    images = (digits.images[drawn] / 16).astype(np.float32)
    return {"images": images, "labels": digits.target[drawn].astype(np.int32)}


@cache
def _library_text() -> Any:
    """Return the bytes of some modules of Python's standard library."""
    folder = Path(sysconfig.get_path("stdlib"))
    return np.frombuffer(
        b"".join((folder / name).read_bytes() for name in ("argparse.py", "ast.py")), np.uint8
    )


def windows(step: int) -> Batch:
    """Draw pieces of the source text of Python's standard library, a byte a token."""
    text, length = _library_text(), LM_DIMS["length"]
    starts = np.random.default_rng(step).integers(0, len(text) - length, LM_DIMS["batch"])
    return {"tokens": text[starts[:, None] + np.arange(length)].astype(np.int32)}


def ours(task: Task, layout: str) -> tuple[dict[str, Any], list[float]]:
    """Return the initial parameters, and the loss of every step of the generated module."""
    import jax

    compiled = mtfc.compile_text(task.text, **task.options, **task.layouts[layout])
    state, losses = compiled.init(seed=0), []
    start = {name: np.array(x) for name, x in state.params.items()}
    with jax.default_matmul_precision("highest"):
        for step in range(STEPS):
            state, metrics = compiled.train_step(state, task.batch(step))
            losses.append(float(metrics["loss"]))
    return start, losses


def theirs(task: Task, start: Mapping[str, Any]) -> list[float]:
    """Return the loss of every step of the Flax module that starts at the given parameters."""
    import jax
    from flax import nnx

    from benchmarks.flax_models import train_step

    model = task.model()
    model.assign(start)
    optimizer = nnx.Optimizer(model, task.optimizer(), wrt=nnx.Param)
    with jax.default_matmul_precision("highest"):
        return [float(train_step(model, optimizer, task.batch(step))) for step in range(STEPS)]


def largest_difference(losses: list[float], expected: list[float]) -> float:
    """Return the largest difference of losses, absolute or relative."""
    return max(abs(a - b) / min(1.0, abs(b)) for a, b in zip(losses, expected, strict=True))


def figures() -> Iterator[Figure]:
    for task in tasks():
        runs = {layout: ours(task, layout) for layout in task.layouts}
        start, _ = next(iter(runs.values()))
        expected = theirs(task, start)
        for layout, (_, losses) in runs.items():
            span = f"loss {losses[0]:.3f} to {losses[-1]:.3f}"
            found = largest_difference(losses, expected)
            yield Figure(f"{task.name}, {layout}, {STEPS} steps, {span}", found, "of the loss", LIMIT)
