"""Checkpoints of `mtfc train`: resuming, keeping, starting over; damage, a full disk and numbers that are not finite."""

import json
import os
import resource
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mtfc.driver.data.array_files import About, newest_checkpoint, read_array
from mtfc.driver.errors import ENVIRONMENT, ERRORS, INTERRUPTED, OK, USAGE
from tests.cli.conftest import Mtfc
from tests.cli.model import Outcome

MODEL = """\
import nn

dim batch = 8
dim io = 4
dim hidden = 128

mesh line = [all: 4]
mesh one = [all_in_one: 1]
layout split on line = { batch: all }
layout alone on one = {}

model small(x: [batch, io], y: [batch, io]) {
  param w: [io, hidden] = normal(stddev = 0.5)
  param v: [hidden, io] = normal(stddev = 0.5)
  h = nn.dropout(tanh(einsum(x, w -> [batch, hidden])), rate = 0.2)
  loss = mean(square(einsum(h, v -> [batch, io]) - y))
  return loss
}

model use(x: [batch, io]) {
  param w: [io, hidden] = normal(stddev = 0.5)
  h = tanh(einsum(x, w -> [batch, hidden]))
  return h
}

train small {
  minimize loss
  optimizer = adam(learning_rate = 0.01)
}
"""


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a run of four steps, and checkpoints after the second and the fourth."""
    from mtfc.cli import main

    folder = tmp_path_factory.mktemp("trained")
    (folder / "model.mtf").write_text(MODEL)
    numbers = np.random.default_rng(0)
    np.savez(folder / "data.npz", **{name: numbers.standard_normal((20, 4), np.float32) for name in "xy"})
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        assert main(["train", "model.mtf", *DATA, "--steps", "4", "--save-every", "2", "--dir", "run"]) == OK
    return folder


DATA = ("--data", "data.npz")
"""Options of every run."""


@pytest.fixture
def files(folder: Path, trained: Path) -> Path:
    """The current folder, with a copy of the run."""
    shutil.copytree(trained, folder, dirs_exist_ok=True)
    return folder


def steps(folder: Path) -> list[int]:
    lines = (folder / "metrics.jsonl").read_text().splitlines()
    return [json.loads(line)["step"] for line in lines]


def saved(folder: Path) -> list[str]:
    return sorted(each.name for each in (folder / "checkpoints").iterdir())


def train(mtfc: Mtfc, *options: str) -> Outcome:
    return mtfc("train", "model.mtf", *DATA, *options)


def quiet(outcome: Outcome) -> bool:
    """Return True if every line on standard error is mtfc's own, or goes on with a sentence of its own."""
    return "Traceback" not in outcome.err and all(
        line.startswith(("mtfc: ", "  it ", "  and ", "--warm-start ")) for line in outcome.err.splitlines()
    )


# Resuming


def test_a_run_goes_on_and_keeps_the_newest(files: Path, mtfc: Mtfc) -> None:
    done = train(mtfc, "--steps", "9", "--save-every", "2", "--keep", "2", "--dir", "run")
    assert done.status == OK and quiet(done)
    assert "going on from step 4, run/checkpoints/4" in done.err
    assert saved(files / "run") == ["8", "9"] and steps(files / "run") == list(range(1, 10))
    again = train(mtfc, "--steps", "9", "--dir", "run")
    assert again.status == OK and "step 9 is reached already" in again.err
    assert saved(files / "run") == ["8", "9"] and steps(files / "run") == list(range(1, 10))


def test_resuming_has_the_same_bits(files: Path, mtfc: Mtfc) -> None:
    assert train(mtfc, "--steps", "7", "--dir", "run").status == OK
    assert train(mtfc, "--steps", "7", "--dir", "whole").status == OK
    assert abouts(files / "run").sums == abouts(files / "whole").sums
    assert losses(files / "run") == losses(files / "whole")


def abouts(folder: Path) -> About:
    place = newest_checkpoint(folder)
    assert place is not None
    return About.read(place)


def losses(folder: Path) -> list[float]:
    return [json.loads(line)["loss"] for line in (folder / "metrics.jsonl").read_text().splitlines()]


def test_fresh_renames_what_was_there(files: Path, mtfc: Mtfc) -> None:
    for number in (1, 2):
        done = train(mtfc, "--steps", "1", "--dir", "run", "--fresh")
        assert done.status == OK and f"run/checkpoints is now run/checkpoints.{number}" in done.err
    assert saved(files / "run") == ["1"] and steps(files / "run") == [1]
    assert sorted(each.name for each in (files / "run" / "checkpoints.1").iterdir()) == ["2", "4"]
    assert len((files / "run" / "metrics.jsonl.1").read_text().splitlines()) == 4


