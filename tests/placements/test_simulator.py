"""Test delta simulation of random task graphs whose blocks change."""

from collections.abc import Sequence
from math import inf
from random import Random

import attrs
import numpy as np
import pytest

from mtfc.placements.simulator.evaluation import (
    CROWDED,
    ENDED,
    FORGOTTEN,
    IDLE,
    KEPT,
    PENDING,
    propose_blocks,
)
from mtfc.placements.simulator.full_simulator import (
    TaskTimes,
    simulate,
)
from mtfc.placements.simulator.incremental_simulator import (
    EDGES,
    GONE,
    INDEX,
    LIVE,
    NEXT,
    NONE,
    DeltaState,
    StateArrays,
    allocate,
    load_state,
    open_state,
)
from mtfc.placements.task_graph_builder import TICK, TaskBlocks
from tests.sampling import some

Edge = tuple[int, int, int, int]


@attrs.frozen
class Block:
    tasks: tuple[tuple[int, float], ...]
    edges: tuple[Edge, ...]


@attrs.frozen
class Network:
    """Layers, which are blocks of tasks, and links between them, which are blocks of edges and transfers. Edges lead upward.

    sources: for each layer the layers that it receives data from. blocks [link, ..., link, layer, ...].
    """

    devices: int
    sources: tuple[tuple[int, ...], ...]

    @property
    def places(self) -> list[tuple[int, int]]:
        """Return the layer of each block, and the layer that it receives data from; layers have themselves."""
        return [(i, j) for i, heard in enumerate(self.sources) for j in (*heard, i)]

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
    """Draw a duration, often the same, so that many tasks are ready at the same time."""
    return random.choice([0, 1, 1, 2, 3, 1000, random.randrange(1, 10**12)]) * TICK


def _layer(devices: int, random: Random) -> Block:
    count = random.choice([1, 2, devices])
    return Block(tuple((random.randrange(devices), _seconds(random)) for _ in range(count)), ())


def _network(random: Random) -> Network:
    devices, layers = random.choice([1, 2, 4]), random.choice([3, 12, 60])
    heard = [tuple(sorted({max(i - 1, 0), random.randrange(i)})) if i else () for i in range(layers)]
    return Network(devices, tuple(heard))


def _together(blocks: Sequence[Block], devices: int) -> TaskBlocks:
    tasks, edges = [t for b in blocks for t in b.tasks], [e for b in blocks for e in b.edges]
    return TaskBlocks(
        np.cumsum([0, *(len(b.tasks) for b in blocks)]),
        np.cumsum([0, *(len(b.edges) for b in blocks)]),
        np.array([device for device, _ in tasks], np.int32),
        np.array([seconds for _, seconds in tasks]),
        np.array(edges, np.int64).reshape(-1, 4),
        np.zeros(len(blocks), np.int64),
        np.zeros((len(blocks), devices)),
    )


def _full(blocks: Sequence[Block], devices: int) -> tuple[TaskBlocks, TaskTimes, float]:
    whole = _together(blocks, devices)
    ready, end = np.full(whole.size, inf), np.full(whole.size, inf)
    times = TaskTimes(ready, end, np.zeros(whole.size, np.uint32))
    seconds = simulate(whole, times, inf, devices)
    assert times.order.tolist() == np.argsort(ready, kind="stable").tolist()
    return whole, times, seconds


def _loaded(graph: TaskBlocks, times: TaskTimes, devices: int, slack: int) -> StateArrays:
    room = allocate(graph.size + slack, len(graph.edges) + slack, len(graph.sent), devices, devices)
    load_state(room, graph, times)
    return room


def kept_in(room: StateArrays) -> DeltaState:
    return getattr(open_state, "py_func", open_state)(room)  # type: ignore[no-any-return]


def assert_forgotten(room: StateArrays) -> None:
    """Assert that nothing is left of a change."""
    state = kept_in(room)
    assert not state.mark.any() and (state.new_end == inf).all()
    assert not state.edges[: state.counts[EDGES], GONE][linked(state)].any()


