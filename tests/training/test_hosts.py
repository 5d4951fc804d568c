"""Training on several processes, which are started here and connected over the loopback."""

import json
import os
import signal
import socket
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from mtfc.driver.errors import ENVIRONMENT, INTERRUPTED, OK, USAGE, UsageError
from mtfc.driver.training.hosts import Hosts, absent_processes
from tests import xla
from tests.command_server import Started
from tests.training.object_store import ROOT

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


def write_files(folder: Path, jax_server: Path) -> Path:
    """Write the model, data, and a link to the server."""
    (folder / "small.mtf").write_text(MODEL)
    random = np.random.default_rng(0)
    for name, rows in (("data", 80), ("test", 32)):
        np.savez(folder / f"{name}.npz", **{x: random.standard_normal((rows, 8), np.float32) for x in "xy"})
    (folder / "server").symlink_to(jax_server)
    return folder


@pytest.fixture
def files(tmp_path: Path, jax_server: Path) -> Path:
    return write_files(tmp_path, jax_server)


SOON = """
import sys
from mtfc.cli import main
from mtfc.driver.training import hosts
hosts.BEAT, hosts.SILENCE = 0.5, 4
STORE
sys.exit(main())
"""
"""Starts the command with shorter times, in which silent processes are found."""

STORE = """
from mtfc.driver.training import run_folder
from tests.training.object_store import install
install()
run_folder.DEAD, run_folder.PAUSE = 1.0, 0.05
"""
"""Lets the command reach an object store."""


def start(folder: Path, *options: str, word: str = "train", begin: str = SOON) -> Started:
    begin = begin.replace("STORE", STORE if any("shop://" in each for each in options) else "")
    command = ["-c", begin, word, "small.mtf", "--data", "data.npz", *options]
    return Started(folder / "server", command, folder, environment(), SECONDS)


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


class Group:
    """The processes of one training run."""

    def __init__(
        self,
        folder: Path,
        count: int,
        *options: str,
        last: Sequence[str] = (),
        word: str = "train",
        begin: str = SOON,
    ) -> None:
        """Start them. last: options of the last process alone. word: the command. begin: the program that runs it."""
        place = ["--coordinator", f"127.0.0.1:{free_port()}", "--processes", str(count)]
        own = [("--process-id", str(i), *(last if i == count - 1 else ())) for i in range(count)]
        self.started = [start(folder, *options, *place, *each, word=word, begin=begin) for each in own]

    def ended(self) -> list[tuple[int, str, str]]:
        """Wait for all; return status, output and errors of each."""
        found = []
        for process in self.started:
            out, err = process.communicate()
            assert "Traceback" not in err and "stack trace" not in err, err
            found.append((process.returncode, out, err))
        return found

    def survivors(self, lost: int) -> list[str]:
        """Return what the others wrote after one has been lost: all end with status 3 within a minute, without C++."""
        began = time.monotonic()
        others = [each for i, each in enumerate(self.started) if i != lost]
        errors = [each.communicate()[1] for each in others]
        assert time.monotonic() - began < 30
        self.started[lost].kill()
        assert [each.returncode for each in others] == [ENVIRONMENT] * len(others), errors
        for each in errors:
            assert "Traceback" not in each and "stack trace" not in each and "absl" not in each
        return errors

    def name(self, index: int) -> str:
        return f"process {index} of {len(self.started)} (pid {self.started[index].pid} on {socket.gethostname()})"


def environment() -> dict[str, str]:
    """Return the environment without this process's virtual devices, and with quick compilation."""
    own = {"XLA_FLAGS": " ".join(xla.QUICK_FLAGS), "PYTHONPATH": str(Path(__file__).parents[2])}
    return {**os.environ, **own}


slow = pytest.mark.skipif("KILLS" not in os.environ, reason="make kill-test")


