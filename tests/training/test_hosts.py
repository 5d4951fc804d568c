"""Training on several processes, which are started here and connected over the loopback."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import pytest

from mtfc.driver.errors import ENVIRONMENT, INTERRUPTED, OK, UsageError
from mtfc.driver.training.hosts import Hosts

MODEL = """
dim batch = 16
dim io = 8
dim hidden = 8
mesh grid = [rows: 2, cols: 2]
layout both on grid = { batch: rows, hidden: cols }
layout crossed on grid = { batch: cols, hidden: rows, params: { io: cols } }
model small(x: [batch, io], y: [batch, io]) {
  param w: [io, hidden] = normal(stddev = 0.5)
  param v: [hidden, io] = normal(stddev = 0.5)
  h = einsum(tanh(einsum(x, w -> [batch, hidden])), v -> [batch, io])
  loss = mean(square(h - y))
  return loss
}
train small {
  minimize loss
  optimizer = adam(learning_rate = 0.01)
}
"""

SECONDS = 60


@pytest.fixture
def files(tmp_path: Path) -> Path:
    (tmp_path / "small.mtf").write_text(MODEL)
    random = np.random.default_rng(0)
    np.savez(tmp_path / "data.npz", **{name: random.standard_normal((80, 8), np.float32) for name in "xy"})
    np.savez(tmp_path / "test.npz", **{name: random.standard_normal((32, 8), np.float32) for name in "xy"})
    return tmp_path


def command(*options: str) -> list[str]:
    return [sys.executable, "-m", "mtfc", "train", "small.mtf", "--data", "data.npz", *options]


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


class Group:
    """The processes of one training run."""

    def __init__(self, folder: Path, count: int, *options: str) -> None:
        place = ["--coordinator", f"127.0.0.1:{free_port()}", "--processes", str(count)]
        self.started = [
            subprocess.Popen(
                command(*options, *place, "--process-id", str(i)),
                cwd=folder,
                env=environment(),
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
            )
            for i in range(count)
        ]

    def ended(self) -> list[tuple[int, str, str]]:
        """Wait for all; return status, output and errors of each."""
        found = []
        for process in self.started:
            out, err = process.communicate(timeout=SECONDS)
            found.append((process.returncode, out, err))
        return found


def environment() -> dict[str, str]:
    """Return the environment without this process's virtual devices, and with quick compilation."""
    kept = {name: value for name, value in os.environ.items() if name != "XLA_FLAGS"}
    return {**kept, "PYTHONPATH": str(Path(__file__).parents[2])}


def alone(folder: Path, *options: str) -> None:
    subprocess.run(
        command(*options), cwd=folder, env=environment(), check=True, timeout=SECONDS, capture_output=True
    )


def curve(folder: Path) -> list[float]:
    lines = (folder / "metrics.jsonl").read_text().splitlines()
    records = [json.loads(line) for line in lines]
    assert [each["step"] for each in records] == list(range(1, len(records) + 1))
    return [each["loss"] for each in records]


@pytest.fixture(scope="module")
def reference(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[float]]:
    """The losses of twelve steps on one process."""
    folder = tmp_path_factory.mktemp("alone")
    (folder / "small.mtf").write_text(MODEL)
    random = np.random.default_rng(0)
    np.savez(folder / "data.npz", **{name: random.standard_normal((80, 8), np.float32) for name in "xy"})
    alone(folder, "--steps", "12", "--dir", "run")
    yield curve(folder / "run")


def wait_for_step(folder: Path, step: int) -> None:
    """Wait until a run has finished a step."""
    until = time.monotonic() + SECONDS
    path = folder / "metrics.jsonl"
    while not path.exists() or len(path.read_text().splitlines()) < step:
        assert time.monotonic() < until
        time.sleep(0.02)


@pytest.mark.parametrize(("count", "layout"), [(2, "crossed"), (4, "both")])
def test_losses_are_those_of_one_process(
    files: Path, reference: Sequence[float], count: int, layout: str
) -> None:
    options = ("--steps", "6", "--dir", "run", "--layout", layout, "--save-every", "3", "--format", "json")
    evaluation = ("--eval", "test.npz")
    ended = Group(files, count, *options, *evaluation).ended()
    assert [status for status, _, _ in ended] == [OK] * count, ended
    np.testing.assert_allclose(curve(files / "run"), reference[:6], rtol=1e-5)
    assert json.loads(ended[0][1])["eval"]["loss"] > 0
    assert [out for _, out, _ in ended[1:]] == [""] * (count - 1)  # process 0 alone prints
    alone(
        files, "--steps", "12", "--dir", "run", "--layout", "both"
    )  # one process goes on where several stopped
    np.testing.assert_allclose(curve(files / "run"), reference, rtol=1e-5)


def test_a_killed_process_ends_the_others_and_a_restart_resumes(
    files: Path, reference: Sequence[float]
) -> None:
    options = ("--dir", "run", "--layout", "both", "--save-every", "2")
    group = Group(files, 2, "--steps", "100000", *options)
    wait_for_step(files / "run", 5)
    group.started[1].kill()
    began = time.monotonic()
    (status, _, err), _ = group.ended()
    assert time.monotonic() - began < 30
    assert status == ENVIRONMENT
    assert f"process 1 of 2 (pid {group.started[1].pid} on {socket.gethostname()}) has ended" in err
    reached = len(curve(files / "run"))
    if reached < 12:
        ended = Group(files, 2, "--steps", "12", *options).ended()
        assert [status for status, _, _ in ended] == [OK, OK], ended
        assert "going on from step" in ended[0][2]
    np.testing.assert_allclose(curve(files / "run")[:12], reference, rtol=1e-5)


def test_an_interrupt_of_one_stops_all_after_the_same_step(files: Path) -> None:
    group = Group(
        files, 2, "--steps", "100000", "--dir", "run", "--layout", "both", "--save-every", "1000000"
    )
    wait_for_step(files / "run", 3)
    group.started[1].send_signal(signal.SIGINT)  # sends itself SIGTERM, as clusters do
    (first, _, err), (second, _, _) = group.ended()
    assert (first, second) == (INTERRUPTED, INTERRUPTED), err
    (saved,) = (int(each.name) for each in (files / "run" / "checkpoints").iterdir())
    assert f"stopped after step {saved}" in err
    assert len(curve(files / "run")) == saved


def test_the_place_of_a_process_is_checked() -> None:
    for hosts, message in (
        (Hosts("a:1", 2), "go together"),
        (Hosts("a:1", 2, 2), "ids are 0 to 1"),
        (Hosts(None, 2, detect=True), "leave out"),
    ):
        with pytest.raises(UsageError, match=message):
            hosts.check()
    with pytest.raises(UsageError, match="the mesh has 4 processors, which 3 processes cannot share equally"):
        Hosts("a:1", 3, 0).join(4)
