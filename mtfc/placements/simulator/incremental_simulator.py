"""Delta simulation: the timeline of a changed task graph from the old one, equal to full simulation to the last bit.

`apply_change` adds new blocks beside those that they replace. `simulate_change` keeps the old timeline up to the first place
where the two may differ, and takes the other tasks one by one as full simulation does. Where the timeline is certain to be the
old one but for a time shift, up to the next place where the two may differ, it is copied. `commit_change` removes the replaced
blocks, and `revert_change` the new ones.

The predecessors of a task are looked up when the first of them ends in a simulation. So the tasks that are kept cost nothing.
Times are multiples of `TICK`, so their sums are exact in any order.

A task graph and its timeline are changed in place. Numbers of tasks and edges are stable: new blocks get numbers after all
others, and removed blocks leave gaps. So a proposal takes time for its changes only. When the room is used up, everything is
loaded anew.

The state is a few arrays, grouped by task, edge, block or device. Passing an array to a compiled function takes 0.1
microseconds, and there are fifty kinds of numbers.
"""

from typing import Any, NamedTuple

import numpy as np

from mtfc.compiler.search.jit import jit, jit_inline, jit_internal, jit_no_refcount
from mtfc.placements.simulator.full_simulator import TaskTimes, clear, drop, put
from mtfc.placements.task_graph_builder import Array, TaskBlocks

StateArrays = tuple[Array, ...]

NONE = 2**32 - 1
"""No task, edge or place. Numbers are unsigned, so that Numba generates no checks for negative indices."""
ENDS = 2
"""Arrays by task have this many more entries than tasks."""
SAME, ALTERED, LOST = range(3)
"""Marks of tasks: unchanged; new, or with other predecessors; removed."""
INDEX = 32
"""Bits of a key for the number of a task in its block."""

TASKS, EDGES, LIVE, EPOCH = range(4)
"""Entries of `counts`."""
OLD_TASKS, OLD_EDGES, NUMBERS, MARKED, FIRST = range(4, 9)
NEAR, TAKEN, REACHED, AHEAD, ATTEMPT = range(9, 14)
"""The meaning of the entries of `counts`:

- of the graph: numbers of tasks and of edges in use, tasks in the queue, and the epoch
- of a change: numbers of tasks and of edges before it, its blocks, marked tasks, and the first place of the queue that it
  touches; later the first place from which tasks are simulated
- of a simulation: the task where the search for a queue position begins; tasks taken; the place in the old queue that lies behind
  as many tasks, without removed tasks; the place after all taken tasks; and the number of taken tasks before the next attempt to
  copy
"""
APART = 128
"""Places that are worth copying, and tasks between two attempts."""
SOURCE, TARGET, NEXT, PREVIOUS, GONE = 0, 1, 2, 4, 6
"""Columns of `edges`: both ends, the next and the previous edge with the same source, the same two with the same target, and 1 if
the edge belongs to a replaced block.
"""
BEGIN, SIZE, FIRST_EDGE, EDGE_COUNT, SENT, NUMBER = range(6)
"""Columns of `blocks`: first task, number of tasks, first edge, number of edges, bytes sent between devices, and the block."""


