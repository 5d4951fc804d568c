"""A training run that is killed at random moments: the same command goes on, and in the end has the bits of a run in one piece.

`make kill-test` kills 50 times, `make test` 4 times. `make kill-test` also kills runs in a remote folder.
"""

import json
import os
import random
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import attrs
import numpy as np
import pytest

from mtfc.driver.data.array_files import RECORD, About, newest_checkpoint, read_array
from tests import xla
from tests.command_server import Started
from tests.training.object_store import ROOT

KILLS = int(os.environ.get("KILLS", "4"))
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

OPTIONS = [
    *("train", "small.mtf", "--eval", "test.npz", "--steps", str(STEPS), "--eval-every", "7"),
    *("--save-every", "3", "--keep", "2", "--keep-best", "loss", "--seed", "1"),
]

HERE = "import sys; from mtfc.cli import main; sys.exit(main())"

IN_STORE = """
import sys
from mtfc.cli import main
from mtfc.driver.training import run_folder
from tests.training.object_store import ObjectStore, install
install()
ObjectStore.delay = 0.003
run_folder.DEAD, run_folder.PART, run_folder.PAUSE = 1.0, 1000, 0.05
sys.exit(main())
"""
"""Starts the command with an object store, in which dead runs are noticed soon, and figures are sent often."""

STORE = "shop://bucket/"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory, jax_server: Path) -> Path:
    folder = tmp_path_factory.mktemp("kill")
    (folder / "jax").symlink_to(jax_server)
    (folder / "small.mtf").write_text(MODEL)
    numbers = np.random.default_rng(0)
    for name, rows in (("data", 100), ("more", 70), ("test", 32)):
        arrays = {each: numbers.standard_normal((rows, 8), np.float32) for each in "xy"}
        np.savez(folder / f"{name}.npz", **arrays)
    return folder


def environment(folder: Path) -> dict[str, str]:
    return {
        **os.environ,
        "XLA_FLAGS": " ".join(xla.QUICK_FLAGS),
        "PYTHONPATH": str(Path(__file__).parents[2]),
        "XDG_CACHE_HOME": str(folder / "cache"),
        ROOT: str(folder),
    }


def start(folder: Path, run: str, data: str) -> Started:
    begin = IN_STORE if run.startswith(STORE) else HERE
    command = ["-c", begin, *OPTIONS, "--dir", run, "--data", data]
    return Started(folder / "jax", command, folder, environment(folder), 120)


def finish(folder: Path, run: str, data: str) -> None:
    process = start(folder, run, data)
    _, errors = process.communicate()
    assert process.returncode == 0, errors


def curve(folder: Path) -> list[dict[str, Any]]:
    """Return the numbers of each step that do not depend on the time."""
    parts = sorted(folder.glob("metrics/*")) or [folder / "metrics.jsonl"]
    lines = [line for each in parts for line in each.read_text().splitlines()]
    timed = ("seconds", "examples_per_second")
    return [{k: v for k, v in json.loads(line).items() if k not in timed} for line in lines]


def checkpoint(folder: Path) -> tuple[About, dict[str, bytes]]:
    place = newest_checkpoint(folder)
    assert place is not None
    about = attrs.evolve(About.read(place), unevaluated=None)  # it has times
    return about, {name: read_array(place, about, f"params/{name}").tobytes() for name in ("w", "v")}


def in_startup(folder: Path, draw: random.Random, running: Callable[[], bool]) -> None:
    time.sleep(draw.uniform(0, 0.5))


def in_a_step(folder: Path, draw: random.Random, running: Callable[[], bool]) -> None:
    """Wait for a new line of metrics, then for some steps more."""
    size = size_of_figures(folder)
    while running() and size_of_figures(folder) <= size:
        time.sleep(0.001)
    time.sleep(draw.uniform(0, 0.3))


def size_of_figures(folder: Path) -> int:
    return sum(each.stat().st_size for each in (*folder.glob("metrics/0*"), *folder.glob("metrics.jsonl")))


def in_a_save(folder: Path, draw: random.Random, running: Callable[[], bool]) -> None:
    """Wait for the folder of a checkpoint that is being written, or of one that is being removed."""
    pattern = draw.choice(["*tmp*", "*tmp*", "*.removed"])
    known = parts_of_saves(folder, pattern)
    while running() and not parts_of_saves(folder, pattern) - known:
        time.sleep(0.0005)
    time.sleep(draw.uniform(0, 0.03))


def parts_of_saves(folder: Path, pattern: str) -> set[Path]:
    """Return what a save leaves when it is killed, on this machine or in a store."""
    return {*(folder / "checkpoints").glob(pattern), *(folder / "checkpoints").glob("*/unfinished")}


CASES = [("data.npz", ""), *([("data.npz@1,more.npz@2", ""), ("data.npz", STORE)] if KILLS > 5 else [])]


@pytest.mark.parametrize(("data", "store"), CASES)
def test_a_killed_run_goes_on_with_the_same_bits(folder: Path, data: str, store: str) -> None:
    whole, killed = (f"{name}-{data}" for name in ("whole", "killed"))
    if not (folder / whole).exists():
        finish(folder, whole, data)
    draw, left = random.Random(0), 0
    place = folder / "bucket" / killed if store else folder / killed
    for number in range(KILLS):
        process = start(folder, store + killed, data)
        moment = (in_a_save, in_startup, in_a_step)[number % 3]
        moment(place, draw, process.is_running)
        process.send_signal(signal.SIGKILL)
        _, errors = process.communicate()
        if (
            process.returncode == 0 and number >= 0.6 * KILLS
        ):  # on a busy machine a run may end before its last kills
            break
        assert process.returncode == -signal.SIGKILL, f"the run ended before kill {number}: {errors}"
        left += len(parts_of_saves(place, "*.*"))
    assert left, "no kill has hit a save"
    finish(folder, store + killed, data)
    assert curve(place) == curve(folder / whole)
    assert [each["step"] for each in curve(place)] == list(range(1, STEPS + 1))
    assert checkpoint(place) == checkpoint(folder / whole)
    evaluations = json.loads((place / "evaluations.json").read_text())
    assert evaluations == json.loads((folder / whole / "evaluations.json").read_text())
    best = min(evaluations, key=lambda step: evaluations[step]["loss"])
    kept = {each.name for each in (place / "checkpoints").iterdir() if (each / RECORD).exists()}
    assert {str(STEPS), best} <= kept and len(
        kept
    ) <= 3  # saves come 3 steps after that from which a run goes on
    figures = "metrics" if store else "metrics.jsonl"
    expected = ["checkpoints", "evaluations.json", figures, "run.lock"]
    assert sorted(each.name for each in place.iterdir()) == expected
