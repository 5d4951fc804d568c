"""The order of examples: a permutation in each epoch, or a mixture of the permutations of several sources.

A permutation is computed for whole arrays of positions, without a table. A round multiplies by an odd number, adds another and
mixes high bits into low ones; each is invertible modulo a power of two. A number that falls outside the examples is permuted
again until it is inside. The keys are a hash of the seed and the epoch, so the order is the same on every machine.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from functools import lru_cache, partial
from hashlib import shake_128
from itertools import accumulate
from typing import Any

import attrs

from mtfc.driver.data.array_files import Array
from mtfc.driver.data.packages import import_package

ROUNDS = 6

LEAST_BITS = 8
"""The fewest bits of the permuted numbers: rounds on fewer bits make too few permutations."""


@attrs.frozen
class ExampleOrder:
    """The order of `count` examples in each epoch, drawn from `seed`; None keeps the order of the files."""

    count: int
    seed: int | None
    has_epochs = True

    def numbers(self, epoch: int, positions: Array) -> Array:
        """Return the numbers of the examples at these positions of an epoch."""
        import numpy as np

        if self.seed is None:
            return positions
        bits = max(LEAST_BITS, (self.count - 1).bit_length())
        keys = _keys(self.seed, epoch)
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
    import numpy as np

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
    has_epochs = False

    @classmethod
    def of(cls, counts: Sequence[int], weights: Sequence[float], seed: int) -> MixedOrder:
        data = import_package("grain", "grain").MapDataset
        turns = [data.range(sys.maxsize).map(partial(_turn, source)) for source in range(len(counts))]
        return cls(tuple(ExampleOrder(count, seed) for count in counts), data.mix(turns, weights))

    def numbers(self, _: int, positions: Array) -> Array:
        """Return the numbers of the examples at these positions, which are counted from the start of training."""
        import numpy as np

        pairs = np.array([self.mixture[position] for position in positions.tolist()], np.int64)
        sources, turns = pairs.reshape(-1, 2).T
        found = np.empty(len(turns), np.int64)
        starts = accumulate((order.count for order in self.orders), initial=0)
        for source, (order, start) in enumerate(zip(self.orders, starts, strict=False)):
            epochs, within = np.divmod(turns, order.count)
            for epoch in np.unique(epochs[sources == source]).tolist():
                rows = (sources == source) & (epochs == epoch)
                found[rows] = start + order.numbers(epoch, within[rows])
        return found


def _turn(source: int, number: int) -> tuple[int, int]:
    return source, number


Order = ExampleOrder | MixedOrder
