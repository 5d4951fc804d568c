"""Programs whose bound once exceeded the cost of some layout, each with the reason."""

import attrs
import numpy as np
import pytest

from mtfc.compiler.cost.hardware import Hardware, Link, Rate
from mtfc.compiler.ir.core import Argument, Function, Output, Value
from mtfc.compiler.ir.types import Dim, Mesh, TensorType
from mtfc.compiler.search.global_layouts.layout_space import space_of
from tests.harness import load
from tests.search.layout_bounds import SLOW_CORES, SLOW_LINKS, TORUS, check_bounds


def _check(text: str, hardware: Hardware, storage: bool, most: int | None = None) -> None:
    """Check the bounds of `most` layouts, or of all if that is None."""
    module = load(text)
    check_bounds(module.programs[0], module.layouts[0].mesh, hardware, storage, most)


PROGRAMS = {
    "a broadcast parameter is not stored like its result": (TORUS, True, None, """\
dim io = 1
dim hidden = 4
dim length = 8
mesh grid = [cols: 2, deep: 4]
layout main on grid = { length: cols, params: { length: (cols, deep) } }
model m(x: [hidden]) {
  param w: [io] = ones()
  param unused: [length, hidden] = ones()
  y = sum(floor(broadcast(w -> [hidden, length, io])) + 0.0 * x, over = length)
  return y
}
"""),
    # `maximum` runs in the layout of the rename after it, so each shard needs only its part of the sum.
    "a sum that is needed as a later use is split is scattered": (SLOW_LINKS, False, None, """\
dim batch = 4
dim io = 4
mesh grid = [rows: 4]
layout main on grid = { io: rows }
model m(x: i32[batch, io]) {
  y = rename(maximum(einsum(x, x -> [batch]), 32), batch -> io)
  return y
}
"""),
    # The carry of the gradient's loop is whole. The gradient overwrites it, and is split as the parameter is stored.
    "a gradient may reuse a buffer that was split otherwise": (SLOW_LINKS, True, None, """\
dim io = 8
dim times = 3
mesh grid = [cols: 2]
layout main on grid = { params: { io: cols } }
model m(x: [io]) {
  param w: [io] = normal()
  a = w
  b = w
  scan step = range(times) along times {
    a = 0.5 * b
    b = maximum(floor(b - a), -4.0)
  }
  loss = min(b) + sum(a)
  return loss
}
train m {
  minimize loss
  optimizer = adam(learning_rate = 0.1)
}
"""),
    # The binary dots leave the dimensions in the order of the difference.
    "the reader of a dot of several operands may reuse its buffer": (SLOW_LINKS, False, None, """\
dim batch = 3
dim io = 6
mesh grid = [rows: 3]
layout main on grid = { io: rows }
model m(y: [batch, io]) {
  param w: [batch, io] = normal()
  h = w - einsum(w, sum(y), w, -w -> [io, batch])
  z = sum(h, over = batch)
  return z
}
"""),
    # A route costs nothing at one stop, and does not reach another.
    "sums that take no time have a bound": (SLOW_LINKS, False, 6, """\
dim batch = 5
dim io = 4
dim hidden = 1
dim length = 3
dim d0 = 2
dim d1 = 2
dim d2 = 1
dim d3 = 1
dim d4 = 2
mesh grid = [rows: 2, cols: 2, deep: 2]
layout main on grid = {
  io: rows
  d4: rows
  params: { d0: cols }
  optimizer: { d4: rows, d1: deep }
}

model m(x: f64[length, batch, hidden], y: f64[], z: f64[length, batch], u: i32[hidden, length]) {
  param w: f64[batch, length] = normal(stddev = 0.5)
  param b: f64[] = zeros()
  param filter0: f64[io, d0] = normal(stddev = 0.5)
  param filter1: f64[length] = normal(stddev = 0.5)
  param filter2: f64[d4] = normal(stddev = 0.5)
  h0 = mean(window(w, batch -> [hidden, d0], stride = 3, dilation = 2, value = 2.0), over = [length])
  h1 = window(w, batch -> [io, d0])
  seen = window(h0, hidden -> [d1, io], stride = 3, dilation = 1, padding = (3, 3), value = 0.5)
  wide = window(0.125 * einsum(filter0, seen -> [d1]), d1 -> [hidden, length], stride = 2, padding = (1, 0))
  h2 = einsum(wide, filter1 -> [hidden])
  h3 = 0.0625 * h2
  repeat d2 checkpoint {
    param w0: f64[d1, io] = normal(stddev = 0.5)
    h4 = concat(h3, filter1, hidden -> io, length -> io)
    h5 = h4 * w0
    h3 = 0.25 * (h3 - sum(h0 -> [hidden]))
  }
  h6 = einsum(window(0.125 * h2, hidden -> [d3, d4], stride = 3, dilation = 1, padding = (2, 0)), filter2 -> [d3])
  return y, h6
}
"""),
    # `pad` follows the rename of its result, so each shard reads its part of `h`; the minimum reads all of `h`.
    "a pad may read a part of a whole array": (SLOW_LINKS, False, None, """\
dim batch = 2
dim io = 1
dim wide = 2
mesh grid = [cols: 2]
layout main on grid = { batch: cols }
model m(x: [batch, io]) {
  h = relu(x)
  y = rename(sign(pad(h, io -> wide, value = 1.0)), wide -> batch, batch -> wide)
  least = min(h)
  return least, y
}
"""),
    # Eight columns in 5 windows are never partitioned, so they are gathered and whole.
    "an array gathered for windows may be stored only whole": (SLOW_LINKS, False, None, """\
dim io = 8
dim kernel = 3
dim two = 2
dim windows = 5
dim pair = 2
mesh grid = [rows: 8]
layout main on grid = { io: rows }
model m(x: [io]) {
  param w: [io, kernel] = ones()
  param v: [pair] = ones()
  h = window(slice(w, kernel -> two), io -> [windows, pair], stride = 2, dilation = 2, padding = (0, 3))
  y = einsum(h, v -> [windows, two])
  return y
}
"""),
    "a parameter that leaves a loop as it is stored": (TORUS, True, None, """\
dim batch = 2
dim io = 2
dim hidden = 2
mesh grid = [rows: 2, cols: 2]
layout main on grid = { params: { hidden: rows } }
model m(x: f32[batch, io]) {
  repeat batch {
    param w: f32[io, hidden] = ones()
    yield ws = w
  }
  return ws
}
"""),
    # In the backward pass a dot reads `p`, and only the update uses the dot: it is computed where `p` is stored.
    "a parameter that an update follows is not gathered": (SLOW_LINKS, True, None, """\
dim batch = 2
dim io = 4
mesh grid = [rows: 2, cols: 2]
layout main on grid = { params: { batch: rows } }
model m(x: f64[batch, io]) {
  param p: f64[batch, io] = ones()
  h0 = p * p
  h1 = 0.5 * h0
  scan s0 = p, s1 = p along io {
    h1 = 0.5 * broadcast(sum(x -> [batch]) -> [batch, io])
    yield s4 = mean(shift(s1, batch, by = -2, wrap = true), over = [batch])
  }
  loss = mean(square(mean(s4))) + mean(s4)
  return loss
}
train m {
  minimize loss
  optimizer = sgd(learning_rate = 0.1)
}
"""),
    # `v` has one element. The sum over `split` is completed once, and nothing is gathered under any storage.
    "a gradient that no storage scatters is not gathered": (SLOW_LINKS, True, None, """\
dim io = 2
dim hidden = 4
dim split = 2
dim one = 1
dim two = 2
mesh grid = [rows: 2]
layout main on grid = { split: rows }
model m(x: f64[io, hidden]) {
  param w: f64[io, split] = normal(stddev = 0.5)
  param v: f64[one] = normal(stddev = 0.5)
  h0 = einsum(window(x, hidden -> [one, split], stride = 3), w -> [one])
  h1 = einsum(window(0.25 * pad(h0, one -> two, before = 1), two -> [io, one]), v -> [io])
  h2 = 0.25 + v
  loss = 0.125 * sum(0.25 * (sum(h1 -> []) + h2 * h2))
  return loss
}
train m {
  minimize loss
  optimizer = sgd(learning_rate = 0.25)
  clip = 4.0
}
"""),
    # The array stays whole, however its windows are split.
    "no halos along a dimension that loops run along": (SLOW_LINKS, False, None, """\
dim batch = 2
dim time = 4
dim windows = 4
dim kernel = 2
mesh grid = [rows: 2, cols: 2]
layout main on grid = { windows: rows }
model m(x: f64[time, batch]) {
  scan x_t = x along time {
    yield y = 0.5 * x_t
  }
  loss = mean(square(max(window(y, time -> [windows, kernel], padding = (0, 1)), over = [kernel])))
  return loss
}
"""),
    # Both dots contract `y z` first, and then they are equal.
    "dots that become equal when binarized are stored once": (TORUS, False, None, """\
dim batch = 64
dim io = 4
dim mid = 4
dim hidden = 8
mesh grid = [rows: 2]
layout main on grid = { io: rows }
model m(x: [batch, io], y: [io, mid], z: [mid, hidden]) {
  a = einsum(x, y, z -> [batch, hidden])
  b = einsum(x, z, y -> [batch, hidden])
  p = einsum(a, z -> [batch, mid])
  q = einsum(b, z -> [batch, mid])
  r = einsum(p, a -> [mid, hidden]) + einsum(q, b -> [mid, hidden])
  return r
}
"""),
    # The reshape has `batch` whole, and the stack splits it: each shard needs only its part of the sum.
    "a sum that a loop stacks is scattered where what makes it needs it whole": (SLOW_LINKS, False, None, """\
dim batch = 3
dim hidden = 6
dim d0 = 2
dim d2 = 2
mesh line = [cols: 3]
layout main on line = { batch: cols }
model m(y: f64[d0, hidden, batch]) {
  repeat d0 with s = y {
    h = einsum(s -> [hidden])
    yield kept = reshape(h -> [d2, batch])
  }
  total = sum(kept, over = [d0, d2, batch])
  return total
}
"""),
    # If `rows` splits `d0` and `io`, the sum of `x` is scattered over `rows` before it is summed along `d1`.
    #
    # Over `cols` it is completed with the loss.
    "a sum that is completed over one axis may go on over another": (SLOW_LINKS, False, None, """\
dim batch = 6
dim io = 4
dim d0 = 2
dim d1 = 3
mesh grid = [rows: 2, cols: 2]
layout main on grid = { io: (rows, cols), d0: rows }
model m(x: f64[batch, io]) {
  param p: f64[io, batch] = ones()
  b = window(mean(x -> [batch]), batch -> [d0, d1], stride = 3)
  loss = sum(sum(b, over = [d1]) -> []) + 0.5 * sum(p)
  return loss
}
"""),
    # Parameters arrive as they are stored, so neither sums nor parameters are whole during the step.
    "sums over micro batches are held as parameters are stored": (SLOW_LINKS, True, None, """
    dim batch = 8; dim d = 8; dim hidden = 16; dim layers = 3
    mesh grid = [one: 2, other: 2]
    layout main = { batch: one }
    model m(x: [batch, d]) {
      repeat layers {
        param w: [d, hidden] = normal(stddev = 0.5)
        param v: [hidden, d] = normal(stddev = 0.5)
        x = x + einsum(tanh(einsum(x, w -> [batch, hidden])), v -> [batch, d])
      }
      loss = mean(square(x))
      return loss
    }
    train m { minimize loss; optimizer = momentum(learning_rate = 0.5); accumulate = 3 }
    """),
}  # fmt: skip
"""Reason -> machine, whether storage varies, the number of layouts that are checked, and the text of a program."""


