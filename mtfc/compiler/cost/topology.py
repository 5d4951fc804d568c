"""The place of a mesh on a machine, and the time of collectives there.

Links nest. Each link is a *lane*; a torus is one lane for each side. The processors of a mesh are numbered row by row, and
devices from the innermost lane outwards. So the last axis of a mesh lies innermost, unless another order is given. An axis
may cover a part of a lane, or several lanes (`AxisPart`). A mesh that does not fill a torus takes the most compact part, as TPUs
are rented: 8 of 16 x 16 are 2 x 4. If the axes do not fit there, they take the whole torus.

A collective uses all lanes of its axes at once (pipelined, as rings of rings are). Its seconds on a lane are those of the ring
algorithm, with `n` members, `S` bytes of the whole array, and `p` devices per member:

    all-gather, reduce-scatter   (n - 1) latency + S (n - 1) / (n p bandwidth)
    all-reduce                   both of them, as libtpu has it for a reduce-scatter over a whole torus of several sides; on a
                                 switch the least of 2 (n - 1) latencies and, for a tree, 4 log2 n
    all-to-all                   (n - 1) latency + s (n - 1) / (n bandwidth), of s bytes on each device; on a ring or line, where
                                 they pass through others, s floor(n/2) ceil(n/2) / (n bandwidth)
    permute                      latency and s / bandwidth for each hop; a shift goes one way round a ring, the shorter one

In a shared memory all members wait for each other (n latency), and each copies the data that it receives: S / bandwidth for an
all-gather or reduce-scatter, twice that for an all-reduce, s / bandwidth for an all-to-all or a permute. All processors meet for
a permute.

`bandwidth` is that of one device while all send: a k-th of a link that k devices share. A member of a ring has neighbours on
both sides, so twice the bandwidth and half the steps. The sides of a torus add up. Groups whose members are not adjacent share
the links of a ring. Sources: nccl-tests' PERFORMANCE.md for rings, NCCL's src/graph/tuning.cc for trees (5 us a level where a
step of a ring takes 2.7), the JAX scaling book (jax-ml.github.io/scaling-book/sharding)
for tori and hierarchies: the largest over levels of S (n - 1) / (n W), of W the bandwidth of a member, which is p times that of
its devices.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache
from itertools import combinations, product
from math import inf, prod

import attrs

from mtfc.compiler.cost.hardware import Hardware, Link, Rate
from mtfc.compiler.ir.opdef import Sending
from mtfc.compiler.ir.ops.collectives import SENDINGS
from mtfc.compiler.ir.types import Axes, Mesh
from mtfc.compiler.records import frozen

COMBINED = 4 * 2**20
"""The bytes from which an array has its own collective; smaller arrays may share one latency."""


@frozen
class Lane:
    """A link or one side of a torus, on which transfers queue. `size` is None if there is room for any number."""

    name: str
    link: Link
    size: int | None


@frozen
class AxisPart:
    """The part of a mesh axis on a lane: `size` members, `stride` places apart."""

    lane: Lane
    size: int
    stride: int


@frozen
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
        """The number of neighbours that data passes on its way around."""
        return self.stride * (self.size // 2 if self.is_ring else self.size - 1)

    @property
    def levels(self) -> int:
        """The number of steps from the leaves of a binary tree to its root, where each member waits for two others."""
        return 2 * (self.size - 1).bit_length()


def lanes(hardware: Hardware) -> list[Lane]:
    """Return all lanes, the innermost first."""
    found: list[Lane] = []
    for link in hardware.links:
        if len(link.sizes) < 2:
            found.append(Lane(link.name, link, link.sizes[0] if link.sizes else None))
            continue
        sides = [Lane(f"{link.name}.{side}", link, size) for side, size in enumerate(link.sizes)]
        found += reversed(sides)
    return found


@frozen
class Topology:
    """A mesh on a machine: the parts of each axis on lanes, and the number of members in use on each lane."""

    mesh: Mesh
    axis_parts: Mapping[str, tuple[AxisPart, ...]]
    used: Mapping[str, int]

    @classmethod
    def of(cls, mesh: Mesh, hardware: Hardware, innermost_first: Sequence[str] = ()) -> Topology:
        """Lay out the axes of a mesh in the given order, by default the last axis first.

        An axis that no longer fits on a side of a torus goes to the next side, if all remaining axes find room there. Among the
        most compact parts of a torus, the mesh takes the one that cuts its axes into the fewest parts.
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
        """Lay out the axes in that order, and return whether they fit. rooms: lanes with less room than their size."""
        free = _Free(lanes(hardware), rooms)
        axis_parts = {
            axis: tuple(free.take(mesh.sizes[axis], mesh.size(order[i:]))) for i, axis in enumerate(order)
        }
        return cls(mesh, axis_parts, free.used), all(free.used.get(name, 1) <= rooms[name] for name in rooms)

    def overfull(self) -> Lane | None:
        """Return a lane with more members than its size, if any."""
        parts = (part for parts in self.axis_parts.values() for part in parts)
        return next((p.lane for p in parts if p.lane.size and self.used[p.lane.name] > p.lane.size), None)

    @property
    def at_once(self) -> int:
        """The number of lanes that work beside the processor; devices of a shared memory copy themselves."""
        lanes = {part.lane.name: part.lane for parts in self.axis_parts.values() for part in parts}
        return sum(lane.link.kind != "memory" for lane in lanes.values())

    def crossings(self, axes: Axes) -> list[Crossing]:
        """Return the lanes that a group over these axes uses, the innermost first."""
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
        """Return how a group of `size` devices crosses a lane, on which its axes lie as `parts`."""
        lane = parts[0].lane
        reach = max(part.stride * part.size for part in parts)
        is_ring = reach == self.used[lane.name] > 2 and self._wraps(lane)
        return Crossing(lane, size, reach // size if lane.link.has_neighbours else 1, inner, is_ring)

    def _wraps(self, lane: Lane) -> bool:
        """True if the members in use of a lane form a ring, so that each has neighbours on both sides."""
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
        """The mesh on links that always have their highest bandwidth: a lower bound for the time of each collective."""
        links = (
            attrs.evolve(link, bandwidth=Rate.constant(link.peak), collectives={}) for link in hardware.links
        )
        return cls.of(mesh, attrs.evolve(hardware, links=tuple(links)))

    def latencies(self, kind: str, axes: Axes, hops: int | None = None) -> list[tuple[float, float]]:
        """Return for each lane of a collective its latency and its seconds per byte, on links of one rate each."""
        nothing, one = (self.seconds(kind, axes, size, hops) for size in (0.0, 1.0))
        return [(nothing[lane], one[lane] - nothing[lane]) for lane in nothing]

    def seconds(self, kind: str, axes: Axes, local_bytes: float, hops: int | None = None) -> dict[str, float]:
        """Return the seconds of a collective on each of its lanes.

        local_bytes: the operand of one processor. hops: the distance of a permute, None if any.
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

    def sent(self, kind: str, axes: Axes, local_bytes: float, hops: int | None = None) -> dict[str, float]:
        """Return the bytes that one device sends on each lane of a collective: the rest of its seconds is latency."""
        sending, crossings = SENDINGS[kind], self.crossings(axes)
        whole = sending.whole_bytes(local_bytes, self.mesh.size(axes))
        waiting, seconds = (self.seconds(kind, axes, size, hops) for size in (0.0, local_bytes))
        is_shift = sending.pattern == "permutation" and hops is not None
        rates = {
            c.lane.name: self.bandwidth(c, sending.kind, whole) / (2 if c.is_ring and is_shift else 1)
            for c in crossings
        }
        return {lane: (seconds[lane] - waiting[lane]) * rate for lane, rate in rates.items()}

    def _copy(self, c: Crossing, sending: Sending, local: float, whole: float) -> float:
        """Return the seconds in a shared memory, where each device copies the data that it receives."""
        members = self.used[c.lane.name] if sending.pattern == "permutation" else c.size
        copied = whole * sending.rounds if sending.pattern == "ring" else local
        return members * c.lane.link.latency + copied / self.bandwidth(c, sending.kind, whole)

    def _ring(self, sides: Sequence[Crossing], sending: Sending, whole: float) -> float:
        """Return the seconds over all sides of one link, which add up."""
        members = prod(side.size for side in sides)
        rate = sum(self.bandwidth(side, sending.kind, whole) for side in sides)
        steps = sum(side.steps for side in sides)
        if sending.kind == "all_reduce" and not sides[0].lane.link.has_neighbours:
            steps = min(steps, sides[0].levels)
        sent = sending.round_bytes(whole, members, sides[0].inner)
        if sending.kind == "reduce_scatter" and self._is_whole(sides):
            sending = SENDINGS["all_reduce"]
        return sending.rounds * (steps * sides[0].lane.link.latency + sent / rate)

    def _is_whole(self, sides: Sequence[Crossing]) -> bool:
        """True for all devices of a torus of several sides. There libtpu reduces all, and then takes parts (0.0.42, 0.0.52)."""
        used = [size for name, size in self.used.items() if name.split(".")[0] == sides[0].lane.link.name]
        return len(sides) > 1 and prod(side.size for side in sides) == prod(used)

    def _exchange(self, c: Crossing, sending: Sending, local: float, whole: float) -> float:
        """Return the seconds of an all-to-all on a crossing. local, whole: the bytes of a device, and of all."""
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
        """Return the bytes/s that one device sends in all directions while all devices of the mesh send.

        size: bytes of the array in a collective of that kind.
        """
        link = crossing.lane.link
        rate = link.rate(kind).at(size) / min(link.shared, self.mesh.devices)
        return rate * (2 if crossing.is_ring else 1) / crossing.stride


def lie_as_one(mesh: Mesh, hardware: Hardware, first: int) -> bool:
    """True if one axis can stand for an axis and the next: every group over both or neither then uses the same lanes.

    This is false on a torus, for example, where each of the two axes has a side to itself.

    first: the number of the first of both axes.
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
    """Group crossings by link: the sides of one torus belong together."""
    found: dict[str, list[Crossing]] = {}
    for crossing in crossings:
        found.setdefault(crossing.lane.link.name, []).append(crossing)
    return list(found.values())


def _compact_parts(hardware: Hardware, devices: int) -> Iterator[Mapping[str, int]]:
    """Yield the sides of the most compact parts of the tori, by lane, where the devices need no whole torus."""
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
    """Return the sides of blocks of `count` devices in a torus of these sizes whose sides have the least sum."""
    if len(sizes) == 1:
        return ((count,),) if count <= sizes[0] else ()
    firsts = (n for n in range(1, min(sizes[0], count) + 1) if count % n == 0)
    blocks = [(n, *rest) for n in firsts for rest in compact(sizes[1:], count // n)]
    least = min(map(sum, blocks), default=0)
    return tuple(block for block in blocks if sum(block) == least)


class _Free:
    """The free room of lanes while axes are laid out."""

    def __init__(self, lanes: list[Lane], rooms: Mapping[str, int]) -> None:
        """Start with all lanes free.

        at: the lane that is laid out next. rooms: the room of lanes that have less than their size, by name. used: members
        taken of each lane, the innermost lane first.
        """
        self.lanes, self.rooms = lanes, rooms
        self.at = 0
        self.used: dict[str, int] = {}

    def take(self, size: int, rest: int) -> list[AxisPart]:
        """Take room for an axis of this size. rest: processors of this and all remaining axes."""
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
        """Return the part of an axis on this lane: all, else a divisor if the remainder finds room, else as much as fits."""
        room, outer = self._room(self.at), self._outer_room()
        if size <= room or self.at == len(self.lanes) - 1:
            return size
        return next((n for n in range(int(room), 1, -1) if size % n == 0 and rest <= n * outer), int(room))

    def _outer_room(self) -> float:
        return prod(self._room(at) for at in range(self.at + 1, len(self.lanes)))

    def _taken(self) -> int:
        return self.used.get(self.lanes[self.at].name, 1)

    def _room(self, at: int) -> float:
        """Return how many further devices a lane can take."""
        lane = self.lanes[at]
        size = self.rooms.get(lane.name, lane.size)
        return inf if size is None else size // self.used.get(lane.name, 1)

    def _advance(self, size: int, rest: int) -> None:
        """Go on to the next lane if this one is full, and to the next side of a torus if only that has room for the whole
        axis. size: the size of the present axis. rest: the part of it that is still to be laid out.
        """
        while self.at < len(self.lanes) - 1:
            room, next_room = self._room(self.at), self._room(self.at + 1)
            is_side = self.lanes[self.at + 1].link is self.lanes[self.at].link
            better = (room < size or self._taken() > 1) and size <= next_room and rest <= self._outer_room()
            if room > 1 and not (is_side and better):
                return
            self.at += 1
