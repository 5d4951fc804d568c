"""A simulation of a changed task graph under way: taking tasks from the queue one by one, as `full_simulator.simulate` does.

What a task waits for is looked up when one of these is taken for the first time in an *epoch*, which begins whenever tasks are
taken over from the old timeline; so nothing is spent on tasks that are only taken over.
"""

from __future__ import annotations

import numpy as np

from mtfc.compiler.search.placement.simulator.ready_queue import drop, put
from mtfc.compiler.search.placement.simulator.simulator_state import (
    ALTERED,
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
from mtfc.compiler.search.solver.message_passing import tight


@tight
def ended(kept: Kept, run: Run, task: int) -> float:
    """When a task ends; infinite if it was not taken."""
    return float(kept.end[task] if kept.place[task] < kept.counts[FIRST] else run.end[task])


@tight
def take(kept: Kept, change: Change, run: Run, task: int) -> int:
    """Take the first task of the queue; which device it runs on."""
    next = drop(run.after, run.before, task)
    if kept.counts[NEAR] == task:
        kept.counts[NEAR] = next
    device, ready, place = kept.device[task], run.soonest[task], kept.place[task]
    start = max(ready, run.free[device])
    run.load[device] += start - run.free[device]
    end = start + kept.seconds[task]
    run.free[device], run.ready[task] = end, ready
    run.order[kept.counts[TAKEN]] = task
    kept.counts[TAKEN] += 1
    if place == NONE:
        run.late[0] = max(run.late[0], end)
    else:
        kept.counts[OLD] += 1
        note(run, end - kept.end[task], end)
        if run.last[device] == NONE or kept.place[run.last[device]] < place:
            run.last[device] = task
        _pass(kept, change, run, place + 1)
    first = kept.waiting_first[task]
    for e in range(first, first + kept.waiting_count[task]):
        other = kept.waiting[e]
        if change.mark[other] == SAME:
            _tell(kept, change, run, other, end)
    e = change.first_waiting[task]
    while e != NONE:
        _tell(kept, change, run, change.target[e], end)
        e = change.next_waiting[e]
    run.end[task] = end
    return int(device)


@tight
def note(run: Run, shift: float, end: float) -> None:
    """A task ends at some time, so much later than it did."""
    place = -1
    for i in range(SHIFTS):
        if run.shift[i] == shift:
            place = i
    if place < 0:
        place = 0
        for i in range(1, SHIFTS):
            place = i if run.latest[i] < run.latest[place] else place
        run.late[0] = max(run.late[0], run.latest[place])
        run.late[1] = max(run.late[1], run.latest[place] - run.shift[place])
        run.shift[place], run.latest[place] = shift, end
    run.latest[place] = max(run.latest[place], end)


@tight
def _pass(kept: Kept, change: Change, run: Run, until: int) -> None:
    """Pass the places of the old queue up to some, and those behind whose tasks are gone."""
    place = kept.counts[PASSED]
    while place < until or (place < kept.counts[LIVE] and change.mark[kept.order[place]] == LOST):
        task = kept.order[place]
        if change.mark[task] == LOST:
            run.late[1] = max(run.late[1], kept.end[task])
            kept.counts[GONE] += 1
        place += 1
    kept.counts[PASSED] = place


@tight
def _tell(kept: Kept, change: Change, run: Run, task: int, end: float) -> None:
    """One that a task waits for ends at some time. It does not count as taken before all have been told: edges may be double."""
    meet(kept, change, run, task)
    run.soonest[task] = max(run.soonest[task], end)
    run.missing[task] -= 1
    if run.missing[task] == 0:
        _push(kept, run, task)


@tight
def meet(kept: Kept, change: Change, run: Run, task: int) -> None:
    """See what a task waits for, if that is not known in this epoch, and whether it is ready. Tasks that are gone never are."""
    if run.seen[task] == kept.counts[EPOCH] or change.mark[task] == LOST:
        return
    run.seen[task] = kept.counts[EPOCH]
    soonest, missing = 0.0, 0
    if change.mark[task] == ALTERED:
        e = change.first_before[task]
        while e != NONE:
            soonest, missing = _after(ended(kept, run, change.source[e]), soonest, missing)
            e = change.next_before[e]
    else:
        first = kept.before_first[task]
        for e in range(first, first + kept.before_count[task]):
            soonest, missing = _after(ended(kept, run, kept.before[e]), soonest, missing)
    run.soonest[task], run.missing[task] = soonest, missing
    if missing == 0:
        _push(kept, run, task)


@tight
def _after(end: float, soonest: float, missing: int) -> tuple[float, int]:
    """When a task is ready, and for how many it waits, that waits for one more, with some end."""
    return (soonest, missing + 1) if end == np.inf else (max(soonest, end), missing)


@tight
def _push(kept: Kept, run: Run, task: int) -> None:
    put(run.after, run.before, run.soonest, kept.key, kept.counts[NEAR], task)
    kept.counts[NEAR] = task