class DeltaState(NamedTuple):
    """A task graph with its timeline, a change of it, and the simulation of the change.

    Of the graph: seconds, device [task]. key [task]: its block and its number there, which break ties. first_edge [2, task]: the
    first edges from it and to it, or NONE. edges, blocks: see the columns above. memory [block, device]: bytes kept. load
    [device]: seconds of all its tasks.

    Of the timeline: ready, end [task]. place [task]: its place in the queue. order [place]: the task. done [task]: seconds of it
    and of all earlier tasks on its device. previous [task]: the task before it on its device, or NONE. earliest [device]: the
    place of its first task.

    Of a change, whose blocks are in the graph already: old_blocks, old_memory: rows of the replaced blocks. new_load [device].
    mark [task]: SAME, ALTERED or LOST; marked: all tasks with other marks than SAME. Between proposals all marks are SAME, and no
    edge is gone.

    Of a simulation: new_ready, new_end [task]: the new timeline; the end is infinite for tasks that were not taken yet. taken:
    tasks in the order in which they were taken. soonest, missing [task]: ready time as far as known, and number of open
    predecessors; both are valid where seen [task] is the current epoch. after, before: the ready queue, see `full_simulator.py`.
    new_previous [task]: the task that was taken before it on its device. free [device]: the end of its last task. spent [device]:
    its work and its idle time so far. last, old_last [device]: its last task so far, in the new and in the old timeline, or NONE.
    first_done, first_last [device]: seconds of the tasks before the first that was taken; the last of them. work [device]: room.
    """

    counts: Array
    seconds: Array
    ready: Array
    end: Array
    done: Array
    new_ready: Array
    new_end: Array
    soonest: Array
    key: Array
    first_edge: Array
    device: Array
    place: Array
    previous: Array
    order: Array
    marked: Array
    missing: Array
    seen: Array
    after: Array
    before: Array
    taken: Array
    new_previous: Array
    mark: Array
    edges: Array
    blocks: Array
    old_blocks: Array
    memory: Array
    old_memory: Array
    load: Array
    new_load: Array
    free: Array
    spent: Array
    work: Array
    first_done: Array
    earliest: Array
    last: Array
    old_last: Array
    first_last: Array


def allocate(tasks: int, edges: int, blocks: int, devices: int, computing: int) -> StateArrays:
    """Allocate room for some numbers of tasks, edges and blocks. `computing` devices are not ports."""
    tasks += ENDS
    return (
        np.zeros(14, np.uint32),
        np.full((7, tasks), np.inf),
        np.zeros(tasks, np.int64),
        np.full((13, tasks), NONE, np.uint32),
        np.zeros(tasks, np.uint8),
        np.zeros((edges, 8), np.uint32),
        np.zeros((2, blocks, 6), np.int64),
        np.zeros((2, blocks, computing)),
        np.zeros((6, devices)),
        np.zeros((4, devices), np.uint32),
    )


def room(arrays: StateArrays) -> tuple[int, int]:
    """Return the number of tasks and edges for which there is room."""
    return arrays[1].shape[1] - ENDS, len(arrays[5])


@jit_internal
def open_state(arrays: StateArrays) -> DeltaState:
    """Name the parts of the state."""
    counts, f, keys, i, marks, edges, blocks, memory, d, last = arrays
    times = f[0], f[1], f[2], f[3], f[4], f[5], f[6]
    numbers = i[:2], i[2], i[3], i[4], i[5], i[6], i[7], i[8], i[9], i[10], i[11], i[12]
    devices = d[0], d[1], d[2], d[3], d[4], d[5], last[0], last[1], last[2], last[3]
    own = blocks[0], blocks[1], memory[0], memory[1]
    return DeltaState(counts, *times, keys, *numbers, marks, edges, *own, *devices)


@jit
def load_state(arrays: StateArrays, graph: TaskBlocks, times: TaskTimes) -> None:
    """Load a graph and its timeline, for which there is room."""
    _load(open_state(arrays), np.arange(len(graph.sent)), graph, times)


@jit_no_refcount
def _load(s: DeltaState, numbers: Array, graph: TaskBlocks, times: TaskTimes) -> None:
    """Fill the state of the simulator with a simulated graph. numbers: the blocks of the graph. times: its simulated times."""
    s.counts[:] = 0
    _add_blocks(s, numbers, graph)
    s.last[:] = s.earliest[:] = NONE
    s.load[:] = 0.0
    for place in range(len(times.order)):
        task = times.order[place]
        s.ready[task], s.end[task] = times.ready[task], times.end[task]
        queue(s, task, place, s.load, s.last)
    s.counts[LIVE] = len(times.order)
    s.mark[:] = 0
    s.new_end[:] = np.inf
    s.seen[:] = NONE


@jit_inline
def queue(s: DeltaState, task: int, place: int, done: Array, last: Array) -> None:
    """Append a task to the queue, after `done` seconds of its device and its `last` task."""
    device = s.device[task]
    s.order[place], s.place[task] = task, place
    done[device] += s.seconds[task]
    s.done[task], s.previous[task] = done[device], last[device]
    last[device] = task
    s.earliest[device] = min(s.earliest[device], place)


