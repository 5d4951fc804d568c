"""Dots whose rate depends on their shape, in every search and prediction (SoyBean, arXiv:1805.04170, Table 1)."""

from time import monotonic

import attrs
import pytest

from mtfc.backends.calibrate.calibration import dot_shares, narrow_sides, side_of
from mtfc.compiler.cost.effects.roofline import dot_share
from mtfc.compiler.cost.hardware import DotShares, Hardware, Rate
from mtfc.compiler.cost.step_time import seconds_of, step_time
from mtfc.compiler.cost.topology import Topology
from mtfc.compiler.ir.ops import has_trait
from mtfc.compiler.ir.types import Layout, Mesh, Rules
from mtfc.compiler.passes.pipelines import lower
from mtfc.compiler.search.per_equation.per_equation_search import best_layouts
from mtfc.placements.placement_search import placement_space
from tests.harness import AMPLE, load
from tests.search.equation_networks import compiled, network_of
from tests.search.layout_bounds import UNEVEN
from tests.search.test_global_layouts_exhaustive import ATTENTION, PERCEPTRON

LINE = Mesh("line", (("all", 2),))


def layout(**rules: str) -> Layout:
    return Layout("split", Rules(tuple((dim, (axis,)) for dim, axis in rules.items())))


def test_the_sides_of_dots() -> None:
    """Rows and columns are counted without batch dimensions, on one device; other equations have no share."""
    sides = DotShares(*(Rate(((1.0, 0.001), (1e6, 1.0))) for _ in range(3)))
    (program,), device = load(ATTENTION).programs, attrs.evolve(UNEVEN.device, dots=sides)
    for split, shapes in (
        (layout(), [(8 * 4, 8, 8), (8, 8, 2), (8, 2, 8)]),
        (layout(batch="all", heads="all"), None),
        (layout(batch="all"), [(2 * 8, 8, 8), (8, 8, 2), (8, 2, 8)]),
        (layout(heads="all"), [(8 * 4, 4, 8), (8, 8, 2), (8, 2, 8)]),
    ):
        if shapes is None:
            continue
        body = lower(program, LINE, split, "forward").function("forward").body
        found = {dot_share(eqn, device, LINE) for eqn in body if has_trait(eqn, "dot")}
        assert {sides.of(*shape) for shape in shapes} <= found
        assert {dot_share(eqn, device, LINE) for eqn in body if not has_trait(eqn, "dot")} == {1.0}


def test_a_product_that_is_cut_can_take_less_than_its_part() -> None:
    """A dot that sums half as many elements is ten times as fast: two devices take less than half of the time of one."""
    (program,) = load(PERCEPTRON).programs
    summed = DotShares(summed=Rate(((4.0, 1.0), (8.0, 0.1))))
    device = attrs.evolve(UNEVEN.device, bandwidth=Rate.constant(1e12), dots=summed)
    hardware, times = attrs.evolve(UNEVEN, device=device), dict[str, float]()
    for name, split in (("whole", layout()), ("cut", layout(io="all"))):
        function = lower(program, LINE, split, "forward").function("forward")
        times[name] = seconds_of(function, Topology.of(LINE, hardware), device)[0]
        assert step_time(function, LINE, hardware).total.compute == pytest.approx(times[name])
    assert times["cut"] < times["whole"] / 2
    plain = attrs.evolve(device, dots=None)
    assert seconds_of(function, Topology.of(LINE, hardware), plain)[0] < times["cut"]


@pytest.mark.parametrize("source", [PERCEPTRON, ATTENTION])
def test_tilings_know_the_shares(source: str) -> None:
    (program,) = load(source).programs
    found = best_layouts(network_of(program, LINE, UNEVEN), None, monotonic() + AMPLE)
    function = compiled(program, LINE, found.layout)
    assert sum(seconds_of(function, Topology.of(LINE, UNEVEN), UNEVEN.device)) == pytest.approx(
        found.objective, rel=0.005
    )


def test_placements_know_the_shares() -> None:
    """With one device all spaces have the same computation."""
    (program,) = load(PERCEPTRON).programs
    one = Mesh("one", (("all", 1),))
    seconds = {}
    for hardware in (UNEVEN, attrs.evolve(UNEVEN, device=attrs.evolve(UNEVEN.device, dots=None))):
        space = placement_space(program, hardware, 1)
        placed = space.data_parallel().seconds
        function = lower(program, one, Layout("none")).function("step")
        assert placed == pytest.approx(
            seconds_of(function, Topology.of(one, hardware), hardware.device)[0], rel=0.2
        )
        seconds[hardware.device.dots is None] = placed
    assert seconds[False] > 1.5 * seconds[True]


def test_measured_shares_are_those_of_dots_with_as_many_flops() -> None:
    rate = Rate(((2.0 * 64**3, 1e9), (2.0 * 256**3, 4e9)))
    side = side_of(rate)
    assert (side, narrow_sides(side)) == (256, (4, 16, 64))
    seconds = {few: 2.0 * few * side**2 / rate.at(2.0 * few * side**2) for few in narrow_sides(side)}
    found = dot_shares(side, rate, {few: 2 * each for few, each in seconds.items()}, {**seconds, 4: 0.0})
    assert found.short == Rate(((4.0, 0.5), (16.0, 0.5), (64.0, 0.5), (256.0, 1.0)))
    assert found.summed is not None and found.summed.peak == found.summed.at(1) == 1.0
    assert found.of(256, 4, 256) == found.of(4, 256, 256) == 0.5


def test_the_rates_of_a_machine_with_shares_depend_on_sizes() -> None:
    assert not UNEVEN.device.has_constant_rates
    assert isinstance(UNEVEN, Hardware) and not UNEVEN.has_peak_figures
