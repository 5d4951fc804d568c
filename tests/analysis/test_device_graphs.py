"""Test machines of any shape: their declarations, the routes between devices, and their uniform parts."""

from itertools import pairwise, permutations
from random import Random

import numpy as np
import pytest

from mtfc.compiler.cost.device_graph import TYPICAL, DeviceGraph, DeviceKind, GraphKind, GraphLink
from mtfc.compiler.cost.hardware import Device, Hardware, Link, Rate
from mtfc.compiler.cost.tables.device_links import UniformParts, find_routes
from mtfc.compiler.diagnostics import CompileError, Diagnostics
from mtfc.driver.loading.sources import Sources
from mtfc.driver.loading.target import file_of, machine_of, target_of
from mtfc.frontend.elaborate import elaborate
from mtfc.frontend.hardware_targets import find_hardware, find_machine
from mtfc.frontend.syntax.parser import parse

DEVICE = "flops: { f32: 1e12 }, memory: 1e9, bandwidth: 1e11"
ISLANDS = f"""\
hardware islands = {{
  device gpu: {{ count: 4, {DEVICE} }}
  device cpu: {{ {DEVICE} }}
  link left: {{ kind: switch, between: [gpu[0..1]], bandwidth: 20e9, latency: 1e-6 }}
  link right: {{ kind: switch, between: [gpu[2..3]], bandwidth: 12e9, latency: 1e-6 }}
  link pcie: {{ kind: bus, between: [gpu[0..1], cpu], bandwidth: 10e9, latency: 2e-6 }}
  link root: {{ kind: switch, between: [gpu[2, 3]], bandwidth: 10e9, latency: 2e-6 }}
  link cable: {{ kind: wire, between: [pcie, root], bandwidth: 5e9, latency: 4e-6, duplex: half }}
}}
"""


def graph_of(text: str) -> DeviceGraph:
    diagnostics = Diagnostics()
    found = elaborate(parse(text, "t.mtf", diagnostics), diagnostics)
    diagnostics.raise_if_errors()
    (graph,) = found.hardware.values()
    assert isinstance(graph, DeviceGraph)
    return graph


def route(graph: DeviceGraph, a: int, b: int) -> tuple[list[str], float, float]:
    """Return the names of ports, the latency and the bandwidth of a route."""
    routes = find_routes(graph)
    names = [graph.ports[port].name for port, _ in routes.hops(a, b)]
    return names, routes.latency[a, b], routes.bandwidth[a, b]


def test_devices_are_numbered_kind_by_kind() -> None:
    graph = graph_of(ISLANDS)
    assert [graph.called(i) for i in range(5)] == ["gpu[0]", "gpu[1]", "gpu[2]", "gpu[3]", "cpu"]
    assert graph.kind_of == (0, 0, 0, 0, 1) and graph.numbers(1) == (4,) and graph.summary == "4 gpu, 1 cpu"


def test_routes_by_hand() -> None:
    graph = graph_of(ISLANDS)
    assert route(graph, 0, 1) == (["left from gpu[0]", "left to gpu[1]"], 1e-6, 20e9)
    assert route(graph, 0, 4) == (["pcie"], 2e-6, 10e9), "a transfer passes a bus once"
    names = ["pcie", "cable at pcie and root", "root to gpu[3]"]
    assert route(graph, 0, 3) == (names, 6e-6, 5e9), "half of the latency of bus and switch, and the cable's"
    assert route(graph, 3, 0)[0] == ["root from gpu[3]", "cable at pcie and root", "pcie"]


def test_a_route_through_a_device() -> None:
    text = f"""hardware chain = {{
      device a: {{ {DEVICE} }}
      device b: {{ {DEVICE} }}
      device c: {{ {DEVICE} }}
      link ab: {{ kind: wire, between: [a, b], bandwidth: 4e9, latency: 1e-6 }}
      link bc: {{ kind: wire, between: [b, c], bandwidth: 2e9, latency: 3e-6 }}
    }}"""
    assert route(graph_of(text), 0, 2) == (["ab from a to b", "bc from b to c"], 4e-6, 2e9)
    faster = text.replace("    }", "  link ac: { kind: wire, between: [c, a], bandwidth: 1e9 }\n    }")
    assert route(graph_of(faster), 0, 2)[2] == 2e9, "1 MiB takes longer on the direct wire"
    slower = faster.replace("3e-6", "3e-3")
    assert route(graph_of(slower), 0, 2) == (["ac from a to c"], 0.0, 1e9)


def test_a_ring_goes_the_shorter_way() -> None:
    ring = GraphLink("r", "ring", ((0, 1, 2, 3, 4),), 1e9, 1e-6)
    graph = DeviceGraph("ring", (_kind("gpu", 5),), (ring,))
    assert route(graph, 0, 2) == (["r from gpu[0] to gpu[1]", "r from gpu[1] to gpu[2]"], 2e-6, 1e9)
    assert route(graph, 0, 3)[0] == ["r from gpu[0] to gpu[4]", "r from gpu[4] to gpu[3]"]