def test_checkpoints_by_minutes(files: Path, mtfc: Mtfc) -> None:
    """The first one comes after the first step, the next ones as steps take their time, the last one at the end."""
    assert train(mtfc, "--steps", "3", "--dir", "long", "--save-minutes", "10").status == OK
    assert saved(files / "long") == ["1", "3"]
    short = train(mtfc, "--steps", "3", "--dir", "short", "--save-minutes", "0.000001")
    assert short.status == OK and saved(files / "short") == ["1", "2", "3"]


def test_changes_are_told(files: Path, mtfc: Mtfc) -> None:
    text = MODEL.replace("learning_rate = 0.01", "learning_rate = 0.02")
    (files / "model.mtf").write_text(text)
    done = train(mtfc, "--steps", "5", "--dir", "run", "--seed", "3")
    assert done.status == OK and quiet(done)
    assert "the model or its `train` block has changed since this checkpoint" in done.err
    assert "the seed was 0 before this checkpoint, and is 3 now" in done.err
    assert "the data has changed since the checkpoint (seed 0 -> 3)" in done.err
    (files / "model.mtf").write_text(text.replace("dim hidden", "# a comment\ndim hidden"))
    again = train(mtfc, "--steps", "6", "--dir", "run", "--seed", "3", "--layout", "alone")
    assert again.status == OK and "has changed" not in again.err and "was 0" not in again.err


# Damage


def flip(path: Path) -> None:
    """Change one bit in the middle of a file."""
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 0x10
    path.write_bytes(data)


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


@pytest.mark.parametrize("damage", [flip, cut, Path.unlink])
def test_damaged_files_are_named_before_training(files: Path, mtfc: Mtfc, damage: Any) -> None:
    place = files / "run" / "checkpoints" / "4"
    whole = files / "whole"
    shutil.copytree(place, whole)
    arrays = sorted((place / "state" / "d").iterdir(), key=lambda path: path.stat().st_size)
    for path in (place / "about" / "about.json", place / "state" / "manifest.ocdbt", arrays[-1]):
        damage(path)
        done = train(mtfc, "--steps", "5", "--dir", "run")
        assert done.status == ERRORS and quiet(done) and not done.out
        assert "run/checkpoints/4 cannot be read: " in done.err, path
        assert "remove it to go on from step 2" in done.err
        shutil.rmtree(place)
        shutil.copytree(whole, place)
    done = train(mtfc, "--steps", "5", "--dir", "run")
    assert done.status == OK, done.err


def test_changed_numbers_are_found(files: Path, mtfc: Mtfc) -> None:
    """The record of another run with the same arrays has other checksums."""
    assert train(mtfc, "--steps", "4", "--dir", "other", "--seed", "5").status == OK
    record = Path("checkpoints", "4", "about", "about.json")
    shutil.copy(files / "other" / record, files / "run" / record)
    done = train(mtfc, "--steps", "5", "--dir", "run")
    assert done.status == ERRORS and quiet(done)
    assert "the numbers of params/w, params/v, optimizer/" in done.err and "have changed" in done.err


def test_checkpoints_of_other_programs_and_versions(files: Path, mtfc: Mtfc) -> None:
    place = files / "run" / "checkpoints" / "4"
    record = place / "about" / "about.json"
    text = record.read_text()
    record.write_text(text.replace('"format": 2', '"format": 9'))
    assert "its format is 9, and this version of mtfc reads format 2" in refused(mtfc)
    record.write_text(text.replace('"arrays"', '"other"'))
    assert "about.json is damaged" in refused(mtfc)
    shutil.rmtree(place)
    place.mkdir()
    assert "it is no checkpoint of mtfc" in refused(mtfc)
    shutil.rmtree(files / "run" / "checkpoints" / "2")
    assert "start over with --fresh" in refused(mtfc)


def test_one_changed_number_in_the_record_is_found(files: Path, mtfc: Mtfc) -> None:
    """The position in the data decides about the next batches."""
    record = files / "run" / "checkpoints" / "4" / "about" / "about.json"
    text = record.read_text()
    found = json.loads(text)["data"]
    assert found is not None
    for place in [i for i, each in enumerate(text) if each.isdigit()][::7]:
        digit = str((int(text[place]) + 1) % 10)
        record.write_text(text[:place] + digit + text[place + 1 :])
        with pytest.raises(ValueError, match=r"damaged|format"):
            About.read(record.parents[1])
    shutil.copytree(files / "run" / "checkpoints" / "2", files / "run" / "checkpoints" / "3")
    with pytest.raises(ValueError, match="is that of step 2"):
        About.read(files / "run" / "checkpoints" / "3")


