"""The search over global layouts: its bound holds, and what it calls optimal is."""

from __future__ import annotations

from collections.abc import Iterable
from time import monotonic

import attrs
import numpy as np
import pytest

from mtfc.backends import hlo, jax_runtime
from mtfc.compiler.analysis.cost import charges, total
from mtfc.compiler.analysis.sizes import Numbers
from mtfc.compiler.hardware import Device, Hardware, Link, Rate
from mtfc.compiler.ir.core import Program
from mtfc.compiler.ir.types import Layout, Mesh, Rules
from mtfc.compiler.passes.combine_collectives import CombineCollectives
from mtfc.compiler.pipelines import lower
from mtfc.compiler.pricing import Pricer
from mtfc.compiler.search.found import Objective, Price, value_of
from mtfc.compiler.search.rules.bound import Bound
from mtfc.compiler.search.rules.collectives import COMBINED
from mtfc.compiler.search.rules.parts import Step
from mtfc.compiler.search.rules.search import search
from mtfc.compiler.search.rules.space import Rows, Space, layout_of, meshes, space_of
from mtfc.frontend.targets import named
from tests.documents import ROOT
from tests.generators.programs import programs
from tests.generators.scope import Options
from tests.harness import HasSource, load
from tests.properties.campaign import FEW_EXAMPLES, holds_for
from tests.properties.test_jax import AS_WRITTEN

SLOW_LINKS = Hardware(
    "slow_links",
    Device({"f32": Rate.constant(1e12)}, 1e12, Rate.constant(1e12), 1e-7),
    (Link("net", "switch", (), Rate.constant(1e6), 1e-6),),
)
"""Where what a layout sends is all that matters."""

FASTER = {
    "all_to_all": Rate.constant(4e6),
    "permute": Rate.constant(5e6),
    "reduce_scatter": Rate.constant(2e6),
}

NODES = attrs.evolve(
    SLOW_LINKS,
    name="nodes",
    links=(
        Link("node", "ring", (4,), Rate.constant(1e7), 1e-6, collectives={"all_gather": Rate.constant(3e7)}),
        Link("net", "switch", (), Rate.constant(1e6), 1e-5, shared=2, collectives=FASTER),
    ),
)
"""Where the groups of a collective lie on links of two speeds, and some collectives are faster than others."""

SLOW_CORES = Hardware(
    "slow_cores",
    Device(
        {"f32": Rate.constant(1e6)},
        1e12,
        Rate.constant(1e6),
        0.0,
        {"exp": 1e5, "max": 1e4, "sum": 1e5, "unpool": 1e4, "einsum": 1e5, "convolution": 1e4},
        overlap=0.5,
    ),
    (Link("net", "memory", (1024,), Rate.constant(1e12), 0.0),),
)
"""Where what a layout computes is."""

SLOW_TPU = attrs.evolve(
    SLOW_CORES,
    name="slow_tpu",
    device=attrs.evolve(
        SLOW_CORES.device,
        overhead=1e-3,
        ops={"bernoulli": 1e4, "uniform": 1e4},
        matrix=16,
        scratchpad=1e5,
    ),
)
"""Where what a TPU fills up, holds and draws again is."""

TORUS = named("tpu_v2", {})

SPATIAL = programs(Options(spatial=True, statements=5, layouts=1))
EXAMPLES = 8


def layouts(space: Space, mesh: Mesh, most: int | None = None) -> Rows:
    """Every legal row, or a random choice of that many on the way."""
    rows, random = np.zeros((1, len(space.columns)), np.uint8), np.random.default_rng(0)
    for column in range(len(space.columns)):
        rows, _ = space.extended(rows, column, frozenset(range(column)), mesh)
        if most is not None and len(rows) > most:
            rows = rows[random.choice(len(rows), most, replace=False)]
    return rows


@holds_for(programs(), FEW_EXAMPLES)
def test_no_layout_costs_less_than_its_bound(program: HasSource) -> None:
    module = load(program.source)
    for hardware in (SLOW_LINKS, NODES, TORUS, SLOW_CORES, SLOW_TPU):
        for storage in (False, True):
            _check_bounds(module.programs[0], module.layouts[0].mesh, hardware, storage)


test_no_layout_of_windows_costs_less = holds_for(SPATIAL, EXAMPLES)(
    test_no_layout_costs_less_than_its_bound.check
)


def _check_bounds(
    program: Program, mesh: Mesh, hardware: Hardware, storage: bool, most: int | None = 6
) -> None:
    space = space_of(program.function("forward"), storage=storage)
    _check_rows(program, mesh, hardware, space, layouts(space, mesh, most))