def alone(folder: Path, *options: str, word: str = "train") -> str:
    """Run one process; return its output."""
    process = start(folder, *options, word=word)
    out, err = process.communicate()
    assert process.returncode == OK, err
    return out


def curve(folder: Path) -> list[float]:
    lines = (folder / "metrics.jsonl").read_text().splitlines()
    records = [json.loads(line) for line in lines]
    assert [each["step"] for each in records] == list(range(1, len(records) + 1))
    return [each["loss"] for each in records]


@pytest.fixture(scope="module")
def reference(tmp_path_factory: pytest.TempPathFactory, jax_server: Path) -> list[float]:
    """The losses of twelve steps on one process."""
    folder = write_files(tmp_path_factory.mktemp("alone"), jax_server)
    alone(folder, "--steps", "12", "--dir", "run")
    return curve(folder / "run")


def wait_for_step(folder: Path, step: int) -> None:
    """Wait until a run has finished a step."""
    until = time.monotonic() + SECONDS
    path = folder / "metrics.jsonl"
    while not path.exists() or len(path.read_text().splitlines()) < step:
        assert time.monotonic() < until
        time.sleep(0.02)


def test_losses_are_those_of_one_process(files: Path, reference: Sequence[float]) -> None:
    options = ("--steps", "6", "--dir", "run", "--layout", "crossed", "--save-every", "3", "--format", "json")
    evaluation = ("--eval", "test.npz")
    ended = Group(files, 4, *options, *evaluation).ended()
    assert [status for status, _, _ in ended] == [OK] * 4, ended
    np.testing.assert_allclose(curve(files / "run"), reference[:6], rtol=1e-5)
    assert json.loads(ended[0][1])["eval"]["loss"] > 0
    assert [out for _, out, _ in ended[1:]] == [""] * 3  # process 0 alone prints
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
    assert f"{group.name(1)} has ended" in err
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


