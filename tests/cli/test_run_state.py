"""`mtfc run` on models with state: files of parameters hold it, and `forward` reads it."""

from pathlib import Path

import numpy as np
import pytest

from tests.cli.conftest import Mtfc
from tests.harness import SINGLE
from tests.test_model_state import NORMALIZED, ByHand, drawn


@pytest.mark.parametrize("layout", ["both", "fsdp"])
def test_saved_parameters_hold_the_state_that_forward_reads(mtfc: Mtfc, folder: Path, layout: str) -> None:
    (folder / "m.mtf").write_text(NORMALIZED.replace("SETTINGS", ""))
    np.savez("train.npz", x=np.concatenate([batch["x"] for batch in drawn(5, 8, 8)]))
    options = ["--layout", layout, "--backend", "numpy"]
    assert mtfc("run", "m.mtf", "--train", "--data", "train.npz", "--save", "w.npz", *options).status == 0
    by_hand = ByHand()
    for batch in drawn(5, 8, 8):
        by_hand.step(batch["x"])
    np.savez("new.npz", **drawn(1, 8, 8)[0])
    assert (
        mtfc("run", "m.mtf", "--params", "w.npz", "--data", "new.npz", "--save", "y.npz", *options).status
        == 0
    )
    with np.load("w.npz") as saved, np.load("y.npz") as outputs, np.load("new.npz") as new:
        SINGLE.check({name: saved[name] for name in by_hand.arrays}, dict(by_hand.arrays), layout)
        np.testing.assert_allclose(outputs["y"], by_hand.forward(new["x"]), rtol=1e-4, atol=1e-5)


def test_saved_averages_take_the_place_of_parameters(mtfc: Mtfc, folder: Path) -> None:
    text = NORMALIZED.replace("SETTINGS", "average = 0.75")
    (folder / "m.mtf").write_text(text)
    np.savez("train.npz", x=np.concatenate([batch["x"] for batch in drawn(5, 8, 8)]))
    np.savez("new.npz", **drawn(1, 8, 8)[0])
    assert mtfc("run", "m.mtf", "--train", "--data", "train.npz", "--save", "w.npz").status == 0
    by_hand, average, steps = ByHand(), ByHand(), 0.0
    for batch in drawn(5, 8, 8):
        by_hand.step(batch["x"])
        steps = 1 + 0.75 * steps
        average.scale = average.scale + (by_hand.scale - average.scale) / steps
        average.bias = average.bias + (by_hand.bias - average.bias) / steps
    average.mean, average.variance = by_hand.mean, by_hand.variance
    for options, expected in (([], by_hand), (["--averages"], average)):
        command = ("run", "m.mtf", "--params", "w.npz", "--data", "new.npz", "--save", "y.npz", *options)
        assert mtfc(*command).status == 0
        with np.load("y.npz") as outputs, np.load("new.npz") as new:
            np.testing.assert_allclose(outputs["y"], expected.forward(new["x"]), rtol=1e-4, atol=1e-5)


def test_averages_of_a_checkpoint_are_run_and_exported(mtfc: Mtfc, folder: Path) -> None:
    (folder / "m.mtf").write_text(NORMALIZED.replace("SETTINGS", "average = 0.75"))
    np.savez("train.npz", **drawn(1, 8, 8)[0])
    command = ("m.mtf", "--data", "train.npz", "--layout", "both", "--seed", "1")
    options = ("--steps", "3", "--backend", "jax")
    assert mtfc("run", *command, "--train", "--save", "w.npz", *options).status == 0
    assert mtfc("train", *command, "--steps", "3", "--dir", "run").status == 0
    for place in ("w.npz", "run"):
        assert mtfc("export", "m.mtf", "--params", place, "-o", f"{place}.out.npz").status == 0
        assert (
            mtfc("export", "m.mtf", "--params", place, "-o", f"{place}.averages.npz", "--averages").status
            == 0
        )
    for kind in ("out", "averages"):
        with np.load(f"w.npz.{kind}.npz") as ours, np.load(f"run.{kind}.npz") as theirs:
            SINGLE.check(dict(theirs), dict(ours), kind)
    with np.load("w.npz") as saved, np.load("run.averages.npz") as averages:
        name = "tracked_batch_norm.scale"
        np.testing.assert_allclose(averages[name], saved[f"{name}.average"], rtol=1e-5)
        assert not np.allclose(saved[name], averages[name], rtol=1e-4)
        name = "tracked_batch_norm.mean"
        np.testing.assert_allclose(averages[name], saved[name], rtol=1e-5, atol=1e-7)


def test_averages_need_a_file_that_has_some(mtfc: Mtfc, folder: Path) -> None:
    assert mtfc("run", "model.mtf", "--train", "--save", "w.npz").status == 0
    found = mtfc("run", "model.mtf", "--params", "w.npz", "--averages")
    assert (found.status, "w.npz has no averages" in found.err) == (2, True)
    found = mtfc("run", "model.mtf", "--averages")
    assert (found.status, "--averages goes with --params" in found.err) == (2, True)
