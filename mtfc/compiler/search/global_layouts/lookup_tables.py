"""What the parts of a step cost at least under some layouts: each is a small table over masks, and rows are looked up in it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import cached_property
from itertools import combinations
from typing import TypeAlias

import attrs
import numpy as np
from numpy.typing import NDArray

from mtfc.compiler.cost.hardware import Hardware
from mtfc.compiler.ir.core import Value
from mtfc.compiler.ir.types import Mesh
from mtfc.compiler.search.global_layouts.collective_bounds import Collectives, Seconds
from mtfc.compiler.search.global_layouts.dimension_names import Dims
from mtfc.compiler.search.global_layouts.halo_bounds import Halo
from mtfc.compiler.search.global_layouts.layout_space import AXES, Columns, Integers, Rows, Space, union
from mtfc.compiler.search.global_layouts.move_bounds import Gate, Move, Way
from mtfc.compiler.search.global_layouts.named_arrays import Pairs
from mtfc.compiler.search.global_layouts.parameter_gathers import Gather
from mtfc.compiler.search.global_layouts.step_parts import Step
from mtfc.compiler.search.global_layouts.work_bound import Copied, Moved, Work

Booleans: TypeAlias = NDArray[np.bool_]

ANY = (1 << len(AXES)) - 1
"""All axes that there may be."""


@attrs.frozen(eq=False)
class Known:
    """What is known of some layouts: [layout, column] is the set of axes that split the dimension at least, and at most."""

    low: Rows
    high: Rows


@attrs.frozen(slots=False, eq=False)
class Setting:
    """A step, its layouts on one mesh, and the machine; and whether communication overlaps with what does not need it."""

    space: Space
    step: Step
    mesh: Mesh
    hardware: Hardware
    overlaps: bool = False
    numbers: dict[Dims, Columns] = attrs.field(factory=dict)

    @cached_property
    def collectives(self) -> Collectives:
        return Collectives(self.mesh, self.hardware)

    @property
    def degrees(self) -> Seconds:
        return self.collectives.degrees

    def columns(self, dims: Dims) -> Columns:
        found = self.numbers.get(dims)
        if found is None:
            number = self.space.number
            found = self.numbers[dims] = frozenset(number[name] for name in dims if name in number)
        return found


class Lookup:
    """Some layouts; unions of masks are found once."""

    def __init__(self, setting: Setting, known: Known) -> None:
        self.setting, self.known, self.number = setting, known, len(known.low)
        self._unions: tuple[dict[Columns, Rows], dict[Columns, Rows]] = ({}, {})
        self._alike: dict[Pairs, Rows] = {}
        self._kernels: dict[Work, Seconds] = {}
        self._masked: dict[tuple[Dims, int], Booleans] = {}

    def low(self, dims: Dims) -> Rows:
        """The axes that are known to split one of the dimensions."""
        return self._union(dims, self.known.low, self._unions[0])

    def high(self, dims: Dims) -> Rows:
        """All axes that can split one of the dimensions."""
        return self._union(dims, self.known.high, self._unions[1])

    def _union(self, dims: Dims, rows: Rows, found: dict[Columns, Rows]) -> Rows:
        columns = self.setting.columns(dims)
        if columns not in found:
            found[columns] = union(rows, columns)
        return found[columns]

    def alike(self, pairs: Pairs) -> Rows:
        """All axes where each pair may be split alike, or else none."""
        if pairs not in self._alike:
            found = np.full(self.number, ANY, np.uint8)
            for one, other in (map(frozenset, zip(pair)) for pair in pairs):
                apart = self.low(one) & ~self.high(other) | self.low(other) & ~self.high(one)
                found[apart != 0] = 0
            self._alike[pairs] = found
        return self._alike[pairs]

    def work(self, parts: Mapping[Work, int]) -> Seconds:
        """All work, by the roofline at peak rates."""
        total = np.zeros(self.number)
        for work, times in parts.items():
            total += times * self.kernel(work)
        return total

    def kernel(self, work: Work) -> Seconds:
        """All times that a kernel of this work runs."""
        if work not in self._kernels:
            self._kernels[work] = self._kernel(work)
        return self._kernels[work]

    def _kernel(self, work: Work) -> Seconds:
        split = self.high(work.dims)
        for pair in work.alike:
            split = split | self._both(*pair)
        computing = work.seconds / self.setting.degrees[split] + self._loading(work)
        moving = sum(map(self._moved_bytes, work.moved), start=np.zeros(self.number))
        seconds = np.maximum(computing, moving / self.setting.hardware.device.bandwidth.peak)
        copying = sum(map(self._copying, work.copied), start=np.zeros(self.number))
        return work.trips * (seconds + work.overhead + copying)

    def _both(self, one: str, other: str) -> Rows:
        """The axes that may split both dimensions, if they may be split alike."""
        both = self.high(frozenset((one,))) & self.high(frozenset((other,)))
        return both & self.alike(frozenset(((one, other),)))

    def _loading(self, work: Work) -> Seconds | float:
        """Of the factor that takes less."""
        loads = [seconds / self.setting.degrees[self.high(dims)] for seconds, dims in work.loads]
        return np.min(loads, axis=0) if loads else 0.0

    def _moved_bytes(self, moved: Moved) -> Seconds:
        sizes = [each.bytes / self.setting.degrees[self.high(each.dims)] for each in moved.arrays]
        least: Seconds = np.min(sizes, axis=0)
        for pair in moved.unless:
            least = np.where(self._both(*pair) == 0, least, 0)
        return least

    def _copying(self, copied: Copied) -> Seconds:
        """Nothing where what is copied may be resharded before: see `Copied`."""
        columns, device = self.setting.columns, self.setting.hardware.device
        moved = self._shared(columns(copied.beside))
        for stored, own in ((frozenset((one,)), frozenset((other,))) for one, other in copied.names):
            if columns(stored) != columns(own):
                moved = moved | (self.high(stored) & ~self.low(own))
        split = self.high(frozenset(own for _, own in copied.names))
        seconds = copied.bytes / self.setting.degrees[split] / device.bandwidth.peak + device.overhead
        return np.where(moved == 0, seconds, 0.0)

    def _shared(self, columns: Columns) -> Rows:
        """The axes that two of some columns may have; no two that some tensor has do."""
        found, space, high = np.zeros(self.number, np.uint8), self.setting.space, self.known.high
        for one, other in combinations(sorted(columns), 2):
            if other not in space.columns[one].beside:
                found |= high[:, one] & high[:, other]
        return found

    def halos(self) -> Seconds:
        """What shards send and join where all that is met of a dimension is split over the same axes."""
        total = np.zeros(self.number)
        for mask in np.flatnonzero(self.setting.degrees > 1).tolist():
            for halo, times in self.setting.step.halos(int(self.setting.degrees[mask])).items():
                rows = np.flatnonzero(
                    np.logical_or.reduce([self._all_are(dims, mask) for dims in halo.alike])
                )
                if len(rows):
                    others = self.high(halo.array.dims)[rows] & ~np.uint8(mask)
                    local = halo.array.bytes / self.setting.degrees[others | mask]
                    total[rows] += times * halo.array.trips * self._halo(halo, mask, local)
        return total

    def _halo(self, halo: Halo, mask: int, local: Seconds) -> Seconds:
        if halo.hops is not None:
            return self.setting.collectives.shifting(mask, halo.hops, local)
        device = self.setting.hardware.device
        return local / device.bandwidth.peak + device.overhead

    def _all_are(self, dims: Dims, mask: int) -> Booleans:
        """Where all dimensions are known to be split over these axes; one that loops run along never is."""
        key = (dims, mask)
        if key not in self._masked:
            columns = sorted(self.setting.columns(dims))
            known = (self.known.low[:, columns] == mask) & (self.known.high[:, columns] == mask)
            self._masked[key] = known.all(axis=1) & (dims <= self.setting.space.number.keys())
        return self._masked[key]

    def gathers(self, gathers: Mapping[Gather, int]) -> Seconds:
        """Each axis that what is stored is split over and its use is not: half of an all-reduce, when the others are gathered."""
        total = np.zeros(self.number)
        for gather, times in gathers.items():
            seconds = self._by_dims(gather) if gather.pairs else self._by_axes(gather)
            total += times * gather.array.trips * seconds
        return total

    def _by_axes(self, gather: Gather) -> Seconds:
        most = self.high(gather.own)
        over = self.low(gather.array.dims) & ~most
        table = self.setting.collectives.reduction(gather.array.bytes)
        return self.setting.collectives.completing(table, over, self.low(gather.own), most, over)

    def _by_dims(self, gather: Gather) -> Seconds:
        """All axes of a dimension are gathered at once, one dimension after the other; the last one when no other is split."""
        overs, mosts = [], []
        for before, after in gather.pairs:
            one, other = frozenset((before,)), frozenset((after,))
            overs.append(self.low(one) & ~self.high(other))
            mosts.append(self.high(one) & ~self.low(other))
        total, later = np.zeros(self.number), np.full(self.number, np.inf)
        every = np.bitwise_or.reduce([total.astype(np.uint8), *overs], axis=0)
        cut = self.high(gather.array.dims)
        for over, most in zip(overs, mosts, strict=True):
            first, last = (self._gathered(gather, over, most, cut & ~gone) for gone in (over, every))
            total += first
            later = np.where(over != 0, np.minimum(later, last - first), later)
        return total + np.where(every != 0, later, 0)

    def _gathered(self, gather: Gather, over: Rows, most: Rows, cut: Rows) -> Seconds:
        """Over some axes, or over more where `most` are not those."""
        size, split = gather.array.bytes, self.low(gather.own) & ~over
        exact, least = (
            self.setting.collectives.exactly(size)[over, cut],
            self.setting.collectives.reduction(size)[over, split, cut],
        )
        return np.where(over == most, exact, least) / 2

    def moves(self, moves: Iterable[Move]) -> Seconds:
        """All data that changes places; where some of several shares a way, each answers for a part."""
        found = [(move, [self._leaving(move, way) for way in move.ways]) for move in moves]
        sharing: dict[Value, Integers] = {}
        nothing = np.zeros(self.number, np.uint8)
        for move, masks in found:
            on: dict[Value, Rows] = {}
            for way, over in zip(move.ways, masks, strict=True):
                on.update({value: on.get(value, nothing) | over for value in way.values})
            for value, leaving in on.items():
                sharing[value] = sharing.get(value, 0) + (leaving != 0)
        total = np.zeros(self.number)
        for move, masks in found:
            seconds = [self._moved(way, over, sharing) for way, over in zip(move.ways, masks, strict=True)]
            total += move.trips * np.max(seconds, axis=0)
        return total

    def _leaving(self, move: Move, way: Way) -> Rows:
        """The axes that split a dimension of what is made, and not as what reads it knows that."""
        contested, once = np.zeros(self.number, np.uint8), np.zeros(self.number, np.uint8)
        for column in self.setting.columns(frozenset(move.beside)):
            mask = self.known.high[:, column]
            contested |= once & mask
            once |= mask
        leaving = np.zeros(self.number, np.uint8)
        for old, new, pairs in way.names:
            stays = self.high(frozenset(filter(None, (new,)))) & self.alike(pairs)
            leaving |= self.low(frozenset((old,))) & ~stays
        return leaving & ~contested

    def _moved(self, way: Way, leaving: Rows, sharing: Mapping[Value, Integers]) -> Seconds:
        seconds, rows = np.zeros(self.number), np.flatnonzero(leaving)
        if not len(rows):
            return seconds
        shared = np.max([sharing[value][rows] for value in way.values], axis=0)
        over, nothing = leaving[rows], np.zeros(len(rows), np.uint8)
        table, all = self.setting.collectives.exchanging(way.bytes), self.high(way.dims)[rows] | over
        most = self.setting.collectives.completing(table, over, nothing, all, nothing)
        for gate in way.gates:
            gone, all = over & ~self._passing(gate)[rows], self.high(gate.dims)[rows]
            table = self.setting.collectives.gathering(gate.bytes)
            most = np.maximum(
                most, self.setting.collectives.completing(table, gone, nothing, all & ~gone, gone)
            )
        seconds[rows] = most / shared
        return seconds

    def _passing(self, gate: Gate) -> Rows:
        """The axes that can split what passes."""
        found = np.zeros(self.number, np.uint8)
        for size, names, pairs in gate.carriers:
            for name in names:
                low, high = self.low(frozenset((name,))), self.high(frozenset((name,))) & self.alike(pairs)
                found |= np.where(size % self.setting.degrees[low] == 0, high, 0).astype(np.uint8)
        return found
