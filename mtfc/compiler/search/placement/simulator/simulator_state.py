"""The state of delta simulation, changed in place: a task graph, its timeline, and room for a proposed change.

Task numbers are stable: new blocks get numbers after all others, removed tasks leave gaps. So a proposal takes time for what it
changes only. When the room is used up, everything is loaded anew.

The state is a few arrays, grouped by task, edge, block or device. Passing an array to a compiled function takes 0.1
microseconds, and there are fifty kinds of numbers.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from mtfc.compiler.search.jit import jit, jit_inline, jit_internal, jit_no_refcount
from mtfc.compiler.search.placement.simulator.full_simulator import IndexedGraph, TaskTimes
from mtfc.compiler.search.placement.task_graph_builder import Array

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
    all tasks with other marks than SAME. is_marked [place]: 1 if the task there is marked, and 1 behind the last place as a
    sentinel.

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

    affected: affected tasks that were not taken; critical: for each a predecessor that it still waits for, or NONE. moved:
    room for a list of tasks. free, load [device]: as in `FullRun`. work [device]: room. last [device]: the last old task
    that was passed, or NONE. first_done, first_last [device]: seconds of the tasks before the first that was taken; the
    last of them.
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
