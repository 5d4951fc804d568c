"""Delta simulation: the timeline of a changed task graph from the old one, equal to full simulation to the last bit.

`apply_change` puts the replaced blocks beside the current graph. `simulate_change` keeps the old timeline up to the first place
where the two may differ, and takes the other tasks one by one as full simulation does. `commit_change` writes an accepted
change over the current graph, and `revert_change` removes it.

The predecessors of a task are looked up when the first of them ends in a simulation. So the tasks that are kept cost nothing.
Times are multiples of `TICK`, so their sums are exact in any order.
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
    INDEX,
    LIVE,
    LOST,
    MARKED,
    NEAR,
    NEW,
    NONE,
    NUMBERS,
    SAME,
    TAKEN,
    TASKS,
    WAITING,
    CurrentGraph,
    DeltaRun,
    GraphChange,
    queue,
)
from mtfc.compiler.search.placement.task_graph_builder import Array, TaskBlocks


@jit_no_refcount
def simulate_change(current: CurrentGraph, change: GraphChange, run: DeltaRun, limit: float) -> float:
    """Simulate a change; return the new makespan, or infinity beyond the limit."""
    if not _begin(current, change, run, limit):
        return np.inf
    ends = np.uint32(len(run.after) - 1)
    while run.after[ends] != ends:
        if run.load[take_task(current, change, run, run.after[ends])] > limit:
            return np.inf
    return float(run.free.max())


@jit_inline
def _begin(current: CurrentGraph, change: GraphChange, run: DeltaRun, limit: float) -> bool:
    """Skip the tasks that do not change. Return False if the limit is certain to be exceeded."""
    current.counts[TAKEN] = 0
    now = _first_change(current, change, run)
    _find_last(current, run, current.counts[FIRST])
    for device in range(len(run.last)):
        last = run.last[device]
        run.first_last[device], run.first_done[device] = last, current.done[last] if last != NONE else 0.0
        run.free[device] = current.end[last] if last != NONE else 0.0
        run.load[device] = change.load[device] + run.free[device] - run.first_done[device]
        if run.load[device] > limit:
            return False
    _find_ready(current, change, run, now)
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
def _first_change(current: CurrentGraph, change: GraphChange, run: DeltaRun) -> float:
    """Set FIRST to the place up to which the queue stays the same. Return a time: exactly the tasks before this place are
    ready before it.
    """
    until = current.counts[FIRST]
    soonest = current.ready[current.order[until]] if until < current.counts[LIVE] else np.inf
    for i in range(current.counts[AFFECTED]):
        soonest = min(soonest, _soonest_ready(current, change, run.affected[i]))
    low = 0
    while low < until:
        middle = (low + until) >> 1
        if current.ready[current.order[middle]] < soonest:
            low = middle + 1
        else:
            until = middle
    current.counts[FIRST] = until
    return float(soonest)


@jit_inline
def _soonest_ready(current: CurrentGraph, change: GraphChange, task: int) -> float:
    """Return when an affected task is ready, or infinity if it waits for another affected task."""
    soonest, e = 0.0, change.first_predecessor[task]
    while e != NONE:
        source = change.source[e]
        soonest = max(soonest, current.end[source] if change.mark[source] == SAME else np.inf)
        e = change.next_predecessor[e]
    return float(soonest)


@jit_inline
def _find_ready(current: CurrentGraph, change: GraphChange, run: DeltaRun, now: float) -> None:
    """Enqueue the ready tasks among successors of tasks that end at `now` or later, and among affected tasks."""
    current.counts[EPOCH] += 1
    current.counts[NEAR] = clear(run.after, run.before)
    for device in range(len(run.last)):
        task = run.last[device]
        while task != NONE and current.end[task] >= now:
            _check_successors(current, change, run, task)
            task = current.previous[task]
    for i in range(current.counts[AFFECTED]):
        check_ready(current, change, run, run.affected[i])
    place = current.counts[FIRST]
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
    device, ready = current.device[task], run.soonest[task]
    start = max(ready, run.free[device])
    run.load[device] += start - run.free[device]
    end = start + current.seconds[task]
    run.free[device], run.ready[task] = end, ready
    run.order[current.counts[TAKEN]] = task
    current.counts[TAKEN] += 1
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
    """Look up the open predecessors of a task, once per simulation, and enqueue it if there are none."""
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
        change.mark[change.marked[i]] = SAME
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
    for i in range(current.counts[MARKED]):
        task = change.marked[i]
        if change.mark[task] == LOST:
            current.place[task] = NONE
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
