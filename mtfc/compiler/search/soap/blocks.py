"""The pieces that task graphs are made of (FlexFlow, section 5.1): blocks of tasks, and sums among devices.

A sum among devices is an all-reduce: a task on the port of each, from each to the next around a ring of them in ascending
order, that takes as long as the ring or, where that is sooner, a tree

    ring  2 (n - 1) latency + 2 (n - 1) s / (n b)        tree  2 ceil(log2 n) (latency + s / b)

of the largest latency and the least bandwidth around the ring. FlexFlow's paper does not say how it synchronizes parameters.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from math import ceil, log2
from typing import Any

import attrs
import numpy as np

from mtfc.compiler.search.soap.links import Links

Array = Any


@attrs.frozen(eq=False)
class Block:
    """Some tasks: the device (or port) and the seconds of each.

    edges: columns of (block, task there, block that waits, task there). sent: bytes that go from device to device. held: bytes
    that each device keeps.
    """

    device: Array
    seconds: Array
    edges: Array
    sent: int
    held: Array


def edges(before: int | Array, numbers: Array, after: int, others: Array) -> Array:
    """Edges from tasks of one block, or of several, to tasks of another; a single number stands for as many as there are of the
    other.
    """
    found = np.empty((4, max(np.size(numbers), np.size(others))), np.int64)
    found[0], found[1], found[2], found[3] = before, numbers, after, others
    return found


class Reductions:
    """Collects sums among devices into one block, which has number `own`. Of each: a start, a task on each port, and an end."""

    def __init__(self, own: int, links: Links) -> None:
        self.own, self.links = own, links
        self.device: list[int] = []
        self.seconds: list[float] = []
        self.edges: list[Array] = [np.zeros((4, 0), np.int64)]
        self.sent = 0
        self.held = np.zeros(links.count)

    def add(self, devices: Sequence[int], size: int, before: Iterable[tuple[int | Array, Array]]) -> int:
        """A sum of `size` bytes on each device, after tasks given as (blocks, tasks); the number of its end."""
        start = self.task(self.links.ports, 0.0)
        for block, tasks in before:
            self.edges.append(edges(block, tasks, self.own, start))
        ports, seconds = around(devices, size, self.links)
        tasks = [self.task(port, seconds) for port in ports]
        end = self.task(self.links.ports, 0.0)
        self.edges.append(edges(self.own, start, self.own, np.array(tasks or [end])))
        if tasks:
            self.edges.append(edges(self.own, np.array(tasks), self.own, end))
        self.sent += 2 * (len(devices) - 1) * size
        return end

    def task(self, device: int, seconds: float) -> int:
        self.device.append(device)
        self.seconds.append(seconds)
        return len(self.device) - 1

    def block(self) -> Block:
        device, seconds = np.array(self.device, np.int64), np.array(self.seconds)
        return Block(device, seconds, np.hstack(self.edges), self.sent, self.held)


def around(devices: Sequence[int], size: int, links: Links) -> tuple[list[int], float]:
    """The ports around a ring of devices, and how long an all-reduce takes."""
    n = len(devices)
    if n < 2:
        return [], 0.0
    here = np.array(devices)
    there = np.roll(here, -1)
    latency, bandwidth = links.latency[here, there].max(), links.bandwidth[here, there].min()
    ring = 2 * (n - 1) * (latency + size / (n * bandwidth))
    tree = 2 * ceil(log2(n)) * (latency + size / bandwidth)
    return links.port[here, there].tolist(), float(min(ring, tree))
