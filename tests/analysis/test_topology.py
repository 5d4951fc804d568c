"""Meshes on machines, and the seconds of collectives against the formulas as their sources have them."""

import attrs
import pytest

from mtfc.compiler.cost.hardware import Device, Hardware, Kind, Link, Rate
from mtfc.compiler.cost.topology import Topology, lie_as_one
from mtfc.compiler.ir.ops.collectives import KINDS
from mtfc.compiler.ir.types import Mesh
from mtfc.frontend.hardware_targets import find_hardware

DEVICE = Device({"f32": Rate.constant(1e12)}, 1e9, Rate.constant(1e11))
B, A = 1e9, 1e-6
S = 1e8


def machine(*links: Link) -> Hardware:
    return Hardware("box", DEVICE, links)


def switch(*sizes: int, name: str = "switch", bandwidth: float = B, shared: int = 1) -> Link:
    return Link(name, "switch", sizes, Rate.constant(bandwidth), A, shared)


def torus(*sizes: int, wraps: int | None = None) -> Link:
    return Link("ici", "torus", sizes, Rate.constant(B), A, wraps=wraps)


def grid(**axes: int) -> Mesh:
    return Mesh("grid", tuple(axes.items()))


def axis_parts(topology: Topology) -> dict[str, list[tuple[str, int, int]]]:
    return {
        axis: [(s.lane.name, s.size, s.stride) for s in found] for axis, found in topology.axis_parts.items()
    }


def test_the_last_axis_lies_innermost() -> None:
    nodes = machine(switch(4, name="inner"), switch(name="outer"))
    assert axis_parts(Topology.of(grid(rows=8, cols=4), nodes)) == {
        "rows": [("outer", 8, 1)],
        "cols": [("inner", 4, 1)],
    }
    assert axis_parts(Topology.of(grid(rows=8, cols=4), nodes, ("rows", "cols"))) == {
        "rows": [("inner", 4, 1), ("outer", 2, 1)],
        "cols": [("outer", 4, 2)],
    }
    assert axis_parts(Topology.of(grid(a=2, b=2, c=2), nodes)) == {
        "a": [("outer", 2, 1)],
        "b": [("inner", 2, 2)],
        "c": [("inner", 2, 1)],
    }


def test_an_axis_has_a_side_of_a_torus_to_itself_where_there_is_room() -> None:
    pod = machine(torus(16, 16))
    assert axis_parts(Topology.of(grid(rows=4, cols=8), pod)) == {
        "rows": [("ici.0", 4, 1)],
        "cols": [("ici.1", 8, 1)],
    }
    assert axis_parts(Topology.of(grid(rows=4, cols=4), pod)) == {
        "rows": [("ici.0", 4, 1)],
        "cols": [("ici.1", 4, 1)],
    }
    assert axis_parts(Topology.of(grid(rows=32, cols=8), pod)) == {
        "rows": [("ici.1", 2, 8), ("ici.0", 16, 1)],
        "cols": [("ici.1", 8, 1)],
    }


def test_an_axis_over_several_lanes_is_divided_evenly() -> None:
    """24 devices are 2 x 3 x 4 in a torus; no side has room for half of 31 devices."""
    pod = machine(torus(16, 20, 28))
    found = {size: axis_parts(Topology.of(grid(all=size), pod))["all"] for size in (24, 31)}
    assert found[24] == [("ici.2", 4, 1), ("ici.1", 3, 1), ("ici.0", 2, 1)]
    assert found[31] == [("ici.2", 28, 1), ("ici.1", 2, 1)]
    four = machine(switch(4, name="inner"), switch(4, name="outer"))
    assert axis_parts(Topology.of(grid(all=15), four))["all"] == [("inner", 4, 1), ("outer", 4, 1)]


@pytest.mark.parametrize(
    ("target", "axes", "sides"),
    [
        ("tpu_v5e", {"all": 4}, (2, 2)),
        ("tpu_v5e", {"all": 8}, (2, 4)),
        ("tpu_v5e", {"rows": 2, "cols": 4}, (2, 4)),
        ("tpu_v5e", {"rows": 4, "cols": 2}, (4, 2)),
        ("tpu_v5e", {"all": 16}, (4, 4)),
        ("tpu_v5e", {"rows": 2, "cols": 8}, (4, 4)),
        ("tpu_v5e", {"all": 32}, (4, 8)),
        ("tpu_v5e", {"all": 128}, (8, 16)),
        ("tpu_v6e", {"all": 64}, (8, 8)),
        ("tpu_v4", {"all": 8}, (2, 2, 2)),
        ("tpu_v4", {"all": 16}, (2, 2, 4)),
        ("tpu_v4", {"all": 32}, (2, 4, 4)),
        ("tpu_v5p", {"all": 128}, (4, 4, 8)),
        ("tpu_v2", {"all": 8}, (2, 2)),
        ("tpu_v2", {"rows": 8, "cols": 16}, (8, 8)),
        ("tpu_v3", {"all": 2048}, (32, 32)),
    ],
)
def test_a_mesh_has_the_slice_that_can_be_rented(
    target: str, axes: dict[str, int], sides: tuple[int, ...]
) -> None:
    """Google Cloud's pages on each TPU list these slices; a device of v2 and v3 is one of the two cores of a chip."""
    topology = Topology.of(grid(**axes), find_hardware(target, {}))
    assert tuple(topology.used[f"ici.{side}"] for side in range(len(sides))) == sides


