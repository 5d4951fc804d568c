"""Tasks that are ready, the first by (when, key) in front: a list in order, linked both ways, compiled.

A new one is put in from where the last one was, a few tasks away on average (2 to 9 in FlexFlow's networks, of up to 500 in the
list), as what follows a task is ready about when what follows the one before it is; and to take the first one is nothing.

Arrays by task have one more entry, of the list's two ends.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from mtfc.compiler.search.placement.parts.block_arrays import Array
from mtfc.compiler.search.solver.message_passing import tight


@tight
def clear(after: Array, before: Array) -> Any:
    """Make the list empty; its ends, where one begins to look for the next task's place."""
    ends = np.uint32(len(after) - 1)
    after[ends] = before[ends] = ends
    return ends


@tight
def put(after: Array, before: Array, times: Array, keys: Array, near: int, task: int) -> None:
    """Add a task, beginning to look for its place at one that is in the list, or at the ends."""
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


@tight
def _is_before(times: Array, keys: Array, task: int, time: float, key: int) -> bool:
    return bool(times[task] < time or (times[task] == time and keys[task] < key))


@tight
def drop(after: Array, before: Array, task: int) -> Any:
    """Take the first one away; the one after it."""
    ends, next = np.uint32(len(after) - 1), after[task]
    after[ends], before[next] = next, ends
    return next
