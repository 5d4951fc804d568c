"""Local search: choose new strategies for all nodes of a tree in the network, optimally for the choices of all other nodes.

A tree grows from a random node so that no two of its nodes have another edge between them. Dynamic programming then finds its
best choices at given prices for memory (subproblem trees: Hamze and de Freitas, 2004). A result is accepted if it is cheaper
and fits.
"""

from typing import NamedTuple

import numpy as np

from mtfc.compiler.search.jit import jit
from mtfc.compiler.search.solver.assignment_problem import Integers
from mtfc.compiler.search.solver.lagrangian import total_cost
from mtfc.compiler.search.solver.network_arrays import Floats, NetworkArrays

TREE = 200
"""The most nodes of a tree."""

ROUNDS = 250
"""Trees between two checks of the clock."""

PRICE_FACTORS = (0.0, 1.0, 0.0, 0.5, 1.25)
"""Memory counts with its price times these factors, in turn; with 0 only costs count."""


class Incumbent:
    """The best known choice that fits, and its cost without the network's constant."""

    def __init__(self, arrays: NetworkArrays) -> None:
        """Start without a choice.

        _tree: room for a tree of nodes. _turn: the number of the next local search.
        """
        self.arrays = arrays
        self.choices: Integers | None = None
        self.cost = arrays.impossible
        self._tree = room(arrays, TREE, seed=1)
        self._turn = 0

    def offer(self, choices: Integers, used: Floats | None = None) -> bool:
        """Keep a choice if it fits and costs less; return whether it does. used: the bytes of the choices in each row."""
        used = self.arrays.used(choices) if used is None else used
        if (used > self.arrays.free).any():
            return False
        cost = int(total_cost(self.arrays, choices))
        if cost >= self.cost:
            return False
        self.choices, self.cost = choices.copy(), cost
        return True

    def offer_least_memory(self) -> bool:
        """Offer the choice that holds the fewest bytes in each node."""
        a = self.arrays
        choices = np.zeros(a.size, np.int64)
        for node in range(a.size):
            used = [
                a.bytes[a.usage[item] :][: a.first[node + 1] - a.first[node]]
                for item in range(a.items[node], a.items[node + 1])
            ]
            choices[node] = np.sum(used, axis=0).argmin() if used else 0
        return self.offer(choices)

    def polish(self, prices: Floats) -> bool:
        """Try to save cost by some moves; return whether this succeeded."""
        assert self.choices is not None
        choices = self.choices.copy()
        self._move(choices, PRICE_FACTORS[self._turn % len(PRICE_FACTORS)] * prices, np.zeros(len(prices)))
        self._turn += 1
        return self.offer(choices)

    def repair(self, choices: Integers, prices: Floats, strength: float) -> bool:
        """Move a choice towards one that fits; return whether it fits now.

        Excess memory costs `strength` more than prices say.
        """
        penalty = np.full(len(prices), strength * (prices.sum() or 1.0))
        beyond = self.arrays.used(choices) > self.arrays.free
        self._move(choices, np.where(beyond, prices + penalty, prices), penalty)
        self.offer(choices)
        return bool((self.arrays.used(choices) <= self.arrays.free).all())

    def _move(self, choices: Integers, prices: Floats, penalty: Floats) -> None:
        a = self.arrays
        improve(a, choices, a.used(choices), a.price(prices), penalty, self._tree, ROUNDS)


class SearchTree(NamedTuple):
    """Room for a tree. Positions are in the order of growth, so a node's parent comes before it.

    By position: the `node`, the position of its `parent`, the `arc` to it, and the `chosen` strategy. cost [position, strategy].
    follows [position, strategy of the parent]: the best strategy. By node of the network: its `place`, which is its position or
    -1, and `touching`, the number of its neighbours in the tree. waiting: nodes to grow to. change [row + 1]: changes of memory
    at the start of each row. seed: the seed of random numbers.
    """

    node: Integers
    parent: Integers
    arc: Integers
    cost: Floats
    follows: Integers
    chosen: Integers
    place: Integers
    touching: Integers
    waiting: Integers
    change: Floats
    seed: Integers


def room(a: NetworkArrays, size: int, seed: int) -> SearchTree:
    """Allocate room for trees of up to `size` nodes."""
    widest = int(np.diff(a.first).max(initial=1))
    return SearchTree(
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


@jit
def _random(seed: Integers, below: int) -> int:
    """Return a number from 0 to below `below`, from a linear congruential generator."""
    seed[0] = (seed[0] * 1103515245 + 12345) & 0x7FFFFFFFFFFF
    return ((seed[0] >> 16) * below) >> 31  # type: ignore[no-any-return]


@jit
def improve(
    a: NetworkArrays,
    choices: Integers,
    used: Floats,
    price: Floats,
    penalty: Floats,
    tree: SearchTree,
    rounds: int,
) -> float:
    """Choose new strategies for the nodes of `rounds` trees; return the cost saved. `choices` and `used`, per row, are changed.

    `price` is the price of a byte of each item while trees are solved. `penalty` is the cost of a byte beyond the free
    memory in each row. Where it is 0, no result is accepted that uses more than is free, or more than before.
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


@jit
def _grow(a: NetworkArrays, tree: SearchTree) -> int:
    """Grow a tree; return the number of its nodes."""
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


@jit
def _forget(a: NetworkArrays, tree: SearchTree, size: int) -> None:
    """Reset what a tree of `size` nodes has marked, so that the next tree finds no marks."""
    for position in range(size):
        node = tree.node[position]
        tree.place[node] = -1
        for arc in range(a.arcs[node], a.arcs[node + 1]):
            tree.touching[a.head[arc]] = 0


@jit
def _cost_given_others(
    a: NetworkArrays, choices: Integers, price: Floats, tree: SearchTree, position: int
) -> None:
    """Write the costs of a node's strategies, with prices and edges to nodes outside the tree."""
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


@jit
def _tell_parent(a: NetworkArrays, tree: SearchTree, position: int) -> None:
    """Add the least cost of a node and its subtree to its parent's costs."""
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


@jit
def _choose(a: NetworkArrays, choices: Integers, tree: SearchTree, size: int) -> bool:
    """Choose the best strategies of a tree, present ones in ties; return whether one changes."""
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


@jit
def _change_of_cost(a: NetworkArrays, choices: Integers, tree: SearchTree, size: int) -> float:
    """Return the change of the total cost if the first `size` nodes of a tree take the strategies that are chosen for them."""
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


@jit
def _fits(
    a: NetworkArrays,
    choices: Integers,
    used: Floats,
    penalty: Floats,
    tree: SearchTree,
    size: int,
    cheaper: float,
) -> bool:
    """Accept a tree's choices if they are cheaper, penalties included. used: the bytes in each row, which are updated.

    penalty: the price of each byte too many. cheaper: by how much the choices cost less.
    """
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


@jit
def _penalized(a: NetworkArrays, used: Floats, penalty: Floats, change: Floats, low: int, high: int) -> float:
    """Return the penalty of a change of memory; infinite if the change is not allowed. used: the bytes in each row.

    change: their change, in the rows from `low` to `high`.
    """
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
