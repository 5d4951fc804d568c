"""The folder of a training run: one run at a time in it, and remote folders such as `gs://bucket/runs/lm`.

The lock is the operating system's, on the file `run.lock`: it ends with the process that holds it, whatever ends the process, and
works on local disks and on NFS. Where a file system has no locks, as an object store, the file holds a counter that its owner
raises: a lease. A run whose counter stands still for `DEAD` seconds, by the clock of the observer, is dead. The file says who the
owner is.

Object stores cannot append, rename or lock, and orbax writes to few of them. So a run works in a folder of this machine, of which
the remote one is a mirror. Everything is written here first, by the code that writes the folders of other runs, and then sent:

- A checkpoint is sent once orbax has finished it. It has a file `unfinished` until all of it is there. Before this file is
  removed, the figures of the steps up to the checkpoint are sent, and the lease of the run is checked.
- Figures are sent in parts, `metrics/00000001.jsonl` and so on. The last part is sent again until it is `PART` bytes long.
- `evaluations.json` is sent whole.

A run that goes on fetches the newest checkpoint, the figures and the evaluations. Each process has a folder of its own.
"""

from __future__ import annotations

import json
import os
import platform
import shutil
import tempfile
import time
import uuid
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from itertools import count
from pathlib import Path
from threading import Event, RLock, Thread
from typing import IO, Any

import attrs

from mtfc.backends.common.devices import Unavailable
from mtfc.driver.data.array_files import CHECKPOINTS, RECORD, STATE, UNFINISHED, remote_steps, steps_in
from mtfc.driver.data.files import RemoteFolder, cache, parsed_json, try_lock
from mtfc.driver.errors import UsageError, raised_as, say
from mtfc.driver.training.metrics import EVALUATIONS_FILE, METRICS

LOCK = "run.lock"

DEAD = 60.0
"""Seconds after which a run without the system's lock counts as dead, if its counter stands still."""

BEAT = 10.0
"""Seconds between two steps of the counter."""


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
        """Count up in the lock's file, again and again, so that other processes see that this one lives."""
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
        """Return the message that another run owns the folder."""
        return (
            f"{self.folder} belongs to a run that is under way: {_described(_owner(self.read()))}; "
            "wait for its end, stop it, or give another --dir"
        )


def _this_process() -> dict[str, Any]:
    started = time.strftime("%Y-%m-%d %H:%M:%S")
    return {"host": platform.node(), "pid": os.getpid(), "started": started, "run": uuid.uuid4().hex}


def _content(path: Path) -> bytes | None:
    """Return the bytes of a file; None if it cannot be read."""
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
    """Return the owner of a lock in words."""
    if not owner:
        return "an unknown process"
    host, pid, started = (str(owner.get(key, "?"))[:80] for key in ("host", "pid", "started"))
    return f"process {pid} on {host}, started {started}"


# Remote folders

PARTS = "metrics/"
"""The remote folder of figures."""

PART = 1 << 18
"""Bytes of figures after which a new part begins."""

PAUSE = 30.0
"""Seconds after which new figures are sent."""

YOUNG = 60.0
"""Seconds in which a run takes the lock of its new folder on this machine."""


@attrs.define
class FiguresPart:
    """A remote file with a part of the figures. start: the place of its first byte in the whole."""

    name: str
    start: int