def test_a_slice_is_faster_than_a_line() -> None:
    """Data of eight devices in 2 x 4 passes at most 4 links and uses both sides; in a line it would pass 7 links."""
    topology = Topology.of(grid(all=8), machine(torus(16, 16)))
    found = topology.seconds("all_gather", ("all",), S / 8)
    assert found == pytest.approx(dict.fromkeys(("ici.0", "ici.1"), 4 * A + S * 7 / 8 / (2 * B)))


def test_a_tree_sums_over_many_members_of_a_switch() -> None:
    """A level of a tree takes two steps of a ring, so a ring has fewer up to six members; the bytes sent are the same."""
    expected = {2: 1, 6: 5, 8: 6, 32: 10, 33: 12}
    for members, steps in expected.items():
        topology = Topology.of(grid(all=members), machine(switch(64)))
        found = topology.seconds("all_reduce", ("all",), S)
        assert found == pytest.approx({"switch": 2 * (steps * A + S * (members - 1) / members / B)})


def test_the_place_of_members_on_a_switch_is_of_no_matter() -> None:
    topology = Topology.of(grid(rows=4, cols=16), machine(switch(64)))
    near, far = (topology.seconds("all_gather", (axis,), S) for axis in ("cols", "rows"))
    assert near == pytest.approx({"switch": 15 * A + S * 15 / B})
    assert far == pytest.approx({"switch": 3 * A + S * 3 / B})


def test_axes_that_do_not_go_into_a_slice_have_the_whole_torus() -> None:
    pair = machine(switch(2, name="chip"), torus(4, 4))
    found = axis_parts(Topology.of(grid(a=2, b=3), pair))
    assert found == {"a": [("ici.0", 2, 1)], "b": [("chip", 2, 1), ("ici.1", 2, 1)]}


def test_axes_that_do_not_lie_on_the_links() -> None:
    nodes = machine(switch(4, name="inner"), switch(4, name="outer"))
    assert Topology.of(grid(rows=4, cols=4), nodes).overfull() is None
    found = Topology.of(grid(rows=5, cols=3), nodes).overfull()
    assert found is not None and found.name == "outer"


def test_axes_that_lie_as_one_would() -> None:
    nodes, pod = machine(switch(4, name="inner"), switch(name="outer")), machine(torus(16, 16))
    for first in (0, 1):
        assert lie_as_one(grid(a=2, b=2, c=2), nodes, first)
    assert lie_as_one(grid(a=2, b=4), pod, 0)
    assert [lie_as_one(grid(a=2, b=2, c=2), pod, first) for first in (0, 1)] == [False, True]


def test_ring_algorithms_on_a_switch() -> None:
    """nccl-tests: bus bandwidth is the array's bytes per second, times (n - 1)/n for gathers, times 2 (n - 1)/n for an
    all-reduce.
    """
    topology = Topology.of(grid(all=8), machine(switch(8)))
    gather = 7 * A + S * 7 / 8 / B
    assert topology.seconds("all_gather", ("all",), S / 8) == pytest.approx({"switch": gather})
    assert topology.seconds("reduce_scatter", ("all",), S) == pytest.approx({"switch": gather})
    assert topology.seconds("all_reduce", ("all",), S) == pytest.approx({"switch": 2 * (gather - A)})
    exchange = 7 * A + S * 7 / 64 / B
    assert topology.seconds("all_to_all", ("all",), S / 8) == pytest.approx({"switch": exchange})
    assert topology.seconds("permute", ("all",), S / 8, hops=1) == pytest.approx({"switch": A + S / 8 / B})


def test_a_ring_sends_both_ways() -> None:
    """The scaling book: an all-gather takes S / (2 B) and an all-to-all a quarter of this time, without latencies and terms of
    1/n.
    """
    ring = Topology.of(grid(all=16), machine(torus(16)))
    (gather,) = ring.seconds("all_gather", ("all",), S / 16).values()
    assert gather == pytest.approx(8 * A + S * 15 / 16 / (2 * B))
    (exchange,) = ring.seconds("all_to_all", ("all",), S / 16).values()
    assert exchange == pytest.approx(8 * A + S / 4 / (2 * B))


