"""A change that is kept: of the task graph and its timeline what differs is written over."""

from __future__ import annotations

import numpy as np

from mtfc.compiler.search.placement.simulator.delta import unmark
from mtfc.compiler.search.placement.simulator.simulator_state import (
    BEFORE,
    EDGES,
    EPOCH,
    FIRST,
    LIVE,
    LOST,
    MARKED,
    NEW,
    NONE,
    NUMBERS,
    SAME,
    TAKEN,
    TASKS,
    WAITING,
    Change,
    Kept,
    Run,
    queue,
)
from mtfc.compiler.search.solver.message_passing import lean, tight


@lean
def commit(kept: Kept, change: Change, run: Run) -> bool:
    """Keep a change of which all tasks have been taken. Whether there is room for its edges; where there is not, nothing is
    written.
    """
    count, room = _moved(kept, change, run)
    waiting, before = kept.counts[WAITING] + room, kept.counts[BEFORE] + kept.counts[EDGES]
    if waiting > len(kept.waiting) or before > len(kept.before):
        return False
    for i in range(count):
        _link_next(kept, change, run.moved[i])
    for i in range(kept.counts[MARKED]):
        if change.mark[change.marked[i]] != LOST:
            _link_before(kept, change, change.marked[i])
    for i in range(kept.counts[NUMBERS]):
        number = change.numbers[i]
        kept.begin[number], kept.size[number] = change.begin[number], change.size[number]
        kept.sent[number] = change.sent[number]
        for device in range(kept.held.shape[1]):
            kept.held[number, device] = change.held[number, device]
    _line(kept, change, run)
    return True


@tight
def _moved(kept: Kept, change: Change, run: Run):  # type: ignore[no-untyped-def]
    """Find the tasks for which others wait, or did, that are affected or gone; how many there are, and how many edges they may
    have in all.
    """
    kept.counts[EPOCH] += 1
    count, room = 0, kept.counts[EDGES]
    for i in range(kept.counts[MARKED]):
        task = change.marked[i]
        for e in range(kept.before_first[task], kept.before_first[task] + kept.before_count[task]):
            count, room = _found(kept, change, run, kept.before[e], count, room)
    for e in range(kept.counts[EDGES]):
        count, room = _found(kept, change, run, change.source[e], count, room)
    return count, room


@tight
def _found(kept: Kept, change: Change, run: Run, task: int, count: int, room: int) -> tuple[int, int]:
    if change.mark[task] == LOST or run.seen[task] == kept.counts[EPOCH]:
        return count, room
    run.seen[task] = kept.counts[EPOCH]
    run.moved[count] = task
    return count + 1, room + kept.waiting_count[task]


@tight
def _link_next(kept: Kept, change: Change, task: int) -> None:
    """What waits for a task: what did and is not affected, and the ends of its new edges."""
    first, count = kept.waiting_first[task], 0
    for e in range(first, first + kept.waiting_count[task]):
        if change.mark[kept.waiting[e]] == SAME:
            kept.waiting[first + count] = kept.waiting[e]
            count += 1
    total, e = count, change.first_waiting[task]
    while e != NONE:
        total, e = total + 1, change.next_waiting[e]
    if total > kept.waiting_count[task]:
        for i in range(count):
            kept.waiting[kept.counts[WAITING] + i] = kept.waiting[first + i]
        first = kept.counts[WAITING]
        kept.counts[WAITING] += total
    kept.waiting_first[task], kept.waiting_count[task] = first, total
    e = change.first_waiting[task]
    while e != NONE:
        kept.waiting[first + count] = change.target[e]
        count, e = count + 1, change.next_waiting[e]


@tight
def _link_before(kept: Kept, change: Change, task: int) -> None:
    """What an affected task waits for."""
    count, e = 0, change.first_before[task]
    while e != NONE:
        count, e = count + 1, change.next_before[e]
    if count > kept.before_count[task]:
        kept.before_first[task] = kept.counts[BEFORE]
        kept.counts[BEFORE] += count
    kept.before_count[task] = count
    at, e = kept.before_first[task], change.first_before[task]
    while e != NONE:
        kept.before[at], kept.owner[at] = change.source[e], change.owner[e]
        at, e = at + 1, change.next_before[e]


@tight
def _line(kept: Kept, change: Change, run: Run) -> None:
    """The new timeline. Nothing is marked any more."""
    change.is_marked[kept.counts[LIVE]] = 0
    for i in range(kept.counts[MARKED]):
        task = change.marked[i]
        if change.mark[task] == LOST:
            change.is_marked[kept.place[task]], kept.place[task] = 0, NONE
    unmark(kept, change)
    first = kept.counts[FIRST]
    for device in range(len(kept.load)):
        kept.load[device] = change.load[device]
        run.work[device], run.last[device] = run.first_done[device], run.first_last[device]
        if kept.earliest[device] >= first:
            kept.earliest[device] = NONE
    for i in range(kept.counts[TAKEN]):
        task = run.order[i]
        kept.ready[task], kept.end[task] = run.ready[task], run.end[task]
        run.end[task] = np.inf
        queue(kept, task, first + i, run.work, run.last)
    kept.counts[LIVE] = first + kept.counts[TAKEN]
    kept.counts[TASKS] += kept.counts[NEW]
    change.is_marked[kept.counts[LIVE]] = 1
