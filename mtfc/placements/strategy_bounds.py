"""Lower bounds for sets of strategies, in which each operator still has some allowed configurations.

All forward passes come before the loss and all backward passes after it, so a step takes at least the sum of the bounds of both
passes. A pass has two bounds. Paths: a part starts after the parts that it waits for, each under its best allowed
configuration. Work: the devices compute all parts.

Transfers between two operators depend on their two configurations only. So `TransferTimes` has a table for each use of a value:
the longest path of tasks for each pair of configurations and each pair of parts. A transfer waits for earlier transfers of the
same sender through the same port that were ready at the same time.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from itertools import product
from math import inf, prod

import attrs
import numpy as np

from mtfc.compiler.search.jit import jit, jit_internal, warm_up
from mtfc.placements.operators.operator_graph import OperatorStep
from mtfc.placements.operators.strategy import Configuration, Degrees, OperatorConfigurations
from mtfc.placements.strategy_tasks import ONE, BlockName, ParameterBundle, StrategyTasks, ValueUse
from mtfc.placements.task_graph_builder import Array, TaskBlocks


@attrs.frozen(eq=False)
class TransferTimes:
    """Seconds by step, configuration of its operator, and part; -inf where there is no wait.

    operator: the operator of each step. loss: the step that makes the loss, or -1. parts [operator, configuration]: number
    of parts. forward, backward [step, configuration]: least seconds of a part. makers, users [use]: steps. taken, returned
    [use, of maker, of user, part of maker, part of user]: from the end of the maker's forward pass to the start of the
    user's, and from the end of the user's backward pass to the start of the maker's.

    updated [step, configuration, part]: from the end of the backward pass to the end of updates that its operator alone
    determines. sharers, others [pair]: a step, and another operator with common parameters. shared [pair, own configuration, the
    other's, part]: the same for updates that both determine. work [kind, operator, configuration, device]: seconds of devices in
    forward passes, and in backward passes and updates. common: seconds of further updates, of all devices together.
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
"""The largest number of entries of a table."""


class TablesTooLarge(Exception):
    """There are too many pairs of configurations for the time limit or for the tables."""


def transfer_times(
    tasks: StrategyTasks, choices: Sequence[Sequence[Configuration]], deadline: float = inf
) -> TransferTimes:
    """Return the tables of a graph, for few devices and few configurations.

    Raises `TablesTooLarge`. `deadline` is a time of `time.perf_counter`.
    """
    return _Tables(tasks, choices, deadline).times()


class _Tables:
    """Fills the tables. `strategy` has the configurations of the entry that is being computed."""

    def __init__(
        self, tasks: StrategyTasks, choices: Sequence[Sequence[Configuration]], deadline: float
    ) -> None:
        """Start with empty tables.

        deadline: a time of `time.perf_counter`. parts: the number of parts by [operator, configuration]. updated, shared:
        times until updates of one, and of two operators end. work: seconds of devices by [pass, operator, configuration,
        device]. common: seconds of updates that many operators share.
        """
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
        self.work = np.zeros((2, *self.parts.shape, self.room))
        self.common = 0.0

    def times(self) -> TransferTimes:
        """Fill all tables, and return them."""
        graph = self.tasks.graph
        uses: list[ValueUse] = [name.of for name in self.tasks.names if name.kind == "taken"]
        forward, backward = self._compute()
        for name in self.tasks.names:
            if name.kind == "updated":
                self._update(name)
        return TransferTimes(
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
        """Return the seconds of parts in each pass, and add them to the work of their devices."""
        found = np.zeros((2, len(self.steps), self.parts.shape[1]))
        for i, step in enumerate(self.steps):
            operator = self.tasks.number[step]
            for c, configuration in enumerate(self.choices[operator]):
                seconds = _seconds_of(self.tasks, step, configuration.degrees)
                of_parts = seconds[:, self.tasks.kind[list(configuration.devices)]]
                found[:, i, c] = of_parts.min(axis=1)
                for device, each in zip(configuration.devices, of_parts.T, strict=True):
                    self.work[:, operator, c, device] += each
        return found

    def _of_uses(self, uses: Sequence[ValueUse], between: Callable[[ValueUse], Array]) -> Array:
        """Return the tables of all uses of values: [use, maker's and user's configuration, maker's and user's task].

        between: returns the times between the tasks of a use in the current strategy.
        """
        most, known = self.parts.shape[1], dict[object, int]()
        if len(uses) * (most * self.room) ** 2 > MOST:
            raise TablesTooLarge
        found = np.full((len(uses), most, most, self.room, self.room), -inf)
        for i, use in enumerate(uses):
            alike = known.setdefault(self._kind(use), i)
            found[i] = found[alike]
            for j, k in self._pairs(*self._operators(use)) if alike == i else ():
                table = between(use)
                found[i, j, k, : table.shape[0], : table.shape[1]] = table
        return found

    def _operators(self, use: ValueUse) -> tuple[int, int]:
        return self.tasks.number[use.maker], self.tasks.number[use.user]

    def _kind(self, use: ValueUse) -> object:
        """Return a key that is equal for uses with the same table."""
        signatures, (a, b) = self.tasks.flow.signatures, self._operators(use)
        positions = use.maker.outputs.index(use.value), use.user.inputs.index(use.value)
        options = tuple(self.choices[a]), tuple(self.choices[b]), a == b
        return (signatures[use.maker], signatures[use.user], *positions, *options)

    def _pairs(self, a: int, b: int) -> Iterator[tuple[int, int]]:
        """Yield all pairs of configurations of two operators, after putting them into the strategy. For a single operator
        yield equal pairs.
        """
        both = product(enumerate(self.choices[a]), enumerate(self.choices[b]))
        for (i, self.strategy[a]), (j, self.strategy[b]) in both:
            if time.perf_counter() > self.deadline:
                raise TablesTooLarge
            if a != b or i == j:
                yield i, j

    def _taken(self, use: ValueUse) -> Array:
        """Return the times from the end of the maker's tasks to the start of the user's tasks, in the forward pass."""
        sums = [BlockName("summed", use.maker, use.value)] if use.value in use.maker.pending else []
        return self._between(
            BlockName("step", use.maker), *sums, BlockName("taken", use), BlockName("step", use.user)
        )[0]

    def _returned(self, use: ValueUse) -> Array:
        """Return the times from the end of the user's tasks to the start of the maker's tasks, in the backward pass."""
        if not self.tasks.flow.returns(use.value, use.user):
            return np.full((1, 1), -inf)
        sums = [BlockName("collected", use.maker, use.value)] if use.value in use.maker.pending else []
        return self._between(
            BlockName("back", use.user), BlockName("returned", use), *sums, BlockName("back", use.maker)
        )[0].T

    def _between(self, *names: BlockName) -> tuple[Array, Array]:
        """Return the longest times from the end of each task of the first block to the start and the end of each task of
        the last.
        """
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

    def _update(self, name: BlockName) -> None:
        """Add the times and the work of the update of a bundle of parameters, which depends on one or two operators.

        Updates that three or more operators share count with a lower bound.
        """
        bundle: ParameterBundle = name.of
        operators = list(dict.fromkeys(self.tasks.number[step] for step in bundle.steps))
        own = operators[0]
        if len(operators) == 1:
            for c, _ in self._pairs(own, own):
                self.work[1, own, c] += self._update_work(name)
                for step in bundle.steps:
                    self._raise(self.updated[self.number[step], c], step, name)
        elif len(operators) == 2:
            self._update_pair(name, *operators)
        else:
            size = sum(value.type.local_bytes(ONE) for value in bundle.parameters)
            self.common += self.tasks.update_seconds(size) + self.tasks.norm_seconds(size)

    def _update_pair(self, name: BlockName, own: int, other: int) -> None:
        """Add the update of a bundle whose parameters two operators use.

        The table of each step is indexed by the configurations of its own and of the other operator. The work of the update
        goes to operator `own`, with the least over the configurations of the other.
        """
        most = self.parts.shape[1]
        steps = name.of.steps
        tables = {step: np.full((most, most, self.room), -inf) for step in steps}
        least = np.full((most, self.room), inf)
        for i, j in self._pairs(own, other):
            least[i] = np.minimum(least[i], self._update_work(name))
            for step, table in tables.items():
                at = (i, j) if self.tasks.number[step] == own else (j, i)
                self._raise(table[at], step, name)
        self.work[1, own, : len(self.choices[own])] += least[: len(self.choices[own])]
        for step, table in tables.items():
            self.shared.append((self.number[step], other if self.tasks.number[step] == own else own, table))

    def _raise(self, found: Array, step: OperatorStep, name: BlockName) -> None:
        """Raise entries of a table to the time from the end of a step's backward pass to the end of the update, by device."""
        added = BlockName("added", name.of)
        if self.tasks.clips:  # all updates wait for the sum
            least = self._build(name).seconds.max(initial=0.0)
            end = self._between(BlockName("back", step), added)[1].max(axis=1, initial=-inf) + least
        else:
            end = self._between(BlockName("back", step), added, name)[1].max(axis=1, initial=-inf)
        np.maximum(found[: len(end)], end, out=found[: len(end)])

    def _build(self, name: BlockName) -> TaskBlocks:
        return self.tasks.build(np.array([self.tasks.index[name]]), self.tasks.placed(self.strategy))

    def _update_work(self, name: BlockName) -> Array:
        """Return the seconds of the devices for the updates of a bundle."""
        found = np.zeros(self.room)
        for each in (BlockName("added", name.of), name):
            block = self._build(each)
            found += np.bincount(block.device, block.seconds, minlength=self.room)[: self.room]
        return found


@jit
def starts(before: Array, after: Array, device: Array, seconds: Array, sources: int, middle: int) -> Array:
    """Return the longest time from the end of each of the first `sources` tasks to the start of each task.

    Tasks are numbered along edges. Tasks before `middle` have no other edges than these. Tasks whose only predecessor is
    the same are ready together, so they queue for a device.
    """
    count = len(device)
    incoming, only = np.zeros(count, np.int64), np.zeros(count, np.int64)
    for e in range(len(before)):
        incoming[after[e]] += 1
        only[after[e]] = before[e]
    longest = np.full((sources, count), -np.inf)
    for task in range(count):
        queued, wait = 0.0, 0.0 if task < sources else seconds[task]
        if sources <= task < middle and incoming[task] == 1:
            for other in range(sources, task):
                if incoming[other] == 1 and only[other] == only[task] and device[other] == device[task]:
                    queued += seconds[other]
        for source in range(sources):
            longest[source, task] += queued
            end = longest[source, task] + wait
            if task < sources:
                end = 0.0 if task == source else -np.inf
            for e in range(len(before)):
                if before[e] == task:
                    longest[source, after[e]] = max(longest[source, after[e]], end)
    return longest


@attrs.frozen(eq=False)
class _StepEdges:
    """Edges between steps, ordered so that all edges to a step come before the edges from it.

    tables [edge, configuration of the source, of the target, part of the source, of the target]: seconds between parts.
    """

    sources: Array
    targets: Array
    tables: Array

    def reversed(self) -> _StepEdges:
        """Reverse edges that lead from lower to higher steps."""
        order = np.argsort(-self.sources, kind="stable")
        tables = self.tables[order].transpose(0, 2, 1, 4, 3).copy()
        return _StepEdges(self.targets[order], self.sources[order], tables)


class StrategyBounds:
    """Lower bounds for sets of strategies of a graph.

    Edges between steps: `forth` in the forward pass, `back` in the backward pass. `to_loss` and `to_start` lead back from the
    end of each pass. zero: 0 for the parts that a configuration has, -inf for the others.
    """

    def __init__(self, times: TransferTimes) -> None:
        """Sort the edges between steps for both passes."""
        self.times = times
        order = np.argsort(times.users, kind="stable")
        makers, users = times.makers[order], times.users[order]
        self.forth = _StepEdges(makers, users, times.taken[order])
        self.to_start = _StepEdges(makers, users, times.returned[order])
        self.back = self.to_start.reversed()
        is_before = self.forth.sources != times.loss
        self.to_loss = _StepEdges(*(each[is_before] for each in attrs.astuple(self.forth))).reversed()
        parts = times.parts[times.operator]
        self.zero = np.where(np.arange(times.taken.shape[-1]) < parts[:, :, None], 0.0, -inf)

    def of(self, allowed: Array) -> Array:
        """Return a lower bound of the step for each operator and configuration, given `allowed` [operator, configuration];
        infinity for configurations that are not allowed.
        """
        t = self.times
        start = self._longest(self.forth, self.zero, t.forward, allowed)
        rest = self._longest(self.to_loss, self._loss(-t.forward), t.forward, allowed)
        found = self._of_pass(start, rest, t.forward, t.work[0], 0.0, allowed)
        if t.loss >= 0:
            start = self._longest(self.back, self._loss(t.forward), t.backward, allowed)
            rest = self._longest(self.to_start, self._updates(allowed), t.backward, allowed)
            found = found + self._of_pass(start, rest, t.backward, t.work[1], t.common, allowed)
        return np.where(allowed, found, inf)

    def _loss(self, seconds: Array) -> Array:
        """Return seconds at the step of the loss and -inf elsewhere; 0 everywhere without a loss."""
        if self.times.loss < 0:
            return self.zero
        found = np.full_like(self.zero, -inf)
        found[self.times.loss] = self.zero[self.times.loss] + seconds[self.times.loss][:, None]
        return found

    def _updates(self, allowed: Array) -> Array:
        """Return the least time from the end of a part's backward pass to the end of updates. [step, configuration, part]"""
        t = self.times
        found = np.maximum(self.zero, t.updated)
        shared = np.where(allowed[t.others][:, None, :, None], t.shared, inf).min(axis=2)
        np.maximum.at(found, t.sharers, shared)
        return found

    def _longest(self, edges: _StepEdges, first: Array, seconds: Array, allowed: Array) -> Array:
        """Return the longest path to each step, part by part. first: the least time of each. seconds: the time of parts."""
        found = first.copy()
        raise_along(edges.sources, edges.targets, edges.tables, self.times.operator, seconds, allowed, found)
        return found

    def _of_pass(
        self, start: Array, rest: Array, seconds: Array, work: Array, common: float, allowed: Array
    ) -> Array:
        """Return the bounds of a pass. `start`: earliest start of parts. `rest`: least time after their ends.

        All parts run between the first start and the least rest. Parts without a start or a rest may run in the other pass, so
        the work of their operators does not count.
        """
        operator, work = self.times.operator, work.copy()
        counts = np.isfinite(self.zero) & allowed[operator][:, :, None] & (seconds > 0)[:, :, None]
        is_apart = np.isinf(start + rest)
        work[operator[(counts & is_apart).any(axis=(1, 2))]] = 0.0
        counts &= ~is_apart
        outside = start.min(where=counts, initial=inf) + rest.min(where=counts, initial=0.0)
        on_devices, own = np.where(allowed[:, :, None], work, inf).min(axis=1), work.sum(axis=2)
        busiest = (on_devices.sum(axis=0) - on_devices[:, None] + work).max(axis=2)
        least = np.where(allowed, own, inf).min(axis=1)
        mean = (common + least.sum() - least[:, None] + own) / work.shape[2]
        found = np.maximum(busiest, mean) + (outside if counts.any() else 0.0)
        np.maximum.at(found, operator, (start + rest).max(axis=2) + seconds)
        return np.maximum(found, np.where(allowed, found, inf).min(axis=1).max())


def compile_loops() -> None:
    """Compile the loops before a search is timed."""
    none, one = np.zeros(0, np.int64), np.zeros(1, np.int64)
    seconds, allowed = np.zeros((1, 1)), np.ones((1, 1), np.bool_)
    warm_up(
        lambda: raise_along(none, none, np.zeros((0, 1, 1, 1, 1)), one, seconds, allowed, np.zeros((1, 1, 1)))
    )


@jit
def raise_along(
    sources: Array,
    targets: Array,
    tables: Array,
    operator: Array,
    seconds: Array,
    allowed: Array,
    found: Array,
) -> None:
    """Raise times [step, configuration, part] of targets to the earliest times at which all their sources, under their best
    configurations, have been received. Sources take `seconds` [step, configuration].
    """
    most, room = found.shape[1], found.shape[2]
    for e in range(len(sources)):
        source, target = sources[e], targets[e]
        a, b = operator[source], operator[target]
        ends = found[source] + seconds[source].reshape(-1, 1)
        for j in range(most):
            for q in range(room if allowed[b, j] else 0):
                received = _received(ends, tables[e, :, j, :, q], allowed[a], j if a == b else -1)
                found[target, j, q] = max(found[target, j, q], received)


@jit_internal
def _received(ends: Array, table: Array, allowed: Array, only: int) -> float:
    """Return when everything is received from all parts of a source [configuration, part] that end at some times, under the best
    allowed configuration, or under one only.
    """
    least = np.inf
    for i in range(len(ends)):
        if allowed[i] and only in (-1, i):
            latest = -np.inf
            for p in range(ends.shape[1]):
                latest = max(latest, ends[i, p] + table[i, p])
            least = min(least, latest)
    return least


def _seconds_of(tasks: StrategyTasks, step: OperatorStep, degrees: Degrees) -> Array:
    """Return the seconds of a part in both passes on each kind of device. [pass, kind]"""
    form = tasks.forms.number(step, degrees)
    seconds = tasks.forms.tables.seconds[form].reshape(-1, 2).T
    return seconds * [[1.0], [bool(tasks.flow.gradients[step])]]


def lower_bound(tasks: StrategyTasks, choices: Sequence[OperatorConfigurations]) -> float:
    """Return the least seconds of a step under any strategy, for graphs of any size. Transfers are left out."""
    if not choices:
        return 0.0
    times = _least(tasks, choices)
    return float(StrategyBounds(times).of(times.parts > 0).max())


def _least(tasks: StrategyTasks, choices: Sequence[OperatorConfigurations]) -> TransferTimes:
    """Return times in which each operator has one configuration with the best of all figures, on a device as fast as all devices
    together, which are all of the fastest kind.

    The parts of an operator together take no less than the whole: split data is read and computed by some part, replicated
    data by all.
    """
    graph, count = tasks.graph, tasks.links.count
    steps = graph.steps
    uses = [name.of for name in tasks.names if name.kind == "taken"]
    has_gradient = [use.value in tasks.flow.gradients[use.user] for use in uses]
    work, seconds = np.zeros((2, len(graph.operators), 1, 1)), np.zeros((2, len(steps), 1))
    for i, step in enumerate(steps):
        operator = tasks.number[step]
        whole = _seconds_of(tasks, step, ())[:, np.unique(tasks.kind)].min(axis=1)
        seconds[:, i, 0] = whole / max(prod(n for _, n in each) for each in choices[operator].degrees)
        work[:, operator, 0, 0] += whole / count
    sizes = [
        value.type.local_bytes(ONE) for n in tasks.names if n.kind == "updated" for value in n.of.parameters
    ]
    none, number = np.zeros(0, np.int64), {step: i for i, step in enumerate(steps)}
    return TransferTimes(
        operator=np.array([tasks.number[step] for step in steps]),
        loss=number[graph.makers[graph.loss]] if graph.loss in graph.makers else -1,
        parts=np.ones((len(graph.operators), 1), np.int64),
        forward=seconds[0],
        backward=seconds[1],
        makers=np.array([number[use.maker] for use in uses], np.int64),
        users=np.array([number[use.user] for use in uses], np.int64),
        taken=np.zeros((len(uses), 1, 1, 1, 1)),
        returned=np.where(has_gradient, 0.0, -inf).reshape(-1, 1, 1, 1, 1),
        updated=np.full((len(steps), 1, 1), -inf),
        sharers=none,
        others=none,
        shared=np.zeros((0, 1, 1, 1)),
        work=work,
        common=(tasks.update_seconds(sum(sizes)) + tasks.norm_seconds(sum(sizes))) / count,
    )
