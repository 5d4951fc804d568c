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
from mtfc.compiler.search.solver.kernels import inlined, inner, lean

SHIFTS = 4
"""How many differences in time are told apart at once."""

EPOCH, SIZE, TAKEN, AFFECTED, PASSED, OLD, GONE = range(7)
"""What `Run.counts` has."""


class Run(NamedTuple):
    """ready, end [task]: of tasks that were taken when they are ready and end, of others when they did.

    is_taken [task]. soonest, missing [task]: when a task is ready as far as is known, and for how many it still waits; both are
    known where seen [task] is the present epoch. heap, key: tasks that are ready, and when. order: tasks as they were taken.
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
    is_taken: Array
    soonest: Array
    missing: Array
    seen: Array
    heap: Array
    key: Array
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
            load[new.device[task]] -= new.seconds[task]
    for task in new.affected:
        if task < count:
            is_marked[was.place[task]] = True
        else:
            load[new.device[task]] += new.seconds[task]
    ready, end = np.empty(total), np.empty(total)
    ready[:count], end[:count] = was.ready, was.end
    return Run(
        ready,
        end,
        np.zeros(total, np.bool_),
        np.empty(total),
        np.empty(total, np.int32),
        np.zeros(total, np.int32),
        np.empty(total, np.uint32),
        np.empty(total),
        np.empty(total, np.uint32),
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


@inlined
def take(old: Graph, was: Timeline, new: Change, run: Run) -> int:
    """Take the first task of the queue; which device it runs on."""
    task = run.heap[0]
    _pop(new, run)
    device = new.device[task]
    start = max(run.soonest[task], run.free[device])
    run.load[device] += start - run.free[device]
    end = start + new.seconds[task]
    run.free[device] = end
    run.order[run.counts[TAKEN]] = task
    run.counts[TAKEN] += 1
    place = 0
    if task < len(was.order):
        run.counts[OLD] += 1
        note(run, end - run.end[task], end)
        place = was.place[task] + 1
    else:
        run.late[0] = max(run.late[0], end)
    _pass(was, new, run, place)
    run.ready[task], run.end[task] = run.soonest[task], end
    if task < len(old.device):
        for e in range(old.waiting.first[task], old.waiting.first[task + 1]):
            if not new.is_anew[old.waiting.owner[e]]:
                _tell(old, new, run, old.waiting.other[e], end)
    e = new.waiting.first[task]
    while e >= 0:
        _tell(old, new, run, new.waiting.other[e], end)
        e = new.waiting.next[e]
    run.is_taken[task] = True
    return int(device)


@inlined
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


@inlined
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


@inlined
def _tell(old: Graph, new: Change, run: Run, task: int, end: float) -> None:
    """One that a task waits for ends at some time. It does not count as taken before all have been told: edges may be double."""
    meet(old, new, run, task)
    run.soonest[task] = max(run.soonest[task], end)
    run.missing[task] -= 1
    if run.missing[task] == 0:
        _push(new, run, task)


@lean
def meet(old: Graph, new: Change, run: Run, task: int) -> None:
    """See what a task waits for, if that is not known in this epoch, and whether it is ready. Tasks that are gone never are."""
    if run.seen[task] != run.counts[EPOCH] and new.rank[task] >= 0:
        run.seen[task] = run.counts[EPOCH]
        soonest, missing = 0.0, 0
        if task < len(old.device):
            for e in range(old.before.first[task], old.before.first[task + 1]):
                if not new.is_anew[old.before.owner[e]]:
                    other = old.before.other[e]
                    missing += not run.is_taken[other]
                    soonest = max(soonest, run.end[other] if run.is_taken[other] else 0.0)
        e = new.before.first[task]
        while e >= 0:
            other = new.before.other[e]
            missing += not run.is_taken[other]
            soonest = max(soonest, run.end[other] if run.is_taken[other] else 0.0)
            e = new.before.next[e]
        run.soonest[task], run.missing[task] = soonest, missing
        if missing == 0:
            _push(new, run, task)


@inlined
def _push(new: Change, run: Run, task: int) -> None:
    """Add a task to the heap, which has the order of (ready, rank)."""
    heap, key, at = run.heap, run.key, run.counts[SIZE]
    ready, rank = run.soonest[task], new.rank[task]
    while at > 0:
        above = (at - 1) >> 1
        if key[above] < ready or (key[above] == ready and new.rank[heap[above]] < rank):
            break
        heap[at], key[at] = heap[above], key[above]
        at = above
    heap[at], key[at] = task, ready
    run.counts[SIZE] += 1


@inlined
def _pop(new: Change, run: Run) -> None:
    """Take the first task away from the heap."""
    run.counts[SIZE] -= 1
    heap, key, size, at = run.heap, run.key, run.counts[SIZE], 0
    task, ready = heap[size], key[size]
    rank = new.rank[task]
    while 2 * at + 1 < size:
        below = 2 * at + 1
        a, b = key[below], key[below + 1] if below + 1 < size else np.inf
        if b < a or (a == b and below + 1 < size and new.rank[heap[below + 1]] < new.rank[heap[below]]):
            below += 1
        if ready < key[below] or (ready == key[below] and rank < new.rank[heap[below]]):
            break
        heap[at], key[at] = heap[below], key[below]
        at = below
    heap[at], key[at] = task, ready
