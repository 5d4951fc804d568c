"""Lower bounds of effects for many layouts at once.

A layout is a row of bit masks: the axes that split each dimension (`layout_space.py`). A shard depends on the union of the masks
of its dimensions. So each term is a small table over masks, in which all rows are looked up together. Of a dimension that is not
decided yet, the axes are known that may split it, and those that surely do (`MaskRange`).

The lower bound of completing all pending sums of a step, for many layouts at once.

Over each axis a sum is completed at one stop of its route: before the first equation that the axis splits. A sum over several
axes may be completed at several stops: at one stop over some axes, at a later stop over the others. The cost of the sum is at
least the minimum over all orders of its axes, with each step at its cheapest stop.

Sums share the collectives that complete them. Where several sums end at one stop, each answers for a part, the same part whatever
axes it ends over there. No sum ends twice at one stop, and none costs more alone than all that end there together. The parts at
each stop add up to one, so all sums together cost no more than any choice of stops: a flow is no larger than a cut. Parts are in
proportion to the cost of each sum by itself, so that cheap sums leave room for those that cost much everywhere.

Small sums may travel with others, and then cost nothing but their bytes. But a sum that arises from another completed sum cannot
travel with it: a chain of such sums takes the latency of as many collectives. All sums together add the time of their bytes to
that, wherever they travel.

A completed sum is sent, and therefore stored and read again. So kernels that would not store the sum take longer.

When most columns are decided, layouts are few and stops are many. So all stops of all routes are looked up together.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import cached_property, reduce
from itertools import combinations
from typing import TypeAlias

import attrs
import numpy as np
from numpy.typing import NDArray

from mtfc.compiler.analysis.dimension_names import Dims, Pairs
from mtfc.compiler.cost.effects.moved_data import DataPath, Gate, Halo, MovedData, SpreadKeys, StoredParameter
from mtfc.compiler.cost.effects.pending_sums import SumStop
from mtfc.compiler.cost.hardware import Hardware
from mtfc.compiler.cost.lower_bounds import Least, Most, ShardedAmount, Term, Total, Unless, Unmoved
from mtfc.compiler.cost.tables.collective_tables import CollectiveTables, Seconds
from mtfc.compiler.cost.topology import COMBINED
from mtfc.compiler.ir.core import Value
from mtfc.compiler.ir.types import Mesh
from mtfc.compiler.search.global_layouts.layout_space import AXES, Columns, Integers, LayoutSpace, Rows, union
from mtfc.compiler.search.global_layouts.step_facts import Facts, StepFacts

Booleans: TypeAlias = NDArray[np.bool_]

ANY = (1 << len(AXES)) - 1
"""The mask of all axes that a mesh may have."""


@attrs.frozen(eq=False)
class MaskRange:
    """Partially decided layouts: [layout, column] has the axes that surely split a dimension, and the axes that may split it."""

    low: Rows
    high: Rows

    def where(self, kept: Booleans | Integers) -> MaskRange:
        """Return the layouts that a mask or an index selects."""
        return MaskRange(self.low[kept], self.high[kept])


@attrs.frozen(slots=False, eq=False)
class SearchSetting:
    """A step, its layouts on one mesh, and the machine.

    space: the columns of the layouts. overlaps: True if communication overlaps with independent computation. numbers: the
    columns of sets of dimensions that were asked for.
    """

    space: LayoutSpace
    step: StepFacts
    mesh: Mesh
    hardware: Hardware
    overlaps: bool = False
    numbers: dict[Dims, Columns] = attrs.field(factory=dict)

    @cached_property
    def collectives(self) -> CollectiveTables:
        return CollectiveTables(self.mesh, self.hardware)

    @property
    def degrees(self) -> Seconds:
        """Return the number of shards by the mask of the axes that split a dimension, as floats."""
        return self.collectives.degrees

    def columns(self, dims: Dims) -> Columns:
        """Return the columns of the layouts that decide dimensions; some dimensions have none."""
        found = self.numbers.get(dims)
        if found is None:
            number = self.space.number
            found = self.numbers[dims] = frozenset(number[name] for name in dims if name in number)
        return found


class EffectBounds:
    """The bounds of single effects for some layouts: terms, halos, stored parameters and moved data.

    Unions of masks and values of terms are found once.
    """

    def __init__(self, setting: SearchSetting, known: MaskRange) -> None:
        """Bound the layouts `known`.

        number: the number of layouts. The other fields keep unions and values that were found.
        """
        self.setting, self.known, self.number = setting, known, len(known.low)
        self._unions: tuple[dict[Columns, Rows], dict[Columns, Rows]] = ({}, {})
        self._alike: dict[Pairs, Rows] = {}
        self._terms: dict[Term, Seconds] = {}
        self._masked: dict[tuple[Dims, int], Booleans] = {}

    # Masks

    def low(self, dims: Dims) -> Rows:
        """Return the axes that surely split one of the dimensions."""
        return self._union(dims, self.known.low, self._unions[0])

    def high(self, dims: Dims) -> Rows:
        """Return all axes that may split one of the dimensions."""
        return self._union(dims, self.known.high, self._unions[1])

    def _union(self, dims: Dims, rows: Rows, found: dict[Columns, Rows]) -> Rows:
        """Return the union of the masks of dimensions, which is found once. found: the unions so far."""
        columns = self.setting.columns(dims)
        if columns not in found:
            found[columns] = union(rows, columns)
        return found[columns]

    def alike(self, pairs: Pairs) -> Rows:
        """Return all axes where both dimensions of each pair may be split alike, and none elsewhere."""
        if pairs not in self._alike:
            found = np.full(self.number, ANY, np.uint8)
            for one, other in (map(frozenset, zip(pair)) for pair in pairs):
                apart = self.low(one) & ~self.high(other) | self.low(other) & ~self.high(one)
                found[apart != 0] = 0
            self._alike[pairs] = found
        return self._alike[pairs]

    def _both(self, one: str, other: str) -> Rows:
        """Return the axes that may split both dimensions, if these may be split alike."""
        both = self.high(frozenset((one,))) & self.high(frozenset((other,)))
        return both & self.alike(frozenset(((one, other),)))

    # Terms

    def total(self, terms: Mapping[Term, int] | Mapping[ShardedAmount, int]) -> Seconds:
        """Return the sum of some terms, each multiplied by its number."""
        total = np.zeros(self.number)
        for term, times in terms.items():
            total += times * self.term(term)
        return total

    def term(self, term: Term) -> Seconds:
        """Return the values of a term."""
        if term not in self._terms:
            self._terms[term] = self._term(term)
        return self._terms[term]

    def _term(self, term: Term) -> Seconds:
        """Return the least value of a term under each partly decided layout. [layout]

        An amount is divided by as many shards as the layout may still allow.
        """
        match term:
            case ShardedAmount(amount, dims, alike):
                split = self.high(dims)
                for pair in alike:
                    split = split | self._both(*pair)
                shard: Seconds = (amount / self.setting.degrees)[split]
                return shard
            case Least(terms):
                return reduce(np.minimum, map(self._term, terms))
            case Most(terms):
                return reduce(np.maximum, map(self._term, terms))
            case Total(terms, times):
                total = reduce(np.add, map(self._term, terms)) if terms else np.zeros(self.number)
                return total if times == 1 else times * total
            case Unless(inner, pairs):
                counts = np.logical_and.reduce([self._both(*pair) == 0 for pair in pairs])
                return np.where(counts, self._term(inner), 0.0)
            case Unmoved(inner, names, beside):
                return np.where(self._moved(names, beside) == 0, self._term(inner), 0.0)

    def _moved(self, names: Iterable[tuple[str, str]], beside: Dims) -> Rows:
        """Return the axes for which an array may be moved before its use: see `Unmoved`."""
        columns = self.setting.columns
        moved = self._shared(columns(beside))
        for stored, own in ((frozenset((one,)), frozenset((other,))) for one, other in names):
            if columns(stored) != columns(own):
                moved = moved | (self.high(stored) & ~self.low(own))
        return moved

    def _shared(self, columns: Columns) -> Rows:
        """Return the axes that two of some columns may have; two dimensions of one tensor never share an axis."""
        found, space, high = np.zeros(self.number, np.uint8), self.setting.space, self.known.high
        for one, other in combinations(sorted(columns), 2):
            if other not in space.columns[one].beside:
                found |= high[:, one] & high[:, other]
        return found

    # Halos

    def halos(self, some: Mapping[int, Mapping[Halo, int]] | None = None) -> tuple[Seconds, Seconds]:
        """Return the seconds on links and the seconds of kernels for halos, if all dimensions of a region are split over the same
        axes.

        some: the halos to count, by the number of shards; all halos if None.
        """
        sent, joined = np.zeros(self.number), np.zeros(self.number)
        for mask in np.flatnonzero(self.setting.degrees > 1).tolist():
            shards = int(self.setting.degrees[mask])
            halos = self.setting.step.halos(shards) if some is None else some.get(shards, {})
            for halo, times in halos.items():
                rows = np.flatnonzero(
                    np.logical_or.reduce([self._all_are(dims, mask) for dims in halo.alike])
                )
                if len(rows):
                    others = self.high(halo.array.dims)[rows] & ~np.uint8(mask)
                    local = halo.array.bytes / self.setting.degrees[others | mask]
                    seconds = sent if halo.hops is not None else joined
                    seconds[rows] += times * halo.array.trips * self._halo(halo, mask, local)
        return sent, joined

    def _halo(self, halo: Halo, mask: int, local: Seconds) -> Seconds:
        """Return the seconds of a halo over the axes in a mask: a shift, or a kernel. local: its bytes on a device."""
        if halo.hops is not None:
            return self.setting.collectives.shifting(mask, halo.hops, local)
        device = self.setting.hardware.device
        return local / device.bandwidth.peak + device.overhead

    def _all_are(self, dims: Dims, mask: int) -> Booleans:
        """Return where all dimensions are surely split over exactly these axes; never where loops run along one."""
        key = (dims, mask)
        if key not in self._masked:
            columns = sorted(self.setting.columns(dims))
            known = (self.known.low[:, columns] == mask) & (self.known.high[:, columns] == mask)
            self._masked[key] = known.all(axis=1) & (dims <= self.setting.space.number.keys())
        return self._masked[key]

    # Stored parameters

    def stored(self, parameters: Mapping[StoredParameter, int]) -> Seconds:
        """Return the seconds to gather parameters over each axis that splits them in storage and not at their use."""
        total = np.zeros(self.number)
        for parameter, times in parameters.items():
            seconds = self._by_dims(parameter) if parameter.pairs else self._by_axes(parameter)
            total += times * parameter.array.trips * seconds
        return total

    def _by_axes(self, parameter: StoredParameter) -> Seconds:
        """Return the seconds of a stored parameter's collectives, over the axes that surely split it where it is stored and
        not where it is used.
        """
        most = self.high(parameter.used)
        over = self.low(parameter.array.dims) & ~most
        table = self.setting.collectives.reduction(parameter.array.bytes)
        return self.setting.collectives.completing(table, over, self.low(parameter.used), most, over)

    def _by_dims(self, parameter: StoredParameter) -> Seconds:
        """Gather all axes of a dimension at once, one dimension after the other; the last one when no other is split."""
        overs, mosts = [], []
        for before, after in parameter.pairs:
            one, other = frozenset((before,)), frozenset((after,))
            overs.append(self.low(one) & ~self.high(other))
            mosts.append(self.high(one) & ~self.low(other))
        total, later = np.zeros(self.number), np.full(self.number, np.inf)
        every = np.bitwise_or.reduce([total.astype(np.uint8), *overs], axis=0)
        cut = self.high(parameter.array.dims)
        for over, most in zip(overs, mosts, strict=True):
            first, last = (self._gathered(parameter, over, most, cut & ~gone) for gone in (over, every))
            total += first
            later = np.where(over != 0, np.minimum(later, last - first), later)
        return total + np.where(every != 0, later, 0)

    def _gathered(self, parameter: StoredParameter, over: Rows, most: Rows, cut: Rows) -> Seconds:
        """Return the seconds of a gather over some axes, or over more where `most` are not those."""
        size, split = parameter.array.bytes, self.low(parameter.used) & ~over
        exact = self.setting.collectives.exactly(size)[over, cut]
        least = self.setting.collectives.reduction(size)[over, split, cut]
        return np.where(over == most, exact, least) / 2

    # Moved data

    def moved(self, moved: Iterable[MovedData]) -> Seconds:
        """Return the seconds of all data that changes its placement. Data that share a path also share its cost."""
        found = [(data, [self._leaving(data, path) for path in data.paths]) for data in moved]
        sharing: dict[Value, Integers] = {}
        nothing = np.zeros(self.number, np.uint8)
        for data, masks in found:
            on: dict[Value, Rows] = {}
            for path, over in zip(data.paths, masks, strict=True):
                on.update({value: on.get(value, nothing) | over for value in path.values})
            for value, leaving in on.items():
                sharing[value] = sharing.get(value, 0) + (leaving != 0)
        total = np.zeros(self.number)
        for data, masks in found:
            paths = zip(data.paths, masks, strict=True)
            total += data.trips * np.max([self._path(path, over, sharing) for path, over in paths], axis=0)
        return total

    def _leaving(self, data: MovedData, path: DataPath) -> Rows:
        """Return the axes that split a dimension of the data, and not the same dimension at the end of the path."""
        leaving = np.zeros(self.number, np.uint8)
        for old, new, pairs in path.names:
            stays = self.high(frozenset(filter(None, (new,)))) & self.alike(pairs)
            leaving |= self.low(frozenset((old,))) & ~stays
        return leaving & ~self._shared(self.setting.columns(frozenset(data.beside)))

    def _path(self, path: DataPath, leaving: Rows, sharing: Mapping[Value, Integers]) -> Seconds:
        """Return the least seconds of the exchanges along one path of moved data, for each layout.

        leaving: the axes that data leaves the path's start with. sharing: by value, the number of paths that share its
        exchange.
        """
        seconds, rows = np.zeros(self.number), np.flatnonzero(leaving)
        if not len(rows):
            return seconds
        shared = np.max([sharing[value][rows] for value in path.values], axis=0)
        over, nothing = leaving[rows], np.zeros(len(rows), np.uint8)
        collectives = self.setting.collectives
        table, every = collectives.exchanging(path.bytes), self.high(path.dims)[rows] | over
        most = collectives.completing(table, over, nothing, every, nothing)
        if path.gates[-1].spread is not None:
            most = np.zeros(len(rows))
        for gate in path.gates:
            gone, every = over & ~self._passing(gate)[rows], self.high(gate.dims)[rows]
            table = collectives.gathering(gate.bytes)
            gathered = collectives.completing(table, gone, nothing, every & ~gone, gone)
            if gate.spread is not None:
                gathered = np.minimum(gathered, self._spread(gate, gate.spread, gone, rows))
            most = np.maximum(most, gathered)
        seconds[rows] = most / shared
        return seconds

    def _spread(self, gate: Gate, spread: SpreadKeys, gone: Rows, rows: Integers) -> Seconds:
        """Return the seconds of keys that are not gathered, where it is known which axes split their sequence."""
        collectives, nothing = self.setting.collectives, np.zeros(len(rows), np.uint8)
        table, every = collectives.exchanging(spread.exchanged), self.high(spread.dims)[rows] | gone
        exchanged = collectives.completing(table, gone, nothing, every, nothing)
        ring, degrees = np.zeros(len(rows)), self.setting.degrees
        for mask in np.unique(gone[gone != 0]).tolist():
            at = gone == mask
            local = gate.bytes / degrees[every[at]]
            ring[at] = (degrees[mask] - 1) * collectives.shifting(mask, 1, local)
        found: Seconds = np.where(self.high(spread.sequence)[rows] == gone, np.minimum(exchanged, ring), 0.0)
        return found

    def _passing(self, gate: Gate) -> Rows:
        """Return the axes that may split the data as it passes a gate."""
        found = np.zeros(self.number, np.uint8)
        for size, names, pairs in gate.carriers:
            for name in names:
                low, high = self.low(frozenset((name,))), self.high(frozenset((name,))) & self.alike(pairs)
                found |= np.where(size % self.setting.degrees[low] == 0, high, 0).astype(np.uint8)
        return found


LEAST = 1e-30
"""Nearly zero seconds, which can be a divisor."""

AT_ONCE = 1 << 18
"""The number of stops of layouts that are looked up together; more stops would not fit in the processor's caches."""