def _kind(name: str, count: int) -> DeviceKind:
    rate = Rate.constant(1e12)
    return DeviceKind(name, Device({"f32": rate}, 1e9, rate), count)


def _drawn(random: Random) -> DeviceGraph:
    """Return a connected graph of five devices with wires, a switch and a bus of random figures."""

    def figures() -> tuple[float, float]:
        return random.choice([1e9, 2e9, 8e9, 20e9]), random.choice([0.0, 1e-6, 4e-6, 1e-4, 1e-3])

    links = [GraphLink("hub", random.choice(["switch", "bus"]), (tuple(range(5)),), *figures())]
    for i in range(6):
        ends = random.sample(range(6), 2)
        kind: GraphKind = random.choice(["wire", "ring"])
        groups = tuple((end,) for end in ends) if kind == "wire" else (tuple(random.sample(range(5), 3)),)
        links.append(GraphLink(f"l{i}", kind, groups, *figures(), random.choice([True, False])))
    return DeviceGraph("drawn", (_kind("a", 2), _kind("b", 3)), tuple(links))


@pytest.mark.parametrize("seed", range(8))
def test_routes_are_the_fastest_of_all_paths(seed: int) -> None:
    """All paths are few enough to try each, with the fastest edge between neighbours for every bandwidth."""
    graph = _drawn(Random(seed))
    nodes, routes = range(graph.devices + len(graph.links)), find_routes(graph)
    for a in range(graph.devices):
        for b in range(graph.devices):
            best = 0.0 if a == b else min(_seconds(graph, a, b, list(nodes)))
            found = routes.latency[a, b] + TYPICAL / routes.bandwidth[a, b]
            assert found == pytest.approx(best)


def _seconds(graph: DeviceGraph, a: int, b: int, nodes: list[int]) -> list[float]:
    used = [node for node in nodes if any(edge.source == node for edge in graph.edges)]
    inner = [node for node in used if node not in (a, b)]
    paths = ((a, *middle, b) for count in range(4) for middle in permutations(inner, count))
    found = []
    for path in paths:
        steps = [[e for e in graph.edges if (e.source, e.target) == pair] for pair in pairwise(path)]
        if all(steps):
            for least in {edge.bandwidth for step in steps for edge in step}:
                fit = [[edge for edge in step if edge.bandwidth >= least] for step in steps]
                if all(fit):
                    latency = sum(min(edge.latency for edge in step) for step in fit)
                    found.append(latency + TYPICAL / least)
    return found


# Uniform parts


def test_uniform_parts() -> None:
    parts = UniformParts.of(graph_of(ISLANDS))
    assert parts.hardware() is None and parts.hardware("gpu") is None, "one island is faster than the other"
    left = parts.hardware("left")
    assert left == Hardware(
        "islands:left", _device(), (Link("left", "switch", (2,), Rate.constant(20e9), 1e-6),)
    )
    assert parts.sizes() == {"left": 2, "right": 2, "root": 2, "cpu": 1}


def _device() -> Device:
    return Device({"f32": Rate.constant(1e12)}, 1e9, Rate.constant(1e11))


def test_islands_that_are_alike_nest() -> None:
    """Both devices of an island send through its only wire to the other island, and so share its bandwidth."""
    text = ISLANDS.replace("kind: bus", "kind: switch").replace(", cpu", "").replace("device cpu", "# cpu")
    text = text.replace("12e9", "20e9")
    parts = UniformParts.of(graph_of(text))
    inner = Link("left", "switch", (2,), Rate.constant(20e9), 1e-6)
    outer = Link("cable", "switch", (2,), Rate.constant(5e9), 6e-6, shared=4)
    assert parts.hardware() == Hardware("islands", _device(), (inner, outer)), (
        "half duplex: all four share it"
    )
    full = UniformParts.of(graph_of(text.replace(", duplex: half", ""))).hardware()
    assert full is not None and full.links[1].shared == 2


def test_a_ring_stays_a_ring() -> None:
    text = f"hardware r = {{\n device g: {{ count: 4, {DEVICE} }}\n link x: {{ kind: ring, between: [g], bandwidth: 1e9 }}\n}}"
    found = UniformParts.of(graph_of(text)).hardware("g")
    assert found is not None and found.links == (Link("x", "ring", (4,), Rate.constant(1e9), 0.0),)


def test_devices_that_share_a_bus_share_its_bandwidth() -> None:
    text = f"hardware r = {{\n device g: {{ count: 4, {DEVICE} }}\n link x: {{ kind: bus, between: [g], bandwidth: 1e9 }}\n}}"
    found = UniformParts.of(graph_of(text)).hardware()
    assert found is not None and found.links == (
        Link("x", "switch", (4,), Rate.constant(1e9), 0.0, shared=4),
    )


def test_targets_for_layouts() -> None:
    declared = {"islands": graph_of(ISLANDS)}
    assert find_hardware("islands:left", declared).devices == 2
    assert target_of("p100_cluster", declared, Sources()).devices == 16
    assert (
        machine_of("islands", declared, Sources()) is declared["islands"] is find_machine("islands", declared)
    )
    assert isinstance(machine_of("islands:right", declared, Sources()), Hardware)
    assert file_of("box.mtf:gpu") == "box.mtf" and file_of("islands:left") is None


