"""The space of placements of a program on a machine, and the search in it from FlexFlow's starting points."""

from __future__ import annotations

import time
from collections.abc import Collection, Iterable, Mapping, Sequence
from functools import cached_property
from math import inf, prod
from random import Random

import attrs

from mtfc.compiler.cost.device_graph import Machine
from mtfc.compiler.ir.core import Program
from mtfc.compiler.ir.training import updated
from mtfc.compiler.search.found import Progress, silent
from mtfc.placements.exhaustive import best_strategy
from mtfc.placements.mcmc import ChainSettings, Improvement, McmcResult, McmcSearch, SearchBudget
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
from mtfc.placements.part_costs import PartTimes
from mtfc.placements.simulator.evaluation import EvaluatedStrategy, StrategyEvaluator
from mtfc.placements.strategy_bounds import compile_loops, lower_bound
from mtfc.placements.strategy_tasks import StrategyTasks


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
        """Return the strategy with data parallelism for operators whose configurations the restricted space lacks."""
        if self.everything is None:
            return strategy
        others = data_parallel_strategy(self.graph, self.choices, self.main)
        legal = {id(each): frozenset(each) for each in self.choices}
        return tuple(
            own if own in legal[id(each)] else other
            for own, other, each in zip(strategy, others, self.choices, strict=True)
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
    def main(self) -> Sequence[int]:
        """The devices on which known strategies run."""
        return main_devices(self.hardware, self.devices)

    def data_parallel(self) -> EvaluatedStrategy:
        return self.evaluator.full(
            data_parallel_strategy(self.graph, self.everything or self.choices, self.main)
        )

    def expert(self) -> EvaluatedStrategy:
        choices = self.everything or self.choices
        node = node_size(self.hardware, self.main)
        return self.evaluator.full(expert_strategy(self.graph, choices, node, self.main))


@attrs.frozen(eq=False)
class PlacementResult:
    """The best strategy, and the strategies to compare it with by name; see `McmcResult`.

    proven: the lower bound of an exhaustive search, or 0. history: the best strategies before the exhaustive search.
    """

    space: PlacementSpace
    best: EvaluatedStrategy
    baselines: Mapping[str, EvaluatedStrategy]
    evaluated: int
    locally_optimal: bool
    is_interrupted: bool = False
    proven: float = 0.0
    history: tuple[Improvement, ...] = ()

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
    than there is. operators: those of the program, if they are known.
    """
    compile_loops()
    graph = _without_frozen(operators or operators_of(program), program)
    found = cotangent_flow(graph)
    choices = configurations(found, hardware, max(devices, parts))
    tasks = StrategyTasks(found, hardware, devices, program.training, choices, times, is_limited)
    return PlacementSpace(graph, hardware, devices, choices, StrategyEvaluator(tasks))


def placement_search(
    within: PlacementSpace,
    budget: SearchBudget,
    settings: ChainSettings = ChainSettings(),  # noqa: B008
    progress: Progress = silent,
    given: Mapping[str, Strategy] = {},
    starts: Collection[str] | None = None,
) -> PlacementResult:
    """Search from data parallelism, the expert's strategy and `given` strategies, the best first, then from a random one.

    The random start is used only if the time is more than four times that of evaluating the others. starts: names of the
    strategies to start from, `random` among them, instead. Raises `NothingFits` if no strategy fits into memory.
    `KeyboardInterrupt` ends the search with the best so far, and is raised if there is none.
    """
    known: dict[str, EvaluatedStrategy] = {}
    try:
        found = _chains(within, budget, settings, progress, given, starts, known)
    except KeyboardInterrupt:
        best = min(known.values(), key=lambda each: each.seconds, default=None)
        if best is None or best.seconds == inf:
            raise
        found = McmcResult(best, len(known), locally_optimal=False, is_interrupted=True)
    return PlacementResult(
        within,
        found.best,
        known,
        found.evaluated,
        found.locally_optimal,
        found.is_interrupted,
        history=found.history,
    )


def _chains(
    within: PlacementSpace,
    budget: SearchBudget,
    settings: ChainSettings,
    progress: Progress,
    given: Mapping[str, Strategy],
    names: Collection[str] | None,
    known: dict[str, EvaluatedStrategy],
) -> McmcResult:
    """Run the search. Put each start that is not random into `known` as soon as it is evaluated."""
    begin = time.perf_counter()
    known["data_parallel"] = within.data_parallel()
    known["expert"] = within.expert()
    for name, strategy in given.items():
        known[name] = within.evaluator.full(strategy)
    chosen = [each for name, each in known.items() if names is None or name in names]
    starts = sorted(_inside(within, chosen), key=lambda each: each.seconds)
    if not within.choices:  # a model that returns its inputs unchanged
        return McmcResult(known["data_parallel"], len(known), locally_optimal=True)
    has_time = budget.seconds > 4 * (time.perf_counter() - begin)
    if has_time if names is None else "random" in names:
        starts.append(within.evaluator.full(random_strategy(within.choices, Random(settings.seed))))
    search = McmcSearch(within.evaluator, within.choices, settings, progress)
    search.begin = begin
    left = attrs.evolve(budget, seconds=budget.seconds - (time.perf_counter() - begin))
    return search.run(starts, left)


def _inside(within: PlacementSpace, strategies: Iterable[EvaluatedStrategy]) -> list[EvaluatedStrategy]:
    """Return the strategies, changed where the space is restricted; the same ones once."""
    found = {within.nearest(each.strategy): each for each in strategies}
    return [
        each if strategy == each.strategy else within.evaluator.full(strategy)
        for strategy, each in found.items()
    ]


def forced_search(
    within: PlacementSpace,
    known: Sequence[EvaluatedStrategy],
    budget: SearchBudget,
    settings: ChainSettings = ChainSettings(),  # noqa: B008
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
    search = McmcSearch(within.evaluator, within.choices, settings, progress, within.restricted)
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
    return attrs.evolve(
        result,
        best=found.best,
        evaluated=result.evaluated + found.simulated,
        locally_optimal=found.is_optimal or (result.locally_optimal and found.best is result.best),
        is_interrupted=found.is_interrupted,
        proven=found.lower_bound,
    )
