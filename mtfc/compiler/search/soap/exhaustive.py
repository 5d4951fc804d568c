"""The best of all strategies of a small graph, and that it is (FlexFlow, section 8.4: depth-first search, pruned as A* does).

Operators are given configurations in the order of the graph. What a beginning must cost at least is known from paths: along a
path of steps that use each other's values, from any first step to the loss and back to a step with parameters, the last part of
each step to end is waited for by some part of the next, so

    seconds >= the sum over the path of forward passes, of what the last part to end must send, of backward passes from the loss
    back to the last step, of what these must send, and of the update of that step's parameters

for any choice of the configurations. What is still free is chosen at its best, which is a shortest path. And no device works
less than what its parts take.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from math import inf

import attrs
import numpy as np

from mtfc.compiler.operators.graph import Step
from mtfc.compiler.operators.strategy import Configuration, Strategy
from mtfc.compiler.search.soap.blocks import Array, Block
from mtfc.compiler.search.soap.costs import ONE
from mtfc.compiler.search.soap.evaluation import Evaluated, Evaluator
from mtfc.compiler.search.soap.space import Choices
from mtfc.compiler.search.soap.tasks import Bundle, Name, Tasks, Use

ROUNDING = 1e-9
"""Sums in another order differ by less."""
MOST_PATHS = 200


@attrs.frozen
class Best:
    """The best strategy, whether it is proven to be that, and how many beginnings and whole strategies were looked at."""

    best: Evaluated
    is_optimal: bool
    visited: int
    evaluated: int


def best_strategy(
    evaluator: Evaluator, choices: Sequence[Choices], known: Evaluated, deadline: float = inf
) -> Best:
    """The best of all strategies; `known` is one that is already there. `deadline` is a time of `time.perf_counter`."""
    search = _DepthFirst(evaluator, [list(each) for each in choices], known, deadline)
    is_optimal = search.extend(())
    return Best(search.best, is_optimal, search.visited, search.evaluated)


class _DepthFirst:
    def __init__(
        self,
        evaluator: Evaluator,
        choices: Sequence[list[Configuration]],
        known: Evaluated,
        deadline: float,
    ) -> None:
        self.evaluator, self.choices, self.best, self.deadline = evaluator, choices, known, deadline
        self.last = known
        self.bound = Bound(evaluator.tasks, choices)
        self.visited = self.evaluated = 0

    def extend(self, chosen: tuple[int, ...]) -> bool:
        """Look at all strategies that begin so and can be better than the best; whether there was the time."""
        if time.perf_counter() > self.deadline:
            return False
        self.visited += 1
        if len(chosen) == len(self.choices):
            self._look(tuple(options[i] for options, i in zip(self.choices, chosen, strict=True)))
            return True
        bounds = self.bound.of(chosen)
        for i in np.argsort(bounds, kind="stable").tolist():
            if bounds[i] * (1 + ROUNDING) >= self.best.seconds:
                break
            if not self.extend((*chosen, i)):
                return False
        return True

    def _look(self, strategy: Strategy) -> None:
        self.evaluated += 1
        changes = {i: each for i, each in enumerate(strategy) if each != self.last.strategy[i]}
        self.last = self.evaluator.delta(self.last, changes, self.best.seconds)
        if self.last.seconds < self.best.seconds:
            self.best = self.last


@attrs.frozen(eq=False)
class _Path:
    """A lower bound from one path: what each operator on it costs by configuration, and each pair of neighbours; `rest` is the
    least that operators after one cost, given its configuration.
    """

    operators: tuple[int, ...]
    own: tuple[Array, ...]
    between: tuple[Array, ...]
    rest: tuple[Array, ...]


class Bound:
    """Lower bounds for beginnings of strategies."""

    def __init__(self, tasks: Tasks, choices: Sequence[list[Configuration]]) -> None:
        self.tasks, self.choices = tasks, choices
        self._between: dict[tuple[Use, bool], Array] = {}
        self.paths = [path for steps in _paths(tasks) for path in self._bounds(steps)]
        self.work = [self._work(i) for i in range(len(choices))]
        self.shared = 0.0
        for name in tasks.names:
            if name.kind == "updated":
                self._add_updates(name)
        least = [each.sum(axis=1).min() for each in self.work]
        self.least_after = np.concatenate([np.cumsum(least[::-1])[::-1], [0.0]])

    def of(self, chosen: tuple[int, ...]) -> Array:
        """For each configuration of the next operator: what all strategies that begin so cost at least."""
        next = len(chosen)
        bounds = self._loads(chosen)
        for path in self.paths:
            before = [i for i, operator in enumerate(path.operators) if operator < next]
            total = sum(path.own[i][chosen[path.operators[i]]] for i in before)
            pairs = pairwise(before)
            total += sum(
                path.between[i][chosen[path.operators[i]], chosen[path.operators[j]]] for i, j in pairs
            )
            at = len(before)
            if at < len(path.operators) and path.operators[at] == next:
                first = path.between[at - 1][chosen[path.operators[at - 1]]] if at else 0.0
                bounds = np.maximum(bounds, total + first + path.own[at] + path.rest[at])
            elif at:
                bounds = np.maximum(bounds, total + path.rest[at - 1][chosen[path.operators[at - 1]]])
        return bounds

    def _loads(self, chosen: tuple[int, ...]) -> Array:
        """What the devices compute and update: the busiest alone, and all on average."""
        done = sum((self.work[i][each] for i, each in enumerate(chosen)), np.zeros(self.tasks.links.count))
        loads = done + self.work[len(chosen)]
        rest = self.least_after[len(chosen) + 1] + self.shared
        average = (loads.sum(axis=1) + rest) / self.tasks.links.count
        return np.maximum(loads.max(axis=1), average)

    def _work(self, operator: int) -> Array:
        """What an operator's parts take on each device, by configuration."""
        steps = self.tasks.graph.operators[operator].steps
        found = np.zeros((len(self.choices[operator]), self.tasks.links.count))
        for i, configuration in enumerate(self.choices[operator]):
            parts = self.tasks.parts(operator, configuration)
            costs = [self.tasks.costs.of(step, parts) for step in steps]
            np.add.at(found[i], list(configuration.devices), sum(c.forward + c.backward for c in costs))
        return found

    def _add_updates(self, name: Name) -> None:
        """What updates take: on each device where one operator decides it, else in all, where every parameter is updated once."""
        operators = {self.tasks.number[step] for step in name.of.steps}
        if len(operators) > 1:
            self.shared += self.tasks.update_seconds(
                sum(value.type.local_bytes(ONE) for value in name.of.parameters)
            )
            return
        (operator,) = operators
        for i, configuration in enumerate(self.choices[operator]):
            block = self._block(name, {operator: configuration})
            own = block.device < self.tasks.links.count
            np.add.at(self.work[operator][i], block.device[own], block.seconds[own])

    def _bounds(self, steps: Sequence[Step]) -> Iterator[_Path]:
        """The bounds of one path to the loss, for each step that it may end at on the way back."""
        number = self.tasks.number
        operators = tuple(dict.fromkeys(number[step] for step in steps))
        for last, step in enumerate(steps):
            back = steps[last:]
            if all(self.tasks.flow.gradients[each] for each in back):
                yield self._bound(operators, steps, back, self._update(number[step]))

    def _bound(
        self, operators: tuple[int, ...], steps: Sequence[Step], back: Sequence[Step], update: Array
    ) -> _Path:
        number = self.tasks.number
        own = {i: np.zeros(len(self.choices[i])) for i in operators}
        between = [np.zeros((len(self.choices[a]), len(self.choices[b]))) for a, b in _pairs(operators)]
        for step in steps:
            own[number[step]] += self._seconds(step, step in back)
        own[number[back[0]]] += update
        for one, other in _pairs(steps):
            sent = self._sent(one, other, one in back)
            if number[one] == number[other]:
                own[number[one]] += np.diagonal(sent)
            else:
                between[operators.index(number[one])] += sent
        rest = [np.zeros(len(self.choices[operators[-1]]))]
        for i in range(len(operators) - 1, 0, -1):
            rest.insert(0, (between[i - 1] + own[operators[i]] + rest[0]).min(axis=1))
        return _Path(operators, tuple(own[i] for i in operators), tuple(between), tuple(rest))

    def _seconds(self, step: Step, twice: bool) -> Array:
        operator = self.tasks.number[step]
        costs = (
            self.tasks.costs.of(step, self.tasks.parts(operator, each)) for each in self.choices[operator]
        )
        return np.array([cost.forward + (cost.backward if twice else 0.0) for cost in costs])

    def _sent(self, one: Step, other: Step, twice: bool) -> Array:
        """What the last part of a step must at least send before a next one's, by configurations of both."""
        uses = [Use(value, one, other) for value in other.inputs if value in one.outputs]
        found = np.max([self._least(use, False) for use in uses], axis=0)
        returned = [use for use in uses if use.value in self.tasks.flow.gradients[other]]
        if twice and returned:
            found = found + np.max([self._least(use, True) for use in returned], axis=0)
        return found

    def _least(self, use: Use, returned: bool) -> Array:
        if (use, returned) not in self._between:
            a, b = self.tasks.number[use.maker], self.tasks.number[use.user]
            found = np.zeros((len(self.choices[a]), len(self.choices[b])))
            for i, given in enumerate(self.choices[a]):
                for j, taken in enumerate(self.choices[b]):
                    if a != b or i == j:
                        found[i, j] = self._least_of(use, returned, {a: given, b: taken})
            self._between[use, returned] = found
        return self._between[use, returned]

    def _least_of(self, use: Use, returned: bool, chosen: dict[int, Configuration]) -> float:
        """Of all senders the least, of each that of the longest of its transfers; 0 for those that have one to their own
        device.
        """
        pending = use.value in use.maker.pending
        if pending:
            return 0.0
        block = self._block(Name("returned" if returned else "taken", use), chosen)
        longest: dict[int, float] = {}
        seconds = dict(zip(range(len(block.seconds)), block.seconds.tolist(), strict=True))
        own = self.tasks.index[Name("returned" if returned else "taken", use)]
        for before, number, after, place in block.edges.T.tolist():
            if before != own:
                time = seconds[place] if after == own else 0.0
                longest[number] = max(longest.get(number, 0.0), time)
        return min(longest.values(), default=0.0)

    def _update(self, operator: int) -> Array:
        """What follows the backward pass of an operator's last part, by configuration: the update of parameters that are its
        own.
        """
        found = np.zeros(len(self.choices[operator]))
        for name in self.tasks.names:
            bundle = name.of
            if name.kind != "updated" or not isinstance(bundle, Bundle):
                continue
            if {self.tasks.number[step] for step in bundle.steps} == {operator}:
                for i, configuration in enumerate(self.choices[operator]):
                    block = self._block(name, {operator: configuration})
                    found[i] = max(found[i], _shortest_sum(block, self.tasks.links.ports))
        return found

    def _block(self, name: Name, chosen: dict[int, Configuration]) -> Block:
        strategy = [chosen.get(i, each[0]) for i, each in enumerate(self.choices)]
        return self.tasks.build(self.tasks.index[name], strategy)


