"""Dynamic programming over the levels of a network (SoyBean, arXiv:1805.04170, section 4.2.2).

A breadth-first search sorts the nodes into levels; edges are within a level or between two that follow each other. The nodes of
the last level are chosen as best for every choice of those before them, and so on to the first. Within a level they are taken
one by one, those with the fewest neighbours' choices first, which needs less room than all at once and finds the same.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from math import prod

import attrs
import numpy as np

from mtfc.compiler.search.per_equation.conversions import Indices, Numbers

LARGEST = 1 << 22
"""Entries of a table. The paper: exponential in how many tensors share a level."""


class TooWide(Exception):
    """A level has too many choices at once."""


@attrs.frozen(eq=False)
class Table:
    """What some nodes cost together. [choices of each of `nodes`]"""

    nodes: tuple[int, ...]
    costs: Numbers


def best_choices(sizes: Sequence[int], tables: Iterable[Table]) -> list[int]:
    """A choice for each node, of `sizes[i]`, at the least sum of all tables. Raises `TooWide`."""
    around: dict[int, list[Table]] = {node: [] for node in range(len(sizes))}
    for table in tables:
        for node in table.nodes:
            around[node].append(table)
    decided: list[tuple[int, tuple[int, ...], Indices]] = []
    for level in reversed(levels(around)):
        left = set(level)
        while left:
            node = min(left, key=lambda node: (_width(node, around[node], sizes), node))
            left.remove(node)
            decided.append(_eliminate(node, around, sizes))
    choices = [0] * len(sizes)
    for node, others, best in reversed(decided):
        choices[node] = int(best[tuple(choices[other] for other in others)])
    return choices


def levels(around: dict[int, list[Table]]) -> list[list[int]]:
    """The nodes by their distance from the first of those that they are connected with."""
    found: list[list[int]] = []
    depth: dict[int, int] = {}
    for root in around:
        if root in depth:
            continue
        depth[root], queue = 0, deque([root])
        while queue:
            node = queue.popleft()
            while len(found) <= depth[node]:
                found.append([])
            found[depth[node]].append(node)
            for other in (each for table in around[node] for each in table.nodes):
                if other not in depth:
                    depth[other] = depth[node] + 1
                    queue.append(other)
    return found


def _others(node: int, tables: Iterable[Table]) -> tuple[int, ...]:
    return tuple(sorted({each for table in tables for each in table.nodes} - {node}))


def _width(node: int, tables: Iterable[Table], sizes: Sequence[int]) -> int:
    return prod(sizes[other] for other in _others(node, tables))


def _eliminate(
    node: int, around: dict[int, list[Table]], sizes: Sequence[int]
) -> tuple[int, tuple[int, ...], Indices]:
    """Put the least that a node costs, for each choice of its neighbours, in place of its tables; which choice that is."""
    tables = around.pop(node)
    others = _others(node, tables)
    names = (*others, node)
    shape = [sizes[each] for each in names]
    if prod(shape) > LARGEST:
        raise TooWide(f"{prod(shape):,} choices at once")
    total = np.zeros(shape)
    for table in tables:
        total += _spread(table, names)
        for other in table.nodes:
            if other != node:
                around[other].remove(table)
    least = Table(others, total.min(axis=-1))
    for other in others:
        around[other].append(least)
    return node, others, total.argmin(axis=-1)


def _spread(table: Table, names: tuple[int, ...]) -> Numbers:
    """A table's costs with an axis for each of `names`."""
    order = sorted(range(len(table.nodes)), key=lambda i: names.index(table.nodes[i]))
    present = [each in table.nodes for each in names]
    sizes = iter(table.costs.transpose(order).shape)
    return table.costs.transpose(order).reshape([next(sizes) if here else 1 for here in present])
