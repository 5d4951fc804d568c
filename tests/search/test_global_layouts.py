"""The search over global layouts: its bound holds, and its optima are optimal."""

from time import process_time

import attrs
import numpy as np
import pytest

from mtfc.backends import hlo
from mtfc.backends.jax import runtime as jax_runtime
from mtfc.compiler.activity import progress_to
from mtfc.compiler.cost.hardware import Device, Hardware, Link, Rate
from mtfc.compiler.cost.sizes import Numbers
from mtfc.compiler.cost.topology import COMBINED
from mtfc.compiler.cost.volumes import charges, total
from mtfc.compiler.ir.types import Layout, Mesh, Rules
from mtfc.compiler.passes.partition.combine_collectives import CombineCollectives
from mtfc.compiler.passes.pipelines import lower
from mtfc.compiler.search.found import Objective, Price, value_of
from mtfc.compiler.search.global_layouts.effect_bounds import MaskRange
from mtfc.compiler.search.global_layouts.global_search import Branching
from mtfc.compiler.search.global_layouts.layout_bound import LayoutBound
from mtfc.compiler.search.global_layouts.layout_space import layout_of, space_of
from mtfc.compiler.search.global_layouts.step_facts import StepFacts
from mtfc.compiler.search.pricer import LayoutPricer
from mtfc.driver.searching.space import meshes
from mtfc.frontend.hardware_targets import find_hardware
from tests.documents import ROOT
from tests.generators.programs import programs
from tests.generators.scope import Options
from tests.harness import AMPLE, HasSource, load
from tests.properties.campaign import FEW_EXAMPLES, holds_for
from tests.properties.test_jax import AS_WRITTEN
from tests.sampling import some
from tests.search.layout_bounds import (
    NODES,
    SLOW_CORES,
    SLOW_LINKS,
    SLOW_TPU,
    TORUS,
    check_bounds,
    check_rows,
    example,
    layouts,
    search,
)

SPATIAL = programs(Options(spatial=True, statements=5, layouts=1))
EXAMPLES = 8


@holds_for(programs(), FEW_EXAMPLES)
def test_no_layout_costs_less_than_its_bound(program: HasSource) -> None:
    module = load(program.source)
    for hardware in (SLOW_LINKS, NODES, TORUS, SLOW_CORES, SLOW_TPU):
        for storage in (False, True):
            check_bounds(module.programs[0], module.layouts[0].mesh, hardware, storage)


test_no_layout_of_windows_costs_less = holds_for(SPATIAL, EXAMPLES // 2)(
    test_no_layout_costs_less_than_its_bound.check
)


@pytest.mark.parametrize("sizes", [(2, 2), (2, 2, 2)])
def test_no_layout_on_a_whole_torus_costs_less_than_its_bound(sizes: tuple[int, ...]) -> None:
    """There a reduce-scatter over all axes takes twice as long as one axis after the other."""
    link = Link("ici", "torus", sizes, Rate.constant(1e6), 1e-6)
    for mesh in meshes(2 ** len(sizes), 2):
        check_bounds(example("two_layer"), mesh, attrs.evolve(SLOW_LINKS, links=(link,)), storage=True)


@pytest.mark.parametrize(("matrix", "overhead"), [(None, 1e-3), (16, 0.0)])
def test_sent_arrays_are_stored_and_read_again(matrix: int | None, overhead: float) -> None:
    """On a TPU the dot and the addition of `x` are one kernel; bounds do not count elementwise kernels there."""
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
    device = Device({"f32": Rate.constant(1e12)}, 1e12, Rate.constant(1e6), overhead, mxu_size=matrix)
    hardware = attrs.evolve(SLOW_CORES, device=device)
    program, mesh, layout = module.programs[0], module.layouts[0].mesh, module.layouts[0].layout
    pricer, space = LayoutPricer.of(program, hardware), space_of(program.function("forward"))
    bound = LayoutBound(space, StepFacts.of(pricer.undistributed(), hardware.device), mesh, hardware)
    rows = np.array([[int(column.name == "hidden") for column in space.columns]], np.uint8)
    known = bound.known(rows, frozenset(range(len(space.columns))))
    price = pricer(mesh, layout).seconds
    assert bound.seconds(known)[0] == pytest.approx(price, rel=1e-3)


