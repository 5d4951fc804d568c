"""Lower bounds: memory has a price per byte and row, and message passing bounds the rest. All loops are compiled.

For any prices of at least 0, the least of cost + prices * (used - free) over all choices is a lower bound (Lagrangian
relaxation). Sequential tree-reweighted message passing bounds this minimum (Kolmogorov, 2006). Prices move along the averaged
excess of recent choices (a deflected subgradient, as in the volume algorithm of Barahona and Anbil, 2000), and return to the
best prices after steps without success. Messages persist between steps, so prices and messages improve together.
"""

from collections.abc import Callable
from typing import Any

import attrs
import numpy as np

from mtfc.compiler.search.jit import jit
from mtfc.compiler.search.solver.assignment_problem import FORBIDDEN, Integers
from mtfc.compiler.search.solver.network_arrays import Floats, NetworkArrays

LARGE = 1e16
"""Larger messages mean "impossible", and are replaced by this."""


@jit
def pass_messages(
    a: NetworkArrays, theta: Floats, messages: Floats, choices: Integers, total: Floats, forward: bool
) -> float:
    """Pass messages once over the nodes; return a lower bound of the energy.

    `theta` are costs per strategy. `messages[slot[arc] + s]` is the message from the arc's other node about strategy s.
    `total` is room for one node. Going forward, `choices` becomes each node's best strategy given the nodes before it.
    """
    bound = 0.0
    count = len(a.first) - 1
    for step in range(count):
        node = step if forward else count - 1 - step
        least = _gather(a, theta, messages, node, total)
        if forward:
            choices[node] = _conditional(a, theta, messages, choices, node)
        bound += least
        weight = _weight(a, node)
        for arc in range(a.arcs[node], a.arcs[node + 1]):
            if (a.head[arc] > node) == forward:
                bound += _send(a, messages, node, arc, total, least, weight)
    return bound


@jit
def _gather(a: NetworkArrays, theta: Floats, messages: Floats, node: int, total: Floats) -> Any:
    """Write the cost of each strategy of a node, with all messages to it, into `total`; return the least."""
    first, count = a.first[node], a.first[node + 1] - a.first[node]
    for s in range(count):
        total[s] = theta[first + s]
    for arc in range(a.arcs[node], a.arcs[node + 1]):
        slot = a.slot[arc]
        for s in range(count):
            total[s] += messages[slot + s]
    least = np.inf
    for s in range(count):
        least = min(least, total[s])
    return least


@jit
def _weight(a: NetworkArrays, node: int) -> float:
    """Return one over the number of monotonic chains through a node."""
    after = 0
    for arc in range(a.arcs[node], a.arcs[node + 1]):
        if a.head[arc] > node:
            after += 1
    before = int(a.arcs[node + 1] - a.arcs[node]) - after
    return 1.0 / max(after, before, 1)


@jit
def _send(
    a: NetworkArrays, messages: Floats, node: int, arc: int, total: Floats, least: float, weight: float
) -> float:
    """Send a message along an arc, reduced to a minimum of 0; return the reduction.

    total: the cost of each strategy of the node, with all messages to it. least: the least of them. weight: the part that is
    sent.
    """
    other = a.head[arc]
    count, others = a.first[node + 1] - a.first[node], a.first[other + 1] - a.first[other]
    out, own = a.slot[a.back[arc]], a.slot[arc]
    for t in range(others):
        messages[out + t] = np.inf
    for s in range(count):
        base = weight * (total[s] - least) - messages[own + s]
        row = a.table[arc] + s * others
        for t in range(others):
            messages[out + t] = min(messages[out + t], base + a.pair_float[row + t])
    lowest = np.inf
    for t in range(others):
        lowest = min(lowest, messages[out + t])
    for t in range(others):
        messages[out + t] = min(messages[out + t] - lowest, LARGE)
    return lowest


@jit
def _conditional(a: NetworkArrays, theta: Floats, messages: Floats, choices: Integers, node: int) -> int:
    """Return the best strategy of a node, given the choices before it and the messages from after it."""
    best, found = np.inf, 0
    for s in range(a.first[node + 1] - a.first[node]):
        cost = theta[a.first[node] + s]
        for arc in range(a.arcs[node], a.arcs[node + 1]):
            other = a.head[arc]
            if other > node:
                cost += messages[a.slot[arc] + s]
            else:
                cost += a.pair_float[
                    a.table[arc] + s * (a.first[other + 1] - a.first[other]) + choices[other]
                ]
        if cost < best:
            best, found = cost, s
    return found