@jit_inline
def _add_blocks(s: DeltaState, numbers: Array, new: TaskBlocks) -> None:
    """Add the tasks and edges of blocks with some numbers. Edges refer to blocks by number."""
    begin, first = s.counts[TASKS], s.counts[EDGES]
    for i in range(len(numbers)):
        number, task, edge = numbers[i], new.offsets[i], new.edge_offsets[i]
        row = s.blocks[number]
        row[BEGIN], row[SIZE] = begin + task, new.offsets[i + 1] - task
        row[FIRST_EDGE], row[EDGE_COUNT] = first + edge, new.edge_offsets[i + 1] - edge
        row[SENT] = new.sent[i]
        for device in range(new.memory.shape[1]):
            s.memory[number, device] = new.memory[i, device]
        for k in range(row[SIZE]):
            at = row[BEGIN] + k
            s.device[at], s.seconds[at] = new.device[task + k], new.seconds[task + k]
            s.key[at] = (number << INDEX) + k
            s.place[at] = s.first_edge[0, at] = s.first_edge[1, at] = NONE
    for e in range(len(new.edges)):
        edge = new.edges[e]
        s.edges[first + e, SOURCE] = s.blocks[edge[0], BEGIN] + edge[1]
        s.edges[first + e, TARGET] = s.blocks[edge[2], BEGIN] + edge[3]
        _link(s, first + e)
    s.counts[TASKS] += len(new.device)
    s.counts[EDGES] += len(new.edges)


@jit_inline
def _link(s: DeltaState, e: int) -> None:
    """Put an edge before the other edges from its source, and before those to its target."""
    s.edges[e, GONE] = 0
    for side in range(2):
        task = s.edges[e, side]
        next = s.first_edge[side, task]
        s.edges[e, NEXT + side], s.edges[e, PREVIOUS + side] = next, NONE
        if next != NONE:
            s.edges[next, PREVIOUS + side] = e
        s.first_edge[side, task] = e


@jit_inline
def _unlink(s: DeltaState, e: int) -> None:
    """Take an edge out of the lists of both of its tasks."""
    for side in range(2):
        next, previous = s.edges[e, NEXT + side], s.edges[e, PREVIOUS + side]
        if previous == NONE:
            s.first_edge[side, s.edges[e, side]] = next
        else:
            s.edges[previous, NEXT + side] = next
        if next != NONE:
            s.edges[next, PREVIOUS + side] = previous


@jit_no_refcount
def apply_change(s: DeltaState, numbers: Array, new: TaskBlocks) -> bool:
    """Replace the blocks with some numbers, which are ascending, by new ones. Return False if there is no room."""
    tasks, edges = s.counts[TASKS], s.counts[EDGES]
    if tasks + len(new.device) > len(s.device) - ENDS or edges + len(new.edges) > len(s.edges):
        return False
    if s.counts[EPOCH] > NONE // 2:
        return False
    s.counts[OLD_TASKS], s.counts[OLD_EDGES], s.counts[NUMBERS] = tasks, edges, len(numbers)
    s.counts[MARKED], s.counts[FIRST] = 0, s.counts[LIVE]
    for device in range(len(s.load)):
        s.new_load[device] = s.load[device]
    for i in range(len(numbers)):
        _remove_block(s, i, numbers[i])
    for i in range(len(numbers)):
        row = s.old_blocks[i]
        for e in range(row[FIRST_EDGE], row[FIRST_EDGE] + row[EDGE_COUNT]):
            s.edges[e, GONE] = 1
            _alter(s, s.edges[e, TARGET])
    _add_blocks(s, numbers, new)
    for task in range(tasks, s.counts[TASKS]):
        _mark(s, task, ALTERED)
        s.new_load[s.device[task]] += s.seconds[task]
    for e in range(edges, s.counts[EDGES]):
        _alter(s, s.edges[e, TARGET])
    return True


@jit_inline
def _remove_block(s: DeltaState, i: int, number: int) -> None:
    """Mark the tasks of a block as lost, and keep its row."""
    row = s.blocks[number]
    for column in range(NUMBER):
        s.old_blocks[i, column] = row[column]
    s.old_blocks[i, NUMBER] = number
    for device in range(s.memory.shape[1]):
        s.old_memory[i, device] = s.memory[number, device]
    for task in range(row[BEGIN], row[BEGIN] + row[SIZE]):
        _mark(s, task, LOST)
        s.new_load[s.device[task]] -= s.seconds[task]


