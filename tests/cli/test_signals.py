"""Signals while a run does something else than a step: it waits for data, evaluates, or is in a step that takes long."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from threading import Event
from time import monotonic, sleep
from typing import Any

import pytest

from mtfc.cli import main
from mtfc.cli import train as command
from mtfc.driver.errors import INTERRUPTED, OK
from mtfc.driver.training.hosts import Peers
from mtfc.driver.training.signals import Stop, stop_by_signal

MODEL = """
dim batch = 8
dim io = 4
model small(x: [batch, io]) {
  param w: [io] = normal()
  loss = mean(square(einsum(x, w -> [batch]) - 1.0))
  return loss
}
train small { minimize loss; optimizer = adam(learning_rate = 0.1) }
"""

DATA = """
import os
import signal
import time
from pathlib import Path
import numpy as np

released = None
awaited = ()

def wait_for(*paths):
    while not all(Path(each).exists() and os.stat(each).st_size for each in paths):
        time.sleep(0.01)

def rows(count):
    for step in range(count):
        yield {"x": np.full((8, 4), step, np.float32)}

def slow():
    yield from rows(3)
    if released is not None:
        wait_for("run/metrics.jsonl")  # the first line: now the third step comes, and waits for the next batch
        os.kill(os.getpid(), signal.SIGTERM)
        released.wait(60)
    yield from rows(3)

def test():
    yield from rows(2)
    if released is not None:
        wait_for(*awaited)
        os.kill(os.getpid(), signal.SIGTERM)
        released.wait(60)
    yield from rows(2)
"""

OPTIONS = ("--dir", "run", "--save-every", "1000")


@pytest.fixture
def data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """The module of the data; `released` ends its pauses."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("JAX_COMPILATION_CACHE_DIR", "")
    monkeypatch.setattr(command, "leave", lambda status: status)
    monkeypatch.syspath_prepend(str(tmp_path))
    sys.modules.pop("slow_data", None)
    Path("model.mtf").write_text(MODEL)
    Path("slow_data.py").write_text(DATA)
    import slow_data  # type: ignore[import-not-found]

    slow_data.released = Event()
    return slow_data


def train(*options: str) -> int:
    return main(["train", "model.mtf", "--steps", "6", *options])


def figures(folder: str) -> list[dict[str, Any]]:
    timed = ("seconds", "examples_per_second")
    lines = map(json.loads, (Path(folder) / "metrics.jsonl").read_text().splitlines())
    return [{key: value for key, value in line.items() if key not in timed} for line in lines]


def saved() -> list[str]:
    return sorted(each.name for each in Path("run/checkpoints").iterdir())


@pytest.mark.parametrize(
    ("options", "step"),
    [
        (("--data", "slow_data:slow"), 3),
        (("--data", "slow_data:rows_of_six", "--eval", "slow_data:test", "--eval-every", "2"), 2),
    ],
)
def test_a_signal_ends_a_wait_for_data_and_an_evaluation(
    data: Any, capsys: pytest.CaptureFixture[str], options: tuple[str, ...], step: int
) -> None:
    """The run that goes on repeats the evaluation that was cut off: its figures are those of a run in one piece."""
    data.rows_of_six = lambda: data.rows(6)
    began = monotonic()
    assert train(*options, *OPTIONS) == INTERRUPTED
    assert monotonic() - began < 20
    assert (
        f"stopped after step {step}: the last checkpoint is run/checkpoints/{step}" in capsys.readouterr().err
    )
    assert saved() == [str(step)]
    assert [each["step"] for each in figures("run")] == list(range(1, step + 1))
    data.released.set()
    data.released = None
    assert train(*options, *OPTIONS) == OK
    assert train(*options, "--dir", "whole") == OK
    assert figures("run") == figures("whole")
    assert train(*options, *OPTIONS) == OK
    assert figures("run") == figures("whole")


class Ended(Peers):
    """Notes what would end the process."""

    def __init__(self) -> None:
        super().__init__()
        self.said: list[str] = []

    def end(self, text: str, status: int = OK) -> None:
        self.said.append(f"{text} {status}")


def test_sigterm_after_ctrl_c_has_its_time() -> None:
    """Ctrl-C leaves a step all its time, SIGTERM only that of grace; a second SIGTERM does not begin it anew."""
    ended = Ended()
    stop = Stop(5.2, ended, lambda: "the last checkpoint is 7")
    stop.request(is_short=False)
    sleep(0.4)
    assert stop.is_requested and not ended.said
    stop.request(is_short=True)
    stop.request(is_short=True)
    sleep(0.4)
    assert ended.said == [
        "the step under way takes longer than 0 s, and is not saved: the last checkpoint is 7 130"
    ]


