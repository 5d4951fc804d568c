"""Has the loops of the solver compiled before a search begins: once after an installation that takes longer than a budget."""

from __future__ import annotations

import numpy as np

from mtfc.compiler.search.solver.assignment_problem import Problem, Ragged
from mtfc.compiler.search.solver.incumbent import Incumbent
from mtfc.compiler.search.solver.lagrangian import Lagrangian, certify
from mtfc.compiler.search.solver.network_arrays import pack
from mtfc.compiler.search.solver.reducible_network import Network

NODES = 3


def compile_loops() -> None:
    """Run all of them on a triangle of choices, with a memory that binds."""
    ones = np.ones(NODES, np.int64)
    edges = np.array([(0, 1), (0, 2), (1, 2)], np.int64)
    problem = Problem(
        costs=Ragged.of([np.array([1, 2])] * NODES),
        usages=Ragged.of([np.array([2, 1])] * NODES),
        intervals=np.stack([0 * ones, ones], axis=1),
        edges=edges,
        edge_costs=Ragged.of([np.array([0, 1, 1, 0])] * len(edges)),
        limit=NODES + 1,
        name="triangle",
    )
    network = Network(problem)
    arrays = pack(network)
    lagrangian, incumbent = Lagrangian(arrays, network.constant), Incumbent(arrays)
    incumbent.offer_least_memory()
    lagrangian.advance(float(problem.limit or 0))
    certify(lagrangian)
    incumbent.repair(lagrangian.choices.copy(), lagrangian.prices, 1.0)
    incumbent.polish(lagrangian.prices)
