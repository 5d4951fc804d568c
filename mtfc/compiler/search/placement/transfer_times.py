"""How long parts at least wait for each other, by the configurations of the operators that they belong to.

What two neighbours send each other is decided by their two configurations alone, so all of it is written down once: for each use
of a value, each pair of configurations, each part of the maker and each of the user, the longest path of tasks from one to the
other. Of the transfers that a part sends through one port each waits for those before it, which were ready at the same time.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from itertools import product
from math import inf

import attrs
import numpy as np

from mtfc.compiler.search.placement.graph.block_names import Bundle, Name, Use
from mtfc.compiler.search.placement.graph.strategy_tasks import Tasks
from mtfc.compiler.search.placement.operators.operator_graph import Step
from mtfc.compiler.search.placement.operators.strategy import Configuration
from mtfc.compiler.search.placement.parts.block_arrays import Array, Blocks
from mtfc.compiler.search.placement.parts.part_costs import ONE
from mtfc.compiler.search.solver.message_passing import compiled


@attrs.frozen(eq=False)
class Waits:
    """Seconds, by steps, configurations (of their operators) and parts; -inf where nothing is waited for.

    operator: of each step. loss: the step that makes it, or -1. parts [operator, configuration]: how many.
    forward, backward [step, configuration]: what a part takes.
    makers, users [use]: steps. taken, returned [use, of maker, of user, part of maker, part of user]: from the end of the maker's
    forward pass to the start of the user's, and from the end of the user's backward pass to the start of the maker's.
    updated [step, configuration, part]: from the end of its backward pass to the end of updates that its operator alone decides.
    sharers, others [pair]: a step, and another operator with parameters of its operator. shared [pair, own configuration, the
    other's, part]: the same for updates that these two decide.
    work [kind, operator, configuration, device]: what devices compute forward, backward and in updates. common: further updates,
    of all devices together.
    """

    operator: Array
    loss: int
    parts: Array
    forward: Array
    backward: Array
    makers: Array
    users: Array
    taken: Array
    returned: Array
    updated: Array
    sharers: Array
    others: Array
    shared: Array
    work: Array
    common: float


MOST = 50_000_000
"""Entries that a table may have."""


class OutOfReach(Exception):
    """There are too many pairs of configurations for the time, or for tables of them."""


def waits(tasks: Tasks, choices: Sequence[Sequence[Configuration]], deadline: float = inf) -> Waits:
    """All waits of a graph on few devices, with few configurations: tables have an entry for each pair of these.

    Raises `OutOfReach`; `deadline` is a time of `time.perf_counter`.
    """
    return _Tables(tasks, choices, deadline).waits()


class _Tables:
    def __init__(self, tasks: Tasks, choices: Sequence[Sequence[Configuration]], deadline: float) -> None:
        self.tasks, self.choices, self.steps = tasks, choices, tasks.graph.steps
        self.deadline = deadline
        self.number = {step: i for i, step in enumerate(self.steps)}
        self.strategy = [each[0] for each in choices]
        self.parts = np.zeros((len(choices), max(map(len, choices))), np.int64)
        for operator, each in enumerate(choices):
            self.parts[operator, : len(each)] = [len(configuration.devices) for configuration in each]
        self.room = tasks.links.count
        self.updated = np.full((len(self.steps), self.parts.shape[1], self.room), -inf)
        self.shared: list[tuple[int, int, Array]] = []
        self.work = np.zeros((3, *self.parts.shape, self.room))
        self.common = 0.0

    def waits(self) -> Waits:
        graph = self.tasks.graph
        uses: list[Use] = [name.of for name in self.tasks.names if name.kind == "taken"]
        forward, backward = self._compute()
        for name in self.tasks.names:
            if name.kind == "updated":
                self._update(name)
        return Waits(
            np.array([self.tasks.number[step] for step in self.steps]),
            self.number[graph.makers[graph.loss]] if graph.loss in graph.makers else -1,
            self.parts,
            forward,
            backward,
            np.array([self.number[use.maker] for use in uses], np.int64),
            np.array([self.number[use.user] for use in uses], np.int64),
            self._of_uses(uses, self._taken),
            self._of_uses(uses, self._returned),
            self.updated,
            np.array([step for step, _, _ in self.shared], np.int64),
            np.array([other for _, other, _ in self.shared], np.int64),
            np.array([table for _, _, table in self.shared] or np.zeros((0, 1, 1, 1))),
            self.work,
            self.common,
        )

    def _compute(self) -> Array:
        """What the parts of each step take in each pass; their devices work for so long."""
        found = np.zeros((2, len(self.steps), self.parts.shape[1]))
        for i, step in enumerate(self.steps):
            operator = self.tasks.number[step]
            for c, configuration in enumerate(self.choices[operator]):
                form, known = self.tasks.forms.number(step, configuration.degrees), self.tasks.forms.known
                found[:, i, c] = known.seconds[form] * (1.0, bool(self.tasks.flow.gradients[step]))
                for device in configuration.devices:
                    self.work[:2, operator, c, device] += found[:, i, c]
        return found

    def _of_uses(self, uses: Sequence[Use], between: Callable[[Use], Array]) -> Array:
        most, known = self.parts.shape[1], dict[object, int]()
        if len(uses) * (most * self.room) ** 2 > MOST:
            raise OutOfReach
        found = np.full((len(uses), most, most, self.room, self.room), -inf)
        for i, use in enumerate(uses):
            alike = known.setdefault(self._kind(use), i)
            found[i] = found[alike]
            for j, k in self._pairs(*self._operators(use)) if alike == i else ():
                table = between(use)
                found[i, j, k, : table.shape[0], : table.shape[1]] = table
        return found

    def _operators(self, use: Use) -> tuple[int, int]:
        return self.tasks.number[use.maker], self.tasks.number[use.user]

    def _kind(self, use: Use) -> object:
        """Equal for uses with the same waits."""
        signatures, (a, b) = self.tasks.flow.signatures, self._operators(use)
        positions = use.maker.outputs.index(use.value), use.user.inputs.index(use.value)
        options = tuple(self.choices[a]), tuple(self.choices[b]), a == b
        return (signatures[use.maker], signatures[use.user], *positions, *options)

    def _pairs(self, a: int, b: int) -> Iterator[tuple[int, int]]:
        """The configurations of two operators, which are then the strategy's; of a single one only the same for both."""
        both = product(enumerate(self.choices[a]), enumerate(self.choices[b]))
        for (i, self.strategy[a]), (j, self.strategy[b]) in both:
            if time.perf_counter() > self.deadline:
                raise OutOfReach
            if a != b or i == j:
                yield i, j

    def _taken(self, use: Use) -> Array:
        sums = [Name("summed", use.maker, use.value)] if use.value in use.maker.pending else []
        return self._between(Name("step", use.maker), *sums, Name("taken", use), Name("step", use.user))[0]

    def _returned(self, use: Use) -> Array:
        if not self.tasks.flow.returns(use.value, use.user):
            return np.full((1, 1), -inf)
        sums = [Name("collected", use.maker, use.value)] if use.value in use.maker.pending else []
        return self._between(Name("back", use.user), Name("returned", use), *sums, Name("back", use.maker))[
            0
        ].T

    def _between(self, *names: Name) -> tuple[Array, Array]:
        """The longest times from the end of each task of the first block to the start of each of the last, and to its end."""
        ids = [self.tasks.index[name] for name in names]
        blocks = self.tasks.build(np.array(ids), self.tasks.placed(self.strategy))
        offsets = blocks.offsets
        at = np.full(len(self.tasks.names), -1)
        at[ids] = offsets[:-1]
        edges = blocks.edges[blocks.edge_offsets[1] :]
        edges = edges[(at[edges[:, 0]] >= 0) & (at[edges[:, 2]] >= 0)]
        ends = offsets[1], offsets[-2] if len(names) > 2 else offsets[-1]
        numbers = at[edges[:, 0]] + edges[:, 1], at[edges[:, 2]] + edges[:, 3]
        start = starts(*numbers, blocks.device, blocks.seconds, *ends)
        last = slice(offsets[-2], offsets[-1])
        return start[:, last], start[:, last] + blocks.seconds[last]

    def _update(self, name: Name) -> None:
        bundle: Bundle = name.of
        operators = list(dict.fromkeys(self.tasks.number[step] for step in bundle.steps))
        own = operators[0]
        if len(operators) == 1:
            for c, _ in self._pairs(own, own):
                self.work[2, own, c] += self._update_work(name)
                for step in bundle.steps:
                    self._raise(self.updated[self.number[step], c], step, name)
        elif len(operators) == 2:
            self._update_pair(name, *operators)
        else:
            size = sum(value.type.local_bytes(ONE) for value in bundle.parameters)
            self.common += self.tasks.update_seconds(size) + self.tasks.norm_seconds(size)

    def _update_pair(self, name: Name, own: int, other: int) -> None:
        most = self.parts.shape[1]
        steps = name.of.steps
        tables = {step: np.full((most, most, self.room), -inf) for step in steps}
        least = np.full((most, self.room), inf)
        for i, j in self._pairs(own, other):
            least[i] = np.minimum(least[i], self._update_work(name))
            for step, table in tables.items():
                at = (i, j) if self.tasks.number[step] == own else (j, i)
                self._raise(table[at], step, name)
        self.work[2, own, : len(self.choices[own])] += least[: len(self.choices[own])]
        for step, table in tables.items():
            self.shared.append((self.number[step], other if self.tasks.number[step] == own else own, table))

    def _raise(self, found: Array, step: Step, name: Name) -> None:
        added = Name("added", name.of)
        if self.tasks.clips:  # what is added up is waited for by all updates
            least = self._build(name).seconds.max(initial=0.0)
            end = self._between(Name("back", step), added)[1].max(axis=1, initial=-inf) + least
        else:
            end = self._between(Name("back", step), added, name)[1].max(axis=1, initial=-inf)
        np.maximum(found[: len(end)], end, out=found[: len(end)])

    def _build(self, name: Name) -> Blocks:
        return self.tasks.build(np.array([self.tasks.index[name]]), self.tasks.placed(self.strategy))

    def _update_work(self, name: Name) -> Array:
        """What devices take for the updates of a bundle."""
        found = np.zeros(self.room)
        for each in (Name("added", name.of), name):
            block = self._build(each)
            found += np.bincount(block.device, block.seconds, minlength=self.room)[: self.room]
        return found


@compiled
def starts(before: Array, after: Array, device: Array, seconds: Array, sources: int, middle: int) -> Array:
    """Of tasks numbered along their edges: the longest time from the end of each of the first `sources` to the start of each.

    Tasks from there up to `middle` have no other edges than these. Those that come after one task alone are ready together.
    """
    count = len(device)
    incoming, only = np.zeros(count, np.int64), np.zeros(count, np.int64)
    for e in range(len(before)):
        incoming[after[e]] += 1
        only[after[e]] = before[e]
    found = np.full((sources, count), -np.inf)
    for task in range(count):
        queued, wait = 0.0, 0.0 if task < sources else seconds[task]
        if sources <= task < middle and incoming[task] == 1:
            for other in range(sources, task):
                if incoming[other] == 1 and only[other] == only[task] and device[other] == device[task]:
                    queued += seconds[other]
        for source in range(sources):
            found[source, task] += queued
            end = found[source, task] + wait
            if task < sources:
                end = 0.0 if task == source else -np.inf
            for e in range(len(before)):
                if before[e] == task:
                    found[source, after[e]] = max(found[source, after[e]], end)
    return found