def refused(mtfc: Mtfc) -> str:
    done = train(mtfc, "--steps", "5", "--dir", "run")
    assert done.status == ERRORS and quiet(done) and not done.out
    return done.err


def test_checkpoints_of_another_model(files: Path, mtfc: Mtfc) -> None:
    text = MODEL.replace("v: [hidden, io]", "u: [hidden, io]").replace("h, v", "h, u")
    (files / "model.mtf").write_text(text)
    errors = refused(mtfc)
    assert "run/checkpoints/4, a checkpoint of model `small`, does not fit the model" in errors
    assert "it lacks params/u: float32[128, 4]" in errors
    assert "it has params/v: float32[128, 4], which the model lacks" in errors
    (files / "model.mtf").write_text(MODEL.replace("hidden = 128", "hidden = 64"))
    assert "it has params/w: float32[4, 128], and the model has params/w: float32[4, 64]" in refused(mtfc)


def test_folders_that_cannot_be_used(files: Path, mtfc: Mtfc) -> None:
    (files / "file").write_text("")
    (files / "own" / "checkpoints").mkdir(parents=True)
    (files / "own" / "metrics.jsonl").write_text("notes\nof mine\n")
    for place in ("file", "file/in", "/proc/run"):
        done = train(mtfc, "--steps", "1", "--dir", place)
        assert done.status == USAGE and quiet(done), done.err
        assert f"cannot write to {place}: " in done.err
    own = train(mtfc, "--steps", "1", "--dir", "own")
    assert own.status == USAGE and "own/metrics.jsonl has lines that `mtfc train` has not written" in own.err
    assert (files / "own" / "metrics.jsonl").read_text() == "notes\nof mine\n"


def test_checkpoints_of_another_program_stay(files: Path, mtfc: Mtfc) -> None:
    """Its half written ones do, too, and those of mtfc are removed."""
    theirs, ours = files / "theirs" / "checkpoints", files / "run" / "checkpoints"
    for place in (
        "7.orbax-checkpoint-tmp/default.orbax-checkpoint-tmp",
        "8.orbax-checkpoint-tmp/state",
        "5/default",
    ):
        (theirs / place).mkdir(parents=True)
    (theirs / "old.removed").mkdir()
    refused = train(mtfc, "--steps", "9", "--dir", "theirs")
    assert refused.status == ERRORS and "so it is no checkpoint of mtfc" in refused.err
    assert saved(files / "theirs") == ["5", "7.orbax-checkpoint-tmp", "8.orbax-checkpoint-tmp", "old.removed"]
    for name in ("5.orbax-checkpoint-tmp/about", "6.orbax-checkpoint-tmp", "1.removed/state"):
        (ours / name).mkdir(parents=True)
    assert train(mtfc, "--steps", "4", "--dir", "run").status == OK
    assert saved(files / "run") == ["2", "4"]


# A full disk