def _shortest_sum(block: Block, join: int) -> float:
    """The least that a sum among devices and the updates after it take, of those in a block: each is a start, tasks on ports,
    an end, and updates.
    """
    found: list[float] = []
    joins = 0
    for device, seconds in zip(block.device.tolist(), block.seconds.tolist(), strict=True):
        joins += device == join
        if device == join and joins % 2:
            found.append(0.0)
            sent = updated = 0.0
        elif joins % 2:
            sent = max(sent, seconds)
        else:
            updated = max(updated, seconds)
        found[-1] = sent + updated
    return min(found, default=0.0)


def _pairs(items: Sequence[Step] | tuple[int, ...]) -> list[tuple]:  # type: ignore[type-arg]
    return list(pairwise(items))


def _paths(tasks: Tasks) -> Iterator[list[Step]]:
    """Paths of steps from one that uses no other's values to the loss, on which no operator is left and entered again."""
    graph = tasks.graph
    if graph.loss is None or graph.loss not in graph.makers:
        return
    count = 0
    for path in _back_from(graph.makers[graph.loss], graph.makers.__getitem__):
        numbers = [tasks.number[step] for step in path]
        if len(dict.fromkeys(numbers)) == 1 + sum(a != b for a, b in pairwise(numbers)):
            yield path
            count += 1
        if count == MOST_PATHS:
            return


def _back_from(step: Step, maker: Callable[..., Step]) -> Iterator[list[Step]]:
    before = list(dict.fromkeys(maker(value) for value in step.inputs))
    if not before:
        yield [step]
    for each in before:
        for path in _back_from(each, maker):
            yield [*path, step]
