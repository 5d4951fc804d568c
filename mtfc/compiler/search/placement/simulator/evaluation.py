"""How long a step takes under a strategy: by full simulation, or from the last strategy's timeline where few operators differ."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from functools import cached_property
from math import inf

import attrs
import numpy as np

from mtfc.compiler.search.placement.graph.strategy_tasks import Tasks
from mtfc.compiler.search.placement.operators.strategy import Configuration, Strategy
from mtfc.compiler.search.placement.parts.block_arrays import Array, Blocks
from mtfc.compiler.search.placement.parts.flat_encoding import Placed
from mtfc.compiler.search.placement.parts.graph_arrays import Graph, Timeline, indexed
from mtfc.compiler.search.placement.simulator.full_simulator import ROUNDING, connect, simulate
from mtfc.compiler.search.placement.simulator.proposal import CROWDED, FORGOTTEN, IDLE, KEPT, proposed
from mtfc.compiler.search.placement.simulator.simulator_state import Memory, load, memory, room

ROOM = 2
"""For so many times what is loaded there is room, so that it is seldom loaded anew."""
SLACK = 256
"""And for so many more."""


@attrs.frozen(eq=False)
class Base:
    """A task graph that was made from nothing, and its timeline."""

    graph: Graph
    timeline: Timeline


@attrs.frozen(eq=False)
class Simulated:
    """The same before anyone asks who waits for whom."""

    blocks: Blocks
    timeline: Timeline

    @cached_property
    def base(self) -> Base:
        return Base(indexed(self.blocks), self.timeline)


@attrs.frozen(eq=False)
class Evaluated:
    """A strategy, and how it does.

    seconds: of a step; infinite where that is not known, and the timeline neither, as it is beyond a limit or memory does not
    suffice. sent: bytes that go from device to device. held: bytes on each device.
    """

    strategy: Strategy
    placed: Placed
    seconds: float
    sent: int
    held: Array
    _tasks: Tasks
    _simulated: Simulated | None = None

    @cached_property
    def base(self) -> Base:
        """Only where the seconds are known."""
        assert self.seconds < inf
        return (self._simulated or simulated(self._tasks, self.placed)[0]).base


def simulated(
    tasks: Tasks, placed: Placed, limit: float = inf, numbers: Array | None = None
) -> tuple[Simulated, float]:
    """A strategy's task graph from nothing, or some of its blocks, and the makespan (FlexFlow, Algorithm 1); infinite beyond the
    limit or the memory.
    """
    blocks = tasks.build(np.arange(len(tasks.names)) if numbers is None else numbers, placed)
    times = Timeline(np.empty(blocks.size), np.empty(blocks.size), np.empty(blocks.size, np.uint32))
    found = Simulated(blocks, times)
    if blocks.held.sum(axis=0).max(initial=0) > tasks.memory:
        return found, inf
    edges = connect(blocks.edges, blocks.offsets)
    known = [*edges, blocks.device, blocks.seconds, *times, limit, tasks.links.idle + 1]
    return found, float(simulate(*known))


class Evaluator:
    """Evaluates strategies of one graph on one machine, and counts how many.

    What delta simulation needs is kept of one strategy at a time, `_known`; the last one that was found from it, `_last`, can
    take its place. Of any other strategy everything is made from nothing first.
    """

    def __init__(self, tasks: Tasks) -> None:
        self.tasks = tasks
        self.count = 0
        self._known: Evaluated | None = None
        self._last: Evaluated | None = None
        self._plan = tuple(tasks.plan)
        self._memory: Memory = memory(1, 0, len(tasks.names), tasks.links.idle + 1, tasks.links.count)
        self._compile()

    def full(self, strategy: Strategy, limit: float = inf) -> Evaluated:
        """From nothing."""
        self.count += 1
        placed = self.tasks.placed(strategy)
        found, seconds = simulated(self.tasks, placed, limit)
        held, sent = found.blocks.held.sum(axis=0), int(found.blocks.sent.sum())
        return Evaluated(strategy, placed, seconds, sent, held, self.tasks, found)

    def delta(self, old: Evaluated, changes: Mapping[int, Configuration], limit: float = inf) -> Evaluated:
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
        found = Evaluated(strategy, placed, seconds, old.sent + int(sent), held, self.tasks)
        self._last = found if seconds < inf else None
        self._known = old
        return found

    def _proposed(
        self, numbers: Array, placed: Placed, old: Evaluated, limit: float
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
            becomes, seconds, sent, held = proposed(
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

    def _load(self, found: Evaluated, more: bool = False) -> None:
        """Keep the task graph and timeline of a strategy, without gaps, in the room that there is, if it suffices; or in more."""
        self._known = self._last = None
        base = found.base
        size = len(base.graph.device), len(base.graph.owner)
        known = room(self._memory)
        tasks, edges = (max(ROOM * n + SLACK, (1 + more) * had) for n, had in zip(size, known, strict=True))
        if (tasks, edges) != known:
            links = self.tasks.links
            self._memory = memory(tasks, edges, len(self.tasks.names), links.idle + 1, links.count)
        load(self._memory, base.graph, base.timeline)
        self._known = found

    def _touched(self, operators: Collection[int]) -> Array:
        """The blocks that some operators decide, in ascending order."""
        found = [self.tasks.touching[operator] for operator in operators]
        return found[0] if len(found) == 1 else np.unique(np.concatenate(found))

    def _compile(self) -> None:
        """Loops are compiled when they first run: for no blocks here, so that no search has to wait for it."""
        none, placed = np.zeros(0, np.int64), self.tasks.placed(())
        found = simulated(self.tasks, placed, inf, none)[0]
        nothing = Evaluated((), placed, 0.0, 0, np.zeros(self.tasks.links.count), self.tasks, found)
        self._proposed(none, placed, nothing, inf)
