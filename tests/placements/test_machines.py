"""Test placements on machines of any shape: times by hand, contention, memory of each kind, and the search."""

from functools import cache
from itertools import product
from random import Random

import pytest

from mtfc.compiler.cost.device_graph import DeviceGraph
from mtfc.compiler.cost.event_simulator import makespan, simulate
from mtfc.compiler.diagnostics import CompileError, Diagnostics
from mtfc.compiler.passes.pipelines import run, simplification
from mtfc.frontend.semantics.names.device_names import written_devices
from mtfc.placements.declarations import placement_text, strategy_of
from mtfc.placements.mcmc import SearchBudget
from mtfc.placements.operators.strategy import Configuration, device_lists, random_strategy
from mtfc.placements.placed_step import device_names, placed_step, tracks
from mtfc.placements.placement_search import PlacementSpace, placement_search, placement_space, proven
from mtfc.placements.simulator.evaluation import EvaluatedStrategy
from tests.analysis.test_device_graphs import graph_of
from tests.harness import load
from tests.placements.placement_programs import prepared
from tests.placements.test_search import as_task_graph

BOX = """
hardware box = {
  device cpu: { flops: { f32: 0.3e9 }, memory: 1e9, bandwidth: 1e9, overhead: 1e-6 }
  device gpu: { count: 2, flops: { f32: 1e9 }, memory: 1e9, bandwidth: 4e9, overhead: 3e-6 }
  link pcie: { kind: bus, between: [cpu, gpu], bandwidth: 2e8, latency: 1e-6 }
  link nvlink: { kind: wire, between: [gpu[0], gpu[1]], bandwidth: 8e8, latency: 1e-6 }
}
"""
"""A CPU that computes a third as fast as a GPU, at the end of a slow bus."""

TWO = """
dim batch = 64
dim io = 32
dim mid = 16
dim out = 8
model two(x: [batch, io]) {
  param v: [io, mid] = normal(stddev = 0.3)
  param w: [mid, out] = normal(stddev = 0.3)
  h = einsum(x, v -> [batch, mid])
  y = einsum(h, w -> [batch, out])
  return y
}
"""


@cache
def box() -> DeviceGraph:
    return graph_of(BOX)


@cache
def space_of(name: str, machine: str = BOX, devices: int = 3) -> PlacementSpace:
    return placement_space(prepared(name), graph_of(machine), devices)


@cache
def two(machine: str = BOX) -> PlacementSpace:
    graph = graph_of(machine)
    return placement_space(run(load(TWO).programs[0], simplification()), graph, graph.devices)


def on(space: PlacementSpace, *placed: tuple[dict[str, int], tuple[int, ...]]) -> EvaluatedStrategy:
    return space.evaluator.full(tuple(Configuration(tuple(d.items()), devices) for d, devices in placed))


def seconds_by_track(space: PlacementSpace, found: EvaluatedStrategy) -> dict[str, list[float]]:
    graph, names = found.base.graph, tracks(space.evaluator.tasks)
    busy: dict[str, list[float]] = {}
    for device, seconds in zip(graph.device.tolist(), graph.seconds.tolist(), strict=True):
        if seconds:
            busy.setdefault(names[device].removeprefix("device "), []).append(seconds)
    return busy


def test_times_of_each_kind_and_of_a_transfer_by_hand() -> None:
    """`h` takes 2 * 64 * 32 * 16 FLOPs and `y` 2 * 64 * 16 * 8; 4096 bytes of `h` pass the bus."""
    space = two()
    found = on(space, ({}, (0,)), ({}, (2,)))
    busy = seconds_by_track(space, found)
    assert busy["cpu"] == [pytest.approx(65536 / 0.3e9 + 1e-6)]
    assert busy["gpu[1]"] == [pytest.approx(16384 / 1e9 + 3e-6)]
    assert busy["pcie"] == [pytest.approx(1e-6 + 4096 / 2e8)]
    assert found.seconds == pytest.approx(sum(sum(each) for each in busy.values()))
    assert device_names(space.evaluator.tasks) == ["cpu", "gpu[0]", "gpu[1]"]