@jit_inline
def _mark(s: DeltaState, task: int, mark: int) -> None:
    """Mark a task, and note the first marked place in the order of tasks."""
    s.mark[task], s.marked[s.counts[MARKED]] = mark, task
    s.counts[MARKED] += 1
    if s.place[task] != NONE:
        s.counts[FIRST] = min(s.counts[FIRST], s.place[task])


@jit_inline
def _alter(s: DeltaState, task: int) -> None:
    """Mark a task whose predecessors change."""
    if s.mark[task] == SAME:
        _mark(s, task, ALTERED)


@jit_no_refcount
def revert_change(s: DeltaState) -> None:
    """Remove the blocks of a change, and its simulation; bring the replaced blocks back."""
    for e in range(s.counts[OLD_EDGES], s.counts[EDGES]):
        _unlink(s, e)
    s.counts[TASKS], s.counts[EDGES] = s.counts[OLD_TASKS], s.counts[OLD_EDGES]
    for i in range(s.counts[NUMBERS]):
        row = s.old_blocks[i]
        for column in range(NUMBER):
            s.blocks[row[NUMBER], column] = row[column]
        for device in range(s.memory.shape[1]):
            s.memory[row[NUMBER], device] = s.old_memory[i, device]
        for e in range(row[FIRST_EDGE], row[FIRST_EDGE] + row[EDGE_COUNT]):
            s.edges[e, GONE] = 0
    _unmark(s)
    for i in range(s.counts[TAKEN]):
        s.new_end[s.taken[i]] = np.inf


@jit_no_refcount
def commit_change(s: DeltaState) -> None:
    """Remove the replaced blocks, when all tasks have been taken, and write the new timeline."""
    for i in range(s.counts[NUMBERS]):
        row = s.old_blocks[i]
        for e in range(row[FIRST_EDGE], row[FIRST_EDGE] + row[EDGE_COUNT]):
            _unlink(s, e)
    _unmark(s)
    first = s.counts[FIRST]
    for device in range(len(s.load)):
        s.load[device] = s.new_load[device]
        s.work[device], s.last[device] = s.first_done[device], s.first_last[device]
        if s.earliest[device] >= first:
            s.earliest[device] = NONE
    for i in range(s.counts[TAKEN]):
        task = s.taken[i]
        s.ready[task], s.end[task] = s.new_ready[task], s.new_end[task]
        s.new_end[task] = np.inf
        queue(s, task, first + i, s.work, s.last)
    s.counts[LIVE] = first + s.counts[TAKEN]


@jit_inline
def _unmark(s: DeltaState) -> None:
    for i in range(s.counts[MARKED]):
        s.mark[s.marked[i]] = SAME


@jit_no_refcount
def simulate_change(s: DeltaState, limit: float) -> float:
    """Simulate a change; return the new makespan, or infinity beyond the limit."""
    if not _begin(s, limit):
        return np.inf
    ends = np.uint32(len(s.after) - 1)
    while s.after[ends] != ends:
        task = s.after[ends]
        is_same = s.place[task] == s.counts[REACHED] >= s.counts[AHEAD]
        if is_same and s.counts[TAKEN] >= s.counts[ATTEMPT] and _is_shifted(s, task):
            _copy(s, s.soonest[task] - s.ready[task])
        elif s.spent[take_task(s, task)] > limit:
            return np.inf
    # No `s.free.max()`: Numba compiles `max` for all callers alike, and callers that count references would get wrong code.
    makespan = 0.0
    for free in s.free:
        makespan = max(makespan, free)
    return makespan if makespan <= limit else np.inf


