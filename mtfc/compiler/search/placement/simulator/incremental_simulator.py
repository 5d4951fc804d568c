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


A simulation of a changed task graph under way: taking tasks from the queue one by one, as `full_simulator.simulate` does.

What a task waits for is looked up when one of these is taken for the first time in an *epoch*, which begins whenever tasks are
taken over from the old timeline; so nothing is spent on tasks that are only taken over.


A task graph of which some blocks are made anew, before it is known whether it will be kept: what differs, beside what is kept.

All edges to tasks that are affected stand in chains of their own; in the old lists they do not count.


A change that is kept: of the task graph and its timeline what differs is written over."""

from __future__ import annotations

import numpy as np

from mtfc.compiler.search.jit import jit_inline, jit_no_refcount
from mtfc.compiler.search.placement.simulator.full_simulator import clear, drop, put
from mtfc.compiler.search.placement.simulator.simulator_state import (
    AFFECTED,
    ALTERED,
    BEFORE,
    EDGES,
    ENDS,
    EPOCH,
    FIRST,
    GONE,
    INDEX,
    LIVE,
    LOST,
    MARKED,
    NEAR,
    NEW,
    NONE,
    NUMBERS,
    OLD,
    PASSED,
    SAME,
    SHIFTS,
    TAKEN,
    TASKS,
    WAITING,
    CurrentGraph,
    DeltaRun,
    GraphChange,
    queue,
)
from mtfc.compiler.search.placement.task_graph_builder import Array, TaskBlocks

EXACT = 256.0
"""Seconds below which sums of multiples of a tick are exact."""
WORTH = 48
"""So many tasks at least are taken over at once: to find out costs something, too."""


@jit_no_refcount
def simulate_change(
    kept: CurrentGraph, change: GraphChange, run: DeltaRun, makespan: float, limit: float
) -> float:
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


@jit_inline
def _begin(kept: CurrentGraph, change: GraphChange, run: DeltaRun, limit: float) -> bool:
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


@jit_inline
def _find_last(kept: CurrentGraph, run: DeltaRun, place: int) -> None:
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


@jit_inline
def _is_shifted(
    kept: CurrentGraph, change: GraphChange, run: DeltaRun, task: int, place: int, makespan: float
) -> bool:
    """Whether nothing tells the new state from the old one but that it is so much later: all that stood before a place in the old
    queue have been taken, or are gone, the next one stood there, and what has not ended is as much later.
    """
    are_taken = kept.counts[OLD] + kept.counts[GONE] == place
    if not are_taken or kept.place[task] != place or change.mark[task] != SAME:
        return False
    now, before = run.soonest[task], kept.ready[task]
    is_exact = now == before or max(makespan, makespan + (now - before)) < EXACT
    return bool(is_exact and _agrees(run, now - before, now, before))


@jit_inline
def _unmarked(change: GraphChange, place: int) -> int:
    """The next place of a task that is affected or gone, or the end of the queue."""
    while not change.is_marked[place]:
        place += 1
    return place


@jit_inline
def _agrees(run: DeltaRun, shift: float, now: float, before: float) -> bool:
    """Whether what has not ended now, or then in the old timeline, ends so much later than it did."""
    agrees = run.late[0] <= now and run.late[1] <= before
    for i in range(SHIFTS):
        if run.shift[i] != shift:
            agrees &= run.latest[i] <= now and run.latest[i] - run.shift[i] <= before
    return bool(agrees)


@jit_inline
def _agreed(
    kept: CurrentGraph,
    change: GraphChange,
    run: DeltaRun,
    place: int,
    until: int,
    shift: float,
    is_begun: bool,
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


@jit_inline
def _critical(kept: CurrentGraph, change: GraphChange, run: DeltaRun, task: int) -> int:
    """Of those not taken that an affected task waits for one that is affected, or else the last to end; NONE if there is none."""
    found: int = np.uint32(NONE)  # type: ignore[assignment]
    e = change.first_before[task]
    while e != NONE:
        found = _later(kept, change, run, found, change.source[e])
        e = change.next_before[e]
    return found


@jit_inline
def _later(kept: CurrentGraph, change: GraphChange, run: DeltaRun, found: int, other: int) -> int:
    if ended(kept, run, other) < np.inf or (found != NONE and change.mark[found] != SAME):
        return found
    is_later = found == NONE or change.mark[other] != SAME or kept.end[other] > kept.end[found]
    return other if is_later else found


@jit_inline
def _take_over(
    kept: CurrentGraph, change: GraphChange, run: DeltaRun, until: int, now: float, shift: float, limit: float
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


@jit_inline
def _wake(kept: CurrentGraph, change: GraphChange, run: DeltaRun, now: float, shift: float) -> None:
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


@jit_inline
def _meet_next(kept: CurrentGraph, change: GraphChange, run: DeltaRun, task: int) -> None:
    """See what those that wait for a task wait for."""
    first = kept.waiting_first[task]
    for e in range(first, first + kept.waiting_count[task]):
        if change.mark[kept.waiting[e]] == SAME:
            meet(kept, change, run, kept.waiting[e])
    e = change.first_waiting[task]
    while e != NONE:
        meet(kept, change, run, change.target[e])
        e = change.next_waiting[e]


@jit_inline
def ended(kept: CurrentGraph, run: DeltaRun, task: int) -> float:
    """When a task ends; infinite if it was not taken."""
    return float(kept.end[task] if kept.place[task] < kept.counts[FIRST] else run.end[task])


@jit_inline
def take(kept: CurrentGraph, change: GraphChange, run: DeltaRun, task: int) -> int:
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


@jit_inline
def note(run: DeltaRun, shift: float, end: float) -> None:
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


@jit_inline
def _pass(kept: CurrentGraph, change: GraphChange, run: DeltaRun, until: int) -> None:
    """Pass the places of the old queue up to some, and those behind whose tasks are gone."""
    place = kept.counts[PASSED]
    while place < until or (place < kept.counts[LIVE] and change.mark[kept.order[place]] == LOST):
        task = kept.order[place]
        if change.mark[task] == LOST:
            run.late[1] = max(run.late[1], kept.end[task])
            kept.counts[GONE] += 1
        place += 1
    kept.counts[PASSED] = place


@jit_inline
def _tell(kept: CurrentGraph, change: GraphChange, run: DeltaRun, task: int, end: float) -> None:
    """One that a task waits for ends at some time. It does not count as taken before all have been told: edges may be double."""
    meet(kept, change, run, task)
    run.soonest[task] = max(run.soonest[task], end)
    run.missing[task] -= 1
    if run.missing[task] == 0:
        _push(kept, run, task)


@jit_inline
def meet(kept: CurrentGraph, change: GraphChange, run: DeltaRun, task: int) -> None:
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


@jit_inline
def _after(end: float, soonest: float, missing: int) -> tuple[float, int]:
    """When a task is ready, and for how many it waits, that waits for one more, with some end."""
    return (soonest, missing + 1) if end == np.inf else (max(soonest, end), missing)


@jit_inline
def _push(kept: CurrentGraph, run: DeltaRun, task: int) -> None:
    put(run.after, run.before, run.soonest, kept.key, kept.counts[NEAR], task)
    kept.counts[NEAR] = task


@jit_no_refcount
def apply_change(
    kept: CurrentGraph, numbers: Array, new: TaskBlocks, leads: Array, change: GraphChange, run: DeltaRun
) -> bool:
    """Blocks with some numbers, in ascending order, are new. leads [block]: the other block that edges of one lead to, or -1.
    Whether there is room, of epochs, too.
    """
    if kept.counts[TASKS] + len(new.device) > len(kept.device) - ENDS or kept.counts[EPOCH] > NONE // 2:
        return False
    for device in range(len(kept.load)):
        change.load[device] = kept.load[device]
    kept.counts[NUMBERS], kept.counts[NEW], kept.counts[MARKED] = len(numbers), 0, 0
    kept.counts[FIRST] = kept.counts[LIVE]
    for i in range(len(numbers)):
        _renew_block(kept, i, numbers[i], new, change, run)
    affected = kept.counts[NEW]
    for number in numbers:
        block = leads[number]
        if block < 0 or change.is_anew[block]:
            continue
        begin = kept.begin[block]
        if kept.size[block] and change.mark[begin] == SAME:
            for task in range(begin, begin + kept.size[block]):
                _mark(kept, task, ALTERED, change)
                run.affected[affected], change.first_before[task] = task, NONE
                affected += 1
    return _edges(kept, numbers, new, affected, change, run)


@jit_inline
def _mark(kept: CurrentGraph, task: int, mark: int, change: GraphChange) -> None:
    change.mark[task], change.marked[kept.counts[MARKED]] = mark, task
    kept.counts[MARKED] += 1
    place = kept.place[task]
    if place != NONE:
        change.is_marked[place] = 1
        kept.counts[FIRST] = min(kept.counts[FIRST], place)


@jit_inline
def _renew_block(
    kept: CurrentGraph, i: int, number: int, new: TaskBlocks, change: GraphChange, run: DeltaRun
) -> None:
    """One of them, the i-th."""
    for task in range(kept.begin[number], kept.begin[number] + kept.size[number]):
        _mark(kept, task, LOST, change)
        change.load[kept.device[task]] -= kept.seconds[task]
    begin = kept.counts[TASKS] + kept.counts[NEW]
    change.numbers[i], change.is_anew[number] = number, 1
    change.begin[number], change.size[number] = begin, new.offsets[i + 1] - new.offsets[i]
    change.sent[number] = new.sent[i]
    for device in range(new.held.shape[1]):
        change.held[number, device] = new.held[i, device]
    for task in range(change.size[number]):
        at, device = begin + task, new.device[new.offsets[i] + task]
        kept.device[at], kept.seconds[at] = device, new.seconds[new.offsets[i] + task]
        kept.key[at], kept.place[at] = (number << INDEX) + task, NONE
        kept.waiting_count[at] = kept.before_count[at] = 0
        _mark(kept, at, ALTERED, change)
        change.first_before[at] = NONE
        change.load[device] += kept.seconds[at]
        run.affected[kept.counts[NEW]] = at
        kept.counts[NEW] += 1


@jit_inline
def _edges(
    kept: CurrentGraph, numbers: Array, new: TaskBlocks, affected: int, change: GraphChange, run: DeltaRun
) -> bool:
    """New edges, and the old ones that are left to tasks that may have some."""
    total = 0
    for i in range(len(numbers)):
        for e in range(new.edge_offsets[i], new.edge_offsets[i + 1]):
            if total < len(change.source):
                edge = new.edges[e]
                change.source[total] = change.begin[edge[0]] + edge[1]
                change.target[total] = change.begin[edge[2]] + edge[3]
                change.owner[total] = numbers[i]
            total += 1
    for i in range(kept.counts[NEW], affected):
        task = run.affected[i]
        for e in range(kept.before_first[task], kept.before_first[task] + kept.before_count[task]):
            if not change.is_anew[kept.owner[e]]:
                if total < len(change.source):
                    change.source[total], change.target[total] = kept.before[e], task
                    change.owner[total] = kept.owner[e]
                total += 1
    kept.counts[EDGES] = min(total, len(change.source))
    for e in range(kept.counts[EDGES]):
        source, target = change.source[e], change.target[e]
        change.next_waiting[e] = change.first_waiting[source]
        change.next_before[e] = change.first_before[target]
        change.first_waiting[source] = change.first_before[target] = e
    kept.counts[AFFECTED] = affected
    return total <= len(change.source)


@jit_no_refcount
def revert_change(kept: CurrentGraph, change: GraphChange, run: DeltaRun) -> None:
    """Take back a change, and the simulation of it."""
    unmark(kept, change)
    for i in range(kept.counts[TAKEN]):
        run.end[run.order[i]] = np.inf


@jit_inline
def unmark(kept: CurrentGraph, change: GraphChange) -> None:
    """As if nothing were to be made anew."""
    for i in range(kept.counts[MARKED]):
        task = change.marked[i]
        change.mark[task] = SAME
        if kept.place[task] != NONE:
            change.is_marked[kept.place[task]] = 0
    for e in range(kept.counts[EDGES]):
        change.first_waiting[change.source[e]] = NONE
    for i in range(kept.counts[NUMBERS]):
        number = change.numbers[i]
        change.begin[number], change.is_anew[number] = kept.begin[number], 0


@jit_no_refcount
def commit_change(kept: CurrentGraph, change: GraphChange, run: DeltaRun) -> bool:
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


@jit_inline
def _moved(kept: CurrentGraph, change: GraphChange, run: DeltaRun):  # type: ignore[no-untyped-def]
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


@jit_inline
def _found(
    kept: CurrentGraph, change: GraphChange, run: DeltaRun, task: int, count: int, room: int
) -> tuple[int, int]:
    if change.mark[task] == LOST or run.seen[task] == kept.counts[EPOCH]:
        return count, room
    run.seen[task] = kept.counts[EPOCH]
    run.moved[count] = task
    return count + 1, room + kept.waiting_count[task]


@jit_inline
def _link_next(kept: CurrentGraph, change: GraphChange, task: int) -> None:
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


@jit_inline
def _link_before(kept: CurrentGraph, change: GraphChange, task: int) -> None:
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


@jit_inline
def _line(kept: CurrentGraph, change: GraphChange, run: DeltaRun) -> None:
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
