"""What delta simulation keeps from proposal to proposal, in place: a task graph, its timeline, and room for a change of it.

Tasks have numbers that stay: those of new blocks follow after all that there were, and those that are gone leave gaps. So a
proposal takes time for what it changes alone. Where room does not suffice, everything is loaded anew.

The memory is a few arrays, of numbers by task, edge, block or device: to give a compiled function an array takes a tenth of a
microsecond, and there are fifty kinds of numbers.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from mtfc.compiler.search.jit import jit, jit_inline, jit_internal, jit_no_refcount
from mtfc.compiler.search.placement.simulator.full_simulator import IndexedGraph, TaskTimes
from mtfc.compiler.search.placement.task_graph_builder import Array

StateArrays = tuple[Array, ...]

NONE = 2**32 - 1
"""No task, edge or place. Numbers are unsigned, so that nothing asks whether they count from the end."""
SHIFTS = 4
"""How many differences in time are told apart at once."""
ENDS = 2
"""There are so many entries more by task than tasks."""
SAME, ALTERED, LOST = range(3)
"""Marks of tasks in a change: as before; affected, which is new or may wait for others than before; gone."""
INDEX = 32
"""Bits of a key for the number of a task in its block."""

TASKS, LIVE, WAITING, BEFORE, EPOCH = range(5)
NUMBERS, NEW, MARKED, EDGES, FIRST = range(5, 10)
NEAR, TAKEN, AFFECTED, PASSED, OLD, GONE = range(10, 16)
"""What `counts` has.

Of what is kept: numbers of tasks that are in use, tasks in the queue, edges in each of the two pools, and the epoch. Of a
change: its blocks, new tasks, those that have marks, edges, and the first place of the queue that it touches; once this is known,
the first from which on tasks are taken. Of a simulation: the task where one begins to look for the place of the next that is
ready; tasks taken, and affected; places of the old queue that were passed, tasks of it that were taken, and those that are gone
from places that were passed.
"""


class CurrentGraph(NamedTuple):
    """A task graph, and its timeline.

    seconds, device [task]. key [task]: its block and its number there, by which ties are broken. ready, end [task]: when it is
    ready and ends. done [task]: seconds of it and all before it on its device. place [task]: in the queue, previous [task]: the
    one before it on its device, or NONE. order [place]: the task.
    waiting: from `waiting_first[task]` on, `waiting_count[task]` tasks that wait for it; before: the same of those that it
    waits for, and owner: the blocks that these edges belong to.
    begin, size, sent [block]: its tasks, and bytes that go from device to device. held [block, device]: bytes kept.
    load [device]: seconds of all its tasks. earliest [device]: the place of its first one.
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
    waiting_first: Array
    waiting_count: Array
    before_first: Array
    before_count: Array
    waiting: Array
    before: Array
    owner: Array
    begin: Array
    size: Array
    sent: Array
    held: Array
    load: Array
    earliest: Array


class GraphChange(NamedTuple):
    """Blocks that are made anew; what is kept stays as it was, and has entries for new tasks.

    Between proposals nothing is made anew: all marks are the same, no edges are here, and blocks begin where they do in what is
    kept; nor are there ends in `Run`.

    numbers: the blocks. is_anew [block]. begin, size, sent [block], held [block, device]: as of what is kept; of others than new
    blocks `begin` alone. load [device]: seconds of all its tasks. mark [task]: SAME, ALTERED or LOST; marked: those that are not
    SAME. is_marked [place]: whether a task of the queue is not, and at the place behind the last one, where whoever looks for one
    stops.
    All edges to those that are affected are here, and not in the old lists: source, target, owner [edge]; first_waiting,
    first_before [task]: the first edge that it is the source of, or the target; next_waiting, next_before [edge]: the next such
    edge. NONE where there is none.
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
    is_marked: Array
    first_waiting: Array
    first_before: Array
    source: Array
    target: Array
    owner: Array
    next_waiting: Array
    next_before: Array


class DeltaRun(NamedTuple):
    """A simulation of a change.

    ready, end [task]: when it is ready and ends; infinite is the end of one that was not taken since the simulation began.
    soonest, missing [task]: when a task is ready as far as is known, and for how many it still waits; both are known where
    seen [task] is the present epoch. after, before: see `ready_queue.py`. order: tasks as they were taken.
    affected: those not taken that are new or may wait for others than before; critical: for each of these a task that it waits
    for, one that is affected or else the last to end, or NONE. moved: room to list tasks.
    free, load [device]: when it has done all that was taken; its work, and how long it was idle. work [device]: room. last
    [device]: the last one of the tasks of the old queue that were passed, or NONE.
    first_done, first_last [device]: the seconds of those that were before the first that was taken; the last of them.
    shift, latest: some differences between the ends of a task in both timelines, and the last end with each. late [2]: the
    last end of tasks that are new or have other differences; and, in the old timeline, of those that are gone or have.
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
    critical: Array
    moved: Array
    free: Array
    load: Array
    work: Array
    first_done: Array
    last: Array
    first_last: Array
    shift: Array
    latest: Array
    late: Array


