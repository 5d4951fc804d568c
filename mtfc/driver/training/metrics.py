"""The figures of a training run: on the terminal, in a JSONL file, in TensorBoard, and to a function of the user.

Only process 0 writes. The evaluations of a run are a file of their own in its folder, so that a run that goes on knows those
before its checkpoint: they say which checkpoint is the best, and whether the run ends early.
"""

from __future__ import annotations

import errno
import json
import os
import re
from collections.abc import Callable, Mapping
from contextlib import suppress
from itertools import count
from math import isfinite, nan
from pathlib import Path
from time import time
from typing import Any, TextIO
from uuid import uuid4

import attrs

from mtfc.backends.common.devices import Unavailable
from mtfc.compiler.diagnostics import did_you_mean
from mtfc.compiler.ir.core import Program
from mtfc.driver.data.files import parsed_json, replace_file, try_lock
from mtfc.driver.data.packages import import_package
from mtfc.driver.errors import UsageError, raised_as, say
from mtfc.driver.options import Metric
from mtfc.driver.training.user_code import explained, imported_function
from mtfc.reports.array_summary import finite, scalars
from mtfc.reports.source_lines import listed
from mtfc.reports.training_report import TrainingStep, step_line

METRICS = "metrics.jsonl"
"""The name in the folder of a run."""

RUN = "mtfc-run.txt"
"""The file in a folder of TensorBoard that names the folder of the run that writes there."""


class Sink:
    """A receiver of the finished steps."""

    def step(self, step: TrainingStep) -> None:
        raise NotImplementedError

    def close(self) -> None:
        """Release what the receiver holds."""


@attrs.define
class JsonLines(Sink):
    """A file with one JSON object a step. A run that goes on from a checkpoint drops the lines of later steps first."""

    path: Path
    file: TextIO

    @classmethod
    def open(
        cls,
        path: Path,
        after: int,
        is_own: Callable[[FiguresOfStep], bool] = bool,
        shown: str | None = None,
    ) -> JsonLines:
        """Open the file at the end of step `after`, the last one before this run.

        is_own: tells from its lines by step if the file is of this run. Then figures of later steps are dropped; the file of
        another run is moved aside. Standard error says both. shown: the path as messages name it. Raises `UsageError` if the file
        cannot be written, or has other lines than those of training, and `Unavailable` if a run under way writes to it.
        """
        with raised_as(UsageError, f"cannot write {path}", OSError, UnicodeDecodeError):
            path.parent.mkdir(parents=True, exist_ok=True)
            if path.is_file() or not path.exists():
                with _owned(path):
                    dropped = _drop_later_lines(path, after, is_own)
                if dropped:
                    later = f"{dropped} later step{'s' if dropped > 1 else ''}"
                    say(f"{shown or path}: the figures of {later} are dropped")
                return cls(path, _owned(path))
            return cls(path, _pipe(path) if path.is_fifo() else path.open("a", encoding="utf-8"))

    def step(self, step: TrainingStep) -> None:
        """Write a line. Raises `Unavailable` if the disk is full."""
        with raised_as(Unavailable, f"cannot write {self.path}"):
            self.file.write(json.dumps(step.record()) + "\n")
            self.file.flush()

    def close(self) -> None:
        with suppress(OSError):  # the part of a line that did not fit
            self.file.close()


def _owned(path: Path) -> TextIO:
    """Open a file to append to, and lock it until it is closed. Raises `Unavailable` if another run has the lock."""
    while True:
        file = path.open("a", encoding="utf-8")
        if try_lock(file) is False:
            file.close()
            raise Unavailable(f"{path} belongs to a run that is under way: name another file with --log")
        with suppress(FileNotFoundError):
            if os.fstat(file.fileno()).st_ino == path.stat().st_ino:
                return file
        file.close()  # another run has just put another file there


def _pipe(path: Path) -> TextIO:
    """Open a pipe. Raises `OSError` if nobody reads it: `open` would wait for a reader."""
    try:
        number = os.open(path, os.O_WRONLY | os.O_NONBLOCK)
    except OSError as error:
        raise OSError(error.errno, "nobody reads the pipe") if error.errno == errno.ENXIO else error from None
    os.set_blocking(number, True)
    return os.fdopen(number, "w", encoding="utf-8")


FiguresOfStep = Mapping[int, Mapping[str, Any]]
"""The lines of a file of figures by step."""


def _drop_later_lines(path: Path, after: int, is_own: Callable[[FiguresOfStep], bool]) -> int:
    """Rewrite a file without the lines of steps after `after`, as a whole or not at all, and return their number.

    A file of another run is moved aside. A killed process may leave a part of its last line. Raises `UsageError` if another line
    has no step.
    """
    lines = path.read_text("utf-8").splitlines(keepends=True)
    records = [record_of(line) for line in lines]
    if None in records[:-1] or (lines and records[-1] is None and not BEGUN.fullmatch(lines[-1])):
        raise UsageError(
            f"{path} has lines that `mtfc train` has not written: name another file with --log, or another --dir"
        )
    figures = {record["step"]: record for record in records if record}
    if lines and not is_own(figures):
        aside = next(place for i in count(1) if not (place := path.with_name(f"{path.name}.{i}")).exists())
        path.rename(aside)
        say(f"{path} had the figures of another run: they are in {aside}")
        return 0
    pairs = zip(lines, records, strict=True)
    kept = [line for line, record in pairs if record and record["step"] <= after]
    replace_file(path, lambda file: file.write("".join(kept).encode()))
    return len(lines) - len(kept)


