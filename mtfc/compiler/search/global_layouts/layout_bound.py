"""The lower bound of a step under many layouts at once: all effects together.

Work is taken to be split over all axes that may split it, and communicating values over those axes alone that surely do
(`effect_bounds.py`). Programs that are small enough for another regime of the cost model have a bound of their own.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator
from functools import cached_property
from itertools import compress
from math import inf
from time import process_time

import attrs
import numpy as np

from mtfc.compiler.analysis.dimension_names import Dims
from mtfc.compiler.cost.device_models import regimes
from mtfc.compiler.cost.hardware import Hardware
from mtfc.compiler.cost.tables.collective_tables import Seconds
from mtfc.compiler.cost.topology import Topology
from mtfc.compiler.search.global_layouts.effect_bounds import (
    Booleans,
    EffectBounds,
    MaskRange,
    SearchSetting,
)
from mtfc.compiler.search.global_layouts.layout_space import Columns, Integers, Rows, union
from mtfc.compiler.search.global_layouts.step_facts import Facts, MemoryFacts
from mtfc.compiler.search.global_layouts.sum_bound import SumBound

BLOCK = 1 << 12
"""Layouts that are bounded between two looks at the clock."""

Alive = dict[tuple[Columns, Columns], Seconds]
"""Bytes at each point, by the columns that split them and the columns that must be whole."""


@attrs.frozen(slots=False, eq=False)
class LayoutBound(SearchSetting):
    """The bound for layouts on one mesh. sums: bounds of pending sums, and alive: live bytes, by their facts."""

    sums: dict[int, SumBound] = attrs.field(factory=dict)
    alive: dict[int, Alive] = attrs.field(factory=dict)

    @cached_property
    def at_once(self) -> int:
        """Number of lanes that work beside the processor."""
        return Topology.of(self.mesh, self.hardware).at_once if self.overlaps else 0

    @cached_property
    def heavy(self) -> list[tuple[Columns, float]]:
        """Seconds of arithmetic by the columns that may split it, most first."""
        found: dict[Columns, float] = defaultdict(float)
        for shard, times in self.step.facts(self.step.mixed).arithmetic.items():
            found[self.columns(shard.dims)] += shard.amount * times
        return sorted(found.items(), key=lambda item: -item[1])

    def known(self, rows: Rows, decided: Columns) -> MaskRange:
        """Return the masks of layouts of which only some columns are decided."""
        return MaskRange(*self.space.bounds(rows, decided, self.mesh))

    def exactly(self, rows: Rows) -> MaskRange:
        """Return the masks of layouts whose columns are all decided."""
        return self.known(rows, frozenset(range(len(self.space.columns))))

    # Memory and arithmetic

    def memory(self, known: MaskRange) -> Seconds:
        """Return the bytes of arguments and gradients, plus the most bytes of other live values, without gathered copies."""
        return self._held(known, self.step.memory)

    def memory_on_device(self, known: MaskRange) -> Seconds:
        """Return the bytes of `memory` that surely have buffers on the device."""
        return self._held(known, self.step.memory_on_device)

    def _held(self, known: MaskRange, facts: MemoryFacts) -> Seconds:
        """Return the least bytes in use on a device at the fullest point of the step, for each layout."""
        if id(facts) not in self.alive:
            self.alive[id(facts)] = self._alive(facts)
        alive, unions = self.alive[id(facts)], dict[Columns, Rows]()
        shares = np.ones((len(known.low), len(alive)))
        for i, (columns, unless) in enumerate(alive):
            for each in (columns, unless):
                if each not in unions:
                    unions[each] = union(known.high, each)
            shares[:, i] = (1 / self.degrees)[unions[columns]] * (unions[unless] == 0)
        most: Seconds = np.max(shares @ np.stack(list(alive.values())), axis=1)
        always = ((self.columns(dims), size) for dims, size in facts.always.items())
        return self._split(known, always) + most

    def _alive(self, facts: MemoryFacts) -> Alive:
        """Return the bytes that are alive at each point, by the columns that split them and the columns that must be whole."""
        found: Alive = {(frozenset(), frozenset()): np.zeros(len(facts.bytes))}
        for kind, column in zip(facts.kinds, facts.bytes.T, strict=True):
            key = self.columns(kind.dims), self.columns(kind.unless)
            found[key] = found.get(key, 0) + column
        return found

    def flops(self, known: MaskRange) -> Seconds:
        """Return the seconds of arithmetic alone."""
        return self._split(known, self.heavy)

    def _split(self, known: MaskRange, parts: Iterable[tuple[Columns, float]]) -> Seconds:
        """Return the sum of some amounts, each divided by the shards of the columns that split it."""
        total = np.zeros(len(known.low))
        for columns, amount in parts:
            total += (amount / self.degrees)[union(known.high, columns)]
        return total

    # The whole step

    def seconds(self, known: MaskRange, until: float = inf) -> Seconds:
        """Return a bound of the step; 0 for rows that are not reached `until` then.

        `until` is a time of `process_time`.
        """
        total = np.zeros(len(known.low))
        for bound, rows in self._regimes(known):
            for facts, some in bound._by_facts(known.where(rows)):
                for start in range(0, len(some), BLOCK):
                    if process_time() > until:
                        return total
                    block = rows[some[start : start + BLOCK]]
                    total[block] = bound._seconds(facts, known.where(block))
        return total

    def alike(self, known: MaskRange) -> Integers:
        """Return a number for each layout, the same for those with the same facts."""
        return self._splits(known)[1]

    def _by_facts(self, known: MaskRange) -> Iterator[tuple[Facts, Integers]]:
        """Yield the layouts that have the same facts together."""
        columns = self._mixed
        names = [
            frozenset(name for name in self.step.mixed if self.space.number.get(name) == i) for i in columns
        ]
        splits, groups = self._splits(known)
        for i, split in enumerate(splits):
            yield (
                self.step.facts(frozenset[str]().union(*compress(names, split))),
                np.flatnonzero(groups == i),
            )

    def _splits(self, known: MaskRange) -> tuple[Booleans, Integers]:
        """Return the sets of mixed columns that may be split, [set, column], and the number of each layout's set."""
        splits, groups = np.unique(known.high[:, self._mixed] != 0, axis=0, return_inverse=True)
        return splits, groups.reshape(-1)

    def mixed_split(self, known: MaskRange) -> Dims:
        """Return the mixed dimensions that one of some layouts may split."""
        may = frozenset(np.flatnonzero(known.high.any(axis=0)).tolist())
        return frozenset(name for name in self.step.mixed if self.space.number.get(name) in may)

    def _regimes(self, known: MaskRange) -> Iterator[tuple[LayoutBound, Integers]]:
        """Yield the bound for each regime of the cost model, with the layouts whose programs may be in it."""
        limits = np.array([limit for limit, _ in self._bounds])
        if len(limits) == 1:
            yield self, np.arange(len(known.low))
            return
        regime = np.searchsorted(limits, self.memory(known))
        for i, (_, bound) in enumerate(self._bounds):
            if (rows := np.flatnonzero(regime == i)).size:
                yield bound, rows

    def least_regime(self, known: MaskRange) -> tuple[float, LayoutBound]:
        """Return the first regime in which a program of these layouts may be: its most bytes, and the bound in it."""
        least = float(np.min(self.memory(known)))
        return next(each for each in self._bounds if least <= each[0])

    @cached_property
    def _bounds(self) -> list[tuple[float, LayoutBound]]:
        """The bytes up to which a regime holds, and the bound in it, in ascending order."""
        return [
            (regime.bytes, self._on(attrs.evolve(self.hardware, device=regime.device)))
            for regime in regimes(self.step.function, self.hardware.device)
        ]

    def _on(self, hardware: Hardware) -> LayoutBound:
        """Return the bound on other hardware."""
        if hardware == self.hardware:
            return self
        return LayoutBound(self.space, self.step.on(hardware.device), self.mesh, hardware, self.overlaps)

    @property
    def _mixed(self) -> list[int]:
        return sorted(self.columns(self.step.mixed))

    def _seconds(self, facts: Facts, known: MaskRange) -> Seconds:
        """Bound a step by its computation, and by each of the lanes that work at the same time."""
        each = EffectBounds(self, known)
        computing = each.total(facts.kernels)
        seconds = computing + self._sums(facts).seconds(each) + each.moved(facts.moved)
        seconds += np.sum(each.halos(), axis=0)
        if self.space.storing:
            seconds += each.stored(facts.stored)
        return np.maximum(computing, seconds / (1 + self.at_once))

    def _sums(self, facts: Facts) -> SumBound:
        if id(facts) not in self.sums:
            self.sums[id(facts)] = SumBound(self, facts)
        return self.sums[id(facts)]