@jit_inline
def _begin(s: DeltaState, limit: float) -> bool:
    """Skip the tasks that do not change. Return False if the limit is certain to be exceeded."""
    s.counts[TAKEN] = s.counts[AHEAD] = s.counts[ATTEMPT] = 0
    s.counts[FIRST], now = _next_change(s, 0, s.counts[FIRST], 0.0)
    _find_last(s, s.counts[FIRST])
    for device in range(len(s.last)):
        last = s.last[device]
        s.first_last[device], s.first_done[device] = last, s.done[last] if last != NONE else 0.0
        s.old_last[device] = last
        s.free[device] = s.end[last] if last != NONE else 0.0
        s.spent[device] = s.new_load[device] + s.free[device] - s.first_done[device]
        if s.spent[device] > limit:
            return False
    _reach(s, s.counts[FIRST])
    _find_ready(s, now)
    return True


@jit_inline
def _find_last(s: DeltaState, place: int) -> None:
    """Find the last task of each device before some place."""
    left = 0
    for device in range(len(s.last)):
        s.last[device] = NONE
        left += s.earliest[device] < place
    while left:
        place -= 1
        task = s.order[place]
        device = s.device[task]
        if s.last[device] == NONE:
            s.last[device] = task
            left -= 1


@jit_inline
def _reach(s: DeltaState, place: int) -> None:
    """Set REACHED to a place, or to the first place after it whose task is not removed."""
    while place < s.counts[LIVE] and s.mark[s.order[place]] == LOST:
        s.old_last[s.device[s.order[place]]] = s.order[place]
        place += 1
    s.counts[REACHED] = place


@jit_inline
def _next_change(s: DeltaState, low: int, until: int, shift: float) -> Any:
    """Return the place from `low` up to which the queue stays the same, at most `until`, if old times go on with a shift.

    Return also a time: exactly the tasks before this place are ready before it.
    """
    soonest = s.ready[s.order[until]] + shift if until < s.counts[LIVE] else np.inf
    for i in range(s.counts[MARKED]):
        task = s.marked[i]
        if s.mark[task] == ALTERED and s.new_end[task] == np.inf:
            soonest = min(soonest, _soonest_ready(s, task, shift))
    first, last = np.int64(low), np.int64(until)
    while first < last:
        middle = (first + last) >> 1
        if s.ready[s.order[middle]] + shift < soonest:
            first = middle + 1
        else:
            last = middle
    return last, soonest


@jit_inline
def _soonest_ready(s: DeltaState, task: int, shift: float) -> float:
    """Return when an altered task is ready, or infinity if it waits for another altered task."""
    soonest, e = 0.0, s.first_edge[1, task]
    while e != NONE:
        if not s.edges[e, GONE]:
            source = s.edges[e, SOURCE]
            end = end_of(s, source)
            if end == np.inf and s.mark[source] == SAME:
                end = s.end[source] + shift
            soonest = max(soonest, end)
        e = s.edges[e, NEXT + 1]
    return float(soonest)


@jit_inline
def _find_ready(s: DeltaState, now: float) -> None:
    """Enqueue the ready tasks among successors of tasks that end at `now` or later, and among altered tasks."""
    s.counts[EPOCH] += 1
    s.counts[NEAR] = clear(s.after, s.before)
    for device in range(len(s.last)):
        task = s.last[device]
        while task != NONE and end_of(s, task) >= now:
            _check_successors(s, task)
            task = _before(s, task)
    for i in range(s.counts[MARKED]):
        check_ready(s, s.marked[i])
    place = s.counts[REACHED]
    while place < s.counts[LIVE] and s.ready[s.order[place]] == 0:
        check_ready(s, s.order[place])
        place += 1


@jit_inline
def _check_successors(s: DeltaState, task: int) -> None:
    """Check whether the successors of a task are ready now."""
    e = s.first_edge[0, task]
    while e != NONE:
        if not s.edges[e, GONE]:
            check_ready(s, s.edges[e, TARGET])
        e = s.edges[e, NEXT]


