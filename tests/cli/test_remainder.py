"""A last batch with fewer rows gives the same numbers as batches of any other size."""

from pathlib import Path

import numpy as np
import pytest

from tests.cli.conftest import Mtfc

BACKENDS = ("numpy", "jax")

MODEL = """\
dim batch = 4
dim length = 3
dim tokens = batch * length
dim io = 6
dim classes = 3

mesh line = [all: 2]
mesh grid = [rows: 2, cols: 3]

layout replicated on line = {}
layout data on line = { batch: all, tokens: all }
layout both on grid = { batch: rows, tokens: rows, classes: cols }
layout sharded on line = { batch: all, params: { io: all }, optimizer: { io: all } }

model small(x: f32[batch, length, io], labels: i32[batch], scale: f32[]) {
  param w: f32[io, classes] = normal(stddev = 0.5)
  param bias: f32[classes] = zeros()

  flat = reshape(x -> [tokens, io])
  pooled = mean(reshape(flat -> [batch, length, io]), over = length)
  y = scale * einsum(pooled, w -> [batch, classes]) + bias
  loss = mean(square(y - one_hot(labels, classes)))
  return y, flat, loss
}

train small {
  minimize loss
  optimizer = momentum(learning_rate = 0.1)
}
"""

RNG = np.random.default_rng(0)
PARAMETERS = {
    "w": RNG.standard_normal((6, 3)).astype(np.float32),
    "bias": RNG.standard_normal(3).astype(np.float32),
}


def arrays(rows: int, seed: int = 1) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(seed)
    x = rng.standard_normal((rows, 3, 6)).astype(np.float32)
    return {"x": x, "labels": rng.integers(0, 3, rows).astype(np.int32), "scale": np.float32(1.5)}


@pytest.fixture
def files(folder: Path) -> Path:
    (folder / "model.mtf").write_text(MODEL)
    np.savez(folder / "data.npz", **arrays(11))
    np.savez(folder / "test.npz", **arrays(7, seed=2))
    np.savez(folder / "params.npz", **PARAMETERS)
    return folder


@pytest.mark.parametrize("layout", ["replicated", "data", "both", "sharded"])
@pytest.mark.parametrize("backend", BACKENDS)
def test_rows_give_the_same_in_batches_of_any_size(
    mtfc: Mtfc, files: Path, backend: str, layout: str
) -> None:
    options = ["--data", "data.npz", "--params", "params.npz", "--backend", backend, "--format", "json"]
    whole = mtfc(
        "run", "model.mtf", *options, "--layout", "replicated", "--dim", "batch=11", "--save", "1.npz"
    )
    assert (whole.status, whole.err) == (0, "")
    parts = mtfc("run", "model.mtf", *options, "--layout", layout, "--save", "4.npz")
    left_out = ", and the layout's rules that do not divide it are left out" if layout != "replicated" else ""
    again = "mtfc: data.npz: the model is compiled a second time, for a last batch of 3 rows"
    assert (parts.status, parts.err) == (0, f"{again}{left_out}\n")
    with np.load("1.npz") as one, np.load("4.npz") as four:
        for name in ("y", "flat"):
            np.testing.assert_allclose(four[name], one[name], rtol=1e-5, atol=1e-6)
        assert four["loss"].shape == (3,)
        assert np.average(four["loss"], weights=[4, 4, 3]) == pytest.approx(float(one["loss"]), rel=1e-5)
    means = [each.json["outputs"]["loss"]["mean"] for each in (whole, parts)]
    assert means[0] == pytest.approx(means[1], rel=1e-5)


def test_rules_that_divide_what_is_left_are_kept(mtfc: Mtfc, files: Path) -> None:
    np.savez("data.npz", **arrays(10))
    outcome = mtfc("run", "model.mtf", "--data", "data.npz", "--layout", "both")
    assert outcome.err == "mtfc: data.npz: the model is compiled a second time, for a last batch of 2 rows\n"


@pytest.mark.parametrize("batch", [1, 2, 3, 4, 6, 7, 20])
def test_evaluations_weigh_batches_by_their_rows(mtfc: Mtfc, files: Path, batch: int) -> None:
    """The means over 7 rows are the same in batches of any size, even larger than 7."""
    options = ["--train", "--steps", "1", "--eval", "test.npz", "--params", "params.npz", "--format", "json"]
    np.savez("data.npz", **arrays(batch))
    chosen = ("--data", "data.npz", "--dim", f"batch={batch}", "--layout", "replicated")
    outcome = mtfc("run", "model.mtf", *options, *chosen)
    w, bias = trained([arrays(batch)], 1)[0].values()
    _, expected = forward(arrays(7, seed=2), w, bias)
    assert outcome.json["steps"][-1]["eval"]["loss"] == pytest.approx(expected, rel=1e-5)


def forward(data: dict[str, np.ndarray], w: np.ndarray, bias: np.ndarray) -> tuple[np.ndarray, float]:
    y = 1.5 * data["x"].mean(1) @ w + bias
    return y, float(np.square(y - np.eye(3)[data["labels"]]).mean())


def trained(batches: list[dict[str, np.ndarray]], steps: int) -> tuple[dict[str, np.ndarray], list[float]]:
    """Gradient descent with momentum, written out."""
    w, bias = (PARAMETERS[name].astype(np.float64) for name in ("w", "bias"))
    v_w, v_bias, losses = np.zeros_like(w), np.zeros_like(bias), []
    for step in range(steps):
        data = batches[step % len(batches)]
        y, loss = forward(data, w, bias)
        losses.append(loss)
        d_y = 2 * (y - np.eye(3)[data["labels"]]) / y.size
        v_w = 0.9 * v_w + 1.5 * data["x"].mean(1).T @ d_y
        v_bias = 0.9 * v_bias + d_y.sum(0)
        w, bias = w - 0.1 * v_w, bias - 0.1 * v_bias
    return {"w": w, "bias": bias}, losses