BEGUN = re.compile(r'\{("(s(t(e(p(".*)?)?)?)?)?)?')
"""The part of a line that a killed process has written."""


def record_of(line: str) -> dict[str, Any] | None:
    """Return the figures of a line; None for a line that `mtfc train` has not written, or not whole."""
    try:
        record = parsed_json(line)
    except ValueError:
        return None
    is_step = isinstance(record, dict) and type(record.get("step")) is int
    return record if is_step else None


def figures_in(path: Path, step: int) -> Mapping[str, Any]:
    """Return the figures of a step; none if the file does not have them."""
    with suppress(OSError, ValueError):
        for record in map(record_of, reversed(path.read_text("utf-8").splitlines())):
            if record and record["step"] == step:
                return record
    return {}


@attrs.define
class TensorBoard(Sink):
    """An event file for TensorBoard, with one curve for each figure.

    writer: writes at once. The other one of tensorboardX has a thread, which ends when the disk is full, and blocks its callers.
    """

    folder: Path
    writer: Any

    @classmethod
    def open(cls, folder: Path, after: int, run: str | None) -> TensorBoard:
        """Open a new event file in the folder; TensorBoard hides the points of earlier files after step `after`.

        run: the folder of the run. Standard error says if the curves there are of another one. Raises `UsageError`.
        """
        events = import_package("tensorboardX.event_file_writer", "tensorboardX")
        owner = folder / RUN
        with raised_as(UsageError, f"cannot write to {folder}", OSError, UnicodeDecodeError):
            known = owner.read_text("utf-8") if owner.is_file() else ""
            if any(folder.glob("events.out.tfevents.*")) and not (after and known == str(run)):
                hidden = f", and hides those after step {after}" if after else ""
                say(f"{folder} has curves of another run: TensorBoard shows both as one{hidden}")
            folder.mkdir(parents=True, exist_ok=True)
            owner.write_text(str(run), "utf-8")
            name = f".{os.getpid()}.{uuid4().hex[:8]}"  # two runs may begin in the same second
            found = cls(folder, events.EventsWriter(str(folder / "events"), name))
            if after:
                start = events.event_pb2.SessionLog.START
                found._write(step=after + 1, session_log=events.event_pb2.SessionLog(status=start))
            return found

    def step(self, step: TrainingStep) -> None:
        """Write the figures. Raises `Unavailable` if the disk is full."""
        scalar = import_package("tensorboardX.summary", "tensorboardX").scalar
        with raised_as(Unavailable, f"cannot write to {self.folder}"):
            for name, value in scalars(step.figures()).items():
                self._write(step=step.number, summary=scalar(name, value))
            self.writer.flush()

    def close(self) -> None:
        """Close the file; errors of a full disk were reported before."""
        try:
            self.writer.close()
        except OSError:  # the part of an event that did not fit
            with suppress(OSError):  # Python 3.13 reports a file that stays open
                self.writer._py_recordio_writer.close()

    def _write(self, **event: Any) -> None:
        events = import_package("tensorboardX.event_file_writer", "tensorboardX").event_pb2
        self.writer.write_event(events.Event(wall_time=time(), **event))


@attrs.frozen
class UserSink(Sink):
    """A function of the user, which takes the record of each step: the JSON object of `JsonLines` as a dict."""

    name: str
    function: Callable[[dict[str, Any]], object]

    @classmethod
    def open(cls, spec: str) -> UserSink:
        """Import the function. Raises `UsageError`."""
        return cls(spec, imported_function(spec, "--metrics", "a function that takes the figures of a step"))

    def step(self, step: TrainingStep) -> None:
        """Call the function. Raises `UsageError` if it fails."""
        with explained(f"--metrics {self.name}"):
            self.function(step.record())


@attrs.define
class Lines(Sink):
    """Some of the steps as lines of text: steps with an evaluation, the first step, the last, and one of `every` steps."""

    to: TextIO
    total: int
    every: int

    def step(self, step: TrainingStep) -> None:
        if step.evaluation or step.number in (1, self.total) or step.number % self.every == 0:
            print(step_line(step, self.total), file=self.to, flush=True)


LINES = 20
"""Number of steps that the text of a training run shows if no option says how many."""


