"""How a problem is solved: reduce it, then raise the lower bound and lower the cost until they meet or time is up.

What reduction leaves of many problems is small: that is solved exactly at once, in a process of its own. Otherwise
`search.py` has the plan.
"""

from __future__ import annotations

from collections.abc import Callable
from time import monotonic

import attrs
import numpy as np

from mtfc.compiler.search.solver.exact import Outcome
from mtfc.compiler.search.solver.network import Infeasible, Network
from mtfc.compiler.search.solver.problem import FORBIDDEN, Integers, Problem
from mtfc.compiler.search.solver.reductions import reduce
from mtfc.compiler.search.solver.worker import Worker

MARGIN = 0.8
"""Seconds that are left for putting things together, and so is `SHARE` of the time."""

SHARE = 0.01

DIRECT = 60_000
"""A network with at most so many pairs is given to the exact solver before anything else is tried."""

ALONE = 0.3
"""For which part of the time nothing else is."""


@attrs.frozen
class Solution:
    """A strategy for each node, what they cost, and a bound that no choice is below: equal where that is proven optimal.

    is_interrupted: whether `KeyboardInterrupt` ended the search.
    """

    cost: int
    lower_bound: int
    choices: tuple[int, ...]
    seconds: float
    is_interrupted: bool = False


class NotFound(Exception):
    """No choice that fits was found in time; there may be one."""


Progress = Callable[[str, int | None, int | None], None]
"""Is told what is being done, the best cost and the best bound, where known."""


def silent(doing: str, cost: int | None, bound: int | None) -> None:
    """Reports nothing."""


def solve(problem: Problem, deadline: float, progress: Progress = silent) -> Solution:
    """The best choice that is found before `deadline`, a time of `time.monotonic`.

    Raises `Infeasible` where it is proven that there is none, `NotFound` where none was found. `KeyboardInterrupt` ends it with
    the best so far, and is raised where there is none.
    """
    started = monotonic()
    until = deadline - MARGIN - SHARE * (deadline - started)
    progress("reducing", None, None)
    network = Network(problem)
    reduce(network, started + (until - started) / 2)
    bound, chosen, is_interrupted = _solved(network, until, progress)
    choices = network.restore(chosen)
    cost = problem.cost(choices)
    assert problem.is_feasible(choices), "a choice does not fit"
    seconds = monotonic() - started
    return Solution(cost, max(min(bound, cost), 0), tuple(choices.tolist()), seconds, is_interrupted)


def _solved(network: Network, until: float, progress: Progress) -> tuple[int, Integers, bool]:
    """A lower bound, choices for the network's nodes, and whether an interrupt ended the search."""
    if not network.nodes:
        return network.constant, np.zeros(len(network.costs), np.int64), False
    worker = Worker(network.copy(), until - monotonic()) if _pairs(network) <= DIRECT else None
    try:
        if worker is not None:
            progress("solving exactly", None, None)
            worker.wait(monotonic() + ALONE * (until - monotonic()))
            if _is_proof(worker.outcome):
                return FORBIDDEN, _found(worker.outcome), False
        from mtfc.compiler.search.solver.search import Search

        search = Search(network, until, progress)
        bound, choices = search.run(worker)
        return bound, choices, search.is_interrupted
    finally:
        if worker is not None:
            worker.end()


def _is_proof(outcome: Outcome | None) -> bool:
    return outcome is not None and outcome.is_optimal


def _found(outcome: Outcome | None) -> Integers:
    if outcome is None or outcome.choices is None:
        raise Infeasible("every choice has an impossible part, or exceeds the memory")
    return outcome.choices


def _pairs(network: Network) -> int:
    tables = (table for node in network.nodes for table in network.tables[node].values())
    return sum(int((table < FORBIDDEN).sum()) for table in tables) // 2
