"""No result is lost: outputs are checked before work begins, and a training run that ends early saves its results."""

import errno
import json
import os
import signal
import subprocess
import sys
import time
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mtfc import compile as compile_model
from mtfc.cli import main
from mtfc.driver.errors import USAGE
from mtfc.driver.running import run as running
from mtfc.driver.running.execution import Session
from tests.cli.conftest import Mtfc

BACKENDS = ("numpy", "jax")


@pytest.fixture
def files(folder: Path) -> Path:
    rng = np.random.default_rng(1)
    x = rng.standard_normal((12, 6)).astype(np.float32)
    np.savez(folder / "data.npz", x=x, labels=rng.integers(0, 3, 12).astype(np.int32))
    return folder


# Outputs

OUTPUTS = {
    "run": ["run", "model.mtf", "--save"],
    "run --train": ["run", "model.mtf", "--train", "--save"],
    "compile": ["compile", "model.mtf", "-o"],
    "compile --emit ast": ["compile", "model.mtf", "--emit", "ast", "-o"],
    "search": ["search", "model.mtf", "--devices", "2", "-o"],
    "search --export": ["search", "model.mtf", "--devices", "2", "--space", "tiling", "--export"],
    "simulate": ["simulate", "model.mtf", "--target", "h100", "--trace"],
    "calibrate": ["calibrate", "-o"],
    "solve": ["solve", "model.mtf", "-o"],
}
"""Every option that names a file to write."""


@pytest.mark.parametrize("command", OUTPUTS)
def test_outputs_are_checked_before_work_begins(
    mtfc: Mtfc, folder: Path, monkeypatch: pytest.MonkeyPatch, command: str
) -> None:
    """The check comes before the file is read, so no work has been done."""
    monkeypatch.setattr("mtfc.driver.loading.sources.read_bytes", lambda path: pytest.fail("work has begun"))
    (folder / "here").mkdir()
    long = "x" * 300
    for path, reason in (
        ("missing/out", "no such directory"),
        ("here", "is a directory: name a file in it"),
        ("model.mtf/out", "not a directory"),
        (long, "file name too long"),
    ):
        outcome = mtfc(*OUTPUTS[command], path)
        assert (outcome.status, outcome.out) == (2, "")
        assert outcome.err.splitlines()[-1] == f"mtfc: cannot write {path}: {reason}"


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
@pytest.mark.parametrize("command", OUTPUTS)
def test_a_folder_without_permission(mtfc: Mtfc, folder: Path, command: str) -> None:
    (folder / "locked").mkdir(mode=0o555)
    assert "permission denied" in mtfc(*OUTPUTS[command], "locked/out").err


@pytest.mark.parametrize("paths", [("out", "out"), ("out", "./out"), ("-", "-")])
def test_two_outputs_with_one_path(mtfc: Mtfc, paths: tuple[str, str]) -> None:
    outcome = mtfc(*OUTPUTS["search"], paths[0], "--space", "tiling", "--export", paths[1])
    message = f"{paths[0]} and {paths[1]} are the same file: each result needs one of its own"
    assert (outcome.status, outcome.err) == (2, f"mtfc: {message}\n")


OVERWRITING = {
    "--data": ["run", "model.mtf", "--train", "--data", "data.npz", "--save", "data.npz"],
    "--eval": ["run", "model.mtf", "--train", "--eval", "data.npz", "--save", "link.npz"],
    "--params": ["run", "model.mtf", "--params", "data.npz", "--save", "data.npz"],
    "FILE": ["run", "model.mtf", "--save", "model.mtf"],
    "FILE of compile": ["compile", "model.mtf", "-o", "here/../model.mtf"],
    "FILE of simulate": ["simulate", "model.mtf", "--target", "h100", "--trace", "model.mtf"],
    "--target of simulate": ["simulate", "model.mtf", "--target", "hw.mtf", "--trace", "hw.mtf"],
    "FILE of search": ["search", "model.mtf", "-o", "model.mtf"],
    "--target": ["search", "model.mtf", "--target", "hw.mtf", "-o", "./hw.mtf"],
    "FILE exported": ["search", "model.mtf", "--space", "tiling", "--export", "model.mtf"],
    "FILE of solve": ["solve", "model.mtf", "-o", "model.mtf"],
}