@slow
def test_several_processes_send_their_shards_to_an_object_store(
    files: Path, reference: Sequence[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(ROOT, str(files))
    monkeypatch.setenv("XDG_CACHE_HOME", str(files / "cache"))
    options = ("--dir", "shop://bucket/run", "--layout", "crossed", "--save-every", "2")
    group = Group(files, 2, "--steps", "100000", *options)
    store = files / "bucket" / "run"
    until = time.monotonic() + SECONDS
    while not list(store.glob("checkpoints/6/about/about.json")):
        assert time.monotonic() < until
        time.sleep(0.02)
    group.started[1].kill()
    (status, _, err), _ = group.ended()
    assert status == ENVIRONMENT and f"{group.name(1)} has ended" in err
    reached = max(int(each.parent.name) for each in store.glob("checkpoints/*/about"))
    ended = Group(files, 2, "--steps", str(reached + 4), *options).ended()
    assert [status for status, _, _ in ended] == [OK, OK], ended
    assert "going on from step" in ended[0][2]
    alone(files, "--steps", str(reached + 6), *options)
    alone(files, "--steps", str(reached + 6), "--dir", "here", "--layout", "crossed")
    parts = [json.loads(line) for each in sorted(store.glob("metrics/*")) for line in each.open()]
    np.testing.assert_allclose([each["loss"] for each in parts], curve(files / "here"), rtol=1e-4)
    assert not list(store.glob("checkpoints/*/unfinished"))


@slow
def test_sigterm_ends_the_compilation_of_an_evaluation(files: Path) -> None:
    """One of two processes is still compiling: both save the step before, and neither evaluates."""
    long = SOON.replace(
        "sys.exit",
        "import time\nfrom pathlib import Path\nfrom mtfc.backends.jax.jax_program import JaxProgram\n"
        "def slow(_):\n    Path('compiling').touch()\n    time.sleep('1' == sys.argv[-1] and 60)\n"
        "JaxProgram.compile_forward = slow\nsys.exit",
    )
    options = ("--steps", "9", "--dir", "run", "--layout", "both", "--eval", "test.npz", "--eval-every", "2")
    group = Group(files, 2, *options, "--save-every", "50", begin=long)
    until = time.monotonic() + SECONDS
    while not (files / "compiling").exists():
        assert time.monotonic() < until
        time.sleep(0.02)
    time.sleep(0.5)
    group.started[0].send_signal(signal.SIGTERM)
    began = time.monotonic()
    ended = group.ended()
    assert time.monotonic() - began < 20
    assert [status for status, _, _ in ended] == [INTERRUPTED, INTERRUPTED], ended
    assert [each.name for each in (files / "run" / "checkpoints").iterdir()] == ["2"]


@slow
def test_several_processes_evaluate(files: Path) -> None:
    """The last batch is smaller, and every row counts."""
    random = np.random.default_rng(1)
    np.savez(files / "rows.npz", **{name: random.standard_normal((42, 8), np.float32) for name in "xy"})
    alone(files, "--steps", "2", "--dir", "run")
    options = ["--params", "run", "--data", "rows.npz", "--format", "json", "--layout", "crossed"]
    one = alone(files, *options, word="eval")
    (status, out, err), (other, nothing, _) = Group(files, 2, *options, word="eval").ended()
    assert (status, other, nothing) == (OK, OK, ""), err
    first, second = (json.loads(each)["eval"]["loss"] for each in (one, out))
    np.testing.assert_allclose(second, first, rtol=1e-6)
    for status, _, err in Group(files, 2, *options, word="eval", last=("--batches", "1")).ended():
        assert status == USAGE and "--batches: nothing on process 0; 1 on process 1" in err


@slow
def test_several_processes_start_warm(files: Path) -> None:
    alone(files, "--steps", "3", "--dir", "run")
    model = (files / "small.mtf").read_text().replace("  h = ", "  param b: [io] = zeros()\n  h = ")
    (files / "small.mtf").write_text(model.replace("[batch, io])\n  loss", "[batch, io]) + b\n  loss"))
    options = ("--steps", "6", "--warm-start", "run")
    (status, _, err), (other, _, _) = Group(files, 2, *options, "--dir", "two", "--layout", "crossed").ended()
    assert (status, other) == (OK, OK), err
    assert "warm start from step 3, run/checkpoints/3" in err and "parameters that are drawn: b" in err
    alone(files, *options, "--dir", "one")
    first, second = (
        [json.loads(line) for line in (files / name / "metrics.jsonl").open()] for name in ("one", "two")
    )
    assert [each["step"] for each in second] == [4, 5, 6] == [each["step"] for each in first]
    np.testing.assert_allclose([each["loss"] for each in second], [each["loss"] for each in first], rtol=1e-5)


LOST = [("SIGSTOP", 2, 0), ("SIGKILL", 2, 0)]
MORE = [("SIGSTOP", 4, 2)] if "KILLS" in os.environ else []
"""A frozen process of four takes 20 s: `make kill-test`."""


@pytest.mark.parametrize(("number", "count", "lost"), LOST + MORE)
def test_a_lost_process_ends_the_others_with_its_name(
    files: Path, number: str, count: int, lost: int
) -> None:
    group = Group(files, count, "--steps", "100000", "--dir", "run", "--layout", "both", "--save-every", "50")
    wait_for_step(files / "run", 3)
    group.started[lost].send_signal(getattr(signal, number))
    reason = "has ended" if number == "SIGKILL" else "has not answered for 4 s"
    for errors in group.survivors(lost):
        assert f"{group.name(lost)} {reason}: the others end, too" in errors


def test_processes_agree_before_the_first_step(files: Path) -> None:
    """A seed that differs, and a shard that one process lacks. One evaluates: that needs no device before the comparison."""
    arrays = dict(np.load(files / "data.npz"))
    for folder, count in (("all", 3), ("some", 2)):
        (files / folder / "shards").mkdir(parents=True)
        for i in range(count):
            np.savez(
                files / folder / "shards" / f"{i}.npz", **{name: x[16 * i :] for name, x in arrays.items()}
            )
    options = ("--steps", "3", "--dir", "run", "--data", "all/shards")
    last = (
        *("--seed", "1", "--data", "some/shards", "--layout", "crossed"),
        *("--eval", "data.npz", "--memory", "1GiB"),
    )
    for status, _, err in Group(files, 2, *options, last=last).ended():
        assert status == USAGE
        assert "--seed: 0 on process 0; 1 on process 1" in err
        assert "--layout: both (rules " in err and "crossed (rules " in err
        assert "--eval: nothing on process 0; data.npz on process 1" in err
        assert "--memory: nothing on process 0; 1GiB on process 1" in err and "the compiled program: " in err
        assert "--data shards/2.npz: " in err and "; nothing on process 1" in err
        assert "shards/1.npz" not in err and "--steps" not in err and "jax" not in err
    assert not (files / "run").exists()


FUNCTION = """
import os
import sys
import numpy as np

def batches():
    last = "--process-id=1" in " ".join(sys.argv).replace("id ", "id=")
    for step in range(10):
        if last and step == 5:
            END
        yield {name: np.full((16, 8), step, np.float32) for name in "xy"}
"""


ON_FUNCTION = [
    *("--data", "own:batches", "--steps", "9"),
    *("--dir", "run", "--layout", "both", "--save-every", "50"),
]


def test_data_that_end_in_one_process_end_all_at_the_same_step(files: Path) -> None:
    (files / "own.py").write_text(FUNCTION.replace("END", "raise OSError('the disk has gone')"))
    group = Group(files, 2, *ON_FUNCTION)
    (first, _, err), (second, _, last) = group.ended()
    assert "raised OSError: the disk has gone" in last
    assert first == ENVIRONMENT and group.name(1) in err and "the disk has gone" in err
    assert second == USAGE
    assert [each.name for each in (files / "run" / "checkpoints").iterdir()] == ["5"]
    assert len(curve(files / "run")) == 5


def test_sigterm_ends_a_wait_for_data_of_another_process(files: Path) -> None:
    (files / "own.py").write_text(FUNCTION.replace("END", "__import__('time').sleep(60)"))
    group = Group(files, 2, *ON_FUNCTION)
    wait_for_step(files / "run", 4)
    group.started[0].send_signal(signal.SIGTERM)
    ended = group.ended()
    assert [status for status, _, _ in ended] == [INTERRUPTED, INTERRUPTED], ended
    assert [each.name for each in (files / "run" / "checkpoints").iterdir()] == ["5"]
    assert len(curve(files / "run")) == 5


def test_a_process_that_does_not_come_is_named(files: Path) -> None:
    place = ("--coordinator", f"127.0.0.1:{free_port()}", "--processes", "2", "--process-id", "0")
    process = start(files, "--join-seconds", "1", *place)
    _, err = process.communicate()
    assert process.returncode == ENVIRONMENT
    assert "process 0 of 2 has waited 1 s at 127.0.0.1:" in err
    assert ": process 1 has not joined; start all" in err
    assert "stack trace" not in err


def test_processes_that_have_not_joined_are_named() -> None:
    text = "# of tasks that reached the barrier: 2/4.\nThe first task at the barrier: 0. Some timed out task names:\n3\n1\n\n"
    assert absent_processes(f"E1126 Barrier timed out.\n{text}") == "processes 1, 3 have"
    assert absent_processes(text.replace("2/4", "2/9")) == "processes 1, 3 and 5 more have"
    assert absent_processes(text.replace("2/4", "1/2").replace("3\n1", "/job:jax/task:1")) == "process 1 has"
    assert absent_processes("Deadline Exceeded\n\nRPC: /xla.coordination.CoordinationService/Register") == ""


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
