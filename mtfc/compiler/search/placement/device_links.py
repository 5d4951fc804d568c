"""Which link a transfer between two devices takes, and for how long (FlexFlow, section 5, A2: s / b).

Devices are numbered from the innermost link outwards, so the innermost group that holds both devices says which link it is. A
transfer occupies the port that its sender sends through: its own, or where so many neighbours share the bandwidth, theirs; on
rings and tori there is one for each direction. What arrives is not queued for: whatever gathers in the forward pass scatters in
the backward pass, so that one of the two is.
"""

from __future__ import annotations

from math import prod
from typing import Any

import attrs
import numpy as np

from mtfc.compiler.cost.hardware import Hardware, Link

Table = Any
"""A NumPy array indexed by the sending and the receiving device."""


@attrs.frozen
class Port:
    """What the `sender`-th device, or group of `link.shared` devices, sends through into a direction: see `_hops`."""

    link: Link
    sender: int
    direction: int

    @property
    def lane(self) -> str:
        """The link, of a torus with the side, as `cost/topology.py` calls it."""
        sides = len(self.link.sizes)
        is_side = self.direction and sides > 1
        return f"{self.link.name}.{sides - 1 - (self.direction - 1) // 2}" if is_side else self.link.name

    @property
    def name(self) -> str:
        """For people: `ici.1 from 3, down`."""
        first, last = (i * max(self.link.shared, 1) for i in (self.sender, self.sender + 1))
        senders = str(first) if last - first == 1 else f"{first}-{last - 1}"
        way = ("", ", up", ", down")[2 - self.direction % 2 if self.direction else 0]
        return f"{self.lane} from {senders}{way}"


@attrs.frozen(eq=False)
class DeviceLinks:
    """Latencies, bandwidths and numbers of ports; these begin at `count`, as devices have those below. ports: by number, from
    `count` on.
    """

    count: int
    port: Table
    latency: Table
    bandwidth: Table
    ports: tuple[Port, ...]

    @property
    def idle(self) -> int:
        """A device for tasks that take no time, after all ports."""
        return self.count + len(self.ports)

    def seconds(self, source: Any, target: Any, size: Any) -> Any:
        """What transfers of `size` bytes take."""
        return self.latency[source, target] + size / self.bandwidth[source, target]


def device_links(hardware: Hardware, count: int) -> DeviceLinks:
    """The links between `count` devices. Of the outermost link there is as much as they need. Bandwidths are those of large
    arrays.
    """
    port = np.zeros((count, count), np.int64)
    latency, bandwidth = np.zeros((count, count)), np.full((count, count), np.inf)
    ports: dict[tuple[str, int, int], tuple[int, Port]] = {}
    for a in range(count):
        for b in range(count):
            if a != b:
                link, inner = _between(hardware, a, b)
                hops, direction = _hops(link, a // inner, b // inner)
                sender = a // max(link.shared, 1) if link.shared > 1 else a
                key = (link.name, sender, direction)
                port[a, b], _ = ports.setdefault(key, (count + len(ports), Port(link, sender, direction)))
                latency[a, b] = hops * link.latency
                bandwidth[a, b] = link.rate("permute").peak
    return DeviceLinks(count, port, latency, bandwidth, tuple(each for _, each in ports.values()))


def _between(hardware: Hardware, a: int, b: int) -> tuple[Link, int]:
    """The link that connects two devices, and how many devices each of what it connects has."""
    inner = 1
    for link in hardware.links[:-1]:
        outer = inner * (prod(link.sizes) if link.sizes else 1)
        if a // outer == b // outer:
            return link, inner
        inner = outer
    return hardware.links[-1], inner


def _hops(link: Link, a: int, b: int) -> tuple[int, int]:
    """How many links data passes, and into which direction it starts: switches know neither."""
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