def test_a_transfer_occupies_all_ports_of_its_route() -> None:
    """Each port for the latencies and the bytes at its own bandwidth; the slowest decides."""
    text = BOX.replace("kind: bus, between: [cpu, gpu]", "kind: switch, between: [gpu]")
    host = "link host: { kind: wire, between: [cpu, pcie], bandwidth: 1e8, latency: 4e-6 }"
    text = text.replace("link nvlink", host + "\n  link nvlink")
    space = two(text)
    found = on(space, ({}, (0,)), ({}, (1,)))
    busy = seconds_by_track(space, found)
    assert busy["host from cpu to pcie"] == [pytest.approx(4.5e-6 + 4096 / 1e8)]
    assert busy["pcie to gpu[0]"] == [pytest.approx(4.5e-6 + 4096 / 2e8)]
    host = busy["host from cpu to pcie"][0]
    assert found.seconds == pytest.approx(busy["cpu"][0] + host + busy["gpu[0]"][0])


def test_transfers_queue_for_a_bus_and_not_for_wires() -> None:
    """Both GPUs need half of what the CPU has computed."""
    halves = ({}, (0,)), ({"batch": 2}, (1, 2))
    shared, part = two(), 2048 / 2e8 + 1e-6
    after = shared.evaluator.full(on(shared, *halves).strategy)
    compute = seconds_by_track(shared, after)
    assert compute["pcie"] == [pytest.approx(part)] * 2
    assert after.seconds == pytest.approx(compute["cpu"][0] + 2 * part + compute["gpu[0]"][0])
    wires = two(BOX.replace("kind: bus, between: [cpu, gpu]", "kind: wire, between: [cpu, gpu]"))
    apart = on(wires, *halves)
    assert apart.seconds == pytest.approx(compute["cpu"][0] + part + compute["gpu[0]"][0])


def test_a_wire_works_both_ways_at_once_unless_it_is_half_duplex() -> None:
    """Each GPU sends its half of `h` to the other one, which computes the other half of `y`."""
    swap = ({"batch": 2}, (1, 2)), ({"batch": 2}, (2, 1))
    full, half = two(), two(BOX.replace("8e8, latency", "8e8, duplex: half, latency"))
    part = 2048 / 8e8 + 1e-6
    assert on(half, *swap).seconds - on(full, *swap).seconds == pytest.approx(part)


def test_an_all_reduce_uses_all_ports_between_its_members() -> None:
    """The ring of two members passes the bus twice, at 2 (latency + s / (2 b)), or the tree if that is faster."""
    space = space_of("dense")
    whole = Configuration((), (0,))
    found = space.evaluator.full(
        (Configuration((("batch", 2),), (0, 1)), *[whole] * (len(space.choices) - 1))
    )
    size = 4 * (12 * 16 + 16)
    ring, tree = 2 * (1e-6 + size / (2 * 2e8)), 2 * (1e-6 + size / 2e8)
    sums = [each for each in seconds_by_track(space, found)["pcie"] if each == pytest.approx(min(ring, tree))]
    assert len(sums) == 2


@pytest.mark.parametrize("name", ["dense", "clipped", "convolutions", "recurrent"])
def test_simulations_agree(name: str) -> None:
    """Full simulation gives the timeline of Algorithm 1, and delta simulation the same, on routes of several ports."""
    text = BOX.replace("gpu: { count: 2", "gpu: { count: 3").replace(
        "[gpu[0], gpu[1]]", "[gpu[0..1], gpu[2]]"
    )
    space, random = space_of(name, text, 4), Random(5)
    old = space.evaluator.full(random_strategy(space.choices, random))
    for _ in range(15):
        operator = random.randrange(len(space.choices))
        new = space.evaluator.delta(old, {operator: space.choices[operator].draw(random)})
        full = space.evaluator.full(new.strategy)
        assert (new.seconds, new.sent, new.memory.tolist()) == (full.seconds, full.sent, full.memory.tolist())
        assert makespan(simulate(as_task_graph(full))) == full.seconds
        old = new


@pytest.mark.parametrize("name", ["dense", "clipped", "swapped", "padding"])
def test_the_search_finds_the_best_of_all_strategies(name: str) -> None:
    """The search and the proof agree with the enumeration of all strategies on two kinds of devices."""
    space = space_of(name)
    every = [space.evaluator.full(each).seconds for each in product(*space.choices)]
    found = placement_search(space, SearchBudget(60.0, 400))
    assert found.best.seconds == min(every)
    proof = proven(space, found, 60.0)
    assert proof.is_optimal and proof.best.seconds == min(every)
    assert placement_space(prepared(name), box(), 3).strategies == len(every)


