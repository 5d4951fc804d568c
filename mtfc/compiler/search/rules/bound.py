"""What a step costs at least under many layouts at once.

A layout is a row of bit masks, the axes that split each dimension (`space.py`). Everything in a bound depends on unions of
masks: a processor does 1/n of the work on the dimensions D, where n are the processors along all axes that split one of D. So
each part of the step (`parts.py`) is a small table over masks, and rows are looked up in it together.

Sums share what completes them: where several arrive at one place together, each answers for an equal part. What a sum costs
is then the least on its route, and since the parts at each place add up to what completing it there costs, all of them
together cost no more than what any choice of places does (a flow is no larger than a cut).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from typing import TypeAlias

import attrs
import numpy as np
from numpy.typing import NDArray

from mtfc.compiler.analysis.topology import Topology
from mtfc.compiler.hardware import Hardware, Rate
from mtfc.compiler.ir.core import Value
from mtfc.compiler.ir.types import Mesh
from mtfc.compiler.search.rules.naming import OPTIMIZER, Dims
from mtfc.compiler.search.rules.parts import Array, Gather, Parts, Route, Work
from mtfc.compiler.search.rules.space import Columns, Integers, Rows, Space, axes_of, degree, union

COMBINED = 4 * 2**20
"""Arrays of so many bytes are not combined with others into one collective."""

Seconds: TypeAlias = NDArray[np.float64]
Booleans: TypeAlias = NDArray[np.bool_]


@attrs.frozen(slots=False, eq=False)
class Bound:
    """For layouts on one mesh."""

    space: Space
    parts: Parts
    mesh: Mesh
    hardware: Hardware

    @cached_property
    def degrees(self) -> Seconds:
        return np.array([degree(mask, self.mesh) for mask in range(1 << len(self.mesh.axes))], np.float64)

    @cached_property
    def heavy(self) -> list[tuple[Columns, float]]:
        """Seconds of FLOPs by the columns that they can be split over, most first."""
        found: dict[Columns, float] = defaultdict(float)
        for work, times in self.parts.work.items():
            found[self.columns(work.dims)] += work.seconds * work.trips * times
        return sorted(found.items(), key=lambda item: -item[1])

    @cached_property
    def held(self) -> dict[Columns, int]:
        """Bytes in memory by the columns that they are split over; how long what is gathered stays alive is not known."""
        found: dict[Columns, int] = defaultdict(int)
        alive = {} if self.space.storing else self.parts.alive
        for dims, size in (*self.parts.held.items(), *alive.items()):
            found[self.columns(dims)] += size
        return found

    def columns(self, dims: Dims) -> Columns:
        number = self.space.number
        return frozenset(number[name] for name in dims if name in number)

    def of_flops(self, rows: Rows, decided: Columns) -> Seconds:
        """The FLOPs alone, where only some columns are decided yet: the others could be split over all axes."""
        return self._split(rows, decided, self.heavy)

    def memory(self, rows: Rows, decided: Columns) -> Seconds:
        """Bytes, where only some columns are decided yet."""
        return self._split(rows, decided, self.held.items())

    def _split(self, rows: Rows, decided: Columns, parts: Iterable[tuple[Columns, float]]) -> Seconds:
        total = np.zeros(len(rows))
        for columns, amount in parts:
            open = not columns <= decided
            total += amount / self.degrees[-1] if open else (amount / self.degrees)[union(rows, columns)]
        return total

    def of_computation(self, rows: Rows) -> Seconds:
        """Everything but what depends on how parameters and state are stored, at the best of that."""
        filled = rows.copy()
        filled[:, sorted(self.space.storing)] = len(self.degrees) - 1
        each, routes = _Rows(self, filled), [route for route in self.parts.routes if not route.in_update]
        gathered = self.parts.gathered_bytes if self.space.storing else None
        return each.work(self.parts.work) + each.sums(routes, gathered)

    def of_all(self, rows: Rows) -> Seconds:
        """Everything."""
        each = _Rows(self, rows)
        seconds = each.work(self.parts.work) + each.sums(self.parts.routes)
        return seconds + each.gathers(self.parts.gathers) if self.space.storing else seconds

    @cached_property
    def _lanes(self) -> list[list[tuple[float, float]]]:
        """For each set of axes and each lane that an all-reduce over it works on: its latency, and seconds per byte at most."""
        links = [
            attrs.evolve(link, bandwidth=Rate.constant(link.bandwidth.peak)) for link in self.hardware.links
        ]
        topology = Topology.of(self.mesh, attrs.evolve(self.hardware, links=tuple(links)))
        found = []
        for mask in range(len(self.degrees)):
            nothing, one = (
                topology.seconds("all_reduce", axes_of(mask, self.mesh), size) for size in (0.0, 1.0)
            )
            found.append([(nothing[lane], one[lane] - nothing[lane]) for lane in nothing])
        return found

    @cached_property
    def _steps(self) -> dict[int, Seconds]:
        """What one step of completing a sum takes at least, by the bytes of the whole array:
        [axes, axes that split it, the same and those that cut it by then].

        It may be done with other sums, over more axes that do not split the array. Small arrays may travel with others, and add
        no latency.
        """
        stops = (stop.array.bytes for route in self.parts.routes for stop in route.stops)
        sizes = list(dict.fromkeys([*stops, *(gather.array.bytes for gather in self.parts.gathers)]))
        local, sets = np.array(sizes)[:, None] / self.degrees, range(len(self.degrees))
        every = np.stack([_longest(lanes, local) for lanes in self._lanes])
        found = np.zeros((len(sizes), len(sets), len(sets), len(sets)))
        for axes in sets[1:]:
            for split in (each for each in sets if not each & axes):
                over = [each for each in sets if each & axes == axes and not each & split]
                found[:, axes, split] = np.min(every[over], axis=0)
        return dict(zip(sizes, found, strict=True))

    def completing(self, bytes: int, over: Rows, own: Rows, all: Rows, halved: Rows) -> Seconds:
        """What completing an array of so many bytes over axes takes at least, by the best of all ways to do it in steps.

        Where a use is split over an axis, a step is half an all-reduce, and what follows is smaller. Before the first one the
        array can be cut along axes of `all` that it is not pending over.
        """
        table, sets = self._steps[bytes], range(len(self.degrees))
        present = [int(mask) for mask in np.unique(over)] or [0]
        least = {0: np.zeros(len(over))}
        for left in (each for each in sets[1:] if any(each & mask == each for mask in present)):
            cut = own | (all & ~over) | (halved & over & ~np.uint8(left))
            for step in (each for each in sets[1:] if each & left == each):
                seconds = table[step, own, cut] * np.where(halved & np.uint8(step), 0.5, 1.0)
                total = seconds + least[left & ~step]
                least[left] = np.minimum(least[left], total) if left in least else total
        if len(present) == 1:
            return least[present[0]]
        return np.stack([least[mask] for mask in present])[
            np.searchsorted(present, over), np.arange(len(over))
        ]


def _longest(lanes: Sequence[tuple[float, float]], bytes: Seconds) -> Seconds:
    alone = bytes >= COMBINED
    times = [fixed * alone + bytes * each for fixed, each in lanes]
    longest: Seconds = np.max([np.zeros_like(bytes), *times], axis=0)
    return longest


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


class _Rows:
    """Some layouts; unions of masks are found once."""

    def __init__(self, bound: Bound, rows: Rows) -> None:
        self.bound, self.rows = bound, rows
        self._unions: dict[Columns, Rows] = {}

    def union(self, dims: Dims) -> Rows:
        columns = self.bound.columns(dims)
        if columns not in self._unions:
            self._unions[columns] = union(self.rows, columns)
        return self._unions[columns]

    def work(self, parts: Mapping[Work, int]) -> Seconds:
        """All work, by the roofline at peak rates."""
        total, bandwidth = np.zeros(len(self.rows)), self.bound.hardware.device.bandwidth.peak
        for work, times in parts.items():
            computing = work.seconds / self.bound.degrees[self.union(work.dims)]
            moving = sum(map(self._least, work.moved), start=np.zeros(len(self.rows))) / bandwidth
            total += times * work.trips * (np.maximum(computing, moving) + work.overhead)
        return total

    def _least(self, arrays: Iterable[Array]) -> Seconds:
        sizes = [each.bytes / self.bound.degrees[self.union(each.dims)] for each in arrays]
        least: Seconds = np.min(sizes, axis=0)
        return least

    def gathers(self, gathers: Mapping[Gather, int]) -> Seconds:
        """Each axis that what is stored is split over and its use is not: half of an all-reduce, when the others are gathered."""
        total = np.zeros(len(self.rows))
        for gather, times in gathers.items():
            own, all = self.union(gather.own), self.union(gather.array.dims)
            seconds = self.bound.completing(gather.array.bytes, all & ~own, own, all, all & ~own)
            total += times * gather.array.trips * seconds
        return total

    def sums(self, routes: Iterable[Route], gathered: int | None = None) -> Seconds:
        """All sums. With `gathered` storage is open: a gather follows half an all-reduce, of that many bytes an element."""
        sums = [each for each in map(self._sum, routes) if len(each.rows)]
        sharing: dict[Value, Seconds] = defaultdict(lambda: np.zeros(len(self.rows)))
        for each in sums:
            for stop, arrives in zip(each.route.stops, each.arrives, strict=True):
                sharing[stop.value][each.rows] += arrives
        total = np.zeros(len(self.rows))
        for each in sums:
            again = (
                min(1.0, gathered / each.route.item_bytes) if gathered and _is_gradient(each.route) else 0.0
            )
            total[each.rows] += self._least_on(each, sharing) * (1 + again)
        return total

    def _sum(self, route: Route) -> _Sum:
        pending = self.union(route.reduced) & ~self.union(route.stops[0].own)
        rows = np.flatnonzero(pending)
        pending, going = pending[rows], np.ones(len(rows), np.bool_)
        arrives, scattered = [going], np.zeros(len(rows), np.uint8)
        for stop in route.stops[1:]:
            free = (self.union(stop.crossed)[rows] & pending) == 0
            scattered |= np.where(going & ~free, self.union(stop.moved)[rows], 0).astype(np.uint8)
            going = going & free
            arrives.append(going)
        scattered |= np.where(going, self.union(route.moved)[rows], 0).astype(np.uint8)
        return _Sum(route, rows, pending, arrives, scattered)

    def _least_on(self, sum: _Sum, sharing: Mapping[Value, Seconds]) -> Seconds:
        least, known = np.full(len(sum.rows), np.inf), dict[tuple[int, Dims, Dims], Seconds]()
        for stop, arrives in zip(sum.route.stops, sum.arrives, strict=True):
            key = (stop.array.bytes, stop.own, stop.array.dims)
            if key not in known:
                own, all = self.union(stop.own)[sum.rows], self.union(stop.array.dims)[sum.rows]
                known[key] = self.bound.completing(stop.array.bytes, sum.pending, own, all, sum.scattered)
            shared = stop.array.trips * known[key] / np.maximum(sharing[stop.value][sum.rows], 1)
            least = np.where(arrives, np.minimum(least, shared), least)
        return least


def _is_gradient(route: Route) -> bool:
    return any(name.startswith(OPTIMIZER) for name in route.moved)
