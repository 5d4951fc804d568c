"""Local search: choose anew the strategies of all nodes of a tree in the network, at once and in the best way given all others.

A tree is grown from a random node so that no two of its nodes have another edge between them; dynamic programming then finds
its best choices at given prices for memory (subproblem trees: Hamze and de Freitas, 2004). What results is taken if it is
cheaper and fits. The loops are compiled like those of `kernels.py`.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from mtfc.compiler.search.solver.assignment_problem import Integers
from mtfc.compiler.search.solver.message_passing import compiled
from mtfc.compiler.search.solver.network_arrays import Arrays, Floats


class Tree(NamedTuple):
    """Room for a tree. Positions in it are in the order in which it grew, so that a node's parent comes before it."""

    node: Integers
    parent: Integers
    arc: Integers
    """From each node to its parent."""
    cost: Floats
    """[positions, strategies]"""
    follows: Integers
    """The best strategy of a node given its parent's. [positions, strategies of the parent]"""
    chosen: Integers
    place: Integers
    """The position of each node of the network, -1 of those outside."""
    touching: Integers
    """How many neighbours in the tree each node of the network has."""
    waiting: Integers
    change: Floats
    """Changes of memory at the start of each row. [rows + 1]"""
    seed: Integers


def room(a: Arrays, size: int, seed: int) -> Tree:
    """Room for trees of up to so many nodes."""
    widest = int(np.diff(a.first).max(initial=1))
    return Tree(
        node=np.zeros(size, np.int64),
        parent=np.zeros(size, np.int64),
        arc=np.zeros(size, np.int64),
        cost=np.zeros((size, widest)),
        follows=np.zeros((size, widest), np.int64),
        chosen=np.zeros(size, np.int64),
        place=np.full(a.size, -1),
        touching=np.zeros(a.size, np.int64),
        waiting=np.zeros(len(a.head) + 1, np.int64),
        change=np.zeros(len(a.free) + 1),
        seed=np.array([seed], np.int64),
    )


@compiled
def _random(seed: Integers, below: int) -> int:
    """A number from 0 to below `below`, from a linear congruential generator."""
    seed[0] = (seed[0] * 1103515245 + 12345) & 0x7FFFFFFFFFFF
    return ((seed[0] >> 16) * below) >> 31  # type: ignore[no-any-return]


@compiled
def improve(
    a: Arrays, choices: Integers, used: Floats, price: Floats, penalty: Floats, tree: Tree, rounds: int
) -> float:
    """Choose so many trees anew; the cost that is saved. `choices` and `used`, per row, are changed.

    `price` is what a byte of each item costs while trees are solved. `penalty` says what a byte beyond what is free costs in
    each row; where it is 0, nothing is taken that uses more than is free, or more than before.
    """
    saved = 0.0
    for _ in range(rounds):
        size = _grow(a, tree)
        for position in range(size):
            _cost_given_others(a, choices, price, tree, position)
        for position in range(size - 1, 0, -1):
            _tell_parent(a, tree, position)
        if _choose(a, choices, tree, size):
            cheaper = -_change_of_cost(a, choices, tree, size)
            if _fits(a, choices, used, penalty, tree, size, cheaper):
                saved += cheaper
        _forget(a, tree, size)
    return saved


@compiled
def _grow(a: Arrays, tree: Tree) -> int:
    """Grow a tree; how many nodes it has."""
    limit = 1 + _random(tree.seed, 1 + _random(tree.seed, len(tree.node)))
    tree.waiting[0] = _random(tree.seed, len(a.first) - 1)
    waiting, size = 1, 0
    while waiting > 0 and size < limit:
        drawn = _random(tree.seed, waiting)
        node = tree.waiting[drawn]
        waiting -= 1
        tree.waiting[drawn] = tree.waiting[waiting]
        if tree.place[node] >= 0 or tree.touching[node] > 1:
            continue
        tree.place[node], tree.node[size] = size, node
        for arc in range(a.arcs[node], a.arcs[node + 1]):
            other = a.head[arc]
            tree.touching[other] += 1
            if tree.place[other] >= 0:
                tree.parent[size], tree.arc[size] = tree.place[other], arc
            elif tree.touching[other] == 1:
                tree.waiting[waiting] = other
                waiting += 1
        size += 1
    return size


@compiled
def _forget(a: Arrays, tree: Tree, size: int) -> None:
    for position in range(size):
        node = tree.node[position]
        tree.place[node] = -1
        for arc in range(a.arcs[node], a.arcs[node + 1]):
            tree.touching[a.head[arc]] = 0