def _check_rows(program: Program, mesh: Mesh, hardware: Hardware, space: Space, rows: Rows) -> None:
    """Where all columns are decided, and where only some are."""
    pricer, columns = Pricer.of(program, hardware), range(len(space.columns))
    step = Step.of(pricer.undistributed(), hardware.device)
    bound, beside = (Bound(space, step, mesh, hardware, overlaps) for overlaps in (False, True))
    prices = [pricer.with_overlap(mesh, layout_of(space, row.tolist(), mesh)) for row in rows]
    computing = [i for i in columns if i not in space.storing]
    for decided in (columns, computing, columns[::2], columns[1::2], ()):
        known = bound.known(_only(rows, decided), frozenset(decided))
        is_open = bool(space.storing) and space.storing.isdisjoint(decided)
        flops = bound.flops(known)
        seconds, overlapping = (np.maximum(flops, each.seconds(known, is_open)) for each in (bound, beside))
        bounds = (seconds, overlapping, bound.memory(known))
        for row, price, least, at_once, memory in zip(rows, prices, *bounds, strict=True):
            where = layout_of(space, row.tolist(), mesh), decided
            assert least <= price.seconds * (1 + 1e-9), where
            assert at_once <= price.overlapping * (1 + 1e-9), where
            assert memory <= price.memory, where


def _only(rows: Rows, decided: Iterable[int]) -> Rows:
    found = np.zeros_like(rows)
    found[:, list(decided)] = rows[:, list(decided)]
    return found


def test_a_parameter_that_is_broadcast_is_not_stored_as_what_comes_of_it() -> None:
    text = """\
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
"""
    module = load(text)
    _check_bounds(module.programs[0], module.layouts[0].mesh, TORUS, storage=True)


def test_a_sum_that_is_needed_as_a_later_use_is_split_is_scattered() -> None:
    """`maximum` runs as the rename of its result does: each shard needs its part of the sum alone."""
    text = """\
dim batch = 4
dim io = 4
mesh grid = [rows: 4]
layout main on grid = { io: rows }
model m(x: i32[batch, io]) {
  y = rename(maximum(einsum(x, x -> [batch]), 32), batch -> io)
  return y
}
"""
    module = load(text)
    _check_bounds(module.programs[0], module.layouts[0].mesh, SLOW_LINKS, storage=False, most=None)


def test_a_gradient_may_be_split_otherwise_than_what_its_buffer_held_before() -> None:
    """What the gradient's loop carries is whole; the gradient takes over its buffer, and is split as the parameter is stored."""
    text = """\
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
"""
    module = load(text)
    _check_bounds(module.programs[0], module.layouts[0].mesh, SLOW_LINKS, storage=True, most=None)


def test_what_is_made_of_a_product_of_several_may_take_its_buffer() -> None:
    """Taken two at a time, the product has its dimensions in the order of the difference."""
    text = """\
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
"""
    module = load(text)
    _check_bounds(module.programs[0], module.layouts[0].mesh, SLOW_LINKS, storage=False, most=None)


def test_sums_that_take_no_time_have_a_bound() -> None:
    """Where a route costs nothing at one stop and does not come to another."""
    text = """\
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
"""
    module = load(text)
    _check_bounds(module.programs[0], module.layouts[0].mesh, SLOW_LINKS, storage=False)


def test_what_pads_may_read_a_part_of_what_is_whole() -> None:
    """`pad` follows the rename of its result, so each shard reads its part of `h`, which the minimum reads whole."""
    text = """\
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
"""
    module = load(text)
    _check_bounds(module.programs[0], module.layouts[0].mesh, SLOW_LINKS, storage=False, most=None)


def test_what_is_gathered_for_windows_may_be_all_that_is_held() -> None:
    """Eight columns in 5 windows are never taken apart, so they are whole once they are gathered."""
    text = """\
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
"""
    module = load(text)
    _check_bounds(module.programs[0], module.layouts[0].mesh, SLOW_LINKS, storage=False, most=None)


def test_a_parameter_that_leaves_a_loop_as_it_is_stored() -> None:
    text = """\
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
"""
    module = load(text)
    _check_bounds(module.programs[0], module.layouts[0].mesh, TORUS, storage=True, most=None)


def test_a_parameter_that_an_update_follows_is_not_gathered() -> None:
    """Backward, `p` is read by a product that only its update uses: that is computed where `p` is stored."""
    text = """\
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
"""
    module = load(text)
    _check_bounds(module.programs[0], module.layouts[0].mesh, SLOW_LINKS, storage=True, most=None)


