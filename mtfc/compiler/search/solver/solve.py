"""Solve a problem: reduce it, then raise the lower bound and lower the cost until they meet or the time is over.

Many problems are nearly trees or small after reduction. The former are solved by elimination at once, the latter by an integer
program in a process of its own. Otherwise see `solver_search.py`, which is imported only then, as it loads Numba.
"""

from time import monotonic

import attrs

from mtfc.compiler.activity import report_progress
from mtfc.compiler.search.solver.assignment_problem import FORBIDDEN, AssignmentProblem, Infeasible, Integers
from mtfc.compiler.search.solver.elimination import eliminated
from mtfc.compiler.search.solver.exact import ExactOutcome
from mtfc.compiler.search.solver.network_reductions import ReducibleNetwork, reduce
from mtfc.compiler.search.solver.worker import ExactWorker, solved

MARGIN, MARGIN_SHARE = 0.8, 0.1
"""Seconds reserved for the final assembly, but at most a tenth of the time; `SHARE` of the time is reserved as well."""

SHARE = 0.01

SMALL = 4_000
"""A network with at most this many pairs is solved faster than a process starts."""

DIRECT = 60_000
"""A network with at most this many pairs is given to the exact solver before anything else."""

ALONE = 0.3
"""The part of the time for which the exact solver then has the machine to itself;"""

LONG_ALONE, MOST_ALONE = 3.0, 0.6
"""or this many seconds, if they are at most that part of the time."""


@attrs.frozen
class Solution:
    """A strategy for each node, the cost, and a lower bound of every choice: equal to the cost if it is proven optimal.

    is_interrupted: True if `KeyboardInterrupt` ended the search.
    """

    cost: int
    lower_bound: int
    choices: tuple[int, ...]
    seconds: float
    is_interrupted: bool = False


def solve(problem: AssignmentProblem, deadline: float) -> Solution:
    """Return the best choice found before `deadline`, a time of `time.monotonic`.

    Raises `Infeasible` if it is proven that there is none, `NotFound` if none was found. `KeyboardInterrupt` ends the
    search with the best so far, and is raised if there is none.
    """
    started = monotonic()
    seconds = deadline - started
    until = deadline - min(MARGIN, MARGIN_SHARE * seconds) - SHARE * seconds
    report_progress("reducing")
    network = ReducibleNetwork(problem)
    reduce(network, started + (until - started) / 2)
    bound, chosen, is_interrupted = _solved(network, until)
    choices = network.restore(chosen)
    cost = problem.cost(choices)
    assert problem.is_feasible(choices), "a choice does not fit"
    seconds = monotonic() - started
    return Solution(cost, max(min(bound, cost), 0), tuple(choices.tolist()), seconds, is_interrupted)


def _solved(network: ReducibleNetwork, until: float) -> tuple[int, Integers, bool]:
    """Return a lower bound, choices for the network's nodes, and whether an interrupt ended the search."""
    report_progress("eliminating")
    if (outcome := eliminated(network)) is not None:
        return FORBIDDEN, _found(outcome), False
    pairs = _pairs(network)
    if pairs <= DIRECT:
        report_progress("solving exactly")
    if pairs <= SMALL:
        outcome = solved(network.copy(), ALONE * (until - monotonic()))
        if _is_proof(outcome):
            return FORBIDDEN, _found(outcome), False
    worker = ExactWorker(network.copy(), until - monotonic()) if pairs <= DIRECT else None
    try:
        if worker is not None:
            left = until - monotonic()
            worker.wait(monotonic() + max(ALONE * left, min(LONG_ALONE, MOST_ALONE * left)))
            if _is_proof(worker.outcome):
                return FORBIDDEN, _found(worker.outcome), False
        from mtfc.compiler.search.solver.solver_search import SolverSearch

        search = SolverSearch(network, until)
        bound, choices = search.run(worker)
        return bound, choices, search.is_interrupted
    finally:
        if worker is not None:
            worker.end()


def _is_proof(outcome: ExactOutcome | None) -> bool:
    return outcome is not None and outcome.is_optimal


def _found(outcome: ExactOutcome | None) -> Integers:
    """Return the choices of a proven outcome. Raises `Infeasible` if it has none."""
    if outcome is None or outcome.choices is None:
        raise Infeasible("every choice has an impossible part, or exceeds the memory")
    return outcome.choices


def _pairs(network: ReducibleNetwork) -> int:
    tables = (table for node in network.nodes for table in network.tables[node].values())
    return sum(int((table < FORBIDDEN).sum()) for table in tables) // 2
