"""What completing sums costs at least under some layouts.

Sums share what completes them: where several arrive at one place together, each answers for a part. What a sum costs is then the
least on its route, and since the parts at each place add up to what completing it there costs, all of them together cost no more
than what any choice of places does (a flow is no larger than a cut). The parts are as large as what each would cost by itself, so
that the cheap ones leave room for those that cost much everywhere.

What is completed is sent, so it is stored for that, and read again: kernels that do so where all is in one place cost more.

Layouts are few where much is decided, and stops are many: so all stops of all routes are looked up at once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import cached_property
from typing import TypeAlias

import attrs
import numpy as np

from mtfc.compiler.ir.core import Value
from mtfc.compiler.search.rules.collectives import Seconds
from mtfc.compiler.search.rules.lookup import Booleans, Lookup, Setting
from mtfc.compiler.search.rules.naming import OPTIMIZER, Dims
from mtfc.compiler.search.rules.parts import Parts
from mtfc.compiler.search.rules.space import Integers, Rows
from mtfc.compiler.search.rules.sums import Route, Stop

LEAST = 1e-30
"""Seconds that are nothing, and may be divided by."""

AT_ONCE = 1 << 18
"""Stops of layouts that are looked up together: more would leave the processor's caches."""


Find: TypeAlias = Callable[[Iterable[Dims]], Rows]
"""Axes that split one of some dimensions: [dimensions, layout]."""


