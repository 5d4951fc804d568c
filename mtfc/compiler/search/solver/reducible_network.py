"""A problem while it is made smaller: nodes with costs and tables that may change, and the way back to the problem's choices.

Every change keeps the least total cost, and appends a `Step` that finds the choice of what it removed from the choices of
what it left.
"""

from __future__ import annotations

from copy import copy
from typing import Protocol

import attrs
import numpy as np

from mtfc.compiler.search.solver.assignment_problem import FORBIDDEN, Booleans, Integers, Problem
from mtfc.compiler.search.solver.memory_rows import Item, profile, rows_of


class Infeasible(Exception):
    """There is no choice: each one has an impossible part, or exceeds the memory."""


class Step(Protocol):
    """Undoes a change: completes `choices`, in which every node that is left has its choice."""

    def undo(self, choices: Integers) -> None: ...


@attrs.frozen(eq=False)
class Kept:
    """Of a node's strategies only these were kept."""

    node: int
    strategies: Integers

    def undo(self, choices: Integers) -> None:
        choices[self.node] = self.strategies[choices[self.node]]


@attrs.frozen(eq=False)
class Follows:
    """A node's strategy was made to follow from another's."""

    node: int
    other: int
    strategies: Integers

    def undo(self, choices: Integers) -> None:
        choices[self.node] = self.strategies[choices[self.other]]


@attrs.frozen(eq=False)
class FollowsTwo:
    """A node's strategy was made to follow from those of two others."""

    node: int
    others: tuple[int, int]
    strategies: Integers

    def undo(self, choices: Integers) -> None:
        first, second = self.others
        choices[self.node] = self.strategies[choices[first], choices[second]]


class Network:
    """Nodes by their numbers. `tables[i][j]` is [strategies of i, strategies of j], and `tables[j][i]` its transpose."""

    def __init__(self, problem: Problem) -> None:
        self.constant = 0
        self.nodes = set(range(problem.nodes))
        self.costs = [np.minimum(problem.costs[node], FORBIDDEN) for node in self.nodes]
        self.tables: list[dict[int, Integers]] = [{} for _ in self.nodes]
        self.items: list[list[Item]] = [[] for _ in self.nodes]
        self.steps: list[Step] = []
        for edge, (first, second) in enumerate(problem.edges.tolist()):
            self.add_table(first, second, problem.table(edge))
        self.limit = problem.limit
        self.free = np.zeros(0, np.int64)
        """What memory is left in each row, beside items. [rows]"""
        self.prices = np.zeros(0)
        """What a byte is thought to be worth in each row: says which rows matter. [rows]"""
        if problem.limit is not None:
            self._add_items(problem, problem.limit)

    def _add_items(self, problem: Problem, limit: int) -> None:
        rows = rows_of(problem.intervals)
        self.free = np.full(rows.max(initial=0), limit)
        self.prices = np.zeros(len(self.free))
        for node, (start, end) in enumerate(rows.tolist()):
            if start < end:
                self.items[node].append(Item(start, end, problem.usages[node]))

    def copy(self) -> Network:
        """A network that can be changed apart from this one; its steps lead back to this one."""
        other = copy(self)
        other.nodes, other.costs, other.items = set(self.nodes), list(self.costs), list(self.items)
        other.tables = [dict(tables) for tables in self.tables]
        other.free, other.steps = self.free.copy(), []
        return other

    def add_table(self, first: int, second: int, table: Integers) -> None:
        """Add an edge, or to one that is there."""
        there = self.tables[first].get(second)
        if there is not None:
            table = there + table
        table = np.minimum(table, FORBIDDEN)
        self.tables[first][second], self.tables[second][first] = table, table.T

    def add_cost(self, node: int, cost: Integers) -> None:
        self.costs[node] = np.minimum(self.costs[node] + cost, FORBIDDEN)

    def keep(self, node: int, strategies: Integers) -> None:
        """Drop all other strategies of a node."""
        self.steps.append(Kept(node, strategies))
        self.costs[node] = self.costs[node][strategies]
        self.items[node] = [attrs.evolve(item, usage=item.usage[strategies]) for item in self.items[node]]
        for other, table in self.tables[node].items():
            table = table[strategies]
            self.tables[node][other], self.tables[other][node] = table, table.T

    def cut(self, first: int, second: int) -> None:
        """Remove an edge."""
        del self.tables[first][second], self.tables[second][first]

    def remove(self, node: int) -> None:
        """Remove a node and its edges, when what they cost has gone elsewhere."""
        for other in list(self.tables[node]):
            self.cut(node, other)
        self.nodes.remove(node)
        self.items[node] = []

    def follow(self, node: int, other: int, strategies: Integers) -> None:
        """Make a node's strategy follow from another's: `strategies[s]` where that has s. What it costs and uses goes there."""
        self.steps.append(Follows(node, other, strategies))
        table = self.tables[node].pop(other)
        del self.tables[other][node]
        self.add_cost(other, self.costs[node][strategies] + table[strategies, np.arange(len(strategies))])
        for third, table in self.tables[node].items():
            self.add_table(other, third, table[strategies])
        self.items[other] += [attrs.evolve(item, usage=item.usage[strategies]) for item in self.items[node]]
        self.remove(node)

    def restore(self, choices: Integers) -> Integers:
        """The problem's choices, from those of the nodes that are left; other entries of `choices` do not matter."""
        complete = np.zeros(len(self.costs), np.int64)
        left = list(self.nodes)
        complete[left] = choices[left]
        for step in reversed(self.steps):
            step.undo(complete)
        return complete

    def settle_memory(self) -> None:
        """Take what every strategy uses from what is free, and drop rows that have room for anything. Raises `Infeasible`."""
        most = np.zeros(len(self.free), np.int64)
        for node in self.nodes:
            self.items[node] = self._settled(self.items[node])
        found = [item for node in self.nodes for item in self.items[node]]
        starts, ends = (np.array([getattr(i, key) for i in found], np.int64) for key in ("start", "end"))
        most = profile(starts, ends, np.array([item.usage.max() for item in found], np.int64), len(self.free))
        if (self.free < 0).any():
            raise Infeasible("whatever is chosen, more memory is used than there is")
        self._keep_rows(most > self.free)

    def _settled(self, items: list[Item]) -> list[Item]:
        """Items of one node, one for each interval, from 0 bytes on; the rest is taken from what is free."""
        joined: dict[tuple[int, int], Integers] = {}
        for item in items:
            key = item.start, item.end
            joined[key] = joined[key] + item.usage if key in joined else item.usage
        settled = []
        for (start, end), usage in joined.items():
            least = usage.min()
            self.free[start:end] -= least
            if (usage > least).any():
                settled.append(Item(start, end, usage - least))
        return settled

    def _keep_rows(self, kept: Booleans) -> None:
        """Drop the other rows."""
        place = np.concatenate([[0], np.cumsum(kept)])
        self.free, self.prices = self.free[kept], self.prices[kept]
        for node in self.nodes:
            moved = (Item(int(place[i.start]), int(place[i.end]), i.usage) for i in self.items[node])
            self.items[node] = [item for item in moved if item.start < item.end]
