"""What completing sums costs at least under some layouts.

Over each axis a sum ends at one place of its route: before the first equation that this axis splits. Over several axes it may end
at several places, in some order: at one over some axes, while it is pending over the others still; further on over some of
these. What that costs is at least the least of all such orders, of which each step may be where it costs least.

Sums share what completes them: where several end at one place together, each answers for a part, the same part whatever axes it
ends over there. No sum ends twice at one place, and none costs more there by itself than all that end there. So, since the parts
at each place add up to one, all sums together cost no more than any choice of places does (a flow is no larger than a cut). The
parts are as large as what each would cost by itself, so that the cheap ones leave room for those that cost much everywhere.

What is completed is sent, so it is stored for that, and read again: kernels that do so where all is in one place cost more.

Layouts are few where much is decided, and stops are many: so all stops of all routes are looked up at once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import cached_property
from typing import TypeAlias

import attrs
import numpy as np

from mtfc.compiler.ir.core import Value
from mtfc.compiler.search.global_layouts.collective_bounds import COMBINED, Seconds
from mtfc.compiler.search.global_layouts.dimension_names import OPTIMIZER, Dims
from mtfc.compiler.search.global_layouts.layout_space import Integers, Rows
from mtfc.compiler.search.global_layouts.lookup_tables import ANY, Booleans, Lookup, Setting
from mtfc.compiler.search.global_layouts.pending_sums import Route, Stop
from mtfc.compiler.search.global_layouts.step_parts import Parts

LEAST = 1e-30
"""Seconds that are nothing, and may be divided by."""

AT_ONCE = 1 << 18
"""Stops of layouts that are looked up together: more would leave the processor's caches."""


Find: TypeAlias = Callable[[Iterable[Dims]], Rows]
"""Axes that split one of some dimensions: [dimensions, layout]."""


@attrs.frozen(eq=False)
class _Sums:
    """The sums of some layouts.

    By [route, layout]: `pending` are the axes that a sum is pending over where it arises; `halved` are the axes over which half
    an all-reduce completes the sum; `again` is the part of that half that an all-gather takes once more. By [stop, layout]:
    `left` are the axes that the sum may still be pending over at the stop; `made` are axes that surely split the value made
    there, `most` all axes that can; `longer` is the additional time of kernels if the sum is completed there.
    """

    pending: Rows
    halved: Rows
    again: Seconds
    left: Rows
    made: Rows
    most: Rows
    longer: Seconds


