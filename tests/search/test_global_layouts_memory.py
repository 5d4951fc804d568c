"""Regressions of the memory bound, and the result of a search whose bound is wrong."""

from time import monotonic

import attrs
import pytest

from mtfc.compiler.cost.hardware import Hardware
from mtfc.compiler.ir.types import Layout, Mesh
from mtfc.compiler.search.found import Objective, Price
from mtfc.compiler.search.pricer import LayoutPricer
from mtfc.frontend.hardware_targets import find_hardware
from tests.harness import AMPLE, load
from tests.properties.test_memory_bounds import check_memory
from tests.search.layout_bounds import SLOW_CORES, SLOW_LINKS, TORUS, check_bounds, search
from tests.search.test_global_layouts_exhaustive import PERCEPTRON

WHERE = """\
dim batch = 1
dim hidden = 12
dim d0 = 3
mesh grid = [rows: 2, cols: 2, deep: 2]
layout main on grid = { params: { hidden: cols } }
model m(x: f64[batch, hidden]) {
  repeat batch with s = x {
    param w: f64[d0, hidden] = normal()
    yield kept = where(w > 0, 0.25, w)
  }
  return kept
}
"""
"""The slice of `w` is dropped once it is gathered, and the yielded value overwrites the gathered copy."""

CARRIED = """\
dim batch = 6
dim io = 6
dim hidden = 1
dim d0 = 3
mesh grid = [rows: 2, cols: 3]
layout main on grid = { params: { batch: cols } }
model m(z: f64[hidden]) {
  h = z
  repeat hidden {
    param w: f64[batch, io] = normal()
    scan s = range(d0) along d0 {
      param v: f64[d0, io] = normal()
      w = minimum(maximum(broadcast(min(v, over = [d0]) -> [batch, io]), -4.0), 4.0)
    }
    h = floor(h - sum(cumsum(w, over = batch), over = [batch, io]))
  }
  return h
}
"""
"""A carry is dropped once it is gathered, too."""

PRODUCT = """\
dim batch = 4
dim io = 8
mesh grid = [rows: 2, cols: 2, deep: 2]
layout main on grid = { batch: (rows, cols), io: deep }
model m(z: f32[batch, io]) {
  param w: f32[io, batch] = zeros()
  h0 = einsum(w, w, 0.125 * 0.25 * w -> [batch, io])
  h1 = einsum(0.25 * einsum(0.3125, 0.25 * h0 -> [io, batch]), z -> [io])
  h2 = einsum(z, 0.125 * h1 -> [io])
  return h2
}
"""
"""A multiple of a dot of several operands overwrites the dot once both have the same order of dimensions."""

FULL = """\
dim batch = 6
dim io = 4
dim d0 = 6
dim d2 = 3
dim d3 = 2
dim d4 = 4
dim d7 = 11
mesh grid = [rows: 2, cols: 3]
layout main on grid = { d0: (rows, cols), d4: rows }
model m(x: f64[batch, io], y: f64[io, batch]) {
  param f: f64[io, d4, d3] = normal()
  h0 = full([d0], 1.0, dtype = f64)
  h4 = einsum(f, window(y, batch -> [d2, d3], stride = 2, dilation = 1) -> [d4, d2])
  h5 = einsum(0.125 * h4, ones([d0], dtype = f64) -> [d2])
  h6 = concat(h5, slice(h5, d2 -> d3), h0, d2 -> d7, d3 -> d7, d0 -> d7)
  return h6
}
"""
"""An array of ones is not kept from one use to the next, but computed again."""


MERGED = """\
dim batch = 4
dim io = 8
dim big = 8
mesh grid = [rows: 2]
layout main on grid = { big: rows }
model m(z: f32[batch, io]) {
  param w: f32[io, batch] = zeros()
  x = einsum(w, w, 0.125 * w -> [batch, io])
  y = 0.25 * x
  b = floor(broadcast(sum(z, over = [batch, io]) -> [big, io, batch]) * z)
  s = sum(b + 1.0, over = [big, io, batch])
  h = sum(exp(0.5 * einsum(0.3125, y -> [io, batch])), over = [io, batch])
  g = sum(exp(x), over = [io, batch])
  return h, g, s
}
"""
"""Three scalars become one factor of `x`, so `y` is never stored."""


SUMMED = """\
dim batch = 3
dim io = 3
dim hidden = 5
mesh grid = [cols: 2]
layout main on grid = {}
model m(x: f64[]) {
  param w: f64[io, batch] = normal(stddev = 0.5)
  h0 = broadcast(w -> [batch, hidden, io])
  h1 = sign(w)
  z = h0 / 4.0
  h2 = einsum(broadcast(h1 -> [io, hidden, batch]), h1 -> [batch, io])
  h3 = 0.125 * einsum(h2, 0.5 * h2, z -> [io, batch])
  h8 = h3
  repeat io {
    h10 = 2.0 * gather(h8, 1 * range(hidden) - 0, io)
    h8 = h8 * tanh(sum(h10 -> [batch]))
  }
  h11 = maximum(h2, sum(z -> [io, batch]))
  loss = mean(h11) + mean(h8) + 0.125 * sum(h1)
  return h11, loss
}
train m { minimize loss; optimizer = sgd(learning_rate = 0.1) }
"""
"""The dot sums `z` first, and the last equation needs only that sum. So `z` is dropped while the loop runs."""


@pytest.mark.parametrize("source", (WHERE, CARRIED, PRODUCT, FULL, MERGED, SUMMED))
def test_no_layout_holds_less_than_its_bound(source: str) -> None:
    check_memory(source, most=60)


@pytest.mark.parametrize("hardware", (SLOW_LINKS, SLOW_CORES, TORUS), ids=lambda each: each.name)
@pytest.mark.parametrize("source", (PRODUCT, MERGED))
def test_merged_equations_take_no_time_of_their_own(source: str, hardware: Hardware) -> None:
    module = load(source)
    check_bounds(module.programs[0], module.layouts[0].mesh, hardware, storage=False)


@pytest.mark.parametrize("objective", ("time", "memory"))
def test_a_layout_below_its_bound_refutes_the_proof(objective: Objective) -> None:
    """Prices are faked so that they are below their bounds."""
    program = load(PERCEPTRON).programs[0]
    hardware, mesh = find_hardware("tpu_v2", {}), Mesh("grid", (("rows", 2),))
    pricer, forward = LayoutPricer.of(program, hardware), program.function("forward")

    def cheap(mesh: Mesh, layout: Layout) -> Price:
        price = pricer(mesh, layout)
        return attrs.evolve(price, compute=price.compute / 99, communication=0.0, memory=price.memory // 99)

    for pricing, is_true in ((pricer, True), (cheap, False)):
        until = monotonic() + AMPLE
        found = search(pricer.undistributed(), forward, [mesh], hardware, pricing, until, objective)
        assert found.is_optimal == is_true
        assert (found.refuted is None) == is_true
        assert found.lower_bound == (found.objective if is_true else 0)
