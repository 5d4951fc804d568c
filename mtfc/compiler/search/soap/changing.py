"""A task graph of which some blocks are made anew, before it is known whether it will be kept: the old graph, and what differs.

Old tasks keep their numbers, and new ones have the numbers after them; `rank` says which number each has if the change is kept,
and -1 if it is gone. All edges to tasks that are affected stand in chains of their own; in the old lists they do not count.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from mtfc.compiler.search.soap.blocks import Array, Blocks
from mtfc.compiler.search.soap.graphs import Graph
from mtfc.compiler.search.solver.kernels import compiled, inner


class Chains(NamedTuple):
    """Edges by one of their ends: the first of a task, and after each the next; -1 where there is none."""

    first: Array
    next: Array
    other: Array


class Change(NamedTuple):
    """is_anew [block]. begin [block]: the number of its first task. rank [task]. task [rank]. device, seconds: of new tasks.

    affected: the tasks that are new, or may wait for others than before. is_affected [task]: those, and all that are gone.
    waiting, before: the edges to those that are affected. owner [edge]: the blocks that these belong to.
    """

    is_anew: Array
    begin: Array
    rank: Array
    task: Array
    device: Array
    seconds: Array
    affected: Array
    is_affected: Array
    waiting: Chains
    before: Chains
    owner: Array


@compiled
def change(old: Graph, numbers: Array, new: Blocks, leads: Array) -> Change:
    """Blocks with some numbers, in ascending order, are new. leads [block]: the other block that edges of one lead to, or -1."""
    count, blocks = len(old.device), len(old.offsets) - 1
    total = count + len(new.device)
    is_anew, begin = np.zeros(blocks, np.bool_), old.offsets[:-1].copy()
    for i in range(len(numbers)):
        is_anew[numbers[i]] = True
        begin[numbers[i]] = count + new.offsets[i]
    rank, tasks = np.empty(total, np.int32), np.empty(total, np.uint32)
    for number in numbers:
        rank[old.offsets[number] : old.offsets[number + 1]] = -1
    at, i = 0, 0
    for block in range(blocks):
        size = old.offsets[block + 1] - old.offsets[block]
        if is_anew[block]:
            size = new.offsets[i + 1] - new.offsets[i]
            i += 1
        for task in range(size):
            rank[begin[block] + task] = at + task
            tasks[at + task] = begin[block] + task
        at += size
    affected, is_affected = _affected(old, numbers, is_anew, begin, leads, total)
    sources, targets, owner = _edges(old, numbers, new, begin, is_anew, affected)
    return Change(
        is_anew,
        begin,
        rank,
        tasks[:at],
        new.device,
        new.seconds,
        affected,
        is_affected,
        _chains(sources, targets, total),
        _chains(targets, sources, total),
        owner,
    )


@inner
def _affected(old: Graph, numbers: Array, is_anew: Array, begin: Array, leads: Array, total: int):  # type: ignore[no-untyped-def]
    count = len(old.device)
    is_affected = np.zeros(total, np.bool_)
    is_affected[count:] = True
    for number in numbers:
        is_affected[old.offsets[number] : old.offsets[number + 1]] = True
    found, size = np.empty(total, np.uint32), total - count
    for task in range(size):
        found[task] = count + task
    for number in numbers:
        block = leads[number]
        if block < 0 or is_anew[block] or is_affected[begin[block]]:
            continue
        for task in range(old.offsets[block], old.offsets[block + 1]):
            is_affected[task] = True
            found[size] = task
            size += 1
    return found[:size].copy(), is_affected


@inner
def _edges(old: Graph, numbers: Array, new: Blocks, begin: Array, is_anew: Array, affected: Array):  # type: ignore[no-untyped-def]
    """New edges, and the old ones that are left to tasks that may have some."""
    at = total = len(new.edges)
    for task in affected:
        total += old.before.first[task + 1] - old.before.first[task] if task < len(old.device) else 0
    sources, targets = np.empty(total, np.uint32), np.empty(total, np.uint32)
    owner = np.empty(total, np.uint32)
    for i in range(len(numbers)):
        for e in range(new.edge_offsets[i], new.edge_offsets[i + 1]):
            edge = new.edges[e]
            owner[e] = numbers[i]
            sources[e], targets[e] = begin[edge[0]] + edge[1], begin[edge[2]] + edge[3]
    for task in affected:
        is_old = task < len(old.device)
        for e in range(old.before.first[task], old.before.first[task + 1]) if is_old else range(0):
            if not is_anew[old.owner[e]]:
                sources[at], targets[at], owner[at] = old.before.other[e], task, old.owner[e]
                at += 1
    return sources[:at], targets[:at], owner[:at]


@inner
def _chains(here: Array, there: Array, count: int) -> Chains:
    first, next = np.full(count, -1, np.int32), np.empty(len(here), np.int32)
    for e in range(len(here)):
        next[e] = first[here[e]]
        first[here[e]] = e
    return Chains(first, next, there)
