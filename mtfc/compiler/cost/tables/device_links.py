"""The ports and the time of a transfer between two devices (FlexFlow, section 5, A2: s / b).

In a device graph a transfer occupies all ports of its route (`Routes`). In hardware with nested links, devices are
numbered from the innermost link outwards, and the innermost group that contains both devices determines the link. A transfer then
occupies the port of its sender; neighbours that share bandwidth share one port. Rings and tori have one port for each direction.
Only sends contend for a port: data that gathers in the forward pass scatters in the backward pass, so the receiving side is
counted there.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property
from itertools import pairwise
from math import inf, prod
from typing import Any

import attrs
import numpy as np

from mtfc.compiler.cost.hardware import TYPICAL, DeviceGraph, Edge, GraphPort, Hardware, Link, Machine, Rate

Table = Any
"""A NumPy array indexed by the sending and the receiving device."""


@attrs.frozen(eq=False)
class Routes:
    """Routes between devices.

    port, rate [source, target, hop]: the ports of a route, -1 after the last, and their bandwidths. latency, bandwidth [source,
    target]: of the whole route.
    """

    port: Table
    rate: Table
    latency: Table
    bandwidth: Table

    def hops(self, source: int, target: int) -> Iterator[tuple[int, float]]:
        """Yield the ports of a route with their bandwidths."""
        ports, rates = self.port[source, target].tolist(), self.rate[source, target].tolist()
        yield from ((port, rate) for port, rate in zip(ports, rates, strict=True) if port >= 0)

    @cached_property
    def figures(self) -> list[list[tuple[float, float]]]:
        """Latency and bandwidth from each device to each other."""
        rows = zip(self.latency.tolist(), self.bandwidth.tolist(), strict=True)
        return [list(zip(*row, strict=True)) for row in rows]


@attrs.frozen(eq=False)
class DeviceLinks(Routes):
    """The routes between `count` devices. Ports are numbered from `count` on, after the devices; `ports` lists them."""

    count: int
    ports: tuple[GraphPort, ...]

    @property
    def idle(self) -> int:
        """The number of a pseudo-device for tasks that take no time, after all ports."""
        return self.count + len(self.ports)

    def measured(self, latency: float, bandwidth: float) -> DeviceLinks:
        """Return the links with a measured latency and bandwidth between all devices."""
        others = self.bandwidth < np.inf
        return attrs.evolve(
            self,
            rate=np.where(self.port < 0, self.rate, bandwidth),
            latency=np.where(others, latency, self.latency),
            bandwidth=np.where(others, bandwidth, self.bandwidth),
        )

    def seconds(self, source: Any, target: Any, size: Any) -> Any:
        """Return the seconds of transfers of `size` bytes."""
        return self.latency[source, target] + size / self.bandwidth[source, target]


def device_links(machine: Machine, count: int) -> DeviceLinks:
    """Return the links between the first `count` devices. The outermost of nested links is repeated as needed. Bandwidths are
    those of large arrays.
    """
    return _of_graph(machine, count) if isinstance(machine, DeviceGraph) else _of_nested(machine, count)


def _of_graph(graph: DeviceGraph, count: int) -> DeviceLinks:
    """Return the links between the first `count` devices of a graph, along the routes between them."""
    routes = find_routes(graph)
    own = slice(0, count), slice(0, count)
    port = np.where(routes.port < 0, -1, routes.port + count)[own]
    return DeviceLinks(port, routes.rate[own], routes.latency[own], routes.bandwidth[own], count, graph.ports)


def _of_nested(hardware: Hardware, count: int) -> DeviceLinks:
    """Return the links between the first `count` devices of a machine whose links are nested, such as nodes of devices.

    Each pair of devices uses one port: that of the sender, or of the group of senders that shares a link.
    """
    port = np.full((count, count, 1), -1, np.int64)
    latency, bandwidth = np.zeros((count, count)), np.full((count, count), np.inf)
    ports: dict[GraphPort, int] = {}
    for a in range(count):
        for b in range(count):
            if a != b:
                link, inner = _between(hardware, a, b)
                hops, direction = _hops(link, a // inner, b // inner)
                sender = a // max(link.shared, 1) if link.shared > 1 else a
                port[a, b, 0] = ports.setdefault(_port(link, sender, direction), count + len(ports))
                latency[a, b] = hops * link.latency
                bandwidth[a, b] = link.rate("permute").peak
    rate = bandwidth[..., np.newaxis]
    return DeviceLinks(port, rate, latency, bandwidth, count, tuple(ports))


def _port(link: Link, sender: int, direction: int) -> GraphPort:
    """Return the port of a sender, or of a group of `link.shared` senders, in one direction (see `_hops`): `ici.1 from 3, down`.

    Its lane is the link, with the side of a torus, as `cost/topology.py` names it.
    """
    is_side = direction and len(link.sizes) > 1
    lane = f"{link.name}.{len(link.sizes) - 1 - (direction - 1) // 2}" if is_side else link.name
    first, last = (i * max(link.shared, 1) for i in (sender, sender + 1))
    senders = str(first) if last - first == 1 else f"{first}-{last - 1}"
    way = ("", ", up", ", down")[2 - direction % 2 if direction else 0]
    return GraphPort(lane, f"{lane} from {senders}{way}")


def _between(hardware: Hardware, a: int, b: int) -> tuple[Link, int]:
    """Return the link that connects two devices, and the number of devices inside each unit that it connects."""
    inner = 1
    for link in hardware.links[:-1]:
        outer = inner * (prod(link.sizes) if link.sizes else 1)
        if a // outer == b // outer:
            return link, inner
        inner = outer
    return hardware.links[-1], inner


def _hops(link: Link, a: int, b: int) -> tuple[int, int]:
    """Return the number of links that data passes and its first direction; 1 and 0 for switches."""
    if not link.has_neighbours:
        return 1, 0
    total, direction, stride = 0, 0, 1
    for side, size in enumerate(reversed(link.sizes)):
        ahead = (b // stride - a // stride) % size
        if ahead:
            direction = direction or 2 * side + (1 if ahead <= size - ahead else 2)
            total += min(ahead, size - ahead)
        stride *= size
    return max(total, 1), direction


# Routes of a device graph, and its uniform parts: equal devices with nested links, on which layouts run


FEMTO = 15
"""The digits of latencies after the point: sums of the same latencies in another order are equal."""


def find_routes(graph: DeviceGraph) -> Routes:
    """Find the fastest routes: for each bandwidth, the routes of least latency on links with at least this bandwidth."""
    nodes, count = graph.devices + len(graph.links), graph.devices
    best = np.full((nodes, nodes), inf)
    latency, bandwidth = np.zeros((count, count)), np.full((count, count), inf)
    port, rate = np.full((count, count, 1), -1, np.int64), np.full((count, count, 1), inf)
    for least in sorted({edge.bandwidth for edge in graph.edges}, reverse=True):
        edges = [edge for edge in graph.edges if edge.bandwidth >= least]
        lengths, nexts = _shortest(edges, nodes)
        seconds = lengths + TYPICAL / least
        better = seconds < best
        best = np.where(better, seconds, best)
        ports, rates = _followed(edges, nexts, count)
        port, rate = (_widened(each, ports.shape[2], fill) for each, fill in ((port, -1), (rate, inf)))
        ports, rates = _widened(ports, port.shape[2], -1), _widened(rates, port.shape[2], inf)
        is_new = better[:count, :count] & ~np.eye(count, dtype=bool)
        port, rate = np.where(is_new[..., None], ports, port), np.where(is_new[..., None], rates, rate)
        latency = np.where(is_new, lengths[:count, :count], latency)
    bandwidth = rate.min(axis=2)
    return Routes(port, rate, np.round(latency, FEMTO), bandwidth)


def _shortest(edges: Iterable[Edge], nodes: int) -> tuple[Any, Any]:
    """Return the least latency between all nodes, and the number of the first edge; of equal ways that with the fewest edges."""
    lengths, hops = np.full((nodes, nodes), inf), np.full((nodes, nodes), inf)
    nexts = np.full((nodes, nodes), -1, np.int64)
    np.fill_diagonal(lengths, 0.0)
    np.fill_diagonal(hops, 0.0)
    for number, edge in enumerate(edges):
        if edge.latency < lengths[edge.source, edge.target]:
            lengths[edge.source, edge.target], nexts[edge.source, edge.target] = edge.latency, number
            hops[edge.source, edge.target] = 1
    for node in range(nodes):
        length, hop = lengths[:, node, None] + lengths[node], hops[:, node, None] + hops[node]
        shorter = (length < lengths) | ((length == lengths) & (hop < hops))
        lengths, hops = np.where(shorter, length, lengths), np.where(shorter, hop, hops)
        nexts = np.where(shorter, nexts[:, node, None], nexts)
    return lengths, nexts


def _followed(edges: Sequence[Edge], nexts: Any, count: int) -> tuple[Any, Any]:
    """Return the ports of all routes between devices, and their bandwidths. A port that a route passes twice counts once.

    nexts: [source, target] -> the first edge of the route. count: the number of devices.
    """
    target, ports = (np.array([getattr(edge, field) for edge in edges]) for field in ("target", "port"))
    rates = np.array([edge.bandwidth for edge in edges])
    at, to = np.meshgrid(np.arange(count), np.arange(count), indexing="ij")
    found_ports, found_rates = list[Any](), list[Any]()
    while True:
        number = np.where(at == to, -1, nexts[at, to])
        if not (number >= 0).any():
            break
        port = np.where(number >= 0, ports[number], -1)
        for other in found_ports[-1:]:
            port = np.where(port == other, -1, port)
        found_ports.append(port)
        found_rates.append(np.where(port >= 0, rates[number], inf))
        at = np.where(number >= 0, target[number], to)
    return _packed(found_ports, found_rates, count)


def _packed(ports: Sequence[Any], rates: Sequence[Any], count: int) -> tuple[Any, Any]:
    """Return arrays [source, target, hop] in which -1 stands after all ports. count: the number of devices."""
    if not ports:
        return np.full((count, count, 1), -1, np.int64), np.full((count, count, 1), inf)
    port, rate = np.stack(ports, axis=2), np.stack(rates, axis=2)
    order = np.argsort(port < 0, axis=2, kind="stable")
    return np.take_along_axis(port, order, axis=2), np.take_along_axis(rate, order, axis=2)


def _widened(array: Any, width: int, fill: float) -> Any:
    missing = max(0, width - array.shape[2])
    return np.pad(array, ((0, 0), (0, 0), (0, missing)), constant_values=fill)


@attrs.frozen(eq=False)
class UniformParts:
    """The uniform parts of a graph, as hardware with nested links."""

    graph: DeviceGraph
    routes: Routes

    @classmethod
    def of(cls, graph: DeviceGraph) -> UniformParts:
        return cls(graph, find_routes(graph))

    def hardware(self, part: str | None = None) -> Hardware | None:
        """Return a part, or the whole machine, if its devices are equal and its links nest; else None."""
        graph = self.graph
        devices = tuple(range(graph.devices)) if part is None else dict(graph.parts()).get(part)
        if devices is None or len({graph.kind_of[device] for device in devices}) > 1:
            return None
        links = self._nested(devices)
        name = graph.name if part is None else f"{graph.name}:{part}"
        return None if links is None else Hardware(name, graph.kinds[graph.kind_of[devices[0]]].device, links)

    def sizes(self) -> dict[str, int]:
        """Return the number of devices of each uniform part, the largest first."""
        found = {
            name: len(devices) for name, devices in self.graph.parts() if self.hardware(name) is not None
        }
        return dict(sorted(found.items(), key=lambda item: -item[1]))

    def _nested(self, devices: Sequence[int]) -> tuple[Link, ...] | None:
        """Return the links on which collectives among some devices run, the innermost first: their own ring, or nested levels.

        None if the devices form no equal groups of groups.
        """
        links = self.graph.links
        ring = next((link for link in links if link.kind == "ring" and link.members == devices), None)
        if ring is not None and not ring.is_half:
            rate = Rate.constant(ring.bandwidth)
            return (Link(ring.name, "ring", (len(devices),), rate, ring.latency),)
        levels = self._levels(devices)
        if levels is None:
            return None
        return tuple(self._level(devices, inner, outer) for inner, outer in pairwise((1, *levels)))

    def _levels(self, devices: Sequence[int]) -> list[int] | None:
        """Return the sizes of nested blocks, in which two devices are as far apart as any two of no smaller block."""
        figures = self.routes.figures
        own = [figures[devices[0]][other] for other in devices[1:]]
        levels = [i + 1 for i in range(1, len(own)) if own[i - 1] != own[i]]
        levels = [*levels, len(devices)] if own else []
        if any(outer % inner for inner, outer in pairwise((1, *levels))):
            return None
        expected: dict[int, tuple[float, float]] = {}
        for i, a in enumerate(devices):
            for j, b in enumerate(devices):
                level = next((size for size in levels if i // size == j // size), 0)
                if i != j and figures[a][b] != expected.setdefault(level, figures[a][b]):
                    return None
        return levels

    def _level(self, devices: Sequence[int], inner: int, outer: int) -> Link:
        """Return the link between blocks of `inner` devices in blocks of `outer`, while each device sends to the next block."""
        routes = self.routes
        sends = [(a, devices[i // outer * outer + (i + inner) % outer]) for i, a in enumerate(devices)]
        uses = Counter(port for a, b in sends for port, _ in routes.hops(a, b))
        a, b = sends[0]
        port, rate = min(routes.hops(a, b), key=lambda hop: hop[1] / uses[hop[0]])
        size, latency = (outer // inner,), routes.figures[a][b][0]
        return Link(self.graph.ports[port].lane, "switch", size, Rate.constant(rate), latency, uses[port])
