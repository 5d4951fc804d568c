"""The lower bound of completing all pending sums of a step, for many layouts at once.

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
from functools import cached_property
from typing import TypeAlias

import attrs
import numpy as np

from mtfc.compiler.analysis.dimension_names import Dims
from mtfc.compiler.cost.effects.pending_sums import SumStop
from mtfc.compiler.cost.tables.collective_tables import Seconds
from mtfc.compiler.cost.topology import COMBINED
from mtfc.compiler.ir.core import Value
from mtfc.compiler.search.global_layouts.effect_bounds import ANY, Booleans, EffectBounds, SearchSetting
from mtfc.compiler.search.global_layouts.layout_space import Integers, Rows
from mtfc.compiler.search.global_layouts.step_facts import Facts

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