@jit
def total_cost(a: NetworkArrays, choices: Integers) -> int:
    """Return the cost of a choice, in integers."""
    cost = 0
    for node in range(len(a.first) - 1):
        cost += a.cost[a.first[node] + choices[node]]
        for arc in range(a.arcs[node], a.arcs[node + 1]):
            other = a.head[arc]
            if other > node:
                width = a.first[other + 1] - a.first[other]
                cost += a.pair_cost[a.table[arc] + choices[node] * width + choices[other]]
    return cost


@jit
def reparametrize(
    a: NetworkArrays, theta: Integers, messages: Integers, rest: Integers, pair_rest: Integers
) -> int:
    """Move costs between nodes and edges by the messages, without rounding; return the resulting bound.

    For any messages, every choice costs the bound plus its entries of `rest` (per strategy) and of `pair_rest` (of each
    edge, in the table of the arc from its lower node). All of these entries are at least 0.
    """
    bound = 0
    count = len(a.first) - 1
    given = np.zeros(len(messages), np.int64)
    for node in range(count):
        bound += _keep_part(a, theta, messages, node, rest, given)
    for node in range(count):
        for arc in range(a.arcs[node], a.arcs[node + 1]):
            if a.head[arc] > node:
                bound += _edge_rest(a, given, node, arc, pair_rest)
    return bound


@jit
def _keep_part(
    a: NetworkArrays, theta: Integers, messages: Integers, node: int, rest: Integers, given: Integers
) -> int:
    """Return the least cost that a node keeps after giving parts to its chains; `given` receives the costs that edges give to
    the node. rest: receives the costs that strategies keep.
    """
    first, count = a.first[node], a.first[node + 1] - a.first[node]
    for s in range(count):
        rest[first + s] = theta[first + s]
        for arc in range(a.arcs[node], a.arcs[node + 1]):
            rest[first + s] += messages[a.slot[arc] + s]
    least = rest[first : first + count].min()
    weight = _weight(a, node)
    for s in range(count):
        part = int(weight * (rest[first + s] - least))
        for arc in range(a.arcs[node], a.arcs[node + 1]):
            given[a.slot[arc] + s] = messages[a.slot[arc] + s]
            if a.head[arc] < node:
                given[a.slot[arc] + s] -= part
                rest[first + s] -= part
        rest[first + s] -= least
    lowest = rest[first : first + count].min()
    for s in range(count):
        rest[first + s] -= lowest
    return int(least + lowest)


@jit
def _edge_rest(a: NetworkArrays, given: Integers, node: int, arc: int, pair_rest: Integers) -> int:
    """Reduce the costs that an edge keeps to a minimum of 0; return the reduction.

    given: the costs that the edge gives to its nodes. pair_rest: receives the costs that the edge keeps.
    """
    other = a.head[arc]
    count, others = a.first[node + 1] - a.first[node], a.first[other + 1] - a.first[other]
    own, back, table = a.slot[arc], a.slot[a.back[arc]], a.table[arc]
    for s in range(count):
        for t in range(others):
            place = table + s * others + t
            pair_rest[place] = a.pair_cost[place] - given[own + s] - given[back + t]
    end = table + count * others
    least = pair_rest[table:end].min()
    for place in range(table, end):
        pair_rest[place] -= least
    return int(least)


@jit
def excess_of_pairs(a: NetworkArrays, rest: Integers, pair_rest: Integers, excess: Integers) -> None:
    """Replace `pair_rest` by the least excess over the bound of any choice with a pair of strategies.

    The same per strategy is added to `excess`.

    rest: the costs that strategies keep. pair_rest: the costs that edges keep.
    """
    for node in range(len(a.first) - 1):
        for s in range(a.first[node], a.first[node + 1]):
            excess[s] += rest[s]
    for node in range(len(a.first) - 1):
        for arc in range(a.arcs[node], a.arcs[node + 1]):
            if a.head[arc] > node:
                _excess_of_edge(a, rest, pair_rest, excess, node, arc)


@jit
def _excess_of_edge(
    a: NetworkArrays, rest: Integers, pair_rest: Integers, excess: Integers, node: int, arc: int
) -> None:
    """Turn the costs that an edge keeps into the excess of its pairs, and lower the excess of both nodes' strategies to the
    least.
    """
    other, largest = a.head[arc], 4 * 10**18
    first, second, table = a.first[node], a.first[other], a.table[arc]
    count, others = a.first[node + 1] - first, a.first[other + 1] - second
    for s in range(count):
        least = largest
        for t in range(others):
            least = min(least, pair_rest[table + s * others + t] + rest[second + t])
        excess[first + s] = min(excess[first + s] + least, largest)
    for t in range(others):
        least = largest
        for s in range(count):
            least = min(least, pair_rest[table + s * others + t] + rest[first + s])
        excess[second + t] = min(excess[second + t] + least, largest)
    for s in range(count):
        for t in range(others):
            pair_rest[table + s * others + t] += rest[first + s] + rest[second + t]


