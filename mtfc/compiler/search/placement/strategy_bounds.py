"""What strategies must take at least that have some configurations for each operator.

Everything forward comes before the loss and everything backward after it, so a step takes at least the sum of what the two passes
take at least. Of each pass two things are known. Paths: a part starts after the parts that it waits for, whose operators have the
configuration that is best for it. And work: between the first start of some operators' parts and the last end the devices compute
all of these, each its own, and on average all together.
"""

from __future__ import annotations

from math import inf

import attrs
import numpy as np

from mtfc.compiler.search.placement.parts.block_arrays import Array
from mtfc.compiler.search.placement.transfer_times import Waits
from mtfc.compiler.search.solver.message_passing import compiled


@attrs.frozen(eq=False)
class _Way:
    """Edges from step to step, in an order in which all that lead to a step come before those from it.

    tables [edge, configuration of the source, of the target, part of the source, of the target]: seconds between parts.
    """

    sources: Array
    targets: Array
    tables: Array

    def reversed(self) -> _Way:
        """The other way, of edges that go from lower to higher steps."""
        order = np.argsort(-self.sources, kind="stable")
        tables = self.tables[order].transpose(0, 2, 1, 4, 3).copy()
        return _Way(self.targets[order], self.sources[order], tables)


class Bounds:
    """Lower bounds for sets of strategies of one graph."""

    def __init__(self, waits: Waits) -> None:
        self.waits = waits
        order = np.argsort(waits.users, kind="stable")
        makers, users = waits.makers[order], waits.users[order]
        self.forth = _Way(makers, users, waits.taken[order])
        self.to_start = _Way(makers, users, waits.returned[order])
        self.back = self.to_start.reversed()
        is_before = self.forth.sources != waits.loss
        self.to_loss = _Way(*(each[is_before] for each in attrs.astuple(self.forth))).reversed()
        parts = waits.parts[waits.operator]
        self.zero = np.where(np.arange(waits.taken.shape[-1]) < parts[:, :, None], 0.0, -inf)

    def of(self, allowed: Array) -> Array:
        """For each operator and configuration: what a step takes at least with it, where each operator has one that is `allowed`
        [operator, configuration]; infinity for those that are not.
        """
        w = self.waits
        start = self._longest(self.forth, self.zero, w.forward, allowed)
        rest = self._longest(self.to_loss, self._loss(-w.forward), w.forward, allowed)
        nothing = np.zeros_like(w.work[0])
        found = self._of_pass(start, rest, w.forward, w.work[0], nothing, 0.0, allowed)
        if w.loss >= 0:
            start = self._longest(self.back, self._loss(w.forward), w.backward, allowed)
            rest = self._longest(self.to_start, self._updates(allowed), w.backward, allowed)
            found = found + self._of_pass(start, rest, w.backward, w.work[1], w.work[2], w.common, allowed)
        return np.where(allowed, found, inf)

    def _loss(self, seconds: Array) -> Array:
        """Seconds of the loss's step where its parts are, else -inf; 0 everywhere without a loss."""
        if self.waits.loss < 0:
            return self.zero
        found = np.full_like(self.zero, -inf)
        found[self.waits.loss] = self.zero[self.waits.loss] + seconds[self.waits.loss][:, None]
        return found

    def _updates(self, allowed: Array) -> Array:
        """What at least follows the end of a part's backward pass in updates, [step, configuration, part]."""
        w = self.waits
        found = np.maximum(self.zero, w.updated)
        shared = np.where(allowed[w.others][:, None, :, None], w.shared, inf).min(axis=2)
        np.maximum.at(found, w.sharers, shared)
        return found

    def _longest(self, way: _Way, first: Array, seconds: Array, allowed: Array) -> Array:
        found = first.copy()
        raise_along(way.sources, way.targets, way.tables, self.waits.operator, seconds, allowed, found)
        return found

    def _of_pass(
        self,
        start: Array,
        rest: Array,
        seconds: Array,
        work: Array,
        later: Array,
        common: float,
        allowed: Array,
    ) -> Array:
        """Of one pass: `start` when parts start at least and `rest` what follows their ends; and with it the best of others."""
        w = self.waits
        found = np.zeros(allowed.shape)
        np.maximum.at(found, w.operator, (start + rest).max(axis=2) + seconds)
        add_work(w.operator, w.parts, start, rest, seconds, work, later, common, allowed, found)
        return np.maximum(found, np.where(allowed, found, inf).min(axis=1).max())


@compiled
def raise_along(
    sources: Array,
    targets: Array,
    tables: Array,
    operator: Array,
    seconds: Array,
    allowed: Array,
    found: Array,
) -> None:
    """Raise times [step, configuration, part] of targets to those at which they hear from all sources, which take `seconds`
    [step, configuration] and have the configuration that is best for that part.
    """
    most, room = found.shape[1], found.shape[2]
    for e in range(len(sources)):
        source, target = sources[e], targets[e]
        a, b = operator[source], operator[target]
        for j in range(most):
            if not allowed[b, j]:
                continue
            for q in range(room):
                least = np.inf
                for i in range(most):
                    if allowed[a, i] and (a != b or i == j):
                        latest = -np.inf
                        for p in range(room):
                            latest = max(latest, found[source, i, p] + tables[e, i, j, p, q])
                        least = min(least, latest + seconds[source, i])
                found[target, j, q] = max(found[target, j, q], least)


@compiled
def add_work(
    operator: Array,
    parts: Array,
    start: Array,
    rest: Array,
    seconds: Array,
    work: Array,
    later: Array,
    common: float,
    allowed: Array,
    found: Array,
) -> None:
    """Raise bounds [operator, configuration] to those from the work [operator, configuration, device] of operators in a row,
    after the first of them starts and before what follows the last; or with what they do `later`, after which nothing follows.
    """
    count, most, room = work.shape
    head, tail, counts = np.full(count, np.inf), np.full(count, np.inf), np.ones(count, np.bool_)
    for step in range(len(operator)):
        o = operator[step]
        for c in range(most):
            for p in range(parts[o, c]):
                if allowed[o, c] and seconds[step, c] > 0:
                    counts[o] &= start[step, c, p] > -np.inf and rest[step, c, p] > -np.inf
                    head[o], tail[o] = min(head[o], start[step, c, p]), min(tail[o], rest[step, c, p])
    least, sums = np.full((count, room), np.inf), np.full(count, np.inf)
    done, own = np.zeros(room), np.zeros(room)
    for kind in range(2):
        for o in range(count):
            least[o], sums[o] = np.inf, np.inf
            for c in range(most):
                if allowed[o, c]:
                    total = 0.0
                    for d in range(room):
                        each = work[o, c, d] + kind * later[o, c, d]
                        least[o, d] = min(least[o, d], each)
                        total += each
                    sums[o] = min(sums[o], total)
        for first in range(count):
            done[:] = 0.0
            total, begin, end = common * kind, np.inf, np.inf
            for last in range(first, count):
                if not counts[last] or head[last] == np.inf:
                    continue
                begin, end, total = min(begin, head[last]), min(end, tail[last]), total + sums[last]
                for d in range(room):
                    done[d] += least[last, d]
                around = begin + (min(end, 0.0) if kind else end)
                for o in range(first, last + 1):
                    for c in range(most):
                        if counts[o] and allowed[o, c]:
                            mean, busiest = total - sums[o], 0.0
                            for d in range(room):
                                own[d] = work[o, c, d] + kind * later[o, c, d]
                                mean += own[d]
                                busiest = max(busiest, done[d] - least[o, d] + own[d])
                            found[o, c] = max(found[o, c], around + max(mean / room, busiest))
