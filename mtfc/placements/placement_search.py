"""The search for a placement: its space, and a proof for small graphs.

Find the best of all strategies of a small graph, with a proof (FlexFlow, section 8.4: A*).

The search goes through sets of strategies: for each operator, the configurations that it may still have. `strategy_bounds.py`
bounds the step for each of these configurations. Configurations whose bound is not below the best known strategy are dropped,
which raises the bounds of others, until nothing changes. Then the set is split by the configuration of one operator. The set
with the least bound is next, so this bound holds for all strategies whenever the time ends.

The space of placements of a program on a machine, and the search in it from FlexFlow's starting points.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Iterable, Mapping, Sequence
from heapq import heappop, heappush
from math import inf, prod
from random import Random

import attrs
import numpy as np

from mtfc.compiler.activity import report_progress
from mtfc.compiler.cost.hardware import Machine
from mtfc.compiler.ir.core import Program
from mtfc.placements.mcmc import ChainSettings, McmcSearch, PlacementResult, SearchBudget
from mtfc.placements.operators.cotangent_flow import cotangent_flow
from mtfc.placements.operators.operator_graph import OperatorGraph, operators_of
from mtfc.placements.operators.strategy import (
    KINDS,
    Configuration,
    OperatorConfigurations,
    Strategy,
    configurations,
    data_parallel_strategy,
    expert_strategy,
    main_devices,
    node_size,
    random_strategy,
)
from mtfc.placements.simulator.evaluation import EvaluatedStrategy, StrategyEvaluator
from mtfc.placements.simulator.full_simulator import ROUNDING
from mtfc.placements.strategy_bounds import (
    StrategyBounds,
    TablesTooLarge,
    TransferTimes,
    compile_loops,
    lower_bound,
    transfer_times,
)
from mtfc.placements.strategy_tasks import PartTimes, StrategyTasks
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
    """A search for a proof. least: a bound of all strategies but the best. sets, simulated: the numbers of visited ones."""

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
        """Simulate the strategy of some configurations, by number, and keep it if it is the best."""
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


@attrs.frozen(eq=False)
class PlacementSpace:
    """The configurations of each operator of a graph, and the evaluator of strategies.

    restricted: operators whose configurations are restricted. everything: the configurations before a restriction of the whole
    space to some kinds of parallelism; kinds: its text.
    """

    graph: OperatorGraph
    hardware: Machine
    devices: int
    choices: list[OperatorConfigurations]
    evaluator: StrategyEvaluator
    restricted: frozenset[int] = frozenset()
    everything: list[OperatorConfigurations] | None = None
    kinds: str | None = None

    def within(self, allowed: Collection[str], one: bool = False) -> PlacementSpace:
        """Restrict all operators to some kinds of parallelism, of `KINDS`, and to one split dimension each if `one` is set."""
        known: dict[int, OperatorConfigurations] = {}
        for each in self.choices:
            if id(each) not in known:
                known[id(each)] = each.within(allowed, one, self.graph, self.main[0])
        choices = [known[id(each)] for each in self.choices]
        kinds = ", ".join(each for each in KINDS if each in allowed) + ", one dimension" * one
        return attrs.evolve(self, choices=choices, everything=self.choices, kinds=kinds)

    def nearest(self, strategy: Strategy) -> Strategy:
        """Return the strategy with other configurations where the restricted space lacks its own.

        These are data parallelism, or else the first configuration of the operator.
        """
        if self.everything is None and not self.restricted:
            return strategy
        data_parallel = data_parallel_strategy(self.graph, self.choices, self.main)
        choices = {id(each): each for each in self.choices}
        legal = {key: dict.fromkeys(each) for key, each in choices.items()}
        return tuple(
            next(each for each in (own, fallback, *legal[id(choice)]) if each in legal[id(choice)])
            for own, fallback, choice in zip(strategy, data_parallel, self.choices, strict=True)
        )

    def restricted_to(self, asked: Mapping[int, Configuration]) -> PlacementSpace:
        """Restrict operators, by number, to some degrees, and to some devices if the configuration has any."""
        choices = [
            each.restricted_to(asked[i]) if i in asked else each for i, each in enumerate(self.choices)
        ]
        return attrs.evolve(self, choices=choices, restricted=frozenset(asked))

    @property
    def strategies(self) -> int:
        """The number of strategies."""
        return prod(each.count for each in self.choices)

    @property
    def lower_bound(self) -> float:
        """A lower bound of all strategies."""
        return lower_bound(self.evaluator.tasks, self.choices)

    @property
    def main(self) -> Sequence[int]:
        """The devices on which known strategies run."""
        return main_devices(self.hardware, self.devices)

    def data_parallel(self) -> EvaluatedStrategy:
        """Evaluate data parallelism."""
        return self.evaluator.full(
            data_parallel_strategy(self.graph, self.everything or self.choices, self.main)
        )

    def expert(self) -> EvaluatedStrategy:
        """Evaluate the strategy of an expert, as FlexFlow's paper compares with."""
        choices = self.everything or self.choices
        node = node_size(self.hardware, self.main)
        return self.evaluator.full(expert_strategy(self.graph, choices, node, self.main))