@pytest.mark.parametrize("inputs", OVERWRITING)
def test_outputs_do_not_replace_inputs(
    mtfc: Mtfc, files: Path, monkeypatch: pytest.MonkeyPatch, inputs: str
) -> None:
    monkeypatch.setattr("mtfc.driver.loading.sources.read_bytes", lambda path: pytest.fail("work has begun"))
    (files / "here").mkdir()
    (files / "hw.mtf").write_text("a machine")
    (files / "link.npz").symlink_to("data.npz")
    arguments = OVERWRITING[inputs]
    before = {each: each.read_bytes() for each in files.iterdir() if each.is_file()}
    outcome = mtfc(*arguments)
    assert outcome.status == 2
    named = f"{arguments[-2]} {arguments[-1]} would overwrite the file that {inputs.split()[0]} names"
    assert named in outcome.err
    assert before == {each: each.read_bytes() for each in files.iterdir() if each.is_file()}


def test_training_goes_on_in_its_own_file(mtfc: Mtfc, files: Path) -> None:
    trained = ("run", "model.mtf", "--train", "--data", "data.npz", "--save", "params.npz")
    assert mtfc(*trained).status == 0
    first = (files / "params.npz").read_bytes()
    assert mtfc(*trained, "--params", "params.npz").status == 0
    assert (files / "params.npz").read_bytes() != first


def test_arrays_to_files_that_are_not_regular(mtfc: Mtfc, files: Path) -> None:
    """A pipe cannot seek, and `/dev/null` always reports position 0."""
    saving = ("run", "model.mtf", "--train", "--data", "data.npz", "--save")
    assert mtfc(*saving, "expected.npz").status == 0
    assert mtfc(*saving, "/dev/null").status == 0
    reader, writer = os.pipe()
    done = mtfc(*saving, f"/dev/fd/{writer}")
    os.close(writer)
    with os.fdopen(reader, "rb") as pipe:
        assert (done.status, pipe.read()) == (0, (files / "expected.npz").read_bytes())


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="the system has no /dev/full")
def test_a_device_that_is_full(mtfc: Mtfc, files: Path) -> None:
    outcome = mtfc("run", "model.mtf", "--save", "/dev/full")
    assert (outcome.status, outcome.err.splitlines()[-1]) == (
        2,
        "mtfc: cannot write /dev/full: no space left on device",
    )


