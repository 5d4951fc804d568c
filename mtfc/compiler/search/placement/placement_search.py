"""The `soap` space of a program on a machine, and the search in it from all that FlexFlow starts from."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from functools import cached_property
from math import inf, prod
from random import Random

import attrs

from mtfc.compiler.cost.hardware import Hardware
from mtfc.compiler.ir.core import Program
from mtfc.compiler.ir.training import updated
from mtfc.compiler.search.found import Progress, silent
from mtfc.compiler.search.placement.exhaustive import best_strategy
from mtfc.compiler.search.placement.mcmc import McmcResult, McmcSearch, SearchBudget
from mtfc.compiler.search.placement.operators.cotangent_flow import cotangent_flow
from mtfc.compiler.search.placement.operators.operator_graph import OperatorGraph, operator_graph
from mtfc.compiler.search.placement.operators.strategy import (
    Configuration,
    OperatorConfigurations,
    Strategy,
    configurations,
    data_parallel_strategy,
    expert_strategy,
    random_strategy,
)
from mtfc.compiler.search.placement.operators.unroll import unroll
from mtfc.compiler.search.placement.simulator.evaluation import EvaluatedStrategy, StrategyEvaluator
from mtfc.compiler.search.placement.strategy_bounds import lower_bound
from mtfc.compiler.search.placement.task_graph import StrategyTasks


@attrs.frozen(eq=False)
class PlacementSpace:
    """What there is to choose: the configurations of each operator of a graph, and how strategies are evaluated. held: operators
    that have fewer than they could.
    """

    graph: OperatorGraph
    hardware: Hardware
    devices: int
    choices: list[OperatorConfigurations]
    evaluator: StrategyEvaluator
    held: frozenset[int] = frozenset()

    def holding(self, asked: Mapping[int, Configuration]) -> PlacementSpace:
        """The part of it with some configurations, by number of the operator; on any devices where one has none."""
        choices = [each.holding(asked[i]) if i in asked else each for i, each in enumerate(self.choices)]
        return attrs.evolve(self, choices=choices, held=frozenset(asked))

    @property
    def strategies(self) -> int:
        """How many there are."""
        return prod(each.count for each in self.choices)

    def data_parallel(self) -> EvaluatedStrategy:
        return self.evaluator.full(data_parallel_strategy(self.graph, self.choices, self.devices))

    def expert(self) -> EvaluatedStrategy:
        return self.evaluator.full(expert_strategy(self.graph, self.choices, self.hardware, self.devices))


@attrs.frozen(eq=False)
class PlacementResult:
    """The best strategy, and those that it is compared with by name; see `mcmc.Found`. proven: what an exhaustive search says
    that no strategy is below.
    """

    space: PlacementSpace
    best: EvaluatedStrategy
    baselines: Mapping[str, EvaluatedStrategy]
    evaluated: int
    locally_optimal: bool
    is_interrupted: bool = False
    proven: float = 0.0

    @cached_property
    def lower_bound(self) -> float:
        """No strategy is below."""
        return max(self.proven, lower_bound(self.space.evaluator.tasks, self.space.choices))

    @property
    def is_optimal(self) -> bool:
        return self.lower_bound >= self.best.seconds


def operators_of(program: Program) -> OperatorGraph:
    """The operator graph of a model's forward pass, which precision and local rewrites have been applied to."""
    minimize = program.training.minimize if program.training is not None else None
    return operator_graph(unroll(program.function("forward")), minimize)


def _without_frozen(graph: OperatorGraph, program: Program) -> OperatorGraph:
    """Return the graph of a training step, which computes no gradients of frozen parameters."""
    if program.training is None or not program.training.updates:
        return graph
    own = ((value.name, graph.slices.get(value.name, (value.name,))[0]) for value in graph.parameters)
    trained = updated(program.training)
    return attrs.evolve(graph, frozen=frozenset(name for name, full in own if full not in trained))