def test_a_part_of_a_side_is_a_line() -> None:
    (line,) = Topology.of(grid(all=8), machine(torus(16))).seconds("all_gather", ("all",), 1e7).values()
    assert line == pytest.approx(7 * A + 8e7 * 7 / 8 / B)
    (ring,) = (
        Topology.of(grid(all=8), machine(torus(16, wraps=4))).seconds("all_gather", ("all",), 1e7).values()
    )
    assert ring == pytest.approx(4 * A + 8e7 * 7 / 8 / (2 * B))


def test_less_than_a_cube_of_a_torus_does_not_wrap() -> None:
    """The scaling book: slices of TPU v4 wrap around only if they consist of cubes of 4 x 4 x 4, so 2 x 2 x 4 does not."""
    pod = machine(torus(16, 16, 16, wraps=4))
    (part,) = Topology.of(grid(x=2, y=2, z=4), pod).seconds("all_gather", ("z",), S / 4).values()
    assert part == pytest.approx(3 * A + S * 3 / 4 / B)
    (cube,) = Topology.of(grid(x=4, y=4, z=4), pod).seconds("all_gather", ("z",), S / 4).values()
    assert cube == pytest.approx(2 * A + S * 3 / 4 / (2 * B))


def test_a_part_of_a_ring_is_a_line() -> None:
    four = machine(Link("nvlink", "ring", (4,), Rate.constant(B), A))
    (part,) = Topology.of(grid(all=3), four).seconds("all_gather", ("all",), S / 3).values()
    assert part == pytest.approx(2 * A + S * 2 / 3 / B)
    (whole,) = Topology.of(grid(all=4), four).seconds("all_gather", ("all",), S / 4).values()
    assert whole == pytest.approx(2 * A + S * 3 / 4 / (2 * B))


def test_sides_of_a_torus_add_up() -> None:
    topology = Topology.of(grid(x=4, y=4), machine(torus(4, 4)))
    found = topology.seconds("all_gather", ("x", "y"), S / 16)
    both = 4 * A + S * 15 / 16 / (4 * B)
    assert found == pytest.approx({"ici.0": both, "ici.1": both})


def test_a_sum_over_a_whole_torus_is_scattered_after_it_is_complete() -> None:
    """So libtpu 0.0.42 and 0.0.52 compile it; over a part of the torus, and along one side, nothing is reduced twice."""
    topology = Topology.of(grid(x=4, y=4, z=4), machine(torus(4, 4, 4)))
    for axes, rounds in ((("x", "y", "z"), 2), (("x", "y"), 1), (("z",), 1)):
        scattered, gathered = (
            topology.seconds(kind, axes, size)
            for kind, size in (("reduce_scatter", S), ("all_gather", S / topology.mesh.size(axes)))
        )
        assert scattered == pytest.approx({lane: rounds * x for lane, x in gathered.items()})
    side = Topology.of(grid(all=8), machine(torus(8)))
    assert side.seconds("reduce_scatter", ("all",), S) == side.seconds("all_gather", ("all",), S / 8)


def test_a_hierarchy_takes_the_time_of_its_slowest_level() -> None:
    """The scaling book: S times the largest (D - 1)/(D W), W being the bandwidth of all devices of a node together."""
    nodes = machine(switch(4, name="inner"), switch(name="outer", bandwidth=B / 10))
    topology = Topology.of(grid(all=8), nodes)
    found = topology.seconds("all_gather", ("all",), S / 8)
    assert found == pytest.approx({"inner": 3 * A + S * 3 / 4 / B, "outer": A + S / 2 / (4 * B / 10)})


def test_worked_examples_of_the_scaling_book() -> None:
    """On a node of H100, bf16[4096, 65536] takes 1.04 ms at line rate, without latency.

    On TPU v4 of 4 x 4 x 4, bf16[1024, 4096] is split over two axes and gathered over one of them. The gather takes 23 us,
    without latency and as if every shard came from elsewhere.
    """
    node = Topology.of(grid(all=8), machine(switch(8, bandwidth=450e9)))
    (seconds,) = node.seconds("all_gather", ("all",), 2 * 4096 * 65536 / 8).values()
    assert seconds == pytest.approx(7 * A + 1.04e-3, rel=0.01)
    cube = Topology.of(grid(x=4, y=4, z=4), find_hardware("tpu_v4", {}))
    (seconds,) = cube.seconds("all_gather", ("x",), 2 * 1024 * 4096 / 16).values()
    assert seconds == pytest.approx(2e-6 + 23.3e-6 * 3 / 4, rel=0.01)


