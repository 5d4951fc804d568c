"""Blocks of a task graph as flat arrays, one after the other, and how these change where few blocks do."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from mtfc.compiler.search.solver.kernels import compiled

Array = Any
"""A NumPy array."""


class Blocks(NamedTuple):
    """Block i has the tasks from `offsets[i]` on and the edges from `edge_offsets[i]` on, up to those of the next.

    device, seconds [task]: where a task runs, which may be a port, and for how long. edges [edge, 4]: block and number there of a
    task, and of one that waits for it. sent [block]: bytes that go from device to device. held [block, device]: bytes kept.
    """

    offsets: Array
    edge_offsets: Array
    device: Array
    seconds: Array
    edges: Array
    sent: Array
    held: Array

    @property
    def size(self) -> int:
        """How many tasks there are."""
        return len(self.device)


def replaced(old: Blocks, numbers: Array, new: Blocks) -> Blocks:
    """All blocks where those with some numbers, in ascending order, are now others."""
    sent, held = old.sent.copy(), old.held.copy()
    sent[numbers], held[numbers] = new.sent, new.held
    edges = _spliced(
        old.edges.ravel(), 4 * old.edge_offsets, numbers, new.edges.ravel(), 4 * new.edge_offsets
    )
    return Blocks(
        _offsets(old.offsets, numbers, new.offsets),
        _offsets(old.edge_offsets, numbers, new.edge_offsets),
        _spliced(old.device, old.offsets, numbers, new.device, new.offsets),
        _spliced(old.seconds, old.offsets, numbers, new.seconds, new.offsets),
        edges.reshape(-1, 4),
        sent,
        held,
    )


def known_of(times: Array, old: Array, numbers: Array, new: Array) -> Array:
    """Times of tasks where blocks with some numbers are new: infinite for theirs. `old`, `new`: offsets of all, of new blocks."""
    return _spliced(times, old, numbers, np.full(new[-1], np.inf), new)


@compiled
def _offsets(old: Array, numbers: Array, new: Array) -> Array:
    found, i = np.empty_like(old), 0
    found[0] = 0
    for block in range(len(old) - 1):
        size = old[block + 1] - old[block]
        if i < len(numbers) and numbers[i] == block:
            size = new[i + 1] - new[i]
            i += 1
        found[block + 1] = found[block] + size
    return found


@compiled
def _spliced(old: Array, old_offsets: Array, numbers: Array, new: Array, offsets: Array) -> Array:
    """Old pieces and, with some numbers, new ones."""
    removed = 0
    for number in numbers:
        removed += old_offsets[number + 1] - old_offsets[number]
    found = np.empty(len(old) - removed + len(new), old.dtype)
    to, at = 0, 0
    for i in range(len(numbers)):
        to = _copy(found, to, old, at, old_offsets[numbers[i]])
        to = _copy(found, to, new, offsets[i], offsets[i + 1])
        at = old_offsets[numbers[i] + 1]
    _copy(found, to, old, at, len(old))
    return found


@compiled
def _copy(found: Array, to: int, source: Array, first: int, last: int) -> int:
    """Elements of another array; where they end."""
    for i in range(last - first):
        found[to + i] = source[first + i]
    return to + last - first
