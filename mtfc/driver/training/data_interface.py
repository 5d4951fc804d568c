"""The interface of a training run's data: the inputs that it fills, a source, its batches for one process, and their order.

Grain reads ahead in threads and counts the steps that were handed out, so a position is that of the consumer.

The order of examples is a permutation in each epoch, or a mixture of the permutations of several sources. A permutation is
computed for whole arrays of positions, without a table. A round multiplies by an odd number, adds another and mixes high bits
into low ones; each is invertible modulo a power of two. A number that falls outside the examples is permuted again until it is
inside. The keys are a hash of the seed and the epoch, so the order is the same on every machine.

`--data MODULE:FUNCTION` names a Python function of the user. It returns any iterable of dicts with an array for each input. A
background thread runs it.
"""

from __future__ import annotations

import base64
import inspect
import json
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import lru_cache, partial
from hashlib import shake_128
from itertools import accumulate
from threading import Thread
from typing import Any, ClassVar
from zlib import crc32

import attrs
import numpy as np

from mtfc.backends.common.shares import Share
from mtfc.driver.data.array_files import Array, StoredArray
from mtfc.driver.data.inputs import DataInput, Fitting, stacked
from mtfc.driver.data.packages import import_package
from mtfc.driver.errors import UsageError, say
from mtfc.driver.training.user_code import explained, kind_of_value
from mtfc.reports.source_lines import listed

Position = Mapping[str, Any]
"""A position in the data, as a checkpoint stores it: numbers and text, ready for JSON."""

AHEAD = 4
"""The number of steps that are read ahead."""

CLOSING_SECONDS = 2.0
"""The longest time that closing waits for a read under way, which may be code of the user."""


def changes(before: Mapping[str, Any], now: Mapping[str, Any]) -> str:
    """Return the entries that differ between a checkpoint and now, each with its old and its new value."""
    names = [name for name in {**before, **now} if before.get(name) != now.get(name)]
    absent = "nothing"
    return ", ".join(f"{name} {before.get(name, absent)} -> {now.get(name, absent)}" for name in names)


@attrs.frozen(eq=False)
class BatchIterator:
    """The data of one step after the other, for one process: rows of each input, and all of an input that is not split.

    With several micro-batches a step, arrays have their number as the first dimension. The state of grain's iterator also tells
    the order of the examples: a checkpoint's position has a meaning only in the same order. first: returns the checksum of the
    first item.
    """

    iterator: Any
    order: Mapping[str, Any]
    first: Callable[[], int] = int

    @classmethod
    def at(cls, iterator: Any, order: Mapping[str, Any], start: Position | None, name: str) -> BatchIterator:
        """Return the iterator at `start`, or with a message at the first step if the order is not that of `start`."""
        before = start["order"] if start else None
        if start and before == order:
            iterator.set_state(start["iterator"])
        elif before:
            found = changes(before, order)
            say(
                f"{name}: the data has changed since the checkpoint ({found}): reading starts at its first step"
            )
        return cls(iterator, order)

    def __next__(self) -> dict[str, Array]:
        return dict(next(self.iterator))

    def state(self) -> Position:
        """Return the position after the last step that `next` returned; steps read ahead do not count."""
        return {"order": dict(self.order), "iterator": self.iterator.get_state()}

    def checksum(self) -> int:
        """Return a number that processes compare: of the first item of a function, which all of them call; else 0."""
        return self.first()

    def close(self) -> None:
        """Stop reading ahead."""
        closing = Thread(target=self.iterator.close, daemon=True)
        closing.start()
        closing.join(CLOSING_SECONDS)


def place_in(starts: Array, number: int) -> tuple[int, int]:
    """Return the file that has an example or document, and its number there.

    starts: the first number of each file, and the number of all.
    """
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
        """Return the examples at some positions of an epoch, whose keys are given: see the top of the file."""
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
        """Return the order of sources with some counts and weights."""
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


# Functions of the user