RECENT = 0.1
"""The weight of the newest choice in the average."""

FIRST_STEP = 0.05
"""The part of the gap that the first step tries to close."""

PATIENCE = 10
"""After this many steps without a better bound, return to the best prices and make shorter steps."""

SHORTER = 0.7

SHORTEST = 1e-5

WARMING = 30
"""Passes before prices rise from 0."""

TIGHTENING = 5
"""Passes before a bound is certified."""

DIGITS = 40
"""Prices in exact bounds are fractions with this many binary digits."""


class Lagrangian:
    """Prices and messages that are improved step by step. `bound` is their lower bound, up to rounding; see `certify`."""

    def __init__(self, arrays: NetworkArrays, constant: int) -> None:
        """Start without prices. constant: the cost that every choice has."""
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
        """Return costs per strategy, with the price of memory."""
        paid = np.repeat(self.arrays.price(prices), self._repeat) * self.arrays.bytes
        size = int(self.arrays.first[-1])
        return self.arrays.cost.astype(np.float64) + np.bincount(self._places, paid, minlength=size)

    def advance(self, target: float) -> Floats:
        """Move prices once and pass messages both ways; return the memory that the new `choices` use in each row.

        `target` is a cost that the bound will not exceed, such as the cost of the best known choice.
        """
        a, theta = self.arrays, self.theta(self._trial)
        pass_messages(a, theta, self.messages, self.choices, self._room, True)
        used = a.used(self.choices)
        found = pass_messages(a, theta, self.messages, self.choices, self._room, False)
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
        """Step along the average excess."""
        assert self._average is not None
        wanted = np.where((self._trial > 0) | (self._average > 0), self._average, 0.0)
        gap = min(max(target - bound, 0.0), 2 * max(target - self.bound, 0.0))
        length = self.step * gap / max(float(wanted @ wanted), 1.0)
        self._trial = np.maximum(self._trial + length * wanted, 0.0)

    def _judge(self, bound: float) -> None:
        """Keep the trial prices if they are better; return to the best prices after long failure."""
        if bound > self.bound:
            self.bound, self.prices, self._failures = bound, self._trial, 0
            self.best_messages = self.messages.copy()
            return
        self._failures += 1
        if self._failures >= PATIENCE and self.steps > WARMING:
            self.step, self._failures = max(SHORTER * self.step, SHORTEST), 0
            self._trial, self.messages = self.prices, self.best_messages.copy()


def _places(arrays: NetworkArrays) -> Integers:
    """Return the strategy of each entry of `bytes`."""
    counts = np.diff(arrays.first)
    owner = np.repeat(np.arange(arrays.size), np.diff(arrays.items))
    rows = [np.arange(arrays.first[node], arrays.first[node] + counts[node]) for node in owner]
    return np.concatenate([np.zeros(0, np.int64), *rows])


@attrs.frozen(eq=False)
class BoundCertificate:
    """A lower bound that holds exactly, and the least excess over it of any choice with a strategy, or with a pair of
    strategies.
    """

    bound: int
    excess: Integers
    """Per strategy."""
    pair_excess: Integers
    """In the tables of arcs from lower to higher nodes; other entries have no meaning."""


def certify(lagrangian: Lagrangian) -> BoundCertificate:
    """Return the bound of the best prices, computed in integers throughout."""
    a = lagrangian.arrays
    theta, paid = _exact_theta(lagrangian)
    theta_float = theta.astype(np.float64)
    choices, messages_float = lagrangian.choices.copy(), lagrangian.best_messages.copy()
    for forward in (True, False) * TIGHTENING:
        pass_messages(a, theta_float, messages_float, choices, lagrangian._room, forward)
    messages = np.rint(messages_float).astype(np.int64)
    rest, pair_rest = np.zeros_like(theta), np.zeros_like(a.pair_cost)
    bound = reparametrize(a, theta, messages, rest, pair_rest)
    excess = np.zeros_like(theta)
    excess_of_pairs(a, rest, pair_rest, excess)
    return BoundCertificate(int(bound) + lagrangian.constant - paid, excess, pair_rest)


def _exact_theta(lagrangian: Lagrangian) -> tuple[Integers, int]:
    """Return costs per strategy rounded down, and prices * free rounded up."""
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
    """Return a division by 2**digits that rounds down."""
    return (lambda value: value >> digits) if digits >= 0 else (lambda value: value << -digits)
