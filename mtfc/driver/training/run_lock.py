"""One training run at a time in a folder.

The lock is the operating system's, on the file `run.lock`: it ends with the process that holds it, whatever ends the process, and
works on local disks and on NFS. Where a file system has no locks, the file holds a counter that its owner raises. A run whose
counter stands still for `DEAD` seconds, by the clock of the observer, is dead. The file says who the owner is.
"""

from __future__ import annotations

import errno
import json
import os
import platform
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from threading import Event, Thread
from typing import IO, Any

import attrs

from mtfc.backends.common.devices import Unavailable
from mtfc.driver.data.files import parsed_json
from mtfc.driver.errors import UsageError, reason_of, say

LOCK = "run.lock"

DEAD = 60.0
"""Seconds after which a run without the system's lock counts as dead, if its counter stands still."""

BEAT = 10.0
"""Seconds between two steps of the counter."""

NO_LOCKS = {errno.ENOLCK, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS, errno.EINVAL}


@attrs.define
class RunLock:
    """The right of this process to write to the folder of a run. owner: what the lock's file says about the process."""

    path: Path
    owner: dict[str, Any]
    stopped: Event = attrs.field(factory=Event)

    @classmethod
    @contextmanager
    def hold(cls, folder: Path) -> Iterator[RunLock]:
        """Take the lock. Raises `Unavailable` if another run has it, and `UsageError` if the folder cannot be written."""
        try:
            folder.mkdir(parents=True, exist_ok=True)
            file = (folder / LOCK).open("a+", encoding="utf-8")
        except OSError as error:
            raise UsageError(f"cannot write to {folder}: {reason_of(error)}") from None
        started = time.strftime("%Y-%m-%d %H:%M:%S")
        owner = {"host": platform.node(), "pid": os.getpid(), "started": started, "run": uuid.uuid4().hex}
        lock = cls(folder / LOCK, owner)
        with file:
            is_leased = lock._take(file)
            lock._write(file, 0)
            if is_leased:
                time.sleep(
                    DEAD / 60
                )  # another run may have begun at the same moment: the last one to write stays
                lock.check()
            try:
                yield lock
            finally:
                lock.stopped.set()
                lock._clear(file)

    def check(self) -> None:
        """Raise `Unavailable` if the folder has been removed, or another run has taken it over."""
        found = _owner(self.path)
        if found.get("run") != self.owner["run"]:
            who = _described(found) if found else "its run.lock is gone"
            raise Unavailable(
                f"this run no longer owns {self.path.parent}: {who}; nothing more is written there"
            )

    def _take(self, file: IO[str]) -> bool:
        """Take the system's lock; return True if there is none, and the counter of the file has to do."""
        try:
            import fcntl
        except ImportError:  # Windows
            self._lease(file)
            return True
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return False
        except BlockingIOError:
            raise Unavailable(self._taken(_owner(self.path))) from None
        except OSError as error:
            if error.errno not in NO_LOCKS:
                raise UsageError(f"cannot lock {self.path}: {reason_of(error)}") from None
            self._lease(file)
            return True

    def _lease(self, file: IO[str]) -> None:
        """Wait until the run that the file names is known to be dead; then raise a counter of one's own."""
        before, end = _owner(self.path), time.monotonic() + DEAD
        if before:
            say(f"{self.path.parent} has no locks: waiting {DEAD:.0f} s for a sign of {_described(before)}")
        while before and time.monotonic() < end:
            time.sleep(DEAD / 60)
            if _owner(self.path) != before:
                raise Unavailable(self._taken(before))
        Thread(target=self._beat, args=(file,), daemon=True).start()

    def _beat(self, file: IO[str]) -> None:
        count = 0
        while not self.stopped.wait(BEAT):
            count += 1
            with suppress(OSError, ValueError):
                if _owner(self.path).get("run") == self.owner["run"]:
                    self._write(file, count)

    def _write(self, file: IO[str], count: int) -> None:
        file.seek(0)
        file.truncate()
        file.write(json.dumps({**self.owner, "count": count}))
        file.flush()

    def _clear(self, file: IO[str]) -> None:
        """Empty the file at the end, unless it names another run. The file stays: removing it would break others' locks."""
        with suppress(OSError):
            if _owner(self.path).get("run") == self.owner["run"]:
                file.seek(0)
                file.truncate()

    def _taken(self, owner: dict[str, Any]) -> str:
        return (
            f"{self.path.parent} belongs to a run that is under way: {_described(owner)}; "
            "wait for its end, stop it, or give another --dir"
        )


def _owner(path: Path) -> dict[str, Any]:
    """Return what a lock's file says about its owner; nothing if it is empty or unreadable."""
    try:
        found = parsed_json(path.read_bytes())
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def _described(owner: dict[str, Any]) -> str:
    if not owner:
        return "an unknown process"
    host, pid, started = (str(owner.get(key, "?"))[:80] for key in ("host", "pid", "started"))
    return f"process {pid} on {host}, started {started}"
