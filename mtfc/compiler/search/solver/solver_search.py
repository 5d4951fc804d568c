"""The search on a reduced network, from both sides until they meet.

One processor alternates between prices for memory (`lagrangian.py`), whose choices are good or nearly so, and local search
(`incumbent.py`). Another one solves cores exactly (`network_core.py`, `worker.py`): a small one first, then larger ones, with what
was found meanwhile, until the core has all that can be better and its solution is a proof. Where even a small allowance
leaves too much, it solves regions in turn, with everything around them as it is.
"""

from __future__ import annotations

from collections.abc import Callable
from time import monotonic

import numpy as np

from mtfc.compiler.search.solver.assignment_problem import FORBIDDEN, Integers
from mtfc.compiler.search.solver.incumbent import Incumbent
from mtfc.compiler.search.solver.lagrangian import Certificate, Lagrangian, certify
from mtfc.compiler.search.solver.network_arrays import pack
from mtfc.compiler.search.solver.network_core import allowance, core, region
from mtfc.compiler.search.solver.reducible_network import Infeasible, Network
from mtfc.compiler.search.solver.worker import Worker

PAIRS = 40_000
"""Pairs of the first core."""

GROWTH = 3
"""How much larger the next one is after one that was solved in time; after another, as much smaller."""

SLICE = 1.0
"""Seconds for prices, and as many for local search, in turn."""

STEPS = 500
"""Steps of prices before the first core, unless steps are short before, or `PATIENCE` of the time is over."""

SHORT = 0.002

PATIENCE = 0.25

REPAIRS = 80
"""Attempts to make a choice fit, each stronger than the one before."""

SHORTEST = 2.0
"""Seconds for which it is worth to start a core."""

RESERVE = 1.5
"""How much longer than before the last bound may take."""

BOUND_PER_PAIR = 3e-7
"""Seconds that the first bound may take, per entry of a table; where there are not so many left, the bound is only 0."""

STRONGER = 1.15

WEAKEST = 0.003


class Search:
    """What is known of a network while it is searched, and what the other processor does."""

    def __init__(
        self, network: Network, until: float, progress: Callable[[str, int | None, int | None], None]
    ) -> None:
        self.network, self.end, self.until, self.progress = network, until, until, progress
        self.arrays = pack(network)
        self.certifying = BOUND_PER_PAIR * len(self.arrays.pair_cost)
        self.until -= RESERVE * self.certifying
        self.incumbent = Incumbent(self.arrays)
        self.lagrangian = Lagrangian(self.arrays, network.constant)
        self.bound = -FORBIDDEN
        self.worker: Worker | None = None
        self.is_whole = self.is_interrupted = False
        self.pairs = PAIRS
        self.random = np.random.default_rng(0)
        self.first_core = monotonic() + PATIENCE * (until - monotonic())

    def run(self, worker: Worker | None) -> tuple[int, Integers]:
        """The bound, and choices by the network's numbers; `worker` is at work on the whole network. Raises like `solve`."""
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
        self.incumbent.offer_least_memory()
        self._climb()
        if monotonic() + self.certifying < self.until:
            self._certify()
        while monotonic() < self.until and not self._is_proven():
            self._descend()
            self._tend()
            self._climb()

    @property
    def cost(self) -> int:
        """Of the best choice; if none is known, more than any would cost."""
        return self.network.constant + self.incumbent.cost

    def _is_proven(self) -> bool:
        return self.bound >= self.cost

    def _is_answered(self) -> bool:
        """Whether the other processor has solved the whole network, so that nothing else is left to do."""
        return self.is_whole and self.worker is not None and not self.worker.is_running

    def _result(self) -> tuple[int, Integers]:
        if self.incumbent.choices is None:
            from mtfc.compiler.search.solver.solve import NotFound

            raise NotFound("no choice was found that is possible and fits the memory")
        choices = np.zeros(len(self.network.costs), np.int64)
        choices[self.arrays.nodes] = self.incumbent.choices
        if not self._is_proven() and monotonic() + self.certifying < self.end:
            self._certify()
        return self.bound, choices

    def _report(self, doing: str) -> None:
        known = self.incumbent.choices is not None
        self.progress(doing, self.cost if known else None, self.bound if self.bound > -FORBIDDEN else None)

    def _certify(self) -> Certificate:
        """The bound as it is; and, as that is also the last thing to do, leave time for it."""
        started = monotonic()
        certificate = certify(self.lagrangian)
        self.bound = max(self.bound, certificate.bound)
        self.certifying = max(self.certifying, monotonic() - started)
        self.until = min(self.until, self.end - RESERVE * self.certifying)
        return certificate

    def _climb(self) -> None:
        """Improve prices for a while, and see whether choices found on the way fit."""
        self._report("bounding")
        end = min(monotonic() + SLICE, self.until)
        while monotonic() < end and not self._is_answered():
            used = self.lagrangian.advance(self._target())
            self.incumbent.offer(self.lagrangian.choices, used)

    def _target(self) -> float:
        if self.incumbent.choices is not None:
            return float(self.cost)
        return self.lagrangian.bound + 0.05 * abs(self.lagrangian.bound) + 1.0

    def _descend(self) -> None:
        """Local search for a while, from the newest choices if they can be made to fit, then from the best ones."""
        self._report("local search")
        end = min(monotonic() + (SLICE if self._is_ready() else SLICE / 3), self.until)
        prices = self.lagrangian.prices
        self._start_afresh(end if self.incumbent.choices is not None else min(end + 5 * SLICE, self.until))
        while monotonic() < end and self.incumbent.choices is not None and not self._is_answered():
            self.incumbent.polish(prices)

    def _start_afresh(self, end: float) -> None:
        choices = self.lagrangian.choices.copy()
        strength = WEAKEST
        for _ in range(REPAIRS):
            if monotonic() > end or self.incumbent.repair(choices, self.lagrangian.prices, strength):
                return
            strength *= STRONGER

    def _tend(self) -> None:
        """See to the other processor: take what it found, and give it something to do."""
        if self.worker is not None and not self.worker.is_running:
            self._take(self.worker)
        can_start = self.worker is None and self.incumbent.choices is not None and self._is_ready()
        if can_start and not self._is_proven() and monotonic() + SHORTEST + 4 * self.certifying < self.until:
            self._start()

    def _is_ready(self) -> bool:
        """Whether prices are good enough for cores."""
        lagrangian = self.lagrangian
        return lagrangian.steps >= STEPS or lagrangian.step < SHORT or monotonic() > self.first_core

    def _take(self, worker: Worker) -> None:
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
        """Give the other processor a core."""
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
        self.worker = Worker(small, max((self.until - monotonic()) / 3, min(10.0, self.until - monotonic())))
        self._report(
            f"core of {self.pairs} pairs, allowance {most / max(gap, 1):.3f}"
            + " region" * (inside is not None)
        )
