"""How long a step takes under a strategy: by full simulation, or from the last strategy's timeline where few operators differ."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from functools import cached_property
from math import inf

import attrs
import numpy as np

from mtfc.compiler.operators.strategy import Configuration, Strategy
from mtfc.compiler.search.soap.blocks import Array, Blocks
from mtfc.compiler.search.soap.graphs import Graph, Timeline, counted, indexed, timeline
from mtfc.compiler.search.soap.kernels import ROUNDING, connect, simulate
from mtfc.compiler.search.soap.plan import Placed
from mtfc.compiler.search.soap.proposing import proposed
from mtfc.compiler.search.soap.tasks import Tasks


@attrs.frozen(eq=False)
class Base:
    """What delta simulation starts from: a task graph and its timeline."""

    graph: Graph
    timeline: Timeline


@attrs.frozen(eq=False)
class Simulated:
    """A task graph that was made from nothing, and when its tasks are ready and end."""

    blocks: Blocks
    ready: Array
    end: Array
    devices: int

    def base(self) -> Base:
        order = np.argsort(self.ready, kind="stable").astype(np.uint32)
        device, seconds = self.blocks.device, self.blocks.seconds
        first = counted(device, self.devices)
        return Base(indexed(self.blocks), timeline(self.ready, self.end, order, first, device, seconds))


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
    simulated: Simulated | Base

    @cached_property
    def base(self) -> Base:
        """Only where the seconds are known."""
        return self.simulated if isinstance(self.simulated, Base) else self.simulated.base()


class Evaluator:
    """Evaluates strategies of one graph on one machine, and counts how many."""

    def __init__(self, tasks: Tasks) -> None:
        self.tasks = tasks
        self.count = 0
        self.devices = tasks.links.idle + 1
        self._compile()

    def full(self, strategy: Strategy, limit: float = inf) -> Evaluated:
        """From nothing (FlexFlow, Algorithm 1)."""
        self.count += 1
        placed = self.tasks.placed(strategy)
        blocks = self.tasks.build(np.arange(len(self.tasks.names)), placed)
        held, sent, seconds = blocks.held.sum(axis=0), int(blocks.sent.sum()), inf
        found = Simulated(blocks, np.empty(blocks.size), np.empty(blocks.size), self.devices)
        if held.max() <= self.tasks.memory:
            seconds = self._simulate(found, limit)
        return Evaluated(strategy, placed, seconds, sent, held, found)

    def _simulate(self, found: Simulated, limit: float) -> float:
        blocks = found.blocks
        edges = connect(blocks.edges, blocks.offsets)
        known = [*edges, blocks.device, blocks.seconds, found.ready, found.end, limit, found.devices]
        return float(simulate(*known))

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
        seconds, sent, held, base = self._proposed(self._touched(changes), placed, old.base, old.held, limit)
        return Evaluated(strategy, placed, seconds, old.sent + sent, held, base)

    def _proposed(
        self, numbers: Array, placed: Placed, base: Base, held: Array, limit: float
    ) -> tuple[float, int, Array, Base]:
        """See `proposing.proposed`."""
        tasks = (self.tasks.plan, self.tasks.forms.known, placed, self.tasks.leads, self.tasks.room)
        known = (base.graph, base.timeline, held, float(self.tasks.memory), limit * (1 + ROUNDING))
        seconds, sent, held, graph, times = proposed(numbers, tasks, *known)
        return seconds, sent, held, Base(graph, times)

    def _touched(self, operators: Collection[int]) -> Array:
        """The blocks that some operators decide, in ascending order."""
        found = [self.tasks.touching[operator] for operator in operators]
        return found[0] if len(found) == 1 else np.unique(np.concatenate(found))

    def _compile(self) -> None:
        """Loops are compiled when they first run: for no blocks here, so that no search has to wait for it."""
        none, placed = np.zeros(0, np.int64), self.tasks.placed(())
        found = Simulated(self.tasks.build(none, placed), np.zeros(0), np.zeros(0), self.devices)
        self._simulate(found, inf)
        self._proposed(none, placed, found.base(), np.zeros(self.tasks.links.count), inf)