Find: TypeAlias = Callable[[Iterable[Dims]], Rows]
"""Axes that split one of some dimensions: [dimensions, layout]."""


@attrs.frozen(eq=False)
class _SumTables:
    """The pending sums of some layouts, as masks of axes.

    A route is the way of one sum through a step; a stop is a value on a route where the sum may be completed (`SumRoute`,
    `SumStop`).

    By [route, layout]: `pending` are the axes that a sum is pending over where it arises; `halved` are the axes over which half
    an all-reduce completes the sum. By [stop, layout]: `left` are the axes that the sum may still be pending over at the stop;
    `made` are axes that surely split the value made there, `most` all axes that can; `longer` is the additional time of kernels
    if the sum is completed there.
    """

    pending: Rows
    halved: Rows
    left: Rows
    made: Rows
    most: Rows
    longer: Seconds


@attrs.frozen(eq=False)
class _AlikeSums:
    """Sums that are pending over the same axes where they arise, and their places: the stops of all sums, one sum after another.

    layouts: the layout of each sum. first: the first place of each sum. sums, stops: of each place. comes: True at a place that
    the pending sum may reach. costs: by the axes that a sum is pending over, and those of them that it ends over, the cost at
    each place.
    """

    axes: int
    layouts: Integers
    first: Integers
    sums: Integers
    stops: Integers
    comes: Booleans
    costs: Mapping[tuple[int, int], Seconds]

    def least(self, parts: Seconds | float = 1.0) -> Seconds:
        """Return the least cost of each sum over all orders, if the sum pays these parts of the cost at its places."""
        found: dict[int, Seconds] = {}
        for (pending, over), costs in self.costs.items():
            later = found.get(pending & ~over, 0.0)
            seconds = np.minimum.reduceat(costs * parts, self.first) + later
            found[pending] = np.minimum(found.get(pending, np.inf), seconds)
        return found[self.axes]


