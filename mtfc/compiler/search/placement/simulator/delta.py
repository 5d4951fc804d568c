"""A task graph of which some blocks are made anew, before it is known whether it will be kept: what differs, beside what is kept.

All edges to tasks that are affected stand in chains of their own; in the old lists they do not count.
"""

from __future__ import annotations

import numpy as np

from mtfc.compiler.search.placement.parts.block_arrays import Array, Blocks
from mtfc.compiler.search.placement.simulator.simulator_state import (
    AFFECTED,
    ALTERED,
    EDGES,
    ENDS,
    EPOCH,
    FIRST,
    INDEX,
    LIVE,
    LOST,
    MARKED,
    NEW,
    NONE,
    NUMBERS,
    SAME,
    TAKEN,
    TASKS,
    Change,
    Kept,
    Run,
)
from mtfc.compiler.search.solver.message_passing import lean, tight


@lean
def renew(kept: Kept, numbers: Array, new: Blocks, leads: Array, change: Change, run: Run) -> bool:
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


@tight
def _mark(kept: Kept, task: int, mark: int, change: Change) -> None:
    change.mark[task], change.marked[kept.counts[MARKED]] = mark, task
    kept.counts[MARKED] += 1
    place = kept.place[task]
    if place != NONE:
        change.is_marked[place] = 1
        kept.counts[FIRST] = min(kept.counts[FIRST], place)


@tight
def _renew_block(kept: Kept, i: int, number: int, new: Blocks, change: Change, run: Run) -> None:
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


@tight
def _edges(kept: Kept, numbers: Array, new: Blocks, affected: int, change: Change, run: Run) -> bool:
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


@lean
def forget(kept: Kept, change: Change, run: Run) -> None:
    """Take back a change, and the simulation of it."""
    unmark(kept, change)
    for i in range(kept.counts[TAKEN]):
        run.end[run.order[i]] = np.inf


@tight
def unmark(kept: Kept, change: Change) -> None:
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
