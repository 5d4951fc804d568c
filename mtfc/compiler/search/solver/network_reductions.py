"""A network that is made smaller while its least cost stays the same, and the way back to the problem's choices.

Each reduction rule looks at one node and its neighbours, and rules are applied until none fits. Every change appends an
`UndoStep`, which finds the choice of the removed node from the choices of the rest. Most of a large problem disappears:
operations whose strategy is that of their operand (`merge`), tensors that nothing else depends on (`fold_leaf`), strategies
that another beats in any case (`dominated`). The last rule is the dead-end elimination of side-chain placement (Goldstein,
1994); folding comes from partitioned boolean quadratic problems (Scholz and Eckstein, 2002). Both take memory into account
here.

Memory is a set of rows: the few times at which the limit can be exceeded.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from copy import copy
from math import inf
from time import monotonic

import attrs
import numpy as np

from mtfc.compiler.search.solver.assignment_problem import (
    FORBIDDEN,
    AssignmentProblem,
    Booleans,
    Infeasible,
    Integers,
)


@attrs.frozen(eq=False)
class MemoryItem:
    """Bytes that a node holds, `usage[s]` under its strategy s, in the rows from `start` up to but not including `end`."""

    start: int
    end: int
    usage: Integers


def rows_of(intervals: Integers) -> Integers:
    """Map half-open intervals of time to intervals of rows. [nodes, 2]

    A row is a time at which an interval begins and after which another interval ends before any begins. At any other time, no
    more bytes are used than at one of these times.
    """
    empty = intervals[:, 0] >= intervals[:, 1]
    starts, ends = intervals[~empty, 0], intervals[~empty, 1]
    times = np.unique(starts)
    ended = np.searchsorted(np.sort(ends), times, side="right")
    keep = np.append(np.diff(ended) > 0, True)[: len(times)]
    times = times[keep]
    rows = np.searchsorted(times, intervals, side="left")
    rows[empty] = 0
    return rows


def profile(starts: Integers, ends: Integers, used: Integers, rows: int) -> Integers:
    """Return the bytes used in each row. [rows]"""
    change = np.zeros(rows + 1, np.int64)
    np.add.at(change, starts, used)
    np.add.at(change, ends, -used)
    return change.cumsum()[:rows]


@attrs.frozen(eq=False)
class UndoStep:
    """Undoes a change: the strategy of a node follows from the strategies of other nodes, or from its own new number.

    others: the other nodes. strategies: the strategy of the node by the strategies of the others.
    """

    node: int
    others: tuple[int, ...]
    strategies: Integers


class ReducibleNetwork:
    """Nodes by number. `tables[i][j]` has shape [strategies of i, strategies of j], and `tables[j][i]` is its transpose."""

    def __init__(self, problem: AssignmentProblem) -> None:
        """Start from a problem with all nodes, and with costs cut at FORBIDDEN."""
        self.constant = 0
        self.nodes = set(range(problem.nodes))
        self.costs = [np.minimum(problem.costs[node], FORBIDDEN) for node in self.nodes]
        self.tables: list[dict[int, Integers]] = [{} for _ in self.nodes]
        self.items: list[list[MemoryItem]] = [[] for _ in self.nodes]
        self.steps: list[UndoStep] = []
        for edge, (first, second) in enumerate(problem.edges.tolist()):
            self.add_table(first, second, problem.table(edge))
        self.limit = problem.limit
        self.free = np.zeros(0, np.int64)
        """Free memory in each row, without items. [rows]"""
        self.prices = np.zeros(0)
        """The estimated price of a byte in each row. It tells which rows matter. [rows]"""
        if problem.limit is not None:
            self._add_items(problem, problem.limit)

    def _add_items(self, problem: AssignmentProblem, limit: int) -> None:
        """Add the memory of each node: one item with its rows and its bytes by strategy."""
        rows = rows_of(problem.intervals)
        self.free = np.full(rows.max(initial=0), limit)
        self.prices = np.zeros(len(self.free))
        for node, (start, end) in enumerate(rows.tolist()):
            if start < end:
                self.items[node].append(MemoryItem(start, end, problem.usages[node]))

    def copy(self) -> ReducibleNetwork:
        """Return a network that can be changed independently. Its steps lead back to this one."""
        other = copy(self)
        other.nodes, other.costs, other.items = set(self.nodes), list(self.costs), list(self.items)
        other.tables = [dict(tables) for tables in self.tables]
        other.free, other.steps = self.free.copy(), []
        return other

    def add_table(self, first: int, second: int, table: Integers) -> None:
        """Add an edge, or add to an existing one. first, second: the nodes of the edge."""
        there = self.tables[first].get(second)
        if there is not None:
            table = there + table
        table = np.minimum(table, FORBIDDEN)
        self.tables[first][second], self.tables[second][first] = table, table.T

    def add_cost(self, node: int, cost: Integers) -> None:
        self.costs[node] = np.minimum(self.costs[node] + cost, FORBIDDEN)

    def keep(self, node: int, strategies: Integers) -> None:
        """Drop all other strategies of a node."""
        self.steps.append(UndoStep(node, (node,), strategies))
        self.costs[node] = self.costs[node][strategies]
        self.items[node] = [attrs.evolve(item, usage=item.usage[strategies]) for item in self.items[node]]
        for other, table in self.tables[node].items():
            table = table[strategies]
            self.tables[node][other], self.tables[other][node] = table, table.T

    def cut(self, first: int, second: int) -> None:
        """Remove an edge."""
        del self.tables[first][second], self.tables[second][first]

    def remove(self, node: int) -> None:
        """Remove a node and its edges, after their costs have moved elsewhere."""
        for other in list(self.tables[node]):
            self.cut(node, other)
        self.nodes.remove(node)
        self.items[node] = []

    def follow(self, node: int, other: int, strategies: Integers) -> None:
        """Make a node take strategy `strategies[s]` when `other` has s. Its costs and memory move there."""
        self.steps.append(UndoStep(node, (other,), strategies))
        table = self.tables[node].pop(other)
        del self.tables[other][node]
        self.add_cost(other, self.costs[node][strategies] + table[strategies, np.arange(len(strategies))])
        for third, table in self.tables[node].items():
            self.add_table(other, third, table[strategies])
        self.items[other] += [attrs.evolve(item, usage=item.usage[strategies]) for item in self.items[node]]
        self.remove(node)

    def restore(self, choices: Integers) -> Integers:
        """Return the problem's choices from the choices of the remaining nodes. Other entries of `choices` are ignored."""
        complete = np.zeros(len(self.costs), np.int64)
        left = list(self.nodes)
        complete[left] = choices[left]
        for step in reversed(self.steps):
            complete[step.node] = step.strategies[tuple(complete[list(step.others)])]
        return complete

    def settle_memory(self) -> None:
        """Subtract the bytes that all strategies of a node use from the free memory, and drop rows that cannot be exceeded.
        Raises `Infeasible`.
        """
        most = np.zeros(len(self.free), np.int64)
        for node in self.nodes:
            self.items[node] = self._settled(self.items[node])
        found = [item for node in self.nodes for item in self.items[node]]
        starts, ends = (np.array([getattr(i, key) for i in found], np.int64) for key in ("start", "end"))
        most = profile(starts, ends, np.array([item.usage.max() for item in found], np.int64), len(self.free))
        if (self.free < 0).any():
            raise Infeasible("whatever is chosen, more memory is used than there is")
        self._keep_rows(most > self.free)

    def _settled(self, items: list[MemoryItem]) -> list[MemoryItem]:
        """Merge a node's items with equal intervals, and subtract the least usage of each from the free memory."""
        joined: dict[tuple[int, int], Integers] = {}
        for item in items:
            key = item.start, item.end
            joined[key] = joined[key] + item.usage if key in joined else item.usage
        settled = []
        for (start, end), usage in joined.items():
            least = usage.min()
            self.free[start:end] -= least
            if (usage > least).any():
                settled.append(MemoryItem(start, end, usage - least))
        return settled

    def _keep_rows(self, kept: Booleans) -> None:
        """Drop the memory rows that are not kept, and number the others anew."""
        place = np.concatenate([[0], np.cumsum(kept)])
        self.free, self.prices = self.free[kept], self.prices[kept]
        for node in self.nodes:
            moved = (MemoryItem(int(place[i.start]), int(place[i.end]), i.usage) for i in self.items[node])
            self.items[node] = [item for item in moved if item.start < item.end]


