"""Find the best of all strategies of a small graph, with a proof (FlexFlow, section 8.4: A*).

The search goes through sets of strategies: for each operator, the configurations that it may still have. `strategy_bounds.py`
bounds the step for each of these configurations. Configurations whose bound is not below the best known strategy are dropped,
which raises the bounds of others, until nothing changes. Then the set is split by the configuration of one operator. The set
with the least bound is next, so this bound holds for all strategies whenever the time ends.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from heapq import heappop, heappush
from math import inf

import attrs
import numpy as np

from mtfc.compiler.activity import report_progress
from mtfc.placements.mcmc import PlacementResult
from mtfc.placements.operators.strategy import Configuration, OperatorConfigurations
from mtfc.placements.simulator.evaluation import EvaluatedStrategy, StrategyEvaluator
from mtfc.placements.simulator.full_simulator import ROUNDING
from mtfc.placements.strategy_bounds import StrategyBounds, TablesTooLarge, TransferTimes, transfer_times
from mtfc.placements.task_graph_builder import Array


def best_strategy(
    evaluator: StrategyEvaluator,
    choices: Sequence[OperatorConfigurations],
    known: EvaluatedStrategy,
    deadline: float = inf,
) -> PlacementResult:
    """Find the best of all strategies; `known` is a strategy to begin with.

    `deadline` is a time of `time.perf_counter`. `KeyboardInterrupt` ends the search as the deadline does.
    """
    lists = [list(each) for each in choices]
    search, is_interrupted = _Search(evaluator, lists, known), False
    try:
        search.run(transfer_times(evaluator.tasks, lists, deadline), deadline)
    except TablesTooLarge:
        pass
    except KeyboardInterrupt:
        is_interrupted = True
    least = min(search.least, search.best.seconds)
    return PlacementResult(
        search.best, search.simulated, least >= search.best.seconds, is_interrupted, lower_bound=least
    )


@attrs.define(eq=False)
class _Search:
    """least: a lower bound of all strategies but the best. sets, simulated: numbers of sets and strategies that were visited."""

    evaluator: StrategyEvaluator
    choices: Sequence[Sequence[Configuration]]
    best: EvaluatedStrategy
    least: float = 0.0
    sets: int = 0
    simulated: int = 0

    def run(self, times: TransferTimes, deadline: float) -> None:
        """Search until the best is proven or the time is over."""
        bounds, pushed = StrategyBounds(times), 0
        open: list[tuple[float, int, Array]] = [(0.0, 0, times.parts > 0)]
        while open and open[0][0] < self._limit:
            self.least = open[0][0]
            if time.perf_counter() > deadline:
                return
            report_progress(f"{self.sets} sets, {self.simulated} strategies", self.best.seconds, self.least)
            for bound, allowed in self._look(bounds, heappop(open)[2]):
                pushed += 1
                heappush(open, (bound, -pushed, allowed))
        self.least = inf

    @property
    def _limit(self) -> float:
        """Bounds from here on are not below the best, but for rounding."""
        return self.best.seconds * (1 - ROUNDING)

    def _look(self, bounds: StrategyBounds, allowed: Array) -> list[tuple[float, Array]]:
        """Split a set into smaller ones, with their bounds, that contain every strategy of the set that beats the best."""
        self.sets += 1
        count_before = -1
        while (count := int(allowed.sum())) != count_before:
            count_before, lower_bounds = count, bounds.of(allowed)
            allowed = allowed & (lower_bounds < self._limit)
            if not allowed.any(axis=1).all():
                return []
        counts = allowed.sum(axis=1)
        if (counts == 1).all():
            self._simulate(np.argmax(allowed, axis=1).tolist())
            return []
        operator = int(np.argmin(np.where(counts > 1, counts, np.inf)))
        return [
            (float(lower_bounds[operator, each]), _only(allowed, operator, each))
            for each in np.flatnonzero(allowed[operator]).tolist()
        ]

    def _simulate(self, chosen: Sequence[int]) -> None:
        self.simulated += 1
        strategy = tuple(options[i] for options, i in zip(self.choices, chosen, strict=True))
        found = self.evaluator.full(strategy, self.best.seconds)
        if found.seconds < self.best.seconds:
            self.best = found


def _only(allowed: Array, operator: int, configuration: int) -> Array:
    """Return the allowed configurations with one configuration of an operator."""
    found = allowed.copy()
    found[operator] = False
    found[operator, configuration] = True
    return found