def test_a_shared_link_is_divided_among_those_in_use() -> None:
    nodes = machine(switch(4, name="inner"), switch(name="outer", bandwidth=B, shared=4))
    two = Topology.of(grid(nodes=2, gpus=4), nodes)
    (outer,) = two.seconds("all_reduce", ("nodes",), S).values()
    assert outer == pytest.approx(2 * (A + S / 2 / (B / 4)))
    few = machine(switch(8, name="pcie", shared=4))
    (pair,) = Topology.of(grid(all=2), few).seconds("all_reduce", ("all",), S).values()
    assert pair == pytest.approx(2 * (A + S / 2 / (B / 2)))


def test_groups_that_lie_between_each_other_share_a_ring() -> None:
    pod = machine(torus(8))
    topology = Topology.of(grid(outer=4, inner=2), pod)
    (apart,) = topology.seconds("all_gather", ("outer",), S / 4).values()
    assert apart == pytest.approx(2 * 2 * A + S * 3 / 4 / (2 * B / 2))
    line = Topology.of(grid(outer=4, inner=2), machine(torus(16)))
    (apart,) = line.seconds("all_gather", ("outer",), S / 4).values()
    assert apart == pytest.approx(2 * 3 * A + S * 3 / 4 / (B / 2))
    (near,) = topology.seconds("all_gather", ("inner",), S / 2).values()
    assert near == pytest.approx(A + S / 2 / B)


def test_a_shift_goes_one_way_and_the_shorter_one() -> None:
    """In a shift by k, every link of a ring carries k shards in one direction."""
    ring = Topology.of(grid(all=8), machine(torus(8)))
    seconds = {hops: ring.seconds("permute", ("all",), S, hops)["ici"] for hops in (1, 3, 4, 7)}
    assert seconds == pytest.approx(
        {hops: far * (A + S / B) for hops, far in {1: 1, 3: 3, 4: 4, 7: 1}.items()}
    )
    nodes = Topology.of(grid(all=8), machine(torus(4), Link("outer", "ring", (2,), Rate.constant(B), A)))
    assert nodes.seconds("permute", ("all",), S, 4)["outer"] == pytest.approx(A + S / B)


def test_bandwidth_by_message_size() -> None:
    link = Link("net", "switch", (), Rate(((1e3, 1e6), (1e6, 1e9))), 0.0)
    topology = Topology.of(grid(all=2), machine(link))
    small, large = (topology.seconds("all_reduce", ("all",), size)["net"] for size in (1e3, 1e6))
    assert small == pytest.approx(large)


@pytest.mark.parametrize("kind", ["switch", "ring", "memory"])
def test_a_collective_with_a_bandwidth_of_its_own(kind: Kind) -> None:
    """The collective takes the time of a link with this bandwidth; other collectives take the same time as before."""
    plain = Link("link", kind, (8,), Rate.constant(B), A)
    fast, own = attrs.evolve(plain, bandwidth=Rate.constant(3 * B)), {"all_to_all": Rate.constant(3 * B)}
    both = attrs.evolve(plain, collectives=own)

    def seconds(collective: str, link: Link) -> dict[str, float]:
        return Topology.of(grid(all=8), machine(link)).seconds(collective, ("all",), S)

    for collective in KINDS:
        expected = fast if collective == "all_to_all" else plain
        assert seconds(collective, both) == seconds(collective, expected)


def test_an_axis_of_one_costs_nothing() -> None:
    assert Topology.of(grid(all=1), machine(switch(8))).seconds("all_reduce", ("all",), S) == {}


def test_in_shared_memory_each_copies_what_it_gets() -> None:
    box = machine(Link("memory", "memory", (8,), Rate.constant(B), A))
    topology = Topology.of(grid(rows=2, cols=4), box)

    def seconds(kind: str, *axes: str) -> float:
        (found,) = topology.seconds(kind, axes, 1e7).values()
        return found

    assert seconds("all_reduce", "cols") == pytest.approx(4 * A + 2 * 1e7 / B)
    assert seconds("all_reduce", "rows", "cols") == pytest.approx(8 * A + 2 * 1e7 / B)
    assert seconds("reduce_scatter", "cols") == pytest.approx(4 * A + 1e7 / B)
    assert seconds("all_gather", "cols") == pytest.approx(4 * A + 4 * 1e7 / B)
    assert seconds("all_to_all", "cols") == pytest.approx(4 * A + 1e7 / B)
    assert seconds("permute", "cols") == pytest.approx(8 * A + 1e7 / B)
