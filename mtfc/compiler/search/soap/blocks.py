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


@compiled
def replaced(old: Blocks, numbers: Array, new: Blocks) -> Any:
    """All blocks where those with some numbers, in ascending order, are now others."""
    offsets = _offsets(old.offsets, numbers, new.offsets)
    edge_offsets = _offsets(old.edge_offsets, numbers, new.edge_offsets)
    device, seconds = np.empty(offsets[-1], np.int64), np.empty(offsets[-1])
    edges = np.empty((edge_offsets[-1], 4), np.int64)
    _splice(device, old.device, old.offsets, numbers, new.device, new.offsets)
    _splice(seconds, old.seconds, old.offsets, numbers, new.seconds, new.offsets)
    _splice(edges, old.edges, old.edge_offsets, numbers, new.edges, new.edge_offsets)
    sent, held = old.sent.copy(), old.held.copy()
    for i in range(len(numbers)):
        sent[numbers[i]] = new.sent[i]
        held[numbers[i]] = new.held[i]
    return Blocks(offsets, edge_offsets, device, seconds, edges, sent, held)


@compiled
def known_of(times: Array, old: Array, numbers: Array, new: Array) -> Array:
    """Times of tasks where blocks with some numbers are new: infinite for theirs. `old`, `new`: offsets of all, of new blocks."""
    found = np.full(_offsets(old, numbers, new)[-1], np.inf)
    _splice(found, times, old, numbers, np.full(new[-1], np.inf), new)
    return found


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
def _splice(found: Array, old: Array, old_offsets: Array, numbers: Array, new: Array, offsets: Array) -> None:
    """Into `found` the old pieces and, with some numbers, new ones."""
    to, at = 0, 0
    for i in range(len(numbers)):
        size = old_offsets[numbers[i]] - at
        found[to : to + size] = old[at : at + size]
        to, at = to + size, old_offsets[numbers[i] + 1]
        size = offsets[i + 1] - offsets[i]
        found[to : to + size] = new[offsets[i] : offsets[i + 1]]
        to += size
    found[to:] = old[at:]
