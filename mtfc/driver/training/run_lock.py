"""One training run at a time in a folder.

The lock is the operating system's, on the file `run.lock`: it ends with the process that holds it, whatever ends the process, and
works on local disks and on NFS. Where a file system has no locks, as an object store, the file holds a counter that its owner
raises: a lease. A run whose counter stands still for `DEAD` seconds, by the clock of the observer, is dead. The file says who the
owner is.
"""

from __future__ import annotations

import errno
import json
import os
import platform
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from threading import Event, Thread
from typing import IO, Any

import attrs

from mtfc.backends.common.devices import Unavailable
from mtfc.driver.data.files import RemoteFolder, parsed_json
from mtfc.driver.errors import UsageError, raised_as, say

LOCK = "run.lock"

DEAD = 60.0
"""Seconds after which a run without the system's lock counts as dead, if its counter stands still."""

BEAT = 10.0
"""Seconds between two steps of the counter."""

NO_LOCKS = {errno.ENOLCK, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS, errno.EINVAL}


@attrs.define
class RunLock:
    """The right of this process to write to the folder of a run. owner: what the lock's file says about the process.

    folder: as messages name it. read, write: the content of the file; None if it is gone.
    """

    folder: str
    read: Callable[[], bytes | None]
    write: Callable[[bytes], object]
    owner: dict[str, Any] = attrs.field(factory=lambda: _this_process())
    stopped: Event = attrs.field(factory=Event)

    @classmethod
    @contextmanager
    def hold(cls, folder: Path) -> Iterator[RunLock]:
        """Take the lock. Raises `Unavailable` if another run has it, and `UsageError` if the folder cannot be written."""
        with raised_as(UsageError, f"cannot write to {folder}"):
            folder.mkdir(parents=True, exist_ok=True)
            (folder / LOCK).touch()
            file = (folder / LOCK).open("r+b", buffering=0)
        with file:
            lock = cls(str(folder), partial(_content, folder / LOCK), partial(_rewrite, file))
            with lock._held(is_leased=not lock._locks(file)):
                yield lock

    @classmethod
    @contextmanager
    def lease(cls, folder: RemoteFolder) -> Iterator[RunLock]:
        """Take the lease of a remote folder. Raises `Unavailable` if another run has it, or if the folder cannot be written."""
        lock = cls(folder.url, partial(folder.read, LOCK), partial(folder.write, LOCK))
        with lock._held(is_leased=True):
            yield lock

    def check(self) -> None:
        """Raise `Unavailable` if the folder has been removed, or another run has taken it over."""
        found = _owner(self.read())
        if found.get("run") != self.owner["run"]:
            who = _described(found) if found else "its run.lock is gone"
            raise Unavailable(f"this run no longer owns {self.folder}: {who}; nothing more is written there")

    def _locks(self, file: IO[bytes]) -> bool:
        """Take the system's lock; return False if there is none, and the counter of the file has to do."""
        with raised_as(UsageError, f"cannot lock {self.folder}/{LOCK}"):
            is_own = try_lock(file)
        if is_own is False:
            raise Unavailable(self._taken())
        return bool(is_own)

    @contextmanager
    def _held(self, is_leased: bool) -> Iterator[None]:
        """Own the file during the block."""
        if is_leased:
            self._wait_for_owner()
        with raised_as(Unavailable, f"cannot write to {self.folder}"):
            self._count(0)
        if is_leased:
            time.sleep(
                DEAD / 60
            )  # another run may have begun at the same moment: the last one to write stays
            self.check()
        beat = Thread(target=self._beat, daemon=True)
        if is_leased:
            beat.start()
        try:
            yield
        finally:
            self.stopped.set()
            if is_leased:
                beat.join()  # what it still writes would outlive the run
            with suppress(OSError, Unavailable):  # the file stays: removing it would break others' locks
                if self._is_own():
                    self.write(b"")

    def _wait_for_owner(self) -> None:
        """Wait until the run that the file names is known to be dead. Raises `Unavailable` if it lives."""
        before = self.read()
        if before:
            say(
                f"{self.folder} has no locks: waiting {DEAD:.0f} s for a sign of {_described(_owner(before))}"
            )
        looks = 60 if before else 0  # looks are counted, not the time: a machine that slept proves nothing
        for _ in range(looks):
            time.sleep(DEAD / 60)
            if not (now := self.read()):  # the other run has come to its end
                return
            if now != before:
                raise Unavailable(self._taken())

    def _beat(self) -> None:
        count = 0
        while not self.stopped.wait(BEAT):
            count += 1
            with suppress(OSError, ValueError, Unavailable):
                if self._is_own():
                    self._count(count)

    def _is_own(self) -> bool:
        return bool(_owner(self.read()).get("run") == self.owner["run"])

    def _count(self, count: int) -> None:
        """Write the counter in as many digits each time: whatever a reader finds while it is written names the owner."""
        self.write(json.dumps({**self.owner, "count": f"{count:012d}"}).encode())

    def _taken(self) -> str:
        return (
            f"{self.folder} belongs to a run that is under way: {_described(_owner(self.read()))}; "
            "wait for its end, stop it, or give another --dir"
        )


def try_lock(file: IO[Any]) -> bool | None:
    """Lock a file until it is closed. Return False if another process has the lock, and None if there are no locks here.

    Raises `OSError` for another reason.
    """
    try:
        import fcntl
    except ImportError:  # Windows
        return None
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError as error:
        if error.errno not in NO_LOCKS:
            raise
        return None
    return True


def _this_process() -> dict[str, Any]:
    started = time.strftime("%Y-%m-%d %H:%M:%S")
    return {"host": platform.node(), "pid": os.getpid(), "started": started, "run": uuid.uuid4().hex}


def _content(path: Path) -> bytes | None:
    try:
        return path.read_bytes()
    except OSError:
        return None


def _rewrite(file: IO[bytes], content: bytes) -> None:
    """Write over what the file holds. A reader never finds it empty on the way, as that would say that the run has ended."""
    file.seek(0)
    file.write(content)
    file.truncate()


def _owner(content: bytes | None) -> dict[str, Any]:
    """Return what the content of a lock's file says about its owner; nothing if it is empty or no JSON."""
    try:
        found = parsed_json(content or b"")
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


def _described(owner: dict[str, Any]) -> str:
    if not owner:
        return "an unknown process"
    host, pid, started = (str(owner.get(key, "?"))[:80] for key in ("host", "pid", "started"))
    return f"process {pid} on {host}, started {started}"
