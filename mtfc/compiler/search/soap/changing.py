"""A task graph of which some blocks are made anew, before it is known whether it will be kept: what differs, beside what is kept.

All edges to tasks that are affected stand in chains of their own; in the old lists they do not count.
"""

from __future__ import annotations

import numpy as np

from mtfc.compiler.search.soap.blocks import Array, Blocks
from mtfc.compiler.search.soap.state import (
    AFFECTED,
    EDGES,
    ENDS,
    FIRST,
    INDEX,
    LIVE,
    MARKED,
    NEW,
    NONE,
    NUMBERS,
    TAKEN,
    TASKS,
    Change,
    Kept,
    Run,
)
from mtfc.compiler.search.solver.kernels import lean, tight

SAME, ALTERED, LOST = range(3)
"""Marks of tasks: as before; affected; gone."""


@lean
def change(kept: Kept, numbers: Array, new: Blocks, leads: Array, found: Change, run: Run) -> bool:
    """Blocks with some numbers, in ascending order, are new. leads [block]: the other block that edges of one lead to, or -1.
    Whether there is room.
    """
    if kept.counts[TASKS] + len(new.device) > len(kept.device) - ENDS:
        return False
    for device in range(len(kept.load)):
        found.load[device] = kept.load[device]
    kept.counts[NUMBERS], kept.counts[NEW], kept.counts[MARKED] = len(numbers), 0, 0
    kept.counts[FIRST] = kept.counts[LIVE]
    for i in range(len(numbers)):
        _renew(kept, i, numbers[i], new, found, run)
    affected = kept.counts[NEW]
    for number in numbers:
        block = leads[number]
        if block < 0 or found.is_anew[block]:
            continue
        begin = kept.begin[block]
        if kept.size[block] and found.mark[begin] == SAME:
            for task in range(begin, begin + kept.size[block]):
                _mark(kept, task, ALTERED, found)
                run.affected[affected], found.first_before[task] = task, NONE
                affected += 1
    return _edges(kept, numbers, new, affected, found, run)


@tight
def _mark(kept: Kept, task: int, mark: int, found: Change) -> None:
    found.mark[task], found.marked[kept.counts[MARKED]] = mark, task
    kept.counts[MARKED] += 1
    place = kept.place[task]
    if place != NONE:
        found.is_marked[place] = 1
        kept.counts[FIRST] = min(kept.counts[FIRST], place)


@tight
def _renew(kept: Kept, i: int, number: int, new: Blocks, found: Change, run: Run) -> None:
    """One block."""
    for task in range(kept.begin[number], kept.begin[number] + kept.size[number]):
        _mark(kept, task, LOST, found)
        found.load[kept.device[task]] -= kept.seconds[task]
    begin = kept.counts[TASKS] + kept.counts[NEW]
    found.numbers[i], found.is_anew[number] = number, 1
    found.begin[number], found.size[number] = begin, new.offsets[i + 1] - new.offsets[i]
    found.sent[number] = new.sent[i]
    for device in range(new.held.shape[1]):
        found.held[number, device] = new.held[i, device]
    for task in range(found.size[number]):
        at, device = begin + task, new.device[new.offsets[i] + task]
        kept.device[at], kept.seconds[at] = device, new.seconds[new.offsets[i] + task]
        kept.key[at], kept.place[at] = (number << INDEX) + task, NONE
        kept.waiting_count[at] = kept.before_count[at] = 0
        _mark(kept, at, ALTERED, found)
        found.first_before[at] = NONE
        found.load[device] += kept.seconds[at]
        run.affected[kept.counts[NEW]] = at
        kept.counts[NEW] += 1


@tight
def _edges(kept: Kept, numbers: Array, new: Blocks, affected: int, found: Change, run: Run) -> bool:
    """New edges, and the old ones that are left to tasks that may have some."""
    total = 0
    for i in range(len(numbers)):
        for e in range(new.edge_offsets[i], new.edge_offsets[i + 1]):
            if total < len(found.source):
                edge = new.edges[e]
                found.source[total] = found.begin[edge[0]] + edge[1]
                found.target[total] = found.begin[edge[2]] + edge[3]
                found.owner[total] = numbers[i]
            total += 1
    for i in range(kept.counts[NEW], affected):
        task = run.affected[i]
        for e in range(kept.before_first[task], kept.before_first[task] + kept.before_count[task]):
            if not found.is_anew[kept.owner[e]]:
                if total < len(found.source):
                    found.source[total], found.target[total] = kept.before[e], task
                    found.owner[total] = kept.owner[e]
                total += 1
    kept.counts[EDGES] = min(total, len(found.source))
    for e in range(kept.counts[EDGES]):
        source, target = found.source[e], found.target[e]
        found.next_waiting[e], found.next_before[e] = found.first_waiting[source], found.first_before[target]
        found.first_waiting[source] = found.first_before[target] = e
    kept.counts[AFFECTED] = affected
    return total <= len(found.source)


@lean
def forget(kept: Kept, found: Change, run: Run) -> None:
    """Take back a change, and the simulation of it."""
    unmark(kept, found)
    for i in range(kept.counts[TAKEN]):
        run.end[run.order[i]] = np.inf


@tight
def unmark(kept: Kept, found: Change) -> None:
    """As if nothing were to be made anew."""
    for i in range(kept.counts[MARKED]):
        task = found.marked[i]
        found.mark[task] = SAME
        if kept.place[task] != NONE:
            found.is_marked[kept.place[task]] = 0
    for e in range(kept.counts[EDGES]):
        found.first_waiting[found.source[e]] = NONE
    for i in range(kept.counts[NUMBERS]):
        number = found.numbers[i]
        found.begin[number], found.is_anew[number] = kept.begin[number], 0