@attrs.define(eq=False)
class Mirror:
    """A run's folder on this machine, and the remote one. lock: the lease, in the process that leads.

    steps: the steps of whole remote checkpoints. parts: the files of figures. sent: bytes of the figures that are there.
    together: waits until all processes have come to a place, by its name.
    """

    remote: RemoteFolder
    path: Path
    together: Callable[[str], None]
    lock: RunLock | None = None
    steps: list[int] = attrs.field(factory=list)
    parts: list[FiguresPart] = attrs.field(factory=list)
    sent: int = 0
    evaluations: bytes | None = None
    sending: RLock = attrs.field(factory=RLock)

    @classmethod
    @contextmanager
    def open(cls, remote: RemoteFolder, together: Callable[[str], None]) -> Iterator[Mirror]:
        """Make the folder on this machine, and remove those that killed runs have left."""
        top = cache() / "runs"
        top.mkdir(parents=True, exist_ok=True)
        for left in top.iterdir():
            if time.time() - left.stat().st_mtime > YOUNG:  # a younger one may not have its lock yet
                with suppress(Unavailable, UsageError), RunLock.hold(left):
                    shutil.rmtree(left, ignore_errors=True)
        path = Path(tempfile.mkdtemp(dir=top))
        with RunLock.hold(path):
            try:
                yield cls(remote, path, together)
            finally:
                shutil.rmtree(path, ignore_errors=True)

    @contextmanager
    def leased(self) -> Iterator[RunLock]:
        """Own the remote folder, and send figures now and then and at the end. Raises what `RunLock.lease` raises."""
        ended = Event()
        with RunLock.lease(self.remote) as self.lock:
            Thread(target=self._send_now_and_then, args=(ended,), daemon=True).start()
            try:
                yield self.lock
            except BaseException:
                ended.set()
                with suppress(Unavailable):
                    self.send_figures()
                raise
            ended.set()
            self.send_figures()

    def _send_now_and_then(self, ended: Event) -> None:
        """Send the figures of steps from time to time, until the run has ended."""
        while not ended.wait(PAUSE):
            with suppress(Unavailable):  # the next checkpoint says so
                self.send_figures()

    def move_aside(self) -> None:
        """Rename the results of an earlier run, so that nothing is lost: copies first."""
        names = self.remote.names()
        self.steps = remote_steps(names)
        for old in (CHECKPOINTS, METRICS, PARTS.rstrip("/"), EVALUATIONS_FILE):
            found = [each for each in names if each == old or each.startswith(f"{old}/")]
            if found:
                taken = {each.partition("/")[0] for each in names}
                new = next(place for i in count(1) if (place := f"{old}.{i}") not in taken)
                for each in found:
                    self.remote.copy(each, new + each.removeprefix(old))
                marks = [f"{old}/{step}/{UNFINISHED}" for step in self.steps] if old == CHECKPOINTS else []
                for each in marks:
                    self.remote.write(each, b"")
                self.remote.remove(found)
                self.remote.remove(marks)
                say(f"--fresh: {self.remote.url}/{old} is now {self.remote.url}/{new}")

    def clean(self) -> None:
        """Remove checkpoints that a killed run has left unfinished."""
        names = self.remote.names()
        for step in {each.partition("/")[0] for each in _inside(CHECKPOINTS, names)}:
            folder = f"{CHECKPOINTS}/{step}"
            unfinished = f"{folder}/{UNFINISHED}"
            if step.isdecimal() and unfinished in names:
                self._remove([each for each in names if each.startswith(f"{folder}/")], unfinished)

    def fetch(self) -> None:
        """Copy what a run needs to go on."""
        names = self.remote.names()
        self.steps = remote_steps(names)
        newest = f"{CHECKPOINTS}/{self.steps[-1]}" if self.steps else ""
        if f"{newest}/{RECORD}" in names:  # else it is none of mtfc, which is told without it
            self.remote.fetch([f"{newest}/{each}" for each in _inside(newest, names)], self.path)
        self.evaluations = self.remote.read(EVALUATIONS_FILE) if EVALUATIONS_FILE in names else None
        if self.evaluations is not None:
            (self.path / EVALUATIONS_FILE).write_bytes(self.evaluations)
        if self.lock is not None:
            self._fetch_figures(figures_in(names))

    def _fetch_figures(self, names: list[str]) -> None:
        """Join the parts of the figures; a folder that was copied from a machine has them in one file."""
        contents = [self.remote.read(each) or b"" for each in names]
        self.sent = 0
        for name, content in zip(names, contents, strict=True):
            self.parts.append(FiguresPart(name, self.sent))
            self.sent += len(content)
        if names:
            (self.path / METRICS).write_bytes(b"".join(contents))

    def send(self, step: int) -> None:
        """Send a finished checkpoint, and remove it here. All processes send their files of it."""
        folder = self.path / CHECKPOINTS / str(step)
        leads = self.lock is not None
        found = folder.rglob("*") if leads else folder.glob(f"{STATE}/*/*")  # all have the same files above
        files = {each.relative_to(self.path).as_posix(): each for each in found if each.is_file()}
        unfinished = f"{CHECKPOINTS}/{step}/{UNFINISHED}"
        if self.lock is not None:
            self.lock.check()
            self.remote.write(unfinished, b"")
        self.together(f"{unfinished}: begins")
        self.remote.send(files)
        self.together(f"{unfinished}: is there")
        if self.lock is not None:
            self.send_figures()
            self.lock.check()
            self.remote.remove([unfinished])
        self.steps.append(step)
        for each in steps_in(folder.parent):
            shutil.rmtree(folder.parent / str(each), ignore_errors=True)

    def remove(self, step: int) -> None:
        """Remove a checkpoint. A process that is killed meanwhile leaves one that counts as unfinished."""
        folder = f"{CHECKPOINTS}/{step}"
        self.remote.write(f"{folder}/{UNFINISHED}", b"")
        self.steps.remove(step)
        self._remove(self.remote.names(folder), f"{folder}/{UNFINISHED}")

    def _remove(self, names: list[str], unfinished: str) -> None:
        self.remote.remove([each for each in names if each != unfinished])
        self.remote.remove([unfinished])

    def send_figures(self) -> None:
        """Send the evaluations, and the lines of the figures that are new; take back those that are no longer there."""
        assert self.lock is not None
        with self.sending:
            evaluations, figures = self.path / EVALUATIONS_FILE, self.path / METRICS
            content = evaluations.read_bytes() if evaluations.exists() else None
            size = figures.stat().st_size if figures.exists() else 0
            if (content, size) == (self.evaluations, self.sent):
                return
            self.lock.check()
            if content is not None and content != self.evaluations:
                self.remote.write(EVALUATIONS_FILE, content)
                self.evaluations = content
            if size != self.sent:
                self._send_lines(figures, size)

    def _send_lines(self, figures: Path, size: int) -> None:
        """Remove the parts after the end of the figures, and send the last part. The last line may be half written."""
        gone = [each for each in self.parts if each.start >= size]
        self.remote.remove([each.name for each in reversed(gone)])
        self.parts = [each for each in self.parts if each.start < size]
        if not size:
            self.sent = 0
            return
        if not self.parts or (size > self.sent and self.sent - self.parts[-1].start >= PART):
            number = 1 + sum(each.name.startswith(PARTS) for each in self.parts)
            self.parts.append(FiguresPart(f"{PARTS}{number:08d}.jsonl", self.sent if self.parts else 0))
        last = self.parts[-1]
        with figures.open("rb") as file:
            file.seek(last.start)
            lines = file.read()
        lines = lines[: lines.rfind(b"\n") + 1]
        self.remote.write(last.name, lines)
        self.sent = last.start + len(lines)


def figures_in(names: Iterable[str]) -> list[str]:
    """Return the names of the files with figures of steps, in order, among those of a run's remote folder."""
    return [each for each in names if each == METRICS or each.startswith(PARTS)]


def _inside(folder: str, names: list[str]) -> list[str]:
    """Return the names of the files in a folder, relative to the folder."""
    return [each.removeprefix(f"{folder}/") for each in names if each.startswith(f"{folder}/")]
