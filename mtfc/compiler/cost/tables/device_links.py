"""The ports and the time of a transfer between two devices (FlexFlow, section 5, A2: s / b).

In a device graph a transfer occupies all ports of its route (`graph_routes.py`). In hardware with nested links, devices are
numbered from the innermost link outwards, and the innermost group that contains both devices determines the link. A transfer then
occupies the port of its sender; neighbours that share bandwidth share one port. Rings and tori have one port for each direction.
Only sends contend for a port: data that gathers in the forward pass scatters in the backward pass, so the receiving side is
counted there.
"""

from __future__ import annotations

from math import prod
from typing import Any

import attrs
import numpy as np

from mtfc.compiler.cost.device_graph import DeviceGraph, GraphPort, Machine
from mtfc.compiler.cost.hardware import Hardware, Link
from mtfc.compiler.cost.tables.graph_routes import find_routes

Table = Any
"""A NumPy array indexed by the sending and the receiving device."""


@attrs.frozen(eq=False)
class DeviceLinks:
    """Ports, latency and bandwidth between devices. Ports are numbered from `count` on, after the devices; `ports` lists them.

    port, rate [sender, receiver, hop]: the ports of the route, -1 after the last, and the bandwidth of each.
    """

    count: int
    port: Table
    rate: Table
    latency: Table
    bandwidth: Table
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
    routes = find_routes(graph)
    own = slice(0, count), slice(0, count)
    port = np.where(routes.port < 0, -1, routes.port + count)[own]
    return DeviceLinks(count, port, routes.rate[own], routes.latency[own], routes.bandwidth[own], graph.ports)


def _of_nested(hardware: Hardware, count: int) -> DeviceLinks:
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
    return DeviceLinks(count, port, rate, latency, bandwidth, tuple(ports))


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
