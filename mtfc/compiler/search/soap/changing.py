"""A task graph of which some blocks are made anew, before it is known whether it will be kept: the old graph, and what differs.

Old tasks keep their numbers, and new ones have the numbers after them; `rank` says which number each has if the change is kept,
and -1 if it is gone. Edges of blocks that are made anew are skipped in the old lists, and stand in chains of their own.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from mtfc.compiler.search.soap.blocks import Array, Blocks
from mtfc.compiler.search.soap.graphs import Graph
from mtfc.compiler.search.solver.kernels import compiled, inner


class Chains(NamedTuple):
    """New edges by one of their ends: the first of a task, and after each the next; -1 where there is none."""

    first: Array
    next: Array
    other: Array
    owner: Array


class Change(NamedTuple):
    """is_anew [block]. begin [block]: the number of its first task. rank, device, seconds [task].

    affected: the tasks that are new, or may wait for others than before. is_affected [task].
    """

    is_anew: Array
    begin: Array
    rank: Array
    device: Array
    seconds: Array
    affected: Array
    is_affected: Array
    waiting: Chains
    before: Chains


@compiled
def change(old: Graph, numbers: Array, new: Blocks, leads: Array) -> Change:
    """Blocks with some numbers, in ascending order, are new. leads [block]: the other block that edges of one lead to, or -1."""
    count, blocks = len(old.device), len(old.offsets) - 1
    total = count + len(new.device)
    is_anew, begin = np.zeros(blocks, np.bool_), old.offsets[:-1].copy()
    for i in range(len(numbers)):
        is_anew[numbers[i]] = True
        begin[numbers[i]] = count + new.offsets[i]
    rank = np.full(total, -1, np.int32)
    at, i = 0, 0
    for block in range(blocks):
        size = old.offsets[block + 1] - old.offsets[block]
        if is_anew[block]:
            size = new.offsets[i + 1] - new.offsets[i]
            i += 1
        for task in range(size):
            rank[begin[block] + task] = at + task
        at += size
    affected, is_affected = _affected(old, numbers, is_anew, begin, leads, total)
    sources, targets, owner = _edges(numbers, new, begin)
    return Change(
        is_anew,
        begin,
        rank,
        np.concatenate((old.device, new.device)),
        np.concatenate((old.seconds, new.seconds)),
        affected,
        is_affected,
        _chains(sources, targets, owner, total),
        _chains(targets, sources, owner, total),
    )


@inner
def _affected(old: Graph, numbers: Array, is_anew: Array, begin: Array, leads: Array, total: int):  # type: ignore[no-untyped-def]
    count = len(old.device)
    is_affected = np.zeros(total, np.bool_)
    is_affected[count:] = True
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
def _edges(numbers: Array, new: Blocks, begin: Array):  # type: ignore[no-untyped-def]
    total = len(new.edges)
    sources, targets = np.empty(total, np.uint32), np.empty(total, np.uint32)
    owner = np.empty(total, np.uint32)
    for i in range(len(numbers)):
        for e in range(new.edge_offsets[i], new.edge_offsets[i + 1]):
            edge = new.edges[e]
            owner[e] = numbers[i]
            sources[e], targets[e] = begin[edge[0]] + edge[1], begin[edge[2]] + edge[3]
    return sources, targets, owner


@inner
def _chains(here: Array, there: Array, owner: Array, count: int) -> Chains:
    first, next = np.full(count, -1, np.int32), np.empty(len(here), np.int32)
    for e in range(len(here)):
        next[e] = first[here[e]]
        first[here[e]] = e
    return Chains(first, next, there, owner)
