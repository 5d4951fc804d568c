"""The mirror of a remote folder: a run that is killed at any moment goes on from whole files."""

import json
import shutil
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from mtfc.backends.common.devices import Unavailable
from mtfc.driver.data.array_files import CHECKPOINTS, RECORD, STATE, local_parameters
from mtfc.driver.data.files import RemoteFolder
from mtfc.driver.errors import UsageError
from mtfc.driver.training import run_folder
from mtfc.driver.training.metrics import EVALUATIONS_FILE, METRICS, JsonLines
from mtfc.driver.training.run_folder import LOCK, Mirror
from mtfc.reports.training_report import TrainingStep

pytest.importorskip("fsspec")

from tests.training.object_store import ROOT, ObjectStore, install

URL = "shop://bucket/runs/lm"


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The remote folder of a run as a folder of this machine."""
    install()
    monkeypatch.setenv(ROOT, str(tmp_path / "store"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(run_folder, "DEAD", 0.0)
    monkeypatch.setattr(run_folder, "PART", 100)
    yield tmp_path / "store" / "bucket" / "runs" / "lm"
    ObjectStore.left = None


def figures(folder: Path) -> list[int]:
    """Return the steps of the figures in a remote folder."""
    parts = sorted((folder / "metrics").glob("*"))
    return [json.loads(line)["step"] for each in parts for line in each.read_bytes().splitlines()]


def work(last: int) -> None:
    """Do what a run does: a line for each step, and a checkpoint after every second step, of which the newest stays."""
    with Mirror.open(RemoteFolder.open(URL), lambda _: None) as mirror, mirror.leased():
        mirror.clean()
        mirror.fetch()
        start = mirror.steps[-1] if mirror.steps else 0
        if start:
            assert content(mirror.path / CHECKPOINTS / str(start)) == content_of(start)
        log = JsonLines.open(mirror.path / METRICS, start)
        mirror.send_figures()
        for step in range(start + 1, last + 1):
            log.step(TrainingStep(step, float(step), 1.0, "examples", 1.0, {}, {}, None))
            if step % 2 == 0:
                (mirror.path / EVALUATIONS_FILE).write_text(str(step))
                for name, text in content_of(step).items():
                    place = mirror.path / CHECKPOINTS / str(step) / name
                    place.parent.mkdir(parents=True, exist_ok=True)
                    place.write_text(text)
                mirror.send(step)
            for old in mirror.steps[:-1]:
                mirror.remove(old)
        log.close()


def content_of(step: int) -> dict[str, str]:
    return {RECORD: f"{step}", f"{STATE}/w/0.0": f"w {step}", f"{STATE}/w/0.1": f"v {step}"}


def content(folder: Path) -> dict[str, str]:
    return {
        each.relative_to(folder).as_posix(): each.read_text()
        for each in sorted(folder.rglob("*"))
        if each.is_file()
    }


def test_a_run_that_is_killed_at_any_change_goes_on(store: Path) -> None:
    ObjectStore.changes = 0
    work(5)
    whole, changes = content(store), ObjectStore.changes
    assert figures(store) == list(range(1, 6)) and len(list((store / "metrics").iterdir())) > 1
    assert {name.split("/")[1] for name in whole if name.startswith(CHECKPOINTS)} == {"4"}
    for left in range(changes):
        shutil.rmtree(store)
        ObjectStore.left = left
        with suppress(Unavailable):
            work(5)
        ObjectStore.left = None
        check_for_readers(store)
        work(5)
        now = content(store)
        assert figures(store) == list(range(1, 6)), left
        assert {name: now[name] for name in now.keys() | whole if "metrics" not in name} == {
            name: whole[name] for name in whole if "metrics" not in name
        }, left


def check_for_readers(store: Path) -> None:
    """Check that what another command takes for the newest checkpoint is whole, and has its figures."""
    with suppress(UsageError):
        place = Path(local_parameters(URL))
        if place.name.isdecimal():
            step = int(place.name)
            assert content(place) == content_of(step)
            assert figures(store)[:step] == list(range(1, step + 1))


def test_figures_that_are_dropped_leave_the_first_ones_at_any_moment(store: Path) -> None:
    def write(after: int, until: int) -> None:
        with Mirror.open(RemoteFolder.open(URL), lambda _: None) as mirror, mirror.leased():
            mirror.fetch()
            log = JsonLines.open(mirror.path / METRICS, after)
            mirror.send_figures()
            for step in range(after + 1, until + 1):
                log.step(TrainingStep(step, float(step), 1.0, "examples", 1.0, {}, {}, None))
                mirror.send_figures()
            log.close()

    for left in range(20):
        shutil.rmtree(store, ignore_errors=True)
        write(0, 9)
        assert len(list((store / "metrics").iterdir())) > 3
        ObjectStore.left = left
        with suppress(Unavailable):
            write(2, 3)
        ObjectStore.left = None
        found = figures(store)
        assert found == list(range(1, len(found) + 1)) and len(found) >= 2
        write(2, 4)
        assert figures(store) == [1, 2, 3, 4]


def test_a_run_that_was_taken_over_finishes_no_checkpoint(store: Path) -> None:
    work(2)
    with (
        pytest.raises(
            Unavailable, match=r"no longer owns shop://bucket/runs/lm: process 7 on h, started now"
        ),
        Mirror.open(RemoteFolder.open(URL), lambda _: None) as mirror,
        mirror.leased(),
    ):
        mirror.fetch()
        place = mirror.path / CHECKPOINTS / "4"
        (place / STATE).mkdir(parents=True)
        mirror.remote.write(LOCK, b'{"host": "h", "pid": 7, "started": "now", "run": "other"}')
        mirror.send(4)
    assert "other" in (store / LOCK).read_text()
    assert Path(local_parameters(URL)).name == "2"


def test_fresh_moves_results_aside_and_loses_nothing(store: Path) -> None:
    work(5)
    before = content(store)
    for number in ("1", "2"):
        with Mirror.open(RemoteFolder.open(URL), lambda _: None) as mirror, mirror.leased():
            mirror.move_aside()
            mirror.fetch()
            assert not mirror.steps and not (mirror.path / METRICS).exists()
        if number == "1":
            work(2)
    now = content(store)
    assert now[f"{CHECKPOINTS}.1/4/{RECORD}"] == "4" and now[f"{CHECKPOINTS}.2/2/{RECORD}"] == "2"
    assert now[f"{EVALUATIONS_FILE}.1"] == "4" and now["metrics.1/00000001.jsonl"] in before.values()
    assert {name.split("/")[0] for name in now} == {LOCK} | {
        f"{name}.{number}" for name in (CHECKPOINTS, "metrics", EVALUATIONS_FILE) for number in (1, 2)
    }


def test_folders_of_killed_runs_on_this_machine_are_removed(
    store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    left = tmp_path / "cache" / "mtfc" / "runs" / "left"
    left.mkdir(parents=True)
    with Mirror.open(RemoteFolder.open(URL), lambda _: None) as first:
        monkeypatch.setattr(run_folder, "YOUNG", -1.0)
        with Mirror.open(RemoteFolder.open(URL), lambda _: None) as second:
            assert sorted(left.parent.iterdir()) == sorted([first.path, second.path])
    assert not list(left.parent.iterdir())
