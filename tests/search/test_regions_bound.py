"""The bound for layouts with regions on parts, beside prices of layouts whose regions save little or much."""

from __future__ import annotations

from itertools import product
from math import inf
from time import monotonic

import attrs
import pytest

from mtfc.compiler.cost.hardware import Hardware
from mtfc.compiler.ir.types import Forms
from mtfc.compiler.passes.partition.split_regions import SplitRegions
from mtfc.compiler.passes.pass_base import Pass
from mtfc.compiler.passes.pipelines import layout_assignment
from mtfc.compiler.search import pricer as pricing
from mtfc.compiler.search.global_layouts.global_search import ROUNDING, GlobalSpace
from mtfc.compiler.search.global_layouts.layout_bound import RegionsBound
from mtfc.compiler.search.global_layouts.layout_space import layout_of, space_of
from mtfc.compiler.search.global_layouts.step_facts import StepFacts
from mtfc.compiler.search.pricer import LayoutPricer
from mtfc.driver.searching.meshes import meshes
from tests.harness import AMPLE, load
from tests.search.layout_bounds import SLOW_CORES, SLOW_LINKS, SLOW_TPU, layouts
from tests.search.test_global_layouts_exhaustive import ATTENTION, PERCEPTRON

RESIDUAL = """
dim batch = 16
dim io = 8
dim hidden = 32
dim layers = 2
model net(x: [batch, io], y: [batch, io]) {
  repeat layers {
    param u: [io, hidden] = normal(stddev = 0.1)
    param v: [hidden, io] = normal(stddev = 0.1)
    param g: [io] = ones()
    x = tanh(x + einsum(relu(einsum(x * g, u -> [batch, hidden])), v -> [batch, io]))
  }
  loss = mean(square(x - y))
  return loss
}
train net { minimize loss; optimizer = sgd(learning_rate = 0.1) }
"""

CASES = [
    (PERCEPTRON, SLOW_LINKS),
    (RESIDUAL, SLOW_LINKS),
    (RESIDUAL, SLOW_CORES),
    (ATTENTION, SLOW_LINKS),
    (ATTENTION, SLOW_TPU),
]


def eager() -> tuple[Pass, ...]:
    """Return the passes of `layout_assignment`, with regions wherever the cut finds anything to save."""
    return tuple(
        attrs.evolve(each, least=0, start=0, traffic=1) if isinstance(each, SplitRegions) else each
        for each in layout_assignment()
    )


@pytest.mark.parametrize(("source", "hardware"), CASES)
def test_no_layout_with_regions_is_below_its_bound(
    source: str, hardware: Hardware, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pricing, "layout_assignment", eager)
    program = load(source).programs[0]
    pricer, forward = LayoutPricer.of(program, hardware), program.function("forward")
    space, shapes = space_of(forward), list(meshes(4, 2))
    step = StepFacts.of(pricer.undistributed(), hardware.device)
    least, plain, changed = inf, {}, 0
    for mesh in shapes:
        bound, rows = RegionsBound(space, step, mesh, hardware), layouts(space, mesh, 12)
        bounds = bound.seconds(bound.exactly(rows)), bound.memory(bound.exactly(rows))
        for (i, row), form in product(enumerate(rows), ("never", "time", "memory")):
            layout = attrs.evolve(layout_of(space, row.tolist(), mesh), forms=Forms(form))
            price = pricer(mesh, layout)
            plain[form] = price
            changed += price != plain["never"]
            assert bounds[0][i] * (1 - ROUNDING) <= price.seconds, layout
            assert bounds[1][i] <= price.memory, layout
            least = min(least, price.seconds)
    assert changed
    until = monotonic() + AMPLE
    found = GlobalSpace(pricer.undistributed(), forward, shapes, hardware).bound_with_regions(until, inf)
    assert 0 < found <= least