@attrs.frozen(slots=False, eq=False)
class Flow:
    """The routes of a step on one mesh. Arrays of stops are of those that count, route by route."""

    setting: Setting
    parts: Parts

    def seconds(self, lookup: Lookup, storage_is_open: bool) -> Seconds:
        """All sums. Where storage is open, a gather follows half an all-reduce of a gradient."""
        total = np.zeros(lookup.number)
        number = max(1, AT_ONCE // max(1, len(self._stops)))
        for start in range(0, lookup.number if self._stops else 0, number):
            rows = slice(start, start + number)
            total[rows] = self._flow(self._costs(lookup, rows, storage_is_open))
        return total

    @cached_property
    def _stops(self) -> list[Stop]:
        return [stop for route in self.parts.routes for stop in route.stops if stop.counts]

    @cached_property
    def _places(self) -> tuple[Integers, Integers]:
        """The route of each stop, and its number among all on the route."""
        routes = enumerate(self.parts.routes)
        places = [(i, j) for i, route in routes for j, stop in enumerate(route.stops) if stop.counts]
        route, depth = np.array(places).T
        return route, depth

    @cached_property
    def _first(self) -> Integers:
        """The first stop of each route."""
        return _changes(self._places[0])

    @cached_property
    def _values(self) -> tuple[Integers, Integers, Integers]:
        """The number of each stop's value; the stops in the order of these, and the first of each value among them."""
        numbers: dict[Value, int] = {}
        value = np.array([numbers.setdefault(stop.value, len(numbers)) for stop in self._stops])
        order = np.argsort(value, kind="stable")
        return value, order, _changes(value[order])

    @cached_property
    def _sizes(self) -> tuple[Integers, Seconds]:
        """Of each stop, by its number; and what completing sums of that size takes."""
        found, numbers = np.unique([stop.array.bytes for stop in self._stops], return_inverse=True)
        return numbers.reshape(-1, 1), self.setting.collectives.completed(found.tolist())

    @cached_property
    def _levels(self) -> list[tuple[list[int], list[Stop]]]:
        """The routes that have so many stops, and those stops."""
        routes = self.parts.routes
        levels = range(1, max(len(route.stops) for route in routes))
        found = ([i for i, route in enumerate(routes) if len(route.stops) > level] for level in levels)
        return [
            (some, [routes[i].stops[level] for i in some]) for level, some in zip(levels, found, strict=True)
        ]

    def _flow(self, costs: Seconds) -> Seconds:
        """What all routes cost together."""
        value, order, first = self._values
        alone = np.minimum.reduceat(costs, self._first)[self._places[0]]
        arrives = costs < np.inf
        together = np.add.reduceat(np.where(arrives, alone, 0)[order], first)[value] + LEAST
        shares = np.full_like(costs, np.inf)
        np.multiply(costs / together, alone, out=shares, where=arrives)
        total: Seconds = np.minimum.reduceat(shares, self._first).sum(axis=0)
        return total

    def _costs(self, lookup: Lookup, rows: slice, storage_is_open: bool) -> Seconds:
        """What each route costs by itself at each stop, more than anything where it does not arrive: [stop, layout]."""

        def low(dims: Iterable[Dims]) -> Rows:
            return np.stack([lookup.low(each)[rows] for each in dims])

        def high(dims: Iterable[Dims]) -> Rows:
            return np.stack([lookup.high(each)[rows] for each in dims])

        routes, (route, depth) = self.parts.routes, self._places
        pending = low(each.reduced for each in routes) & ~high(each.stops[0].own for each in routes)
        arrives, halved, ending = self._passing(pending, low, high)
        size, completed = self._sizes
        costs = completed[self._codes(pending[route], halved[route], ending[route], low, high), size]
        costs *= np.array([stop.array.trips for stop in self._stops])[:, None]
        if storage_is_open:
            costs *= np.where(pending == halved, self._again, 1.0)[route]
        for i, stop in enumerate(self._stops):
            if stop.value in self.parts.completing:
                costs[i] += (pending[route[i]] != 0) * self._longer(lookup, stop.value)[rows]
        costs[~arrives[depth, route]] = np.inf
        return costs

    def _passing(self, pending: Rows, low: Find, high: Find) -> tuple[Booleans, Rows, Rows]:
        """Where sums can be pending until a stop, [number of the stop, route, layout]; the axes that split the use of each along
        dimensions that it has itself, so that half an all-reduce completes it over these; and those over which it surely ends
        where it cannot go on: where others do not split the next equation, it may be pending over these further than the route
        is followed, and what it costs there is not counted.
        """
        arrives, halved, ending = [np.ones(pending.shape, np.bool_)], np.zeros_like(pending), pending.copy()
        for some, stops in self._levels:
            going, over = arrives[-1].copy(), pending[some]
            blocked = low(stop.crossed for stop in stops) & over
            ending[some] = np.where(going[some] & (blocked != 0), blocked, ending[some])
            most = going[some] & (high(stop.crossed | stop.moved for stop in stops) & over != 0)
            halved[some] |= np.where(most, high(stop.moved for stop in stops), np.uint8(0))
            going[some] &= blocked == 0
            arrives.append(going)
        halved |= np.where(arrives[-1], high(route.moved for route in self.parts.routes), np.uint8(0))
        return np.stack(arrives), halved & pending, ending

    def _codes(self, pending: Rows, halved: Rows, ending: Rows, low: Find, high: Find) -> Integers:
        """Of completing a sum over `ending`; over the other axes it is pending over it may have been scattered before."""
        collectives = self.setting.collectives
        own = low(stop.made for stop in self._stops) & ~pending
        before = (high(stop.own | stop.array.dims for stop in self._stops) | pending) & ~ending
        codes: Integers = collectives.pending[ending, halved & ending] + collectives.splitting[own, before]
        return codes

    @cached_property
    def _again(self) -> Seconds:
        """By which part a gather takes longer a sum of each route."""
        gathered = self.parts.gathered_bytes
        parts = [min(1.0, gathered / each.item_bytes) * _is_gradient(each) for each in self.parts.routes]
        return 1 + np.array(parts)[:, None]

    def _longer(self, lookup: Lookup, value: Value) -> Seconds:
        """What kernels take longer where a sum is completed in this value."""
        found = np.zeros(lookup.number)
        for before, after in self.parts.completing[value]:
            found += lookup.kernel(after) - lookup.kernel(before)
        return found


def _changes(numbers: Integers) -> Integers:
    """Where each run of equal numbers begins."""
    return np.flatnonzero(np.diff(numbers, prepend=-1))


def _is_gradient(route: Route) -> bool:
    return any(name.startswith(OPTIMIZER) for name in route.moved)
