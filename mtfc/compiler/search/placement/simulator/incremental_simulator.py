"""Delta simulation: the timeline of a changed task graph from that of the old one, to the last bit what `full_simulator.simulate` finds.

Only what changes is simulated. The queue of tasks is gone through as far as both timelines can be told to agree; then tasks are
taken from it one by one; and as soon as nothing is left that tells the new state from the old one but that it is so much later,
everything up to the next task that may be affected is the old timeline, so much later. That is the case when

- the tasks that have been taken are those before some place of the old queue, except for those that are new or gone
- of these all that have not ended, in either timeline, end by the same difference later than before, and none is new or gone.

Then devices become free later by this difference, or are free already, and so it is with the tasks that wait for others. Which
tasks are taken next follows from that alone, up to the first that is affected: that waits for other tasks than before, or is
new or gone.

Times are multiples of `task_graph_builder.TICK`, so that sums are exact and a difference in time changes no order.
"""

from __future__ import annotations

import numpy as np

from mtfc.compiler.search.placement.simulator.ready_queue import clear
from mtfc.compiler.search.placement.simulator.simulation_run import ended, meet, note, take
from mtfc.compiler.search.placement.simulator.simulator_state import (
    AFFECTED,
    EPOCH,
    FIRST,
    GONE,
    LIVE,
    LOST,
    NEAR,
    NONE,
    OLD,
    PASSED,
    SAME,
    SHIFTS,
    TAKEN,
    Change,
    Kept,
    Run,
)
from mtfc.compiler.search.solver.message_passing import lean, tight

EXACT = 256.0
"""Seconds below which sums of multiples of a tick are exact."""
WORTH = 48
"""So many tasks at least are taken over at once: to find out costs something, too."""


@lean
def resumed(kept: Kept, change: Change, run: Run, makespan: float, limit: float) -> float:
    """Simulate a change of a timeline that has some makespan; the new one. Beyond the limit it is infinite, and simulation ends
    early.
    """
    if not _begin(kept, change, run, limit):
        return np.inf
    tried, ends = 0, np.uint32(len(run.after) - 1)
    while run.after[ends] != ends:
        task, place = run.after[ends], kept.counts[PASSED]
        if place >= tried and _is_shifted(kept, change, run, task, place, makespan):
            shift, until = run.soonest[task] - kept.ready[task], _unmarked(change, place)
            until, now = _agreed(kept, change, run, place, until, shift, True)
            tried = max(until, place + WORTH)
            if until - place >= WORTH:
                if not _take_over(kept, change, run, until, now, shift, limit):
                    return np.inf
                continue
        if run.load[take(kept, change, run, task)] > limit:
            return np.inf
    return float(run.free.max())


@tight
def _begin(kept: Kept, change: Change, run: Run, limit: float) -> bool:
    """Pass the tasks that are as they were, of which nothing is written. Whether the limit may be kept."""
    until = kept.counts[FIRST]
    kept.counts[FIRST] = kept.counts[TAKEN] = kept.counts[GONE] = 0
    run.latest[:] = run.late[:] = -np.inf
    run.shift[:] = 0.0
    until, now = _agreed(kept, change, run, 0, until, 0.0, False)
    kept.counts[FIRST] = kept.counts[PASSED] = kept.counts[OLD] = until
    _find_last(kept, run, until)
    for device in range(len(run.last)):
        last = run.last[device]
        run.first_last[device], run.first_done[device] = last, kept.done[last] if last != NONE else 0.0
        run.free[device] = kept.end[last] if last != NONE else 0.0
        run.load[device] = change.load[device] + run.free[device] - run.first_done[device]
        if run.load[device] > limit:
            return False
    _wake(kept, change, run, now, 0.0)
    return True


@tight
def _find_last(kept: Kept, run: Run, place: int) -> None:
    """Find the last task of each device before some place."""
    left = 0
    for device in range(len(run.last)):
        run.last[device] = NONE
        left += kept.earliest[device] < place
    while left:
        place -= 1
        task = kept.order[place]
        device = kept.device[task]
        if run.last[device] == NONE:
            run.last[device] = task
            left -= 1


@tight
def _is_shifted(kept: Kept, change: Change, run: Run, task: int, place: int, makespan: float) -> bool:
    """Whether nothing tells the new state from the old one but that it is so much later: all that stood before a place in the old
    queue have been taken, or are gone, the next one stood there, and what has not ended is as much later.
    """
    are_taken = kept.counts[OLD] + kept.counts[GONE] == place
    if not are_taken or kept.place[task] != place or change.mark[task] != SAME:
        return False
    now, before = run.soonest[task], kept.ready[task]
    is_exact = now == before or max(makespan, makespan + (now - before)) < EXACT
    return bool(is_exact and _agrees(run, now - before, now, before))


@tight
def _unmarked(change: Change, place: int) -> int:
    """The next place of a task that is affected or gone, or the end of the queue."""
    while not change.is_marked[place]:
        place += 1
    return place


