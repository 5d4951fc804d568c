"""Task graphs and timelines that delta simulation starts from: who waits for whom, and who runs when, in flat arrays.

A graph that was made from nothing is indexed here; one that was changed is carried over by `proposing.py`.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from mtfc.compiler.search.soap.blocks import Array, Blocks
from mtfc.compiler.search.solver.kernels import compiled, inner


class Links(NamedTuple):
    """Edges by one of their ends: those of task i begin at `first[i]`. other: the task at the other end. owner: the block that an
    edge belongs to.
    """

    first: Array
    other: Array
    owner: Array


class Graph(NamedTuple):
    """Blocks of tasks (see `blocks.Blocks`), and what waits for each task, and what it waits for."""

    offsets: Array
    device: Array
    seconds: Array
    waiting: Links
    before: Links
    sent: Array
    held: Array


class Timeline(NamedTuple):
    """When tasks are ready and end; all tasks in the order in which they are taken from the queue, and the place of each there;
    those of device d in this order from `first[d]` on, and the seconds of one and all before it on its device.
    """

    ready: Array
    end: Array
    order: Array
    place: Array
    first: Array
    queue: Array
    work: Array


@compiled
def indexed(blocks: Blocks) -> Graph:
    """The graph that some blocks are."""
    total, count = len(blocks.edges), blocks.offsets[-1]
    sources, targets = np.empty(total, np.uint32), np.empty(total, np.uint32)
    owner = np.empty(total, np.uint32)
    for block in range(len(blocks.offsets) - 1):
        for e in range(blocks.edge_offsets[block], blocks.edge_offsets[block + 1]):
            edge = blocks.edges[e]
            owner[e] = block
            sources[e] = blocks.offsets[edge[0]] + edge[1]
            targets[e] = blocks.offsets[edge[2]] + edge[3]
    return Graph(
        blocks.offsets,
        blocks.device,
        blocks.seconds,
        _links(sources, targets, owner, count),
        _links(targets, sources, owner, count),
        blocks.sent,
        blocks.held,
    )


@inner
def _links(here: Array, there: Array, owner: Array, count: int) -> Links:
    """Edges sorted by one end."""
    first = np.zeros(count + 1, np.int32)
    for task in here:
        first[task + 1] += 1
    for task in range(count):
        first[task + 1] += first[task]
    at = first[:-1].copy()
    found = Links(first, np.empty(len(here), np.uint32), np.empty(len(here), np.uint32))
    for e in range(len(here)):
        found.other[at[here[e]]], found.owner[at[here[e]]] = there[e], owner[e]
        at[here[e]] += 1
    return found


@compiled
def timeline(ready: Array, end: Array, order: Array, device: Array, seconds: Array, devices: int) -> Timeline:
    """Of tasks with some times, in the order of the queue."""
    count = len(ready)
    first = np.zeros(devices + 1, np.int32)
    for task in range(count):
        first[device[task] + 1] += 1
    for each in range(devices):
        first[each + 1] += first[each]
    at, load = first[:-1].astype(np.uint32), np.zeros(devices)
    place, queue, work = np.empty(count, np.int32), np.empty(count, np.uint32), np.empty(count)
    for i in range(count):
        task = order[i]
        own = np.uint32(device[task])
        load[own] += seconds[task]
        last = at[own]
        place[task], queue[last], work[last] = i, task, load[own]
        at[own] = last + np.uint32(1)
    return Timeline(ready, end, order, place, first, queue, work)
