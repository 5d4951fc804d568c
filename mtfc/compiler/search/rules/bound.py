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
from mtfc.compiler.search.rules.parts import Array, Dims, Parts, Route, Work
from mtfc.compiler.search.rules.space import Space, axes_of, degree

COMBINED = 4 * 2**20
"""Arrays of more bytes than this are not combined with others into one collective."""

Rows: TypeAlias = NDArray[np.uint8]
Seconds: TypeAlias = NDArray[np.float64]
Integers: TypeAlias = NDArray[np.int64]
Booleans: TypeAlias = NDArray[np.bool_]


@attrs.frozen(slots=False, eq=False)
class Bound:
    """For layouts on one mesh."""

    space: Space
    parts: Parts
    mesh: Mesh
    hardware: Hardware

    @cached_property
    def number(self) -> Mapping[str, int]:
        return {dim.name: i for i, dim in enumerate(self.space.dims)}

    @cached_property
    def degrees(self) -> Seconds:
        return np.array([degree(mask, self.mesh) for mask in range(1 << len(self.mesh.axes))], np.float64)

    @cached_property
    def heavy(self) -> list[tuple[Dims, float]]:
        """Seconds of FLOPs by the dimensions that they can be split over, most first."""
        found: dict[Dims, float] = defaultdict(float)
        for work, times in self.parts.work.items():
            found[work.dims.intersection(self.number)] += work.seconds * work.trips * times
        return sorted(found.items(), key=lambda item: -item[1])

    def union(self, rows: Rows, dims: Dims) -> Rows:
        """The axes that split any of the dimensions, for each row."""
        columns = [self.number[name] for name in dims if name in self.number]
        found: Rows = np.bitwise_or.reduce(rows[:, columns], axis=1)
        return found

    def of_flops(self, rows: Rows, assigned: Dims) -> Seconds:
        """The FLOPs alone, where only the dimensions `assigned` are decided yet: the others could be split over all axes."""
        total = np.zeros(len(rows))
        for dims, seconds in self.heavy:
            if dims <= assigned:
                total += (seconds / self.degrees)[self.union(rows, dims)]
            else:
                total += seconds / self.degrees[-1]
        return total

    def memory(self, rows: Rows, assigned: Dims) -> Seconds:
        """Bytes, where only the dimensions `assigned` are decided yet."""
        total = np.zeros(len(rows))
        for dims, size in self.parts.held.items():
            ours = dims.intersection(self.number)
            total += (
                (size / self.degrees)[self.union(rows, dims)] if ours <= assigned else size / self.degrees[-1]
            )
        return total

    def of_all(self, rows: Rows) -> Seconds:
        """Work and sums."""
        each = _Rows(self, rows)
        return each.work(self.parts.work) + each.sums(self.parts.routes)

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
    def _tables(self) -> dict[tuple[int, int], Seconds]:
        return {}

    def table(self, array: Array) -> Seconds:
        """`completing`, for each size once."""
        key = array.bytes, array.trips
        if key not in self._tables:
            self._tables[key] = self.completing(array)
        return self._tables[key]

    def completing(self, array: Array) -> Seconds:
        """What completing a sum in an array takes at least, [axes that it is pending over, axes that split the array].

        It may be done axis by axis, or with other sums, over more axes that do not split the array: of each axis, the cheapest
        collective that has it. Small arrays may travel with others, and add no latency.
        """
        local, sets = array.bytes / self.degrees, range(len(self.degrees))
        every = np.stack([_longest(lanes, local) for lanes in self._lanes])
        every[[[over & split != 0 for split in sets] for over in sets]] = np.inf
        axes = [1 << i for i in range(len(self.mesh.axes))]
        least = {axis: np.min([every[over] for over in sets if over & axis], axis=0) for axis in axes}
        for axis in axes:
            least[axis][np.isinf(least[axis])] = 0.0
        nothing = np.zeros_like(local)
        rows = [np.max([nothing, *(least[a] for a in axes if over & a)], axis=0) for over in sets]
        return array.trips * np.stack(rows)


def _longest(lanes: Sequence[tuple[float, float]], bytes: Seconds) -> Seconds:
    alone = bytes > COMBINED
    times = [fixed * alone + bytes * each for fixed, each in lanes]
    longest: Seconds = np.max([np.zeros_like(bytes), *times], axis=0)
    return longest


@attrs.frozen
class _Sum:
    """A route in some rows: the axes that its sum is pending over, until which stops it can be so, and where its use is split
    over one of these axes along the same dimension, so that half an all-reduce completes it.
    """

    route: Route
    rows: Integers
    pending: Rows
    arrives: list[Booleans]
    scattered: Booleans


class _Rows:
    """Some layouts; unions of masks are found once."""

    def __init__(self, bound: Bound, rows: Rows) -> None:
        self.bound, self.rows = bound, rows
        self._unions: dict[Dims, Rows] = {}

    def union(self, dims: Dims) -> Rows:
        if dims not in self._unions:
            self._unions[dims] = self.bound.union(self.rows, dims)
        return self._unions[dims]

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

    def sums(self, routes: Iterable[Route]) -> Seconds:
        sums = [each for each in map(self._sum, routes) if len(each.rows)]
        sharing: dict[Value, Seconds] = defaultdict(lambda: np.zeros(len(self.rows)))
        for each in sums:
            for stop, arrives in zip(each.route.stops, each.arrives, strict=True):
                sharing[stop.value][each.rows] += arrives
        total = np.zeros(len(self.rows))
        for each in sums:
            total[each.rows] += self._least_on(each, sharing)
        return total

    def _sum(self, route: Route) -> _Sum:
        pending = self.union(route.reduced) & ~self.union(route.stops[0].array.dims)
        rows = np.flatnonzero(pending)
        pending, going = pending[rows], np.ones(len(rows), np.bool_)
        arrives, scattered = [going], np.zeros(len(rows), np.bool_)
        for stop in route.stops[1:]:
            free = (self.union(stop.crossed)[rows] & pending) == 0
            scattered |= going & ~free & ((self.union(stop.moved)[rows] & pending) != 0)
            going = going & free
            arrives.append(going)
        scattered |= going & ((self.union(route.moved)[rows] & pending) != 0)
        return _Sum(route, rows, pending, arrives, scattered)

    def _least_on(self, sum: _Sum, sharing: Mapping[Value, Seconds]) -> Seconds:
        least = np.full(len(sum.rows), np.inf)
        for stop, arrives in zip(sum.route.stops, sum.arrives, strict=True):
            split = self.union(stop.array.dims)[sum.rows]
            seconds = self.bound.table(stop.array)[sum.pending, split]
            shared = seconds / np.maximum(sharing[stop.value][sum.rows], 1)
            least = np.where(arrives, np.minimum(least, shared), least)
        return np.where(sum.scattered, least / 2, least)
