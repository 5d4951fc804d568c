"""Machines that programs run on: devices, and the links between them.

A machine has the figures that a prediction needs: the rates at which one device computes, reads its memory and sends to its
neighbours. Rates may depend on size, as small kernels and messages are slower (`Rate`). Links nest: the first link connects
devices, the second connects groups of the first, and so on.

Units are those of the SI: FLOP/s, bytes, bytes/s, seconds.

Machines of any shape: devices of several kinds, and links that join some of them (FlexFlow's D = (D_N, D_E), section 3).

Devices are numbered kind by kind, in the order of the kinds. A link joins *members*: devices, and the switches and buses of
earlier links.

    wire      joins each member of a first group to each member of a second
    ring      joins each member to the next, and the last to the first
    switch    joins each member to a switch in the middle
    bus       is a switch through which one transfer passes at a time

Each direction of a wire is a *port*, and so is each direction between a member and a switch. A half-duplex wire is one port, and
so is a whole bus. Data may pass through devices, switches and buses. Its *route* is the fastest one for `TYPICAL` bytes:

    seconds of a transfer = latencies of the route + bytes / the smallest bandwidth on the route

All ports of a route work at once, as data is sent in pieces. Each is occupied for latencies + bytes / its own bandwidth.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cached_property
from itertools import pairwise
from math import exp, inf, log, prod
from typing import Literal

import attrs

from mtfc.compiler.analysis.disjoint_sets import DisjointSets
from mtfc.compiler.records import frozen

Kind = Literal["switch", "ring", "torus", "memory"]
KINDS: tuple[Kind, ...] = ("switch", "ring", "torus", "memory")
NEIGHBOURING: tuple[Kind, ...] = ("ring", "torus")
PASSES = ("forward", "backward")
KERNELS = ("pool", "unpool", "convolution", "transposed", "reordered", "clear", "round")
"""Kernels with rates of their own.