def placement_space(program: Program, hardware: Hardware, devices: int, parts: int = 1) -> PlacementSpace:
    """The space of a program on some devices of a machine: its training step, or where there is none its forward pass. parts:
    how many a strategy may have of an operator, if more than there are devices; its search has no meaning then.
    """
    graph = _without_frozen(operators_of(program), program)
    found = cotangent_flow(graph)
    choices = configurations(found, hardware, max(devices, parts))
    tasks = StrategyTasks(found, hardware, devices, program.training, choices)
    return PlacementSpace(graph, hardware, devices, choices, StrategyEvaluator(tasks))


def placement_search(
    within: PlacementSpace,
    budget: SearchBudget,
    seed: int = 0,
    progress: Progress = silent,
    given: Mapping[str, Strategy] = {},
) -> PlacementResult:
    """The best strategy that chains from data parallelism, the expert's and those `given` by name, the best one first, and from a
    random strategy find; from this where there is more than thrice the time that the others took to be evaluated.

    Raises `NothingFits` where memory suffices for none. `KeyboardInterrupt` ends it with the best so far, and is raised
    where there is none.
    """
    known: dict[str, EvaluatedStrategy] = {}
    try:
        found = _chains(within, budget, seed, progress, given, known)
    except KeyboardInterrupt:
        best = min(known.values(), key=lambda each: each.seconds, default=None)
        if best is None or best.seconds == inf:
            raise
        found = McmcResult(best, len(known), locally_optimal=False, is_interrupted=True)
    return PlacementResult(
        within, found.best, known, found.evaluated, found.locally_optimal, found.is_interrupted
    )


def _chains(
    within: PlacementSpace,
    budget: SearchBudget,
    seed: int,
    progress: Progress,
    given: Mapping[str, Strategy],
    known: dict[str, EvaluatedStrategy],
) -> McmcResult:
    """See `soap_search`. What chains start from, and is not random, is put into `known` as soon as it is evaluated."""
    begin = time.perf_counter()
    known["data_parallel"] = within.data_parallel()
    known["expert"] = within.expert()
    for name, strategy in given.items():
        known[name] = within.evaluator.full(strategy)
    starts = sorted(known.values(), key=lambda each: each.seconds)
    if not within.choices:  # a model that gives back what it is given
        return McmcResult(starts[0], len(known), locally_optimal=True)
    if budget.seconds > 4 * (time.perf_counter() - begin):
        starts.append(within.evaluator.full(random_strategy(within.choices, Random(seed))))
    search = McmcSearch(within.evaluator, within.choices, seed, progress)
    left = attrs.evolve(budget, seconds=budget.seconds - (time.perf_counter() - begin))
    return search.run(starts, left)


def forced_search(
    within: PlacementSpace,
    known: Sequence[EvaluatedStrategy],
    budget: SearchBudget,
    progress: Progress = silent,
) -> PlacementResult:
    """The best strategy that chains find in a space in which operators are held: from what is known of the whole space, with
    these operators changed. Raises like `soap_search`.
    """
    starts: dict[Strategy, None] = {}
    for each in known:
        strategy = list(each.strategy)
        for operator in within.held:
            legal = list(within.choices[operator])
            strategy[operator] = strategy[operator] if strategy[operator] in legal else legal[0]
        starts[tuple(strategy)] = None
    search = McmcSearch(within.evaluator, within.choices, progress=progress, held=within.held)
    found = search.run([within.evaluator.full(each) for each in starts], budget)
    return PlacementResult(
        within, found.best, {}, found.evaluated, found.locally_optimal, found.is_interrupted
    )


def proven(
    within: PlacementSpace, result: PlacementResult, seconds: float, progress: Progress = silent
) -> PlacementResult:
    """What an exhaustive search makes of a result, as far as it comes in some seconds, or before `KeyboardInterrupt`."""
    deadline = time.perf_counter() + seconds
    found = best_strategy(within.evaluator, within.choices, result.best, deadline, progress)
    return PlacementResult(
        within,
        found.best,
        result.baselines,
        result.evaluated + found.simulated,
        found.is_optimal or (result.locally_optimal and found.best is result.best),
        found.is_interrupted,
        proven=found.lower_bound,
    )
