"""Delta simulation of random task graphs: blocks of tasks, and links between them, of which some change at a time."""

from __future__ import annotations

from collections.abc import Sequence
from math import inf
from random import Random
from typing import Any

import attrs
import numpy as np
import pytest

from mtfc.compiler.search.soap.blocks import Blocks
from mtfc.compiler.search.soap.building import TICK
from mtfc.compiler.search.soap.changing import change
from mtfc.compiler.search.soap.graphs import Graph, Timeline, counted, indexed, timeline
from mtfc.compiler.search.soap.kernels import connect, simulate
from mtfc.compiler.search.soap.proposing import accepted
from mtfc.compiler.search.soap.resuming import resumed
from mtfc.compiler.search.soap.running import EPOCH

Edge = tuple[int, int, int, int]


@attrs.frozen
class Block:
    tasks: tuple[tuple[int, float], ...]
    edges: tuple[Edge, ...]


@attrs.frozen
class Network:
    """Layers, which are blocks of tasks, and links between them, which are blocks of edges and transfers; in an upward order.

    sources: for each layer those that it hears from. blocks [link, ..., link, layer, ...].
    """

    devices: int
    sources: tuple[tuple[int, ...], ...]

    @property
    def places(self) -> list[tuple[int, int]]:
        """Of each block: the layer, and which one it hears from by it, or itself."""
        return [(i, j) for i, heard in enumerate(self.sources) for j in (*heard, i)]

    @property
    def leads(self) -> Any:
        return np.array([self.places.index((i, i)) if i != j else -1 for i, j in self.places])

    def touched(self, layer: int) -> list[int]:
        return [number for number, place in enumerate(self.places) if layer in place]

    def blocks(self, layers: Sequence[Block], numbers: Sequence[int], random: Random) -> list[Block]:
        found = []
        for number in numbers:
            i, j = self.places[number]
            found.append(layers[i] if i == j else self._link(number, i, j, layers, random))
        return found

    def _link(self, number: int, i: int, j: int, layers: Sequence[Block], random: Random) -> Block:
        here, there = self.places.index((i, i)), self.places.index((j, j))
        tasks: list[tuple[int, float]] = []
        edges: list[Edge] = []
        for task in range(len(layers[i].tasks)):
            source = random.randrange(len(layers[j].tasks))
            if random.random() < 0.5:
                edges.append((there, source, here, task))
                continue
            edges += [(there, source, number, len(tasks)), (number, len(tasks), here, task)]
            tasks.append((random.randrange(self.devices), _seconds(random)))
        return Block(tuple(tasks), tuple(edges))


def _seconds(random: Random) -> float:
    """Often the same, so that many tasks are ready at the same time."""
    return random.choice([0, 1, 1, 2, 3, 1000, random.randrange(1, 10**12)]) * TICK


def _layer(devices: int, random: Random) -> Block:
    count = random.choice([1, 2, devices])
    return Block(tuple((random.randrange(devices), _seconds(random)) for _ in range(count)), ())


def _network(random: Random) -> Network:
    devices, layers = random.choice([1, 2, 4]), random.choice([3, 12, 60])
    heard = [tuple(sorted({max(i - 1, 0), random.randrange(i)})) if i else () for i in range(layers)]
    return Network(devices, tuple(heard))


def _together(blocks: Sequence[Block], devices: int) -> Blocks:
    tasks, edges = [t for b in blocks for t in b.tasks], [e for b in blocks for e in b.edges]
    return Blocks(
        np.cumsum([0, *(len(b.tasks) for b in blocks)]),
        np.cumsum([0, *(len(b.edges) for b in blocks)]),
        np.array([device for device, _ in tasks], np.int32),
        np.array([seconds for _, seconds in tasks]),
        np.array(edges, np.int64).reshape(-1, 4),
        np.zeros(len(blocks), np.int64),
        np.zeros((len(blocks), devices)),
    )


def _full(blocks: Sequence[Block], devices: int) -> tuple[Graph, Timeline, float]:
    whole = _together(blocks, devices)
    ready, end = np.full(whole.size, inf), np.full(whole.size, inf)
    edges = connect(whole.edges, whole.offsets)
    seconds = simulate(*edges, whole.device, whole.seconds, ready, end, inf, devices)
    order = np.argsort(ready, kind="stable").astype(np.uint32)
    first = counted(whole.device, devices)
    return indexed(whole), timeline(ready, end, order, first, whole.device, whole.seconds), seconds


@pytest.mark.parametrize("seed", range(60))
def test_random_changes_have_the_timeline_of_full_simulation(seed: int) -> None:
    random = Random(seed)
    network = _network(random)
    devices, count = network.devices, len(network.places)
    layers = [_layer(devices, random) for _ in network.sources]
    blocks = network.blocks(layers, range(count), random)
    graph, times, _ = _full(blocks, devices)
    taken_over = 0
    for _ in range(50):
        layer = random.randrange(len(layers))
        layers[layer] = _layer(devices, random)
        numbers = network.touched(layer)
        new = network.blocks(layers, numbers, random)
        for number, block in zip(numbers, new, strict=True):
            blocks[number] = block
        wanted_graph, wanted, seconds = _full(blocks, devices)
        made = _together(new, devices)
        changed = change(graph, np.array(numbers), made, network.leads)
        run, found = resumed(graph, times, changed, inf, devices)
        taken_over += run.counts[EPOCH] - 1
        assert found == seconds
        assert resumed(graph, times, changed, 0.9 * seconds, devices)[1] in (inf, seconds)
        assert resumed(graph, times, changed, seconds, devices)[1] == seconds
        graph, times = accepted(graph, times, np.array(numbers), made, changed, run)
        assert all(np.array_equal(a, b) for a, b in zip(times, wanted, strict=True))
        assert np.array_equal(graph.offsets, wanted_graph.offsets)
        assert np.array_equal(graph.before.first, wanted_graph.before.first)
    assert taken_over > 0 or len(layers) < 60
