"""A simulation of a changed task graph under way: taking tasks from the queue one by one, as `kernels.simulate` does.

What a task waits for is looked up when one of these is taken for the first time in an *epoch*, which begins whenever tasks are
taken over from the old timeline; so nothing is spent on tasks that are only taken over.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from mtfc.compiler.search.soap.blocks import Array
from mtfc.compiler.search.soap.changing import Change
from mtfc.compiler.search.soap.graphs import Graph, Timeline
from mtfc.compiler.search.soap.heap import pop, push
from mtfc.compiler.search.solver.kernels import inner, tight

SHIFTS = 4
"""How many differences in time are told apart at once."""

EPOCH, SIZE, TAKEN, AFFECTED, PASSED, OLD, GONE = range(7)
"""What `Run.counts` has."""


class Run(NamedTuple):
    """ready [rank], end [task]: when it is ready and ends; infinite is the end of one that was not taken.

    soonest, missing [task]: when a task is ready as far as is known, and for how many it still waits; both are known where
    seen [task] is the present epoch. times, heap: when tasks are ready, and which, by their ranks. order: ranks of tasks as they
    were taken.
    affected: those not taken that are new or may wait for others than before; critical: for each of these a task that it waits
    for, one that is affected or else the last to end, or -1. is_marked [place]: whether a task of the old queue is affected or
    gone. free, load [device]: when it has done all that was taken; its work, and how long it was idle.

    counts: the epoch; tasks in the heap, taken, and affected; places of the old queue that were passed, tasks of it that were
    taken, and those that are gone from places that were passed. shift, last: some differences between the ends of a task in both
    timelines, and the last end with each. late [2]: the last end of tasks that are new or have other differences; and, in the
    old timeline, of those that are gone or have.
    """

    ready: Array
    end: Array
    soonest: Array
    missing: Array
    seen: Array
    times: Array
    heap: Array
    order: Array
    affected: Array
    critical: Array
    is_marked: Array
    free: Array
    load: Array
    counts: Array
    shift: Array
    last: Array
    late: Array


@inner
def begun(old: Graph, was: Timeline, new: Change, devices: int) -> Run:
    """Nothing has been taken."""
    count, total = len(was.order), len(new.rank)
    is_marked, load = np.zeros(count + 1, np.bool_), np.zeros(devices)
    is_marked[count] = True
    for device in range(devices):
        if was.first[device + 1] > was.first[device]:
            load[device] = was.work[was.first[device + 1] - 1]
    for block in range(len(new.is_anew)):
        for task in range(old.offsets[block], old.offsets[block + 1] if new.is_anew[block] else 0):
            is_marked[was.place[task]] = True
            load[old.device[task]] -= old.seconds[task]
    for task in new.affected:
        if task < count:
            is_marked[was.place[task]] = True
        else:
            load[new.device[task - count]] += new.seconds[task - count]
    return Run(
        np.empty(len(new.task)),
        np.full(total, np.inf),
        np.empty(total),
        np.empty(total, np.int32),
        np.zeros(total, np.int32),
        np.empty(len(new.task)),
        np.empty(len(new.task), np.uint32),
        np.empty(len(new.task), np.uint32),
        new.affected.copy(),
        np.full(len(new.affected), -1, np.int32),
        is_marked,
        np.zeros(devices),
        load,
        np.array([0, 0, 0, len(new.affected), 0, 0, 0]),
        np.zeros(SHIFTS),
        np.full(SHIFTS, -np.inf),
        np.full(2, -np.inf),
    )


@tight
def take(old: Graph, was: Timeline, new: Change, run: Run) -> int:
    """Take the first task of the queue; which device it runs on."""
    rank = run.heap[0]
    task = int(new.task[rank])
    run.counts[SIZE] = pop(run.times, run.heap, run.counts[SIZE])
    is_old, number = task < len(old.device), task - len(old.device)
    device = old.device[task] if is_old else new.device[number]
    start = max(run.soonest[task], run.free[device])
    run.load[device] += start - run.free[device]
    end = start + (old.seconds[task] if is_old else new.seconds[number])
    run.free[device] = end
    run.order[run.counts[TAKEN]] = rank
    run.counts[TAKEN] += 1
    place = 0
    if is_old:
        run.counts[OLD] += 1
        note(run, end - was.end[task], end)
        place = was.place[task] + 1
    else:
        run.late[0] = max(run.late[0], end)
    _pass(was, new, run, place)
    run.ready[rank] = run.soonest[task]
    if is_old:
        for e in range(old.waiting.first[task], old.waiting.first[task + 1]):
            other = old.waiting.other[e]
            if not new.is_affected[other]:
                _tell(old, new, run, other, end)
    e = new.waiting.first[task]
    while e >= 0:
        _tell(old, new, run, new.waiting.other[e], end)
        e = new.waiting.next[e]
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
        place = int(np.argmin(run.last))
        run.late[0] = max(run.late[0], run.last[place])
        run.late[1] = max(run.late[1], run.last[place] - run.shift[place])
        run.shift[place], run.last[place] = shift, end
    run.last[place] = max(run.last[place], end)


@tight
def _pass(was: Timeline, new: Change, run: Run, until: int) -> None:
    """Pass the places of the old queue up to some, and those behind whose tasks are gone."""
    place = run.counts[PASSED]
    while place < until or (place < len(was.order) and new.rank[was.order[place]] < 0):
        task = was.order[place]
        if new.rank[task] < 0:
            run.late[1] = max(run.late[1], was.end[task])
            run.counts[GONE] += 1
        place += 1
    run.counts[PASSED] = place


@tight
def _tell(old: Graph, new: Change, run: Run, task: int, end: float) -> None:
    """One that a task waits for ends at some time. It does not count as taken before all have been told: edges may be double."""
    meet(old, new, run, task)
    run.soonest[task] = max(run.soonest[task], end)
    run.missing[task] -= 1
    if run.missing[task] == 0:
        _push(new, run, task)


@tight
def meet(old: Graph, new: Change, run: Run, task: int) -> None:
    """See what a task waits for, if that is not known in this epoch, and whether it is ready. Tasks that are gone never are."""
    if run.seen[task] == run.counts[EPOCH] or new.rank[task] < 0:
        return
    run.seen[task] = run.counts[EPOCH]
    soonest, missing = 0.0, 0
    if new.is_affected[task]:
        e = new.before.first[task]
        while e >= 0:
            soonest, missing = _after(run.end[new.before.other[e]], soonest, missing)
            e = new.before.next[e]
    else:
        for e in range(old.before.first[task], old.before.first[task + 1]):
            soonest, missing = _after(run.end[old.before.other[e]], soonest, missing)
    run.soonest[task], run.missing[task] = soonest, missing
    if missing == 0:
        _push(new, run, task)


@tight
def _after(end: float, soonest: float, missing: int) -> tuple[float, int]:
    """When a task is ready, and for how many it waits, that waits for one more, with some end."""
    return (soonest, missing + 1) if end == np.inf else (max(soonest, end), missing)


@tight
def _push(new: Change, run: Run, task: int) -> None:
    run.counts[SIZE] = push(run.times, run.heap, run.counts[SIZE], run.soonest[task], new.rank[task])