@attrs.define
class ProgressBar(Sink):
    """A bar on a terminal, with the last figures; above it the lines of `Lines`."""

    bar: Any
    task: Any
    every: int

    @classmethod
    def of(cls, total: int, done: int, every: int) -> ProgressBar:
        """Start a bar at `done` of `total` steps, which shows figures every `every` steps."""
        progress = import_package("rich.progress", "rich")
        console = import_package("rich.console", "rich").Console(stderr=True, highlight=False)
        columns = (
            progress.TextColumn("step {task.completed}/{task.total}"),
            progress.BarColumn(),
            progress.TextColumn("{task.fields[figures]}"),
            progress.TimeRemainingColumn(),
        )
        bar = progress.Progress(*columns, console=console, transient=True)
        bar.start()
        task = bar.add_task("", total=total, completed=done, figures="compiling the step")
        return cls(bar, task, every)

    def step(self, step: TrainingStep) -> None:
        """Move the bar to a step, and print the line of some steps above it."""
        total = int(self.bar.tasks[0].total)
        line = step_line(step, total)
        self.bar.update(self.task, completed=step.number, figures=line.partition("  ")[2].strip())
        if step.evaluation or step.number == total or step.number % self.every == 0:
            self.bar.console.print(line)

    def close(self) -> None:
        self.bar.stop()


@attrs.frozen
class Throughput:
    """The number of tokens or examples of a step: `unit` is `tokens` or `examples`."""

    unit: str
    per_step: int

    @classmethod
    def of(cls, inputs: Mapping[str, Any], accumulate: int) -> Throughput:
        """Return the throughput of inputs by name, with dtypes and shapes: tokens if there are integers of two dimensions."""
        tokens = [x.shape for x in inputs.values() if x.dtype.name == "int32" and len(x.shape) == 2]
        if tokens:
            return cls("tokens", accumulate * max(rows * length for rows, length in tokens))
        rows = [x.shape[0] for x in inputs.values() if x.shape]
        return cls("examples", accumulate * max(rows, default=1))


# Evaluations

EVALUATIONS_FILE = "evaluations.json"
"""The name in the folder of a run."""


@attrs.define
class Evaluations:
    """The evaluations of a run. found: step -> means. patience: evaluations without a better one after which the run ends.

    path: the path of the file, in the process that writes it. keeps: the checkpoint of the best evaluation stays.
    """

    metric: Metric
    patience: int | None
    path: Path | None
    keeps: bool
    found: dict[int, Mapping[str, float]]

    @classmethod
    def read(
        cls, metric: Metric, patience: int | None, keeps: bool, folder: Path | None, after: int, leads: bool
    ) -> Evaluations:
        """Return the evaluations up to step `after`, the last one before this run. A damaged file counts as none."""
        path = folder / EVALUATIONS_FILE if folder else None
        found: dict[int, Mapping[str, float]] = {}
        if path is not None and path.is_file():
            with suppress(OSError, ValueError, TypeError, AttributeError):
                found = {
                    int(step): {str(k): nan if v is None else float(v) for k, v in means.items()}
                    for step, means in parsed_json(path.read_bytes()).items()
                }
        kept = {step: means for step, means in sorted(found.items()) if step <= after}
        return cls(metric, patience, path if leads else None, keeps, kept)

    def add(self, step: int, means: Mapping[str, float]) -> bool:
        """Add an evaluation, and return True if it is the best one so far."""
        self.found[step] = means
        return self.best == step

    def write(self) -> None:
        """Write the file, in the process that does. Raises `Unavailable` if the disk is full."""
        if self.path is None:
            return
        finite_means = {each: {k: finite(v) for k, v in of.items()} for each, of in self.found.items()}
        with raised_as(Unavailable, f"cannot write {self.path}"):
            replace_file(self.path, lambda file: file.write(json.dumps(finite_means).encode()))

    @property
    def best(self) -> int | None:
        """The step of the best evaluation, the first of equals; None without one."""
        values = {step: means.get(self.metric.name, nan) for step, means in self.found.items()}
        sign = -1 if self.metric.is_best_high else 1
        return min(
            filter(lambda step: isfinite(values[step]), values),
            key=lambda step: sign * values[step],
            default=None,
        )

    @property
    def is_over(self) -> bool:
        """True if none of the last evaluations was the best, so that the run ends."""
        if self.patience is None:
            return False
        best = self.best or 0
        return sum(step > best for step in self.found) >= self.patience


def metric_of(wanted: Metric | None, program: Program) -> Metric:
    """Return the metric with its direction, by default the loss. Raises `UsageError`."""
    assert program.training is not None
    loss, outputs = program.training.minimize, program.function("forward").handed_out
    known = [each.name for each in outputs if len(each.value.type.dims) < 2]
    known += [f"averaged_{name}" for name in known if program.training.average is not None]
    metric = wanted or Metric(loss)
    if metric.name not in known:
        help = did_you_mean(metric.name, known, f"an evaluation has {listed(known)}")
        raise UsageError(f"--keep-best: an evaluation has no mean `{metric.name}`; {help}")
    if metric.is_best_high is None and metric.name not in (loss, f"averaged_{loss}"):
        name = metric.name
        raise UsageError(f"--keep-best {name}: say which is better, as {name}:max or {name}:min")
    return attrs.evolve(metric, is_best_high=bool(metric.is_best_high))