def allocate(tasks: int, edges: int, blocks: int, devices: int, computing: int) -> StateArrays:
    """Room for so many; `computing` devices are no ports. The queue has an end, and the list of tasks that are ready has ends."""
    tasks += ENDS
    return (
        np.zeros(16, np.uint32),
        np.full((7, tasks), np.inf),
        np.zeros(tasks, np.int64),
        np.full((19, tasks), NONE, np.uint32),
        np.zeros((2, tasks), np.uint8),
        np.zeros((8, edges), np.uint32),
        np.zeros((8, blocks), np.int64),
        np.zeros((2, blocks, computing)),
        np.zeros((6, devices)),
        np.zeros((3, devices), np.uint32),
        np.zeros((3, SHIFTS)),
    )


def room(memory: StateArrays) -> tuple[int, int]:
    """For how many tasks and edges there is some."""
    return memory[1].shape[1] - ENDS, memory[5].shape[1]


@jit_internal
def open_state(memory: StateArrays):  # type: ignore[no-untyped-def]
    """What is kept, a change of it, and the simulation of this."""
    counts, f, keys, i, marks, e, b, held, d, last, shifts = memory
    graph = f[0], f[1], f[2], f[3], keys, i[0], i[1], i[2], i[3], i[4], i[5], i[6], i[7], e[0], e[1], e[2]
    kept = CurrentGraph(counts, *graph, b[0], b[1], b[2], held[0], d[0], last[0])
    edges = e[3], e[4], e[5], e[6], e[7]
    change = GraphChange(
        b[3], b[4], b[5], b[6], b[7], held[1], d[1], marks[0], i[16], marks[1], i[8], i[9], *edges
    )
    tasks = f[4], f[5], f[6], i[10], i[11], i[17], i[18], i[12], i[13], i[14], i[15]
    run = DeltaRun(*tasks, d[2], d[3], d[4], d[5], last[1], last[2], shifts[0], shifts[1], shifts[2])
    return kept, change, run


@jit
def load_state(memory: StateArrays, graph: IndexedGraph, times: TaskTimes) -> None:
    """Keep a graph and its timeline, for which there is room."""
    kept, change, run = open_state(memory)
    _load(graph, times, kept, change, run)


@jit_no_refcount
def _load(
    graph: IndexedGraph, times: TaskTimes, kept: CurrentGraph, change: GraphChange, run: DeltaRun
) -> None:
    count, edges = len(graph.device), len(graph.owner)
    kept.counts[:] = 0
    kept.counts[TASKS] = kept.counts[LIVE] = count
    kept.counts[WAITING] = kept.counts[BEFORE] = edges
    for block in range(len(graph.sent)):
        kept.begin[block], kept.size[block] = (
            graph.offsets[block],
            graph.offsets[block + 1] - graph.offsets[block],
        )
        change.begin[block], change.is_anew[block] = kept.begin[block], 0
        kept.sent[block] = graph.sent[block]
        for device in range(kept.held.shape[1]):
            kept.held[block, device] = graph.held[block, device]
        for task in range(graph.offsets[block], graph.offsets[block + 1]):
            kept.key[task] = (block << INDEX) + task - graph.offsets[block]
    for task in range(count):
        kept.device[task], kept.seconds[task] = graph.device[task], graph.seconds[task]
        kept.ready[task], kept.end[task] = times.ready[task], times.end[task]
        kept.waiting_first[task], kept.before_first[task] = (
            graph.waiting.first[task],
            graph.before.first[task],
        )
        kept.waiting_count[task] = graph.waiting.first[task + 1] - graph.waiting.first[task]
        kept.before_count[task] = graph.before.first[task + 1] - graph.before.first[task]
    for edge in range(edges):
        kept.waiting[edge], kept.before[edge] = graph.waiting.other[edge], graph.before.other[edge]
        kept.owner[edge] = graph.owner[edge]
    run.last[:] = NONE
    kept.load[:] = 0.0
    kept.earliest[:] = NONE
    for place in range(count):
        queue(kept, times.order[place], place, kept.load, run.last)
    change.mark[:] = 0
    change.is_marked[:] = 0
    change.is_marked[count] = 1
    change.first_waiting[:] = NONE
    run.end[:] = np.inf
    run.seen[:] = NONE


@jit_inline
def queue(kept: CurrentGraph, task: int, place: int, done: Array, last: Array) -> None:
    """Put a task into the queue, whose device has done some seconds before, and some task last."""
    device = kept.device[task]
    kept.order[place], kept.place[task] = task, place
    done[device] += kept.seconds[task]
    kept.done[task], kept.previous[task] = done[device], last[device]
    last[device] = task
    kept.earliest[device] = min(kept.earliest[device], place)
