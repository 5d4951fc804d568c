"""Delta simulation: the timeline of a changed task graph from the old one, equal to full simulation to the last bit.

`apply_change` puts the replaced blocks beside the current graph. `simulate_change` keeps the old timeline up to the first place
where the two may differ, and takes the other tasks one by one as full simulation does. `commit_change` writes an accepted
change over the current graph, and `revert_change` removes it.

The predecessors of a task are looked up when the first of them ends in a simulation. So the tasks that are kept cost nothing.
Times are multiples of `TICK`, so their sums are exact in any order.

A task graph and its timeline are changed in place. Task numbers are stable: new blocks get numbers after all others, and removed
tasks leave gaps. So a proposal takes time for its changes only. When the room is used up, everything is loaded anew.

The state is a few arrays, grouped by task, edge, block or device. Passing an array to a compiled function takes 0.1
microseconds, and there are fifty kinds of numbers.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from mtfc.compiler.search.jit import jit, jit_inline, jit_internal, jit_no_refcount
from mtfc.compiler.search.placement.simulator.full_simulator import (
    IndexedGraph,
    TaskTimes,
    clear,
    drop,
    put,
)
from mtfc.compiler.search.placement.task_graph_builder import Array, TaskBlocks

StateArrays = tuple[Array, ...]

NONE = 2**32 - 1
"""No task, edge or place. Numbers are unsigned, so that Numba generates no checks for negative indices."""
ENDS = 2
"""Arrays by task have this many more entries than tasks."""
SAME, ALTERED, LOST = range(3)
"""Marks of tasks: unchanged; affected, which is new or has new predecessors; removed."""
INDEX = 32
"""Bits of a key for the number of a task in its block."""

TASKS, LIVE, WAITING, BEFORE, EPOCH = range(5)
"""Entries of `counts`."""
NUMBERS, NEW, MARKED, EDGES, FIRST = range(5, 10)
NEAR, TAKEN, AFFECTED = range(10, 13)
"""The meaning of the entries of `counts`:

- of the current graph: task numbers in use, tasks in the queue, used entries of the two edge pools, and the epoch
- of a change: its blocks, its new tasks, marked tasks, edges, and the first place of the queue that it touches; later the first
  place from which tasks are simulated
