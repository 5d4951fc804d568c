"""Optima of the search over global layouts, beside every layout on every mesh, each compiled and priced."""

from time import monotonic

import attrs
import pytest

from mtfc.compiler.cost.hardware import Hardware
from mtfc.compiler.search.found import NothingFits, Objective, value_of
from mtfc.compiler.search.global_layouts.layout_space import layout_of, space_of
from mtfc.compiler.search.pricer import LayoutPricer
from mtfc.driver.searching.space import meshes
from mtfc.frontend.hardware_targets import find_hardware
from tests.harness import AMPLE, load
from tests.sampling import some
from tests.search.layout_bounds import SLOW_CORES, SLOW_LINKS, SLOW_TPU, UNEVEN, layouts, search

PERCEPTRON = """
dim batch = 16
dim io = 8
dim hidden = 32
model mlp(x: f32[batch, io], target: f32[batch, io]) {
  param w: f32[io, hidden] = normal(stddev = 0.1)
  param v: f32[hidden, io] = normal(stddev = 0.1)
  loss = mean(square(einsum(relu(einsum(x, w -> [batch, hidden])), v -> [batch, io]) - target))
  return loss
}
train mlp { minimize loss; optimizer = momentum(learning_rate = 0.1) }
"""

CONVOLUTION = """
dim batch = 4
dim length = 16
dim channels = 2
dim filters = 4
dim kernel = 3
dim pooled = length // 2
dim pool = 2
dim classes = 4
model cnn(x: f32[batch, length, channels], target: f32[batch, classes]) {
  param filter: f32[kernel, channels, filters] = normal(stddev = 0.1)
  param v: f32[pooled, filters, classes] = normal(stddev = 0.1)
  windows = window(x, length -> [length, kernel], padding = (1, 1))
  h = relu(einsum(windows, filter -> [batch, length, filters]))
  p = max(window(h, length -> [pooled, pool], stride = 2), over = [pool])
  loss = mean(square(einsum(p, v -> [batch, classes]) - target))
  return loss
}
train cnn { minimize loss; optimizer = sgd(learning_rate = 0.1) }
"""

ATTENTION = """
import nn
dim batch = 4
dim length = 8
dim memory = length
dim width = 8
dim heads = 4
dim key = 2
model attention(x: f32[batch, length, width]) {
  param wq: f32[width, heads, key] = normal(stddev = 0.1)
  param wk: f32[width, heads, key] = normal(stddev = 0.1)
  param wo: f32[heads, key, width] = normal(stddev = 0.1)
  q = einsum(x, wq -> [batch, length, heads, key])
  k = einsum(rename(x, length -> memory), wk -> [batch, memory, heads, key])
  w = nn.softmax[d = memory](einsum(q, k -> [batch, heads, length, memory]))
  y = einsum(einsum(w, k -> [batch, length, heads, key]), wo -> [batch, length, width])
  loss = mean(square(y - x))
  return loss
}
train attention { minimize loss; optimizer = sgd(learning_rate = 0.1) }
"""

EMBEDDING = """
import losses
dim batch = 8
dim vocab = 16
dim model_dim = 4
dim features = 8
dim samples = batch
model embedding(ids: i32[batch], labels: i32[samples]) {
  param table: f32[vocab, model_dim] = normal(stddev = 0.1)
  param w: f32[model_dim, features] = normal(stddev = 0.1)
  h = rename(gather(table, ids, vocab), batch -> samples)
  y = einsum(einsum(h, w -> [samples, features]), table, w -> [samples, vocab])
  loss = losses.softmax_cross_entropy(y, labels)
  return loss
}
train embedding { minimize loss; optimizer = adam(learning_rate = 0.1) }
"""

STACK = """
dim batch = 1024
dim io = 4
dim hidden = 8
model deep(x: f32[batch, io]) {
  h = x
  h = dense(h)
  h = dense(h)
  h = dense(h)
  h = dense(h)
  loss = mean(square(h))
  return loss
}
fn dense(x: [batch, io]) -> [batch, io] {
  param w: [io, hidden] = normal(stddev = 0.1)
  param v: [hidden, io] = normal(stddev = 0.1)
  return einsum(tanh(exp(einsum(x, w -> [batch, hidden]))), v -> [batch, io])
}
train deep { minimize loss; optimizer = sgd(learning_rate = 0.1) }
"""

K80 = find_hardware("k80_cluster", {})

CASES = (
    (PERCEPTRON, 8, SLOW_LINKS),
    (PERCEPTRON, 8, K80),
    (CONVOLUTION, 4, K80),
    (ATTENTION, 4, SLOW_LINKS),
    (ATTENTION, 4, K80),
    (EMBEDDING, 4, SLOW_LINKS),
    (PERCEPTRON, 4, UNEVEN),
)


@pytest.mark.parametrize(("source", "devices", "hardware"), some(CASES, 4))
def test_nothing_is_better_than_what_is_proven_optimal(source: str, devices: int, hardware: Hardware) -> None:
    program = load(source).programs[0]
    pricer, forward = LayoutPricer.of(program, hardware), program.function("forward")
    shapes, space = list(meshes(devices, 3)), space_of(forward)
    prices = [
        pricer(mesh, layout_of(space, row.tolist(), mesh)) for mesh in shapes for row in layouts(space, mesh)
    ]
    objectives: tuple[Objective, ...] = ("time", "memory")
    for objective in objectives:
        until = monotonic() + AMPLE
        found = search(pricer.undistributed(), forward, shapes, hardware, pricer, until, objective)
        assert found.is_optimal
        assert found.objective == min(value_of(price, objective) for price in prices)


@pytest.mark.parametrize(
    ("hardware", "share"), some([(SLOW_LINKS, 0.9), (SLOW_TPU, 0.9), (SLOW_CORES, 1.2)], 2)
)
def test_nothing_is_better_where_values_are_computed_again(hardware: Hardware, share: float) -> None:
    """The memory is a share of the least that a layout needs which computes nothing again."""
    program = load(STACK).programs[0]
    forward, shapes = program.function("forward"), list(meshes(4, 2))
    space = space_of(forward)
    every = [(mesh, layout_of(space, row.tolist(), mesh)) for mesh in shapes for row in layouts(space, mesh)]
    keeping = LayoutPricer.of(program, hardware)
    room = share * min(keeping(*each).tiled for each in every)
    small = attrs.evolve(hardware, device=attrs.evolve(hardware.device, memory=room))
    pricer = LayoutPricer.of(program, small, recomputes=True)
    fitting = [price.seconds for price in (pricer(*each) for each in every) if price.tiled <= room]
    assert 1 < len(fitting) < len(every)
    undistributed, until = pricer.undistributed(), monotonic() + AMPLE
    found = search(undistributed, forward, shapes, small, pricer, until, recomputes=True)
    assert found.is_optimal
    assert found.objective == pytest.approx(min(fitting), rel=1e-12)
    if share < 1:
        with pytest.raises(NothingFits, match="--storage or --recompute may need less"):
            search(undistributed, forward, shapes, small, LayoutPricer.of(program, small), until)
