"""`--debug-nans`: training that ends with a number which is not finite shows the line that made it."""

import json
from pathlib import Path

import numpy as np
import pytest

from tests.cli.conftest import Mtfc

DIVERGING = """
dim batch = 4
dim io = 8
mesh line = [data: 2]
layout split on line = { batch: data, params: { io: data } }
model net(x: [batch, io]) {
  param w: [io] = normal(stddev = 0.5)
  y = einsum(x, w -> [batch])
  odds = exp(y)
  loss = mean(square(odds - 1.0))
  return loss
}
train net { minimize loss; optimizer = sgd(learning_rate = 1000.0) }
"""

INFINITE_SLOPE = """
dim batch = 4
dim io = 8
mesh line = [data: 2]
layout split on line = { batch: data }
model net(x: [batch, io]) {
  param w: [io] = zeros()
  y = sum(x * w -> [batch])
  distance = sqrt(square(y))
  loss = mean(distance + y)
  return loss
}
train net { minimize loss; optimizer = sgd(learning_rate = 0.1) }
"""

CASES = [("run", "--train", "--backend", "numpy"), ("run", "--train", "--backend", "jax"), ("train",)]


@pytest.mark.parametrize("command", CASES)
def test_line_of_the_first_infinite_number(mtfc: Mtfc, folder: Path, command: tuple[str, ...]) -> None:
    (folder / "net.mtf").write_text(DIVERGING)
    done = mtfc(command[0], "net.mtf", *command[1:], "--steps", "30", "--debug-nans", "--layout", "split")
    assert done.status == 1
    assert "of 4 numbers that `exp` makes are infinite, in the forward pass of step" in done.err
    assert "9 |   odds = exp(y)\n  |          ^^^^^^" in done.err
    assert "help: y: f32[batch] is from " in done.err


@pytest.mark.parametrize("command", CASES)
@pytest.mark.parametrize("steps", ["1", "30"])
def test_step_before_the_loss_is_the_cause(
    mtfc: Mtfc, folder: Path, command: tuple[str, ...], steps: str
) -> None:
    """The first loss is finite, and its gradient is not; so the second loss is not finite, if there is one."""
    (folder / "net.mtf").write_text(INFINITE_SLOPE)
    done = mtfc(command[0], "net.mtf", *command[1:], "--steps", steps, "--debug-nans")
    assert done.status == 1
    assert "in the backward pass of step 1" in done.err
    assert "distance = sqrt(square(y))" in done.err


def test_without_the_option_nothing_is_searched(mtfc: Mtfc, folder: Path) -> None:
    (folder / "net.mtf").write_text(DIVERGING)
    done = mtfc("run", "net.mtf", "--train", "--steps", "30")
    assert done.status == 1 and "E701" not in done.err


def test_bad_data_of_a_smaller_last_batch(mtfc: Mtfc, folder: Path) -> None:
    (folder / "net.mtf").write_text(DIVERGING.replace("1000.0", "0.001"))
    x = np.ones((10, 8), np.float32)
    x[9, 3] = np.nan
    np.savez(folder / "data.npz", x=x)
    done = mtfc("run", "net.mtf", "--train", "--data", "data.npz", "--debug-nans", "--save", "out.npz")
    assert done.status == 1
    assert "1 of 16 numbers in input `x` are NaN before step 3" in done.err
    assert np.load(folder / "out.npz")["loss"].shape == (2,)


def test_json(mtfc: Mtfc, folder: Path) -> None:
    (folder / "net.mtf").write_text(DIVERGING)
    done = mtfc("run", "net.mtf", "--train", "--steps", "30", "--debug-nans", "--format", "json")
    (found,) = json.loads(done.err[done.err.index("[") :])
    assert (found["code"], found["line"]) == ("E701", 9)
    assert not json.loads(done.out)["steps"][-1]["loss"]


def test_option_without_training(mtfc: Mtfc) -> None:
    done = mtfc("run", "model.mtf", "--debug-nans")
    assert done.status == 2 and "--debug-nans goes with --train" in done.err