pool: a reduction of windows. unpool: its gradient. convolution: a dot of windows, or a dot whose windows `fold` sums. transposed
and reordered: arrays transposed or reordered for a dot (`analysis/dot_operand_layout.py`). clear and round: arrays that a TPU
clears or rounds for a loop (`cost/tpu_kernels.py`).
"""


@frozen
class Rate:
    """A rate per second that depends on size: pairs (size, rate) in ascending order of sizes; a plain number is one pair.

    Between two sizes the rate is interpolated on logarithmic scales. Outside of them it is constant.
    """

    points: tuple[tuple[float, float], ...]

    @classmethod
    def constant(cls, rate: float) -> Rate:
        return cls(((1.0, rate),))

    @property
    def peak(self) -> float:
        return max(rate for _, rate in self.points)

    def most(self, size: float) -> float:
        """Return the highest rate for at most `size` FLOPs or bytes."""
        return max(self.at(size), *(rate for each, rate in self.points if each <= size))

    def at(self, size: float) -> float:
        """Return the rate for `size` FLOPs or bytes."""
        above = next((i for i, (each, _) in enumerate(self.points) if each >= size), len(self.points))
        if above in (0, len(self.points)):
            return self.points[min(above, len(self.points) - 1)][1]
        (low, slow), (high, fast) = self.points[above - 1 : above + 1]
        share = log(size / low) / log(high / low)
        return exp(log(slow) + share * log(fast / slow))


@frozen
class DotShares:
    """The shares of the FLOP/s that a dot reaches, by the shape of its two matrices; None for all of them.

    short, long: by the smaller and by the larger one of the rows of the first matrix and the columns of the second. summed: by
    the elements that are summed for each element of the result. A dot reaches the product of the three shares.
    """

    short: Rate | None = None
    long: Rate | None = None
    summed: Rate | None = None

    def most(self, rows: float, columns: float, summed: float) -> float:
        """Return the largest share of a dot whose sizes are at most the given ones."""
        return prod(share.most(size) for share, size in self._sides(rows, columns, summed))

    def of(self, rows: int, columns: int, summed: int) -> float:
        """Return the share of a dot."""
        return prod(share.at(size) for share, size in self._sides(rows, columns, summed))

    def _sides(self, rows: float, columns: float, summed: float) -> Iterator[tuple[Rate, float]]:
        sides = ((self.short, min(rows, columns)), (self.long, max(rows, columns)), (self.summed, summed))
        yield from ((share, size) for share, size in sides if share is not None)


@frozen
class Scratchpad:
    """The memory on the chip of a TPU (VMEM, on v4 also CMEM).

    latency: seconds before a dot starts if its operands and result lie in the scratchpad. Rates are in bytes/s; None stands for
    the rate of the main memory: `reads` and `writes` of elementwise kernels and reductions, `factors` and `results` of dots.
    """

    bytes: float
    latency: float = 0.0
    reads: float | None = None
    writes: float | None = None
    factors: float | None = None
    results: float | None = None


SHORT_FLOATS = ("bf16", "f16")


@frozen
class Device:
    """One processor.

    flops: FLOP/s by dtype, each by the FLOPs of one kernel. memory: bytes. bandwidth: bytes/s of memory, by the bytes that one
    kernel reads and writes. overhead: seconds to start a kernel. ops: elements/s of ops and `KERNELS` that take longer than
    moving their bytes. Elements are counted in the largest array read or written; of a table only the elements that indices point
    at count. overlap: how much of the shorter of computing and moving the longer one hides: 1 if a kernel loads while it
    computes. loop: seconds of an iteration besides its kernels. dots: the shares of `flops` that dots reach by their shapes.
    attention: FLOP/s of a GPU's kernels for attention by `PASSES`, each by the keys of one device; nothing without kernels.
    A pass that is left out has the rate of the other.

    TPUs only: mxu_size is the number of rows and of columns of a matrix unit. scratchpad is the memory on the chip.
    """

    flops: Mapping[str, Rate]
    memory: float
    bandwidth: Rate
    overhead: float = 0.0
    ops: Mapping[str, float] = attrs.field(factory=dict)
    overlap: float = 1.0
    mxu_size: int | None = None
    loop: float = 0.0
    dots: DotShares | None = None
    attention: Mapping[str, Rate] = attrs.field(factory=dict)
    scratchpad: Scratchpad | None = None

    @property
    def vmem(self) -> Scratchpad | None:
        """The scratchpad of a TPU; None for other devices."""
        return self.scratchpad if self.mxu_size is not None else None

    @property
    def attending(self) -> str | None:
        """The platform whose kernels compute attention: TPUs with a scratchpad, and GPUs with rates of `attention`."""
        return "tpu" if self.vmem is not None else "gpu" if self.attention else None

    @property
    def weightless(self) -> Device:
        """The same device with infinite bandwidth and without overhead."""
        return attrs.evolve(self, bandwidth=Rate.constant(inf), overhead=0.0, scratchpad=None)

    @property
    def has_constant_rates(self) -> bool:
        """True if kernels of all sizes and shapes run at the same rates."""
        rates = (*self.flops.values(), self.bandwidth)
        return self.dots is None and all(len(rate.points) == 1 for rate in rates)

    @property
    def reorders_operands(self) -> bool:
        """True if dots read copies of operands in another order: on CPUs, which have a rate for that."""
        return "reordered" in self.ops

    def widens(self, dtype: str) -> bool:
        """Return True for 16-bit floats whose dots are stated to be no faster than those of f32: XLA keeps them in f32."""
        short, wide = self.flops.get(dtype), self.flops.get("f32")
        return dtype in SHORT_FLOATS and short is not None and wide is not None and short.peak <= wide.peak

    @property
    def stores_plainly(self) -> bool:
        """True if arrays take their own bytes, and there are no others."""
        widens = any(map(self.widens, SHORT_FLOATS))
        return self.mxu_size is None and not self.reorders_operands and not widens

    def rated(self, dtype: str) -> str:
        """Return the dtype whose rate counts for a dtype: the dtype itself, else f32, else the slowest dtype.

        Floats of 8 bits have the rate of `f8`, else that of 16 bits, to which XLA converts them.
        """
        own = ("f8", *SHORT_FLOATS) if dtype.startswith("f8") else (dtype,)
        given = [each for each in (*own, "f32") if each in self.flops]
        return given[0] if given else min(self.flops, key=lambda each: self.flops[each].peak)

    def rate(self, dtype: str) -> Rate:
        """Return the FLOP/s of a dtype."""
        return self.flops[self.rated(dtype)]


@frozen
class Link:
    """A link between `sizes` neighbours. `sizes` is empty for an outermost switch that has room for any number.

    A torus has one size for each side, the last side innermost. In a shared `memory`, each device copies its data from the
    others itself, and computes nothing meanwhile.

    bandwidth: bytes/s that a device sends in one direction, by the bytes of the whole array; in a ring or torus to one neighbour
    along one side. latency: seconds from one neighbour to the next. shared: the number of neighbouring devices that share this
    bandwidth. wraps: a part of a ring or side is a ring itself if its length is a multiple of this number, and if at least a
    block with such sides is in use; otherwise it is a line. None: only whole sides are rings. collectives: bandwidths of single
    kinds of collectives; the bandwidth of a permute depends on the bytes of one device.
    """

    name: str
    kind: Kind
    sizes: tuple[int, ...]
    bandwidth: Rate
    latency: float
    shared: int = 1
    wraps: int | None = None
    collectives: Mapping[str, Rate] = attrs.field(factory=dict)

    def rate(self, kind: str) -> Rate:
        """Return the bandwidth in a collective of this kind."""
        return self.collectives.get(kind, self.bandwidth)

    @property
    def peak(self) -> float:
        """The highest bandwidth in any collective."""
        return max(rate.peak for rate in (self.bandwidth, *self.collectives.values()))

    @property
    def has_neighbours(self) -> bool:
        """True if data passes through other members on its way to a distant one."""
        return self.kind in NEIGHBOURING


@frozen
class Hardware:
    """A machine, the innermost link first."""

    name: str
    device: Device
    links: tuple[Link, ...]

    @property
    def devices(self) -> int | None:
        """The number of devices; None for any number."""
        if any(not link.sizes for link in self.links):
            return None
        return prod(size for link in self.links for size in link.sizes)

    @property
    def has_peak_figures(self) -> bool:
        """True if the machine has peak figures only: kernels start in no time and run at one rate at every size."""
        return not self.device.overhead and self.device.has_constant_rates

    @property
    def caveat(self) -> tuple[str, ...]:
        """Return a line about predictions from peak figures; nothing for a machine with other figures."""
        if not self.has_peak_figures:
            return ()
        text = f"{self.name} has peak figures: real steps take longer, small ones many times"
        return (f"  note: {text} (mtfc calibrate measures a machine)",)


GraphKind = Literal["wire", "ring", "switch", "bus"]
GRAPH_KINDS: tuple[GraphKind, ...] = ("wire", "ring", "switch", "bus")
CENTRAL: tuple[GraphKind, ...] = ("switch", "bus")
"""Links with something in the middle, which later links may join."""

MOST_DEVICES = 256
MOST_LINKS = 64
MOST_KINDS = 16
MOST_WIRES = 16_384
"""Bounds of a graph, so that all routes are known in seconds."""

MOST_PLACED = 1024
"""The most devices of a placement that is simulated, on any machine."""

TYPICAL = 2.0**20
"""The bytes of the transfer for which a route is the fastest."""


@frozen
class DeviceKind:
    """Equal devices. A single device is called by its kind; one of several devices has a number behind the kind: `gpu[2]`.

    is_server: True for parameter servers, which add up the gradients that several devices have of one parameter.
    """

    name: str
    device: Device
    count: int
    is_server: bool = False

    @property
    def peak(self) -> float:
        """The highest FLOP/s of a device."""
        return max(rate.peak for rate in self.device.flops.values())

    def called(self, index: int) -> str:
        """Return the name of a device."""
        return self.name if self.count == 1 else f"{self.name}[{index}]"


@frozen
class GraphLink:
    """A link between members: devices by number, and links by `DeviceGraph.middle`.

    groups: the members, as the file lists them; a wire has two groups. bandwidth: bytes/s of a port. latency: seconds from one
    member to another.
    """

    name: str
    kind: GraphKind
    groups: tuple[tuple[int, ...], ...]
    bandwidth: float
    latency: float
    is_half: bool = False

    @property
    def members(self) -> tuple[int, ...]:
        """All members, each once."""
        return tuple(dict.fromkeys(member for group in self.groups for member in group))

    @property
    def most_pairs(self) -> int:
        """An upper bound of the number of pairs, found without making them: a machine may have too many."""
        return len(self.groups[0]) * len(self.groups[-1]) if self.kind == "wire" else len(self.members)

    @property
    def pairs(self) -> tuple[tuple[int, int], ...]:
        """The pairs of members that a wire or a ring joins, each once."""
        members = self.members
        if self.kind == "ring":
            closing = [(members[-1], members[0])] if len(members) > 2 else []
            return (*pairwise(members), *closing)
        found = {frozenset((a, b)): (a, b) for a in self.groups[0] for b in self.groups[-1] if a != b}
        return tuple(found.values())


@frozen
class GraphPort:
    """One direction of a link between two members, as reports name it."""

    lane: str
    name: str


@frozen
class Edge:
    """A way from one node to the next, through a port."""

    source: int
    target: int
    port: int
    latency: float
    bandwidth: float


@frozen
class DeviceGraph:
    """A machine with devices of several kinds, or with any links between them."""

    name: str
    kinds: tuple[DeviceKind, ...]
    links: tuple[GraphLink, ...]

    @property
    def devices(self) -> int:
        """The number of devices."""
        return sum(kind.count for kind in self.kinds)

    @cached_property
    def kind_of(self) -> tuple[int, ...]:
        """The kind of each device, by number."""
        return tuple(number for number, kind in enumerate(self.kinds) for _ in range(kind.count))

    def first(self, kind: int) -> int:
        """Return the number of the first device of a kind."""
        return sum(each.count for each in self.kinds[:kind])

    def numbers(self, kind: int) -> tuple[int, ...]:
        """Return the devices of a kind."""
        return tuple(range(self.first(kind), self.first(kind) + self.kinds[kind].count))

    @property
    def servers(self) -> tuple[int, ...]:
        """The parameter servers."""
        return tuple(device for device, kind in enumerate(self.kind_of) if self.kinds[kind].is_server)

    def middle(self, link: int) -> int:
        """Return the node in the middle of a switch or bus. Nodes are the devices, then the links."""
        return self.devices + link

    def called(self, node: int) -> str:
        """Return the name of a node."""
        if node >= self.devices:
            return self.links[node - self.devices].name
        kind = self.kind_of[node]
        return self.kinds[kind].called(node - self.first(kind))

    @property
    def has_peak_figures(self) -> bool:
        """True if a kind has peak figures only."""
        return any(each.has_peak_figures for each in kinds_of(self))

    @property
    def caveat(self) -> tuple[str, ...]:
        """Return a line about predictions from peak figures; nothing for a machine with other figures."""
        own = next((each for each in kinds_of(self) if each.has_peak_figures), None)
        return () if own is None else attrs.evolve(own, name=self.name).caveat

    @property
    def summary(self) -> str:
        """The kinds and their numbers: `1 cpu, 4 gpu`."""
        return ", ".join(f"{kind.count} {kind.name}" for kind in self.kinds)

    @cached_property
    def _ways(self) -> tuple[tuple[Edge, ...], tuple[GraphPort, ...]]:
        """Return the edges between devices and switches, in both directions, and the ports that edges send through.

        A link with a central switch has an edge from each member to the switch; each such edge takes half of the link's
        latency.
        """
        edges: list[Edge] = []
        ports: dict[GraphPort, int] = {}
        for number, link in enumerate(self.links):
            is_central = link.kind in CENTRAL
            switch = self.middle(number)
            ends = [(member, switch) for member in link.members] if is_central else link.pairs
            latency = link.latency / 2 if is_central else link.latency
            for a, b in ends:
                for source, target in ((a, b), (b, a)):
                    port = ports.setdefault(self._port(link, source, target, switch), len(ports))
                    edges.append(Edge(source, target, port, latency, link.bandwidth))
        return tuple(edges), tuple(ports)

    def _port(self, link: GraphLink, source: int, target: int, middle: int) -> GraphPort:
        """Return the port that an edge sends through: one for a bus, one for both directions of a half-duplex link, or one
        for each.
        """
        if link.kind == "bus":
            return GraphPort(link.name, link.name)
        if link.is_half:
            joined = sorted(each for each in (source, target) if each != middle)
            return GraphPort(link.name, f"{link.name} at {' and '.join(map(self.called, joined))}")
        ends = ((source, "from"), (target, "to"))
        words = [f"{word} {self.called(end)}" for end, word in ends if end != middle]
        return GraphPort(link.name, f"{link.name} {' '.join(words)}")

    @property
    def edges(self) -> tuple[Edge, ...]:
        """The ways between neighbouring nodes. A switch or a bus has half of its latency on either side."""
        return self._ways[0]

    @property
    def ports(self) -> tuple[GraphPort, ...]:
        return self._ways[1]

    def unreachable(self) -> int | None:
        """Return a device to which no route leads from the first device, if any."""
        parts = DisjointSets[int]()
        for number, link in enumerate(self.links):
            for member in link.members:
                parts.join(member, self.middle(number))
        return next((each for each in range(self.devices) if parts.first(each) != parts.first(0)), None)

    def orders(self) -> Iterator[tuple[int, ...]]:
        """Yield orders of devices in which neighbours are near: of each kind, of all, of each link, and across alike links."""
        yield from (self.numbers(kind) for kind in range(len(self.kinds)))
        yield tuple(range(self.devices))
        groups: dict[tuple[int, int], dict[tuple[int, ...], None]] = {}
        for link in self.links:
            members = tuple(member for member in link.members if member < self.devices)
            for kind in dict.fromkeys(self.kind_of[member] for member in members):
                own = tuple(member for member in members if self.kind_of[member] == kind)
                groups.setdefault((kind, len(own)), {})[own] = None
                yield own
        for islands in groups.values():
            across = tuple(member for each in zip(*islands, strict=True) for member in each)
            if len(set(across)) == len(across):
                yield across

    def parts(self) -> Iterator[tuple[str, tuple[int, ...]]]:
        """Yield parts that may be uniform, by name: the devices of a kind, and those of one kind that a link joins."""
        yield from ((kind.name, self.numbers(number)) for number, kind in enumerate(self.kinds))
        for link in self.links:
            members = tuple(member for member in link.members if member < self.devices)
            if len({self.kind_of[member] for member in members}) == 1:
                yield link.name, members


Machine = Hardware | DeviceGraph
"""A machine: equal devices with nested links, or a graph of devices."""


def kinds_of(machine: Machine) -> tuple[Hardware, ...]:
    """Return one device of each kind of a machine, as hardware."""
    if isinstance(machine, Hardware):
        return (machine,)
    return tuple(Hardware(f"{machine.name}:{kind.name}", kind.device, ()) for kind in machine.kinds)
