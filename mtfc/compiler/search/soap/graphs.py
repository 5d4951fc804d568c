"""Task graphs and timelines that delta simulation starts from: who waits for whom, and who runs when, in flat arrays.

A graph that was made from nothing is indexed here; one that was changed is carried over by `proposing.py`.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from mtfc.compiler.search.soap.blocks import Array, Blocks
from mtfc.compiler.search.solver.kernels import compiled, inner, lean


class Links(NamedTuple):
    """Edges by one of their ends: those of task i begin at `first[i]`. other: the task at the other end."""

    first: Array
    other: Array


class Graph(NamedTuple):
    """Blocks of tasks (see `blocks.Blocks`), and what waits for each task, and what it waits for. owner: the blocks that edges
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
    first = np.zeros(count + 1, np.int32)
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


@compiled
def counted(device: Array, devices: int) -> Array:
    """Where the queues of devices begin: see `Timeline.first`."""
    first = np.zeros(devices + 1, np.int32)
    for own in device:
        first[own + 1] += 1
    for each in range(devices):
        first[each + 1] += first[each]
    return first


@compiled
def timeline(ready: Array, end: Array, order: Array, first: Array, device: Array, seconds: Array) -> Timeline:
    """Of tasks with some times, in the order of the queue."""
    count, devices = len(ready), len(first) - 1
    found = Timeline(
        ready, end, order, np.empty(count, np.int32), first, np.empty(count, np.uint32), np.empty(count)
    )
    _queue(found, device, seconds, first[:-1].astype(np.uint32), np.zeros(devices))
    return found


@lean
def _queue(found: Timeline, device: Array, seconds: Array, at: Array, load: Array) -> None:
    """Find places, and the queues of devices. at, load [device]: where these begin, and nothing."""
    for i in range(len(found.order)):
        task = found.order[i]
        own = np.uint32(device[task])
        load[own] += seconds[task]
        last = at[own]
        found.place[task], found.queue[last], found.work[last] = i, task, load[own]
        at[own] = last + np.uint32(1)
