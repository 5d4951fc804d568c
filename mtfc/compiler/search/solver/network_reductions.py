"""Reductions: rules that make a network smaller and keep its least cost, applied until none fits.

The rules look at one node and its neighbours. Most of a large problem goes this way: operations whose strategy is that of
their operand (`merge`), tensors that nothing else depends on (`fold_leaf`), strategies that another one beats in any case
(`dominated`). The last is the dead-end elimination of side-chain placement (Goldstein, 1994), the folding that of
partitioned boolean quadratic problems (Scholz and Eckstein, 2002); both here in the presence of memory.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from math import inf
from time import monotonic

import numpy as np

from mtfc.compiler.search.solver.assignment_problem import FORBIDDEN, Integers
from mtfc.compiler.search.solver.reducible_network import FollowsTwo, Infeasible, Network

PAIR_TABLE = 4096
"""The most entries of a table that folding a node of degree two may make."""

COMPARISONS = 2_000_000
"""The most numbers that one search for dominated strategies looks at."""

Rule = Callable[[Network, int], list[int]]
"""Changes the network around a node; the nodes whose surroundings are others now, none if the rule does not fit."""


def reduce(network: Network, until: float = inf) -> None:
    """Apply the rules until none fits, or until a time of `time.monotonic`. Raises `Infeasible`."""
    network.settle_memory()
    while monotonic() < until and _pass(network, until):
        network.settle_memory()


def _pass(network: Network, until: float) -> bool:
    """Apply the rules to all nodes, and to those whose surroundings change; whether one did."""
    queue = deque(sorted(network.nodes, key=lambda node: len(network.tables[node])))
    waiting = set(queue)
    changed = False
    while queue and monotonic() < until:
        node = queue.popleft()
        waiting.remove(node)
        if node in network.nodes:
            touched = _apply(network, node)
            changed |= bool(touched)
            queue.extend(each for each in touched if each not in waiting)
            waiting.update(touched)
    return changed


def _apply(network: Network, node: int) -> list[int]:
    for rule in RULES:
        touched = rule(network, node)
        if touched:
            return touched
    return []


def forbidden(network: Network, node: int) -> list[int]:
    """Drop strategies that cost FORBIDDEN, or that do so with every strategy of a neighbour (arc consistency)."""
    possible = network.costs[node] < FORBIDDEN
    for other, table in network.tables[node].items():
        possible &= ((table < FORBIDDEN) & (network.costs[other] < FORBIDDEN)).any(axis=1)
    if possible.all():
        return []
    if not possible.any():
        raise Infeasible(f"no strategy of node {node} is possible")
    network.keep(node, np.flatnonzero(possible))
    return [node, *network.tables[node]]


def single(network: Network, node: int) -> list[int]:
    """A node with one strategy: what it costs is a constant, and costs of its neighbours."""
    if len(network.costs[node]) > 1:
        return []
    others = list(network.tables[node])
    network.constant += int(network.costs[node][0])
    for item in network.items[node]:
        network.free[item.start : item.end] -= item.usage[0]
    for other in others:
        network.add_cost(other, network.tables[node][other][0])
    network.remove(node)
    return [node, *others]


def merge(network: Network, node: int) -> list[int]:
    """Two nodes where each strategy of either is possible with only one of the other become one."""
    for other, table in network.tables[node].items():
        if table.shape[0] == table.shape[1]:
            possible = table < FORBIDDEN
            if (possible.sum(axis=0) == 1).all() and (possible.sum(axis=1) == 1).all():
                if len(network.tables[other]) < len(network.tables[node]):
                    node, other, possible = other, node, possible.T
                network.follow(node, other, possible.argmax(axis=0))
                return [other, *network.tables[other]]
    return []


def separable(network: Network, node: int) -> list[int]:
    """A table that is the sum of a vector for each side is no edge."""
    for other, table in list(network.tables[node].items()):
        row = table[0]
        column = table[:, 0] - row[0]
        if (table == column[:, None] + row).all() and table.max() < FORBIDDEN:
            least = column.min()
            network.cut(node, other)
            network.add_cost(node, column - least)
            network.add_cost(other, row + least)
            return [node, other]
    return []


def alone(network: Network, node: int) -> list[int]:
    """A node without edges and memory takes the cheapest strategy."""
    if network.tables[node] or network.items[node]:
        return []
    network.keep(node, network.costs[node].argmin(axis=0, keepdims=True))
    return [node]


def fold_leaf(network: Network, node: int) -> list[int]:
    """A node with one neighbour, if for each strategy of that its own cheapest one also uses the least memory."""
    if len(network.tables[node]) != 1:
        return []
    (other,) = network.tables[node]
    total = np.minimum(network.tables[other][node] + network.costs[node], FORBIDDEN)
    best = _cheapest(network, node, total)
    if best is None:
        return []
    network.follow(node, other, best)
    return [other]


def _cheapest(network: Network, node: int, total: Integers) -> Integers | None:
    """The strategy in each row of `total` [rows, strategies] that costs least, if no possible one uses less memory."""
    items = network.items[node]
    if not items:
        cheapest: Integers = total.argmin(axis=1)
        return cheapest
    used = np.array([item.usage for item in items])
    ties = total == total.min(axis=1, keepdims=True)
    best: Integers = np.where(ties, used.sum(axis=0), np.iinfo(np.int64).max).argmin(axis=1)
    least = np.where(total < FORBIDDEN, used[:, None, :], np.iinfo(np.int64).max).min(axis=2)
    return best if (used[:, best] <= least).all() else None


def fold_between(network: Network, node: int) -> list[int]:
    """A node without memory between two others becomes an edge of those."""
    if len(network.tables[node]) != 2 or network.items[node]:
        return []
    (first, to_first), (second, to_second) = network.tables[node].items()
    if to_first.shape[1] * to_second.shape[1] > PAIR_TABLE and second not in network.tables[first]:
        return []
    total = (to_first.T + network.costs[node])[:, None, :] + to_second.T
    network.steps.append(FollowsTwo(node, (first, second), total.argmin(axis=2)))
    network.remove(node)
    network.add_table(first, second, total.min(axis=2))
    return [first, second]


def dominated(network: Network, node: int) -> list[int]:
    """Drop a strategy if another one uses no more memory and costs no more, whatever the neighbours choose."""
    count = len(network.costs[node])
    if count**2 * (1 + sum(table.shape[1] for table in network.tables[node].values())) > COMPARISONS:
        return []
    excess = network.costs[node][:, None] - network.costs[node]
    for table in network.tables[node].values():
        excess = np.minimum(excess + (table[:, None] - table).max(axis=2), 2 * FORBIDDEN)
    beats = excess <= 0
    for item in network.items[node]:
        beats &= item.usage[:, None] <= item.usage
    beats &= ~beats.T | np.tri(count, k=-1, dtype=bool).T
    keep = ~beats.any(axis=0)
    if keep.all():
        return []
    network.keep(node, np.flatnonzero(keep))
    return [node, *network.tables[node]]


RULES: tuple[Rule, ...] = (
    forbidden,
    single,
    alone,
    fold_leaf,
    merge,
    separable,
    fold_between,
    dominated,
)
"""In the order in which they are tried."""
