"""How long a step takes under a strategy: by full simulation, or from the last strategy's timeline where few operators differ."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from math import inf
from typing import Any

import attrs
import numpy as np

from mtfc.compiler.operators.strategy import Configuration, Strategy
from mtfc.compiler.search.soap.blocks import Array, Blocks, known_of, replaced
from mtfc.compiler.search.soap.kernels import changed_from, connect, simulate
from mtfc.compiler.search.soap.plan import Placed
from mtfc.compiler.search.soap.tasks import Tasks


@attrs.frozen(eq=False)
class Evaluated:
    """A strategy, its task graph and its timeline: when each task is ready and ends.

    seconds: of a step; infinite where that is not known, and the timeline neither, as it is beyond a limit or memory does not
    suffice. sent: bytes that go from device to device. held: bytes on each device.
    """

    strategy: Strategy
    placed: Placed
    tasks: Blocks
    ready: Array
    end: Array
    seconds: float
    sent: int
    held: Array


class Evaluator:
    """Evaluates strategies of one graph on one machine, and counts how many."""

    def __init__(self, tasks: Tasks) -> None:
        self.tasks = tasks
        self.count = 0
        _compile(tasks)

    def full(self, strategy: Strategy, limit: float = inf) -> Evaluated:
        """From nothing (FlexFlow, Algorithm 1)."""
        placed = self.tasks.placed(strategy)
        tasks = self.tasks.build(np.arange(len(self.tasks.names)), placed)
        ready, end = np.full(tasks.size, inf), np.full(tasks.size, inf)
        found = Evaluated(
            strategy, placed, tasks, ready, end, inf, int(tasks.sent.sum()), tasks.held.sum(axis=0)
        )
        return self._simulated(found, connect(tasks.edges, tasks.offsets), 0.0, limit)

    def delta(self, old: Evaluated, changes: Mapping[int, Configuration], limit: float = inf) -> Evaluated:
        """The same for a strategy that differs in some operators from one whose task graph is known, and perhaps its timeline
        (Algorithm 2).
        """
        if not changes:
            return old
        configurations = list(old.strategy)
        for operator, configuration in changes.items():
            configurations[operator] = configuration
        placed = self.tasks.changed(old.placed, changes)
        numbers = self._touched(changes)
        new = self.tasks.build(numbers, placed)
        tasks = replaced(old.tasks, numbers, new)
        sent = old.sent + int(new.sent.sum() - old.tasks.sent[numbers].sum())
        held = old.held + (new.held.sum(axis=0) - old.tasks.held[numbers].sum(axis=0))
        edges = connect(tasks.edges, tasks.offsets)
        ready = known_of(old.ready, old.tasks.offsets, numbers, new.offsets)
        end = known_of(old.end, old.tasks.offsets, numbers, new.offsets)
        since = (
            changed_from(old.tasks, old.ready, tasks, edges, numbers, ready, end)
            if old.seconds < inf
            else 0.0
        )
        found = Evaluated(tuple(configurations), placed, tasks, ready, end, inf, sent, held)
        return self._simulated(found, edges, since, limit)

    def _touched(self, operators: Collection[int]) -> Array:
        """The blocks that some operators decide, in ascending order."""
        found = [self.tasks.touching[operator] for operator in operators]
        return found[0] if len(found) == 1 else np.unique(np.concatenate(found))

    def _simulated(self, found: Evaluated, edges: Any, since: float, limit: float) -> Evaluated:
        """With a timeline, of which what comes before `since` is right already."""
        self.count += 1
        if found.held.max() > self.tasks.memory:
            return found
        tasks, ports = found.tasks, self.tasks.links.ports + 1
        known = [*edges, tasks.device, tasks.seconds, found.ready, found.end, since, limit, ports]
        return attrs.evolve(found, seconds=float(simulate(*known)))


def _compile(tasks: Tasks) -> None:
    """Loops are compiled when they first run: for no blocks here, so that no search has to wait for it."""
    none = np.zeros(0, np.int64)
    blocks = tasks.build(none, tasks.placed(()))
    blocks = replaced(blocks, none, blocks)
    times = known_of(np.zeros(0), blocks.offsets, none, blocks.offsets)
    edges = connect(blocks.edges, blocks.offsets)
    changed_from(blocks, times, blocks, edges, none, times, times)
    known = [*edges, blocks.device, blocks.seconds, times, times, 0.0, inf, 1]
    simulate(*known)
