"""A proposal from beginning to end, in one compiled call: calls take more time than small graphs do."""

from __future__ import annotations

from typing import Any

import numpy as np

from mtfc.compiler.search.soap.blocks import Array, Blocks
from mtfc.compiler.search.soap.building import built
from mtfc.compiler.search.soap.changing import Chains, Change, change
from mtfc.compiler.search.soap.graphs import Graph, Links, Timeline, timeline
from mtfc.compiler.search.soap.plan import Known, Placed, Plan
from mtfc.compiler.search.soap.resuming import resumed
from mtfc.compiler.search.soap.running import Run
from mtfc.compiler.search.solver.kernels import compiled, inner, lean, tight


@compiled
def proposed(
    numbers: Array,
    tasks: tuple[Plan, Known, Placed, Array, Array],
    old: Graph,
    was: Timeline,
    held: Array,
    memory: float,
    limit: float,
) -> Any:
    """Seconds of a step where some blocks are made anew, how many more bytes are sent, those that each device holds, the new
    graph and its timeline. Beyond the memory or the limit the step takes infinitely long, and the graph is the old one.

    tasks: what `built` is told, and see `changing.change` for the fourth. held [device]: bytes in the old graph.
    """
    plan, known, placed, leads, room = tasks
    new = built(numbers, plan, known, placed, room)
    sent, held = 0, held.copy()
    for i in range(len(numbers)):
        sent += new.sent[i] - old.sent[numbers[i]]
        held += new.held[i] - old.held[numbers[i]]
    if held.max() > memory:
        return np.inf, sent, held, old, was
    changed = change(old, numbers, new, leads)
    run, seconds = resumed(old, was, changed, limit, plan.idle + 1)
    if seconds == np.inf:
        return seconds, sent, held, old, was
    graph, now = accepted(old, was, numbers, new, changed, run)
    return seconds, sent, held, graph, now


@compiled
def accepted(old: Graph, was: Timeline, numbers: Array, new: Blocks, changed: Change, run: Run) -> Any:
    """The new graph and its timeline, of which all tasks have been taken."""
    offsets = np.zeros_like(old.offsets)
    at = 0
    for block in range(len(offsets) - 1):
        size = old.offsets[block + 1] - old.offsets[block]
        if changed.is_anew[block]:
            size = new.offsets[at + 1] - new.offsets[at]
            at += 1
        offsets[block + 1] = offsets[block] + size
    total = offsets[-1]
    device, seconds = np.empty(total, old.device.dtype), np.empty(total)
    end, stop = np.empty(total), 0
    while stop < len(offsets) - 1:
        to, task = offsets[stop], changed.begin[stop]
        stop = _stretch(changed, stop)
        size = offsets[stop] - to
        number = task - len(old.device)
        if number < 0:
            device[to : to + size] = old.device[task : task + size]
            seconds[to : to + size] = old.seconds[task : task + size]
        else:
            device[to : to + size] = new.device[number : number + size]
            seconds[to : to + size] = new.seconds[number : number + size]
        end[to : to + size] = run.end[task : task + size]
    sent, held = old.sent.copy(), old.held.copy()
    for i in range(len(numbers)):
        sent[numbers[i]] = new.sent[i]
        held[numbers[i]] = new.held[i]
    owner = np.empty(len(old.owner) + len(changed.owner), np.uint32)
    is_moved = np.zeros(len(changed.rank), np.bool_)
    _move(old, numbers, changed, is_moved)
    waiting = _links(old, old.waiting, changed, changed.waiting, offsets, is_moved, owner[:0])
    before = _links(old, old.before, changed, changed.before, offsets, changed.is_affected, owner)
    graph = Graph(offsets, device, seconds, waiting, before, owner[: len(before.other)], sent, held)
    return graph, timeline(run.ready, end, run.order, _counted(old, was, numbers, new), device, seconds)


