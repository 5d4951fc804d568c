"""FlexFlow's search (section 6): Markov chains from known and random strategies, then descent to a local optimum.

A proposal is a random configuration for a random operator. A proposal with cost c' instead of c is accepted with probability
min(1, exp(beta (c - c'))). The random number is drawn first and gives a limit, at which simulation ends early. Two more kinds
of proposals are not in the paper. They change operators together that would otherwise have to disagree on the way: all
operators with the same parameters, as the iterations of a recurrent layer, to one random configuration; and a stretch of
consecutive operators to a random number of parts by samples.

A chain ends after its proposals, when half of them in a row have not improved its best strategy, or with the time. The descent
changes single operators and layers; a local optimum is one that no such change improves.

Apart from its end, no choice depends on time: a search that completes its proposals finds the same result on every machine.
"""

import time
from collections.abc import Collection, Mapping, Sequence
from itertools import count
from math import inf, log
from random import Random

import attrs

from mtfc.compiler.activity import report_progress
from mtfc.compiler.search.found import NothingFits
from mtfc.placements.operators.strategy import (
    Configuration,
    OperatorConfigurations,
    parameters_of,
    samples_of,
)
from mtfc.placements.simulator.evaluation import EvaluatedStrategy, StrategyEvaluator

BETA = 300.0
"""beta times the cost at the start: a proposal that takes 1/300 longer is accepted with probability 1/e."""
CHAINS = 0.6
"""The share of the time for all chains; the rest is for the descent."""
STRETCHES, LAYERS = 0.25, 0.4
"""Probabilities that a proposal changes a stretch, or a layer if operators share parameters."""


@attrs.frozen
class SearchBudget:
    """Seconds of a search, proposals of each chain, and strategies that the descent may evaluate; None for no limit."""

    seconds: float
    proposals: int | None = None
    descent: int | None = None


@attrs.frozen
class ChainSettings:
    """Settings of the chains: beta times the cost at the start, the seed, and True for full instead of delta simulation.

    Both simulations find the same strategies.
    """

    beta: float = BETA
    seed: int = 0
    full: bool = False


@attrs.frozen
class Improvement:
    """A new best strategy: its cost, the seconds since the search began, and the number of strategies evaluated till then."""

    cost: float
    seconds: float
    evaluated: int


@attrs.frozen(eq=False)
class PlacementResult:
    """The best strategy, the number of strategies evaluated, and whether no change of one operator improves it.

    is_interrupted: True if `KeyboardInterrupt` ended the search. lower_bound: a bound of all strategies. history: the best
    strategies of chains in the order of their discovery. baselines: the strategies to compare with by name.
    """

    best: EvaluatedStrategy
    evaluated: int
    locally_optimal: bool
    is_interrupted: bool = False
    lower_bound: float = 0.0
    history: tuple[Improvement, ...] = ()
    baselines: Mapping[str, EvaluatedStrategy] = attrs.field(factory=dict)

    @property
    def is_optimal(self) -> bool:
        return self.lower_bound >= self.best.seconds