def test_a_save_longer_than_the_time_of_grace_is_told(capfd: pytest.CaptureFixture[str]) -> None:
    """The save goes on: it ends whole, or the checkpoint before it stands."""
    ended = Ended()
    for saving in (0.5, 0.0):
        with stop_by_signal(Stop(5.2, ended, lambda: "the last checkpoint is 7")) as stop:
            stop.request(is_short=True)
            stop.answered.set()
            sleep(saving)
        said = (
            "the state is not saved after 0 s: until it is, the last checkpoint is 7"
            in capfd.readouterr().err
        )
        assert said == (saving > 0)
    sleep(0.3)
    assert not ended.said and not capfd.readouterr().err


def test_the_end_of_the_terminal_stops_a_run_unless_nohup_hides_it() -> None:
    """The time of grace that it begins ends nothing after the run."""
    ended = Ended()
    for handler, heard in ((signal.SIG_DFL, True), (signal.SIG_IGN, False)):
        before = signal.signal(signal.SIGHUP, handler)
        with stop_by_signal(Stop(5.4, ended)) as stop:
            os.kill(os.getpid(), signal.SIGHUP) if heard else None
            assert stop.requested.wait(5.0 if heard else 0.0) == heard
            assert (signal.getsignal(signal.SIGHUP) is handler) != heard
        assert signal.getsignal(signal.SIGHUP) is handler
        signal.signal(signal.SIGHUP, before)
    sleep(0.6)
    assert not ended.said


def test_sigterm_before_the_first_step(data: Any, capsys: pytest.CaptureFixture[str]) -> None:
    Path("ended.py").write_text("import os, signal\nos.kill(os.getpid(), signal.SIGTERM)\n")
    assert train("--data", "ended:batches", *OPTIONS) == INTERRUPTED
    assert capsys.readouterr().err == "mtfc: interrupted\n"
    assert not Path("run").exists()


def test_sigterm_during_imports(tmp_path: Path) -> None:
    program = """
import os, signal, sys
class Ends:
    def find_spec(self, name, *_):
        if name == "mtfc.driver.options":
            os.kill(os.getpid(), signal.SIGTERM)
sys.meta_path.insert(0, Ends())
sys.argv[1:] = ["train", "model.mtf"]
from mtfc.cli import main
sys.exit(main())
"""
    command = [sys.executable, "-c", program]
    env = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    done = subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (INTERRUPTED, "mtfc: interrupted\n")


def test_a_save_comes_before_an_evaluation(data: Any) -> None:
    data.rows_of_six = lambda: data.rows(6)
    options = ("--data", "slow_data:rows_of_six", "--eval", "slow_data:test", "--eval-every", "2")
    data.awaited = (
        "run/checkpoints/2/about/about.json",
    )  # the evaluation waits for the checkpoint of its step
    assert train(*options, "--dir", "run", "--save-every", "2") == INTERRUPTED
    assert saved() == ["2"]
    data.released.set()


LONG = """
import os, signal, sys, time
from threading import Timer
from mtfc.backends.jax.jax_program import JaxProgram
from mtfc.cli import main
once = JaxProgram.train_step
def step(self, state, batch):
    if int(state.step) == 3:
        Timer(0.2, os.kill, (os.getpid(), signal.SIGTERM)).start()
        time.sleep(60)
    return once(self, state, batch)
JaxProgram.train_step = step
sys.exit(main())
"""


def test_a_step_longer_than_the_time_of_grace_leaves_the_last_checkpoint(data: Any) -> None:
    options = (
        "--data", "slow_data:slow", "--steps", "9", "--dir", "run", "--save-every", "2", "--grace", "6",
    )  # fmt: skip
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    began = monotonic()
    ended = subprocess.run(
        [sys.executable, "-c", LONG, "train", "model.mtf", *options],
        env=environment,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert monotonic() - began < 30
    assert ended.returncode == INTERRUPTED, ended.stderr
    message = (
        "the step under way takes longer than 1 s, and is not saved: the last checkpoint is run/checkpoints/2"
    )
    assert message in ended.stderr
    assert saved() == ["2"]