@attrs.frozen(slots=False, eq=False)
class SumBound:
    """The routes of a step on one mesh. Arrays of stops hold the stops that count, route by route."""

    setting: SearchSetting
    facts: Facts

    def seconds(self, each: EffectBounds) -> Seconds:
        """Return the seconds of all sums."""

        total = np.zeros(each.number)
        number = max(1, AT_ONCE // max(1, len(self._stops)))
        for start in range(0, each.number if self._stops else 0, number):
            rows = slice(start, start + number)
            sums = self._sums(each, rows)
            total[rows] = self._flow(sums, self._sizes)
            if self.facts.preceding:
                waiting = sum(map(self._in_turn, self._latencies(sums)), np.zeros(sums.pending.shape[1]))
                total[rows] = np.maximum(total[rows], waiting + self._flow(sums, self._added))
        return total

    def _latencies(self, sums: _SumTables) -> Iterator[Seconds]:
        """Yield for each axis its part in the latency of completing each sum: [route, layout]."""
        starts = np.array([[route.starts] for route in self.facts.routes])
        for axis, seconds in enumerate(self.setting.collectives.starting):
            share = (sums.pending >> axis & 1) * (1 - 0.5 * (sums.halved >> axis & 1))
            yield seconds * share * starts

    def _in_turn(self, latencies: Seconds) -> Seconds:
        """Return the latency of sums that surely run one after the other over an axis."""
        total = latencies.copy()
        for i, before in enumerate(self.facts.preceding):
            if before:
                total[i] += np.max(total[list(before)], axis=0)
        longest: Seconds = np.max(total, axis=0, initial=0.0)
        return longest

    @cached_property
    def _stops(self) -> list[SumStop]:
        return [stop for route in self.facts.routes for stop in route.stops if stop.counts]

    @cached_property
    def _places(self) -> tuple[Integers, Integers]:
        """The route of each stop, and its number on the route."""
        routes = enumerate(self.facts.routes)
        places = [(i, j) for i, route in routes for j, stop in enumerate(route.stops) if stop.counts]
        route, depth = np.array(places).T
        return route, depth

    @cached_property
    def _runs(self) -> tuple[Integers, Integers]:
        """The first stop of each route, and the number of its stops."""
        first = np.flatnonzero(np.diff(self._places[0], prepend=-1))
        return first, np.diff(first, append=len(self._stops))

    @cached_property
    def _values(self) -> Integers:
        """The number of each stop's value."""
        numbers: dict[Value, int] = {}
        return np.array([numbers.setdefault(stop.value, len(numbers)) for stop in self._stops])

    @cached_property
    def _trips(self) -> Integers:
        return np.array([stop.array.trips for stop in self._stops])

    @cached_property
    def _sizes(self) -> tuple[Integers, Seconds]:
        """The number of each stop's size, and for each size the seconds to complete a sum."""
        found, numbers = np.unique([stop.array.bytes for stop in self._stops], return_inverse=True)
        completed = self.setting.collectives.completed(found.tolist(), COMBINED // 4 + 1)
        return numbers.reshape(-1), completed

    @cached_property
    def _added(self) -> tuple[Integers, Seconds]:
        """The same without latencies."""
        found, numbers = np.unique([stop.array.bytes for stop in self._stops], return_inverse=True)
        return numbers.reshape(-1), self.setting.collectives.transferred(found.tolist())

    @cached_property
    def _levels(self) -> list[tuple[list[int], list[SumStop]]]:
        """For each number on a route: the routes that have a stop of this number, and the stops."""
        routes = self.facts.routes
        levels = range(1, max(len(route.stops) for route in routes))
        found = ([i for i, route in enumerate(routes) if len(route.stops) > level] for level in levels)
        return [
            (some, [routes[i].stops[level] for i in some]) for level, some in zip(levels, found, strict=True)
        ]

    def _flow(self, sums: _SumTables, sizes: tuple[Integers, Seconds]) -> Seconds:
        """Return the cost of all routes together. sizes: as `_sizes`."""
        number = sums.pending.shape[1]
        total, together = np.zeros(number), np.full((self._values.max() + 1) * number, LEAST)
        groups = [
            self._alike(sums, axes, sizes) for axes in np.unique(sums.pending[sums.pending != 0]).tolist()
        ]
        alone = [each.least()[each.sums] + LEAST for each in groups]
        places = [self._values[each.stops] * number + each.layouts[each.sums] for each in groups]
        for group, seconds, at in zip(groups, alone, places, strict=True):
            together += np.bincount(at, seconds * group.comes, len(together))
        for group, seconds, at in zip(groups, alone, places, strict=True):
            total += np.bincount(group.layouts, group.least(seconds / together[at]), number)
        return total

    def _alike(self, sums: _SumTables, axes: int, sizes: tuple[Integers, Seconds]) -> _AlikeSums:
        """Return the sums that are pending over these axes."""
        routes, layouts = np.nonzero(sums.pending == axes)
        start, lengths = (each[routes] for each in self._runs)
        first, which = np.cumsum(lengths) - lengths, np.repeat(np.arange(len(routes)), lengths)
        stops = np.repeat(start - first, lengths) + np.arange(len(which))
        at = stops, layouts[which]
        left, made, most = sums.left[at], sums.made[at], sums.most[at]
        halved, costs = sums.halved[routes, layouts][which], {}
        collectives, (numbers, completed) = self.setting.collectives, sizes
        for pending in _subsets(axes):
            split = collectives.splitting[made & (ANY & ~pending), most & (ANY & ~pending)]
            for over in _subsets(pending):
                codes = collectives.pending[over][halved & over] + split
                seconds = completed[codes, numbers[stops]] * self._trips[stops] + sums.longer[at]
                costs[pending, over] = np.where(left & over == over, seconds, np.inf)
        return _AlikeSums(axes, layouts, first, which, stops, left != 0, costs)

    def _sums(self, each: EffectBounds, rows: slice) -> _SumTables:
        """Return the tables of the layouts in some rows."""

        def low(dims: Iterable[Dims]) -> Rows:
            return np.stack([each.low(names)[rows] for names in dims])

        def high(dims: Iterable[Dims]) -> Rows:
            return np.stack([each.high(names)[rows] for names in dims])

        routes, (route, depth) = self.facts.routes, self._places
        pending = low(each.reduced for each in routes) & ~high(each.stops[0].own for each in routes)
        left, halved = self._passing(pending, low, high)
        longer = np.zeros((len(self._stops), pending.shape[1]))
        for i, stop in enumerate(self._stops):
            if stop.value in self.facts.completing:
                longer[i] = self._longer(each, stop.value)[rows]
        return _SumTables(
            pending,
            halved,
            left[depth, route],
            low(stop.made for stop in self._stops),
            high(stop.own | stop.array.dims for stop in self._stops),
            longer,
        )

    def _passing(self, pending: Rows, low: Find, high: Find) -> tuple[Rows, Rows]:
        """Return the axes over which sums may be pending at a stop, and those over which half an all-reduce completes them.

        [number of the stop, route, layout] and [route, layout]. The second axes split a use that the sum may still reach, along
        dimensions of the sum itself.
        """
        left, halved = [pending], np.zeros_like(pending)
        for some, stops in self._levels:
            going = left[-1].copy()
            halved[some] |= high(stop.moved for stop in stops) & going[some]
            going[some] &= ~low(stop.crossed for stop in stops)
            left.append(going)
        halved |= high(route.moved for route in self.facts.routes) & left[-1]
        return np.stack(left), halved

    def _longer(self, each: EffectBounds, value: Value) -> Seconds:
        """Return the time by which kernels take longer if a sum is completed in this value."""
        found = np.zeros(each.number)
        for before, after in self.facts.completing[value]:
            found += each.term(after) - each.term(before)
        return found


def _subsets(axes: int) -> list[int]:
    """Return all sets of some axes, each set after its own subsets."""
    return [each for each in range(1, axes + 1) if each & axes == each]
