"""The space of placements of a program on a machine, and the search in it from FlexFlow's starting points."""

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
from mtfc.placements.exhaustive import best_strategy
from mtfc.placements.mcmc import McmcResult, McmcSearch, SearchBudget
from mtfc.placements.operators.cotangent_flow import cotangent_flow
from mtfc.placements.operators.operator_graph import OperatorGraph, operators_of
from mtfc.placements.operators.strategy import (
    Configuration,
    OperatorConfigurations,
    Strategy,
    configurations,
    data_parallel_strategy,
    expert_strategy,
    random_strategy,
)
from mtfc.placements.simulator.evaluation import EvaluatedStrategy, StrategyEvaluator
from mtfc.placements.strategy_bounds import lower_bound
from mtfc.placements.strategy_tasks import StrategyTasks


@attrs.frozen(eq=False)
class PlacementSpace:
    """The configurations of each operator of a graph, and the evaluator of strategies.

    restricted: operators whose configurations are restricted.
    """

    graph: OperatorGraph
    hardware: Hardware
    devices: int
    choices: list[OperatorConfigurations]
    evaluator: StrategyEvaluator
    restricted: frozenset[int] = frozenset()

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

    def data_parallel(self) -> EvaluatedStrategy:
        return self.evaluator.full(data_parallel_strategy(self.graph, self.choices, self.devices))

    def expert(self) -> EvaluatedStrategy:
        return self.evaluator.full(expert_strategy(self.graph, self.choices, self.hardware, self.devices))


@attrs.frozen(eq=False)
class PlacementResult:
    """The best strategy, and the strategies to compare it with by name; see `McmcResult`.

    proven: the lower bound of an exhaustive search, or 0.
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
        """The best known lower bound of all strategies."""
        return max(self.proven, lower_bound(self.space.evaluator.tasks, self.space.choices))

    @property
    def is_optimal(self) -> bool:
        return self.lower_bound >= self.best.seconds


def _without_frozen(graph: OperatorGraph, program: Program) -> OperatorGraph:
    """Return the graph of a training step, which computes no gradients of frozen parameters."""
    own = ((value.name, graph.slices.get(value.name, (value.name,))[0]) for value in graph.parameters)
    training = program.training
    declared = {parameter.name for parameter in program.parameters} - program.states
    trained = updated(training) if training is not None and training.updates else declared
    return attrs.evolve(graph, frozen=frozenset(name for name, full in own if full not in trained))


def placement_space(program: Program, hardware: Hardware, devices: int, parts: int = 1) -> PlacementSpace:
    """Return the space of a program on some devices: of its training step, or else of its forward pass.

    parts: the number of parts that an operator may have, if larger than the number of devices. Such a space is for
    evaluation, not for search.
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
    """Search from data parallelism, the expert's strategy and `given` strategies, the best first, then from a random one.

    The random start is used only if the time is more than four times that of evaluating the others. Raises `NothingFits` if
    no strategy fits into memory. `KeyboardInterrupt` ends the search with the best so far, and is raised if there is none.
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
    """Run the search. Put each start that is not random into `known` as soon as it is evaluated."""
    begin = time.perf_counter()
    known["data_parallel"] = within.data_parallel()
    known["expert"] = within.expert()
    for name, strategy in given.items():
        known[name] = within.evaluator.full(strategy)
    starts = sorted(known.values(), key=lambda each: each.seconds)
    if not within.choices:  # a model that returns its inputs unchanged
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
    """Search a space with restricted operators, from known strategies in which these operators are changed. Raises like
    `placement_search`.
    """
    starts: dict[Strategy, None] = {}
    for each in known:
        strategy = list(each.strategy)
        for operator in within.restricted:
            legal = list(within.choices[operator])
            strategy[operator] = strategy[operator] if strategy[operator] in legal else legal[0]
        starts[tuple(strategy)] = None
    search = McmcSearch(within.evaluator, within.choices, progress=progress, restricted=within.restricted)
    found = search.run([within.evaluator.full(each) for each in starts], budget)
    return PlacementResult(
        within, found.best, {}, found.evaluated, found.locally_optimal, found.is_interrupted
    )


def proven(
    within: PlacementSpace, result: PlacementResult, seconds: float, progress: Progress = silent
) -> PlacementResult:
    """Return the result of an exhaustive search of some seconds, which starts from `result`. `KeyboardInterrupt` ends it
    early.
    """
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
