"""The best choice so far, and the search for better ones by moves of trees."""

from __future__ import annotations

import numpy as np

from mtfc.compiler.search.solver import message_passing, tree_moves
from mtfc.compiler.search.solver.assignment_problem import Integers
from mtfc.compiler.search.solver.network_arrays import Arrays, Floats

TREE = 200
"""Nodes of a tree at most."""

ROUNDS = 250
"""Trees between two looks at the clock."""

PRICE_FACTORS = (0.0, 1.0, 0.0, 0.5, 1.25)
"""Memory counts with its price or a part of it, in turn; with none, only costs count."""


class Incumbent:
    """A choice that fits and what it costs, when one is known. Costs are those of the network, without its constant."""

    def __init__(self, arrays: Arrays) -> None:
        self.arrays = arrays
        self.choices: Integers | None = None
        self.cost = arrays.impossible
        self._tree = tree_moves.room(arrays, TREE, seed=1)
        self._turn = 0

    def offer(self, choices: Integers, used: Floats | None = None) -> bool:
        """Keep a choice if it fits and costs less; whether it does."""
        used = self.arrays.used(choices) if used is None else used
        if (used > self.arrays.free).any():
            return False
        cost = int(message_passing.total_cost(self.arrays, choices))
        if cost >= self.cost:
            return False
        self.choices, self.cost = choices.copy(), cost
        return True

    def offer_least_memory(self) -> bool:
        """Offer the choice that holds the fewest bytes in each node."""
        a = self.arrays
        choices = np.zeros(a.size, np.int64)
        for node in range(a.size):
            held = [
                a.bytes[a.usage[item] :][: a.first[node + 1] - a.first[node]]
                for item in range(a.items[node], a.items[node + 1])
            ]
            choices[node] = np.sum(held, axis=0).argmin() if held else 0
        return self.offer(choices)

    def polish(self, prices: Floats) -> bool:
        """Try to save cost by some moves; whether that succeeded."""
        assert self.choices is not None
        choices = self.choices.copy()
        self._move(choices, PRICE_FACTORS[self._turn % len(PRICE_FACTORS)] * prices, np.zeros(len(prices)))
        self._turn += 1
        return self.offer(choices)

    def repair(self, choices: Integers, prices: Floats, strength: float) -> bool:
        """Change a choice towards one that fits; whether it does.

        Rows where too much is used cost more, by `strength`, than prices say.
        """
        penalty = np.full(len(prices), strength * (prices.sum() or 1.0))
        beyond = self.arrays.used(choices) > self.arrays.free
        self._move(choices, np.where(beyond, prices + penalty, prices), penalty)
        self.offer(choices)
        return bool((self.arrays.used(choices) <= self.arrays.free).all())

    def _move(self, choices: Integers, prices: Floats, penalty: Floats) -> None:
        a = self.arrays
        tree_moves.improve(a, choices, a.used(choices), a.price(prices), penalty, self._tree, ROUNDS)
