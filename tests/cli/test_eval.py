"""`mtfc eval`, and the evaluations of `mtfc train`: every row counts, at any size of a batch; the best checkpoint stays."""

import json
from pathlib import Path

import numpy as np
import pytest

from mtfc.driver.errors import OK, USAGE
from tests.cli.conftest import Mtfc

MODEL = """\
dim batch = 4
dim length = 3
dim d = 2
mesh line = [all: 2]
layout data on line = { batch: all }
model masked(x: [batch, length, d], mask: [batch, length]) {
  param w: [d] = normal(stddev = 0.5)
  y = einsum(x, w -> [batch, length])
  loss = sum(square(y - 1.0) * mask) / maximum(sum(mask), 1.0) + 0.0 * mean(y)
  share = mean(square(y) * mask) / mean(mask)
  size = mean(square(y))
  rows = sum(y -> [batch])
  half = mean(square(y)) / sum(square(w))
  return loss, share, size, rows, half
}
train masked { minimize loss; optimizer = sgd(learning_rate = 0.01) }
"""


@pytest.fixture(autouse=True)
def files(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("JAX_COMPILATION_CACHE_DIR", "")
    Path("masked.mtf").write_text(MODEL)
    random = np.random.default_rng(0)
    for name, rows in (("train", 40), ("test", 11), ("few", 3)):
        mask = (random.random((rows, 3)) < 0.4).astype(np.float32)
        np.savez(f"{name}.npz", x=random.standard_normal((rows, 3, 2), np.float32), mask=mask)
    np.savez("w.npz", w=np.array([0.3, -0.7], np.float32))
    return folder


def expected(file: str) -> dict[str, float]:
    """Return the means over all rows of a file, each by its own count."""
    arrays = dict(np.load(file))
    w = np.array([0.3, -0.7])
    x, mask = arrays["x"].astype(float), arrays["mask"].astype(float)
    y = x @ w
    return {
        "loss": float((np.square(y - 1) * mask).sum() / mask.sum()),
        "share": float((np.square(y) * mask).sum() / mask.sum()),
        "size": float(np.square(y).mean()),
        "rows": float(y.sum(1).mean()),
        "half": float(np.square(y).mean() / np.square(w).sum()),
    }


@pytest.mark.parametrize(
    "options",
    [(), ("--dim", "batch=5", "--layout", ""), ("--dim", "batch=40"), ("--dim", "batch=1", "--layout", "")],
)
def test_every_row_counts_whatever_the_batch(mtfc: Mtfc, options: tuple[str, ...]) -> None:
    found = mtfc(
        "eval", "masked.mtf", "--params", "w.npz", "--data", "test.npz", "--format", "json", *options
    )
    assert found.status == OK, found.err
    assert found.json["eval"] == pytest.approx(expected("test.npz"), rel=1e-5)


@pytest.mark.parametrize("backend", ["numpy", "jax"])
def test_a_run_weighs_by_the_same_counts(mtfc: Mtfc, backend: str) -> None:
    common = ("run", "masked.mtf", "--params", "w.npz", "--backend", backend, "--format", "json", "--dim")
    found = mtfc(*common, "batch=4", "--data", "test.npz")
    means = {name: about["mean"] for name, about in found.json["outputs"].items()}
    assert means == pytest.approx(expected("test.npz"), rel=1e-5)
    training = ("--train", "--steps", "1", "--set", "optimizer.learning_rate=0", "--data", "train.npz")
    found = mtfc(*common, "batch=4", *training, "--eval", "test.npz")
    assert found.json["steps"][0]["eval"] == pytest.approx(expected("test.npz"), rel=1e-5)
    if backend == "numpy":  # batches of equal size have different counts
        found = mtfc(*common, "batch=1", "--layout", "", "--data", "test.npz")
        means = {name: about["mean"] for name, about in found.json["outputs"].items()}
        assert means == pytest.approx(expected("test.npz"), rel=1e-5)


def test_fewer_rows_than_a_batch(mtfc: Mtfc) -> None:
    found = mtfc("eval", "masked.mtf", "--params", "w.npz", "--data", "few.npz", "--format", "json")
    assert found.json["eval"] == pytest.approx(expected("few.npz"), rel=1e-5)
    assert "few.npz: 3 examples, one of 3 rows" in found.err


FUNCTIONS = """
import numpy as np

def items(sizes):
    arrays, start = dict(np.load("test.npz")), 0
    for size in sizes:
        yield {name: x[start : start + size] for name, x in arrays.items()}
        start += size

def uneven():
    return items((1, 4, 3, 3))

def larger():
    return items((4, 5, 2))

def apart():
    return [{"x": np.ones((3, 3, 2)), "mask": np.ones((2, 3))}]

def parts(shard_index, shard_count):
    return items((4, 3))
"""


def test_items_of_a_function_may_have_fewer_rows(
    mtfc: Mtfc, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    Path("short_items.py").write_text(FUNCTIONS)
    monkeypatch.syspath_prepend(str(folder))
    common = ("eval", "masked.mtf", "--params", "w.npz", "--format", "json", "--data")
    found = mtfc(*common, "short_items:uneven")
    assert found.status == OK, found.err
    assert found.json["eval"] == pytest.approx(expected("test.npz"), rel=1e-5)
    for function, message in {
        "larger": "its array in item 2 of short_items:larger has shape [5, 3, 2]",
        "apart": "its array in item 1 of short_items:apart has shape [3, 3, 2]",
        "parts": "its array in item 2 of short_items:parts has shape [3, 3, 2]",
    }.items():
        found = mtfc(*common, f"short_items:{function}")
        assert found.status != OK and message in found.err
    Path("own.mtf").write_text(MODEL.replace("dim batch = 4", "dim batch = 2 * 2"))
    found = mtfc("eval", "own.mtf", "--params", "w.npz", "--data", "short_items:uneven")
    reason = "has 1 row, and the file does not declare `batch` as a number"
    assert found.status == USAGE and f"item 1 of short_items:uneven {reason}" in found.err


def test_some_batches_leave_out_the_rest(mtfc: Mtfc) -> None:
    arrays = {name: x[:8] for name, x in np.load("test.npz").items()}
    np.savez("eight.npz", **arrays)
    common = (
        "eval", "masked.mtf", "--params", "w.npz", "--data", "test.npz", "--format", "json", "--batches",
    )  # fmt: skip
    assert mtfc(*common, "2").json["eval"] == pytest.approx(expected("eight.npz"), rel=1e-5)
    assert mtfc(*common, "3").json["eval"] == pytest.approx(expected("test.npz"), rel=1e-5)


def test_rows_that_the_model_cannot_take_are_named(mtfc: Mtfc) -> None:
    Path("own.mtf").write_text(MODEL.replace("param w: [d]", "param b: [batch] = zeros()\n  param w: [d]"))
    np.savez("own.npz", w=np.ones(2, np.float32), b=np.ones(4, np.float32))
    found = mtfc("eval", "own.mtf", "--params", "own.npz", "--data", "test.npz")
    assert found.status == OK
    assert (
        "test.npz: the last 3 rows are left out: the shape of parameter `b` depends on `batch`" in found.err
    )
    assert mtfc("eval", "own.mtf", "--params", "own.npz", "--data", "few.npz").status == USAGE


TRAIN = (
    "train", "masked.mtf", "--data", "train.npz", "--eval", "test.npz", "--eval-every", "2", "--keep", "1",
)  # fmt: skip


def test_a_finished_run_is_evaluated(mtfc: Mtfc) -> None:
    first = mtfc(*TRAIN, "--dir", "run", "--steps", "4", "--format", "json")
    again = mtfc(*TRAIN, "--dir", "run", "--steps", "4", "--format", "json")
    command = mtfc("eval", "masked.mtf", "--params", "run", "--data", "test.npz", "--format", "json")
    assert again.status == OK
    assert "step 4 is reached already" in again.err
    assert first.json["eval"] == again.json["eval"] == command.json["eval"]


def test_the_best_checkpoint_stays(mtfc: Mtfc, folder: Path) -> None:
    """The mean `size` shrinks: its largest value is that of the first evaluation, before and after the run goes on."""
    options = ("--dir", "run", "--keep-best", "size:max", "--format", "json")
    for steps in ("6", "10"):
        found = mtfc(*TRAIN, *options, "--steps", steps)
        assert found.status == OK, found.err
        kept = sorted(each.name for each in (folder / "run" / "checkpoints").iterdir())
        assert kept == sorted(["2", steps])
        assert found.json["best_checkpoint"] == "run/checkpoints/2"
    evaluations = json.loads((folder / "run" / "evaluations.json").read_text())
    assert [*evaluations] == ["2", "4", "6", "8", "10"]
    best = mtfc(
        "eval", "masked.mtf", "--params", "run/checkpoints/2", "--data", "test.npz", "--format", "json"
    )
    assert (
        best.json["eval"]["size"] == evaluations["2"]["size"] == max(e["size"] for e in evaluations.values())
    )


def test_a_run_ends_early(mtfc: Mtfc) -> None:
    options = ("--dir", "run", "--keep-best", "size:max", "--stop-early", "2")
    found = mtfc(*TRAIN, *options, "--steps", "20")
    assert found.status == OK
    assert "ended early after step 6: the best size is that of step 2" in found.err
    again = mtfc(*TRAIN, *options, "--steps", "20")
    assert again.status == OK
    assert "eval loss" in again.out


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--dir", "run", "--keep-best", "size"), "say which is better, as size:max or size:min"),
        (("--dir", "run", "--keep-best", "lss"), "did you mean `loss`?"),
        (("--keep-best", "loss"), "--keep-best goes with --eval"),
        (("--dir", "run", "--keep-best", "size:up"), "expected a mean such as loss or accuracy:max"),
    ],
)
def test_wrong_metrics(mtfc: Mtfc, options: tuple[str, ...], message: str) -> None:
    found = mtfc(*TRAIN, "--steps", "4", *options)
    assert found.status == USAGE
    assert message in found.err
