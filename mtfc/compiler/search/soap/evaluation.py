"""How long a step takes under a strategy: by full simulation, or from the last strategy's timeline where few operators differ."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import inf

import attrs
import numpy as np

from mtfc.compiler.operators.strategy import Configuration, Strategy
from mtfc.compiler.search.soap.blocks import Array, Block
from mtfc.compiler.search.soap.kernels import connect, first_change, simulate
from mtfc.compiler.search.soap.tasks import Tasks


@attrs.frozen(eq=False)
class Evaluated:
    """A strategy, its task graph and its timeline: when each task is ready and ends.

    seconds: of a step; infinite where that is not known, and the timeline neither, as it is beyond a limit or memory does not
    suffice. sent: bytes that
    go from device to device. held: bytes on each device.
    """

    strategy: Strategy
    blocks: tuple[Block, ...]
    offsets: Array
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
        blocks = [self.tasks.build(i, strategy) for i in range(len(self.tasks.names))]
        changed = np.ones(len(blocks), bool)
        held = np.sum([block.held for block in blocks], axis=0)
        return self._simulated(strategy, blocks, changed, None, limit, sum(b.sent for b in blocks), held)

    def delta(self, old: Evaluated, changes: Mapping[int, Configuration], limit: float = inf) -> Evaluated:
        """The same for a strategy that differs in some operators from one whose task graph is known, and perhaps its timeline
        (Algorithm 2).
        """
        strategy = tuple(changes.get(i, each) for i, each in enumerate(old.strategy))
        blocks = list(old.blocks)
        changed = np.zeros(len(blocks), bool)
        sent, held = old.sent, old.held.copy()
        for i in {block for operator in changes for block in self.tasks.touching[operator]}:
            blocks[i] = self.tasks.build(i, strategy)
            sent += blocks[i].sent - old.blocks[i].sent
            held += blocks[i].held - old.blocks[i].held
            changed[i] = True
        return self._simulated(strategy, blocks, changed, old, limit, sent, held)

    def _simulated(
        self,
        strategy: Strategy,
        blocks: Sequence[Block],
        changed: Array,
        old: Evaluated | None,
        limit: float,
        sent: int,
        held: Array,
    ) -> Evaluated:
        self.count += 1
        sizes = np.array([len(block.device) for block in blocks])
        offsets = np.concatenate(([0], np.cumsum(sizes)))
        count = int(offsets[-1])
        if held.max() > self.tasks.memory:
            nothing = np.empty(0)
            return Evaluated(strategy, tuple(blocks), offsets, nothing, nothing, inf, sent, held)
        device = np.concatenate([block.device for block in blocks])
        seconds = np.concatenate([block.seconds for block in blocks])
        edges = np.concatenate([block.edges for block in blocks], axis=1)
        before, after, first, waiting = connect(edges, offsets, count)
        ready, end = np.full(count, inf), np.full(count, inf)
        since = 0.0
        if old is not None and old.seconds < inf:
            affected = np.repeat(changed, sizes)
            _mark(affected, blocks, changed, offsets)
            keep_old, keep_new = np.repeat(~changed, np.diff(old.offsets)), np.repeat(~changed, sizes)
            ready[keep_new], end[keep_new] = old.ready[keep_old], old.end[keep_old]
            since = first_change(before, after, affected, end, _soonest(old, changed))
            ready[affected] = inf
        ports = self.tasks.links.ports + 1
        found = simulate(before, after, first, waiting, device, seconds, ready, end, since, limit, ports)
        return Evaluated(strategy, tuple(blocks), offsets, ready, end, float(found), sent, held)


def _mark(affected: Array, blocks: Sequence[Block], changed: Array, offsets: Array) -> None:
    """Mark the tasks that wait for something in an edge of a changed block."""
    for i in np.flatnonzero(changed).tolist():
        edges = blocks[i].edges
        affected[offsets[edges[2]] + edges[3]] = True


def _soonest(old: Evaluated, changed: Array) -> float:
    """When the first task of a changed block, or one that such a block has an edge to, was ready."""
    soonest = inf
    for i in np.flatnonzero(changed).tolist():
        edges, (low, high) = old.blocks[i].edges, old.offsets[i : i + 2]
        soonest = min(soonest, old.ready[low:high].min(initial=inf))
        soonest = min(soonest, old.ready[old.offsets[edges[2]] + edges[3]].min(initial=inf))
    return soonest
