"""One run at a time in a folder: by the system's lock, and by a counter where there are no locks."""

import errno
import fcntl
import json
import os
import subprocess
import sys
import time
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from mtfc.backends.common.devices import Unavailable
from mtfc.driver.training import run_folder
from mtfc.driver.training.run_folder import LOCK, RunLock

HOLDER = """
import sys
from itertools import pairwise
from pathlib import Path
from mtfc.driver.training.run_folder import RunLock
with RunLock.hold(Path(sys.argv[1])):
    print("held", flush=True)
    sys.stdin.read()
"""


def holder(folder: Path) -> subprocess.Popen[str]:
    """Start another process that holds the lock."""
    command = [sys.executable, "-c", HOLDER, str(folder)]
    root = Path(__file__).parents[2]
    process = subprocess.Popen(
        command,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": str(root)},
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "held\n"
    return process


def test_a_second_run_is_refused_and_told_about_the_first(tmp_path: Path) -> None:
    process = holder(tmp_path)
    with pytest.raises(Unavailable) as refused, RunLock.hold(tmp_path):
        pass
    assert f"process {process.pid} on " in str(refused.value)
    assert "started 20" in str(refused.value)
    process.communicate("")
    with RunLock.hold(tmp_path):
        pass


def test_a_killed_run_holds_nothing(tmp_path: Path) -> None:
    process = holder(tmp_path)
    process.kill()
    process.wait()
    with RunLock.hold(tmp_path) as lock:
        lock.check()
    assert (tmp_path / LOCK).read_text() == ""


def test_a_run_whose_folder_was_taken_or_removed_stops_writing(tmp_path: Path) -> None:
    with RunLock.hold(tmp_path) as lock:
        (tmp_path / LOCK).write_text(json.dumps({"host": "h", "pid": 7, "started": "now", "run": "other"}))
        with pytest.raises(Unavailable, match="process 7 on h, started now"):
            lock.check()
        (tmp_path / LOCK).unlink()
        with pytest.raises(Unavailable, match=r"its run\.lock is gone"):
            lock.check()


@pytest.fixture
def without_locks(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*_: Any) -> None:
        raise OSError(errno.ENOLCK, "no locks")

    monkeypatch.setattr(fcntl, "flock", refused)
    monkeypatch.setattr(run_folder, "DEAD", 3.0)
    monkeypatch.setattr(run_folder, "BEAT", 0.1)


@pytest.mark.usefixtures("without_locks")
def test_without_locks_a_living_run_is_seen_by_its_counter(tmp_path: Path) -> None:
    with RunLock.hold(tmp_path):
        time.sleep(0.3)
        with pytest.raises(Unavailable, match="belongs to a run that is under way"), RunLock.hold(tmp_path):
            pass


@pytest.mark.usefixtures("without_locks")
def test_the_counter_is_never_gone_while_it_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run_folder, "BEAT", 0.0)
    with RunLock.hold(tmp_path) as lock:
        for _ in range(20_000):
            lock.check()
    assert (tmp_path / LOCK).read_text() == ""


def test_a_counter_that_is_half_written_names_the_owner(tmp_path: Path) -> None:
    """A reader may see the first bytes of one count and the last of another, and the size of either."""
    with RunLock.hold(tmp_path) as lock:
        counts = []
        for count in (9, 10, 99, 100, 1_000_000_000):
            lock._count(count)
            counts.append((tmp_path / LOCK).read_bytes())
        for old, new in pairwise(counts):
            for split in range(len(new) + 1):
                for size in (len(old), len(new)):
                    (tmp_path / LOCK).write_bytes((new[:split] + old[split:])[:size])
                    lock.check()


@pytest.mark.usefixtures("without_locks")
def test_without_locks_a_dead_run_is_seen_by_its_counter(tmp_path: Path) -> None:
    (tmp_path / LOCK).write_text(
        json.dumps({"host": "h", "pid": 7, "started": "now", "run": "dead", "count": 3})
    )
    with RunLock.hold(tmp_path) as lock:
        lock.check()


@pytest.mark.parametrize("content", ["", "no JSON", "[" * 100_000, '{"pid": Infinity}', "[1]"])
def test_a_damaged_lock_is_no_owner(tmp_path: Path, content: str) -> None:
    (tmp_path / LOCK).write_text(content)
    with RunLock.hold(tmp_path) as lock:
        lock.check()
