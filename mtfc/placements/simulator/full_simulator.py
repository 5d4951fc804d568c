"""Full simulation of a task graph in compiled loops. It gives the timeline of `cost/event_simulator.py` to the last bit.

Tasks are numbered so that every edge leads upward. So numbers break ties as ids do there. Simulation ends early when the step
is certain to exceed `limit`: as soon as a device's idle time so far plus all its work exceeds it.

Ready tasks are in a linked list, ordered by (ready time, key). A new task is inserted from the position of the last one, 2 to 9
tasks away on average in FlexFlow's networks; taking the first task costs nothing. Arrays by task have one more entry, for both
ends of the list.
"""

from typing import Any, NamedTuple

import numpy as np

from mtfc.compiler.search.jit import jit, jit_inline, jit_internal, jit_no_refcount
from mtfc.placements.task_graph_builder import Array, TaskBlocks


class TaskTimes(NamedTuple):
    """The timeline: when each task is ready and ends, and all tasks in the order in which they start."""

    ready: Array
    end: Array
    order: Array


ROUNDING = 1e-9
"""Sums of seconds in another order differ by less, relatively."""


@jit
def simulate(blocks: TaskBlocks, times: TaskTimes, limit: float, devices: int) -> float:
    """Fill the timeline; return the makespan, or infinity if it exceeds the limit."""
    queue, load = np.empty((2, blocks.offsets[-1] + 1), np.uint32), np.zeros((2, devices))
    keys = np.arange(blocks.offsets[-1])
    return _run(blocks, _successors(blocks), times, queue, keys, load, limit * (1 + ROUNDING))


@jit_internal
def _successors(blocks: TaskBlocks) -> Any:
    """Return the successors of tasks, those of task i from `first[i]` on, and the number of predecessors of each task."""
    count, offsets, edges = blocks.offsets[-1], blocks.offsets, blocks.edges
    first, missing = np.zeros(count + 1, np.uint32), np.zeros(count, np.uint32)
    for e in range(len(edges)):
        first[offsets[edges[e, 0]] + edges[e, 1] + 1] += 1
    for task in range(count):
        first[task + 1] += first[task]
    waiting, at = np.empty(len(edges), np.uint32), first[:-1].copy()
    for e in range(len(edges)):
        source, target = offsets[edges[e, 0]] + edges[e, 1], offsets[edges[e, 2]] + edges[e, 3]
        waiting[at[source]] = target
        at[source] += 1
        missing[target] += 1
    return first, waiting, missing


@jit_no_refcount
def _run(
    blocks: TaskBlocks,
    successors: Any,
    times: TaskTimes,
    queue: Array,
    keys: Array,
    room: Array,
    limit: float,
) -> float:
    """Take tasks from the ready queue."""
    first, waiting, missing = successors  # `missing` becomes the number of predecessors that have not ended
    ready, end, order = times
    after, before = queue
    device, seconds = blocks.device, blocks.seconds
    free, load = room  # when a device has done all its tasks; its work and its idle time so far
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


@jit_inline
def clear(after: Array, before: Array) -> Any:
    """Make the queue empty; return its ends, from where the search for the next position begins."""
    ends = np.uint32(len(after) - 1)
    after[ends] = before[ends] = ends
    return ends


@jit_inline
def put(after: Array, before: Array, times: Array, keys: Array, near: int, task: int) -> None:
    """Insert a task, searching its position from `near`, a task in the queue or the ends."""
    ends, time, key = np.uint32(len(after) - 1), times[task], keys[task]
    if near == ends or _is_before(times, keys, near, time, key):
        next = after[near]
        while next != ends and _is_before(times, keys, next, time, key):
            next = after[next]
        near = before[next]
    else:
        near = before[near]
        while near != ends and not _is_before(times, keys, near, time, key):
            near = before[near]
        next = after[near]
    after[near] = before[next] = task
    before[task], after[task] = near, next


@jit_inline
def _is_before(times: Array, keys: Array, task: int, time: float, key: int) -> bool:
    return bool(times[task] < time or (times[task] == time and keys[task] < key))


@jit_inline
def drop(after: Array, before: Array, task: int) -> Any:
    """Remove the first task; return the next."""
    ends, next = np.uint32(len(after) - 1), after[task]
    after[ends], before[next] = next, ends
    return next
