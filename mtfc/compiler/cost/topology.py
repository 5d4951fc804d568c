"""Where a mesh lies on a machine, and how long collectives take there.

Links nest, and each is a *lane* or, as a torus, one lane for each side. The processors of a mesh are numbered row by row, and
devices from the innermost lane outwards; so the last axis of a mesh lies innermost, unless another order is asked for. An axis
may cover a lane in part, or several (`AxisPart`). Of a torus that it does not fill, a mesh has the most compact part, as TPUs are
rented: 8 of 16 x 16 are 2 x 4. Where the axes do not go into that, they have the whole torus.

A collective over some axes works on all lanes that these cover at once (pipelined, as rings of rings do). On each its seconds are
those of the ring algorithm, of which `n` are the members there, `S` the bytes of the whole array and `p` the devices that each
member has:

    all-gather, reduce-scatter   (n - 1) latency + S (n - 1) / (n p bandwidth)
    all-reduce                   both of them
    all-to-all                   (n - 1) latency + s (n - 1) / (n bandwidth), of s bytes on each device; on a ring or line, where
                                 they pass through others, s floor(n/2) ceil(n/2) / (n bandwidth)
    permute                      latency and s / bandwidth for each hop; a shift goes one way round a ring, the shorter one

In a shared memory all members wait for each other, n latency, and each copies what it gets: S / bandwidth of an all-gather or
reduce-scatter, twice that of an all-reduce, s / bandwidth of an all-to-all, and of a permute, for which all processors meet.

`bandwidth` is that of one device when all send at once: of a link that k devices share, the k-th part. A ring has neighbours on
both sides and so twice the bandwidth and half the steps; sides of a torus add up. Where several groups go over the same links
of a ring, because a group's members are not adjacent, they share them. Sources: nccl-tests' PERFORMANCE.md for rings, the JAX
scaling book (jax-ml.github.io/scaling-book/sharding) for tori and hierarchies: the largest over levels of S (n - 1) / (n W), of W
the bandwidth of a member, which is p times that of its devices.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache
from itertools import combinations, product
from math import inf, prod

import attrs

from mtfc.compiler.cost.hardware import Hardware, Link, Rate
from mtfc.compiler.ir.collective import Sending
from mtfc.compiler.ir.ops.collectives import SENDINGS
from mtfc.compiler.ir.types import Axes, Mesh

COMBINED = 4 * 2**20
"""Bytes of an array from which on it travels in a collective of its own; smaller arrays may share one latency."""


@attrs.frozen
class Lane:
    """One side of a link: what transfers queue for. `size` is None where there is room for any number."""

    name: str
    link: Link
    size: int | None


@attrs.frozen
class AxisPart:
    """The part of a mesh axis on a lane: `size` members, `stride` places apart."""

    lane: Lane
    size: int
    stride: int


@attrs.frozen
class Crossing:
    """The members of a group of processors on one lane; `inner` devices of the group belong to each."""

    lane: Lane
    size: int
    stride: int
    inner: int
    is_ring: bool

    @property
    def is_memory(self) -> bool:
        return self.lane.link.kind == "memory"

    @property
    def steps(self) -> int:
        """Neighbours that data passes on its way around."""
        return self.stride * (self.size // 2 if self.is_ring else self.size - 1)


def lanes(hardware: Hardware) -> list[Lane]:
    """All lanes, the innermost first."""
    found: list[Lane] = []
    for link in hardware.links:
        if len(link.sizes) < 2:
            found.append(Lane(link.name, link, link.sizes[0] if link.sizes else None))
            continue
        sides = [Lane(f"{link.name}.{side}", link, size) for side, size in enumerate(link.sizes)]
        found += reversed(sides)
    return found


@attrs.frozen
class Topology:
    """A mesh on a machine: the axis_parts of each axis, and how many members each lane has in use."""

    mesh: Mesh
    axis_parts: Mapping[str, tuple[AxisPart, ...]]
    used: Mapping[str, int]

    @classmethod
    def of(cls, mesh: Mesh, hardware: Hardware, innermost_first: Sequence[str] = ()) -> Topology:
        """The mesh with its axes laid out in the given order, by default the last axis first.

        An axis that no longer fits on a side of a torus goes to the next side, if all that is left finds room there. Of the
        most compact parts of a torus the mesh has the one in which its axes are cut into the fewest axis_parts.
        """
        order = tuple(innermost_first) or mesh.names[::-1]
        parts = (
            cls._within(rooms, mesh, order, hardware) for rooms in _compact_parts(hardware, mesh.devices)
        )
        found = [topology for topology, fits in parts if fits]
        if found:
            return min(found, key=lambda each: sum(map(len, each.axis_parts.values())))
        return cls._within({}, mesh, order, hardware)[0]

    @classmethod
    def _within(
        cls, rooms: Mapping[str, int], mesh: Mesh, order: Sequence[str], hardware: Hardware
    ) -> tuple[Topology, bool]:
        """The axes laid out in that order on lanes of which some have less room than their size; and whether they fit."""
        free = _Free(lanes(hardware), rooms)
        axis_parts = {
            axis: tuple(free.take(mesh.sizes[axis], mesh.size(order[i:]))) for i, axis in enumerate(order)
        }
        return cls(mesh, axis_parts, free.used), all(free.used.get(name, 1) <= rooms[name] for name in rooms)

    def overfull(self) -> Lane | None:
        """A lane on which more members lie than there are, if there is one."""
        parts = (part for parts in self.axis_parts.values() for part in parts)
        return next((p.lane for p in parts if p.lane.size and self.used[p.lane.name] > p.lane.size), None)

    @property
    def at_once(self) -> int:
        """How many lanes can work beside the processor; none where devices copy what they send themselves."""
        lanes = {part.lane.name: part.lane for parts in self.axis_parts.values() for part in parts}
        return sum(lane.link.kind != "memory" for lane in lanes.values())

    def crossings(self, axes: Axes) -> list[Crossing]:
        """The lanes that a group over these axes works on, the innermost first."""
        by_lane: dict[str, list[AxisPart]] = {}
        for axis in axes:
            for stretch in self.axis_parts[axis]:
                by_lane.setdefault(stretch.lane.name, []).append(stretch)
        names = [name for name in self.used if name in by_lane]
        inner, found = 1, []
        for name in names:
            size = prod(stretch.size for stretch in by_lane[name])
            found.append(self._crossing(by_lane[name], size, inner))
            inner *= size
        return found

    def _crossing(self, parts: Sequence[AxisPart], size: int, inner: int) -> Crossing:
        lane = parts[0].lane
        reach = max(part.stride * part.size for part in parts)
        is_ring = reach == self.used[lane.name] > 2 and self._wraps(lane)
        return Crossing(lane, size, reach // size, inner, is_ring)

    def _wraps(self, lane: Lane) -> bool:
        """Whether what is in use of a lane is a ring, so that whoever goes all the way along it has neighbours on both sides."""
        link, size = lane.link, self.used[lane.name]
        if not link.has_neighbours:
            return False
        if link.wraps is None:
            return size == lane.size
        parts = (part for parts in self.axis_parts.values() for part in parts if part.lane.link is link)
        used = prod(part.size for part in parts)
        return size % link.wraps == 0 and used >= link.wraps ** len(link.sizes)

    @classmethod
    def at_peak(cls, mesh: Mesh, hardware: Hardware) -> Topology:
        """The mesh on links that are always as fast as they can be: no collective takes less time than on these."""
        links = (
            attrs.evolve(link, bandwidth=Rate.constant(link.peak), collectives={}) for link in hardware.links
        )
        return cls.of(mesh, attrs.evolve(hardware, links=tuple(links)))

    def latencies(self, kind: str, axes: Axes, hops: int | None = None) -> list[tuple[float, float]]:
        """Return for each lane of a collective its latency and its seconds per byte, on links of one rate each."""
        nothing, one = (self.seconds(kind, axes, size, hops) for size in (0.0, 1.0))
        return [(nothing[lane], one[lane] - nothing[lane]) for lane in nothing]

    def seconds(self, kind: str, axes: Axes, local_bytes: float, hops: int | None = None) -> dict[str, float]:
        """What a collective takes on each lane that it works on; `local_bytes` is one processor's operand.

        `hops` is how far a permute goes, None where that is anywhere.
        """
        crossings, sending = self.crossings(axes), SENDINGS[kind]
        whole = sending.whole_bytes(local_bytes, self.mesh.size(axes))
        found = {c.lane.name: self._copy(c, sending, local_bytes, whole) for c in crossings if c.is_memory}
        crossings = [c for c in crossings if not c.is_memory]
        match sending.pattern:
            case "permutation":
                times = {c.lane.name: self._permute(c, sending, local_bytes, hops) for c in crossings}
            case "exchange":
                times = {c.lane.name: self._exchange(c, sending, local_bytes, whole) for c in crossings}
            case "ring":
                together = ((sides, self._ring(sides, sending, whole)) for sides in _tori(crossings))
                times = {side.lane.name: seconds for sides, seconds in together for side in sides}
        return found | times

    def _copy(self, c: Crossing, sending: Sending, local: float, whole: float) -> float:
        """Return the seconds in a shared memory, where a device copies the data that it gets."""
        members = self.used[c.lane.name] if sending.pattern == "permutation" else c.size
        copied = whole * sending.rounds if sending.pattern == "ring" else local
        return members * c.lane.link.latency + copied / self.bandwidth(c, sending.kind, whole)

    def _ring(self, sides: Sequence[Crossing], sending: Sending, whole: float) -> float:
        """Return the seconds over all sides of one link, which add up."""
        members = prod(side.size for side in sides)
        rate = sum(self.bandwidth(side, sending.kind, whole) for side in sides)
        steps = sum(side.steps for side in sides)
        sent = sending.round_bytes(whole, members, sides[0].inner)
        return sending.rounds * (steps * sides[0].lane.link.latency + sent / rate)

    def _exchange(self, c: Crossing, sending: Sending, local: float, whole: float) -> float:
        share = (c.size // 2) * ((c.size + 1) // 2) if c.lane.link.has_neighbours else c.size - 1
        rate = self.bandwidth(c, sending.kind, whole)
        return c.steps * c.lane.link.latency + local * share / (c.size * rate)

    def _permute(self, c: Crossing, sending: Sending, local: float, hops: int | None) -> float:
        """Return the seconds: without `hops` data goes over a quarter of a ring on average, and both ways."""
        rate, passed = self.bandwidth(c, sending.kind, local), 1
        if c.lane.link.has_neighbours and hops is None:
            passed = max(1, c.size // 4)
        elif c.lane.link.has_neighbours and hops is not None:
            there = -(-hops // c.inner) % c.size
            passed = max(1, min(there, c.size - there))
            rate /= 2 if c.is_ring else 1
        return passed * (c.stride * c.lane.link.latency + local / rate)

    def bandwidth(self, crossing: Crossing, kind: str, size: float) -> float:
        """Bytes/s that one device sends there in all directions, when all devices of the mesh do, of an array of `size` bytes
        in a collective of that kind.
        """
        link = crossing.lane.link
        rate = link.rate(kind).at(size) / min(link.shared, self.mesh.devices)
        between = crossing.stride if link.has_neighbours else 1
        return rate * (2 if crossing.is_ring else 1) / between


def lie_as_one(mesh: Mesh, hardware: Hardware, first: int) -> bool:
    """Whether every group over both or neither of an axis and the next works on the same lanes where one axis stands for them.

    Not on a torus, for example, where each of them has a side to itself.
    """
    (outer, size), (inner, times), *rest = mesh.axes[first:]
    one = Mesh(mesh.name, (*mesh.axes[:first], (outer, size * times), *rest))
    apart, joined = Topology.of(mesh, hardware), Topology.of(one, hardware)
    groups = (axes for count in range(len(one.axes) + 1) for axes in combinations(one.names, count))
    return all(
        apart.crossings((*axes, inner) if outer in axes else axes) == joined.crossings(axes)
        for axes in groups
    )


def _tori(crossings: Iterable[Crossing]) -> list[list[Crossing]]:
    """Crossings by link: those of several sides of one torus together."""
    found: dict[str, list[Crossing]] = {}
    for crossing in crossings:
        found.setdefault(crossing.lane.link.name, []).append(crossing)
    return list(found.values())


def _compact_parts(hardware: Hardware, devices: int) -> Iterator[Mapping[str, int]]:
    """Sides of the most compact parts of the tori, by lane, where the devices need no whole ones."""
    inner, found = 1, []
    for link in hardware.links:
        count, room = -(-devices // inner), prod(link.sizes)
        if len(link.sizes) > 1 and count < room:
            names = [f"{link.name}.{side}" for side in range(len(link.sizes))]
            found.append([dict(zip(names, sides, strict=True)) for sides in compact(link.sizes, count)])
        if count <= room or not link.sizes:
            break
        inner *= room
    for parts in product(*found) if found else ():
        yield {name: side for part in parts for name, side in part.items()}


@cache
def compact(sizes: tuple[int, ...], count: int) -> tuple[tuple[int, ...], ...]:
    """The sides of blocks of `count` devices in a torus of these sizes, those alone whose sides have the least sum."""
    if len(sizes) == 1:
        return ((count,),) if count <= sizes[0] else ()
    firsts = (n for n in range(1, min(sizes[0], count) + 1) if count % n == 0)
    blocks = [(n, *rest) for n in firsts for rest in compact(sizes[1:], count // n)]
    least = min(map(sum, blocks), default=0)
    return tuple(block for block in blocks if sum(block) == least)


class _Free:
    """What is left of the lanes while axes are put on them; `used` are the members taken of each, the innermost lane first.

    rooms: of lanes that have less room than their size, by name.
    """

    def __init__(self, lanes: list[Lane], rooms: Mapping[str, int]) -> None:
        self.lanes, self.rooms = lanes, rooms
        self.at = 0
        self.used: dict[str, int] = {}

    def take(self, size: int, rest: int) -> list[AxisPart]:
        """Room for an axis of this size; `rest` processors, with those of the axis, are still to come."""
        found: list[AxisPart] = []
        while size > 1 and self.lanes:
            self._advance(size, rest)
            lane, taken = self.lanes[self.at], self._taken()
            part = self._part(size, rest)
            found.append(AxisPart(lane, part, taken))
            self.used[lane.name] = taken * part
            size, rest = -(-size // part), -(-rest // part)
            self.at += size > 1
        return found

    def _part(self, size: int, rest: int) -> int:
        """How much of an axis goes on this lane: all, or else a divisor of it if what is left finds room, or else what fits."""
        room, outer = self._room(self.at), self._outer_room()
        if size <= room or self.at == len(self.lanes) - 1:
            return size
        return next((n for n in range(int(room), 1, -1) if size % n == 0 and rest <= n * outer), int(room))

    def _outer_room(self) -> float:
        return prod(self._room(at) for at in range(self.at + 1, len(self.lanes)))

    def _taken(self) -> int:
        return self.used.get(self.lanes[self.at].name, 1)

    def _room(self, at: int) -> float:
        lane = self.lanes[at]
        size = self.rooms.get(lane.name, lane.size)
        return inf if size is None else size // self.used.get(lane.name, 1)

    def _advance(self, size: int, rest: int) -> None:
        """Go on to the next lane where this one is full, and to the next side of a torus where only there is room for the axis
        alone.
        """
        while self.at < len(self.lanes) - 1:
            room, next_room = self._room(self.at), self._room(self.at + 1)
            is_side = self.lanes[self.at + 1].link is self.lanes[self.at].link
            better = (room < size or self._taken() > 1) and size <= next_room and rest <= self._outer_room()
            if room > 1 and not (is_side and better):
                return
            self.at += 1
