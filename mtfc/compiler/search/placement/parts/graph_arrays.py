"""Task graphs that were made from nothing, and when their tasks are ready and end, in flat arrays."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from mtfc.compiler.search.placement.parts.block_arrays import Array, Blocks
from mtfc.compiler.search.solver.message_passing import compiled, inner


class Links(NamedTuple):
    """Edges by one of their ends: those of task i begin at `first[i]`. other: the task at the other end."""

    first: Array
    other: Array


class Graph(NamedTuple):
    """Blocks of tasks (see `block_arrays.Blocks`), and what waits for each task, and what it waits for. owner: the blocks that edges
    belong to, in the order of `before`.
    """

    offsets: Array
    device: Array
    seconds: Array
    waiting: Links
    before: Links
    owner: Array
    sent: Array
    held: Array


class Timeline(NamedTuple):
    """When tasks are ready and end, and all tasks in the order in which they are taken from the queue."""

    ready: Array
    end: Array
    order: Array


@compiled
def indexed(blocks: Blocks) -> Graph:
    """The graph that some blocks are."""
    total, count = len(blocks.edges), blocks.offsets[-1]
    sources, targets = np.empty(total, np.uint32), np.empty(total, np.uint32)
    for block in range(len(blocks.offsets) - 1):
        for e in range(blocks.edge_offsets[block], blocks.edge_offsets[block + 1]):
            edge = blocks.edges[e]
            sources[e] = blocks.offsets[edge[0]] + edge[1]
            targets[e] = blocks.offsets[edge[2]] + edge[3]
    before, owner = _links(targets, sources, count), np.empty(total, np.uint32)
    at = before.first[:-1].copy()
    for block in range(len(blocks.offsets) - 1):
        for e in range(blocks.edge_offsets[block], blocks.edge_offsets[block + 1]):
            owner[at[targets[e]]] = block
            at[targets[e]] += 1
    return Graph(
        blocks.offsets,
        blocks.device,
        blocks.seconds,
        _links(sources, targets, count),
        before,
        owner,
        blocks.sent,
        blocks.held,
    )


@inner
def _links(here: Array, there: Array, count: int) -> Links:
    """Edges sorted by one end."""
    first = np.zeros(count + 1, np.uint32)
    for task in here:
        first[task + 1] += 1
    for task in range(count):
        first[task + 1] += first[task]
    at = first[:-1].copy()
    other = np.empty(len(here), np.uint32)
    for e in range(len(here)):
        other[at[here[e]]] = there[e]
        at[here[e]] += 1
    return Links(first, other)