def test_a_gradient_that_no_storage_scatters_is_not_gathered() -> None:
    """`v` has one element: the sum over `split` is completed once, and nothing of it is gathered, whatever the storage is."""
    text = """\
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
"""
    module = load(text)
    _check_bounds(module.programs[0], module.layouts[0].mesh, SLOW_LINKS, storage=True, most=None)


def test_no_halos_along_a_dimension_that_loops_run_along() -> None:
    """It stays whole, however its windows are split."""
    text = """\
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
"""
    module = load(text)
    _check_bounds(module.programs[0], module.layouts[0].mesh, SLOW_LINKS, storage=False, most=None)


def test_products_that_are_equal_once_they_are_taken_in_an_order_are_held_once() -> None:
    """Of both, `y z` is taken first; then they are the same."""
    text = """\
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
"""
    module = load(text)
    _check_bounds(module.programs[0], module.layouts[0].mesh, TORUS, storage=False, most=None)


@pytest.mark.parametrize(("matrix", "overhead"), [(None, 1e-3), (16, 0.0)])
def test_what_is_sent_is_stored_and_read_again(matrix: int | None, overhead: float) -> None:
    """On one TPU the product is only added to `x`, in its own kernel; bounds do not count component-wise kernels there."""
    text = """\
dim batch = 256
dim io = 128
dim hidden = 128
mesh grid = [rows: 4]
layout main on grid = { hidden: rows }
model m(x: [batch, io], h: [batch, hidden], w: [hidden, io]) {
  y = x + einsum(h, w -> [batch, io])
  z = square(y)
  return z
}
"""
    module = load(text)
    device = Device({"f32": Rate.constant(1e12)}, 1e12, Rate.constant(1e6), overhead, matrix=matrix)
    hardware = attrs.evolve(SLOW_CORES, device=device)
    program, mesh, layout = module.programs[0], module.layouts[0].mesh, module.layouts[0].layout
    pricer, space = Pricer.of(program, hardware), space_of(program.function("forward"))
    bound = Bound(space, Step.of(pricer.undistributed(), hardware.device), mesh, hardware)
    rows = np.array([[int(column.name == "hidden") for column in space.columns]], np.uint8)
    known = bound.known(rows, frozenset(range(len(space.columns))))
    price = pricer(mesh, layout).seconds
    assert bound.seconds(known)[0] == pytest.approx(price, rel=1e-3)


@pytest.mark.parametrize("hardware", [SLOW_LINKS, named("k80_cluster", {})])
def test_no_layout_of_lenet_costs_less_than_its_bound(hardware: Hardware) -> None:
    """Images that are split alike in all layers, or in some; and a sum that a reshape makes whole, and its use splits."""
    program, mesh = example("lenet"), Mesh("grid", (("rows", 2), ("cols", 2)))
    space = space_of(program.function("forward"))
    chosen: list[dict[str, int]] = [
        {"h1": 1, "h2": 1, "h3": 1, "w1": 2, "w2": 2, "w3": 2},
        {"height": 1, "h1": 1, "h2": 1, "h3": 1, "batch": 2},
        {"w1": 1, "w2": 1, "w3": 1, "c2": 2, "samples": 2},
        {"w1": 3, "w2": 1, "h3": 2},
        {"c2": 3, "units1": 3},
    ]
    rows = np.array([[row.get(column.name, 0) for column in space.columns] for row in chosen], np.uint8)
    _check_rows(program, mesh, hardware, space, rows)


def test_the_optimum_of_a_network_that_may_be_split_in_space_is_proven() -> None:
    """By images, as everyone does it: halos and what moves between layers cost more than they save."""
    program, hardware = example("lenet"), named("k80_cluster", {})
    pricer, forward = Pricer.of(program, hardware), program.function("forward")
    step, shapes = pricer.undistributed(), list(meshes(4, 1))
    found = search(step, forward, shapes, hardware, pricer, monotonic() + 60)
    assert found.is_optimal
    assert found.layout.rules.get("batch") == ("x",)


def test_what_the_compiler_does_not_combine_has_a_latency_of_its_own() -> None:
    assert CombineCollectives().max_bytes == COMBINED


def test_a_bound_of_no_layouts() -> None:
    """Where no layout of a mesh is new, or fits."""
    program, mesh = example("two_layer"), Mesh("grid", (("rows", 2), ("cols", 4)))
    pricer, space = Pricer.of(program, TORUS), space_of(program.function("forward"), storage=True)
    bound = Bound(space, Step.of(pricer.undistributed(), TORUS.device), mesh, TORUS)
    nothing = layouts(space, mesh)[:0]
    assert bound.seconds(bound.known(nothing, frozenset())).shape == (0,)


