"""The interface of a training run's data: the inputs that it fills, a source, its batches for one process, and their order.

Grain reads ahead in threads and counts the steps that were handed out, so a position is that of the consumer.

The order of examples is a permutation in each epoch, or a mixture of the permutations of several sources. A permutation is
computed for whole arrays of positions, without a table. A round multiplies by an odd number, adds another and mixes high bits
into low ones; each is invertible modulo a power of two. A number that falls outside the examples is permuted again until it is
inside. The keys are a hash of the seed and the epoch, so the order is the same on every machine.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import lru_cache, partial
from hashlib import shake_128
from itertools import accumulate
from threading import Thread
from typing import Any, Protocol

import attrs
import numpy as np

from mtfc.backends.common.shares import Share
from mtfc.compiler.diagnostics import CompileError, Diagnostic, Span
from mtfc.compiler.ir.core import Program
from mtfc.compiler.ir.ops.elementwise import numpy_dtype
from mtfc.compiler.ir.types import FLOATS, TensorType
from mtfc.driver.data.array_files import Array, whole
from mtfc.driver.data.inputs import index_bound, inputs_of
from mtfc.driver.data.packages import import_package
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


@attrs.frozen
class DataInput:
    """An input of the model. bound: the size of the smallest dimension that its numbers are indices into, if there is one."""

    name: str
    type: TensorType
    span: Span | None
    bound: int | None

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape in the global batch."""
        return tuple(dim.size for dim in self.type.dims)

    @property
    def rows(self) -> int:
        """Number of rows in the global batch; 1 for a scalar."""
        return self.shape[0] if self.shape else 1

    def converted(self, array: Array, place: Callable[[int], str]) -> Array:
        """Return an array in the dtype of the input. Raises `CompileError` (E504) for integers that the input cannot take.

        place: names the row with a given position in the array, for the message.
        """
        if self.type.dtype not in FLOATS and array.dtype.kind in "iu" and array.size:
            self._check_range(array, place)
        with np.errstate(over="ignore"):
            return np.asarray(array, numpy_dtype(np, self.type.dtype), order="C")

    def _check_range(self, array: Array, place: Callable[[int], str]) -> None:
        """Raise `CompileError` if an integer is out of range. Dtypes whose integers are all in range cost nothing."""
        limits, held = np.iinfo(numpy_dtype(np, self.type.dtype)), np.iinfo(array.dtype)
        least, most = (limits.min, limits.max) if self.bound is None else (0, self.bound - 1)
        if (held.min >= least or array.min() >= least) and (held.max <= most or array.max() <= most):
            return
        outside = (array < least) | (array > most)
        row = int(np.argwhere(outside)[0][0]) if array.ndim else 0
        takes = f"takes numbers from {least} to {most}"
        found = f"{place(row)} has {array[outside].flat[0]}"
        raise CompileError(
            [Diagnostic("E504", f"input `{self.name}` {takes}, and {found}", self.span or whole(self.name))]
        )


def data_inputs(program: Program) -> tuple[DataInput, ...]:
    """Return the inputs of the undistributed model, in the order of the file."""
    forward = program.function("forward")
    return tuple(
        DataInput(
            each.value.name,
            each.value.type.unsplit(),
            each.span,
            index_bound(each.value.name, forward.body),
        )
        for each in inputs_of(forward)
    )


def place_in(starts: Array, number: int) -> tuple[int, int]:
    """Return the file that has an example or document, and its number there. starts: of the files, and the number of all."""
    file = int(np.searchsorted(starts, number, side="right")) - 1
    return file, number - int(starts[file])


ROUNDS = 6

LEAST_BITS = 8
"""The fewest bits of the permuted numbers: rounds on fewer bits make too few permutations."""


@attrs.frozen
class ExampleOrder:
    """The order of `count` examples in each epoch, drawn from `seed`; None keeps the order of the files.

    taken: the number of examples that an epoch takes, if it leaves some out.
    """

    count: int
    seed: int | None
    taken: int | None = None

    def numbers(self, positions: Array) -> Array:
        """Return the numbers of the examples at these positions, which are counted from the start of training."""
        if self.seed is None:
            return positions
        epochs, within = np.divmod(positions, self.taken or self.count)
        found = np.empty(len(positions), np.int64)
        for epoch in np.unique(epochs).tolist():
            found[epochs == epoch] = self._shuffled(_keys(self.seed, epoch), within[epochs == epoch])
        return found

    def _shuffled(self, keys: tuple[int, ...], positions: Array) -> Array:
        bits = max(LEAST_BITS, (self.count - 1).bit_length())
        found = _permuted(np.asarray(positions, np.uint64), bits, keys)
        while (outside := np.flatnonzero(found >= self.count)).size:
            found[outside] = _permuted(found[outside], bits, keys)
        return found.astype(np.int64)


@lru_cache(64)
def _keys(seed: int, epoch: int) -> tuple[int, ...]:
    """Return two keys for each round."""
    draws = shake_128(f"{seed} {epoch}".encode()).digest(16 * ROUNDS)
    return tuple(int.from_bytes(draws[i : i + 8], "little") for i in range(0, len(draws), 8))


def _permuted(numbers: Array, bits: int, keys: tuple[int, ...]) -> Array:
    """Return numbers of so many bits, uint64, in a permutation."""
    mask, shift = np.uint64(2**bits - 1), np.uint64((bits + 1) // 2)
    for factor, term in zip(keys[::2], keys[1::2], strict=True):
        numbers = (numbers * np.uint64(factor | 1) + np.uint64(term)) & mask
        numbers = numbers ^ (numbers >> shift)
    return numbers


@attrs.frozen(eq=False)
class MixedOrder:
    """An order without end that takes examples of several sources in proportion to their weights.

    Each source is shuffled in epochs of its own, and starts over when it ends. The examples of all sources are numbered one
    source after the other. mixture: grain's data set of pairs, the number of a source and the number of its turn.
    """

    orders: tuple[ExampleOrder, ...]
    mixture: Any

    @classmethod
    def of(cls, counts: Sequence[int], weights: Sequence[float], seed: int) -> MixedOrder:
        data = import_package("grain", "grain").MapDataset
        turns = [data.range(sys.maxsize).map(partial(_turn, source)) for source in range(len(counts))]
        return cls(tuple(ExampleOrder(count, seed) for count in counts), data.mix(turns, weights))

    def numbers(self, positions: Array) -> Array:
        """Return the numbers of the examples at these positions, which are counted from the start of training."""
        pairs = np.array([self.mixture[position] for position in positions.tolist()], np.int64)
        sources, turns = pairs.reshape(-1, 2).T
        found = np.empty(len(turns), np.int64)
        starts = accumulate((order.count for order in self.orders), initial=0)
        for source, (order, start) in enumerate(zip(self.orders, starts, strict=False)):
            found[sources == source] = start + order.numbers(turns[sources == source])
        return found


def _turn(source: int, number: int) -> tuple[int, int]:
    return source, number


Order = ExampleOrder | MixedOrder