PAIR_TABLE = 4096
"""The most entries of a table that `fold_between` may make."""

COMPARISONS = 2_000_000
"""The most comparisons in one search for dominated strategies."""

Rule = Callable[[ReducibleNetwork, int], list[int]]
"""Changes the network around a node; returns the nodes whose surroundings changed, none if the rule does not fit."""


def reduce(network: ReducibleNetwork, until: float = inf) -> None:
    """Apply the rules until none fits, or until a time of `time.monotonic`. Raises `Infeasible`."""
    network.settle_memory()
    while monotonic() < until and _pass(network, until):
        network.settle_memory()


def _pass(network: ReducibleNetwork, until: float) -> bool:
    """Apply the rules to all nodes, and again to nodes whose surroundings change. Return whether a rule fitted."""
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


def _apply(network: ReducibleNetwork, node: int) -> list[int]:
    """Apply the first rule that fits a node; return the nodes that it changes."""
    for rule in RULES:
        touched = rule(network, node)
        if touched:
            return touched
    return []


def forbidden(network: ReducibleNetwork, node: int) -> list[int]:
    """Drop strategies that are impossible alone, or with every strategy of a neighbour (arc consistency)."""
    possible = network.costs[node] < FORBIDDEN
    for other, table in network.tables[node].items():
        possible &= ((table < FORBIDDEN) & (network.costs[other] < FORBIDDEN)).any(axis=1)
    if possible.all():
        return []
    if not possible.any():
        raise Infeasible(f"no strategy of node {node} is possible")
    network.keep(node, np.flatnonzero(possible))
    return [node, *network.tables[node]]


