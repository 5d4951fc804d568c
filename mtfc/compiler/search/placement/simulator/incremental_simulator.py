"""Delta simulation: the timeline of a changed task graph from the old one, equal to full simulation to the last bit.

`apply_change` puts the replaced blocks beside the current graph. `simulate_change` simulates only what changes. It skips the
queue up to the first place where the timelines may differ, then takes tasks one by one as full simulation does. As soon as the
new state differs from the old one only by a time shift, it copies the old timeline, shifted, up to the next task that may be
affected. This is the case when

- the tasks taken are those before some place of the old queue, except new and removed tasks
- all of these that have not ended, in either timeline, end later by the same shift, and none is new or removed

Then devices become free later by this shift, or are free already, and the same holds for successors. The order of further tasks
follows from this alone, up to the first affected task. Times are multiples of `TICK`, so sums are exact, and a shift changes no
order.

The predecessors of a task are looked up when the first of them is taken in an *epoch*. An epoch begins whenever a stretch of
the old timeline is copied; so copied tasks cost nothing more. `commit_change` writes an accepted change over the current graph,
and `revert_change` removes it.
"""

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
"""Sums of multiples of a tick are exact below this many seconds."""
WORTH = 48
"""The smallest number of tasks that are copied at once, as the check has a cost, too."""


@jit_no_refcount
def simulate_change(
    current: CurrentGraph, change: GraphChange, run: DeltaRun, makespan: float, limit: float
) -> float:
    """Simulate a change of a timeline with a known makespan; return the new makespan, or infinity beyond the limit."""
    if not _begin(current, change, run, limit):
        return np.inf
    tried, ends = 0, np.uint32(len(run.after) - 1)
    while run.after[ends] != ends:
        task, place = run.after[ends], current.counts[PASSED]
        if place >= tried and _is_shifted(current, change, run, task, place, makespan):
            shift, until = run.soonest[task] - current.ready[task], _unmarked(change, place)
            until, now = _unaffected_until(current, change, run, place, until, shift, True)
            tried = max(until, place + WORTH)
            if until - place >= WORTH:
                if not _take_over(current, change, run, until, now, shift, limit):
                    return np.inf
                continue
        if run.load[take_task(current, change, run, task)] > limit:
            return np.inf
    return float(run.free.max())


@jit_inline
def _begin(current: CurrentGraph, change: GraphChange, run: DeltaRun, limit: float) -> bool:
    """Skip the tasks that do not change. Return False if the limit is certain to be exceeded."""
    until = current.counts[FIRST]
    current.counts[FIRST] = current.counts[TAKEN] = current.counts[GONE] = 0
    run.latest[:] = run.late[:] = -np.inf
    run.shift[:] = 0.0
    until, now = _unaffected_until(current, change, run, 0, until, 0.0, False)
    current.counts[FIRST] = current.counts[PASSED] = current.counts[OLD] = until
    _find_last(current, run, until)
    for device in range(len(run.last)):
        last = run.last[device]
        run.first_last[device], run.first_done[device] = last, current.done[last] if last != NONE else 0.0
        run.free[device] = current.end[last] if last != NONE else 0.0
        run.load[device] = change.load[device] + run.free[device] - run.first_done[device]
        if run.load[device] > limit:
            return False
    _begin_epoch(current, change, run, now, 0.0)
    return True


@jit_inline
def _find_last(current: CurrentGraph, run: DeltaRun, place: int) -> None:
    """Find the last task of each device before some place."""
    left = 0
    for device in range(len(run.last)):
        run.last[device] = NONE
        left += current.earliest[device] < place
    while left:
        place -= 1
        task = current.order[place]
        device = current.device[task]
        if run.last[device] == NONE:
            run.last[device] = task
            left -= 1