@pytest.mark.parametrize("reason", PROGRAMS)
def test_no_layout_costs_less_than_its_bound(reason: str) -> None:
    hardware, storage, most, text = PROGRAMS[reason]
    _check(text, hardware, storage, most)


LATENT = attrs.evolve(SLOW_LINKS, name="latent", links=(Link("net", "switch", (), Rate.constant(1e12), 1.0),))
"""A machine on which only the number of collectives matters."""


@pytest.mark.parametrize("accumulate", [1, 2])
def test_parameters_that_are_gathered_together_wait_once(accumulate: int) -> None:
    text = f"""
    dim batch = 8; dim d = 8; dim hidden = 16; dim layers = 3
    mesh line = [all: 4]
    layout main = {{ batch: all }}
    model m(x: [batch, d]) {{
      repeat layers {{
        param scale: [d] = ones()
        param w: [d, hidden] = normal(stddev = 0.5)
        param b: [hidden] = zeros()
        param v: [hidden, d] = normal(stddev = 0.5)
        param c: [d] = zeros()
        x = x + c + einsum(tanh(b + einsum(x * scale, w -> [batch, hidden])), v -> [batch, d])
      }}
      loss = mean(square(x))
      return loss
    }}
    train m {{ minimize loss; optimizer = momentum(learning_rate = 0.5); accumulate = {accumulate} }}
    """
    _check(text, LATENT, storage=True)


