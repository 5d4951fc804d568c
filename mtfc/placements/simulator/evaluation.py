"""The step time of a strategy: by full simulation, or by delta simulation if few operators differ from the last strategy."""

from collections.abc import Collection, Mapping
from functools import cached_property
from math import inf
from typing import Any

import attrs
import numpy as np

from mtfc.compiler.search.jit import jit, warm_up
from mtfc.placements.operators.strategy import Configuration, Strategy
from mtfc.placements.simulator.full_simulator import ROUNDING, TaskTimes, simulate
from mtfc.placements.simulator.incremental_simulator import (
    SENT,
    StateArrays,
    allocate,
    apply_change,
    commit_change,
    load_state,
    open_state,
    revert_change,
    room,
    simulate_change,
)
from mtfc.placements.strategy_tasks import StrategyTasks
from mtfc.placements.task_graph_builder import (
    Array,
    FlatGraph,
    FlatPlacement,
    FlatStrategy,
    PartTables,
    TaskBlocks,
    build_blocks,
)

ENDED, PENDING, CROWDED = range(3)
"""Outcomes of a proposal: it exceeds a limit and is reverted; it is simulated to its end, and pending until the next proposal
says whether it is kept; there is no room, and everything must be loaded anew.
"""
IDLE, FORGOTTEN, KEPT = range(3)
"""Fates of the last proposal: none is pending; it is reverted; it is kept."""


@jit
def propose_strategy(
    numbers: Array,
    graph: Any,
    tables: Any,
    strategy: Any,
    room: Array,
    last: int,
    arrays: StateArrays,
    memory: Array,
    capacity: Array,
    limit: float,
) -> Any:
    """Build the changed blocks of a strategy and propose them: see `propose_blocks`.

    A proposal is one compiled call, as calls take more time than small graphs do. The encodings are passed as plain tuples,
    which is faster than passing named ones. room: see `build_blocks`.
    """
    placement = FlatPlacement(FlatGraph(*graph), PartTables(*tables), FlatStrategy(*strategy))
    new = build_blocks(numbers, placement, room)
    return propose_blocks(numbers, new, last, arrays, memory, capacity, limit)


@jit
def propose_blocks(
    numbers: Array,
    new: TaskBlocks,
    last: int,
    arrays: StateArrays,
    memory: Array,
    capacity: Array,
    limit: float,
) -> Any:
    """Return the outcome of a step with new blocks, its seconds, the change of bytes sent, and the bytes that each device
    holds.

    last: the fate of the last proposal. memory, capacity [device]: bytes before, and bytes that the device has. limit: seconds of
    the step.
    """
    state = open_state(arrays)
    if last == KEPT:
        commit_change(state)
    elif last == FORGOTTEN:
        revert_change(state)
    sent, memory = 0, memory.copy()
    for i in range(len(numbers)):
        sent += new.sent[i] - state.blocks[numbers[i], SENT]
        memory += new.memory[i] - state.memory[numbers[i]]
    if (memory - capacity).max() > 0:
        return ENDED, np.inf, sent, memory
    if not apply_change(state, numbers, new):
        return CROWDED, np.inf, sent, memory
    seconds = simulate_change(state, limit)
    if seconds == np.inf:
        revert_change(state)
        return ENDED, seconds, sent, memory
    return PENDING, seconds, sent, memory


ROOM = 2
"""The allocated room, as a multiple of the loaded tasks and edges. Large room makes loading rare."""
SLACK = 256
"""Room in addition to that."""


@attrs.frozen(eq=False)
class SimulatedGraph:
    """A task graph and its timeline."""

    graph: TaskBlocks
    timeline: TaskTimes


@attrs.frozen(eq=False)
class EvaluatedStrategy:
    """A strategy and its step.

    seconds: infinite if the step exceeds a limit or the memory; then there is no timeline. sent: bytes sent between
    devices. memory: bytes on each device.
    """

    strategy: Strategy
    placed: FlatStrategy
    seconds: float
    sent: int
    memory: Array
    _tasks: StrategyTasks
    _simulated: SimulatedGraph | None = None

    @property
    def excess(self) -> float:
        """The bytes that the fullest device lacks, negative if it has room."""
        return float((self.memory - self._tasks.capacity).max(initial=-inf))

    @cached_property
    def base(self) -> SimulatedGraph:
        """The task graph with its timeline. Requires finite seconds."""
        assert self.seconds < inf
        return self._simulated or simulate_blocks(self._tasks, self.placed)[0]


