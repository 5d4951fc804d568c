"""The line on a terminal that says what a command does, once the command has been silent for two seconds.

Any output hides the line, so that it never stands between the lines of a result. Pipes and files never get it.
"""

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from threading import Event, RLock, Thread
from time import monotonic
from typing import Any, TextIO, cast

import attrs

from mtfc.compiler.activity import Activities, doing, progress_to, show_figures, watched

PATIENCE = 2.0
"""Seconds without output before the line appears."""

OFTEN = 0.1
"""Seconds from one picture of the line to the next."""


@contextmanager
def progress_line(command: str) -> Iterator[None]:
    """Show the activities of a command on standard error, which is a terminal."""
    if os.environ.get("TERM") == "dumb":
        yield
        return
    streams = sys.stdout, sys.stderr
    with watched() as activities, doing(f"mtfc {command}"):
        line = _Line(sys.stderr, activities)
        sys.stdout, sys.stderr = map(line.around, streams)
        Thread(target=line.watch, daemon=True).start()
        try:
            yield
        finally:
            line.close()
            sys.stdout, sys.stderr = streams


@contextmanager
def figures_line(number: str, seconds: float) -> Iterator[None]:
    """Show the figures of a search in the format `number`, for example `.4g`, and the rest of its seconds."""
    until = monotonic() + seconds

    def report(activity: str, best: float | None, bound: float | None) -> None:
        """Show the activity, the best result and its lower bound so far, and the seconds that are left."""
        figures = (("best", best), ("at least", bound))
        known = [f"{name} {each:{number}}" for name, each in figures if each is not None]
        show_figures(", ".join([activity, *known, f"{max(until - monotonic(), 0.0):.0f} s left"]))

    try:
        with progress_to(report):
            yield
    finally:
        show_figures(None)


@attrs.define
class _Line:
    """The line on a terminal. bar: the line while it is visible. silent: the time of the last output.

    is_open: True after output that ends within a line, which the line may not follow.
    """

    terminal: TextIO
    activities: Activities
    began: float = attrs.field(factory=monotonic)
    silent: float = attrs.field(factory=monotonic)
    is_open: bool = False
    bar: Any = None
    lock: Any = attrs.field(factory=RLock)
    closed: Event = attrs.field(factory=Event)

    def around(self, stream: TextIO) -> TextIO:
        """Return a stream that hides the line before it writes to the terminal."""
        return cast(TextIO, _HidingStream(stream, self)) if stream.isatty() else stream

    def watch(self) -> None:
        """Show the line while nothing else is written, until it is closed."""
        while not self.closed.wait(OFTEN):
            with self.lock:
                if self.closed.is_set() or self.is_open or monotonic() - self.silent < PATIENCE:
                    continue
                self._draw()

    def _draw(self) -> None:
        """Show the activities and the seconds so far in a line of the terminal, which begins with the first call."""
        text, seconds = str(self.activities), f"{monotonic() - self.began:.0f} s"
        if self.bar is None:
            self.bar = _bar(self.terminal)
            self.bar.add_task(text, seconds=seconds)
            self.bar.start()
            self.bar.console.show_cursor(True)  # a process that is killed leaves the cursor as it is
        self.bar.update(self.bar.task_ids[0], description=text, seconds=seconds, refresh=True)

    def hide(self, text: str = "") -> None:
        """Erase the line, for a text that is written now."""
        with self.lock:
            if self.bar is not None:
                self.bar.stop()
                self.bar = None
            self.silent = monotonic()
            self.is_open = not text.endswith("\n") if text else self.is_open

    def close(self) -> None:
        self.closed.set()
        self.hide()


def _bar(terminal: TextIO) -> Any:
    """Return a line of rich: a spinner, the activities and the seconds."""
    from rich.console import Console
    from rich.progress import Progress as Bar
    from rich.progress import SpinnerColumn, TextColumn
    from rich.table import Column

    one_line = Column(no_wrap=True, overflow="ellipsis")
    columns = (
        SpinnerColumn(),
        TextColumn("{task.description}", markup=False, table_column=one_line),
        TextColumn("{task.fields[seconds]}", markup=False, table_column=Column(no_wrap=True)),
    )
    return Bar(
        *columns,
        console=Console(file=terminal),
        transient=True,
        auto_refresh=False,
        redirect_stdout=False,
        redirect_stderr=False,
    )


@attrs.define
class _HidingStream:
    """A stream to the terminal that has the line."""

    stream: TextIO
    line: _Line

    def write(self, text: str) -> int:
        """Write text after hiding the line of activities, which would stand in between."""
        with self.line.lock:
            self.line.hide(text)
            return self.stream.write(text)

    def __getattr__(self, name: str) -> Any:
        """Return another attribute: flushing, and writing bytes, hide the line as well."""
        self.line.hide()
        return getattr(self.stream, name)
