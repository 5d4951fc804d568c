"""A remote folder of a run, such as `gs://bucket/runs/lm`: the run works in a folder of this machine, of which it is a mirror.

Object stores cannot append, rename or lock, and orbax writes to few of them. So everything is written here first, by the code
that writes the folders of other runs, and then sent:

- A checkpoint is sent once orbax has finished it. It has a file `unfinished` until all of it is there. Before this file is
  removed, the figures of the steps up to the checkpoint are sent, and the lease of the run is checked.
- Figures are sent in parts, `metrics/00000001.jsonl` and so on. The last part is sent again until it is `PART` bytes long.
- `evaluations.json` is sent whole.

A run that goes on fetches the newest checkpoint, the figures and the evaluations. Each process has a folder of its own.
"""

from __future__ import annotations

import shutil
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from itertools import count
from pathlib import Path
from threading import Event, RLock, Thread

import attrs

from mtfc.backends.common.devices import Unavailable
from mtfc.driver.data.array_files import CHECKPOINTS, RECORD, STATE, UNFINISHED, remote_steps, steps_in
from mtfc.driver.data.files import RemoteFolder, cache
from mtfc.driver.errors import UsageError, say
from mtfc.driver.training.metrics import EVALUATIONS_FILE, METRICS
from mtfc.driver.training.run_lock import RunLock

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

    steps: those of the whole remote checkpoints. parts: of the figures. sent: bytes of the figures that are there.
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
