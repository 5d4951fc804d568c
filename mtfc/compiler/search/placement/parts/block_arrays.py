"""Blocks of a task graph as flat arrays, one after the other."""

from __future__ import annotations

from typing import Any, NamedTuple

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