@contextmanager
def files_of_at_most(size: int) -> Iterator[None]:
    """Let writes beyond this size fail, as on a full disk."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


@pytest.mark.parametrize("every", ["1", "1000"])
def test_a_file_that_cannot_be_written(files: Path, mtfc: Mtfc, every: str) -> None:
    """In the middle of training, and at its end."""
    total = 60 if every == "1" else 6
    with files_of_at_most(3000):
        done = train(mtfc, "--steps", str(total), "--dir", "run", "--save-every", every)
    assert done.status == ENVIRONMENT and quiet(done), done.err
    assert "cannot write a checkpoint to run/checkpoints: file too large; the last one is run" in done.err
    assert saved(files / "run") == ["2", "4"]
    assert train(mtfc, "--steps", "7", "--dir", "run").status == OK
    assert steps(files / "run") == list(range(1, 8))


def test_a_full_disk(files: Path, mtfc: Mtfc) -> None:
    disk = files / "disk"
    disk.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "none", disk], capture_output=True)
    if mounted.returncode:
        pytest.skip("this user cannot mount a small file system")
    try:
        figures = (
            "--log",
            "figures.jsonl",
        )  # elsewhere, so that a checkpoint is the first file without space
        done = train(mtfc, "--steps", "50", "--dir", "disk", "--save-every", "1", "--keep", "100", *figures)
        assert done.status == ENVIRONMENT and quiet(done), done.err
        assert "no space left on device; the last one is disk/checkpoints/" in done.err
        last = max(map(int, saved(disk)))
        assert saved(disk) == sorted(str(step) for step in range(1, last + 1))
        assert last > 1
        place = newest_checkpoint(disk)
        assert place is not None and read_array(place, About.read(place), "params/w").shape == (4, 128)
    finally:
        subprocess.run(["umount", disk], check=True)


# Ends


def test_numbers_that_are_not_finite(files: Path, mtfc: Mtfc) -> None:
    """A loss ends the run at its step; parameters that are not finite are not saved."""
    (files / "model.mtf").write_text(MODEL.replace("adam(learning_rate = 0.01)", "sgd(learning_rate = 1e30)"))
    done = train(mtfc, "--steps", "50", "--dir", "new", "--save-every", "1")
    assert done.status == ERRORS and quiet(done), done.err
    assert "not finite" in done.err or "the loss of step" in done.err
    last = max(map(int, saved(files / "new")))
    assert f"the last checkpoint is new/checkpoints/{last}" in done.err
    place = newest_checkpoint(files / "new")
    assert place is not None and np.isfinite(read_array(place, About.read(place), "params/w")).all()
    early = train(mtfc, "--steps", "50", "--dir", "early", "--save-every", "40")
    assert early.status == ERRORS and "there is no checkpoint yet" in early.err
    nowhere = train(mtfc, "--steps", "50")
    assert nowhere.status == ERRORS and "nothing is saved; --dir FOLDER keeps checkpoints" in nowhere.err


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_after_the_step_and_saves(files: Path, mtfc: Mtfc, number: signal.Signals) -> None:
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    command = [sys.executable, "-m", "mtfc", "train", "model.mtf", *DATA, "--steps", "100000", "--dir", "run"]
    pipe = subprocess.PIPE
    process = subprocess.Popen([*command, "--save-every", "90000"], env=environment, stdout=pipe, stderr=pipe)
    while process.poll() is None and len(steps_written(files / "run")) < 6:
        time.sleep(0.01)
    process.send_signal(number)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == INTERRUPTED, errors.decode()
    last = max(map(int, saved(files / "run")))
    assert f"stopped after step {last}: the last checkpoint is run/checkpoints/{last}" in errors.decode()
    assert steps(files / "run") == list(range(1, last + 1))
    total = str(last + 2)
    assert train(mtfc, "--steps", total, "--dir", "run").status == OK
    assert train(mtfc, "--steps", total, "--dir", "whole").status == OK
    assert losses(files / "run") == losses(files / "whole")


def steps_written(folder: Path) -> list[str]:
    """Return the lines of a file that is being written."""
    return (folder / "metrics.jsonl").read_text().splitlines() if (folder / "metrics.jsonl").exists() else []


# Parameters of a checkpoint elsewhere


def test_checkpoints_as_parameters(files: Path, mtfc: Mtfc) -> None:
    """`--params` takes a run, its newest checkpoint, or another one; a model with fewer parameters has to say so."""
    place = files / "run" / "checkpoints"
    w = {step: read_array(place / step, About.read(place / step), "params/w") for step in ("2", "4")}
    assert not np.array_equal(w["2"], w["4"])
    x = np.ones((8, 4), np.float32)
    np.savez("x.npz", x=x)
    for path, step in (("run", "4"), ("run/checkpoints", "4"), ("run/checkpoints/2", "2")):
        options = ("--model", "use", "--params", path, "--data", "x.npz", "--save", "h.npz")
        refused = mtfc("run", "model.mtf", *options)
        assert refused.status == ERRORS
        assert f"{path} has an array `v`, which is no parameter" in refused.err
        assert "`--params-partial` leaves the others out" in refused.err
        used = mtfc("run", "model.mtf", *options, "--params-partial")
        assert used.status == OK and quiet(used), used.err
        assert "parameters of another model are left out: v" in used.err
        np.testing.assert_allclose(np.load("h.npz")["h"], np.tanh(x @ w[step]), rtol=1e-5)
    written = mtfc("export", "model.mtf", "--params", "run", "-o", "w.npz")
    assert written.status == OK, written.err
    exported = np.load("w.npz")
    assert sorted(exported) == ["v", "w"]
    np.testing.assert_array_equal(exported["w"], w["4"])
    tuned = train(mtfc, "--steps", "1", "--params", "run", "--dir", "tuned")
    assert tuned.status == OK and quiet(tuned), tuned.err


def test_averages_of_a_checkpoint(files: Path, mtfc: Mtfc) -> None:
    (files / "model.mtf").write_text(MODEL.replace("minimize loss\n", "minimize loss\n  average = 0.9\n"))
    assert train(mtfc, "--steps", "5", "--dir", "new").status == OK
    options = (
        "run", "model.mtf", "--model", "use", "--params", "new", "--params-partial", "--data", "x.npz", "--save",
    )  # fmt: skip
    np.savez("x.npz", x=np.ones((8, 4), np.float32))
    assert mtfc(*options, "last.npz").status == OK
    averaged = mtfc(*options, "averaged.npz", "--averages")
    assert averaged.status == OK, averaged.err
    last, average = np.load("last.npz")["h"], np.load("averaged.npz")["h"]
    assert not np.array_equal(last, average) and np.abs(last - average).max() < 0.1


@pytest.mark.parametrize("damage", [flip, cut, Path.unlink])
def test_damaged_parameters(files: Path, mtfc: Mtfc, damage: Any) -> None:
    place = files / "run" / "checkpoints" / "4"
    for path in [*(place / "state" / "d").iterdir(), place / "about" / "about.json"]:
        damage(path)
        used = mtfc("run", "model.mtf", "--model", "use", "--params", "run", "--params-partial")
        assert used.status == ERRORS and "Traceback" not in used.err
        assert "error[E501]: cannot read arrays: " in used.err
    shutil.rmtree(files / "run" / "checkpoints")
    (files / "run" / "checkpoints").mkdir()
    none = mtfc("run", "model.mtf", "--params", "run")
    assert none.status == ERRORS and "E501" in none.err


# Warm starts


def test_a_warm_start_takes_what_fits(files: Path, mtfc: Mtfc) -> None:
    """The hidden layer grows, a parameter is new, one has gone, and the optimizer is another."""
    changed = MODEL.replace("hidden = 128", "hidden = 130").replace("adam(", "adafactor(")
    changed = changed.replace("  h = nn", "  param b: [hidden] = zeros()\n  h = nn").replace(
        "-> [batch, hidden]))", "-> [batch, hidden]) + b)", 1
    )
    (files / "model.mtf").write_text(changed)
    before = {name: read_of(files / "run" / "checkpoints" / "4", name) for name in ("w", "v")}
    refused = train(mtfc, "--steps", "5", "--dir", "run")
    assert refused.status == ERRORS and "--warm-start run takes what fits" in refused.err
    options = ("--dir", "run", "--warm-start", "run", "--set", "optimizer.learning_rate=0.0", "--seed", "1")
    warm = train(mtfc, "--steps", "5", *options)
    assert warm.status == OK and quiet(warm), warm.err
    assert "warm start from step 4, run/checkpoints/4" in warm.err
    assert "parameters that have grown keep their numbers, and the rest is drawn: v, w" in warm.err
    assert "parameters that are drawn: b" in warm.err
    assert "states of the optimizer that are left out: w.m, w.v, v.m, v.v" in warm.err
    place = files / "run" / "checkpoints" / "5"
    np.testing.assert_array_equal(read_of(place, "w")[:, :128], before["w"])
    np.testing.assert_array_equal(read_of(place, "v")[:128], before["v"])
    assert (read_of(place, "w")[:, 128:] != 0).all() and read_of(place, "b").shape == (130,)
    again = train(mtfc, "--steps", "6", *options)
    assert again.status == OK and "going on from step 5" in again.err and "warm start" not in again.err
    (files / "model.mtf").write_text(changed.replace("hidden = 130", "hidden = 132"))
    before = (files / "run" / "metrics.jsonl").read_text()
    older = train(mtfc, "--steps", "9", "--dir", "run", "--warm-start", "run/checkpoints/5")
    assert older.status == USAGE and "begins at step 5, and --dir has run/checkpoints/6" in older.err
    assert (files / "run" / "metrics.jsonl").read_text() == before


def test_a_warm_start_of_the_same_program_is_a_resume(files: Path, mtfc: Mtfc) -> None:
    for options in (("--dir", "new", "--warm-start", "run"), ("--dir", "run")):
        assert train(mtfc, "--steps", "6", *options).status == OK
    for name in ("w", "v"):
        found = [read_of(files / folder / "checkpoints" / "6", name) for folder in ("run", "new")]
        np.testing.assert_array_equal(*found)


def test_where_to_start_is_told(files: Path, mtfc: Mtfc) -> None:
    done = train(mtfc, "--steps", "5", "--dir", "run", "--params", "run")
    assert done.status == OK and "--params run is not read: the checkpoint in --dir comes first" in done.err
    assert train(mtfc, "--warm-start", "run", "--params", "run").status == USAGE
    missing = train(mtfc, "--warm-start", "nowhere")
    assert missing.status == USAGE and "--warm-start nowhere: there is no checkpoint" in missing.err


def read_of(place: Path, name: str) -> Any:
    return read_array(place, About.read(place), f"params/{name}")
