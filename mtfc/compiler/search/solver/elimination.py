"""Exact solutions of networks that are nearly trees: nodes are eliminated one by one, by dynamic programming.

A node is replaced by a table with its least cost for each choice of its neighbours. This is bucket elimination (Dechter, 1999).
For a chain of layers it is SoyBean's dynamic program (arXiv:1805.04170, section 4.2.2). The largest table decides how long it
takes. The next node is the one whose neighbours have the fewest joint choices.

Elimination knows no memory, so it takes networks without rows of memory only.
"""

from collections.abc import Iterable, Sequence
from heapq import heappop, heappush
from math import prod
from typing import Any

import attrs
import numpy as np
from numpy.typing import NDArray

from mtfc.compiler.search.solver.assignment_problem import FORBIDDEN, Integers
from mtfc.compiler.search.solver.exact import ExactOutcome
from mtfc.compiler.search.solver.network_reductions import ReducibleNetwork

LARGEST = 1 << 24
"""The most entries of a table: 128 MiB."""

MOST = 1 << 27
"""The most entries of all tables together, about a second of work."""


@attrs.frozen(eq=False)
class JointCosts:
    """The costs of some nodes together: [choice of each of `nodes`]."""

    nodes: tuple[int, ...]
    costs: NDArray[Any]

    def spread(self, names: Sequence[int]) -> NDArray[Any]:
        """Return the costs with an axis for each of `names`, of size 1 for nodes that are not in the table."""
        order = sorted(range(len(self.nodes)), key=lambda i: names.index(self.nodes[i]))
        sizes = dict(zip(self.nodes, self.costs.shape, strict=True))
        return self.costs.transpose(order).reshape([sizes.get(name, 1) for name in names])


def elimination_order(network: ReducibleNetwork) -> list[int] | None:
    """Return an order of elimination with small tables; None if none was found, or if memory counts."""
    if any(network.items[node] for node in network.nodes):
        return None
    neighbours = {node: set(network.tables[node]) for node in network.nodes}
    sizes = {node: len(network.costs[node]) for node in network.nodes}
    table_sizes = {node: prod(sizes[each] for each in others) for node, others in neighbours.items()}
    queue = sorted((entries, node) for node, entries in table_sizes.items())
    order: list[int] = []
    total = 0
    while neighbours:
        entries, node = heappop(queue)
        if node not in neighbours or entries != table_sizes[node]:
            continue
        total += entries * sizes[node]
        if entries * sizes[node] > LARGEST or total > MOST:
            return None
        order.append(node)
        others = neighbours.pop(node)
        for other in others:
            neighbours[other] = (neighbours[other] | others) - {other, node}
        for other in others:
            table_sizes[other] = prod(sizes[each] for each in neighbours[other])
            heappush(queue, (table_sizes[other], other))
    return order


def eliminate(network: ReducibleNetwork, order: Iterable[int]) -> Integers | None:
    """Return a best choice by the network's numbers, or None if every choice is forbidden. `order`: see `elimination_order`."""
    tables = [JointCosts((node,), network.costs[node]) for node in network.nodes]
    for node in network.nodes:
        for other, costs in network.tables[node].items():
            if node < other:
                tables.append(JointCosts((node, other), costs))
    around: dict[int, list[JointCosts]] = {node: [] for node in network.nodes}
    for table in tables:
        for node in table.nodes:
            around[node].append(table)
    decided = [(node, *_eliminated(node, around)) for node in order]
    choices = np.zeros(len(network.costs), np.int64)
    for node, others, best, least in reversed(decided):
        place = tuple(choices[list(others)])
        if least[place] >= FORBIDDEN:
            return None
        choices[node] = best[place]
    return choices


def eliminated(network: ReducibleNetwork) -> ExactOutcome | None:
    """Return the solution of a network without nodes, or of one that is nearly a tree; None for other networks."""
    order = elimination_order(network)
    return None if order is None else ExactOutcome(eliminate(network, order), True)


def _eliminated(node: int, around: dict[int, list[JointCosts]]) -> tuple[tuple[int, ...], Integers, Integers]:
    """Replace the tables of a node by its least costs. Return its neighbours, its best strategies and these least costs.

    around: node -> the tables that have the node.
    """
    tables = around.pop(node)
    others = tuple(sorted({each for table in tables for each in table.nodes} - {node}))
    names = (*others, node)
    first, *rest = sorted((table.spread(names) for table in tables), key=lambda costs: -costs.size)
    shape = np.broadcast_shapes(first.shape, *(each.shape for each in rest))
    total = np.broadcast_to(first, shape).copy()
    for each in rest:
        total += each
        np.minimum(total, FORBIDDEN, out=total)
    best = total.argmin(axis=-1)
    least = JointCosts(others, np.take_along_axis(total, best[..., None], axis=-1)[..., 0])
    for other in others:
        around[other] = [each for each in around[other] if node not in each.nodes]
        around[other].append(least)
    return others, best.astype(np.int32), least.costs