@pytest.mark.parametrize(
    ("target", "code", "says"),
    [
        ("islands", "E340", "has devices of several kinds (4 gpu, 1 cpu)"),
        ("islands:gpu", "E340", "the part `gpu` of `islands` has links that do not nest"),
        ("islands:lft", "E313", "`islands` has no part `lft`"),
        ("h100:gpu", "E313", "no part `gpu`"),
        ("island", "E313", "unknown hardware `island`"),
        ("islands:", "E313", "has no part ``"),
    ],
)
def test_targets_on_which_no_layout_runs(target: str, code: str, says: str) -> None:
    with pytest.raises(CompileError) as error:
        target_of(target, {"islands": graph_of(ISLANDS)}, Sources())
    (found,) = error.value.diagnostics
    assert found.code == code and says in found.message
    assert code != "E340" or "`islands:left`; uniform parts: `left` (2), `right` (2)" in str(found.help)


# Bad input


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        ("10e9, latency: 2e-6 }\n  link root", "0, latency: 2e-6 }\n  link root", "E315: `bandwidth` takes a number"),
        ("5e9, lat", "{ 1: 5e9 }, lat", "E315: `bandwidth` takes a number"),
        ("4e-6", "-1", "E315: `latency` takes"),
        ("count: 4", "count: 1000000", "E315: `islands` has 1,000,001 devices, and 256 are possible"),
        ("count: 4", "count: 0", "E315: `count` takes a whole number"),
        ("gpu[0..1], cpu", "gpu[0..1], cpus", "E012: no device or link is called `cpus`"),
        ("gpu[0..1], cpu", "gpu[0..1], root", "E012: no device or link is called `root`"),
        ("gpu[0..1], cpu", "gpu[0..1], pcie", "E012: no device or link is called `pcie`"),
        ("gpu[0..1], cpu", "gpu[0..4], cpu", "E315: there is no `gpu` 4: they are numbered from 0 to 3"),
        ("gpu[0..1], cpu", "gpu[0..999999999999]", "E315: there is no `gpu` 999999999999"),
        ("gpu[0..1], cpu", "gpu[1..0], cpu", "E315: no device is in the range from 1 to 0"),
        ("gpu[0..1], cpu", "gpu[0], gpu", "E315: `between` has `gpu[0]` twice"),
        ("[pcie, root]", "[pcie, pcie]", "E315: `cable` joins `pcie` with itself"),
        ("[pcie, root]", "[pcie]", "E315: a wire is between two devices or groups, and this names 1"),
        ("[pcie, root]", "[pcie, root, cpu]", "E315: a wire is between two devices or groups, and this names 3"),
        ("[pcie, root]", "[]", "E315: `between` takes the devices and links that are joined"),
        ("[pcie, root]", "gpu", "E315: `between` takes the devices and links that are joined"),
        ("[pcie, root]", "[1, root]", "E315: `between` takes names of devices and links"),
        ("kind: wire", "kind: torus", "E315: `kind` takes one of: wire, ring, switch, bus"),
        ("half", "simplex", "E315: `duplex` takes one of: full, half"),
        ("link root", "link left", "E102: link `left` is declared twice"),
        ("link root", "link gpu", "E102: link `gpu` is declared twice"),
        ("device cpu", "device gpu", "E102: device `gpu` is declared twice"),
        ("[pcie, root]", "[pcie, gpu[0]]", "E341: no links lead from `gpu[0]` to `gpu[2]`"),
        ("device cpu: {", "device: {", "E315: a machine with named devices has no other entries"),
        ("between: [pcie, root], ", "", "E314: a link needs an entry `between`"),
        ("device cpu: { flops: { f32: 1e12 }, ", "device cpu: { ", "E314: device `cpu` needs an entry `flops`"),
        ("latency: 4e-6", "latency: 4e-6, size: 4", "E012: a link has no entry `size`"),
    ],
)  # fmt: skip
def test_machines_that_cannot_be(old: str, new: str, says: str) -> None:
    assert ISLANDS.count(old) >= 1
    with pytest.raises(CompileError) as error:
        graph_of(ISLANDS.replace(old, new, 1) if old != "gpu[0..1], cpu" else ISLANDS.replace(old, new))
    assert says in str(error.value)


def test_links_of_nested_machines_have_no_ends() -> None:
    text = f"hardware h = {{\n device: {{ {DEVICE} }}\n link x: {{ kind: switch, between: [gpu], bandwidth: 1e9 }}\n}}"
    with pytest.raises(CompileError, match=r"E012.*between"):
        graph_of(text)


def test_routes_through_many_devices() -> None:
    """Data between the most distant devices of this ring passes 47 others."""
    ring = GraphLink("r", "ring", (tuple(range(96)),), 1e9, 1e-6)
    found = find_routes(DeviceGraph("ring", (_kind("gpu", 96),), (ring,)))
    assert np.isfinite(found.latency).all() and found.latency.max() == pytest.approx(48e-6)
