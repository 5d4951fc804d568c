"""Random small problems, and their least cost by enumeration."""

from itertools import product

import numpy as np
from hypothesis import strategies as st

from mtfc.compiler.search.solver.assignment_problem import FORBIDDEN, AssignmentProblem, Ragged

AMOUNTS = st.integers(0, 12)
COSTS = st.one_of(AMOUNTS, AMOUNTS, st.just(0), st.just(FORBIDDEN))


@st.composite
def problems(draw: st.DrawFn, most: int = 6) -> AssignmentProblem:
    """Draw up to `most` nodes, with single strategies, impossible pairs, parallel edges, empty intervals and little memory
    among them.
    """
    counts = draw(st.lists(st.integers(1, 3), min_size=1, max_size=most))
    size = len(counts)
    pairs = [(i, j) for i in range(size) for j in range(size) if i != j]
    edges = draw(st.lists(st.sampled_from(pairs), max_size=8)) if pairs else []
    tables = [draw(_row(COSTS, counts[i] * counts[j])) for i, j in edges]
    times = st.tuples(st.integers(0, 5), st.integers(0, 5))
    intervals = [sorted(draw(times)) for _ in counts]
    return AssignmentProblem(
        costs=Ragged.of([draw(_row(AMOUNTS, count)) for count in counts]),
        usages=Ragged.of([draw(_row(AMOUNTS, count)) for count in counts]),
        intervals=np.array(intervals, np.int64),
        edges=np.array(edges, np.int64).reshape(-1, 2),
        edge_costs=Ragged.of(tables),
        limit=draw(st.one_of(st.none(), st.integers(0, 30))),
    )


def _row(entries: st.SearchStrategy[int], size: int) -> st.SearchStrategy[list[int]]:
    return st.lists(entries, min_size=size, max_size=size)


def least_cost(problem: AssignmentProblem) -> int | None:
    """Return the least cost by enumeration; None if no choice fits."""
    choices = product(*(range(len(problem.costs[node])) for node in range(problem.nodes)))
    return min((problem.cost(choice) for choice in choices if problem.is_feasible(choice)), default=None)


def chain(length: int, strategies: int, seed: int = 0) -> AssignmentProblem:
    """Return a larger problem: a chain of nodes with a few edges between distant nodes, and too little memory for the cheapest
    choice.
    """
    random = np.random.default_rng(seed)
    near = [(i, i + 1) for i in range(length - 1)]
    far = [(i, int(random.integers(i + 2, min(i + 12, length)))) for i in range(0, length - 2, 2)]
    starts = np.arange(length)
    usages = random.integers(0, 100, (length, strategies))
    return AssignmentProblem(
        costs=Ragged.of(list(200 - usages + random.integers(0, 50, usages.shape))),
        usages=Ragged.of(list(usages)),
        intervals=np.stack([starts, starts + random.integers(1, 20, length)], axis=1),
        edges=np.array(near + far, np.int64),
        edge_costs=Ragged.of(list(random.integers(0, 100, (len(near + far), strategies**2)))),
        limit=400,
    )
