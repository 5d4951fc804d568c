"""The least seconds of all plans, beside prices of layouts with all forms, and of random pipelines."""

import os
from itertools import product
from random import Random
from time import process_time

import attrs
import pytest

from mtfc.compiler.cost.hardware import Hardware
from mtfc.compiler.ir.types import Forms, Rules
from mtfc.compiler.passes.partition.split_regions import SplitRegions
from mtfc.compiler.passes.pass_base import Pass
from mtfc.compiler.passes.pipelines import layout_assignment
from mtfc.compiler.search import pricer as pricing
from mtfc.compiler.search.global_layouts.global_search import ROUNDING, GlobalSpace
from mtfc.compiler.search.global_layouts.layout_space import layout_of, space_of
from mtfc.compiler.search.pricer import LayoutPricer
from mtfc.driver.loading.sources import Sources
from mtfc.driver.loading.target import target_of
from mtfc.driver.searching.space import meshes
from tests.harness import load
from tests.properties.test_pipelines import source as random_pipeline
from tests.sampling import some
from tests.search.layout_bounds import SLOW_CORES, SLOW_LINKS, SLOW_TPU, layouts
from tests.search.test_global_layouts_exhaustive import ATTENTION, PERCEPTRON

H100 = target_of("h100", {}, Sources())

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

ELEMENTWISE = """
dim batch = 1024
dim io = 64
dim layers = 4
model net(x: [batch, io], y: [batch, io]) {
  h = x
  repeat layers {
    param g: [io] = ones()
    a = sin(h * g)
    b = exp(a)
    c = tanh(b * a)
    h = c * a + h * sigmoid(c + b)
  }
  loss = mean(square(h - y))
  return loss
}
train net { minimize loss; optimizer = sgd(learning_rate = 0.1) }
"""
"""A layer whose values are cheaper to compute again than to keep."""

SENDING = """
dim batch = 64
dim io = 64
dim layers = 8
model net(x: [batch, io], y: [batch, io]) {
  param g: [io] = ones()
  h = x * g
  repeat layers { h = tanh(0.5 * h + 0.1 * mean(h, over = [io])) }
  loss = mean(square(h - y))
  return loss
}
"""
"""A layer whose carry needs no memory between iterations that run in one."""

STARTS = attrs.evolve(
    SLOW_CORES,
    name="starts",
    device=attrs.evolve(SLOW_CORES.device, overhead=10.0, overlap=1.0, loop=0.0, ops={}),
)
"""A machine on which the starts of kernels matter."""