class McmcSearch:
    """A search for a strategy of one graph, reproducible from a seed."""

    def __init__(
        self,
        evaluator: StrategyEvaluator,
        choices: Sequence[OperatorConfigurations],
        settings: ChainSettings = ChainSettings(),
        restricted: Collection[int] = (),
    ) -> None:
        """Start a search, whose clock runs from now.

        evaluator: simulates strategies. choices: the configurations of each operator. restricted: operators with fewer
        configurations than equal operators. Changes of a whole layer leave them out. history: the improvements. first: the
        evaluations before the search. layers: operators that change together. samples: the sample dimension of each operator.
        lists: number of parts -> device lists for data parallelism.
        """
        self.evaluator, self.choices, self.settings = evaluator, choices, settings
        self.random = Random(settings.seed)
        self.begin = time.perf_counter()
        self.history: list[Improvement] = []
        self.first = evaluator.count
        self.best: EvaluatedStrategy | None = None
        self.restricted = restricted
        self.layers = _layers(evaluator, choices, restricted)
        graph = evaluator.tasks.graph
        self.samples = [samples_of(graph, operator) for operator in graph.operators]
        sizes = {dim.size for dim in self.samples if dim is not None}
        self.lists = {
            n: lists
            for n, lists in choices[0].lists.items()
            if lists and any(size % n == 0 for size in sizes or {1})
        }

    def run(self, starts: Sequence[EvaluatedStrategy], budget: SearchBudget) -> PlacementResult:
        """Run chains from all starts, which share the time, then descend from their results, the best first.

        Raises `NothingFits` if no strategy fits into memory. `KeyboardInterrupt` ends the search with the best so far,
        and is raised if there is none.
        """
        self.first = self.evaluator.count
        is_interrupted = False
        try:
            best, is_local = self._run(starts, budget)
        except KeyboardInterrupt:
            if self.best is None or self.best.seconds == inf:
                raise
            best, is_local, is_interrupted = self.best, False, True
        evaluated = self.evaluator.count - self.first
        return PlacementResult(best, evaluated, is_local, is_interrupted, history=tuple(self.history))

    def _run(
        self, starts: Sequence[EvaluatedStrategy], budget: SearchBudget
    ) -> tuple[EvaluatedStrategy, bool]:
        """Return the best strategy of the chains from all starts, after descents, and True if no neighbour is better.

        Each chain has an equal part of the time. Chains end early once a strategy fits in memory and the time is over.
        """
        begin = time.perf_counter()
        found: list[EvaluatedStrategy] = []
        for number, start in enumerate(starts):
            is_over = time.perf_counter() > begin + budget.seconds
            if is_over and any(each.seconds < inf for each in found):
                break
            chain_end = begin + budget.seconds * CHAINS * (number + 1) / len(starts)
            found.append(self.chain(start, budget.proposals, chain_end))
        found.sort(key=lambda each: each.seconds)
        best, is_local = found[0], False
        if best.seconds == inf:
            raise NothingFits("no strategy was found whose memory suffices")
        last_count = inf if budget.descent is None else self.evaluator.count + budget.descent
        for each in found:
            descended, ended = self.descend(each, begin + budget.seconds, last_count)
            if descended.seconds < best.seconds or descended is best or each is best:
                best, is_local = descended, ended
        return best, is_local

    def _keep(self, found: EvaluatedStrategy) -> EvaluatedStrategy:
        """Note a strategy if it is the best so far, and return it."""
        if self.best is None or found.seconds < self.best.seconds:
            self.best = found
            self.history.append(
                Improvement(
                    found.seconds, time.perf_counter() - self.begin, self.evaluator.count - self.first
                )
            )
        return found

    def _changed(
        self, old: EvaluatedStrategy, changes: Mapping[int, Configuration], limit: float
    ) -> EvaluatedStrategy:
        """Evaluate a strategy that differs from `old` in some operators.

        limit: the seconds from which the strategy is of no use.
        """
        if not self.settings.full or not changes:
            return self.evaluator.delta(old, changes, limit)
        strategy = tuple(changes.get(i, each) for i, each in enumerate(old.strategy))
        return self.evaluator.full(strategy, limit)

    def chain(self, start: EvaluatedStrategy, proposals: int | None, deadline: float) -> EvaluatedStrategy:
        """Run a chain from a strategy; return the best strategy that the chain visits."""
        begin = time.perf_counter()
        best = current = self._keep(start)
        improved, since = 0, begin
        for number in count():
            if proposals is None:
                is_over = time.perf_counter() - since > (deadline - begin) / 2
            else:
                is_over = number == proposals or number - improved > proposals / 2
            if is_over or time.perf_counter() > deadline:
                break
            report_progress(f"{self.evaluator.count} strategies", best.seconds)
            proposed = self._changed(current, self.propose(), self._limit(current, start))
            if proposed.seconds == inf and current.seconds < inf:
                continue
            if proposed.seconds < inf or proposed.excess < current.excess:
                current = proposed
            if current.seconds < best.seconds:
                best, improved, since = self._keep(current), number, time.perf_counter()
        return best

    def _limit(self, current: EvaluatedStrategy, start: EvaluatedStrategy) -> float:
        """Draw the cost up to which the next proposal is accepted."""
        if current.seconds == inf:
            return inf
        scale = start.seconds if start.seconds < inf else current.seconds
        return current.seconds - log(1.0 - self.random.random()) * scale / self.settings.beta

    def propose(self) -> dict[int, Configuration]:
        """Propose a configuration for an operator, for the operators of a layer, or for a stretch."""
        kind = self.random.random()
        if kind < STRETCHES:
            return self._stretch()
        operators = [self.random.randrange(len(self.choices))]
        if self.layers and kind < STRETCHES + LAYERS:
            operators = self.random.choice(self.layers)
        configuration = self.choices[operators[0]].draw(self.random)
        return dict.fromkeys(operators, configuration)

    def _stretch(self) -> dict[int, Configuration]:
        """Split consecutive operators by samples, on the same devices; leave operators where this is illegal."""
        count = len(self.choices)
        first, length = self.random.randrange(count), 2 ** self.random.randint(1, count.bit_length())
        parts = self.random.choice(list(self.lists))
        devices = self.random.choice(self.lists[parts])
        found = {}
        for i in range(first, min(first + length, count)):
            dim = self.samples[i]
            degrees = ((dim.name, parts),) if dim is not None and parts > 1 else ()
            if i not in self.restricted and (parts == 1 or (degrees and degrees in self.choices[i].legal)):
                found[i] = Configuration(degrees, devices)
        return found

    def descend(
        self, current: EvaluatedStrategy, deadline: float, last: float = inf
    ) -> tuple[EvaluatedStrategy, bool]:
        """Change a layer or an operator at a time while this helps. Return False if the time ended it, or `last`
        strategies were evaluated.
        """
        changed = [*self.layers, *([operator] for operator in range(len(self.choices)))]
        since = at = 0
        while since < len(changed):
            for configuration in self.choices[changed[at][0]]:
                if time.perf_counter() > deadline or self.evaluator.count >= last:
                    return current, False
                if all(current.strategy[operator] == configuration for operator in changed[at]):
                    continue
                report_progress(f"{self.evaluator.count} strategies, descending", current.seconds)
                changes = dict.fromkeys(changed[at], configuration)
                found = self._changed(current, changes, current.seconds)
                if found.seconds < current.seconds:
                    current, since = self._keep(found), 0
            since += 1
            at = (at + 1) % len(changed)
        return current, True


def _layers(
    evaluator: StrategyEvaluator, choices: Sequence[OperatorConfigurations], restricted: Collection[int]
) -> list[list[int]]:
    """Group operators that share parameters and have the same legal degrees, without restricted operators."""
    graph = evaluator.tasks.graph
    found: Mapping[object, list[int]] = {}
    for number, operator in enumerate(graph.operators):
        own = parameters_of(graph, operator)
        if own and number not in restricted:
            found.setdefault((own, choices[number].degrees), []).append(number)  # type: ignore[attr-defined]
    return [operators for operators in found.values() if len(operators) > 1]
