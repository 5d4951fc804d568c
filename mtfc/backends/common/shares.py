"""The rows of the global batch that one process holds.

A process reads only the rows that its devices need. Any layout works: an input may be whole in each process, or split into ranges
that do not follow each other.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import attrs

Ranges = tuple[tuple[int, int], ...]
"""Half-open ranges of rows, ascending and apart."""


@attrs.frozen
class Share:
    """The rows of each input that a process holds. An input without ranges is held whole."""

    ranges: Mapping[str, Ranges] = attrs.field(factory=dict)

    @classmethod
    def of_slices(cls, slices: Mapping[str, Iterable[slice]], rows: Mapping[str, int]) -> Share:
        """Return the share of the devices with these slices of the first dimension of the batch.

        slices: for each input one slice a device, repeated or not, as `jax.sharding.Sharding.addressable_devices_indices_map`
        gives them. rows: the number of rows of each input in the global batch.
        """
        return cls(
            {
                name: _merged(each.indices(rows[name])[:2] for each in found)
                for name, found in slices.items()
                if name in rows
            }
        )

    def ranges_of(self, name: str, count: int) -> Ranges:
        """Return the ranges of an input with `count` rows in the global batch."""
        return self.ranges.get(name, ((0, count),))

    def rows(self, name: str, count: int) -> Any:
        """Return the numbers of an input's rows that the process holds, ascending. count: the rows of the global batch."""
        import numpy as np

        return np.concatenate([np.arange(start, stop) for start, stop in self.ranges_of(name, count)])

    def local(self, name: str, index: slice, count: int) -> slice:
        """Return the place of the rows `index` of the global batch in the array of this process, for one device's part.

        count: the rows of the global batch.
        """
        start, stop, _ = index.indices(count)
        before = 0
        for first, last in self.ranges_of(name, count):
            if first <= start and stop <= last:
                return slice(before + start - first, before + stop - first)
            before += last - first
        raise IndexError(f"rows {start} to {stop} of {name} belong to another process")

    def shard(self, sizes: Mapping[str, int]) -> tuple[int, int] | None:
        """Return (index, count) if the share is one of `count` equal consecutive parts of each input; None if it is not.

        sizes: the number of rows of each input of the global batch.
        """
        found = {_part(self.ranges_of(name, size), size) for name, size in sizes.items()}
        return found.pop() if len(found) == 1 else None


def _merged(ranges: Iterable[tuple[int, int]]) -> Ranges:
    """Return the union of ranges; ranges that touch become one."""
    merged: list[tuple[int, int]] = []
    for start, stop in sorted(set(ranges)):
        if merged and start <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(stop, merged[-1][1]))
        else:
            merged.append((start, stop))
    return tuple(merged)


def _part(ranges: Ranges, size: int) -> tuple[int, int] | None:
    """Return the number and the count of equal consecutive parts, if the rows of a process are one of them; else None."""
    start, stop = ranges[0]
    rows = stop - start
    is_part = len(ranges) == 1 and not size % rows and not start % rows
    return (start // rows, size // rows) if is_part else None