@attrs.frozen(eq=False)
class UserSource:
    """The batches of a function of the user; with `shard_index` and `shard_count` it makes one part of each batch.

    takes_rest: items may have fewer rows than a batch, and all rows of an item are returned in each process. Functions that make
    parts give whole batches even so.
    """

    name: str
    function: Callable[..., Any]
    inputs: Sequence[DataInput]
    accumulate: int = 1
    takes_rest: bool = False

    steps_per_epoch: ClassVar[None] = None
    """Unknown: the function may make batches without end."""

    def description(self) -> str:
        return f"{self.name}: batches of a function"

    def batches(self, share: Share, seed: int | None, start: Position | None = None) -> BatchIterator:
        """Return the batches of the function from a position on, read ahead in a thread."""
        shard = self._shard(share) if self.is_sharded else None
        steps = UserSteps(self, share, seed, shard)
        prefetched = import_package("grain", "grain").experimental.ThreadPrefetchDatasetIterator(steps, AHEAD)
        order = {"function": self.name, "seed": seed}
        iterator = BatchIterator.at(prefetched, order, start, self.name)
        return attrs.evolve(iterator, first=lambda: steps.first)

    def places(self, position: Position, seed: int | None) -> str:
        """Return the items of a step, counted from 1."""
        last = position["iterator"]["items"]
        first = last - self.accumulate + 1
        return f"item {last} of {self.name}" if first == last else f"items {first} to {last} of {self.name}"

    @property
    def is_sharded(self) -> bool:
        return {"shard_index", "shard_count"} <= _parameters(self.function)

    def iterable(self, seed: int | None, shard: tuple[int, int] | None) -> Any:
        """Call the function with the arguments that it names."""
        arguments: dict[str, int] = {}
        if seed is not None and "seed" in _parameters(self.function):
            arguments["seed"] = seed
        if shard is not None:
            arguments["shard_index"], arguments["shard_count"] = shard
        return self.function(**arguments)

    def _shard(self, share: Share) -> tuple[int, int]:
        """Return the index and the number of parts of the batch that the function makes. Raises `UsageError`."""
        shard = share.shard({each.name: each.rows for each in self.examples})
        if shard is None:
            raise UsageError(
                f"{self.name} takes shard_index and shard_count, and this layout gives processes other rows than equal"
                " consecutive parts of the batch: leave out both, so that the function makes whole batches"
            )
        return shard

    @property
    def examples(self) -> Sequence[DataInput]:
        """The inputs whose rows are those of the batch."""
        return [each for each in self.inputs if self.has_examples(each)]

    def rows_of(self, arrays: Mapping[str, Any]) -> int | None:
        """Return the number of rows that all inputs with examples have; None if they differ, or have none."""
        shapes = {tuple(arrays[each.name].shape[:1]) for each in self.examples if each.name in arrays}
        return next(iter(shapes))[0] if len(shapes) == 1 and () not in shapes else None

    def has_examples(self, input: DataInput) -> bool:
        """Return True if the input's first dimension is the batch: the first dimension of the first input that has one."""
        first = next((each.type.dims[0] for each in self.inputs if each.shape), None)
        return bool(input.shape) and input.type.dims[0] == first


