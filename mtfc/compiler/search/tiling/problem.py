"""A network of choices as a problem for the solver."""

from __future__ import annotations

import numpy as np

from mtfc.compiler.search.solver.problem import FORBIDDEN, Integers, Problem, Ragged
from mtfc.compiler.search.tiling.conversions import Numbers
from mtfc.compiler.search.tiling.network import Network

PICOSECONDS = 1e9


def to_problem(network: Network, unit: float, limit: float | None, name: str) -> Problem:
    """Costs are integers, `unit` to one of the network's; memory is at most `limit` bytes."""
    nodes = network.nodes
    return Problem(
        costs=Ragged.of([_integers(node.costs, unit) for node in nodes]),
        usages=Ragged.of([node.held.astype(np.int64) for node in nodes]),
        intervals=np.array([(node.birth, node.death) for node in nodes], np.int64).reshape(-1, 2),
        edges=np.array([(edge.first, edge.second) for edge in network.edges], np.int64).reshape(-1, 2),
        edge_costs=Ragged.of([_integers(edge.costs, unit) for edge in network.edges]),
        limit=None if limit is None else int(limit),
        name=name,
    )


def _integers(costs: Numbers, unit: float) -> Integers:
    whole = np.where(np.isinf(costs), 0.0, costs) * unit
    return np.where(np.isinf(costs), FORBIDDEN, np.rint(whole)).astype(np.int64)