@attrs.frozen(eq=False)
class _Alike:
    """Sums that are pending over the same axes where they arise; what they cost at each place, the stops of one after the other.

    layouts: of each sum. first: its first place. sums, stops: of each place. comes: whether the sum may be pending there.
    costs: by the axes that it is pending over, and those of them that it ends over: at each place.
    """

    axes: int
    layouts: Integers
    first: Integers
    sums: Integers
    stops: Integers
    comes: Booleans
    costs: Mapping[tuple[int, int], Seconds]

    def least(self, parts: Seconds | float = 1.0) -> Seconds:
        """What each sum costs at least if it answers for such parts of its places: the best of all orders."""
        found: dict[int, Seconds] = {}
        for (pending, over), costs in self.costs.items():
            later = found.get(pending & ~over, 0.0)
            seconds = np.minimum.reduceat(costs * parts, self.first) + later
            found[pending] = np.minimum(found.get(pending, np.inf), seconds)
        return found[self.axes]


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
            total[rows] = self._flow(self._sums(lookup, rows, storage_is_open))
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
    def _runs(self) -> tuple[Integers, Integers]:
        """The first stop of each route, and how many it has."""
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
    def _sizes(self) -> tuple[Integers, Seconds, Seconds]:
        """The number of each stop's size; for each size the seconds to complete a sum, and those that a gather may take again."""
        found, numbers = np.unique([stop.array.bytes for stop in self._stops], return_inverse=True)
        completed = self.setting.collectives.completed
        return numbers.reshape(-1), completed(found.tolist()), completed(found.tolist(), COMBINED)

    @cached_property
    def _levels(self) -> list[tuple[list[int], list[Stop]]]:
        """The routes that have so many stops, and those stops."""
        routes = self.parts.routes
        levels = range(1, max(len(route.stops) for route in routes))
        found = ([i for i, route in enumerate(routes) if len(route.stops) > level] for level in levels)
        return [
            (some, [routes[i].stops[level] for i in some]) for level, some in zip(levels, found, strict=True)
        ]

    def _flow(self, sums: _Sums) -> Seconds:
        """What all routes cost together."""
        number = sums.pending.shape[1]
        total, together = np.zeros(number), np.full((self._values.max() + 1) * number, LEAST)
        groups = [self._alike(sums, axes) for axes in np.unique(sums.pending[sums.pending != 0]).tolist()]
        alone = [each.least()[each.sums] + LEAST for each in groups]
        places = [self._values[each.stops] * number + each.layouts[each.sums] for each in groups]
        for group, seconds, at in zip(groups, alone, places, strict=True):
            together += np.bincount(at, seconds * group.comes, len(together))
        for group, seconds, at in zip(groups, alone, places, strict=True):
            total += np.bincount(group.layouts, group.least(seconds / together[at]), number)
        return total

    def _alike(self, sums: _Sums, axes: int) -> _Alike:
        """Those that are pending over these axes."""
        routes, layouts = np.nonzero(sums.pending == axes)
        start, lengths = (each[routes] for each in self._runs)
        first, which = np.cumsum(lengths) - lengths, np.repeat(np.arange(len(routes)), lengths)
        stops = np.repeat(start - first, lengths) + np.arange(len(which))
        at = stops, layouts[which]
        left, made, most = sums.left[at], sums.made[at], sums.most[at]
        halved, again = sums.halved[routes, layouts][which], sums.again[routes, layouts][which]
        collectives, (numbers, completed, gathered), costs = self.setting.collectives, self._sizes, {}
        for pending in _subsets(axes):
            split = collectives.splitting[made & (ANY & ~pending), most & (ANY & ~pending)]
            for over in _subsets(pending):
                codes = collectives.pending[over][halved & over] + split
                once, more = completed[codes, numbers[stops]], gathered[codes, numbers[stops]]
                seconds = (once + more * again) * self._trips[stops] + sums.longer[at]
                costs[pending, over] = np.where(left & over == over, seconds, np.inf)
        return _Alike(axes, layouts, first, which, stops, left != 0, costs)

    def _sums(self, lookup: Lookup, rows: slice, storage_is_open: bool) -> _Sums:
        def low(dims: Iterable[Dims]) -> Rows:
            return np.stack([lookup.low(each)[rows] for each in dims])

        def high(dims: Iterable[Dims]) -> Rows:
            return np.stack([lookup.high(each)[rows] for each in dims])

        routes, (route, depth) = self.parts.routes, self._places
        pending = low(each.reduced for each in routes) & ~high(each.stops[0].own for each in routes)
        left, halved = self._passing(pending, low, high)
        longer = np.zeros((len(self._stops), pending.shape[1]))
        for i, stop in enumerate(self._stops):
            if stop.value in self.parts.completing:
                longer[i] = self._longer(lookup, stop.value)[rows]
        return _Sums(
            pending,
            halved,
            np.where(pending == halved, self._again if storage_is_open else 0.0, 0.0),
            left[depth, route],
            low(stop.made for stop in self._stops),
            high(stop.own | stop.array.dims for stop in self._stops),
            longer,
        )

    def _passing(self, pending: Rows, low: Find, high: Find) -> tuple[Rows, Rows]:
        """The axes over which sums can be pending until a stop, [number of the stop, route, layout]; and those that split a use
        that they may still have then along dimensions that it has itself, so that half an all-reduce completes it over these.
        """
        left, halved = [pending], np.zeros_like(pending)
        for some, stops in self._levels:
            going = left[-1].copy()
            halved[some] |= high(stop.moved for stop in stops) & going[some]
            going[some] &= ~low(stop.crossed for stop in stops)
            left.append(going)
        halved |= high(route.moved for route in self.parts.routes) & left[-1]
        return np.stack(left), halved

    @cached_property
    def _again(self) -> Seconds:
        """The part of each route's sum that a gather takes again."""
        gathered = self.parts.gathered_bytes
        parts = [min(1.0, gathered / each.item_bytes) * _is_gradient(each) for each in self.parts.routes]
        return np.array(parts)[:, None]

    def _longer(self, lookup: Lookup, value: Value) -> Seconds:
        """What kernels take longer where a sum is completed in this value."""
        found = np.zeros(lookup.number)
        for before, after in self.parts.completing[value]:
            found += lookup.kernel(after) - lookup.kernel(before)
        return found


def _subsets(axes: int) -> list[int]:
    """Those with some axes, each after its own."""
    return [each for each in range(1, axes + 1) if each & axes == each]


def _is_gradient(route: Route) -> bool:
    return any(name.startswith(OPTIMIZER) for name in route.moved)