@jit_inline
def _is_shifted(
    current: CurrentGraph, change: GraphChange, run: DeltaRun, task: int, place: int, makespan: float
) -> bool:
    """Return whether the new state differs from the old state at a place only by a time shift."""
    are_taken = current.counts[OLD] + current.counts[GONE] == place
    if not are_taken or current.place[task] != place or change.mark[task] != SAME:
        return False
    now, before = run.soonest[task], current.ready[task]
    is_exact = now == before or max(makespan, makespan + (now - before)) < EXACT
    return bool(is_exact and _shift_agrees(run, now - before, now, before))


@jit_inline
def _unmarked(change: GraphChange, place: int) -> int:
    """Return the next place of an affected or removed task, or the end of the queue."""
    while not change.is_marked[place]:
        place += 1
    return place


@jit_inline
def _shift_agrees(run: DeltaRun, shift: float, now: float, before: float) -> bool:
    """Return whether all tasks that have not ended, in either timeline, are shifted by `shift`."""
    agrees = run.late[0] <= now and run.late[1] <= before
    for i in range(SHIFTS):
        if run.shift[i] != shift:
            agrees &= run.latest[i] <= now and run.latest[i] - run.shift[i] <= before
    return bool(agrees)


@jit_inline
def _unaffected_until(
    current: CurrentGraph,
    change: GraphChange,
    run: DeltaRun,
    place: int,
    until: int,
    shift: float,
    is_begun: bool,
) -> tuple[int, float]:
    """Return the place, at most `until`, up to which the old queue stays the same but for a shift, and a time in the new
    timeline: exactly the tasks before this place are ready before this time.
    """
    soonest = current.ready[current.order[until]] if until < current.counts[LIVE] else np.inf
    i = 0
    while i < current.counts[AFFECTED]:
        task = run.affected[i]
        if run.end[task] < np.inf:
            current.counts[AFFECTED] -= 1
            run.affected[i] = run.affected[current.counts[AFFECTED]]
            run.critical[i] = run.critical[current.counts[AFFECTED]]
            continue
        if not is_begun or (run.critical[i] != NONE and end_of(current, run, run.critical[i]) < np.inf):
            run.critical[i] = _blocking_task(current, change, run, task)
        if run.critical[i] == NONE:
            soonest = min(soonest, run.soonest[task] - shift if is_begun else 0.0)
        elif change.mark[run.critical[i]] == SAME:
            soonest = min(soonest, current.end[run.critical[i]])
        i += 1
    low, high = place, until
    while low < high:
        middle = (low + high) >> 1
        if current.ready[current.order[middle]] < soonest:
            low = middle + 1
        else:
            high = middle
    return low, soonest + shift


@jit_inline
def _blocking_task(current: CurrentGraph, change: GraphChange, run: DeltaRun, task: int) -> int:
    """Return an open predecessor of an affected task: an affected one, else the last to end, else NONE."""
    found: int = np.uint32(NONE)  # type: ignore[assignment]
    e = change.first_predecessor[task]
    while e != NONE:
        found = _later_of(current, change, run, found, change.source[e])
        e = change.next_predecessor[e]
    return found


@jit_inline
def _later_of(current: CurrentGraph, change: GraphChange, run: DeltaRun, found: int, other: int) -> int:
    if end_of(current, run, other) < np.inf or (found != NONE and change.mark[found] != SAME):
        return found
    is_later = found == NONE or change.mark[other] != SAME or current.end[other] > current.end[found]
    return other if is_later else found


@jit_inline
def _take_over(
    current: CurrentGraph,
    change: GraphChange,
    run: DeltaRun,
    until: int,
    now: float,
    shift: float,
    limit: float,
) -> bool:
    """Copy old tasks up to some place, shifted. All others are ready at `now` or later. Return False if the limit is exceeded."""
    begin, at = current.counts[PASSED], current.counts[TAKEN]
    run.work[:] = 0.0
    for place in range(begin, until):
        task = current.order[place]
        device = current.device[task]
        run.order[at] = task
        at += 1
        run.ready[task], run.end[task] = current.ready[task] + shift, current.end[task] + shift
        run.work[device] += current.seconds[task]
        run.last[device] = task
    current.counts[OLD] += until - begin
    current.counts[TAKEN], current.counts[PASSED] = at, until
    for device in range(len(run.free)):
        if run.last[device] != NONE and current.place[run.last[device]] >= begin:
            end = run.end[run.last[device]]
            run.load[device] += end - run.free[device] - run.work[device]
            run.free[device] = end
        if run.load[device] > limit:
            return False
    _begin_epoch(current, change, run, now, shift)
    return True