def single(network: ReducibleNetwork, node: int) -> list[int]:
    """Remove a node with one strategy: its cost is a constant plus costs of its neighbours."""
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


def merge(network: ReducibleNetwork, node: int) -> list[int]:
    """Merge two nodes, if each strategy of either is possible with exactly one of the other."""
    for other, table in network.tables[node].items():
        if table.shape[0] == table.shape[1]:
            possible = table < FORBIDDEN
            if (possible.sum(axis=0) == 1).all() and (possible.sum(axis=1) == 1).all():
                if len(network.tables[other]) < len(network.tables[node]):
                    node, other, possible = other, node, possible.T
                network.follow(node, other, possible.argmax(axis=0))
                return [other, *network.tables[other]]
    return []


def separable(network: ReducibleNetwork, node: int) -> list[int]:
    """Remove an edge whose table is the sum of a vector for each side."""
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


def fold_leaf(network: ReducibleNetwork, node: int) -> list[int]:
    """Remove a node with one neighbour, if its cheapest strategy always uses the least memory as well."""
    if len(network.tables[node]) != 1:
        return []
    (other,) = network.tables[node]
    total = np.minimum(network.tables[other][node] + network.costs[node], FORBIDDEN)
    best = _cheapest(network, node, total)
    if best is None:
        return []
    network.follow(node, other, best)
    return [other]


def _cheapest(network: ReducibleNetwork, node: int, total: Integers) -> Integers | None:
    """Return the cheapest strategy in each row of `total` [rows, strategies], or None if a possible one uses less memory."""
    items = network.items[node]
    if not items:
        cheapest: Integers = total.argmin(axis=1)
        return cheapest
    used = np.array([item.usage for item in items])
    ties = total == total.min(axis=1, keepdims=True)
    best: Integers = np.where(ties, used.sum(axis=0), np.iinfo(np.int64).max).argmin(axis=1)
    least = np.where(total < FORBIDDEN, used[:, None, :], np.iinfo(np.int64).max).min(axis=2)
    return best if (used[:, best] <= least).all() else None


def fold_between(network: ReducibleNetwork, node: int) -> list[int]:
    """Replace a node without memory between two others by an edge between the other two."""
    if len(network.tables[node]) != 2 or network.items[node]:
        return []
    (first, to_first), (second, to_second) = network.tables[node].items()
    if to_first.shape[1] * to_second.shape[1] > PAIR_TABLE and second not in network.tables[first]:
        return []
    total = (to_first.T + network.costs[node])[:, None, :] + to_second.T
    network.steps.append(UndoStep(node, (first, second), total.argmin(axis=2)))
    network.remove(node)
    network.add_table(first, second, total.min(axis=2))
    return [first, second]


def dominated(network: ReducibleNetwork, node: int) -> list[int]:
    """Drop a strategy if another uses no more memory and costs no more, whatever the neighbours choose."""
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


RULES: tuple[Rule, ...] = (forbidden, single, fold_leaf, merge, separable, fold_between, dominated)
"""The rules, in the order in which they are tried."""
