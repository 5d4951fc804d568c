"""Lower bounds: memory gets a price per byte and row, and what is left is bounded by message passing.

For any prices of at least 0, the least of cost + prices * (used - free) over all choices is a lower bound (Lagrangian
relaxation). That least is bounded in turn by reparametrization. The prices take steps along the average of what recent
choices used too much (a deflected subgradient, as in the volume algorithm of Barahona and Anbil, 2000), and return to the
best ones when that has not helped for a while. Messages stay from one step to the next, so both climb together.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import attrs
import numpy as np

from mtfc.compiler.search.solver import message_passing
from mtfc.compiler.search.solver.assignment_problem import FORBIDDEN, Integers
from mtfc.compiler.search.solver.network_arrays import Arrays, Floats

RECENT = 0.1
"""The weight of the newest choice in the average."""

FIRST_STEP = 0.05
"""The part of the gap that the first step tries to close."""

PATIENCE = 10
"""After so many steps without a better bound, return to the best prices, and make shorter steps."""

SHORTER = 0.7

SHORTEST = 1e-5

WARMING = 30
"""Passes before prices rise from 0."""

TIGHTENING = 5
"""Passes before a bound is certified."""

DIGITS = 40
"""Prices are fractions with so many binary digits where bounds are exact."""


class Lagrangian:
    """Prices and messages while they are improved. `bound` is what they promise, up to rounding; see `certify`."""

    def __init__(self, arrays: Arrays, constant: int) -> None:
        self.arrays = arrays
        self.constant = constant
        self.prices: Floats = np.zeros(len(arrays.free))
        self.messages = np.zeros(arrays.slots)
        self.choices = np.zeros(arrays.size, np.int64)
        """The newest choices, found on the way; they may use too much memory."""
        self.bound = -np.inf
        self.best_messages = self.messages
        self.steps = 0
        self._trial: Floats = self.prices
        self._average: Floats | None = None
        self.step = FIRST_STEP
        self._failures = 0
        self._room = np.zeros(int(np.diff(arrays.first).max(initial=1)))
        self._repeat: Integers = np.diff(arrays.first)[
            np.repeat(np.arange(arrays.size), np.diff(arrays.items))
        ]
        self._places = _places(arrays)

    def theta(self, prices: Floats) -> Floats:
        """Costs per strategy, memory included."""
        paid = np.repeat(self.arrays.price(prices), self._repeat) * self.arrays.bytes
        size = int(self.arrays.first[-1])
        return self.arrays.cost.astype(np.float64) + np.bincount(self._places, paid, minlength=size)

    def advance(self, target: float) -> Floats:
        """One step of prices and one pass of messages each way; what the new `choices` use of each row.

        `target` is a cost that the bound will not exceed, such as that of the best choice known.
        """
        a, theta = self.arrays, self.theta(self._trial)
        message_passing.pass_messages(a, theta, self.messages, self.choices, self._room, True)
        used = a.used(self.choices)
        found = message_passing.pass_messages(a, theta, self.messages, self.choices, self._room, False)
        bound = found + self.constant - float(self._trial @ a.free)
        self.steps += 1
        excess = used - a.free
        if self.steps <= WARMING:
            self._judge(bound)
            return used
        self._average = excess if self._average is None else (1 - RECENT) * self._average + RECENT * excess
        self._judge(bound)
        self._move(bound, target)
        return used

    def _move(self, bound: float, target: float) -> None:
        """Where to try next: a step along the average excess."""
        assert self._average is not None
        wanted = np.where((self._trial > 0) | (self._average > 0), self._average, 0.0)
        gap = min(max(target - bound, 0.0), 2 * max(target - self.bound, 0.0))
        length = self.step * gap / max(float(wanted @ wanted), 1.0)
        self._trial = np.maximum(self._trial + length * wanted, 0.0)

    def _judge(self, bound: float) -> None:
        """Keep the trial's prices if they are better; return to the best ones if none were for long."""
        if bound > self.bound:
            self.bound, self.prices, self._failures = bound, self._trial, 0
            self.best_messages = self.messages.copy()
            return
        self._failures += 1
        if self._failures >= PATIENCE and self.steps > WARMING:
            self.step, self._failures = max(SHORTER * self.step, SHORTEST), 0
            self._trial, self.messages = self.prices, self.best_messages.copy()


def _places(arrays: Arrays) -> Integers:
    """The place per strategy of each entry of `bytes`."""
    counts = np.diff(arrays.first)
    owner = np.repeat(np.arange(arrays.size), np.diff(arrays.items))
    rows = [np.arange(arrays.first[node], arrays.first[node] + counts[node]) for node in owner]
    return np.concatenate([np.zeros(0, np.int64), *rows])


@attrs.frozen(eq=False)
class Certificate:
    """A lower bound that holds exactly, and by how much any choice with a strategy, or a pair of them, exceeds it at least."""

    bound: int
    excess: Integers
    """Per strategy."""
    pair_excess: Integers
    """In the tables of arcs from lower to higher nodes; the others' entries mean nothing."""


def certify(lagrangian: Lagrangian) -> Certificate:
    """The bound of the best prices, in integers throughout."""
    a = lagrangian.arrays
    theta, paid = _exact_theta(lagrangian)
    theta_float = theta.astype(np.float64)
    choices, messages_float = lagrangian.choices.copy(), lagrangian.best_messages.copy()
    for forward in (True, False) * TIGHTENING:
        message_passing.pass_messages(a, theta_float, messages_float, choices, lagrangian._room, forward)
    messages = np.rint(messages_float).astype(np.int64)
    rest, pair_rest = np.zeros_like(theta), np.zeros_like(a.pair_cost)
    bound = message_passing.reparametrize(a, theta, messages, rest, pair_rest)
    excess = np.zeros_like(theta)
    message_passing.excess_of_pairs(a, rest, pair_rest, excess)
    return Certificate(int(bound) + lagrangian.constant - paid, excess, pair_rest)


def _exact_theta(lagrangian: Lagrangian) -> tuple[Integers, int]:
    """Costs per strategy rounded down, and prices * free rounded up."""
    a, prices = lagrangian.arrays, lagrangian.prices
    digits = DIGITS - int(np.frexp(prices.sum())[1])
    down = _shift(digits)
    whole = np.rint(np.ldexp(prices, digits)).astype(np.int64)
    total = np.concatenate([[0], whole.cumsum()])
    price = np.repeat(total[a.end] - total[a.start], lagrangian._repeat)
    theta = a.cost.astype(object)
    np.add.at(theta, lagrangian._places, down(price.astype(object) * a.bytes.astype(np.int64).astype(object)))
    paid = -down(-sum(p * f for p, f in zip(whole.tolist(), a.free.astype(np.int64).tolist(), strict=True)))
    return np.minimum(theta, FORBIDDEN).astype(np.int64), int(paid)


def _shift(digits: int) -> Callable[[Any], Any]:
    """Division by 2**digits, rounded down."""
    return (lambda value: value >> digits) if digits >= 0 else (lambda value: value << -digits)