def test_a_sum_that_ends_over_one_axis_counts_over_another_too() -> None:
    """`h` is completed over `rows`, which split `hidden`; over `cols` later, with the smaller `y`."""
    text = """\
dim batch = 64
dim io = 8
dim hidden = 8
mesh grid = [rows: 2, cols: 2]
layout main on grid = { io: (rows, cols), hidden: rows }
model m(x: [io], w: [batch, io], v: [batch, hidden]) {
  h = einsum(x, w -> [batch])
  y = einsum(h, v -> [hidden])
  return y
}
"""
    module = load(text)
    program, mesh, layout = module.programs[0], module.layouts[0].mesh, module.layouts[0].layout
    pricer, space = LayoutPricer.of(program, SLOW_LINKS), space_of(program.function("forward"))
    bound = LayoutBound(space, StepFacts.of(pricer.undistributed(), SLOW_LINKS.device), mesh, SLOW_LINKS)
    row = np.array([[{"io": 3, "hidden": 1}.get(each.name, 0) for each in space.columns]], np.uint8)
    price = pricer(mesh, layout).seconds
    assert 0.95 * price < bound.seconds(MaskRange(row, row))[0] <= price * (1 + 1e-9)


COPYING = attrs.evolve(
    SLOW_CORES, device=Device({"f32": Rate.constant(1e12)}, 1e12, Rate.constant(1e6), 1e-3)
)
"""A machine on which only kernels take time."""


def test_copies_of_loop_slices_for_dots_are_in_the_bound() -> None:
    """A dot copies a slice of a layer's parameter. A layout that stores the parameter otherwise gathers it, and copies
    nothing.
    """
    text = """\
dim depth = 3
dim batch = 4
dim io = 8
dim sources = io
mesh grid = [rows: 2, cols: 2]
layout main on grid = { io: cols, params: { sources: rows } }
model m(x: [batch, io]) {
  h = x
  repeat depth {
    param w: [sources, io] = normal()
    h = einsum(rename(h, io -> sources), w -> [batch, io])
  }
  return h
}
"""
    module = load(text)
    program, mesh = module.programs[0], module.layouts[0].mesh
    space = space_of(program.function("forward"), storage=True)
    rows = layouts(space, mesh)
    check_rows(program, mesh, COPYING, space, rows)
    pricer = LayoutPricer.of(program, COPYING)
    bound = LayoutBound(space, StepFacts.of(pricer.undistributed(), COPYING.device), mesh, COPYING)
    whole = np.zeros_like(rows[:1])
    price = pricer(mesh, layout_of(space, whole[0].tolist(), mesh))
    assert bound.seconds(MaskRange(whole, whole))[0] == pytest.approx(price.seconds, rel=1e-3)


@pytest.mark.parametrize("hardware", [SLOW_LINKS, find_hardware("k80_cluster", {})])
def test_no_layout_of_lenet_costs_less_than_its_bound(hardware: Hardware) -> None:
    """Images are split alike in all layers, or in some; a reshape makes a sum whole, and its use splits the sum."""
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
    check_rows(program, mesh, hardware, space, rows)


def test_the_optimum_of_a_network_that_may_be_split_in_space_is_proven() -> None:
    """The optimum splits the batch: halos and moves between layers cost more than they save."""
    program, hardware = example("lenet"), find_hardware("k80_cluster", {})
    pricer, forward = LayoutPricer.of(program, hardware), program.function("forward")
    step, shapes = pricer.undistributed(), list(meshes(4, 1))
    found = search(step, forward, shapes, hardware, pricer, process_time() + AMPLE)
    assert found.is_optimal
    assert found.layout.rules.get("batch") == ("x",)


def test_the_bound_knows_the_size_up_to_which_collectives_are_combined() -> None:
    assert CombineCollectives().max_bytes == COMBINED


