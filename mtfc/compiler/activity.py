"""The present activity of a long command, for the line on a terminal (`cli/progress.py`).

Code at any depth names its activity. The names are kept only while someone watches, and only those of the thread that is watched.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TypeVar

import attrs

from mtfc.compiler.records import define

T = TypeVar("T")


@define
class Activities:
    """The activities of the watched thread, the outermost first. figures: what a search has found, in place of activities."""

    names: list[str] = attrs.field(factory=list)
    figures: str | None = None

    def __str__(self) -> str:
        return ": ".join(self.names) if self.figures is None else self.figures


_WATCHED: ContextVar[Activities | None] = ContextVar("watched", default=None)


@contextmanager
def watched() -> Iterator[Activities]:
    """Watch the activities of this thread; other threads may read them at any time."""
    found = Activities()
    token = _WATCHED.set(found)
    try:
        yield found
    finally:
        _WATCHED.reset(token)


@contextmanager
def doing(what: str) -> Iterator[None]:
    """Name an activity while it goes on. what: the words that the user sees."""
    found = _WATCHED.get()
    if found is None:
        yield
        return
    depth = len(found.names)
    found.names.append(what)
    try:
        yield
    finally:
        del found.names[depth:]


def each_of(items: Sequence[T], noun: str) -> Iterator[T]:
    """Yield items, each as an activity such as `layout 2 of 7`."""
    for number, item in enumerate(items, 1):
        with doing(f"{noun} {number} of {len(items)}"):
            yield item


def show_figures(text: str | None) -> None:
    """Show figures in place of activities; None shows activities again."""
    found = _WATCHED.get()
    if found is not None:
        found.figures = text


# Searches

Progress = Callable[[str, float | None, float | None], None]
"""Receives the present activity of a search, and the best cost and bound so far where these are known."""


def silent(doing: str, cost: float | None, bound: float | None) -> None:
    """Reports nothing."""


PROGRESS: ContextVar[Progress] = ContextVar("progress", default=silent)
"""The receiver of the progress of searches in this thread."""


@contextmanager
def progress_to(receiver: Progress) -> Iterator[None]:
    """Report the progress of searches in the block to a receiver."""
    token = PROGRESS.set(receiver)
    try:
        yield
    finally:
        PROGRESS.reset(token)


def report_progress(doing: str, cost: float | None = None, bound: float | None = None) -> None:
    """Report the present activity of a search, with the best cost and the bound so far if they are known."""
    PROGRESS.get()(doing, cost, bound)