class UserSteps:
    """The data of steps from a user's iterable, with the interface of grain's iterators. It starts with the first step.

    The state has the number of items and, if the iterable has `get_state` and `set_state`, its own state. Without these, and if
    the function makes parts of batches, resuming makes the same items again and skips them. first: a checksum of the first item
    that was handed out, the same in all processes; 0 before, and if the function makes parts.
    """

    def __init__(
        self, source: UserSource, share: Share, seed: int | None, shard: tuple[int, int] | None
    ) -> None:
        """Start before the first item.

        seed: that of the order. shard: this process's number and their number, if it reads a part.
        """
        self._source, self._share, self._seed, self._shard = source, share, seed, shard
        self._count = self.first = 0
        self._own: Any = None
        self._items: Iterator[Any] | None = None
        self._stateful: Any = None

    def __next__(self) -> dict[str, Array]:
        return stacked([self._batch() for _ in range(self._source.accumulate)])

    def get_state(self) -> dict[str, Any]:
        """Return the number of items so far, and the state of the user's iterable if it has one."""
        if self._stateful is not None:
            with explained(f"get_state of {self._source.name}"):
                self._own = self._stateful.get_state()
        return {"items": self._count, "own": _storable(self._own, self._source.name)}

    def set_state(self, state: Mapping[str, Any]) -> None:
        self._count, self._own = state["items"], _loaded(state["own"])
        self._items = self._stateful = None

    def _batch(self) -> dict[str, Array]:
        """Return this process's rows of the next item."""
        if self._items is None:
            self._items = self._started()
        item = self._next(self._items)
        self._count += 1
        return self._checked(item, f"item {self._count} of {self._source.name}")

    def _started(self) -> Iterator[Any]:
        """Return the iterator at the position."""
        with explained(self._source.name):
            made = self._source.iterable(self._seed, self._shard)
            if not hasattr(made, "__iter__") and not hasattr(made, "__getitem__"):
                raise UsageError(
                    f"{self._source.name} returns {kind_of_value(made)}; expected an iterable of dicts"
                )
            is_common = self._shard is None  # a checkpoint has the state of one process, for all of them
            if is_common and _has_state(made):
                self._restore(made)
            items: Iterator[Any] = iter(made)
            if is_common and self._stateful is None and _has_state(items):
                self._restore(items)
        if self._stateful is None:
            self._own = None
        for _ in range(self._count if self._own is None else 0):
            self._next(items)
        return items

    def _restore(self, stateful: Any) -> None:
        """Bring an iterable of the user to its stored state, and ask it for its state from now on."""
        self._stateful = stateful
        if self._own is not None:
            stateful.set_state(self._own)

    def _next(self, items: Iterator[Any]) -> Any:
        """Return the next item. Raises `StopIteration` only in a pass without a seed that has had an item."""
        with explained(self._source.name):
            for item in items:
                return item
        if not self._count:
            raise UsageError(f"{self._source.name} gives no batch")
        if self._seed is None:
            raise StopIteration
        raise UsageError(
            f"{self._source.name} ends after {self._count} batch{'es' * (self._count != 1)}, and training needs more:"
            " give fewer --steps, or let the function start over"
        )

    def _checked(self, item: Any, name: str) -> dict[str, Array]:
        """Return this process's rows of an item. Raises `UsageError` and `CompileError` (E502 to E504)."""
        if not isinstance(item, Mapping):
            names = listed([each.name for each in self._source.inputs])
            raise UsageError(
                f"{name} is {kind_of_value(item)}; expected a dict with an array for each input: {names}"
            )
        with explained(name):
            given = {str(key): StoredArray.of(value) for key, value in item.items()}
        fitting = Fitting(name, given)
        rows = self._source.rows_of(given) if self._takes_rest else None
        for each in self._source.inputs:
            self._check(each, fitting, rows)
        fitting.diagnostics.raise_if_errors()
        if not self.first and self._shard is None:
            self.first = _checksum(given[each.name].read() for each in self._source.inputs)
        return {each.name: self._rows(each, given[each.name].read(), name) for each in self._source.inputs}

    @property
    def _takes_rest(self) -> bool:
        return self._source.takes_rest and self._shard is None

    def _check(self, input: DataInput, fitting: Fitting, rows: int | None) -> None:
        """Report an array that is missing, or that does not fit.

        rows: the number of rows of the item, which may be fewer than a batch.
        """
        if self._source.has_examples(input):
            size = input.rows // self._shard[1] if self._shard else input.rows
            part = attrs.evolve(input.type.dims[0], size=rows if rows and rows < size else size)
            input = attrs.evolve(input, type=attrs.evolve(input.type, dims=(part, *input.type.dims[1:])))
        fitting.takes(input, lambda input, shape: shape == input.shape)

    def _rows(self, input: DataInput, array: Array, name: str) -> Array:
        """Return a copy of this process's rows: the function may use its array again for the next item.

        The array has only these rows if the function makes parts of batches. All rows are returned if there may be few.
        """
        whole = self._takes_rest or not input.shape or (self._shard and self._source.has_examples(input))
        rows = array.copy() if whole else array[self._share.rows(input.name, input.rows)]
        return input.converted(rows, lambda _: name)


def _checksum(arrays: Iterable[Array]) -> int:
    """Return a checksum of samples of arrays."""
    found = 0
    for array in arrays:
        flat = array.reshape(-1)
        found = crc32(flat[:: max(1, flat.size // SAMPLES)].tobytes(), found)
    return found


SAMPLES = 4096
"""Number of elements of an array that a checksum reads at least, if it has as many."""


def _parameters(function: Callable[..., Any]) -> set[str]:
    """Return the names of a function's parameters; none if it does not tell them."""
    try:
        return set(inspect.signature(function).parameters)
    except (TypeError, ValueError):
        return set()


def _has_state(each: Any) -> bool:
    return hasattr(each, "get_state") and hasattr(each, "set_state")


def _storable(state: Any, name: str) -> Any:
    """Return a state ready for JSON; bytes, as some iterators of grain have, become text. Raises `UsageError`."""
    if isinstance(state, bytes):
        return {"base64": base64.b64encode(state).decode()}
    try:
        json.dumps(state)
    except (TypeError, ValueError) as error:
        raise UsageError(
            f"get_state of {name} returns a state that JSON cannot store ({error}); expected numbers, text, lists and"
            " dicts, or bytes"
        ) from None
    return state


def _loaded(state: Any) -> Any:
    """Return the state that `_storable` has stored."""
    is_bytes = isinstance(state, dict) and state.keys() == {"base64"}
    return base64.b64decode(state["base64"]) if is_bytes else state