@tight
def _agrees(run: Run, shift: float, now: float, before: float) -> bool:
    """Whether what has not ended now, or then in the old timeline, ends so much later than it did."""
    agrees = run.late[0] <= now and run.late[1] <= before
    for i in range(SHIFTS):
        if run.shift[i] != shift:
            agrees &= run.latest[i] <= now and run.latest[i] - run.shift[i] <= before
    return bool(agrees)


@tight
def _agreed(
    kept: Kept, change: Change, run: Run, place: int, until: int, shift: float, is_begun: bool
) -> tuple[int, float]:
    """Up to which place the old queue stays the same but for a shift, if it does so at one, and at most `until`; and a time, by
    the new timeline, before which the tasks up to there are ready, and no others.
    """
    soonest = kept.ready[kept.order[until]] if until < kept.counts[LIVE] else np.inf
    i = 0
    while i < kept.counts[AFFECTED]:
        task = run.affected[i]
        if run.end[task] < np.inf:
            kept.counts[AFFECTED] -= 1
            run.affected[i] = run.affected[kept.counts[AFFECTED]]
            run.critical[i] = run.critical[kept.counts[AFFECTED]]
            continue
        if not is_begun or (run.critical[i] != NONE and ended(kept, run, run.critical[i]) < np.inf):
            run.critical[i] = _critical(kept, change, run, task)
        if run.critical[i] == NONE:
            soonest = min(soonest, run.soonest[task] - shift if is_begun else 0.0)
        elif change.mark[run.critical[i]] == SAME:
            soonest = min(soonest, kept.end[run.critical[i]])
        i += 1
    low, high = place, until
    while low < high:
        middle = (low + high) >> 1
        if kept.ready[kept.order[middle]] < soonest:
            low = middle + 1
        else:
            high = middle
    return low, soonest + shift


@tight
def _critical(kept: Kept, change: Change, run: Run, task: int) -> int:
    """Of those not taken that an affected task waits for one that is affected, or else the last to end; NONE if there is none."""
    found: int = np.uint32(NONE)  # type: ignore[assignment]
    e = change.first_before[task]
    while e != NONE:
        found = _later(kept, change, run, found, change.source[e])
        e = change.next_before[e]
    return found


@tight
def _later(kept: Kept, change: Change, run: Run, found: int, other: int) -> int:
    if ended(kept, run, other) < np.inf or (found != NONE and change.mark[found] != SAME):
        return found
    is_later = found == NONE or change.mark[other] != SAME or kept.end[other] > kept.end[found]
    return other if is_later else found


@tight
def _take_over(
    kept: Kept, change: Change, run: Run, until: int, now: float, shift: float, limit: float
) -> bool:
    """Take the next tasks of the old queue up to some place, so much later; all others are ready `now` at the soonest. Whether
    the limit may be kept.
    """
    begin, at = kept.counts[PASSED], kept.counts[TAKEN]
    run.work[:] = 0.0
    for place in range(begin, until):
        task = kept.order[place]
        device = kept.device[task]
        run.order[at] = task
        at += 1
        run.ready[task], run.end[task] = kept.ready[task] + shift, kept.end[task] + shift
        run.work[device] += kept.seconds[task]
        run.last[device] = task
    kept.counts[OLD] += until - begin
    kept.counts[TAKEN], kept.counts[PASSED] = at, until
    for device in range(len(run.free)):
        if run.last[device] != NONE and kept.place[run.last[device]] >= begin:
            end = run.end[run.last[device]]
            run.load[device] += end - run.free[device] - run.work[device]
            run.free[device] = end
        if run.load[device] > limit:
            return False
    _wake(kept, change, run, now, shift)
    return True


@tight
def _wake(kept: Kept, change: Change, run: Run, now: float, shift: float) -> None:
    """Begin an epoch: see which tasks are ready after those that end `now` or later, and which affected ones are; there are none
    else.
    """
    kept.counts[EPOCH] += 1
    kept.counts[NEAR] = clear(run.after, run.before)
    for device in range(len(run.last)):
        task = run.last[device]
        while task != NONE:
            if change.mark[task] != LOST:
                end = ended(kept, run, task)
                if end < now:
                    break
                note(run, shift, end)
                _meet_next(kept, change, run, task)
            task = kept.previous[task]
    for i in range(kept.counts[AFFECTED]):
        if run.end[run.affected[i]] == np.inf:
            meet(kept, change, run, run.affected[i])
    place = kept.counts[PASSED]
    while place < kept.counts[LIVE] and kept.ready[kept.order[place]] == 0:
        meet(kept, change, run, kept.order[place])
        place += 1


@tight
def _meet_next(kept: Kept, change: Change, run: Run, task: int) -> None:
    """See what those that wait for a task wait for."""
    first = kept.waiting_first[task]
    for e in range(first, first + kept.waiting_count[task]):
        if change.mark[kept.waiting[e]] == SAME:
            meet(kept, change, run, kept.waiting[e])
    e = change.first_waiting[task]
    while e != NONE:
        meet(kept, change, run, change.target[e])
        e = change.next_waiting[e]
