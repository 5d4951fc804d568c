"""The simulator of `analysis/simulation.py` on flat arrays, compiled by Numba where it is installed; without it the same code
runs slowly.

Tasks are numbered in an order in which every edge goes upward, so that numbers can break ties as ids do there, and the same
arithmetic gives the same timeline to the last bit. Delta simulation takes over what lies before the first task that a change
can affect: up to that time both timelines are taken from the queue in the same order. The rest is simulated again, as nearly
all of it moves when one of its tasks does; and only until it is certain that the step takes longer than `limit`, when a
proposal would be rejected anyway. That is certain once a device's idle time so far and all its work exceed the limit.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from mtfc.compiler.search.soap.blocks import Array, Blocks
from mtfc.compiler.search.solver.kernels import compiled

ROUNDING = 1e-9
"""Sums of seconds in another order differ by less."""


@compiled
def connect(edges: Array, offsets: Array) -> Any:
    """Edges (block and number there of a task and of one that waits for it) as task numbers, and the waiting tasks by task."""
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
    return before, after, first, waiting


@compiled
def changed_from(
    old: Blocks, old_ready: Array, new: Blocks, edges: Any, numbers: Array, ready: Array, end: Array
) -> float:
    """The earliest time at which a timeline can change where blocks with some numbers do.

    That is when a task that they have or had an edge to, or one of theirs, was or can be ready. `ready` becomes unknown there.
    """
    _, soonest = _touched(old, numbers, old_ready)
    affected, _ = _touched(new, numbers, ready)
    ready[affected] = np.inf
    return _first_change(edges[0], edges[1], affected, end, soonest)


@compiled
def _touched(tasks: Blocks, numbers: Array, ready: Array) -> Any:
    """Which tasks are in some blocks, or wait for something in an edge of one, and when the first of them is ready."""
    found, soonest = np.zeros(len(tasks.device), np.bool_), np.inf
    for block in numbers:
        for task in range(tasks.offsets[block], tasks.offsets[block + 1]):
            found[task] = True
            soonest = min(soonest, ready[task])
        for e in range(tasks.edge_offsets[block], tasks.edge_offsets[block + 1]):
            task = tasks.offsets[tasks.edges[e, 2]] + tasks.edges[e, 3]
            found[task] = True
            soonest = min(soonest, ready[task])
    return found, soonest


@compiled
def _first_change(before: Array, after: Array, affected: Array, end: Array, soonest: float) -> float:
    """The earliest time at which an affected task can be ready, where what is not affected ends at `end`, or `soonest`."""
    ready, unknown = np.zeros(len(affected)), np.zeros(len(affected), np.bool_)
    for e in range(len(before)):
        if affected[after[e]]:
            if affected[before[e]]:
                unknown[after[e]] = True
            elif end[before[e]] > ready[after[e]]:
                ready[after[e]] = end[before[e]]
    for task in range(len(affected)):
        if affected[task] and not unknown[task] and ready[task] < soonest:
            soonest = ready[task]
    return soonest


@compiled
def simulate(
    before: Array,
    after: Array,
    first: Array,
    waiting: Array,
    device: Array,
    seconds: Array,
    ready: Array,
    end: Array,
    since: float,
    limit: float,
    devices: int,
) -> float:
    """Complete a timeline, of which everything that is ready before `since` is right; the makespan, or infinity beyond the
    limit.
    """
    count = len(device)
    kept = ready < since
    limit *= 1 + ROUNDING
    missing = np.zeros(count, np.int64)
    free, busy, load = np.zeros(devices), np.zeros(devices), np.zeros(devices)
    makespan = 0.0
    for task in range(count):
        load[device[task]] += seconds[task]
        if kept[task]:
            busy[device[task]] += seconds[task]
            free[device[task]] = max(free[device[task]], end[task])
            makespan = max(makespan, end[task])
        else:
            ready[task] = 0.0
    for each in range(devices):
        if load[each] + (free[each] - busy[each]) > limit:
            return np.inf
    for e in range(len(before)):
        if kept[before[e]]:
            ready[after[e]] = max(ready[after[e]], end[before[e]])
        else:
            missing[after[e]] += 1
    heap, size = np.empty(count, np.int64), 0
    for task in range(count):
        if not kept[task] and missing[task] == 0:
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
