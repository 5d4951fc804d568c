"""The interface of a training run's data: a source, and its batches for one process.

Grain reads ahead in threads and counts the steps that were handed out, so a position is that of the consumer.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from threading import Thread
from typing import Any, Protocol

import attrs

from mtfc.backends.common.shares import Share
from mtfc.driver.data.array_files import Array
from mtfc.driver.errors import say

Position = Mapping[str, Any]
"""A position in the data, as a checkpoint stores it: numbers and text, ready for JSON."""

AHEAD = 4
"""The number of steps that are read ahead."""

CLOSING_SECONDS = 2.0
"""The longest time that closing waits for a read under way, which may be code of the user."""


class BatchIterator(Protocol):
    """The data of one step after the other, for one process: rows of each input, and all of an input that is not split.

    With several micro-batches a step, arrays have their number as the first dimension.
    """

    def __next__(self) -> dict[str, Array]: ...

    def state(self) -> Position:
        """Return the position after the last step that `next` returned; steps read ahead do not count."""

    def checksum(self) -> int:
        """Return a number that processes compare: of the first item of a function, which all of them call; else 0."""

    def close(self) -> None:
        """Stop reading ahead."""


class DataSource(Protocol):
    """The data of `--data` or `--eval`. steps_per_epoch: the number of steps in one pass; None if it is unknown."""

    @property
    def steps_per_epoch(self) -> int | None: ...

    def description(self) -> str:
        """Return a line for people: the number of examples and steps, and the examples that are left out."""

    def batches(self, share: Share, seed: int | None, start: Position | None = None) -> BatchIterator:
        """Return the steps for one process. Raises `UsageError`, and so does `next`; `next` also raises `CompileError`.

        seed: shuffles the examples, in another order each epoch, without end. None gives one pass in the order of the data.
        start: a position that `state` returned, of any process.
        """

    def places(self, position: Position, seed: int | None) -> str:
        """Return the examples of the step before a position, in all processes, and their files, for a message."""


@attrs.frozen(eq=False)
class PositionedIterator:
    """A grain iterator whose state also tells the order of the examples.

    A checkpoint's position has a meaning only in the same order. first: returns the checksum of the first item.
    """

    iterator: Any
    order: Mapping[str, Any]
    first: Callable[[], int] = int

    @classmethod
    def at(
        cls, iterator: Any, order: Mapping[str, Any], start: Position | None, name: str
    ) -> PositionedIterator:
        """Return the iterator at `start`, or with a message at the first step if the order is not that of `start`."""
        before = start["order"] if start else None
        if start and before == order:
            iterator.set_state(start["iterator"])
        elif before:
            changes = ", ".join(
                f"{key} {before.get(key)} -> {order.get(key)}"
                for key in {**before, **order}
                if before.get(key) != order.get(key)
            )
            say(
                f"{name}: the data has changed since the checkpoint ({changes}): reading starts at its first step"
            )
        return cls(iterator, order)

    def __iter__(self) -> Iterator[dict[str, Array]]:
        return self

    def __next__(self) -> dict[str, Array]:
        return dict(next(self.iterator))

    def state(self) -> Position:
        return {"order": dict(self.order), "iterator": self.iterator.get_state()}

    def checksum(self) -> int:
        return self.first()

    def close(self) -> None:
        closing = Thread(target=self.iterator.close, daemon=True)
        closing.start()
        closing.join(CLOSING_SECONDS)