@jit_inline
def _begin_epoch(current: CurrentGraph, change: GraphChange, run: DeltaRun, now: float, shift: float) -> None:
    """Begin an epoch: enqueue the ready tasks among successors of tasks that end at `now` or later, and among affected tasks."""
    current.counts[EPOCH] += 1
    current.counts[NEAR] = clear(run.after, run.before)
    for device in range(len(run.last)):
        task = run.last[device]
        while task != NONE:
            if change.mark[task] != LOST:
                end = end_of(current, run, task)
                if end < now:
                    break
                note_shift(run, shift, end)
                _check_successors(current, change, run, task)
            task = current.previous[task]
    for i in range(current.counts[AFFECTED]):
        if run.end[run.affected[i]] == np.inf:
            check_ready(current, change, run, run.affected[i])
    place = current.counts[PASSED]
    while place < current.counts[LIVE] and current.ready[current.order[place]] == 0:
        check_ready(current, change, run, current.order[place])
        place += 1


@jit_inline
def _check_successors(current: CurrentGraph, change: GraphChange, run: DeltaRun, task: int) -> None:
    first = current.successor_first[task]
    for e in range(first, first + current.successor_count[task]):
        if change.mark[current.successors[e]] == SAME:
            check_ready(current, change, run, current.successors[e])
    e = change.first_successor[task]
    while e != NONE:
        check_ready(current, change, run, change.target[e])
        e = change.next_successor[e]


@jit_inline
def end_of(current: CurrentGraph, run: DeltaRun, task: int) -> float:
    """Return the end of a task, infinite if it was not taken."""
    return float(current.end[task] if current.place[task] < current.counts[FIRST] else run.end[task])


@jit_inline
def take_task(current: CurrentGraph, change: GraphChange, run: DeltaRun, task: int) -> int:
    """Take the first task of the queue; return its device."""
    next = drop(run.after, run.before, task)
    if current.counts[NEAR] == task:
        current.counts[NEAR] = next
    device, ready, place = current.device[task], run.soonest[task], current.place[task]
    start = max(ready, run.free[device])
    run.load[device] += start - run.free[device]
    end = start + current.seconds[task]
    run.free[device], run.ready[task] = end, ready
    run.order[current.counts[TAKEN]] = task
    current.counts[TAKEN] += 1
    if place == NONE:
        run.late[0] = max(run.late[0], end)
    else:
        current.counts[OLD] += 1
        note_shift(run, end - current.end[task], end)
        if run.last[device] == NONE or current.place[run.last[device]] < place:
            run.last[device] = task
        _pass_places(current, change, run, place + 1)
    first = current.successor_first[task]
    for e in range(first, first + current.successor_count[task]):
        other = current.successors[e]
        if change.mark[other] == SAME:
            _notify(current, change, run, other, end)
    e = change.first_successor[task]
    while e != NONE:
        _notify(current, change, run, change.target[e], end)
        e = change.next_successor[e]
    run.end[task] = end
    return int(device)


@jit_inline
def note_shift(run: DeltaRun, shift: float, end: float) -> None:
    """Record that a task ends at `end`, later by `shift` than before."""
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
def _pass_places(current: CurrentGraph, change: GraphChange, run: DeltaRun, until: int) -> None:
    """Pass the old queue up to a place, and removed tasks behind it."""
    place = current.counts[PASSED]
    while place < until or (place < current.counts[LIVE] and change.mark[current.order[place]] == LOST):
        task = current.order[place]
        if change.mark[task] == LOST:
            run.late[1] = max(run.late[1], current.end[task])
            current.counts[GONE] += 1
        place += 1
    current.counts[PASSED] = place