- of a simulation: the task where the search for a queue position begins; tasks taken; and tasks affected
"""


class CurrentGraph(NamedTuple):
    """A task graph and its timeline.

    seconds, device [task]. key [task]: its block and its number there, which break ties. ready, end [task]: the timeline.
    done [task]: seconds of it and of all earlier tasks on its device. place [task]: its place in the queue; previous
    [task]: the task before it on its device, or NONE. order [place]: the task.

    successors: `successor_count[task]` entries from `successor_first[task]`. predecessors: the same, and owner: the blocks
    of these edges. begin, size, sent [block]: first task, tasks, bytes sent between devices. held [block, device]: bytes
    kept. load [device]: seconds of all its tasks. earliest [device]: the place of its first task.
    """

    counts: Array
    seconds: Array
    ready: Array
    end: Array
    done: Array
    key: Array
    device: Array
    place: Array
    previous: Array
    order: Array
    successor_first: Array
    successor_count: Array
    predecessor_first: Array
    predecessor_count: Array
    successors: Array
    predecessors: Array
    owner: Array
    begin: Array
    size: Array
    sent: Array
    held: Array
    load: Array
    earliest: Array


class GraphChange(NamedTuple):
    """Blocks that are replaced. The current graph stays as it was; its arrays by task also have entries for new tasks.

    Between proposals nothing is replaced: all marks are SAME, there are no edges here, `begin` equals that of the current
    graph, and all ends in `DeltaRun` are infinite.

    numbers: the replaced blocks. is_anew [block]. begin, size, sent [block], held [block, device]: as in the current graph;
    for unchanged blocks `begin` only. load [device]: seconds of all its tasks. mark [task]: SAME, ALTERED or LOST; marked:
    all tasks with other marks than SAME.

    All edges to affected tasks are here, and the old lists do not count for them: source, target, owner [edge];
    first_successor, first_predecessor [task]: the first edge with this source, or target; next_successor, next_predecessor
    [edge]: the next such edge, or NONE.
    """

    numbers: Array
    is_anew: Array
    begin: Array
    size: Array
    sent: Array
    held: Array
    load: Array
    mark: Array
    marked: Array
    first_successor: Array
    first_predecessor: Array
    source: Array
    target: Array
    owner: Array
    next_successor: Array
    next_predecessor: Array


class DeltaRun(NamedTuple):
    """A simulation of a change.

    ready, end [task]: the new timeline; the end is infinite for tasks that were not taken yet. soonest, missing [task]:
    ready time as far as known, and number of open predecessors; both are valid where seen [task] is the current epoch.
    after, before: the ready queue, see `full_simulator.py`. order: tasks in the order in which they were taken.

    affected: affected tasks. moved: room for a list of tasks. free [device]: the end of its last task. load [device]: its
    work and its idle time so far. work [device]: room. last [device]: the last old task that was kept, or NONE. first_done,
    first_last [device]: seconds of the tasks before the first that was taken; the last of them.
    """

    ready: Array
    end: Array
    soonest: Array
    missing: Array
    seen: Array
    after: Array
    before: Array
    order: Array
    affected: Array
    moved: Array
    free: Array
    load: Array
    work: Array
    first_done: Array
    last: Array
    first_last: Array


def allocate(tasks: int, edges: int, blocks: int, devices: int, computing: int) -> StateArrays:
    """Allocate room for some numbers of tasks, edges and blocks. `computing` devices are not ports."""
    tasks += ENDS
    return (
        np.zeros(13, np.uint32),
        np.full((7, tasks), np.inf),
        np.zeros(tasks, np.int64),
        np.full((18, tasks), NONE, np.uint32),
        np.zeros(tasks, np.uint8),
        np.zeros((8, edges), np.uint32),
        np.zeros((8, blocks), np.int64),
        np.zeros((2, blocks, computing)),
        np.zeros((6, devices)),
        np.zeros((3, devices), np.uint32),
    )


def room(memory: StateArrays) -> tuple[int, int]:
    """Return the number of tasks and edges for which there is room."""
    return memory[1].shape[1] - ENDS, memory[5].shape[1]


@jit_internal
def open_state(memory: StateArrays):  # type: ignore[no-untyped-def]
    """Name the parts of the state: the current graph, a change, and its simulation."""
    counts, f, keys, i, marks, e, b, held, d, last = memory
    graph = f[0], f[1], f[2], f[3], keys, i[0], i[1], i[2], i[3], i[4], i[5], i[6], i[7], e[0], e[1], e[2]
    current = CurrentGraph(counts, *graph, b[0], b[1], b[2], held[0], d[0], last[0])
    edges = e[3], e[4], e[5], e[6], e[7]
    change = GraphChange(b[3], b[4], b[5], b[6], b[7], held[1], d[1], marks, i[16], i[8], i[9], *edges)
    tasks = f[4], f[5], f[6], i[10], i[11], i[12], i[13], i[14], i[15], i[17]
    run = DeltaRun(*tasks, d[2], d[3], d[4], d[5], last[1], last[2])
    return current, change, run


@jit
def load_state(memory: StateArrays, graph: IndexedGraph, times: TaskTimes) -> None:
    """Load a graph and its timeline, for which there is room."""
    current, change, run = open_state(memory)
    _load(graph, times, current, change, run)


@jit_no_refcount
def _load(
    graph: IndexedGraph, times: TaskTimes, current: CurrentGraph, change: GraphChange, run: DeltaRun
) -> None:
    count, edges = len(graph.device), len(graph.owner)
    current.counts[:] = 0
    current.counts[TASKS] = current.counts[LIVE] = count
    current.counts[WAITING] = current.counts[BEFORE] = edges
    for block in range(len(graph.sent)):
        current.begin[block], current.size[block] = (
            graph.offsets[block],
            graph.offsets[block + 1] - graph.offsets[block],
        )
        change.begin[block], change.is_anew[block] = current.begin[block], 0
        current.sent[block] = graph.sent[block]
        for device in range(current.held.shape[1]):
            current.held[block, device] = graph.held[block, device]
        for task in range(graph.offsets[block], graph.offsets[block + 1]):
            current.key[task] = (block << INDEX) + task - graph.offsets[block]
    for task in range(count):
        current.device[task], current.seconds[task] = graph.device[task], graph.seconds[task]
        current.ready[task], current.end[task] = times.ready[task], times.end[task]
        current.successor_first[task], current.predecessor_first[task] = (
            graph.successors.first[task],
            graph.predecessors.first[task],
        )
        current.successor_count[task] = graph.successors.first[task + 1] - graph.successors.first[task]
        current.predecessor_count[task] = graph.predecessors.first[task + 1] - graph.predecessors.first[task]
    for edge in range(edges):
        current.successors[edge], current.predecessors[edge] = (
            graph.successors.other[edge],
            graph.predecessors.other[edge],
        )
        current.owner[edge] = graph.owner[edge]
    run.last[:] = NONE
    current.load[:] = 0.0
    current.earliest[:] = NONE
    for place in range(count):
        queue(current, times.order[place], place, current.load, run.last)
    change.mark[:] = 0
    change.first_successor[:] = NONE
    run.end[:] = np.inf
    run.seen[:] = NONE


@jit_inline
def queue(current: CurrentGraph, task: int, place: int, done: Array, last: Array) -> None:
    """Append a task to the queue, after `done` seconds of its device and its `last` task."""
    device = current.device[task]
    current.order[place], current.place[task] = task, place
    done[device] += current.seconds[task]
    current.done[task], current.previous[task] = done[device], last[device]
    last[device] = task
    current.earliest[device] = min(current.earliest[device], place)


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
