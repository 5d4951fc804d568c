"""`mtfc train`: lengths, data, evaluation, and where figures go. Checkpoints and processes are tested in `tests/training/`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import orbax.checkpoint as ocp
import pytest

import mtfc as api
from tests.cli.conftest import Mtfc

EXAMPLES = 24
"""Examples in the data: six batches of four."""


@pytest.fixture(autouse=True)
def data(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Write data and evaluation data; leave JAX's cache of compiled programs as it is."""
    monkeypatch.setenv("JAX_COMPILATION_CACHE_DIR", "")
    for name, seed in (("data", 0), ("test", 1)):
        random = np.random.default_rng(seed)
        labels = random.integers(0, 3, EXAMPLES).astype(np.int32)
        np.savez(folder / f"{name}.npz", x=random.standard_normal((EXAMPLES, 6), np.float32), labels=labels)


def records(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_the_length_is_in_steps_or_epochs(mtfc: Mtfc, folder: Path) -> None:
    for options, steps in (((), 6), (("--epochs", "2"), 12), (("--steps", "4"), 4)):
        found = mtfc("train", "model.mtf", "--data", "data.npz", "--log", "log.jsonl", *options)
        assert found.status == 0, found.err
        assert [each["step"] for each in records(folder / "log.jsonl")] == list(range(1, steps + 1))
        (folder / "log.jsonl").unlink()
        assert f"1 to {steps}" in found.out


def test_the_figures_of_a_step(mtfc: Mtfc, folder: Path) -> None:
    options = ("--data", "data.npz", "--eval", "test.npz", "--eval-every", "2", "--layout", "data")
    found = mtfc(
        *("train", "model.mtf", *options, "--steps", "5", "--log", "log.jsonl"),
        *("--target", "h100", "--set", "report=grad_norm", "--format", "json"),
    )
    assert found.status == 0, found.err
    assert "24 examples, 6 steps an epoch" in found.err
    summary, steps = found.json, records(folder / "log.jsonl")
    for step in steps:
        assert step["loss"] > 0
        assert step["grad_norm"] > 0
        assert step["examples_per_second"] == pytest.approx(4 / step["seconds"])
        assert step["predicted_share"] == pytest.approx(summary["predicted_step_seconds"] / step["seconds"])
    assert [each["step"] for each in steps if "eval/loss" in each] == [2, 4, 5]
    assert summary["eval"]["loss"] == steps[-1]["eval/loss"]
    assert (summary["first_step"], summary["last_step"], summary["loss"]) == (1, 5, steps[-1]["loss"])
    assert summary["layout"] == "data"


def test_the_evaluation_is_the_mean_over_all_batches(mtfc: Mtfc, folder: Path) -> None:
    found = mtfc(
        "train",
        "model.mtf",
        "--data",
        "data.npz",
        "--steps",
        "3",
        "--eval",
        "test.npz",
        "--dir",
        "run",
        "--format",
        "json",
    )
    p = api.compile("model.mtf", layout="both")
    state = p.init(0)
    steps = {each["step"]: each for each in records(folder / "run" / "metrics.jsonl")}
    assert set(steps) == {1, 2, 3}
    with ocp.StandardCheckpointer() as checkpointer:
        state = checkpointer.restore(
            folder.resolve() / "run" / "checkpoints" / "3" / "state", p.abstract_state
        )
    arrays = dict(np.load(folder / "test.npz"))
    losses = [
        p.forward(state.params, {name: x[i : i + 4] for name, x in arrays.items()})["loss"]
        for i in range(0, EXAMPLES, 4)
    ]
    assert found.json["eval"]["loss"] == pytest.approx(float(np.mean(losses)), rel=1e-5)


def test_averages_are_evaluated_beside_the_parameters(mtfc: Mtfc) -> None:
    average, result = ("--set", "average=0.9"), ("--dir", "run", "--format", "json")
    found = mtfc("train", "model.mtf", "--data", "data.npz", "--eval", "test.npz", *average, *result).json
    assert found["eval"]["averaged_loss"] != found["eval"]["loss"]
    for name, options in (("loss", ()), ("averaged_loss", ("--averages",))):
        run = mtfc(
            "run",
            "model.mtf",
            *average,
            "--params",
            "run",
            "--data",
            "test.npz",
            "--format",
            "json",
            *options,
        )
        assert run.json["outputs"]["loss"]["mean"] == pytest.approx(found["eval"][name], rel=1e-5)


def test_losses_are_the_same_under_every_layout(mtfc: Mtfc, folder: Path) -> None:
    curves = []
    for layout in ("replicated", "data", "both"):
        found = mtfc(
            "train", "model.mtf", "--data", "data.npz", "--layout", layout, "--log", f"{layout}.jsonl"
        )
        assert found.status == 0, found.err
        curves.append([each["loss"] for each in records(folder / f"{layout}.jsonl")])
    np.testing.assert_allclose(curves[1:], [curves[0]] * 2, rtol=1e-5)


def test_tensorboard_gets_every_figure(mtfc: Mtfc, folder: Path) -> None:
    from tensorboardX.event_file_writer import EventFileWriter  # the package is there
    from tensorboardX.proto.event_pb2 import Event

    assert EventFileWriter
    assert mtfc("train", "model.mtf", "--data", "data.npz", "--steps", "2", "--tensorboard", "tb").status == 0
    (file,) = (folder / "tb").iterdir()
    content, events, at = file.read_bytes(), [], 0
    while at < len(content):
        size = int.from_bytes(content[at : at + 8], "little")
        events.append(Event.FromString(content[at + 12 : at + 12 + size]))
        at += size + 16
    points = {(event.step, value.tag) for event in events for value in event.summary.value}
    assert points == {(step, tag) for step in (1, 2) for tag in ("loss", "seconds", "examples_per_second")}


def test_a_profile_is_written(mtfc: Mtfc, folder: Path) -> None:
    found = mtfc("train", "model.mtf", "--data", "data.npz", "--steps", "10", "--profile", "trace")
    assert found.status == 0
    assert "the profile of 5 steps is in trace" in found.err
    assert list((folder / "trace").rglob("*.xplane.pb"))
    short = mtfc("train", "model.mtf", "--data", "data.npz", "--steps", "2", "--profile", "trace")
    assert "begins after step 3" in short.err


def test_micro_batches_and_given_parameters(mtfc: Mtfc, folder: Path) -> None:
    np.savez(folder / "params.npz", w=np.zeros((6, 3), np.float32), bias=np.ones(3, np.float32))
    found = mtfc(
        *("train", "model.mtf", "--data", "data.npz", "--set", "accumulate=3", "--params", "params.npz"),
        *("--log", "log.jsonl", "--seed", "5"),
    )
    assert found.status == 0, found.err
    steps = records(folder / "log.jsonl")
    assert len(steps) == 2  # of six batches
    assert steps[0]["loss"] == pytest.approx(2 / 3)  # y = 1 against one 1 and two 0


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--steps", "2", "--epochs", "2"), "--steps and --epochs both say how long to train"),
        (("--epochs", "2"), "give --data, or --steps"),
        ((), "say with --steps how long to train"),
        (("--eval-every", "2", "--steps", "2"), "goes with --eval"),
        (("--save-every", "2", "--steps", "2"), "goes with --dir"),
        (("--save-every", "2", "--save-minutes", "2", "--dir", "run"), "both say when to save"),
        (("--steps", "0"), "expected a number from 1 on"),
        (("--data", "data.npz", "--log", "data.npz/log.jsonl"), "cannot write data.npz/log.jsonl"),
        (("--processes", "2"), "go together"),
    ],
)
def test_wrong_options_are_refused(mtfc: Mtfc, options: tuple[str, ...], message: str) -> None:
    found = mtfc("train", "model.mtf", *options)
    assert found.status == 2, found
    assert message in found.err
    assert "Traceback" not in found.err


def test_a_model_without_a_train_block_is_refused(mtfc: Mtfc, folder: Path) -> None:
    text = (folder / "model.mtf").read_text()
    (folder / "model.mtf").write_text(text.partition("train small")[0])
    found = mtfc("train", "model.mtf", "--steps", "2")
    assert (found.status, found.out) == (2, "")
    assert "the file has no `train small` block" in found.err


def test_an_error_of_the_data_loses_no_step(
    mtfc: Mtfc, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (folder / "short_data.py").write_text(
        "import numpy as np\n"
        "def batches():\n"
        "    arrays = dict(np.load('data.npz'))\n"
        "    for i in range(0, 12, 4):\n"
        "        yield {name: x[i : i + 4] for name, x in arrays.items()}\n"
        "    raise OSError('the disk has gone')\n"
    )
    monkeypatch.syspath_prepend(str(folder))
    found = mtfc("train", "model.mtf", "--data", "short_data:batches", "--steps", "9", "--dir", "run")
    assert found.status == 2
    assert "the disk has gone" in found.err
    assert "after step 3: the last checkpoint is run/checkpoints/3" in found.err
    assert [each["step"] for each in records(folder / "run" / "metrics.jsonl")] == [1, 2, 3]