@jit_inline
def _notify(current: CurrentGraph, change: GraphChange, run: DeltaRun, task: int, end: float) -> None:
    """Tell a task that a predecessor ends. All successors are told before the predecessor counts as taken, as edges may be
    double.
    """
    check_ready(current, change, run, task)
    run.soonest[task] = max(run.soonest[task], end)
    run.missing[task] -= 1
    if run.missing[task] == 0:
        _enqueue(current, run, task)


@jit_inline
def check_ready(current: CurrentGraph, change: GraphChange, run: DeltaRun, task: int) -> None:
    """Look up the open predecessors of a task, once per epoch, and enqueue it if there are none."""
    if run.seen[task] == current.counts[EPOCH] or change.mark[task] == LOST:
        return
    run.seen[task] = current.counts[EPOCH]
    soonest, missing = 0.0, 0
    if change.mark[task] == ALTERED:
        e = change.first_predecessor[task]
        while e != NONE:
            soonest, missing = _add_predecessor(end_of(current, run, change.source[e]), soonest, missing)
            e = change.next_predecessor[e]
    else:
        first = current.predecessor_first[task]
        for e in range(first, first + current.predecessor_count[task]):
            soonest, missing = _add_predecessor(
                end_of(current, run, current.predecessors[e]), soonest, missing
            )
    run.soonest[task], run.missing[task] = soonest, missing
    if missing == 0:
        _enqueue(current, run, task)


@jit_inline
def _add_predecessor(end: float, soonest: float, missing: int) -> tuple[float, int]:
    return (soonest, missing + 1) if end == np.inf else (max(soonest, end), missing)


@jit_inline
def _enqueue(current: CurrentGraph, run: DeltaRun, task: int) -> None:
    put(run.after, run.before, run.soonest, current.key, current.counts[NEAR], task)
    current.counts[NEAR] = task


@jit_no_refcount
def apply_change(
    current: CurrentGraph,
    numbers: Array,
    new: TaskBlocks,
    edge_targets: Array,
    change: GraphChange,
    run: DeltaRun,
) -> bool:
    """Mark the blocks with some numbers, which are ascending, as replaced by new ones.

    edge_targets [block]: the other block to which edges of a block lead, or -1. Return False if there is no room.
    """
    if (
        current.counts[TASKS] + len(new.device) > len(current.device) - ENDS
        or current.counts[EPOCH] > NONE // 2
    ):
        return False
    for device in range(len(current.load)):
        change.load[device] = current.load[device]
    current.counts[NUMBERS], current.counts[NEW], current.counts[MARKED] = len(numbers), 0, 0
    current.counts[FIRST] = current.counts[LIVE]
    for i in range(len(numbers)):
        _replace_block(current, i, numbers[i], new, change, run)
    affected = current.counts[NEW]
    for number in numbers:
        block = edge_targets[number]
        if block < 0 or change.is_anew[block]:
            continue
        begin = current.begin[block]
        if current.size[block] and change.mark[begin] == SAME:
            for task in range(begin, begin + current.size[block]):
                _mark(current, task, ALTERED, change)
                run.affected[affected], change.first_predecessor[task] = task, NONE
                affected += 1
    return _chain_edges(current, numbers, new, affected, change, run)


@jit_inline
def _mark(current: CurrentGraph, task: int, mark: int, change: GraphChange) -> None:
    change.mark[task], change.marked[current.counts[MARKED]] = mark, task
    current.counts[MARKED] += 1
    place = current.place[task]
    if place != NONE:
        change.is_marked[place] = 1
        current.counts[FIRST] = min(current.counts[FIRST], place)