@inner
def _counted(old: Graph, was: Timeline, numbers: Array, new: Blocks) -> Array:
    """Where the queues of devices begin: by as many places later as tasks are new before, and not gone."""
    first, shift = was.first.copy(), np.zeros(len(was.first), np.int32)
    for number in numbers:
        for task in range(old.offsets[number], old.offsets[number + 1]):
            shift[old.device[task] + 1] -= 1
    for device in new.device:
        shift[device + 1] += 1
    later = 0
    for device in range(len(first)):
        later += shift[device]
        first[device] += later
    return first


@tight
def _stretch(change: Change, first: int) -> int:
    """The end of blocks that follow each other in both graphs, from one on."""
    last = first + 1
    while not change.is_anew[first] and last < len(change.is_anew) and not change.is_anew[last]:
        last += 1
    return last


@lean
def _move(old: Graph, numbers: Array, change: Change, found: Array) -> None:
    """Find the tasks that tasks wait for, or did, which are affected or gone."""
    for number in numbers:
        _find(old, old.offsets[number], old.offsets[number + 1], found)
    for task in change.affected:
        if task < len(old.device):
            _find(old, task, task + 1, found)
    for task in change.before.other:
        found[task] = True


@tight
def _find(old: Graph, task: int, last: int, found: Array) -> None:
    """Those that some old tasks that follow each other wait for."""
    for e in range(old.before.first[task], old.before.first[last]):
        found[old.before.other[e]] = True


@inner
def _links(
    old: Graph, was: Links, change: Change, new: Chains, offsets: Array, is_moved: Array, owner: Array
) -> Links:
    """Old edges that are left and new ones; of tasks that did not move all are left, and none is new. See `_link` for `owner`."""
    most = len(was.other) + len(new.other)
    found = Links(np.empty(offsets[-1] + 1, np.int32), np.empty(most, np.uint32))
    count = _link(old, was, change, new, offsets, is_moved, owner, found)
    return Links(found.first, found.other[:count])


@lean
def _link(
    old: Graph,
    was: Links,
    change: Change,
    new: Chains,
    offsets: Array,
    is_moved: Array,
    owner: Array,
    found: Links,
) -> int:
    """Find these edges; how many there are. There is room in `owner` if edges are those that tasks wait for.

    Where nearly all time goes places are unsigned numbers, for which nothing asks whether they count from the end.
    """
    rank, count, (first, other), is_before = change.rank, len(old.device), found, len(owner) > 0
    at = stop = 0
    while stop < len(offsets) - 1:
        to, task = offsets[stop], change.begin[stop]
        stop = _stretch(change, stop)
        while to < offsets[stop]:
            last, most = task, min(task + offsets[stop] - to, count)
            while last < most and not is_moved[last]:
                last += 1
            if last > task:
                begin, size = was.first[task], was.first[last] - was.first[task]
                for i in range(last - task):
                    first[to + i] = was.first[task + i] + at - begin
                for i in range(size if is_before else 0):
                    owner[np.uint64(at + i)] = old.owner[np.uint64(begin + i)]
                for i in range(size):
                    other[np.uint64(at + i)] = rank[was.other[np.uint64(begin + i)]]
                at += size
                to += last - task
                task = last
                continue
            first[to] = at
            at = _relink(was, change, new, task, is_before, owner, other, at)
            to += 1
            task += 1
    first[len(first) - 1] = at
    return at


@tight
def _relink(
    was: Links, change: Change, new: Chains, task: int, is_before: bool, owner: Array, other: Array, at: int
) -> int:
    """Put the edges of a task that moved at some place; the place after them."""
    if task < len(was.first) - 1 and not is_before:
        for e in range(was.first[task], was.first[task + 1]):
            if not change.is_affected[was.other[e]]:
                other[at] = change.rank[was.other[e]]
                at += 1
    e = new.first[task]
    while e >= 0:
        other[at] = change.rank[new.other[e]]
        if is_before:
            owner[at] = change.owner[e]
        at += 1
        e = new.next[e]
    return at
