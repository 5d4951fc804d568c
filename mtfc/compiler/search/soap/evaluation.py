"""How long a step takes under a strategy: by full simulation, or from the last strategy's timeline where few operators differ."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import inf
from typing import Any

import attrs
import numpy as np

from mtfc.compiler.operators.strategy import Configuration, Strategy
from mtfc.compiler.search.soap.blocks import Array, Block
from mtfc.compiler.search.soap.joined import Joined, joined, replaced, spliced
from mtfc.compiler.search.soap.kernels import connect, first_change, simulate
from mtfc.compiler.search.soap.tasks import Tasks


@attrs.frozen(eq=False)
class Evaluated:
    """A strategy, its task graph and its timeline: when each task is ready and ends.

    seconds: of a step; infinite where that is not known, and the timeline neither, as it is beyond a limit or memory does not
    suffice. sent: bytes that go from device to device. held: bytes on each device.
    """

    strategy: Strategy
    tasks: Joined
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

    def full(self, strategy: Strategy, limit: float = inf) -> Evaluated:
        """From nothing (FlexFlow, Algorithm 1)."""
        return self.built(
            strategy, [self.tasks.build(i, strategy) for i in range(len(self.tasks.names))], limit
        )

    def built(self, strategy: Strategy, blocks: Sequence[Block], limit: float = inf) -> Evaluated:
        """The same where the blocks of the task graph are there."""
        tasks, held = joined(blocks), np.sum([block.held for block in blocks], axis=0)
        ready, end = np.full(tasks.count, inf), np.full(tasks.count, inf)
        found = Evaluated(strategy, tasks, ready, end, inf, sum(block.sent for block in blocks), held)
        return self._simulated(found, connect(tasks.edges, tasks.offsets, tasks.count), 0.0, limit)

    def delta(self, old: Evaluated, changes: Mapping[int, Configuration], limit: float = inf) -> Evaluated:
        """The same for a strategy that differs in some operators from one whose task graph is known, and perhaps its timeline
        (Algorithm 2).
        """
        configurations = list(old.strategy)
        for operator, configuration in changes.items():
            configurations[operator] = configuration
        strategy = tuple(configurations)
        numbers = sorted({block for operator in changes for block in self.tasks.touching[operator]})
        new = {i: self.tasks.build(i, strategy) for i in numbers}
        sent, held = old.sent, old.held.copy()
        for i, block in new.items():
            sent += block.sent - old.tasks.blocks[i].sent
            held += block.held - old.tasks.blocks[i].held
        tasks = replaced(old.tasks, new)
        ready, end = np.full(tasks.count, inf), np.full(tasks.count, inf)
        edges = connect(tasks.edges, tasks.offsets, tasks.count)
        since = 0.0
        if new and old.seconds < inf:
            unknown = {i: np.full(len(block.device), inf) for i, block in new.items()}
            ready = spliced(old.ready, old.tasks.offsets, unknown)
            end = spliced(old.end, old.tasks.offsets, unknown)
            affected = _affected(tasks, new)
            since = first_change(edges[0], edges[1], affected, end, _soonest(old, numbers))
            ready[affected] = inf
        found = Evaluated(strategy, tasks, ready, end, inf, sent, held)
        return self._simulated(found, edges, since, limit)

    def _simulated(self, found: Evaluated, edges: Any, since: float, limit: float) -> Evaluated:
        """With a timeline, of which what comes before `since` is right already."""
        self.count += 1
        if found.held.max() > self.tasks.memory:
            return found
        tasks, ports = found.tasks, self.tasks.links.ports + 1
        known = [*edges, tasks.device, tasks.seconds, found.ready, found.end, since, limit, ports]
        seconds = simulate(*known)
        return attrs.evolve(found, seconds=float(seconds))


def _affected(tasks: Joined, new: Mapping[int, Block]) -> Array:
    """Which tasks are in changed blocks, or wait for something in an edge of one."""
    found = np.zeros(tasks.count, bool)
    for i in new:
        found[tasks.offsets[i] : tasks.offsets[i + 1]] = True
    edges = np.concatenate([block.edges for block in new.values()], axis=1)
    found[tasks.offsets[edges[2]] + edges[3]] = True
    return found


def _soonest(old: Evaluated, numbers: Sequence[int]) -> float:
    """When the first task of a changed block, or one that such a block has an edge to, was ready."""
    tasks = old.tasks
    edges = np.concatenate([tasks.blocks[i].edges for i in numbers], axis=1)
    soonest = old.ready[tasks.offsets[edges[2]] + edges[3]].min(initial=inf)
    for i in numbers:
        soonest = min(soonest, old.ready[tasks.offsets[i] : tasks.offsets[i + 1]].min(initial=inf))
    return float(soonest)
