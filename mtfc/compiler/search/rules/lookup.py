"""What the parts of a step cost at least under some layouts: each is a small table over masks, and rows are looked up in it.

Sums share what completes them: where several arrive at one place together, each answers for an equal part. What a sum costs
is then the least on its route, and since the parts at each place add up to what completing it there costs, all of them
together cost no more than what any choice of places does (a flow is no larger than a cut).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from functools import cached_property
from typing import TypeAlias

import attrs
import numpy as np
from numpy.typing import NDArray

from mtfc.compiler.hardware import Hardware
from mtfc.compiler.ir.core import Value
from mtfc.compiler.ir.types import Mesh
from mtfc.compiler.search.rules.arrays import Pairs
from mtfc.compiler.search.rules.collectives import Collectives, Seconds
from mtfc.compiler.search.rules.gathers import Gather
from mtfc.compiler.search.rules.halos import Halo
from mtfc.compiler.search.rules.moves import Gate, Move, Way
from mtfc.compiler.search.rules.naming import OPTIMIZER, Dims
from mtfc.compiler.search.rules.parts import Parts, Step
from mtfc.compiler.search.rules.space import AXES, Columns, Integers, Rows, Space, union
from mtfc.compiler.search.rules.sums import Route, Stop
from mtfc.compiler.search.rules.work import Moved, Work

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


@attrs.frozen
class _Sum:
    """A route in some rows: the axes that its sum is pending over, until which stops it can be so, and which axes split its use
    along dimensions that it has itself, so that half an all-reduce completes it over these.
    """

    route: Route
    rows: Integers
    pending: Rows
    arrives: list[Booleans]
    scattered: Rows


class Lookup:
    """Some layouts; unions of masks are found once."""

    def __init__(self, setting: Setting, known: Known) -> None:
        self.setting, self.known, self.number = setting, known, len(known.low)
        self._unions: tuple[dict[Columns, Rows], dict[Columns, Rows]] = ({}, {})
        self._alike: dict[Pairs, Rows] = {}
        self._masked: dict[tuple[Dims, int], Booleans] = {}
        self._completed: dict[tuple[int, Columns, Columns, Columns, bytes, bytes, bytes], Seconds] = {}

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
        total, bandwidth = np.zeros(self.number), self.setting.hardware.device.bandwidth.peak
        for work, times in parts.items():
            split = self.high(work.dims)
            for pair in work.alike:
                split = split | self._both(*pair)
            computing = work.seconds / self.setting.degrees[split] + self._loading(work)
            moving = sum(map(self._moved_bytes, work.moved), start=np.zeros(self.number)) / bandwidth
            total += times * work.trips * (np.maximum(computing, moving) + work.overhead)
        return total

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
            self.setting.collectives.alone(size)[over, cut],
            self.setting.collectives.gathering(size)[over, split, cut],
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

    def sums(self, parts: Parts, storage_is_open: bool) -> Seconds:
        """All sums. Where storage is open, a gather follows half an all-reduce of a gradient."""
        gathered = parts.gathered_bytes if storage_is_open else 0
        sums = [each for each in map(self._sum, parts.routes) if len(each.rows)]
        sharing: dict[Value, Seconds] = defaultdict(lambda: np.zeros(self.number))
        for each in sums:
            for stop, arrives in zip(each.route.stops, each.arrives, strict=True):
                sharing[stop.value][each.rows] += arrives
        total = np.zeros(self.number)
        for each in sums:
            again = min(1.0, gathered / each.route.item_bytes) if _is_gradient(each.route) else 0.0
            is_half = each.pending & ~each.scattered == 0
            total[each.rows] += self._least_on(each, sharing) * np.where(is_half, 1 + again, 1)
        return total

    def _sum(self, route: Route) -> _Sum:
        pending = self.low(route.reduced) & ~self.high(route.stops[0].own)
        rows = np.flatnonzero(pending)
        pending, going = pending[rows], np.ones(len(rows), np.bool_)
        arrives, scattered = [going], np.zeros(len(rows), np.uint8)
        for stop in route.stops[1:]:
            free = (self.low(stop.crossed)[rows] & pending) == 0
            most = self.high(stop.crossed)[rows] & pending != 0
            scattered |= np.where(going & most, self.high(stop.moved)[rows], 0).astype(np.uint8)
            going = going & free
            arrives.append(going)
        scattered |= np.where(going, self.high(route.moved)[rows], 0).astype(np.uint8)
        return _Sum(route, rows, pending, arrives, scattered)

    def _least_on(self, sum: _Sum, sharing: Mapping[Value, Seconds]) -> Seconds:
        least = np.full(len(sum.rows), np.inf)
        same = (sum.rows.tobytes(), sum.pending.tobytes(), sum.scattered.tobytes())
        for stop, arrives in zip(sum.route.stops, sum.arrives, strict=True):
            own, made, dims = map(self.setting.columns, (stop.own, stop.made, stop.array.dims))
            key = (stop.array.bytes, own, made, dims, *same)
            if key not in self._completed:
                self._completed[key] = self._completing(sum, stop)
            seconds = self._completed[key]
            shared = stop.array.trips * seconds / np.maximum(sharing[stop.value][sum.rows], 1)
            least = np.where(arrives, np.minimum(least, shared), least)
        return least

    def _completing(self, sum: _Sum, stop: Stop) -> Seconds:
        own, all = self.low(stop.made)[sum.rows], self.high(stop.array.dims)[sum.rows]
        before = (self.high(stop.own)[sum.rows] | all) & ~sum.pending
        table = self.setting.collectives.reduction(stop.array.bytes)
        return self.setting.collectives.completing(table, sum.pending, own, before, sum.scattered)


def _is_gradient(route: Route) -> bool:
    return any(name.startswith(OPTIMIZER) for name in route.moved)