CASES = [
    (SENDING, STARTS),
    (SENDING, attrs.evolve(STARTS, device=attrs.evolve(STARTS.device, overhead=0.0))),
    (f"{SENDING}train net {{ minimize loss; optimizer = sgd(learning_rate = 0.1) }}", STARTS),
    (RESIDUAL, STARTS),
    (RESIDUAL, SLOW_TPU),
    (ELEMENTWISE, SLOW_CORES),
    (ELEMENTWISE, H100),
    (ELEMENTWISE, SLOW_TPU),
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


FORMS = [
    Forms(regions, dots, recompute=word, unroll=unroll)
    for (regions, dots), (word, unroll) in product(
        [("never", 0), ("time", 0), ("memory", 0), ("never", 10**6)],
        [("", 1), ("full", 1), ("minimal", 1), ("", 4)],
    )
]


@pytest.mark.parametrize(("source", "hardware"), some(CASES, 6))
def test_no_layout_with_any_forms_is_below_the_least(
    source: str, hardware: Hardware, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pricing, "layout_assignment", eager)
    program = load(source).programs[0]
    pricer, space = LayoutPricer.of(program, hardware), space_of(program.function("forward"))
    prices = set()
    for mesh in meshes(4, 2):
        for row in layouts(space, mesh, 4):
            found = layout_of(space, row.tolist(), mesh)
            prices.update(pricer(mesh, attrs.evolve(found, forms=forms)).seconds for forms in FORMS)
    assert 0 < pricer.least_seconds(4) <= min(prices) * (1 + ROUNDING)
    assert len(prices) > len(FORMS) // 2


@pytest.mark.parametrize("seed", range(int(os.environ.get("EVERY_PIPELINE", "2"))))
def test_no_pipeline_is_below_the_least(seed: int) -> None:
    module = load(random_pipeline(Random(seed)))
    (declared,) = module.layouts
    for hardware in (SLOW_LINKS, SLOW_CORES, SLOW_TPU, STARTS):
        pricer = LayoutPricer.of(module.programs[0], hardware)
        price = pricer(declared.mesh, declared.layout)
        least = pricer.least_seconds(declared.mesh.devices)
        assert 0 < least <= price.seconds * (1 + ROUNDING)


@pytest.mark.parametrize("devices", [4, 4096])
def test_each_device_starts_each_kernel(devices: int) -> None:
    """However many devices there are, a step starts the kernel of each dot; a loop starts it for each of its two layers."""
    pricer = LayoutPricer.of(load(RESIDUAL).programs[0], STARTS)
    assert pricer.facts.least_seconds(devices) > 2 * 6 * STARTS.device.overhead


def test_a_step_larger_than_the_scratchpad_reads_memory() -> None:
    """Loops never run in the scratchpad; steps without loops do not where their arguments alone are larger."""
    vmem = SLOW_TPU.device.vmem
    assert vmem is not None
    for source, size, reads in (
        (ELEMENTWISE, vmem.bytes, True),
        (PERCEPTRON, 1.0, True),
        (PERCEPTRON, 1e9, False),
    ):
        device = attrs.evolve(SLOW_TPU.device, scratchpad=attrs.evolve(vmem, bytes=size))
        facts = LayoutPricer.of(load(source).programs[0], attrs.evolve(SLOW_TPU, device=device)).facts
        least = facts.on(device.weightless).least_seconds(4)
        assert facts.least_seconds(4) > 1.1 * least if reads else facts.least_seconds(4) == least


@pytest.mark.parametrize("hardware", [SLOW_CORES, H100, SLOW_TPU])
def test_no_layout_that_computes_values_again_is_below_its_bound(hardware: Hardware) -> None:
    """The backward pass need not read what it computes again, so a step that hardly fits may be faster."""
    program = load(ELEMENTWISE).programs[0]
    plain, space = LayoutPricer.of(program, hardware), space_of(program.function("forward"))
    for mesh in meshes(4, 2):
        for row in layouts(space, mesh, 4):
            layout = layout_of(space, row.tolist(), mesh)
            price = plain(mesh, layout)
            tight = attrs.evolve(hardware, device=attrs.evolve(hardware.device, memory=0.7 * price.tiled))
            pricer = LayoutPricer.of(program, tight, recomputes=True)
            found = GlobalSpace(
                pricer.undistributed(), program.function("forward"), [mesh], tight, recomputes=True
            )
            (on,) = found._branchings(process_time() + 60)
            again = pricer(mesh, layout)
            least = float(on.bound.seconds(on.bound.exactly(row[None]))[0])
            assert again.seconds < price.seconds
            assert least <= again.seconds * (1 + ROUNDING)


def test_a_step_that_fits_anyhow_keeps_the_larger_bound() -> None:
    program = load(ELEMENTWISE).programs[0]
    pricer = LayoutPricer.of(program, H100)
    bounds = []
    for recomputes in (True, False):
        space = GlobalSpace(
            pricer.undistributed(), program.function("forward"), [*meshes(4, 1)], H100, recomputes=recomputes
        )
        (on,) = space._branchings(process_time() + 60)
        row = on.row(Rules())
        bounds.append(float(on.bound.seconds(on.bound.exactly(row[None]))[0]))
    assert bounds[0] == bounds[1] > 0