def placement_space(
    program: Program,
    hardware: Machine,
    devices: int,
    parts: int = 1,
    times: PartTimes | None = None,
    is_limited: bool = True,
    operators: OperatorGraph | None = None,
) -> PlacementSpace:
    """Return the space of a program on some devices: of its training step, or else of its forward pass.

    parts: the number of parts that an operator may have, if larger than the number of devices. Such a space is for
    evaluation, not for search. times: measured times of parts and transfers. is_limited: False if strategies may need more memory
    than there is. operators: the operators of the program, if they are known.
    """
    compile_loops()
    graph = operators or operators_of(program)
    found = cotangent_flow(graph)
    choices = configurations(found, hardware, max(devices, parts))
    tasks = StrategyTasks(found, hardware, devices, program.training, times, is_limited)
    return PlacementSpace(graph, hardware, devices, choices, StrategyEvaluator(tasks))


def placement_search(
    within: PlacementSpace,
    budget: SearchBudget,
    settings: ChainSettings = ChainSettings(),  # noqa: B008
    given: Mapping[str, Strategy] = {},
    starts: Collection[str] | None = None,
    evaluated: Mapping[str, EvaluatedStrategy] | None = None,
) -> PlacementResult:
    """Search from data parallelism, the expert's strategy and `given` strategies, the best first, then from a random one.

    The random start is used only if the time is more than four times that of evaluating the others. starts: names of the
    strategies to start from, `random` among them, instead. evaluated: strategies by name in the place of the first two. Raises
    `NothingFits` if no strategy fits into memory. `KeyboardInterrupt` ends the search with the best so far, and is raised if
    there is none.
    """
    begin, known = time.perf_counter(), dict(evaluated or {})
    try:
        if not known:
            known["data_parallel"] = within.data_parallel()
            known["expert"] = within.expert()
        for name, strategy in given.items():
            known[name] = within.evaluator.full(strategy)
        if within.choices:
            chosen = [each for name, each in known.items() if starts is None or name in starts]
            first = sorted(_inside(within, chosen), key=lambda each: each.seconds)
            has_time = budget.seconds > 4 * (time.perf_counter() - begin)
            if has_time if starts is None else "random" in starts:
                strategy = random_strategy(within.choices, Random(settings.seed))
                first.append(within.evaluator.full(strategy))
            search = McmcSearch(within.evaluator, within.choices, settings, within.restricted)
            search.begin = begin
            left = attrs.evolve(budget, seconds=budget.seconds - (time.perf_counter() - begin))
            found = search.run(first, left)
        else:  # a model that returns its inputs unchanged
            found = PlacementResult(known["data_parallel"], len(known), locally_optimal=True)
    except KeyboardInterrupt:
        best = min(known.values(), key=lambda each: each.seconds, default=None)
        if evaluated or best is None or best.seconds == inf:
            raise
        found = PlacementResult(best, len(known), locally_optimal=False, is_interrupted=True)
    return attrs.evolve(found, lower_bound=within.lower_bound, baselines=known)


def _inside(within: PlacementSpace, strategies: Iterable[EvaluatedStrategy]) -> list[EvaluatedStrategy]:
    """Return the strategies, changed where the space is restricted; the same ones once."""
    found = {within.nearest(each.strategy): each for each in strategies}
    return [
        each if strategy == each.strategy else within.evaluator.full(strategy)
        for strategy, each in found.items()
    ]


def proven(within: PlacementSpace, result: PlacementResult, seconds: float) -> PlacementResult:
    """Return the result of an exhaustive search of some seconds, which starts from `result`. `KeyboardInterrupt` ends it
    early.
    """
    deadline = time.perf_counter() + seconds
    found = best_strategy(within.evaluator, within.choices, result.best, deadline)
    return attrs.evolve(
        result,
        best=found.best,
        evaluated=result.evaluated + found.evaluated,
        locally_optimal=found.is_optimal or (result.locally_optimal and found.best is result.best),
        is_interrupted=found.is_interrupted,
        lower_bound=max(result.lower_bound, found.lower_bound),
    )
