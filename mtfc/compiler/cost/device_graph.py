"""Machines of any shape: devices of several kinds, and links that join some of them (FlexFlow's D = (D_N, D_E), section 3).

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

from collections.abc import Iterator
from functools import cached_property
from itertools import pairwise
from typing import Literal

import attrs

from mtfc.compiler.analysis.disjoint_sets import DisjointSets
from mtfc.compiler.cost.hardware import Device, Hardware
from mtfc.compiler.records import frozen

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