@pytest.mark.parametrize("seed", range(3))
def test_bounds_hold_for_each_kind(seed: int) -> None:
    """The bound of all strategies is below each of them, however the kinds differ."""
    random = Random(seed)
    slow = BOX.replace("0.3e9", random.choice(["0.01e9", "5e9"]))
    space = space_of("convolutions", slow)
    bound = placement_search(space, SearchBudget(0.2, 5)).lower_bound
    for _ in range(20):
        assert space.evaluator.full(random_strategy(space.choices, random)).seconds >= bound


def test_a_table_too_large_for_the_gpus_is_on_the_cpu() -> None:
    """The search starts from strategies that do not fit, and moves the table to the memory of the CPU."""
    small = BOX.replace(
        "count: 2, flops: { f32: 1e9 }, memory: 1e9", "count: 2, flops: { f32: 1e9 }, memory: 3000"
    )
    space = two(small.replace("cpu: { flops: { f32: 0.3e9 }", "cpu: { flops: { f32: 0.01e9 }"))
    assert space.data_parallel().seconds == float("inf"), "v takes 2048 bytes, and its part of h as much"
    found = placement_search(space, SearchBudget(60.0, 300)).best
    assert found.strategy[0].devices == (0,) and found.seconds < float("inf")
    assert (found.memory <= space.evaluator.tasks.room).all()
    tasks = space.evaluator.tasks
    assert placed_step(tasks, found).fullest == int((found.memory / tasks.room).argmax())


ISLANDS = """
hardware islands = {
  device gpu: { count: 4, flops: { f32: 1e10 }, memory: 1e9, bandwidth: 1e10, overhead: 1e-7 }
  link left: { kind: switch, between: [gpu[0, 2]], bandwidth: 1e10, latency: 1e-8 }
  link right: { kind: switch, between: [gpu[1, 3]], bandwidth: 1e10, latency: 1e-8 }
  link between: { kind: wire, between: [left, right], bandwidth: 1e7, latency: 1e-6 }
}
"""


def test_strategies_stay_on_an_island() -> None:
    """The lists of devices follow the links, whatever the devices' numbers are."""
    lists = device_lists(graph_of(ISLANDS), 4)
    assert {(0, 2), (1, 3)} <= set(lists[2]) and (0, 2, 1, 3) not in lists[2]
    space = two(ISLANDS)
    found = placement_search(space, SearchBudget(60.0, 400)).best
    used = {device for each in found.strategy for device in each.devices}
    islands = ({0, 2}, {1, 3})
    for each in found.strategy:
        assert len(each.devices) == 4 or any(set(each.devices) <= island for island in islands)
    assert len(used) == 4, "the halves of the batch need nothing from each other"


def test_restricted_spaces_and_known_strategies_use_the_fastest_kind() -> None:
    space = space_of("dense")
    assert space.main == [1, 2]
    assert {device for each in space.data_parallel().strategy for device in each.devices} <= {1, 2}
    within = space.within(("S",))
    assert all(each.devices[0] == 1 for choice in within.choices for each in choice)
    assert placement_search(within, SearchBudget(10.0, 100)).best.seconds < float("inf")


# Placements in files


PLACED = """
placement named on box = { h: { batch: 2 } on [gpu[0..1]]; y: {} on [cpu] }
placement numbered on 3 = { h: { batch: 2 } on [1..2]; y: {} on [0] }
placement all on box = { h: { mid: 2 } on [gpu]; y: { batch: 2 } on [gpu[1], 0] }
""".replace(";", ",")


def test_placements_name_devices() -> None:
    module = load(TWO + BOX + PLACED)
    named, numbered, whole = module.placements
    assert [each.devices for each in named.operators] == [each.devices for each in numbered.operators]
    assert named.devices == 3
    assert [each.devices for each in whole.operators] == [(1, 2), (2, 0)]


def test_found_placements_have_the_names_of_devices() -> None:
    graph, random = two().graph, Random(2)
    for _ in range(10):
        strategy = random_strategy(two().choices, random)
        text = placement_text("found", 3, graph, strategy, box())
        assert text.startswith("placement found on box = {")
        (declared,) = load(TWO + BOX + text).placements
        assert strategy_of(declared, graph, Diagnostics()) == strategy


