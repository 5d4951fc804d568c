"""The simulator of `cost/event_simulator.py` on flat arrays, compiled by Numba where it is installed; without it the same code
runs slowly.

Tasks are numbered in an order in which every edge goes upward, so that numbers can break ties as ids do there, and the same
arithmetic gives the same timeline to the last bit. Simulation ends when it is certain that the step takes longer than `limit`:
once a device's idle time so far and all its work exceed it. For delta simulation see `incremental_simulator.py`.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from mtfc.compiler.search.placement.parts.block_arrays import Array
from mtfc.compiler.search.placement.simulator.ready_queue import clear, drop, put
from mtfc.compiler.search.solver.message_passing import compiled, lean

ROUNDING = 1e-9
"""Sums of seconds in another order differ by less."""


@compiled
def connect(edges: Array, offsets: Array) -> Any:
    """Of edges (block and number there of a task and of one that waits for it) the numbers of those that wait, also by task."""
    total, count = len(edges), offsets[-1]
    before, after = np.empty(total, np.uint32), np.empty(total, np.uint32)
    first = np.zeros(count + 1, np.int64)
    for e in range(total):
        before[e] = offsets[edges[e, 0]] + edges[e, 1]
        after[e] = offsets[edges[e, 2]] + edges[e, 3]
        first[before[e] + 1] += 1
    for task in range(count):
        first[task + 1] += first[task]
    at, waiting = first[:-1].copy(), np.empty(total, np.uint32)
    for e in range(total):
        waiting[at[before[e]]] = after[e]
        at[before[e]] += 1
    return after, first, waiting


class Queue(NamedTuple):
    """ready, end [task]: when it is ready, as far as is known, and ends. order: tasks as they were taken. missing [task]: for how
    many others it waits. after, before, keys: see `ready_queue.py`. free, load [device]: when it has done all that was taken; its work,
    and how long it was idle.
    """

    ready: Array
    end: Array
    order: Array
    missing: Array
    after: Array
    before: Array
    keys: Array
    free: Array
    load: Array


@compiled
def simulate(
    after: Array,
    first: Array,
    waiting: Array,
    device: Array,
    seconds: Array,
    ready: Array,
    end: Array,
    order: Array,
    limit: float,
    devices: int,
) -> float:
    """Find when tasks are ready and end, and in which order they are taken; the makespan, or infinity beyond the limit."""
    count = len(device)
    queue = Queue(
        ready,
        end,
        order,
        np.zeros(count, np.uint32),
        np.empty(count + 1, np.uint32),
        np.empty(count + 1, np.uint32),
        np.arange(count),
        np.zeros(devices),
        np.zeros(devices),
    )
    for task in after:
        queue.missing[task] += 1
    return _run(queue, first, waiting, device, seconds, limit * (1 + ROUNDING))


@lean
def _run(queue: Queue, first: Array, waiting: Array, device: Array, seconds: Array, limit: float) -> float:
    ready, end, order, missing, after, before, keys, free, load = queue
    makespan, taken = 0.0, np.uint32(0)
    for task in range(len(device)):
        load[device[task]] += seconds[task]
        ready[task] = 0.0
    for work in load:
        if work > limit:
            return np.inf
    near = clear(after, before)
    for task in range(len(device)):
        if missing[task] == 0:
            put(after, before, ready, keys, near, task)
            near = task
    ends = np.uint32(len(device))
    while after[ends] != ends:
        task = after[ends]
        order[taken] = task
        taken += np.uint32(1)
        next = drop(after, before, task)
        near = next if near == task else near
        at = device[task]
        start = max(ready[task], free[at])
        load[at] += start - free[at]
        if load[at] > limit:
            return np.inf
        end[task] = start + seconds[task]
        free[at] = end[task]
        makespan = max(makespan, end[task])
        for i in range(first[task], first[task + 1]):
            next = waiting[i]
            ready[next] = max(ready[next], end[task])
            missing[next] -= 1
            if missing[next] == 0:
                put(after, before, ready, keys, near, next)
                near = next
    return makespan