@jit_inline
def take_task(s: DeltaState, task: int) -> int:
    """Take the first task of the queue; return its device."""
    next = drop(s.after, s.before, task)
    if s.counts[NEAR] == task:
        s.counts[NEAR] = next
    device, ready = s.device[task], s.soonest[task]
    start = max(ready, s.free[device])
    s.spent[device] += start - s.free[device]
    end = start + s.seconds[task]
    s.free[device], s.new_ready[task] = end, ready
    s.taken[s.counts[TAKEN]] = task
    s.counts[TAKEN] += 1
    s.new_previous[task], s.last[device] = s.last[device], task
    if s.place[task] != NONE:
        passed = s.order[s.counts[REACHED]]
        s.old_last[s.device[passed]] = passed
        _reach(s, s.counts[REACHED] + 1)
        s.counts[AHEAD] = max(s.counts[AHEAD], s.place[task] + 1)
    e = s.first_edge[0, task]
    while e != NONE:
        if not s.edges[e, GONE]:
            _notify(s, s.edges[e, TARGET], end)
        e = s.edges[e, NEXT]
    s.new_end[task] = end
    return int(device)


@jit_inline
def _is_shifted(s: DeltaState, task: int) -> bool:
    """Return whether the state is the old one but for a time shift; the same tasks have been taken, and the next is the same.

    Tasks to come are ready no earlier than the next one. So only tasks matter that end later, the last ones of their devices.
    """
    now, before = s.soonest[task], s.ready[task]
    for device in range(len(s.last)):
        new, old = s.last[device], s.old_last[device]
        while (new != NONE and end_of(s, new) > now) or (old != NONE and s.end[old] > before):
            if new != old or end_of(s, new) - s.end[old] != now - before:
                return False
            new, old = _before(s, new), s.previous[old]
    return True


@jit_inline
def _before(s: DeltaState, task: int) -> int:
    """Return the task before another one on its device, in the new timeline."""
    return int(s.previous[task] if s.place[task] < s.counts[FIRST] else s.new_previous[task])


@jit_inline
def _copy(s: DeltaState, shift: float) -> None:
    """Take tasks with their old times and a shift, up to the next change, if these are many."""
    first, until = s.counts[REACHED], s.counts[LIVE]
    for i in range(s.counts[MARKED]):
        task = s.marked[i]
        if first <= s.place[task] < until and s.new_end[task] == np.inf:
            until = s.place[task]
    until, now = _next_change(s, first, until, shift)
    if until >= first + APART:
        for place in range(first, until):
            task = s.order[place]
            device, end = s.device[task], s.end[task] + shift
            s.new_ready[task], s.new_end[task] = s.ready[task] + shift, end
            s.spent[device] += end - s.seconds[task] - s.free[device]
            s.free[device], s.new_previous[task] = end, s.last[device]
            s.last[device] = s.old_last[device] = task
            s.taken[s.counts[TAKEN]] = task
            s.counts[TAKEN] += 1
        s.counts[AHEAD] = until
        _reach(s, until)
        _find_ready(s, now)
    s.counts[ATTEMPT] = s.counts[TAKEN] + APART


@jit_inline
def _notify(s: DeltaState, task: int, end: float) -> None:
    """Tell a task that a predecessor ends. All successors are told before the predecessor counts as taken, as edges may be
    double.
    """
    check_ready(s, task)
    s.soonest[task] = max(s.soonest[task], end)
    s.missing[task] -= 1
    if s.missing[task] == 0:
        _enqueue(s, task)


@jit_inline
def end_of(s: DeltaState, task: int) -> float:
    """Return the end of a task in the new timeline, infinite if the task was not taken."""
    return float(s.end[task] if s.place[task] < s.counts[FIRST] else s.new_end[task])


@jit_inline
def check_ready(s: DeltaState, task: int) -> None:
    """Look up the open predecessors of a task, once per simulation, and enqueue it if there are none."""
    if s.seen[task] == s.counts[EPOCH] or s.mark[task] == LOST or s.new_end[task] < np.inf:
        return
    s.seen[task] = s.counts[EPOCH]
    soonest, missing, e = 0.0, 0, s.first_edge[1, task]
    while e != NONE:
        if not s.edges[e, GONE]:
            source = s.edges[e, SOURCE]
            end = end_of(s, source)
            missing += end == np.inf
            soonest = max(soonest, end if end < np.inf else 0.0)
        e = s.edges[e, NEXT + 1]
    s.soonest[task], s.missing[task] = soonest, missing
    if missing == 0:
        _enqueue(s, task)


@jit_inline
def _enqueue(s: DeltaState, task: int) -> None:
    put(s.after, s.before, s.soonest, s.key, s.counts[NEAR], task)
    s.counts[NEAR] = task