def test_a_search_that_is_stopped_at_once_has_what_was_known() -> None:
    program = example("digits")
    pricer, known = Pricer.of(program, TORUS), [(Mesh("line", (("all", 8),)), Layout("none"))]
    step, forward = pricer.undistributed(), program.function("forward")
    found = search(step, forward, list(meshes(8, 3)), TORUS, pricer, monotonic(), known=known)
    assert not found.is_optimal
    assert found.lower_bound <= found.objective == pricer(*known[0]).seconds


@pytest.mark.parametrize("compiled", range(1, 12))
def test_an_interrupted_search_has_the_best_so_far(compiled: int) -> None:
    """Wherever it is interrupted, no layout is below its bound."""
    program, shapes = example("two_layer"), list(meshes(8, 2))
    pricer, known = Pricer.of(program, SLOW_LINKS), [(shapes[0], Layout("none"))]
    step, forward, prices = pricer.undistributed(), program.function("forward"), list[float]()

    def interrupted(mesh: Mesh, layout: Layout) -> Price:
        if len(prices) == compiled:
            raise KeyboardInterrupt
        price = pricer(mesh, layout)
        prices.append(price.seconds)
        return price

    best = search(step, forward, shapes, SLOW_LINKS, pricer, monotonic() + 60, known=known)
    found = search(step, forward, shapes, SLOW_LINKS, interrupted, monotonic() + 60, known=known)
    assert found.is_interrupted == (best.evaluated > compiled)
    assert found.objective == min(prices)
    assert found.lower_bound <= best.objective


def test_what_is_fixed_stays_so_where_no_layout_is_known() -> None:
    """However good layouts without it are."""
    program, mesh = example("two_layer"), Mesh("grid", (("rows", 2), ("cols", 4)))
    pricer, fixed = Pricer.of(program, TORUS), Rules((("batch", ("rows",)),))
    step, forward = pricer.undistributed(), program.function("forward")
    free = search(step, forward, [mesh], TORUS, pricer, monotonic() + 60)
    found = search(step, forward, [mesh], TORUS, pricer, monotonic() + 60, fixed=fixed)
    assert free.layout.rules.get("batch") != ("rows",) == found.layout.rules.get("batch")
    assert found.is_optimal and free.objective < found.objective


def test_an_interrupt_before_anything_is_known() -> None:
    program, shapes = example("two_layer"), list(meshes(8, 1))
    pricer = Pricer.of(program, SLOW_LINKS)

    def interrupted(mesh: Mesh, layout: Layout) -> Price:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        search(
            pricer.undistributed(),
            program.function("forward"),
            shapes,
            SLOW_LINKS,
            interrupted,
            monotonic() + 9,
        )


def test_layouts_that_compile_to_one_program_are_compiled_once() -> None:
    """What a reshape makes for a product follows that; its price is the one that it would have if nothing were known."""
    program, mesh = example("lenet"), Mesh("grid", (("x", 2), ("y", 2)))
    hardware = named("k80_cluster", {})
    pricer = Pricer.of(program, hardware)
    rules = [(("batch", ("x", "y")),), (("batch", ("x", "y")), ("features", ("x",))), (("batch", ("x",)),)]
    every = [Layout(f"l{i}", Rules(each)) for i, each in enumerate(rules)]
    prices = [pricer(mesh, layout) for layout in every]
    assert prices == [Pricer.of(program, hardware)(mesh, layout) for layout in every]
    assert len(pricer.alike) == len(set(prices)) == 2


def test_a_bound_has_as_much_as_time_allows() -> None:
    program, mesh = example("two_layer"), Mesh("grid", (("rows", 2), ("cols", 4)))
    pricer, space = Pricer.of(program, TORUS), space_of(program.function("forward"))
    bound = Bound(space, Step.of(pricer.undistributed(), TORUS.device), mesh, TORUS)
    known = bound.known(layouts(space, mesh), frozenset(range(len(space.columns))))
    for seconds in (bound.seconds, bound.sure_seconds):
        assert (seconds(known, until=monotonic() - 1) == 0).all()
        assert (seconds(known, until=monotonic() + 60) == seconds(known)).all()


def example(name: str) -> Program:
    return load((ROOT / "examples" / f"{name}.mtf").read_text("utf-8")).programs[0]