def test_a_bound_of_no_layouts() -> None:
    """There are no rows if no layout of a mesh is new, or fits."""
    program, mesh = example("two_layer"), Mesh("grid", (("rows", 2), ("cols", 4)))
    pricer, space = LayoutPricer.of(program, TORUS), space_of(program.function("forward"), storage=True)
    bound = LayoutBound(space, StepFacts.of(pricer.undistributed(), TORUS.device), mesh, TORUS)
    nothing = layouts(space, mesh)[:0]
    assert bound.seconds(bound.known(nothing, frozenset())).shape == (0,)


def test_a_search_that_is_stopped_at_once_has_what_was_known() -> None:
    program = example("digits")
    pricer, known = LayoutPricer.of(program, TORUS), [(Mesh("line", (("all", 8),)), Layout("none"))]
    step, forward = pricer.undistributed(), program.function("forward")
    found = search(step, forward, list(meshes(8, 3)), TORUS, pricer, process_time(), known=known)
    assert not found.is_optimal
    assert found.lower_bound <= found.objective == pricer(*known[0]).serial


def test_without_time_nothing_is_split() -> None:
    """Without a known layout the search returns one all the same, and does not complain about memory."""
    program = example("digits")
    pricer = LayoutPricer.of(program, TORUS)
    step, forward = pricer.undistributed(), program.function("forward")
    found = search(step, forward, list(meshes(8, 3)), TORUS, pricer, process_time())
    assert found.evaluated == 1 and not found.is_optimal
    assert found.objective == pricer(Mesh("line", (("all", 8),)), Layout("none")).serial


@pytest.mark.parametrize("compiled", range(1, 12))
def test_an_interrupted_search_has_the_best_so_far(compiled: int) -> None:
    """No layout is below the bound of a search, wherever that is interrupted."""
    program, shapes = example("two_layer"), list(meshes(8, 2))
    pricer, known = LayoutPricer.of(program, SLOW_LINKS), [(shapes[0], Layout("none"))]
    step, forward, prices = pricer.undistributed(), program.function("forward"), list[float]()

    def interrupted(mesh: Mesh, layout: Layout) -> Price:
        if len(prices) == compiled:
            raise KeyboardInterrupt
        price = pricer(mesh, layout)
        prices.append(price.seconds)
        return price

    best = search(step, forward, shapes, SLOW_LINKS, pricer, process_time() + AMPLE, known=known)
    found = search(step, forward, shapes, SLOW_LINKS, interrupted, process_time() + AMPLE, known=known)
    assert found.is_interrupted == (best.evaluated > compiled)
    assert found.objective == min(prices)
    assert found.lower_bound <= best.objective


def test_fixed_rules_stay_if_no_layout_is_known() -> None:
    """Fixed rules stay, even if layouts without them are better."""
    program, mesh = example("two_layer"), Mesh("grid", (("rows", 2), ("cols", 4)))
    pricer, fixed = LayoutPricer.of(program, TORUS), Rules((("batch", ("rows",)),))
    step, forward = pricer.undistributed(), program.function("forward")
    free = search(step, forward, [mesh], TORUS, pricer, process_time() + AMPLE)
    found = search(step, forward, [mesh], TORUS, pricer, process_time() + AMPLE, fixed=fixed)
    assert free.layout.rules.get("batch") != ("rows",) == found.layout.rules.get("batch")
    assert found.is_optimal and free.objective < found.objective


def test_an_interrupt_before_anything_is_known() -> None:
    program, shapes = example("two_layer"), list(meshes(8, 1))
    pricer = LayoutPricer.of(program, SLOW_LINKS)

    def interrupted(mesh: Mesh, layout: Layout) -> Price:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        search(
            pricer.undistributed(),
            program.function("forward"),
            shapes,
            SLOW_LINKS,
            interrupted,
            process_time() + 9,
        )