@jit_inline
def _replace_block(
    current: CurrentGraph, i: int, number: int, new: TaskBlocks, change: GraphChange, run: DeltaRun
) -> None:
    for task in range(current.begin[number], current.begin[number] + current.size[number]):
        _mark(current, task, LOST, change)
        change.load[current.device[task]] -= current.seconds[task]
    begin = current.counts[TASKS] + current.counts[NEW]
    change.numbers[i], change.is_anew[number] = number, 1
    change.begin[number], change.size[number] = begin, new.offsets[i + 1] - new.offsets[i]
    change.sent[number] = new.sent[i]
    for device in range(new.held.shape[1]):
        change.held[number, device] = new.held[i, device]
    for task in range(change.size[number]):
        at, device = begin + task, new.device[new.offsets[i] + task]
        current.device[at], current.seconds[at] = device, new.seconds[new.offsets[i] + task]
        current.key[at], current.place[at] = (number << INDEX) + task, NONE
        current.successor_count[at] = current.predecessor_count[at] = 0
        _mark(current, at, ALTERED, change)
        change.first_predecessor[at] = NONE
        change.load[device] += current.seconds[at]
        run.affected[current.counts[NEW]] = at
        current.counts[NEW] += 1


@jit_inline
def _chain_edges(
    current: CurrentGraph, numbers: Array, new: TaskBlocks, affected: int, change: GraphChange, run: DeltaRun
) -> bool:
    """Chain the new edges, and the old edges that affected tasks keep. Return False if there is no room."""
    total = 0
    for i in range(len(numbers)):
        for e in range(new.edge_offsets[i], new.edge_offsets[i + 1]):
            if total < len(change.source):
                edge = new.edges[e]
                change.source[total] = change.begin[edge[0]] + edge[1]
                change.target[total] = change.begin[edge[2]] + edge[3]
                change.owner[total] = numbers[i]
            total += 1
    for i in range(current.counts[NEW], affected):
        task = run.affected[i]
        for e in range(
            current.predecessor_first[task], current.predecessor_first[task] + current.predecessor_count[task]
        ):
            if not change.is_anew[current.owner[e]]:
                if total < len(change.source):
                    change.source[total], change.target[total] = current.predecessors[e], task
                    change.owner[total] = current.owner[e]
                total += 1
    current.counts[EDGES] = min(total, len(change.source))
    for e in range(current.counts[EDGES]):
        source, target = change.source[e], change.target[e]
        change.next_successor[e] = change.first_successor[source]
        change.next_predecessor[e] = change.first_predecessor[target]
        change.first_successor[source] = change.first_predecessor[target] = e
    current.counts[AFFECTED] = affected
    return total <= len(change.source)


@jit_no_refcount
def revert_change(current: CurrentGraph, change: GraphChange, run: DeltaRun) -> None:
    """Remove a change, and its simulation."""
    unmark(current, change)
    for i in range(current.counts[TAKEN]):
        run.end[run.order[i]] = np.inf


@jit_inline
def unmark(current: CurrentGraph, change: GraphChange) -> None:
    """Remove all marks."""
    for i in range(current.counts[MARKED]):
        task = change.marked[i]
        change.mark[task] = SAME
        if current.place[task] != NONE:
            change.is_marked[current.place[task]] = 0
    for e in range(current.counts[EDGES]):
        change.first_successor[change.source[e]] = NONE
    for i in range(current.counts[NUMBERS]):
        number = change.numbers[i]
        change.begin[number], change.is_anew[number] = current.begin[number], 0


@jit_no_refcount
def commit_change(current: CurrentGraph, change: GraphChange, run: DeltaRun) -> bool:
    """Write a change over the current graph, when all tasks have been taken. Return False, and write nothing, if there is no
    room for edges.
    """
    count, room = _changed_predecessors(current, change, run)
    waiting, before = current.counts[WAITING] + room, current.counts[BEFORE] + current.counts[EDGES]
    if waiting > len(current.successors) or before > len(current.predecessors):
        return False
    for i in range(count):
        _write_successors(current, change, run.moved[i])
    for i in range(current.counts[MARKED]):
        if change.mark[change.marked[i]] != LOST:
            _write_predecessors(current, change, change.marked[i])
    for i in range(current.counts[NUMBERS]):
        number = change.numbers[i]
        current.begin[number], current.size[number] = change.begin[number], change.size[number]
        current.sent[number] = change.sent[number]
        for device in range(current.held.shape[1]):
            current.held[number, device] = change.held[number, device]
    _write_timeline(current, change, run)
    return True


