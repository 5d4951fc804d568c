"""A training run that is killed at random moments: the same command goes on, and in the end has the bits of a run in one piece.

`make kill-test` kills 50 times, `make test` 5 times.
"""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mtfc.driver.data.checkpoint_files import About, newest_checkpoint, read_parameter

KILLS = int(os.environ.get("KILLS", "5"))
STEPS = 40 + 12 * KILLS

MODEL = """
import nn
dim batch = 16
dim io = 8
dim hidden = 32
mesh line = [all: 4]
layout both on line = { batch: all, params: { hidden: all } }
model small(x: [batch, io], y: [batch, io]) {
  param w: [io, hidden] = normal(stddev = 0.5)
  param v: [hidden, io] = normal(stddev = 0.5)
  h = nn.dropout(tanh(einsum(x, w -> [batch, hidden])), rate = 0.2)
  loss = mean(square(einsum(h, v -> [batch, io]) - y))
  return loss
}
train small {
  minimize loss
  optimizer = adam(learning_rate = 0.01)
}
"""

COMMAND = [
    *(sys.executable, "-m", "mtfc", "train", "small.mtf", "--eval", "test.npz"),
    *("--steps", str(STEPS), "--eval-every", "7", "--save-every", "3", "--keep", "2", "--seed", "1", "--dir"),
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("kill")
    (folder / "small.mtf").write_text(MODEL)
    numbers = np.random.default_rng(0)
    for name, rows in (("data", 100), ("more", 70), ("test", 32)):
        arrays = {each: numbers.standard_normal((rows, 8), np.float32) for each in "xy"}
        np.savez(folder / f"{name}.npz", **arrays)
    return folder


DATA = ["data.npz", *(["data.npz@1,more.npz@2"] if KILLS > 5 else [])]


def start(folder: Path, run: str, data: str) -> subprocess.Popen[str]:
    """Start the run with compiled functions that all the runs share, also the functions that compile quickly."""
    environment = {name: value for name, value in os.environ.items() if name != "XLA_FLAGS"}
    environment |= {
        "PYTHONPATH": str(Path(__file__).parents[2]),
        "JAX_COMPILATION_CACHE_DIR": str(folder / "compiled"),
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
    }
    pipe = subprocess.PIPE
    return subprocess.Popen(
        [*COMMAND, run, "--data", data], cwd=folder, env=environment, stdout=pipe, stderr=pipe, text=True
    )


def finish(folder: Path, run: str, data: str) -> None:
    process = start(folder, run, data)
    _, errors = process.communicate(timeout=120)
    assert process.returncode == 0, errors


def curve(folder: Path) -> list[dict[str, Any]]:
    """Return the numbers of each step that do not depend on the time."""
    lines = (folder / "metrics.jsonl").read_text().splitlines()
    timed = ("seconds", "examples_per_second")
    return [{k: v for k, v in json.loads(line).items() if k not in timed} for line in lines]


def checkpoint(folder: Path) -> tuple[About, dict[str, bytes]]:
    place = newest_checkpoint(folder)
    assert place is not None
    about = About.read(place)
    return about, {name: read_parameter(place, about, name).tobytes() for name in ("w", "v")}


def in_startup(folder: Path, draw: random.Random, running: Callable[[], bool]) -> None:
    time.sleep(draw.uniform(0, 3))


def in_a_step(folder: Path, draw: random.Random, running: Callable[[], bool]) -> None:
    """Wait for a new line of metrics, then for some steps more."""
    metrics = folder / "metrics.jsonl"
    size = metrics.stat().st_size if metrics.exists() else 0
    while running() and not (metrics.exists() and metrics.stat().st_size > size):
        time.sleep(0.001)
    time.sleep(draw.uniform(0, 0.3))


def in_a_save(folder: Path, draw: random.Random, running: Callable[[], bool]) -> None:
    """Wait for the folder of a checkpoint that is being written, or of one that is being removed."""
    pattern = draw.choice(["*tmp*", "*tmp*", "*.removed"])
    known = set((folder / "checkpoints").glob(pattern))
    while running() and not set((folder / "checkpoints").glob(pattern)) - known:
        time.sleep(0.0005)
    time.sleep(draw.uniform(0, 0.03))


@pytest.mark.parametrize("data", DATA)
def test_a_killed_run_goes_on_with_the_same_bits(folder: Path, data: str) -> None:
    whole, killed = (f"{name} {data}" for name in ("whole", "killed"))
    finish(folder, whole, data)
    draw, left = random.Random(0), 0
    for number in range(KILLS):
        process = start(folder, killed, data)
        moment = (in_a_save, in_startup, in_a_step)[number % 3]
        moment(folder / killed, draw, lambda process=process: process.poll() is None)  # type: ignore[misc]
        process.send_signal(signal.SIGKILL)
        _, errors = process.communicate(timeout=60)
        if (
            process.returncode == 0 and number >= 0.6 * KILLS
        ):  # on a busy machine a run may end before its last kills
            break
        assert process.returncode == -signal.SIGKILL, f"the run ended before kill {number}: {errors}"
        left += len(list((folder / killed / "checkpoints").glob("*.*")))
    assert left, "no kill has hit a save"
    finish(folder, killed, data)
    assert curve(folder / killed) == curve(folder / whole)
    assert [each["step"] for each in curve(folder / killed)] == list(range(1, STEPS + 1))
    assert checkpoint(folder / killed) == checkpoint(folder / whole)
    kept = sorted(each.name for each in (folder / killed / "checkpoints").iterdir())
    assert kept == sorted([str(STEPS), str(STEPS - 1 - (STEPS - 1) % 3)])
    assert sorted(each.name for each in (folder / killed).iterdir()) == [
        "checkpoints",
        "metrics.jsonl",
        "run.lock",
    ]