def test_a_terminal_that_has_gone(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A message that nobody reads changes no status, and makes no traceback."""

    def write(_: str) -> int:
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(sys.stderr, "write", write)
    assert main(["run", "missing.mtf"]) == USAGE


@pytest.mark.parametrize("name", ["-", "/dev/stdout"])
def test_arrays_to_standard_output(files: Path, name: str) -> None:
    """Standard output is for the arrays alone: the report goes to standard error."""
    for training in ([], ["--train"]):
        run = ["run", "model.mtf", "--data", "data.npz", *training, "--save", name]
        done = subprocess.run([sys.executable, "-m", "mtfc", *run], capture_output=True, check=True)
        with np.load(BytesIO(done.stdout)) as saved:
            assert set(saved.files) == ({"w", "bias", "loss"} if training else {"y", "loss"})
        assert b"loss " in done.stderr and not Path("-").exists()


# Losses that are not finite

DIVERGING = ["--train", "--data", "data.npz", "--save", "out.npz"]


def diverge(folder: Path, rate: str = "1e9") -> None:
    text = (folder / "model.mtf").read_text()
    (folder / "model.mtf").write_text(text.replace("learning_rate = 0.1", f"learning_rate = {rate}"))


def after(steps: int, *options: str) -> dict[str, np.ndarray]:
    """Return parameters and losses of a run of `steps` steps."""
    assert main(["run", "model.mtf", *DIVERGING[:-1], "fewer.npz", "--steps", str(steps), *options]) == 0
    with np.load("fewer.npz") as saved:
        return {name: saved[name] for name in saved.files}


def same(found: dict[str, np.ndarray], expected: dict[str, np.ndarray]) -> bool:
    return found.keys() == expected.keys() and all((found[name] == expected[name]).all() for name in found)


def load(path: str) -> dict[str, np.ndarray]:
    with np.load(path) as saved:
        return {name: saved[name] for name in saved.files}


@pytest.mark.parametrize("share", [running.SHARE, 1e9, 1e-9], ids=["mostly", "every step", "only once"])
@pytest.mark.parametrize("layout", ["replicated", "both"])
@pytest.mark.parametrize("backend", BACKENDS)
def test_a_loss_that_is_not_finite(
    mtfc: Mtfc, files: Path, monkeypatch: pytest.MonkeyPatch, backend: str, layout: str, share: float
) -> None:
    """The parameters that gave the last finite loss are saved exactly, for any number of copies."""
    monkeypatch.setattr(running, "SHARE", share)
    diverge(files)
    options = ["--backend", backend, "--layout", layout]
    outcome = mtfc("run", "model.mtf", *DIVERGING, "--steps", "50", *options, "--format", "json")
    assert outcome.status == 1
    steps = outcome.json["steps"]
    failed = steps[-1]["step"]
    assert failed > 3 and steps[-1]["loss"] is None and steps[-2]["loss"] is not None
    assert f"mtfc: the loss of step {failed} is " in outcome.err
    kept = f"out.npz has the parameters that gave the loss of step {failed - 1}, the last good ones\n"
    assert outcome.err.endswith(kept)
    found = load("out.npz")
    assert found["loss"].tolist() == pytest.approx([step["loss"] for step in steps[:-1]])
    expected = after(failed - 2, *options)
    assert same({**found, "loss": found["loss"][:-1]}, expected)


def test_the_first_loss_is_not_finite(mtfc: Mtfc, files: Path) -> None:
    np.savez("data.npz", x=np.full((4, 6), np.nan), labels=np.zeros(4, np.int32))
    outcome = mtfc("run", "model.mtf", *DIVERGING)
    assert (outcome.status, outcome.err) == (1, "mtfc: the loss of step 1 is nan: nothing is saved\n")
    assert not Path("out.npz").exists()


def test_without_save(mtfc: Mtfc, files: Path) -> None:
    diverge(files)
    outcome = mtfc("run", "model.mtf", *DIVERGING[:-2], "--steps", "50")
    assert outcome.status == 1
    assert outcome.err.endswith("; with --save the last good parameters are kept\n")
    last = [line for line in outcome.out.splitlines() if line.startswith("step ")][-1]
    assert "loss inf" in last or "loss nan" in last


@pytest.mark.parametrize("backend", BACKENDS)
def test_the_last_step_leaves_parameters_that_are_not_finite(mtfc: Mtfc, files: Path, backend: str) -> None:
    """The loss of the last step was finite; saving the parameters after it would write a useless file with status 0."""
    diverge(files, "3e38")
    data = load("data.npz")
    np.savez("data.npz", x=100 * data["x"][:4], labels=data["labels"][:4])
    outcome = mtfc("run", "model.mtf", *DIVERGING, "--backend", backend)
    assert outcome.status == 1
    why = "mtfc: the parameters after step 1 are not finite: "
    assert (
        outcome.err == f"{why}out.npz has the parameters that gave the loss of step 1, the last good ones\n"
    )
    module = compile_model("model.mtf").load("numpy")
    found, drawn = load("out.npz"), module.unshard(module.init(0), module.PARAMETERS)
    np.testing.assert_allclose(found["w"], drawn["w"], rtol=1e-6)
    assert np.isfinite(found["loss"]).all()


@pytest.mark.parametrize("backend", BACKENDS)
def test_outputs_that_are_not_finite_are_only_reported_without_training(
    mtfc: Mtfc, files: Path, backend: str
) -> None:
    np.savez("data.npz", x=np.full((4, 6), np.inf), labels=np.zeros(4, np.int32))
    outcome = mtfc("run", "model.mtf", "--data", "data.npz", "--backend", backend, "--save", "out.npz")
    assert outcome.status == 0
    assert "not finite" in outcome.out and Path("out.npz").exists()


# Interrupts


def interrupting(monkeypatch: pytest.MonkeyPatch, during: int, times: int = 1) -> None:
    """Send Ctrl-C in the middle of a training step, after its parameters are donated."""
    train = Session.train
    seen: list[int] = []

    def interrupted(self: Session, *arguments: Any) -> dict[str, Any]:
        outputs = train(self, *arguments)
        seen.append(0)
        if len(seen) == during:
            for _ in range(times):
                signal.raise_signal(signal.SIGINT)
        return outputs

    monkeypatch.setattr(Session, "train", interrupted)


@pytest.mark.parametrize("format", ["text", "json"])
@pytest.mark.parametrize("backend", BACKENDS)
def test_an_interrupt_saves_what_there_is(
    mtfc: Mtfc, files: Path, monkeypatch: pytest.MonkeyPatch, backend: str, format: str
) -> None:
    options = ["--backend", backend, "--layout", "both"]
    expected = after(5, *options)
    interrupting(monkeypatch, during=5)
    mtfc("check", "model.mtf")  # discard the output that `after` has printed
    outcome = mtfc("run", "model.mtf", *DIVERGING, "--steps", "100", *options, "--format", format)
    assert outcome.status == 130
    first, second = outcome.err.splitlines()
    assert first == "mtfc: interrupted: results are saved after step 5; Ctrl-C again ends at once"
    assert second == "mtfc: interrupted: out.npz has the parameters after step 5"
    assert same(load("out.npz"), expected)
    if format == "json":
        assert len(json.loads(outcome.out)["steps"]) == 5
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_an_interrupt_without_save_ends_at_once(
    mtfc: Mtfc, files: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    interrupting(monkeypatch, during=2)
    outcome = mtfc("run", "model.mtf", "--train", "--data", "data.npz", "--steps", "100", "--format", "json")
    assert (outcome.status, outcome.out, outcome.err) == (130, "", "mtfc: interrupted\n")


RUN = """\
import os, signal, sys, time
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
from mtfc.cli import main
from mtfc.driver.running.execution import Session
train = Session.train
def slow(self, *arguments):
    outputs = train(self, *arguments)
    print("step", arguments[1], flush=True)
    time.sleep(float(sys.argv.pop(1)))
    return outputs
Session.train = slow
sys.exit(main(sys.argv[101:]))
"""


def started(pauses: list[float], *arguments: str) -> subprocess.Popen[str]:
    given = [str(each) for each in pauses] + ["0"] * (100 - len(pauses))
    command = [sys.executable, "-c", RUN, *given, "run", "model.mtf", *DIVERGING, "--steps", "90", *arguments]
    pipe = subprocess.PIPE
    return subprocess.Popen(command, stdout=pipe, stderr=pipe, text=True, env=dict(os.environ))


def wait_for(process: subprocess.Popen[str], line: str) -> None:
    assert process.stdout is not None
    while process.stdout.readline().strip() != line:
        assert process.poll() is None, process.communicate()


def test_a_real_interrupt(files: Path) -> None:
    """The second step takes a second, and an interrupt comes during that step."""
    process = started([0.0, 1.0])
    wait_for(process, "step 1")
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 130
    assert err.endswith("mtfc: interrupted: out.npz has the parameters after step 2\n")
    assert load("out.npz")["loss"].shape == (2,)


def test_a_second_interrupt_ends_at_once(files: Path) -> None:
    process = started([0.0, 60.0])
    wait_for(process, "step 1")
    begun = time.monotonic()
    process.send_signal(signal.SIGINT)
    assert process.stderr is not None
    assert process.stderr.readline().startswith("mtfc: interrupted: results are saved after step 2; ")
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=60)
    assert time.monotonic() - begun < 30
    assert process.returncode == -signal.SIGINT, "shells call this status 130"
    assert not Path("out.npz").exists()
    assert sorted(path.name for path in files.iterdir()) == ["data.npz", "model.mtf"]