@jit_inline
def _changed_predecessors(current: CurrentGraph, change: GraphChange, run: DeltaRun):  # type: ignore[no-untyped-def]
    """List the predecessors of affected and removed tasks; return their number, and the number of edges that they may have."""
    current.counts[EPOCH] += 1
    count, room = 0, current.counts[EDGES]
    for i in range(current.counts[MARKED]):
        task = change.marked[i]
        for e in range(
            current.predecessor_first[task], current.predecessor_first[task] + current.predecessor_count[task]
        ):
            count, room = _collect(current, change, run, current.predecessors[e], count, room)
    for e in range(current.counts[EDGES]):
        count, room = _collect(current, change, run, change.source[e], count, room)
    return count, room


@jit_inline
def _collect(
    current: CurrentGraph, change: GraphChange, run: DeltaRun, task: int, count: int, room: int
) -> tuple[int, int]:
    if change.mark[task] == LOST or run.seen[task] == current.counts[EPOCH]:
        return count, room
    run.seen[task] = current.counts[EPOCH]
    run.moved[count] = task
    return count + 1, room + current.successor_count[task]


@jit_inline
def _write_successors(current: CurrentGraph, change: GraphChange, task: int) -> None:
    """Write the successors of a task: unaffected old ones, then the targets of new edges."""
    first, count = current.successor_first[task], 0
    for e in range(first, first + current.successor_count[task]):
        if change.mark[current.successors[e]] == SAME:
            current.successors[first + count] = current.successors[e]
            count += 1
    total, e = count, change.first_successor[task]
    while e != NONE:
        total, e = total + 1, change.next_successor[e]
    if total > current.successor_count[task]:
        for i in range(count):
            current.successors[current.counts[WAITING] + i] = current.successors[first + i]
        first = current.counts[WAITING]
        current.counts[WAITING] += total
    current.successor_first[task], current.successor_count[task] = first, total
    e = change.first_successor[task]
    while e != NONE:
        current.successors[first + count] = change.target[e]
        count, e = count + 1, change.next_successor[e]


@jit_inline
def _write_predecessors(current: CurrentGraph, change: GraphChange, task: int) -> None:
    """Write the predecessors of an affected task."""
    count, e = 0, change.first_predecessor[task]
    while e != NONE:
        count, e = count + 1, change.next_predecessor[e]
    if count > current.predecessor_count[task]:
        current.predecessor_first[task] = current.counts[BEFORE]
        current.counts[BEFORE] += count
    current.predecessor_count[task] = count
    at, e = current.predecessor_first[task], change.first_predecessor[task]
    while e != NONE:
        current.predecessors[at], current.owner[at] = change.source[e], change.owner[e]
        at, e = at + 1, change.next_predecessor[e]


@jit_inline
def _write_timeline(current: CurrentGraph, change: GraphChange, run: DeltaRun) -> None:
    """Write the new timeline, and remove all marks."""
    change.is_marked[current.counts[LIVE]] = 0
    for i in range(current.counts[MARKED]):
        task = change.marked[i]
        if change.mark[task] == LOST:
            change.is_marked[current.place[task]], current.place[task] = 0, NONE
    unmark(current, change)
    first = current.counts[FIRST]
    for device in range(len(current.load)):
        current.load[device] = change.load[device]
        run.work[device], run.last[device] = run.first_done[device], run.first_last[device]
        if current.earliest[device] >= first:
            current.earliest[device] = NONE
    for i in range(current.counts[TAKEN]):
        task = run.order[i]
        current.ready[task], current.end[task] = run.ready[task], run.end[task]
        run.end[task] = np.inf
        queue(current, task, first + i, run.work, run.last)
    current.counts[LIVE] = first + current.counts[TAKEN]
    current.counts[TASKS] += current.counts[NEW]
    change.is_marked[current.counts[LIVE]] = 1