def test_layouts_that_compile_to_one_program_are_compiled_once() -> None:
    """A reshape before a dot follows the dot, so both layouts give one program. Its price is that of a fresh pricer."""
    program, mesh = example("lenet"), Mesh("grid", (("x", 2), ("y", 2)))
    hardware = find_hardware("k80_cluster", {})
    pricer = LayoutPricer.of(program, hardware)
    rules = [(("batch", ("x", "y")),), (("batch", ("x", "y")), ("features", ("x",))), (("batch", ("x",)),)]
    every = [Layout(f"l{i}", Rules(each)) for i, each in enumerate(rules)]
    prices = [pricer(mesh, layout) for layout in every]
    assert prices == [LayoutPricer.of(program, hardware)(mesh, layout) for layout in every]
    assert len(pricer.alike) == len(set(prices)) == 2


def test_a_bound_has_as_much_as_time_allows() -> None:
    program, mesh = example("two_layer"), Mesh("grid", (("rows", 2), ("cols", 4)))
    pricer, space = LayoutPricer.of(program, TORUS), space_of(program.function("forward"))
    bound = LayoutBound(space, StepFacts.of(pricer.undistributed(), TORUS.device), mesh, TORUS)
    known = bound.known(layouts(space, mesh), frozenset(range(len(space.columns))))
    assert (bound.seconds(known, until=process_time() - 1) == 0).all()
    assert (bound.seconds(known, until=process_time() + AMPLE) == bound.seconds(known)).all()


@pytest.mark.parametrize(
    ("name", "hardware", "objective"),
    some(
        [
            (*case, objective)
            for case in (("two_layer", SLOW_LINKS), ("two_layer", TORUS), ("digits", TORUS))
            for objective in ("serial", "time", "memory")
        ],
        5,
    ),
)
def test_the_optimum_is_that_of_all_layouts(name: str, hardware: Hardware, objective: Objective) -> None:
    """Compile and price all legal layouts on all shapes of 8 devices."""
    program = example(name)
    pricer, forward = LayoutPricer.of(program, hardware), program.function("forward")
    shapes = list(meshes(8, 2))
    step, pricing, until = pricer.undistributed(), pricer, process_time() + AMPLE
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


def test_progress_ends_with_the_bound_at_the_best_cost() -> None:
    program, told = example("digits"), list[tuple[float, float]]()
    pricer, shapes = LayoutPricer.of(program, TORUS), list(meshes(8, 2))

    def progress(doing: str, best: float | None, bound: float | None) -> None:
        told.append((best if best is not None else np.inf, bound if bound is not None else 0.0))

    forward, until = program.function("forward"), process_time() + AMPLE
    with progress_to(progress):
        found = search(pricer.undistributed(), forward, shapes, TORUS, pricer, until)
    costs, bounds = zip(*told, strict=True)
    assert found.is_optimal and told[-1] == (found.objective, found.lower_bound)
    assert sorted(costs, reverse=True) == list(costs) and sorted(bounds) == list(bounds)
    assert len(set(bounds)) > 3


@pytest.mark.parametrize("name", some(["transformer_lm", "moe_lm", "alexnet"], 2))
def test_the_least_memory_of_large_models_is_proven(name: str) -> None:
    """The models include a mixture of experts and convolutions."""
    program, shapes = example(name), list(meshes(8, 2))
    pricer, forward = LayoutPricer.of(program, TORUS), program.function("forward")
    found = search(pricer.undistributed(), forward, shapes, TORUS, pricer, process_time() + AMPLE, "memory")
    assert found.is_optimal


def test_a_dive_ends_in_a_layout_that_fits() -> None:
    """Unsplit, this mixture of experts needs nearly twice the memory of a device."""
    program, mesh = example("moe_lm"), Mesh("grid", (("x", 8), ("y", 8), ("z", 8)))
    pricer, space = LayoutPricer.of(program, TORUS), space_of(program.function("forward"))
    bound = LayoutBound(space, StepFacts.of(pricer.undistributed(), TORUS.device), mesh, TORUS)
    on = Branching.on(bound, False, "time")
    rows = on.dive(process_time() + AMPLE).rows
    assert pricer(mesh, on.layout(rows[0])).memory < TORUS.device.memory < pricer(mesh, Layout("none")).memory


