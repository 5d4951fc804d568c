"""Exact solutions of small networks: an integer program, solved by HiGHS.

One variable says whether a node takes a strategy, and one whether an edge's nodes take a pair of strategies. The sums of the
latter equal the former (the local polytope of the graphical model), so only the former must be integral. There are many memory
rows, and few of them matter: rows that a solution violates are added, and the program is solved again.
"""

from __future__ import annotations

from time import monotonic
from typing import TYPE_CHECKING, Any

import attrs
import numpy as np

from mtfc.compiler.search.solver.assignment_problem import FORBIDDEN, Integers
from mtfc.compiler.search.solver.network_reductions import ReducibleNetwork, profile

if TYPE_CHECKING:
    from scipy.sparse import csr_array

ALL_ROWS = 200
"""Up to this many memory rows, all are in the program from the beginning."""

MORE_ROWS = 30
"""The number of memory rows that are added at a time."""

LARGEST_COST = 1e6
"""Costs are scaled so that the largest has this value."""


@attrs.frozen(eq=False)
class ExactOutcome:
    """The best choice found, by the network's numbers, or None; and whether no other choice is better."""

    choices: Integers | None
    is_optimal: bool


@attrs.frozen(eq=False)
class _Program:
    """Minimize `cost @ x` subject to `equal @ x == right`. Variables of nodes come first; those of node i begin at `first[i]`."""

    first: dict[int, int]
    integral: int
    cost: Any
    equal: csr_array
    right: Any


def solve_exactly(network: ReducibleNetwork, until: float) -> ExactOutcome:
    """Return the best choice for a network, within a time of `time.monotonic`. No strategy may cost FORBIDDEN by itself."""
    program = _program(network)
    rows = _first_rows(network)
    while True:
        found, is_optimal = _minimized(program, _memory(network, program, rows), until)
        if found is None:
            return ExactOutcome(None, is_optimal)
        choices = _choices(network, program, found)
        new = _violated(network, choices)
        if not len(new):
            return ExactOutcome(choices, is_optimal)
        if set(new.tolist()) <= set(rows.tolist()) or monotonic() > until:
            return ExactOutcome(None, False)
        rows = np.union1d(rows, new)


def _first_rows(network: ReducibleNetwork) -> Integers:
    """Return the first memory rows, in the order of time, which `_memory` requires."""
    count = len(network.free)
    if count <= ALL_ROWS:
        return np.arange(count)
    dearest = np.argsort(-network.prices, kind="stable")[:MORE_ROWS]
    return np.sort(dearest[network.prices[dearest] > 0])


def _program(network: ReducibleNetwork) -> _Program:
    """Write a network as an integer program: a variable for each strategy, and one for each allowed pair of an edge.

    One row per node lets exactly one strategy count. One row per strategy of an edge makes its pairs sum to its variable.
    """
    from scipy.sparse import csr_array

    nodes = sorted(network.nodes)
    counts = [len(network.costs[node]) for node in nodes]
    starts = np.cumsum([0, *counts])
    first = dict(zip(nodes, starts.tolist(), strict=False))
    costs = [network.costs[node] for node in nodes]
    entry_parts = [(np.repeat(np.arange(len(nodes)), counts), np.arange(starts[-1]), np.ones(starts[-1]))]
    rows, columns = len(nodes), int(starts[-1])
    for node in nodes:
        for other, table in network.tables[node].items():
            if node < other:
                allowed = np.nonzero(table < FORBIDDEN)
                costs.append(table[allowed])
                for end, place in zip((node, other), allowed, strict=True):
                    entry_parts += _marginal(rows, columns, place, first[end], len(network.costs[end]))
                    rows += len(network.costs[end])
                columns += len(allowed[0])
    entries = tuple(np.concatenate([part[key] for part in entry_parts]) for key in range(3))
    cost = np.concatenate(costs).astype(float)
    right_side = np.zeros(rows)
    right_side[: len(nodes)] = 1
    scaled = cost * (LARGEST_COST / max(cost.max(initial=0), 1.0))
    equal = csr_array((entries[2], entries[:2]), shape=(rows, columns))
    return _Program(first, int(starts[-1]), scaled, equal, right_side)


def _marginal(row: int, column: int, place: Integers, first: int, count: int) -> list[tuple[Any, Any, Any]]:
    """Return the entries of rows which say that pairs with a strategy are taken as often as the strategy."""
    pairs = (row + place, column + np.arange(len(place)), np.ones(len(place)))
    single = (row + np.arange(count), first + np.arange(count), -np.ones(count))
    return [pairs, single]


def _memory(network: ReducibleNetwork, program: _Program, rows: Integers) -> Any:
    """Return the constraints that these rows use no more than is free; None without rows."""
    from scipy.optimize import LinearConstraint
    from scipy.sparse import csr_array

    if not len(rows):
        return None
    matrix = np.zeros((len(rows), program.integral))
    for node, first in program.first.items():
        for item in network.items[node]:
            low, high = np.searchsorted(rows, (item.start, item.end))
            matrix[low:high, first : first + len(item.usage)] += item.usage
    scale = 1000 / np.maximum(network.free[rows], 1)
    wide = csr_array(matrix * scale[:, None])
    wide.resize((len(rows), len(program.cost)))
    return LinearConstraint(wide, -np.inf, network.free[rows] * scale)


def _minimized(program: _Program, memory: Any, until: float) -> tuple[Any, bool]:
    """Return the solution, or None if there is none; and whether this is certain."""
    from scipy.optimize import Bounds, LinearConstraint, milp

    integrality = np.zeros(len(program.cost))
    integrality[: program.integral] = 1
    constraints = [LinearConstraint(program.equal, program.right, program.right)]
    result = milp(
        program.cost,
        integrality=integrality,
        bounds=Bounds(0, 1),
        constraints=constraints if memory is None else [*constraints, memory],
        options={"time_limit": max(until - monotonic(), 0.1), "mip_rel_gap": 0.0},
    )
    return result.x, result.status in (0, 2)


def _choices(network: ReducibleNetwork, program: _Program, found: Any) -> Integers:
    """Return the strategy of each node whose variable is the largest."""
    choices = np.zeros(len(network.costs), np.int64)
    for node, first in program.first.items():
        choices[node] = found[first : first + len(network.costs[node])].argmax()
    return choices


def _violated(network: ReducibleNetwork, choices: Integers) -> Integers:
    """Return the row with the largest excess in each stretch of violated rows: at most `MORE_ROWS`, the worst first."""
    used = [(i.start, i.end, i.usage[choices[node]]) for node in network.nodes for i in network.items[node]]
    starts, ends, usage = np.array(used, np.int64).reshape(-1, 3).T
    beyond = profile(starts, ends, usage, len(network.free)) - network.free
    edges = np.flatnonzero(np.diff(np.concatenate([[False], beyond > 0, [False]]).astype(np.int8)))
    worst = [low + beyond[low:high].argmax() for low, high in edges.reshape(-1, 2)]
    worst.sort(key=lambda row: -beyond[row])
    return np.array(worst[:MORE_ROWS], np.int64)
