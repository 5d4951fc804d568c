"""What a step costs at least under many layouts at once.

A layout is a row of bit masks, the axes that split each dimension (`layout_space.py`). Everything in a bound depends on unions of
masks: a processor does 1/n of the work on the dimensions D, where n are the processors along all axes that split one of D. So
each part of the step (`step_parts.py`) is a small table over masks, and rows are looked up in it together. Of a dimension that is not
decided yet it is known which axes can split it: none that splits another dimension of one of its tensors. Work is taken to be
split over all of them, and what communicates over none (`Known`).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from functools import cached_property
from itertools import compress
from math import inf
from time import monotonic

import attrs
import numpy as np

from mtfc.compiler.cost.topology import Topology
from mtfc.compiler.search.global_layouts.collective_bounds import Seconds
from mtfc.compiler.search.global_layouts.dimension_names import Dims
from mtfc.compiler.search.global_layouts.layout_space import Columns, Integers, Rows, union
from mtfc.compiler.search.global_layouts.lookup_tables import Booleans, Known, Lookup, Setting
from mtfc.compiler.search.global_layouts.step_parts import Parts
from mtfc.compiler.search.global_layouts.sum_flow import Flow

BLOCK = 1 << 12
"""Layouts that are bounded between two looks at the clock."""


@attrs.frozen(slots=False, eq=False)
class Bound(Setting):
    """For layouts on one mesh. flows: of parts that were met."""

    flows: dict[int, Flow] = attrs.field(factory=dict)

    @cached_property
    def at_once(self) -> int:
        """How many lanes work beside the processor."""
        return Topology.of(self.mesh, self.hardware).at_once if self.overlaps else 0

    @cached_property
    def heavy(self) -> list[tuple[Columns, float]]:
        """Seconds of FLOPs by the columns that they can be split over, most first."""
        found: dict[Columns, float] = defaultdict(float)
        for work, times in self.step.parts(self.step.mixed).work.items():
            found[self.columns(work.dims)] += work.seconds * work.trips * times
        return sorted(found.items(), key=lambda item: -item[1])

    def known(self, rows: Rows, decided: Columns) -> Known:
        """What is known of layouts of which only some columns are decided."""
        return Known(*self.space.bounds(rows, decided, self.mesh))

    def memory(self, known: Known) -> Seconds:
        """Bytes of arguments and gradients, and of the most that is there besides; not of what is gathered."""
        unions: dict[Columns, Rows] = {}
        shares = np.ones((len(known.low), len(self._alive)))
        for i, (columns, unless) in enumerate(self._alive):
            for each in (columns, unless):
                if each not in unions:
                    unions[each] = union(known.high, each)
            shares[:, i] = (1 / self.degrees)[unions[columns]] * (unions[unless] == 0)
        most: Seconds = np.max(shares @ np.stack(list(self._alive.values())), axis=1)
        return self._split(known, self._by_columns(self.step.held)) + most

    @cached_property
    def _alive(self) -> dict[tuple[Columns, Columns], Seconds]:
        """What is alive at each point, by the columns that split it and those that must be whole."""
        points = self.step.alive
        found: dict[tuple[Columns, Columns], Seconds] = {
            (frozenset(), frozenset()): np.zeros(len(points.bytes))
        }
        for kind, bytes in zip(points.kinds, points.bytes.T, strict=True):
            key = self.columns(kind.dims), self.columns(kind.unless)
            found[key] = found.get(key, 0) + bytes
        return found

    def _by_columns(self, sizes: Mapping[Dims, int]) -> list[tuple[Columns, float]]:
        return [(self.columns(dims), size) for dims, size in sizes.items()]

    def flops(self, known: Known) -> Seconds:
        """Seconds of the FLOPs alone."""
        return self._split(known, self.heavy)

    def _split(self, known: Known, parts: Iterable[tuple[Columns, float]]) -> Seconds:
        total = np.zeros(len(known.low))
        for columns, amount in parts:
            total += (amount / self.degrees)[union(known.high, columns)]
        return total

    def seconds(self, known: Known, storage_is_open: bool = False, until: float = inf) -> Seconds:
        """Everything; with the best storage where that is open. Nothing of layouts that it does not come to `until` a time of
        `time.monotonic`.
        """
        return self._by_place(known, lambda bound, some: bound._of_each(some, storage_is_open, until))

    def _of_each(self, known: Known, storage_is_open: bool, until: float) -> Seconds:
        columns = self._mixed
        names = [
            frozenset(name for name in self.step.mixed if self.space.number.get(name) == i) for i in columns
        ]
        splits, groups = self._splits(known)
        total = np.zeros(len(known.low))
        for i, split in enumerate(splits):
            rows = np.flatnonzero(groups == i)
            if monotonic() > until:
                break
            parts = self.step.parts(frozenset[str]().union(*compress(names, split)))
            self._bound(total, rows, parts, known, storage_is_open, until)
        return total

    def alike(self, known: Known) -> Integers:
        """Which layouts have the same parts: for each the number of its."""
        return self._splits(known)[1]

    def _splits(self, known: Known) -> tuple[Booleans, Integers]:
        """The sets of mixed columns that may be split, [set, column], and the number of each layout's."""
        splits, groups = np.unique(known.high[:, self._mixed] != 0, axis=0, return_inverse=True)
        return splits, groups.reshape(-1)

    def sure_seconds(self, known: Known, storage_is_open: bool = False, until: float = inf) -> Seconds:
        """The same of what is sure however the dimensions are split whose positions some op mixes: found sooner, and less."""
        return self._by_place(known, lambda bound, some: bound._of_sure(some, storage_is_open, until))

    def _of_sure(self, known: Known, storage_is_open: bool, until: float) -> Seconds:
        mixed = frozenset(name for name in self.step.mixed if self.space.number.get(name) in self._mixed)
        total = np.zeros(len(known.low))
        self._bound(total, np.arange(len(total)), self.step.parts(mixed), known, storage_is_open, until)
        return total

    def _by_place(self, known: Known, seconds: Callable[[Bound, Known], Seconds]) -> Seconds:
        """The bounds, of layouts with which the program may lie in the processor's own memory those of such programs."""
        own = self.hardware.device.own
        if own is None or self._resident is None:
            return seconds(self, known)
        total, is_small = np.zeros(len(known.low)), self.memory(known) <= own.bytes
        for bound, some in ((self, ~is_small), (self._resident, is_small)):
            if some.any():
                total[some] = seconds(bound, Known(known.low[some], known.high[some]))
        return total

    @cached_property
    def _resident(self) -> Bound | None:
        """For such programs (`tpu/scratchpad.py`). What they move is not known, nor what kernels they have."""
        device = self.hardware.device
        if device.own is None or any(eqn.regions for eqn in self.step.function.body):
            return None
        hardware = attrs.evolve(self.hardware, device=device.weightless)
        return Bound(self.space, self.step.weightless, self.mesh, hardware, self.overlaps)

    def _bound(
        self, total: Seconds, rows: Integers, parts: Parts, known: Known, is_open: bool, until: float
    ) -> None:
        """Write the bounds of some rows, as far as time allows."""
        for start in range(0, len(rows), BLOCK):
            if monotonic() > until:
                break
            some = rows[start : start + BLOCK]
            total[some] = self._seconds(parts, Known(known.low[some], known.high[some]), is_open)

    @property
    def _mixed(self) -> list[int]:
        return sorted(self.columns(self.step.mixed))

    def _seconds(self, parts: Parts, known: Known, storage_is_open: bool) -> Seconds:
        """A step takes as long as it computes, and as long as each of the lanes that work at once."""
        each = Lookup(self, known)
        computing = each.work(parts.work)
        seconds = (
            computing
            + self._flow(parts).seconds(each, storage_is_open)
            + each.moves(parts.moves)
            + each.halos()
        )
        if self.space.storing:
            seconds += each.gathers(parts.gathers)
        return np.maximum(computing, seconds / (1 + self.at_once))

    def _flow(self, parts: Parts) -> Flow:
        if id(parts) not in self.flows:
            self.flows[id(parts)] = Flow(self, parts)
        return self.flows[id(parts)]