@pytest.mark.parametrize("objective", ["time", "overlap", "memory"])
@pytest.mark.parametrize(
    ("name", "hardware"), [("two_layer", SLOW_LINKS), ("two_layer", TORUS), ("digits", TORUS)]
)
def test_the_optimum_is_that_of_all_layouts(name: str, hardware: Hardware, objective: Objective) -> None:
    """All shapes of 8 devices, all legal layouts, each compiled and priced."""
    program = example(name)
    pricer, forward = Pricer.of(program, hardware), program.function("forward")
    shapes = list(meshes(8, 2))
    step, pricing, until = pricer.undistributed(), pricer.pricing(objective), monotonic() + 60
    found = search(step, forward, shapes, hardware, pricing, until, objective)
    space = space_of(forward)
    every = [
        value_of(pricing(mesh, layout_of(space, row.tolist(), mesh)), objective)
        for mesh in shapes
        for row in layouts(space, mesh)
    ]
    assert found.is_optimal
    assert found.objective == min(every)
    assert found.evaluated < len(every)


@pytest.mark.parametrize("name", ["transformer_lm", "moe_lm", "alexnet"])
def test_the_least_memory_of_large_models_is_proven(name: str) -> None:
    """Where experts are sent to, and windows slide, too."""
    program, shapes = example(name), list(meshes(8, 2))
    pricer, forward = Pricer.of(program, TORUS), program.function("forward")
    found = search(pricer.undistributed(), forward, shapes, TORUS, pricer, monotonic() + 60, "memory")
    assert found.is_optimal


def test_the_papers_layout_of_the_language_model_is_proven_best() -> None:
    """4.9 B parameters on 512 cores: section 9 of the Mesh-TensorFlow paper chose it by hand, and nothing takes less."""
    module = load((ROOT / "examples" / "transformer_lm.mtf").read_text("utf-8"))
    papers = next(layout for layout in module.layouts if layout.name == "hybrid")
    program, shapes = module.programs[0], list(meshes(512, 3))
    pricer = Pricer.of(program, TORUS)
    step, forward, known = pricer.undistributed(), program.function("forward"), [(papers.mesh, papers.layout)]
    found = search(step, forward, shapes, TORUS, pricer, monotonic() + 60, known=known)
    assert found.is_optimal
    assert (found.mesh, found.layout.rules) == (papers.mesh, papers.layout.rules)
    assert found.evaluated < 10


@pytest.mark.parametrize("objective", ["time", "memory"])
def test_the_optimum_over_storage_too(objective: Objective) -> None:
    program, mesh = example("two_layer"), Mesh("grid", (("rows", 2), ("cols", 4)))
    pricer, forward = Pricer.of(program, SLOW_LINKS), program.function("forward")
    step, until = pricer.undistributed(), monotonic() + 60
    found = search(step, forward, [mesh], SLOW_LINKS, pricer, until, objective, storage=True)
    space = space_of(forward, storage=True)
    every = [
        value_of(pricer(mesh, layout_of(space, row.tolist(), mesh)), objective)
        for row in layouts(space, mesh)
    ]
    assert found.is_optimal
    assert found.objective == min(every)


def test_shapes_of_a_mesh() -> None:
    shapes = [tuple(size for _, size in mesh.axes) for mesh in meshes(12, 3)]
    assert shapes[:5] == [(12,), (2, 6), (3, 4), (4, 3), (6, 2)]
    assert sorted(shapes[5:]) == [(2, 2, 3), (2, 3, 2), (3, 2, 2)]


@pytest.mark.parametrize(("name", "hardware"), [("two_layer", SLOW_LINKS), ("digits", SLOW_LINKS)])
def test_xla_sends_what_was_priced(name: str, hardware: Hardware) -> None:
    """Memory that all parameters do not fit in makes the search split them."""
    program = example(name)
    whole = Pricer.of(program, hardware)(Mesh("one", ()), Layout("none")).memory
    small = attrs.evolve(hardware, device=attrs.evolve(hardware.device, memory=whole / 4))
    pricer = Pricer.of(program, small)
    forward = program.function("forward")
    found = search(pricer.undistributed(), forward, list(meshes(8, 2)), small, pricer, monotonic() + 60)
    assert found.is_optimal
    placed = lower(program, found.mesh, found.layout)
    compiled = jax_runtime.lowered(placed, "step").compile(compiler_options=AS_WRITTEN)
    sent = sum(kind["bytes_per_device"] for kind in hlo.collectives(compiled.as_text()).values())
    priced = charges(pricer.lowered(found.mesh, found.layout), Numbers(found.mesh))
    assert sent == total(priced).sent.bytes > 0