def simulate_blocks(
    tasks: StrategyTasks, placed: FlatStrategy, limit: float = inf, numbers: Array | None = None
) -> tuple[SimulatedGraph, float]:
    """Build and simulate the task graph of a strategy, or some of its blocks (FlexFlow, Algorithm 1).

    Return the graph with its timeline, and the makespan, which is infinite if it exceeds the limit or the memory.
    """
    blocks = tasks.build(np.arange(len(tasks.names)) if numbers is None else numbers, placed)
    times = TaskTimes(np.empty(blocks.size), np.empty(blocks.size), np.empty(blocks.size, np.uint32))
    fits = (blocks.memory.sum(axis=0) <= tasks.capacity).all()
    seconds = float(simulate(blocks, times, limit, tasks.links.idle + 1)) if fits else inf
    return SimulatedGraph(blocks, times), seconds


class StrategyEvaluator:
    """Evaluates strategies of a graph on a machine, and counts them.

    The state of delta simulation holds one strategy, `_known`. The last strategy that was derived from it, `_last`, may
    replace it. Any other strategy is first built and simulated in full.
    """

    def __init__(self, tasks: StrategyTasks) -> None:
        """Start without a simulated strategy, and compile the loops."""
        self.tasks = tasks
        self.count = 0
        self._known: EvaluatedStrategy | None = None
        self._last: EvaluatedStrategy | None = None
        self._graph = tuple(tasks.flat_graph)
        self._arrays: StateArrays = allocate(1, 0, len(tasks.names), tasks.links.idle + 1, tasks.links.count)
        warm_up(self._compile)

    def full(self, strategy: Strategy, limit: float = inf) -> EvaluatedStrategy:
        """Evaluate a strategy by full simulation."""
        self.count += 1
        placed = self.tasks.placed(strategy)
        found, seconds = simulate_blocks(self.tasks, placed, limit)
        memory, sent = found.graph.memory.sum(axis=0), int(found.graph.sent.sum())
        return EvaluatedStrategy(strategy, placed, seconds, sent, memory, self.tasks, found)

    def delta(
        self, old: EvaluatedStrategy, changes: Mapping[int, Configuration], limit: float = inf
    ) -> EvaluatedStrategy:
        """Evaluate a strategy that differs from `old` in some operators (Algorithm 2)."""
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
        seconds, sent, memory = self._proposed(self._touched(changes), placed, old, limit * (1 + ROUNDING))
        found = EvaluatedStrategy(strategy, placed, seconds, old.sent + int(sent), memory, self.tasks)
        self._last = found if seconds < inf else None
        self._known = old
        return found

    def _proposed(
        self, numbers: Array, placed: FlatStrategy, old: EvaluatedStrategy, limit: float
    ) -> tuple[float, int, Array]:
        """Return seconds, change of bytes sent, and bytes that each device holds. The caller updates the known strategy
        afterwards; an interrupt leaves no known strategy.
        """
        is_loaded = False
        while True:
            if old is not self._known and old is not self._last:
                self._load(old, more=is_loaded)
                is_loaded = True
            last = IDLE if self._last is None else KEPT if self._last is old else FORGOTTEN
            self._known = self._last = None
            becomes, seconds, sent, memory = propose_strategy(
                numbers,
                self._graph,
                tuple(self.tasks.forms.tables),
                tuple(placed),
                self.tasks.buffers,
                last,
                self._arrays,
                old.memory,
                self.tasks.capacity,
                limit,
            )
            if becomes != CROWDED:
                return seconds, sent, memory

    def _load(self, found: EvaluatedStrategy, more: bool = False) -> None:
        """Load a strategy's graph and timeline, in new room if they do not fit."""
        self._known = self._last = None
        base = found.base
        size = base.graph.size, len(base.graph.edges)
        known = room(self._arrays)
        tasks, edges = (max(ROOM * n + SLACK, (1 + more) * had) for n, had in zip(size, known, strict=True))
        if (tasks, edges) != known:
            links = self.tasks.links
            self._arrays = allocate(tasks, edges, len(self.tasks.names), links.idle + 1, links.count)
        load_state(self._arrays, base.graph, base.timeline)
        self._known = found

    def _touched(self, operators: Collection[int]) -> Array:
        """Return the blocks that some operators determine, in ascending order."""
        found = [self.tasks.touching[operator] for operator in operators]
        return found[0] if len(found) == 1 else np.unique(np.concatenate(found))

    def _compile(self) -> None:
        """Simulate no strategy, so that the loops are compiled."""
        none, placed = np.zeros(0, np.int64), self.tasks.placed(())
        found = simulate_blocks(self.tasks, placed, inf, none)[0]
        nothing = EvaluatedStrategy((), placed, 0.0, 0, np.zeros(self.tasks.links.count), self.tasks, found)
        self._proposed(none, placed, nothing, inf)