def test_a_layout_without_splittable_dimensions_has_no_neighbours() -> None:
    program, mesh = (
        load("model m(x: []) { param w: [] = ones(); y = x * w; return y }").programs[0],
        Mesh("one", ()),
    )
    pricer = LayoutPricer.of(program, SLOW_LINKS)
    step = StepFacts.of(pricer.undistributed(), SLOW_LINKS.device)
    space = space_of(program.function("forward"), storage=True)
    on = Branching.on(LayoutBound(space, step, mesh, SLOW_LINKS), False, "time")
    row = on.row(Rules())
    assert on.neighbours(row).tolist() == [row.tolist()]


def test_whole_layouts_wait_for_their_full_bounds() -> None:
    """Facts of a few layouts are found only when these are next: until then others may rule them out."""
    text = """\
dim batch = 8
dim io = 8
dim hidden = 8
mesh line = [rows: 2]
layout main on line = { batch: rows }
model m(x: [batch, io], y: [batch, hidden]) {
  z = einsum(shift(x, io, by = 1), shift(y, hidden, by = 1) -> [io, hidden])
  return z
}
"""
    module = load(text)
    program, mesh, until = module.programs[0], module.layouts[0].mesh, process_time() + AMPLE
    step = StepFacts.of(LayoutPricer.of(program, SLOW_LINKS).undistributed(), SLOW_LINKS.device)
    on = Branching.on(
        LayoutBound(space_of(program.function("forward")), step, mesh, SLOW_LINKS), False, "time"
    )
    block = on.start()
    while block.depth < len(on.order):
        block = on.children(block, np.inf, until)
    blocks = list(on.parts(block))
    assert len(step.found) == 1 < len(blocks)
    full = on.full(blocks[0], np.inf, until)
    assert len(step.found) == 2
    assert full.is_full and full.bounds.min() >= blocks[0].bounds.min()


def test_the_papers_layout_of_the_language_model_is_proven_best() -> None:
    """4.9 B parameters on 512 cores: no layout beats the one that section 9 of the Mesh-TensorFlow paper chose by hand."""
    module = load((ROOT / "examples" / "transformer_lm.mtf").read_text("utf-8"))
    papers = next(layout for layout in module.layouts if layout.name == "hybrid")
    program, shapes = module.programs[0], list(meshes(512, 3))
    pricer = LayoutPricer.of(program, TORUS)
    step, forward, known = pricer.undistributed(), program.function("forward"), [(papers.mesh, papers.layout)]
    found = search(step, forward, shapes, TORUS, pricer, process_time() + AMPLE, known=known)
    assert found.is_optimal
    assert (found.mesh, found.layout.rules) == (papers.mesh, papers.layout.rules)
    assert found.evaluated < 20


@pytest.mark.parametrize("objective", ["time", "memory"])
def test_the_optimum_over_storage_too(objective: Objective) -> None:
    program, mesh = example("two_layer"), Mesh("grid", (("rows", 2), ("cols", 4)))
    pricer, forward = LayoutPricer.of(program, SLOW_LINKS), program.function("forward")
    step, until = pricer.undistributed(), process_time() + AMPLE
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
def test_xla_sends_the_predicted_bytes(name: str, hardware: Hardware) -> None:
    """A memory too small for all parameters makes the search split them."""
    program = example(name)
    whole = LayoutPricer.of(program, hardware)(Mesh("one", ()), Layout("none")).memory
    small = attrs.evolve(hardware, device=attrs.evolve(hardware.device, memory=whole / 4))
    pricer = LayoutPricer.of(program, small)
    forward = program.function("forward")
    found = search(pricer.undistributed(), forward, list(meshes(8, 2)), small, pricer, process_time() + AMPLE)
    assert found.is_optimal
    placed = lower(program, found.mesh, found.layout)
    compiled = jax_runtime.lowered(placed, "step").compile(compiler_options=AS_WRITTEN)
    sent = sum(kind["bytes_per_device"] for kind in hlo.collectives(compiled.as_text()).values())
    priced = charges(pricer.lowered(found.mesh, found.layout), Numbers(found.mesh))
    assert sent == total(priced).sent.bytes > 0