@pytest.mark.parametrize("layout", ["replicated", "data", "both", "sharded"])
@pytest.mark.parametrize("backend", BACKENDS)
def test_the_smaller_batch_is_the_last_step_of_each_pass(
    mtfc: Mtfc, files: Path, backend: str, layout: str
) -> None:
    """Parameters and the optimizer's state move to the second compilation and back."""
    options = ["--data", "data.npz", "--params", "params.npz", "--save", "out.npz", "--format", "json"]
    training = ["--train", "--steps", "7", "--backend", backend, "--layout", layout, "--eval", "test.npz"]
    outcome = mtfc("run", "model.mtf", *training, *options)
    assert outcome.status == 0
    assert outcome.err.count("the model is compiled a second time") == 1, "7 = 4 + 3 rows and 11 = 4 + 4 + 3"
    data = arrays(11)
    batches = [{**data, "x": data["x"][i : i + 4], "labels": data["labels"][i : i + 4]} for i in (0, 4, 8)]
    parameters, losses = trained(batches, 7)
    with np.load("out.npz") as saved:
        np.testing.assert_allclose(saved["loss"], losses, rtol=1e-5)
        for name, array in parameters.items():
            np.testing.assert_allclose(saved[name], array, rtol=1e-4, atol=1e-6)
    _, expected = forward(arrays(7, seed=2), *parameters.values())
    assert outcome.json["steps"][-1]["eval"]["loss"] == pytest.approx(expected, rel=1e-4)


def test_one_pass_has_a_step_for_what_is_left(mtfc: Mtfc, files: Path) -> None:
    outcome = mtfc("run", "model.mtf", "--train", "--data", "data.npz", "--format", "json")
    assert len(outcome.json["steps"]) == 3


def accumulating(folder: Path) -> None:
    text = MODEL.replace("minimize loss", "minimize loss\n  accumulate = 2")
    (folder / "model.mtf").write_text(text)


@pytest.mark.parametrize("backend", BACKENDS)
def test_micro_batches_leave_out_what_fills_none(mtfc: Mtfc, files: Path, backend: str) -> None:
    accumulating(files)
    train = ["run", "model.mtf", "--train", "--data", "data.npz", "--backend", backend, "--format", "json"]
    outcome = mtfc(*train, "--save", "11.npz")
    takes = "with `accumulate` a step takes 2 batches of 4 rows"
    assert outcome.err == f"mtfc: data.npz: the last 3 rows are left out: {takes}\n"
    np.savez("data.npz", **{name: x[:8] if x.ndim else x for name, x in arrays(11).items()})
    assert mtfc(*train, "--save", "8.npz").err == ""
    with np.load("11.npz") as eleven, np.load("8.npz") as eight:
        assert all((eleven[name] == eight[name]).all() for name in ("w", "bias", "loss"))


def test_micro_batches_of_too_few_rows(mtfc: Mtfc, files: Path) -> None:
    accumulating(files)
    np.savez("data.npz", **arrays(3))
    outcome = mtfc("run", "model.mtf", "--train", "--data", "data.npz")
    takes = "with `accumulate` a step takes 2 batches of 4 rows"
    assert (outcome.status, outcome.err) == (2, f"mtfc: data.npz holds 3 rows, and {takes}\n")


def replaced(old: str, new: str) -> str:
    assert old in MODEL
    return MODEL.replace(old, new)


REFUSED = {
    "the file does not declare `batch` as a number": replaced("dim batch = 4", "dim batch = 2 + 2"),
    "the shape of parameter `w` depends on `batch`": replaced("dim io = 6", "dim io = batch + 2"),
    "with `batch` of 3, `more` has size 0": replaced("dim io = 6", "dim more = batch - 3\ndim io = 6"),
    "the shape of `labels` depends on `batch`, and its array holds one batch": MODEL,
    "a further dimension of output `flat` depends on `batch`": replaced(
        "return y,", "flat = broadcast(flat -> [classes, tokens, io])\n  return y,"
    ),
}


@pytest.mark.parametrize("reason", REFUSED)
def test_an_impossible_remainder_is_refused_with_its_reason(mtfc: Mtfc, files: Path, reason: str) -> None:
    (files / "model.mtf").write_text(REFUSED[reason])
    data = {**arrays(11), "labels": np.zeros(4, np.int32)} if "labels" in reason else arrays(11)
    np.savez("data.npz", **data)
    outcome = mtfc("run", "model.mtf", "--data", "data.npz")
    assert (outcome.status, outcome.out) == (1, "")
    assert (
        "error[E503]: input `x` is f32[batch: 4, length: 3, io: 6], and its array in data.npz has"
        in outcome.err
    )
    help = (
        "its first dimension may be a multiple, for several batches; a last batch with fewer rows cannot be:"
    )
    assert f"{help} {reason}" in outcome.err


def test_different_numbers_of_rows(mtfc: Mtfc, files: Path) -> None:
    np.savez("data.npz", **{**arrays(11), "labels": np.zeros(9, np.int32)})
    outcome = mtfc("run", "model.mtf", "--data", "data.npz")
    numbers = "2 and 3 rows of `x`, 2 and 1 row of `labels`"
    assert f"error[E506]: the inputs have different numbers of batches: {numbers}" in outcome.err
