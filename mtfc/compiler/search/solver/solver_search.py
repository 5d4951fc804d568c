"""The search on a reduced network, which raises the bound and lowers the cost until they meet.

One processor alternates between prices for memory (`lagrangian.py`), whose choices are good or nearly so, and local search
(`local_search.py`). A second processor solves cores exactly (`worker.py`). A core has only strategies and pairs with small
excess over the bound (see `BoundCertificate`). With the whole gap allowed, it contains every choice better than the best known,
so its solution is a proof (reduced cost fixing). With less allowed, it is smaller, solved sooner, and often as good (core
problems of Balas and Zemel, 1980). Cores grow as the gap shrinks. If even a small allowance leaves too much, regions are solved
in turn, with everything around them fixed.
"""

from collections import deque
from time import monotonic

import numpy as np

from mtfc.compiler.activity import report_progress
from mtfc.compiler.search.jit import warm_up
from mtfc.compiler.search.solver.assignment_problem import (
    FORBIDDEN,
    AssignmentProblem,
    Booleans,
    Infeasible,
    Integers,
    NotFound,
    Ragged,
)
from mtfc.compiler.search.solver.lagrangian import BoundCertificate, Lagrangian, certify
from mtfc.compiler.search.solver.local_search import Incumbent
from mtfc.compiler.search.solver.network_arrays import NetworkArrays, pack
from mtfc.compiler.search.solver.network_reductions import ReducibleNetwork
from mtfc.compiler.search.solver.worker import ExactWorker

PAIRS = 40_000
"""Pairs of the first core."""

GROWTH = 3
"""The factor by which cores grow after success in time, and shrink after failure."""

SLICE = 1.0
"""Seconds for prices and for local search, in turn."""

STEPS = 500
"""Steps of prices before the first core, unless steps become short or `PATIENCE` of the time is over before."""

SHORT = 0.002

PATIENCE = 0.25

REPAIRS = 80
"""Attempts to make a choice fit, each stronger than the one before."""

SHORTEST = 2.0
"""The fewest seconds in which a core is worth starting."""

RESERVE = 1.5
"""The factor by which the last bound may take longer than before."""

BOUND_PER_PAIR = 3e-7
"""Seconds expected for the first bound, per entry of a table. With less time left, the bound is only 0."""

STRONGER = 1.15

WEAKEST = 0.003


