"""The simulator of `analysis/simulation.py` on flat arrays, compiled by Numba where it is installed; without it the same code
runs slowly.

Tasks are numbered in an order in which every edge goes upward, so that numbers can break ties as ids do there, and the same
arithmetic gives the same timeline to the last bit. Simulation ends when it is certain that the step takes longer than `limit`:
once a device's idle time so far and all its work exceed it. For delta simulation see `resuming.py`.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from mtfc.compiler.search.soap.blocks import Array
from mtfc.compiler.search.solver.kernels import compiled

ROUNDING = 1e-9
"""Sums of seconds in another order differ by less."""


@compiled
def connect(edges: Array, offsets: Array) -> Any:
    """Of edges (block and number there of a task and of one that waits for it) the numbers of those that wait, also by task."""
    total, count = len(edges), offsets[-1]
    before, after = np.empty(total, np.int64), np.empty(total, np.int64)
    first = np.zeros(count + 1, np.int64)
    for e in range(total):
        before[e] = offsets[edges[e, 0]] + edges[e, 1]
        after[e] = offsets[edges[e, 2]] + edges[e, 3]
        first[before[e] + 1] += 1
    for task in range(count):
        first[task + 1] += first[task]
    at, waiting = first[:-1].copy(), np.empty(total, np.int64)
    for e in range(total):
        waiting[at[before[e]]] = after[e]
        at[before[e]] += 1
    return after, first, waiting


@compiled
def simulate(
    after: Array,
    first: Array,
    waiting: Array,
    device: Array,
    seconds: Array,
    ready: Array,
    end: Array,
    limit: float,
    devices: int,
) -> float:
    """Find when tasks are ready and end; the makespan, or infinity beyond the limit."""
    count = len(device)
    limit *= 1 + ROUNDING
    missing = np.zeros(count, np.int64)
    free, load = np.zeros(devices), np.zeros(devices)
    makespan = 0.0
    for task in range(count):
        load[device[task]] += seconds[task]
        ready[task] = 0.0
    for each in range(devices):
        if load[each] > limit:
            return np.inf
    for task in after:
        missing[task] += 1
    heap, size = np.empty(count, np.int64), 0
    for task in range(count):
        if missing[task] == 0:
            size = _push(heap, size, ready, task)
    while size:
        task = heap[0]
        size = _pop(heap, size, ready)
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
                size = _push(heap, size, ready, next)
    return makespan


@compiled
def _push(heap: Array, size: int, ready: Array, task: int) -> int:
    """Add a task to a binary heap in the order of (ready, number); its new size."""
    at = size
    while at > 0:
        above = (at - 1) >> 1
        other = heap[above]
        if ready[other] < ready[task] or (ready[other] == ready[task] and other < task):
            break
        heap[at] = other
        at = above
    heap[at] = task
    return size + 1


@compiled
def _pop(heap: Array, size: int, ready: Array) -> int:
    """Take the first task away; the new size."""
    size -= 1
    task, at = heap[size], 0
    while 2 * at + 1 < size:
        below = 2 * at + 1
        if below + 1 < size:
            a, b = heap[below], heap[below + 1]
            if ready[b] < ready[a] or (ready[b] == ready[a] and b < a):
                below += 1
        other = heap[below]
        if ready[task] < ready[other] or (ready[task] == ready[other] and task < other):
            break
        heap[at] = other
        at = below
    heap[at] = task
    return size