@pytest.mark.parametrize(
    ("devices", "names"),
    [
        ((0, 1, 2), ["cpu", "gpu"]),
        ((1,), ["gpu[0]"]),
        ((2, 1), ["gpu[1]", "gpu[0]"]),
        ((1, 1, 2), ["gpu[0]", "gpu"]),
        ((2, 0), ["gpu[1]", "cpu"]),
        ((), []),
    ],
)
def test_names_of_devices(devices: tuple[int, ...], names: list[str]) -> None:
    assert list(written_devices(devices, box())) == names


@pytest.mark.parametrize(
    ("entry", "says"),
    [
        ("on box = { h: {} on [gpu[2]] }", "E318: there is no `gpu` 2: they are numbered from 0 to 1"),
        ("on box = { h: {} on [gpu] }", "E318: `h` is split into 1 part, and placed on 2 devices"),
        ("on box = { h: {} on [gp[0]] }", "E012: no device is called `gp`"),
        ("on box = { h: {} on [cpu[1]] }", "E318: there is no `cpu` 1: there is only number 0"),
        ("on box = { h: {} on [gp] }", "E012: no device is called `gp`"),
        ("on box = { h: {} on [3] }", "E318: there is no device 3: they are numbered from 0 to 2"),
        ("on box = { h: {} on [2..1] }", "E318: no device is in the range from 2 to 1"),
        ("on box = { h: {} on [0..99999999999] }", "E318: there is no device 99999999999"),
        ("on 3 = { h: {} on [gpu[0]] }", "E012: no device is called `gpu`"),
        ("on 3 = { h: {} on [gpu] }", "E103: unknown dimension `gpu`"),
        ("on boxes = { h: {} on [0] }", "E103: unknown dimension `boxes`"),
    ],
)
def test_devices_that_a_machine_lacks(entry: str, says: str) -> None:
    with pytest.raises(CompileError) as error:
        load(f"{TWO}{BOX}placement p {entry}\n")
    assert says in str(error.value)


SERVED = """
hardware served = {
  device worker: { count: 3, flops: { f32: 1e9 }, memory: 1e9, bandwidth: 4e9 }
  device server: { count: 1, role: server, flops: { f32: 1e8 }, memory: 1e9, bandwidth: 1e9 }
  link network: { kind: switch, between: [worker, server], bandwidth: 1e8, latency: 2e-6 }
}
"""


def test_a_parameter_server_adds_up_gradients() -> None:
    """Gradients of two workers queue on the way to the server, and leave it one after the other."""
    space = space_of("dense", SERVED, 4)
    whole = Configuration((), (0,))
    found = space.evaluator.full(
        (Configuration((("batch", 2),), (0, 1)), *[whole] * (len(space.choices) - 1))
    )
    busy, size = seconds_by_track(space, found), 4 * (12 * 16 + 16)
    assert busy["server"] == [pytest.approx(3 * size / 1e9)]
    for port in ("network to server", "network from server"):
        assert busy[port] == [pytest.approx(2e-6 + size / 1e8)] * 2
    assert found.memory[3] == size
    assert makespan(simulate(as_task_graph(found))) == found.seconds


def test_servers_share_the_parameters() -> None:
    """With two servers, the two layers of the model have one each."""
    text = SERVED.replace("server: { count: 1", "server: { count: 2").replace(
        "worker: { count: 3", "worker: { count: 2"
    )
    space, random = space_of("dense", text, 4), Random(4)
    found = space.evaluator.full(tuple(Configuration((("batch", 2),), (0, 1)) for _ in space.choices))
    assert sorted(found.memory[2:].tolist()) == [4 * 16 * 4, 4 * (12 * 16 + 16)]
    old = space.evaluator.full(random_strategy(space.choices, random))
    for _ in range(10):
        operator = random.randrange(len(space.choices))
        old = space.evaluator.delta(old, {operator: space.choices[operator].draw(random)})
        full = space.evaluator.full(old.strategy)
        assert (old.seconds, old.memory.tolist()) == (full.seconds, full.memory.tolist())
    best = placement_search(space, SearchBudget(60.0, 300))
    assert proven(space, best, 60.0).best.seconds <= best.best.seconds
    assert {device for each in space.choices for own in each for device in own.devices} == {0, 1}
