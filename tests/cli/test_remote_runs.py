"""Runs of `mtfc train` in a remote folder, with a stand-in for an object store."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import mtfc as api
from mtfc.driver.data.array_files import About, newest_checkpoint
from mtfc.driver.data.files import RemoteFolder
from mtfc.driver.errors import ENVIRONMENT, ERRORS, OK, USAGE
from mtfc.driver.training import run_folder
from mtfc.driver.training.run_folder import RunLock
from tests.cli.conftest import Mtfc
from tests.cli.model import Outcome
from tests.cli.test_checkpoints import DATA, MODEL

pytest.importorskip("fsspec")

from tests.training.object_store import ROOT, ObjectStore, install

URL = "shop://bucket/run"


@pytest.fixture
def store(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The remote folder of a run as a folder of this machine; the current folder has a model and data."""
    install()
    monkeypatch.setenv(ROOT, str(folder / "store"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(folder / "cache"))
    monkeypatch.setattr(run_folder, "DEAD", 0.6)
    (folder / "model.mtf").write_text(MODEL.replace("dim hidden = 128", "dim hidden = 8"))
    numbers = np.random.default_rng(0)
    for name, rows in (("data", 20), ("test", 8)):
        np.savez(f"{name}.npz", **{each: numbers.standard_normal((rows, 4), np.float32) for each in "xy"})
    yield folder / "store" / "bucket" / "run"
    ObjectStore.left = None


def train(mtfc: Mtfc, *options: str) -> Outcome:
    evaluation = ("--eval", "test.npz", "--eval-every", "1", "--keep-best", "loss")
    return mtfc("train", "model.mtf", "--layout", "alone", *DATA, *evaluation, "--save-every", "2", *options)


def figures(lines: str) -> list[dict[str, Any]]:
    """Return the figures that do not depend on the time."""
    timed = ("seconds", "examples_per_second")
    return [{k: v for k, v in json.loads(line).items() if k not in timed} for line in lines.splitlines()]


def about(folder: Path) -> About:
    place = newest_checkpoint(folder)
    assert place is not None
    return About.read(place)


def test_a_remote_run_goes_on_with_the_bits_of_a_local_one(store: Path, mtfc: Mtfc) -> None:
    local = train(mtfc, "--steps", "4", "--dir", "run")
    ObjectStore.left = 45
    killed = train(mtfc, "--steps", "4", "--dir", URL)
    assert killed.status == ENVIRONMENT and "the network is gone" in killed.err and URL in killed.err
    assert list((store / "checkpoints").iterdir())
    ObjectStore.left = None
    done = train(mtfc, "--steps", "4", "--dir", URL)
    assert local.status == done.status == OK, done.err
    assert "going on from step " in done.err and f", {URL}/checkpoints/" in done.err
    assert f"checkpoint       {URL}/checkpoints/4" in done.out
    parts = "".join(each.read_text() for each in sorted((store / "metrics").iterdir()))
    assert figures(parts) == figures(Path("run/metrics.jsonl").read_text())
    remote, here = about(store), about(Path("run"))
    assert (remote.step, remote.sums, remote.data) == (here.step, here.sums, here.data)
    assert json.loads((store / "evaluations.json").read_text()) == json.loads(
        Path("run/evaluations.json").read_text()
    )
    evaluated = mtfc("eval", "model.mtf", "--data", "test.npz", "--params", URL, "--format", "json")
    assert evaluated.json["eval"]["loss"] == pytest.approx(figures(parts)[-1]["eval/loss"], rel=1e-6)
    assert (
        mtfc("export", "model.mtf", "--model", "small", "--params", URL, "-o", "shop://b/w.npz").status == OK
    )
    with np.load(store.parents[1] / "b" / "w.npz") as written:
        assert sorted(written) == ["v", "w"]


def test_the_report_of_a_remote_run_is_that_of_a_local_one(
    store: Path, mtfc: Mtfc, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The figures may be in several objects, as those of a long run are."""
    monkeypatch.setattr(run_folder, "PART", 1)
    assert train(mtfc, "--steps", "4", "--dir", "run").status == OK
    done = train(mtfc, "--steps", "4", "--dir", URL, "--report", "at_end.html")
    assert done.status == OK and "at_end.html: run run" in done.err
    assert len(list((store / "metrics").iterdir())) > 1
    assert mtfc("report", URL, "-o", "remote.html").status == OK
    assert Path("remote.html").read_text() == Path("at_end.html").read_text()
    remote, local = api.report(URL).data, api.report("run").data
    timed = {"seconds", "examples_per_second"}
    for each in (remote, local):
        assert timed <= each["curves"].keys()
        for name in timed:
            del each["curves"][name], each["last"][name]
    assert {**remote, "median_seconds": 0} == {**local, "median_seconds": 0}
    none = mtfc("report", f"{URL}/nothing", "-o", "out.html")
    assert none.status == USAGE and f"{URL}/nothing has no figures of steps: name the --dir" in none.err
    ObjectStore.left = 0
    gone = mtfc("report", URL, "-o", "out.html")
    assert gone.status == ENVIRONMENT and f"cannot read {URL}: the network is gone" in gone.err
    assert not Path("out.html").exists()


def test_a_second_start_is_refused_and_told_about_the_first(
    store: Path, mtfc: Mtfc, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run_folder, "BEAT", 0.05)
    with RunLock.lease(RemoteFolder.open(URL)):
        refused = train(mtfc, "--steps", "1", "--dir", URL)
    assert refused.status == ENVIRONMENT
    assert f"{URL} belongs to a run that is under way: process " in refused.err
    assert [each.name for each in store.iterdir()] == ["run.lock"]


def test_checkpoints_of_another_program_are_neither_fetched_nor_removed(store: Path, mtfc: Mtfc) -> None:
    for name in ("7/default/array", "9/unfinished-parts/a", "tmp/unfinished"):
        (store / "checkpoints" / name).parent.mkdir(parents=True)
        (store / "checkpoints" / name).write_text("theirs")
    refused = train(mtfc, "--steps", "1", "--dir", URL)
    assert refused.status == ERRORS
    assert f"{URL}/checkpoints/9 cannot be read: it has no about/about.json" in refused.err
    assert len([each for each in store.rglob("*") if each.is_file() and each.read_text() == "theirs"]) == 3


def test_what_cannot_be_written_is_told_at_once(store: Path, mtfc: Mtfc) -> None:
    grows = train(mtfc, "--steps", "1", "--dir", URL, "--log", f"{URL}/log.jsonl")
    assert grows.status == USAGE and "--log shop://bucket/run/log.jsonl: these files grow" in grows.err
    unknown = train(mtfc, "--steps", "1", "--dir", "what://bucket/run")
    assert unknown.status == ENVIRONMENT and "cannot use what://bucket/run: Protocol not known" in unknown.err
    ObjectStore.left = 0
    gone = train(mtfc, "--steps", "1", "--dir", URL)
    assert gone.status == ENVIRONMENT and f"cannot read {URL}/run.lock: the network is gone" in gone.err
