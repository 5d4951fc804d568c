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
from mtfc.compiler.search.solver.kernels import compiled, inner


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
    graph, now = accepted(old, numbers, new, changed, run, plan.idle + 1)
    return seconds, sent, held, graph, now


@compiled
def accepted(old: Graph, numbers: Array, new: Blocks, changed: Change, run: Run, devices: int) -> Any:
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
    ready, end = np.empty(total), np.empty(total)
    stop = 0
    while stop < len(offsets) - 1:
        to, task = offsets[stop], changed.begin[stop]
        stop = _stretch(changed, stop)
        size = offsets[stop] - to
        device[to : to + size] = changed.device[task : task + size]
        seconds[to : to + size] = changed.seconds[task : task + size]
        ready[to : to + size] = run.ready[task : task + size]
        end[to : to + size] = run.end[task : task + size]
    sent, held = old.sent.copy(), old.held.copy()
    for i in range(len(numbers)):
        sent[numbers[i]] = new.sent[i]
        held[numbers[i]] = new.held[i]
    graph = Graph(
        offsets,
        device,
        seconds,
        _links(old.waiting, changed.waiting, changed, offsets, _moved(old, new, changed)),
        _links(old.before, changed.before, changed, offsets, changed.is_affected),
        sent,
        held,
    )
    order = np.empty(total, np.uint32)
    for i in range(total):
        order[i] = changed.rank[run.order[i]]
    return graph, timeline(ready, end, order, device, seconds, devices)


@inner
def _stretch(change: Change, first: int) -> int:
    """The end of blocks that follow each other in both graphs, from one on."""
    last = first + 1
    while not change.is_anew[first] and last < len(change.is_anew) and not change.is_anew[last]:
        last += 1
    return last


@inner
def _moved(old: Graph, new: Blocks, change: Change) -> Array:
    """Which tasks had edges to others that are no more, or have new ones."""
    found = np.zeros(len(change.rank), np.bool_)
    for task in range(len(old.device)):
        if change.is_affected[task] or change.rank[task] < 0:
            for e in range(old.before.first[task], old.before.first[task + 1]):
                found[old.before.other[e]] |= change.is_anew[old.before.owner[e]]
    for task in change.before.other:
        found[task] = True
    return found


@inner
def _links(old: Links, new: Chains, change: Change, offsets: Array, is_moved: Array) -> Links:
    """Old edges that are left and new ones; of tasks that did not move all are left, and none is new.

    Where nearly all time goes places are unsigned numbers, for which nothing asks whether they count from the end.
    """
    rank, count, most = change.rank, len(old.first) - 1, len(old.other) + len(new.other)
    first = np.empty(offsets[-1] + 1, np.int32)
    other, owner = np.empty(most, np.uint32), np.empty(most, np.uint32)
    at = stop = 0
    while stop < len(offsets) - 1:
        to, task = offsets[stop], change.begin[stop]
        stop = _stretch(change, stop)
        while to < offsets[stop]:
            last, most = task, min(task + offsets[stop] - to, count)
            while last < most and not is_moved[last]:
                last += 1
            if last > task:
                begin, size = old.first[task], old.first[last] - old.first[task]
                for i in range(last - task):
                    first[to + i] = old.first[task + i] + at - begin
                for i in range(size):
                    owner[np.uint64(at + i)] = old.owner[np.uint64(begin + i)]
                for i in range(size):
                    other[np.uint64(at + i)] = rank[old.other[np.uint64(begin + i)]]
                at += size
                to += last - task
                task = last
                continue
            first[to] = at
            begin, end = (old.first[task], old.first[task + 1]) if task < count else (0, 0)
            for e in range(begin, end):
                if not change.is_anew[old.owner[e]]:
                    other[at], owner[at] = rank[old.other[e]], old.owner[e]
                    at += 1
            e = new.first[task]
            while e >= 0:
                other[at], owner[at] = rank[new.other[e]], new.owner[e]
                at += 1
                e = new.next[e]
            to += 1
            task += 1
    first[-1] = at
    return Links(first, other[:at], owner[:at])