@compiled
def _cost_given_others(a: Arrays, choices: Integers, price: Floats, tree: Tree, position: int) -> None:
    """The costs of a node's strategies, with prices and edges to nodes outside the tree."""
    node = tree.node[position]
    first, count = a.first[node], a.first[node + 1] - a.first[node]
    cost = tree.cost[position]
    for s in range(count):
        cost[s] = a.cost[first + s]
    for item in range(a.items[node], a.items[node + 1]):
        if price[item] != 0.0:
            for s in range(count):
                cost[s] += price[item] * a.bytes[a.usage[item] + s]
    for arc in range(a.arcs[node], a.arcs[node + 1]):
        other = a.head[arc]
        if tree.place[other] < 0:
            start = a.table[a.back[arc]] + choices[other] * count
            for s in range(count):
                cost[s] += a.pair_float[start + s]


@compiled
def _tell_parent(a: Arrays, tree: Tree, position: int) -> None:
    """Add what a node and those below it cost at best to its parent's costs."""
    node, parent = tree.node[position], tree.node[tree.parent[position]]
    count, others = a.first[node + 1] - a.first[node], a.first[parent + 1] - a.first[parent]
    table = a.table[a.back[tree.arc[position]]]
    for t in range(others):
        best, found = np.inf, 0
        for s in range(count):
            cost = tree.cost[position, s] + a.pair_float[table + t * count + s]
            if cost < best:
                best, found = cost, s
        tree.cost[tree.parent[position], t] += best
        tree.follows[position, t] = found


@compiled
def _choose(a: Arrays, choices: Integers, tree: Tree, size: int) -> bool:
    """The best choices of a tree, those that there are where they are as good; whether one is another."""
    root = tree.node[0]
    chosen = choices[root]
    for s in range(a.first[root + 1] - a.first[root]):
        if tree.cost[0, s] < tree.cost[0, chosen]:
            chosen = s
    tree.chosen[0] = chosen
    changed = chosen != choices[root]
    for position in range(1, size):
        tree.chosen[position] = tree.follows[position, tree.chosen[tree.parent[position]]]
        changed |= tree.chosen[position] != choices[tree.node[position]]
    return bool(changed)


@compiled
def _change_of_cost(a: Arrays, choices: Integers, tree: Tree, size: int) -> float:
    change = 0.0
    for position in range(size):
        node, new = tree.node[position], tree.chosen[position]
        old = choices[node]
        change += a.cost[a.first[node] + new] - a.cost[a.first[node] + old]
        for arc in range(a.arcs[node], a.arcs[node + 1]):
            other = a.head[arc]
            if tree.place[other] < position:  # each edge once: outside, or the parent
                width = a.first[other + 1] - a.first[other]
                there = choices[other]
                now = tree.chosen[tree.place[other]] if tree.place[other] >= 0 else there
                start = a.table[arc]
                change += a.pair_float[start + new * width + now] - a.pair_float[start + old * width + there]
    return change


@compiled
def _fits(
    a: Arrays, choices: Integers, used: Floats, penalty: Floats, tree: Tree, size: int, cheaper: float
) -> bool:
    """Take a tree's choices if they are cheaper, penalties included."""
    low, high = len(used), 0
    for position in range(size):
        node, new = tree.node[position], tree.chosen[position]
        if new != choices[node]:
            for item in range(a.items[node], a.items[node + 1]):
                more = a.bytes[a.usage[item] + new] - a.bytes[a.usage[item] + choices[node]]
                if more != 0.0:
                    tree.change[a.start[item]] += more
                    tree.change[a.end[item]] -= more
                    low, high = min(low, a.start[item]), max(high, a.end[item])
    taken = _penalized(a, used, penalty, tree.change, low, high) < cheaper
    more = 0.0
    for row in range(low, high):
        more += tree.change[row]
        tree.change[row] = 0.0
        if taken:
            used[row] += more
    tree.change[high] = 0.0
    if taken:
        for position in range(size):
            choices[tree.node[position]] = tree.chosen[position]
    return bool(taken)


@compiled
def _penalized(a: Arrays, used: Floats, penalty: Floats, change: Floats, low: int, high: int) -> float:
    """What a change of memory costs in penalties; infinite where it may not be."""
    cost, more = 0.0, 0.0
    for row in range(low, high):
        more += change[row]
        now = used[row] + more
        if more != 0.0 and (now > a.free[row] or used[row] > a.free[row]):
            beyond = max(now - a.free[row], 0.0) - max(used[row] - a.free[row], 0.0)
            if penalty[row] == 0.0 and beyond > 0.0:
                return float(np.inf)
            cost += penalty[row] * beyond
    return cost
