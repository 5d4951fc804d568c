"""Delta simulation: the timeline of a changed task graph from that of the old one, to the last bit what `kernels.simulate` finds.

Only what changes is simulated. The queue of tasks is gone through as far as both timelines can be told to agree; then tasks are
taken from it one by one; and as soon as nothing is left that tells the new state from the old one but that it is so much later,
everything up to the next task that may be affected is the old timeline, so much later. That is the case when

- the tasks that have been taken are those before some place of the old queue, except for those that are new or gone
- of these all that have not ended, in either timeline, end by the same difference later than before, and none is new or gone.

Then devices become free later by this difference, or are free already, and so it is with the tasks that wait for others. Which
tasks are taken next follows from that alone, up to the first that is affected: that waits for other tasks than before, or is
new or gone.

Times are multiples of `building.TICK`, so that sums are exact and a difference in time changes no order.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from mtfc.compiler.search.soap.changing import Change
from mtfc.compiler.search.soap.graphs import Graph, Timeline
from mtfc.compiler.search.soap.running import (
    AFFECTED,
    EPOCH,
    GONE,
    OLD,
    PASSED,
    SHIFTS,
    SIZE,
    TAKEN,
    Run,
    begun,
    meet,
    note,
    take,
)
from mtfc.compiler.search.solver.kernels import compiled, lean, tight

EXACT = 256.0
"""Seconds below which sums of multiples of a tick are exact."""
WORTH = 16
"""So many tasks at least are taken over at once: to find out costs something, too."""


@compiled
def resumed(old: Graph, was: Timeline, new: Change, limit: float, devices: int) -> Any:
    """Simulate a change; what comes out, and the makespan. Beyond the limit it is infinite, and simulation ends early."""
    run = begun(old, was, new, devices)
    makespan = was.end.max() if len(was.end) else 0.0
    is_complete = _run(old, was, new, run, limit, makespan)
    return run, run.free.max() if is_complete else np.inf


@lean
def _run(old: Graph, was: Timeline, new: Change, run: Run, limit: float, makespan: float) -> bool:
    """Take all tasks; whether the limit was kept."""
    until, now = _agreed(was, new, run, 0, 0.0)
    if not _take_over(old, was, new, run, until, now, 0.0, limit):
        return False
    tried = 0
    while run.counts[SIZE]:
        place = run.counts[PASSED]
        if place >= tried and _is_next(was, new, run, place):
            task = new.task[run.heap[0]]
            shift = run.soonest[task] - was.ready[task]
            is_exact = shift == 0 or max(makespan, makespan + shift) < EXACT
            if is_exact and _agrees(run, shift, run.soonest[task], was.ready[task]):
                until, now = _agreed(was, new, run, place, shift)
                tried = max(until, place + WORTH)
                if until - place >= WORTH:
                    if not _take_over(old, was, new, run, until, now, shift, limit):
                        return False
                    continue
        if run.load[take(old, was, new, run)] > limit:
            return False
    return True


@tight
def _is_next(was: Timeline, new: Change, run: Run, place: int) -> bool:
    """Whether all that stood before a place in the old queue have been taken, or are gone, and the next one stood there."""
    task = new.task[run.heap[0]]
    if run.counts[OLD] + run.counts[GONE] != place or task >= len(was.order):
        return False
    return bool(was.place[task] == place and not new.is_affected[task])


@tight
def _agrees(run: Run, shift: float, now: float, before: float) -> bool:
    """Whether what has not ended now, or then in the old timeline, ends so much later than it did."""
    agrees = run.late[0] <= now and run.late[1] <= before
    for i in range(SHIFTS):
        if run.shift[i] != shift:
            agrees &= run.last[i] <= now and run.last[i] - run.shift[i] <= before
    return bool(agrees)


@tight
def _agreed(was: Timeline, new: Change, run: Run, place: int, shift: float) -> Any:
    """Up to which place the old queue stays the same but for a shift, if it does so at one; and a time, by the new timeline,
    before which the tasks up to there are ready, and no others.
    """
    until = place
    while not run.is_marked[until]:
        until += 1
    soonest = was.ready[was.order[until]] if until < len(was.order) else np.inf
    i = 0
    while i < run.counts[AFFECTED]:
        task = run.affected[i]
        if run.end[task] < np.inf:
            run.counts[AFFECTED] -= 1
            run.affected[i] = run.affected[run.counts[AFFECTED]]
            run.critical[i] = run.critical[run.counts[AFFECTED]]
            continue
        if run.critical[i] < 0 or run.end[run.critical[i]] < np.inf:
            run.critical[i] = _critical(was, new, run, task)
        if run.critical[i] < 0:
            soonest = min(soonest, run.soonest[task] - shift if run.counts[EPOCH] else 0.0)
        elif not new.is_affected[run.critical[i]]:
            soonest = min(soonest, was.end[run.critical[i]])
        i += 1
    low, high = place, until
    while low < high:
        middle = (low + high) >> 1
        if was.ready[was.order[middle]] < soonest:
            low = middle + 1
        else:
            high = middle
    return low, soonest + shift


@tight
def _critical(was: Timeline, new: Change, run: Run, task: int) -> int:
    """Of those not taken that an affected task waits for one that is affected, or else the last to end; -1 if there is none."""
    found = -1
    e = new.before.first[task]
    while e >= 0:
        found = _later(was, new, run, found, new.before.other[e])
        e = new.before.next[e]
    return found


@tight
def _later(was: Timeline, new: Change, run: Run, found: int, other: int) -> int:
    if run.end[other] < np.inf or (found >= 0 and new.is_affected[found]):
        return found
    return other if found < 0 or new.is_affected[other] or was.end[other] > was.end[found] else found


@tight
def _take_over(
    old: Graph, was: Timeline, new: Change, run: Run, until: int, now: float, shift: float, limit: float
) -> bool:
    """Take the next tasks of the old queue up to some place, so much later; all others are ready `now` at the soonest. Whether
    the limit may be kept.
    """
    begin, at = run.counts[PASSED], run.counts[TAKEN]
    for place in range(begin, until):
        task = was.order[place]
        rank = new.rank[task]
        run.order[at] = rank
        at += 1
        run.ready[rank] = was.ready[task] + shift
        run.end[task] = was.end[task] + shift
    run.counts[OLD] += until - begin
    run.counts[TAKEN], run.counts[PASSED] = at, until
    run.counts[EPOCH] += 1
    run.counts[SIZE] = 0
    for device in range(len(run.free)):
        last = _among(was, device, until)
        if _among(was, device, begin) < last:
            _idle(was, run, device, _among(was, device, begin), last)
        if run.load[device] > limit:
            return False
        _wake(old, was, new, run, device, last, now, shift)
    for i in range(run.counts[AFFECTED]):
        if run.end[run.affected[i]] == np.inf:
            meet(old, new, run, run.affected[i])
    while until < len(was.order) and was.ready[was.order[until]] == 0:
        meet(old, new, run, was.order[until])
        until += 1
    return True


@tight
def _among(was: Timeline, device: int, place: int) -> int:
    """Where in the queue of a device those begin that stand at some place or behind."""
    low, high = was.first[device], was.first[device + 1]
    while low < high:
        middle = (low + high) >> 1
        if was.place[was.queue[middle]] < place:
            low = middle + 1
        else:
            high = middle
    return int(low)


@tight
def _idle(was: Timeline, run: Run, device: int, first: int, last: int) -> None:
    """Some tasks of a device have been taken over: for how long it was idle."""
    work = was.work[last - 1]
    if first > was.first[device]:
        work -= was.work[first - 1]
    end = run.end[was.queue[last - 1]]
    run.load[device] += end - run.free[device] - work
    run.free[device] = end


@tight
def _wake(
    old: Graph, was: Timeline, new: Change, run: Run, device: int, last: int, now: float, shift: float
) -> None:
    """See which tasks are ready after those of a device that end `now` or later: there are none else that are."""
    while last > was.first[device]:
        last -= 1
        task = was.queue[last]
        if new.rank[task] < 0:
            continue
        if run.end[task] < now:
            break
        note(run, shift, run.end[task])
        for e in range(old.waiting.first[task], old.waiting.first[task + 1]):
            if not new.is_affected[old.waiting.other[e]]:
                meet(old, new, run, old.waiting.other[e])
        e = new.waiting.first[task]
        while e >= 0:
            meet(old, new, run, new.waiting.other[e])
            e = new.waiting.next[e]