def test_storage_of_parameters_leaves_out_axes_of_the_state() -> None:
    """The state of a parameter has at least the parameter's axes, so a later column must not take an axis of the state."""
    a, b = Dim("a", 4), Dim("b", 4)
    w = Value("w", TensorType("f32", (a, b)))
    forward = Function("forward", (Argument(w, "parameter"),), (), (Output("w", w),))
    space, mesh = space_of(forward, storage=True), Mesh("mesh", (("x", 2),))
    number = space.number
    rows = np.zeros((1, len(space.columns)), np.uint8)
    rows[0, number["optimizer.a"]] = 1
    decided = frozenset(number[name] for name in ("a", "b", "params.a", "optimizer.a"))
    found, _ = space.extended(rows, number["params.b"], decided, mesh)
    assert found[:, number["params.b"]].tolist() == [0]


def test_storage_of_the_state_leaves_out_axes_of_the_computation() -> None:
    """Columns of parameters may be decided after those of the state: then the computation's axes count."""
    a, b = Dim("a", 4), Dim("b", 4)
    w = Value("w", TensorType("f32", (a, b)))
    forward = Function("forward", (Argument(w, "parameter"),), (), (Output("w", w),))
    space, mesh = space_of(forward, storage=True), Mesh("mesh", (("x", 2),))
    number = space.number
    rows = np.zeros((1, len(space.columns)), np.uint8)
    rows[0, number["a"]] = 1
    found, _ = space.extended(rows, number["optimizer.b"], frozenset({number["a"], number["b"]}), mesh)
    assert found[:, number["optimizer.b"]].tolist() == [0]
    rows[0, number["a"]], rows[0, number["optimizer.b"]] = 0, 1
    found, _ = space.extended(rows, number["a"], frozenset({number["b"], number["optimizer.b"]}), mesh)
    assert found[:, number["a"]].tolist() == [0]


TABLES = """\
dim batch = 4
dim times = 4
dim rows = 64
dim io = 64
mesh grid = [deep: 4]
layout main on grid = { io: deep }
model m(x: [batch, io], ids: i32[batch], step: i32[times]) {
  param w: [rows, io] = normal()
  param v: [batch, rows, io] = normal()
  h = x
  scan t = step along times {
    h = 0.5 * h + gather(w, t, rows)
  }
  loss = sum(h * gather(v, ids, rows))
  return loss
}
train m {
  minimize loss
  optimizer = sgd(learning_rate = 0.1)
}
"""


def test_tables_are_read_and_written_where_indices_point() -> None:
    """The gradient of `w` is changed in place, one row in each iteration. Where `batch` is split, each device reads one slice."""
    slow = attrs.evolve(SLOW_CORES.device, bandwidth=Rate.constant(1e6), ops={})
    _check(TABLES, attrs.evolve(SLOW_CORES, device=slow), storage=True)
