"""A proposal from beginning to end, in one compiled call: calls take more time than small graphs do.

How long a step takes under a strategy: by full simulation, or from the last strategy's timeline where few operators differ."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from functools import cached_property
from math import inf
from typing import Any

import attrs
import numpy as np

from mtfc.compiler.search.jit import jit
from mtfc.compiler.search.placement.operators.strategy import Configuration, Strategy
from mtfc.compiler.search.placement.simulator.full_simulator import (
    ROUNDING,
    IndexedGraph,
    TaskTimes,
    connect,
    indexed_graph,
    simulate,
)
from mtfc.compiler.search.placement.simulator.incremental_simulator import (
    apply_change,
    commit_change,
    revert_change,
    simulate_change,
)
from mtfc.compiler.search.placement.simulator.simulator_state import (
    StateArrays,
    allocate,
    load_state,
    open_state,
    room,
)
from mtfc.compiler.search.placement.task_graph import StrategyTasks
from mtfc.compiler.search.placement.task_graph_builder import (
    Array,
    FlatGraph,
    FlatStrategy,
    PartTables,
    TaskBlocks,
    build_blocks,
)

ENDED, PENDING, CROWDED = range(3)
"""What becomes of a proposal: it takes too long, or too much memory, and is forgotten; it is simulated to its end, and pends
until the next one says whether it is kept; there is no room for it, and everything must be loaded anew.
"""
IDLE, FORGOTTEN, KEPT = range(3)
"""What becomes of the last proposal: there is none that pends, or it is forgotten or kept now."""


@jit
def propose_strategy(
    numbers: Array,
    plan: Any,
    known: Any,
    placed: Any,
    leads: Array,
    room: Array,
    last: int,
    memory: StateArrays,
    held: Array,
    limits: tuple[float, float, float],
) -> Any:
    """The same as `altered`, of a strategy. plan, known, placed: as tuples, which are passed sooner than named ones. room: see
    `task_graph_builder.built`.
    """
    new = build_blocks(numbers, FlatGraph(*plan), PartTables(*known), FlatStrategy(*placed), room)
    return propose_blocks(numbers, new, leads, last, memory, held, limits)


@jit
def propose_blocks(
    numbers: Array,
    new: TaskBlocks,
    leads: Array,
    last: int,
    memory: StateArrays,
    held: Array,
    limits: tuple[float, float, float],
) -> Any:
    """What becomes of a step in which some blocks are new, its seconds, how many more bytes are sent, and those that each
    device holds.

    leads: see `delta.renew`. last: what becomes of the last proposal. memory: of a graph and its timeline. held [device]:
    bytes there. limits: bytes that a device has, seconds of the step, and those of the one that is changed.
    """
    kept, change, run = open_state(memory)
    if last == KEPT:
        if not commit_change(kept, change, run):
            return CROWDED, np.inf, 0, held
    elif last == FORGOTTEN:
        revert_change(kept, change, run)
    sent, held = 0, held.copy()
    for i in range(len(numbers)):
        sent += new.sent[i] - kept.sent[numbers[i]]
        held += new.held[i] - kept.held[numbers[i]]
    if held.max() > limits[0]:
        return ENDED, np.inf, sent, held
    if not apply_change(kept, numbers, new, leads, change, run):
        return CROWDED, np.inf, sent, held
    seconds = simulate_change(kept, change, run, limits[2], limits[1])
    if seconds == np.inf:
        revert_change(kept, change, run)
        return ENDED, seconds, sent, held
    return PENDING, seconds, sent, held


ROOM = 2
"""For so many times what is loaded there is room, so that it is seldom loaded anew."""
SLACK = 256
"""And for so many more."""


@attrs.frozen(eq=False)
class SimulatedGraph:
    """A task graph that was made from nothing, and its timeline."""

    graph: IndexedGraph
    timeline: TaskTimes


@attrs.frozen(eq=False)
class SimulatedBlocks:
    """The same before anyone asks who waits for whom."""

    blocks: TaskBlocks
    timeline: TaskTimes

    @cached_property
    def base(self) -> SimulatedGraph:
        return SimulatedGraph(indexed_graph(self.blocks), self.timeline)


@attrs.frozen(eq=False)
class EvaluatedStrategy:
    """A strategy, and how it does.

    seconds: of a step; infinite where that is not known, and the timeline neither, as it is beyond a limit or memory does not
    suffice. sent: bytes that go from device to device. held: bytes on each device.
    """

    strategy: Strategy
    placed: FlatStrategy
    seconds: float
    sent: int
    held: Array
    _tasks: StrategyTasks
    _simulated: SimulatedBlocks | None = None

    @cached_property
    def base(self) -> SimulatedGraph:
        """Only where the seconds are known."""
        assert self.seconds < inf
        return (self._simulated or simulate_blocks(self._tasks, self.placed)[0]).base


def simulate_blocks(
    tasks: StrategyTasks, placed: FlatStrategy, limit: float = inf, numbers: Array | None = None
) -> tuple[SimulatedBlocks, float]:
    """A strategy's task graph from nothing, or some of its blocks, and the makespan (FlexFlow, Algorithm 1); infinite beyond the
    limit or the memory.
    """
    blocks = tasks.build(np.arange(len(tasks.names)) if numbers is None else numbers, placed)
    times = TaskTimes(np.empty(blocks.size), np.empty(blocks.size), np.empty(blocks.size, np.uint32))
    found = SimulatedBlocks(blocks, times)
    if blocks.held.sum(axis=0).max(initial=0) > tasks.memory:
        return found, inf
    edges = connect(blocks.edges, blocks.offsets)
    known = [*edges, blocks.device, blocks.seconds, *times, limit, tasks.links.idle + 1]
    return found, float(simulate(*known))


class StrategyEvaluator:
    """Evaluates strategies of one graph on one machine, and counts how many.

    What delta simulation needs is kept of one strategy at a time, `_known`; the last one that was found from it, `_last`, can
    take its place. Of any other strategy everything is made from nothing first.
    """

    def __init__(self, tasks: StrategyTasks) -> None:
        self.tasks = tasks
        self.count = 0
        self._known: EvaluatedStrategy | None = None
        self._last: EvaluatedStrategy | None = None
        self._plan = tuple(tasks.plan)
        self._memory: StateArrays = allocate(1, 0, len(tasks.names), tasks.links.idle + 1, tasks.links.count)
        self._compile()

    def full(self, strategy: Strategy, limit: float = inf) -> EvaluatedStrategy:
        """From nothing."""
        self.count += 1
        placed = self.tasks.placed(strategy)
        found, seconds = simulate_blocks(self.tasks, placed, limit)
        held, sent = found.blocks.held.sum(axis=0), int(found.blocks.sent.sum())
        return EvaluatedStrategy(strategy, placed, seconds, sent, held, self.tasks, found)

    def delta(
        self, old: EvaluatedStrategy, changes: Mapping[int, Configuration], limit: float = inf
    ) -> EvaluatedStrategy:
        """The same for a strategy that differs in some operators from one whose timeline may be known (Algorithm 2)."""
        if not changes:
            return old
        configurations = list(old.strategy)
        for operator, configuration in changes.items():
            configurations[operator] = configuration
        strategy = tuple(configurations)
        if old.seconds == inf:
            return self.full(strategy, limit)
        self.count += 1
        placed = self.tasks.changed(old.placed, changes)
        seconds, sent, held = self._proposed(self._touched(changes), placed, old, limit * (1 + ROUNDING))
        found = EvaluatedStrategy(strategy, placed, seconds, old.sent + int(sent), held, self.tasks)
        self._last = found if seconds < inf else None
        self._known = old
        return found

    def _proposed(
        self, numbers: Array, placed: FlatStrategy, old: EvaluatedStrategy, limit: float
    ) -> tuple[float, int, Array]:
        """Seconds, how many more bytes are sent, and those that each device holds. Whoever calls says what is known then: should
        this be interrupted, nothing is.
        """
        is_loaded = False
        while True:
            if old is not self._known and old is not self._last:
                self._load(old, more=is_loaded)
                is_loaded = True
            last = IDLE if self._last is None else KEPT if self._last is old else FORGOTTEN
            self._known = self._last = None
            becomes, seconds, sent, held = propose_strategy(
                numbers,
                self._plan,
                tuple(self.tasks.forms.known),
                tuple(placed),
                self.tasks.leads,
                self.tasks.room,
                last,
                self._memory,
                old.held,
                (float(self.tasks.memory), limit, old.seconds),
            )
            if becomes != CROWDED:
                return seconds, sent, held

    def _load(self, found: EvaluatedStrategy, more: bool = False) -> None:
        """Keep the task graph and timeline of a strategy, without gaps, in the room that there is, if it suffices; or in more."""
        self._known = self._last = None
        base = found.base
        size = len(base.graph.device), len(base.graph.owner)
        known = room(self._memory)
        tasks, edges = (max(ROOM * n + SLACK, (1 + more) * had) for n, had in zip(size, known, strict=True))
        if (tasks, edges) != known:
            links = self.tasks.links
            self._memory = allocate(tasks, edges, len(self.tasks.names), links.idle + 1, links.count)
        load_state(self._memory, base.graph, base.timeline)
        self._known = found

    def _touched(self, operators: Collection[int]) -> Array:
        """The blocks that some operators decide, in ascending order."""
        found = [self.tasks.touching[operator] for operator in operators]
        return found[0] if len(found) == 1 else np.unique(np.concatenate(found))

    def _compile(self) -> None:
        """Loops are compiled when they first run: for no blocks here, so that no search has to wait for it."""
        none, placed = np.zeros(0, np.int64), self.tasks.placed(())
        found = simulate_blocks(self.tasks, placed, inf, none)[0]
        nothing = EvaluatedStrategy((), placed, 0.0, 0, np.zeros(self.tasks.links.count), self.tasks, found)
        self._proposed(none, placed, nothing, inf)
