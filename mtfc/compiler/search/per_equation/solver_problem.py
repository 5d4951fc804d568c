"""A network of choices as a problem for the solver, which counts in integers."""

from __future__ import annotations

from math import floor, log10

import numpy as np

from mtfc.compiler.search.per_equation.choice_network import Network
from mtfc.compiler.search.per_equation.conversions import Numbers
from mtfc.compiler.search.solver.assignment_problem import FORBIDDEN, AssignmentProblem, Integers, Ragged

FINEST = 1e12
"""Integers to a second, or a byte, at most: picoseconds."""

DIGITS = 13
"""The largest cost has no more, which leaves room for sums."""


def unit_of(network: Network) -> float:
    """How many integers stand for one of the network's costs: a power of ten."""
    costs = [*(node.costs for node in network.nodes), *(edge.costs for edge in network.edges)]
    largest = max((float(each.max(initial=0.0, where=np.isfinite(each))) for each in costs), default=0.0)
    return min(FINEST, 10.0 ** floor(DIGITS - log10(largest))) if largest else 1.0


def to_problem(network: Network, unit: float, memory: float | None, name: str) -> AssignmentProblem:
    """The network with `unit` integers to one of its costs, and at most `memory` bytes held at any time, if that is not None."""
    nodes = network.nodes
    return AssignmentProblem(
        costs=Ragged.of([_integers(node.costs, unit) for node in nodes]),
        usages=Ragged.of([node.held.astype(np.int64) for node in nodes]),
        intervals=np.array([(node.birth, node.death) for node in nodes], np.int64).reshape(-1, 2),
        edges=np.array([(edge.first, edge.second) for edge in network.edges], np.int64).reshape(-1, 2),
        edge_costs=Ragged.of([_integers(edge.costs, unit) for edge in network.edges]),
        limit=None if memory is None else int(memory),
        name=name,
    )


def _integers(costs: Numbers, unit: float) -> Integers:
    possible = np.isfinite(costs)
    return np.where(possible, np.rint(np.where(possible, costs, 0.0) * unit), FORBIDDEN).astype(np.int64)