def linked(state: DeltaState) -> list[int]:
    """Return the edges that the tasks of the queue have, each once."""
    tasks = state.order[: state.counts[LIVE]].tolist()
    sides = [sorted(e for task in tasks for e in edges_of(state, side, task)) for side in range(2)]
    assert sides[0] == sides[1]
    return sides[0]


def edges_of(state: DeltaState, side: int, task: int) -> list[int]:
    found, e = list[int](), int(state.first_edge[side, task])
    while e != NONE:
        found.append(e)
        e = int(state.edges[e, NEXT + side])
    return found


def assert_kept(room: StateArrays, graph: TaskBlocks, times: TaskTimes) -> None:
    """Assert that the state has a graph and its timeline, whatever the numbers of tasks are, and perhaps a change."""
    state = kept_in(room)
    numbers = state.order[: state.counts[LIVE]]
    keys = state.key[numbers]
    own = graph.offsets[keys >> INDEX] + (keys & ((1 << INDEX) - 1))
    assert own.tolist() == times.order.tolist()
    assert state.ready[numbers].tolist() == times.ready[own].tolist()
    assert state.end[numbers].tolist() == times.end[own].tolist()
    assert state.device[numbers].tolist() == graph.device[own].tolist()
    of = dict(zip(numbers.tolist(), own.tolist(), strict=True))
    wanted = sorted(zip(*(each.tolist() for each in graph.ends), strict=True))
    for side in range(2):
        edges = [e for task in of for e in edges_of(state, side, task)]
        ends = state.edges[edges, :2].tolist() if edges else []
        assert sorted((of[a], of[b]) for a, b in ends if a in of and b in of) == wanted
    for device in range(len(state.load)):
        on = own[state.device[numbers] == device]
        assert state.load[device] == graph.seconds[on].sum()
        assert (
            state.done[numbers][state.device[numbers] == device].tolist()
            == np.cumsum(graph.seconds[on]).tolist()
        )


@pytest.mark.parametrize("seed", some(range(200), 30))
def test_random_changes_have_the_timeline_of_full_simulation(seed: int) -> None:
    random = Random(seed)
    network = _network(random)
    devices, count = network.devices, len(network.places)
    layers = [_layer(devices, random) for _ in network.sources]
    blocks = network.blocks(layers, range(count), random)
    graph, times, _ = _full(blocks, devices)
    slack = random.choice([100, 10_000])
    room = _loaded(graph, times, devices, slack)
    memory, none = np.zeros(devices), _together([], devices)
    endless = np.full(devices, inf)
    crowded = 0
    before = IDLE
    for _ in range(50):
        changed = random.sample(range(len(layers)), random.choice([1, 1, 2]))
        for layer in changed:
            layers[layer] = _layer(devices, random)
        numbers = np.unique([number for layer in changed for number in network.touched(layer)])
        new = network.blocks(layers, numbers.tolist(), random)
        for number, block in zip(numbers, new, strict=True):
            blocks[number] = block
        graph, times, seconds = _full(blocks, devices)
        made = _together(new, devices)
        for share in (0.9, 1.0, 0.5):
            becomes, found, *_ = propose_blocks(numbers, made, before, room, memory, endless, share * seconds)
            before = FORGOTTEN if becomes == PENDING else IDLE
            if becomes == CROWDED:
                break
            assert found in ((seconds,) if share == 1.0 else (inf, seconds))
            if becomes == ENDED:
                assert_forgotten(room)
        becomes, found, *_ = propose_blocks(numbers, made, before, room, memory, endless, inf)
        if becomes == PENDING:
            assert found == seconds
            becomes, found, *_ = propose_blocks(none.offsets[:0], none, KEPT, room, memory, endless, inf)
        if becomes == CROWDED:
            crowded += 1
            before = IDLE
            room = _loaded(graph, times, devices, slack)
        else:
            assert (becomes, found) == (PENDING, seconds)
            before = FORGOTTEN
        assert_kept(room, graph, times)
    assert crowded > 0 or len(layers) < 60 or slack > 100