class SolverSearch:
    """The state of the search on one network, and the task of the second processor."""

    def __init__(self, network: ReducibleNetwork, until: float) -> None:
        """Start without a choice that fits.

        end: when the caller wants the result. until: when the search stops, so that the last bound is in time. certifying:
        the expected seconds of a bound. worker: the process that solves a core exactly. is_whole: True if the core is the
        whole network. pairs: the size of the next core.
        """
        self.network, self.end, self.until = network, until, until
        self.arrays = pack(network)
        self.certifying = BOUND_PER_PAIR * len(self.arrays.pair_cost)
        self.until -= RESERVE * self.certifying
        self.incumbent = Incumbent(self.arrays)
        self.lagrangian = Lagrangian(self.arrays, network.constant)
        self.bound = -FORBIDDEN
        self.worker: ExactWorker | None = None
        self.is_whole = self.is_interrupted = False
        self.pairs = PAIRS
        self.random = np.random.default_rng(0)
        self.first_core = monotonic() + PATIENCE * (until - monotonic())

    def run(self, worker: ExactWorker | None) -> tuple[int, Integers]:
        """Return the bound, and choices by the network's numbers. `worker` is solving the whole network. Raises like
        `solve`.
        """
        self.worker, self.is_whole = worker, worker is not None
        try:
            self._alternate()
        except KeyboardInterrupt:
            if self.incumbent.choices is None:
                raise
            self.is_interrupted = True
        finally:
            if self.worker is not None:
                self.worker.end()
        return self._result()

    def _alternate(self) -> None:
        """Improve prices and choices in turn, with a worker on the second processor, until the optimum is proven or the time
        is over.
        """
        self.incumbent.offer_least_memory()
        self._climb()
        if monotonic() + self.certifying < self.until:
            self._certify()
        while monotonic() < self.until and not self._is_proven():
            self._descend()
            self._use_worker()
            self._climb()

    @property
    def cost(self) -> int:
        """The cost of the best choice; if none is known, more than any would cost."""
        return self.network.constant + self.incumbent.cost

    def _is_proven(self) -> bool:
        return self.bound >= self.cost

    def _is_answered(self) -> bool:
        """Return whether the worker has solved the whole network, so that nothing else is left to do."""
        return self.is_whole and self.worker is not None and not self.worker.is_running

    def _result(self) -> tuple[int, Integers]:
        """Return a bound and the best choices. Raises `NotFound` if no choice fits."""
        if self.incumbent.choices is None:
            raise NotFound("no choice was found that is possible and fits the memory")
        choices = np.zeros(len(self.network.costs), np.int64)
        choices[self.arrays.nodes] = self.incumbent.choices
        if not self._is_proven() and monotonic() + self.certifying < self.end:
            self._certify()
        return self.bound, choices

    def _report(self, doing: str) -> None:
        known = self.incumbent.choices is not None
        report_progress(doing, self.cost if known else None, self.bound if self.bound > -FORBIDDEN else None)

    def _certify(self) -> BoundCertificate:
        """Update the bound, and reserve time for the last bound."""
        started = monotonic()
        certificate = certify(self.lagrangian)
        self.bound = max(self.bound, certificate.bound)
        self.certifying = max(self.certifying, monotonic() - started)
        self.until = min(self.until, self.end - RESERVE * self.certifying)
        return certificate

    def _climb(self) -> None:
        """Improve prices for a while, and offer the choices found on the way."""
        self._report("bounding")
        end = min(monotonic() + SLICE, self.until)
        while monotonic() < end and not self._is_answered():
            used = self.lagrangian.advance(self._target())
            self.incumbent.offer(self.lagrangian.choices, used)

    def _target(self) -> float:
        """Return the cost that the bound should reach; without choices, a little more than the bound."""
        if self.incumbent.choices is not None:
            return float(self.cost)
        return self.lagrangian.bound + 0.05 * abs(self.lagrangian.bound) + 1.0

    def _descend(self) -> None:
        """Search locally for a while, from the newest choices if they can be made to fit, then from the best ones."""
        self._report("local search")
        end = min(monotonic() + (SLICE if self._is_ready() else SLICE / 3), self.until)
        prices = self.lagrangian.prices
        self._start_afresh(end if self.incumbent.choices is not None else min(end + 5 * SLICE, self.until))
        while monotonic() < end and self.incumbent.choices is not None and not self._is_answered():
            self.incumbent.polish(prices)

    def _start_afresh(self, end: float) -> None:
        """Repair the newest choices of the Lagrangian with growing strength until they fit."""
        choices = self.lagrangian.choices.copy()
        strength = WEAKEST
        for _ in range(REPAIRS):
            if monotonic() > end or self.incumbent.repair(choices, self.lagrangian.prices, strength):
                return
            strength *= STRONGER

    def _use_worker(self) -> None:
        """Take the result of the worker, and start a new one."""
        if self.worker is not None and not self.worker.is_running:
            self._take(self.worker)
        can_start = self.worker is None and self.incumbent.choices is not None and self._is_ready()
        if can_start and not self._is_proven() and monotonic() + SHORTEST + 4 * self.certifying < self.until:
            self._start()

    def _is_ready(self) -> bool:
        """Return whether prices are good enough for cores."""
        lagrangian = self.lagrangian
        return lagrangian.steps >= STEPS or lagrangian.step < SHORT or monotonic() > self.first_core

    def _take(self, worker: ExactWorker) -> None:
        """Take the outcome of the worker: offer its choices, take its proof for the whole network, and set the size of the next
        core.
        """
        outcome, self.worker = worker.outcome, None
        if outcome is None:
            self.pairs = max(self.pairs // GROWTH, PAIRS // 10)
            return
        if outcome.choices is not None:
            self.incumbent.offer(outcome.choices[self.arrays.nodes])
        if outcome.is_optimal and self.is_whole:
            if self.incumbent.choices is None:
                raise Infeasible("every choice has an impossible part, or exceeds the memory")
            self.bound = self.cost
        self.pairs = self.pairs * GROWTH if outcome.is_optimal else max(self.pairs // GROWTH, PAIRS // 10)

    def _start(self) -> None:
        """Start a worker on a core."""
        assert self.incumbent.choices is not None
        certificate = self._certify()
        gap = self.cost - certificate.bound - 1
        most = allowance(self.arrays, certificate, gap, self.pairs)
        inside = None
        if most < gap / 1000:
            inside = region(self.arrays, int(self.random.integers(self.arrays.size)), self.pairs)
            most = gap
        self.network.prices = self.lagrangian.prices
        small = core(self.network, self.arrays, certificate, self.incumbent.choices, most, inside)
        self.is_whole = most >= gap and inside is None
        self.worker = ExactWorker(
            small, max((self.until - monotonic()) / 3, min(10.0, self.until - monotonic()))
        )
        self._report(
            f"core of {self.pairs} pairs, allowance {most / max(gap, 1):.3f}"
            + " region" * (inside is not None)
        )


def allowance(arrays: NetworkArrays, certificate: BoundCertificate, gap: int, pairs: int) -> int:
    """Return the largest excess, up to `gap`, with which at most this many pairs are in the core."""
    lower = np.repeat(np.arange(arrays.size), np.diff(arrays.arcs)) < arrays.head
    sizes = np.diff(np.append(arrays.table, len(arrays.pair_cost)))
    excess = certificate.pair_excess[np.repeat(lower, sizes)]
    excess = excess[excess <= gap]
    if len(excess) <= pairs:
        return gap
    return int(np.partition(excess, pairs)[pairs]) - 1


def region(arrays: NetworkArrays, root: int, pairs: int) -> Booleans:
    """Return nodes around `root` (breadth first) whose edges have about this many pairs. [nodes]"""
    inside = np.zeros(arrays.size, bool)
    queue, size = deque([root]), 0
    inside[root] = True
    sizes = np.diff(np.append(arrays.table, len(arrays.pair_cost)))
    while queue and size < pairs:
        node = queue.popleft()
        for arc in range(arrays.arcs[node], arrays.arcs[node + 1]):
            other = int(arrays.head[arc])
            if not inside[other] and size < pairs:
                size += int(sizes[arc])
                inside[other] = True
                queue.append(other)
    return inside


def core(
    network: ReducibleNetwork,
    arrays: NetworkArrays,
    certificate: BoundCertificate,
    choices: Integers,
    most: int,
    inside: Booleans | None = None,
) -> ReducibleNetwork:
    """Return a copy of a network with strategies and pairs of at most `most` excess, `inside` a region, and those of
    `choices`. Other pairs are forbidden.
    """
    small = network.copy()
    nodes, first = arrays.nodes.tolist(), arrays.first
    allowed = certificate.excess <= most
    if inside is not None:
        allowed &= np.repeat(inside, np.diff(first))
    allowed[first[:-1] + choices] = True
    for index, node in enumerate(nodes):
        kept = allowed[first[index] : first[index + 1]]
        if not kept.all():
            small.keep(node, np.flatnonzero(kept))
    owner = np.repeat(np.arange(arrays.size), np.diff(arrays.arcs))
    for arc in np.flatnonzero(owner < arrays.head).tolist():
        pair = int(owner[arc]), int(arrays.head[arc])
        ends = [slice(first[i], first[i + 1]) for i in pair]
        shape = [end.stop - end.start for end in ends]
        entries = slice(arrays.table[arc], arrays.table[arc] + shape[0] * shape[1])
        dropped = (certificate.pair_excess[entries] > most).reshape(shape)
        dropped[choices[pair[0]], choices[pair[1]]] = False
        costs = np.where(dropped, FORBIDDEN, arrays.pair_cost[entries].reshape(shape))
        table = costs[np.ix_(*(allowed[end] for end in ends))]
        node, other = (nodes[i] for i in pair)
        small.tables[node][other], small.tables[other][node] = table, table.T
    return small


NODES = 3


def compile_loops() -> None:
    """Compile all loops of the solver."""
    warm_up(_solve_triangle)


def _solve_triangle() -> None:
    """Run all loops on a triangle of nodes whose memory limit binds."""
    ones = np.ones(NODES, np.int64)
    edges = np.array([(0, 1), (0, 2), (1, 2)], np.int64)
    problem = AssignmentProblem(
        costs=Ragged.of([np.array([1, 2])] * NODES),
        usages=Ragged.of([np.array([2, 1])] * NODES),
        intervals=np.stack([0 * ones, ones], axis=1),
        edges=edges,
        edge_costs=Ragged.of([np.array([0, 1, 1, 0])] * len(edges)),
        limit=NODES + 1,
        name="triangle",
    )
    network = ReducibleNetwork(problem)
    arrays = pack(network)
    lagrangian, incumbent = Lagrangian(arrays, network.constant), Incumbent(arrays)
    incumbent.offer_least_memory()
    lagrangian.advance(float(problem.limit or 0))
    certify(lagrangian)
    incumbent.repair(lagrangian.choices.copy(), lagrangian.prices, 1.0)
    incumbent.polish(lagrangian.prices)
