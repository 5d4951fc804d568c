"""Test that the network of choices predicts the cost of compiled layouts, and that the solver finds its best choice."""

from collections.abc import Collection, Sequence
from itertools import product
from time import monotonic, process_time
from typing import Any

import attrs
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mtfc.backends import hlo
from mtfc.backends.interpreter import interpret
from mtfc.backends.jax import runtime as jax_runtime
from mtfc.compiler.activity import progress_to
from mtfc.compiler.analysis.reshard_plans import plan
from mtfc.compiler.cost.hardware import Device, Hardware, Link, Rate
from mtfc.compiler.cost.sizes import Numbers
from mtfc.compiler.cost.step_time import seconds_of
from mtfc.compiler.cost.tables.reshard_costs import Conversions
from mtfc.compiler.cost.topology import Topology
from mtfc.compiler.cost.volumes import charges, total
from mtfc.compiler.ir.core import Function
from mtfc.compiler.ir.types import Dim, Layout, Mesh, Rules, TensorType
from mtfc.compiler.passes.pipelines import lower
from mtfc.compiler.search.found import Found, NothingFits, Objective, Pricing
from mtfc.compiler.search.global_layouts.step_facts import StepFacts
from mtfc.compiler.search.per_equation.per_equation_search import (
    EquationSpace,
    best_layouts,
    fix,
    layout_of_choices,
    solve_with_memory,
    to_problem,
    unit_of,
)
from mtfc.compiler.search.pricer import LayoutPricer
from mtfc.compiler.search.solver.assignment_problem import Infeasible
from mtfc.driver.loading.layout_targets import prepared
from tests.generators.programs import Generated, programs
from tests.harness import AMPLE, call, differentiated, exact_data, jax_module, load, numpy_module, tolerance
from tests.properties.test_jax import AS_WRITTEN
from tests.search.equation_networks import bytes_of, compiled, example, machine, network_of
from tests.search.layout_bounds import SLOW_TPU

SQUARE = Mesh("square", (("rows", 2), ("cols", 2)))


def search(
    step: Function,
    splittable: Collection[str],
    meshes: Sequence[Mesh],
    hardware: Hardware,
    pricing: Pricing,
    until: float,
    objective: Objective = "serial",
    **others: Any,
) -> Found:
    """Return the best layouts of an `EquationSpace`. others: known layouts."""
    return EquationSpace(step, splittable, meshes, hardware, objective).best(pricing, until, **others)


@given(
    st.lists(st.sampled_from((2, 4, 6, 8, 12)), min_size=1, max_size=3),
    st.sampled_from(((2, 2), (2, 4), (3, 2))),
)
def test_a_conversion_costs_the_bytes_that_the_compiler_sends(
    sizes: list[int], shape: tuple[int, int]
) -> None:
    mesh = Mesh("grid", (("rows", shape[0]), ("cols", shape[1]), ("unit", 1)))
    type = TensorType("f32", tuple(Dim(f"d{i}", size) for i, size in enumerate(sizes)))
    found = Conversions(mesh, lambda step: step.bytes_sent(mesh)).of(type)
    for source, target in product(found.types, repeat=2):
        cost = found.costs[found.numbers[source], found.numbers[target]]
        if set(target.pending) <= set(source.pending):
            assert cost == pytest.approx(plan(source, target, mesh)[0])
        else:
            assert np.isinf(cost)


NETWORKS = (
    ("soybean_mlp_8k", {"layers": 2}, (("groups", 2), ("gpus", 4)), "p2_8xlarge"),
    ("rnnlm", {"length": 4}, (("gpus", 4),), "p100_cluster"),
    ("alexnet", {}, (("gpus", 8),), "p2_8xlarge"),
)
LLAMA = ("llama", {"batch": 8}, (("gpus", 8),), "h100")
"""In its loops each device has a shard of some weights, which are gathered for dots; other weights are copied."""


@pytest.mark.parametrize(("name", "dims", "axes", "target"), (*NETWORKS, LLAMA), ids=str)
def test_the_compiled_choice_costs_its_predicted_time(
    name: str, dims: dict[str, int], axes: tuple[tuple[str, int], ...], target: str
) -> None:
    program, mesh, hardware = example(name, **dims), Mesh("grid", axes), machine(target)
    found = best_layouts(network_of(program, mesh, hardware), hardware.device.memory, monotonic() + AMPLE)
    assert found.objective - found.lower_bound < 1e-6 * found.objective
    topology = Topology.of(mesh, hardware)
    assert sum(seconds_of(compiled(program, mesh, found.layout), topology, hardware.device)) == pytest.approx(
        found.objective, rel=0.005
    )
    for rules in ({"batch": mesh.names}, {}):
        other = compiled(program, mesh, Layout("other", Rules(tuple(rules.items()))))
        assert sum(seconds_of(other, topology, hardware.device)) > found.objective


@pytest.mark.parametrize(
    ("name", "target", "devices", "bound"),
    [("lenet", "p100_cluster", 4, 0.545), ("alexnet", "h100", 8, 0.98)],
)
def test_proofs_hold_for_the_compiled_program(name: str, target: str, devices: int, bound: float) -> None:
    """A compiled program that differs from the network is not called optimal.

    LeNet's small all-reduces travel together, so data parallelism takes less than the solver's bound. The best per-equation
    layouts of AlexNet on H100s take longer than the solver says.
    """
    program, hardware, line = example(name), machine(target), Mesh("line", (("gpus", devices),))
    data = Layout("data", Rules((("batch", line.names), ("samples", line.names))))
    pricing = LayoutPricer.of(program, hardware)
    known, dims = [(line, data)], set(program.dims)
    found = search(prepared(program), dims, [line], hardware, pricing, monotonic() + AMPLE, known=known)
    assert found.objective == pytest.approx(pricing(line, found.layout).serial, rel=1e-9)
    assert found.lower_bound / found.objective == pytest.approx(bound, rel=0.02)
    assert not found.is_optimal and not found.refuted


NEGATED = """\
dim batch = 2
dim io = 2
model m(x: f32[batch, io]) {
  h = -x
  return h
}
"""
FACTORED = """\
dim batch = 2
dim io = 2
model m() {
  param w: f32[batch, io] = normal(stddev = 0.5)
  loss = mean(square(-w)) + sum(w)
  return loss
}
train m {
  minimize loss
  optimizer = adafactor(learning_rate = 0.25)
}
"""


@pytest.mark.parametrize("text", [NEGATED, FACTORED])
def test_nothing_is_below_the_bound_where_programs_lie_in_the_processors_own_memory(text: str) -> None:
    """Some split programs take less there than the solver says: a slice may already be in the scratchpad."""
    (program,), line = load(text).programs, Mesh("line", (("rows", 2),))
    pricing = LayoutPricer.of(program, SLOW_TPU)
    found = search(prepared(program), {"batch", "io"}, [line], SLOW_TPU, pricing, monotonic() + AMPLE)
    assert not found.refuted
    for dims in ({}, {"batch": ("rows",)}, {"io": ("rows",)}):
        price = pricing(line, Layout("other", Rules(tuple(dims.items()))))
        assert price.seconds >= found.lower_bound * (1 - 1e-9)


@pytest.mark.parametrize("target", ["tpu_v4", "tpu_v5e", "tpu_v5p", "tpu_v6e"])
def test_elementwise_operands_of_a_dot_are_split_like_the_dot(target: str) -> None:
    """The kernel reads most bytes of the smaller operand."""
    text = """\
dim batch = 128
dim io = 1024
dim hidden = 4096
model m(x: [batch, io], w: [io, hidden]) {
  y = einsum(x, relu(w) -> [batch, hidden])
  z = sum(y)
  return y, z
}
"""
    (program,), hardware, line = load(text).programs, machine(target), Mesh("line", (("rows", 8),))
    pricing = LayoutPricer.of(program, hardware)
    found = search(prepared(program), set(program.dims), [line], hardware, pricing, monotonic() + AMPLE)
    split = pricing(line, Layout("split", Rules((("hidden", ("rows",)),))))
    assert found.lower_bound <= split.seconds
    assert pricing(line, found.layout).serial <= 1.001 * split.serial


@pytest.mark.parametrize("memory", [390e3, 427e3, 430e3, 600e3])
def test_the_compiled_result_fits_into_memory(memory: float) -> None:
    """The copy of a reshard takes memory that the solver does not count.

    For a little less than 427,008 bytes the solver finds layouts that need all of them.
    """
    program, mesh = example("two_layer"), Mesh("line", (("gpus", 4),))
    device = attrs.evolve(SLOW_DEVICES.device, memory=memory)
    hardware = attrs.evolve(SLOW_DEVICES, device=device)
    pricing = LayoutPricer.of(program, hardware)
    asked = prepared(program), set(program.dims), [mesh], hardware, pricing, monotonic() + AMPLE
    try:
        found = search(*asked)
    except NothingFits:
        assert memory < 430e3
    else:
        assert pricing(mesh, found.layout).tiled <= memory


def test_data_parallelism_can_be_best_if_communication_overlaps() -> None:
    """AlexNet at batch 1024: its communication hides behind the backward pass, and the layouts that send less compute longer."""
    program, hardware = example("alexnet", batch=1024), machine("p2_8xlarge")
    line = Mesh("line", (("gpus", 8),))
    pricer = LayoutPricer.of(program, hardware)
    rules = (("batch", line.names), ("samples", line.names))
    data_parallel = pricer(line, Layout("data", Rules(rules)))
    for objective, factor in (("serial", 1.04), ("time", 1.0001)):
        found = search(
            prepared(program),
            set(program.dims),
            [line],
            hardware,
            pricer,
            monotonic() + AMPLE,
            objective,
        )
        overlapping = pricer(line, found.layout).seconds
        assert overlapping / data_parallel.seconds == pytest.approx(factor, rel=0.02)
        assert found.lower_bound <= found.objective
    assert 0.9 * overlapping < found.lower_bound < data_parallel.seconds


@settings(max_examples=20)
@given(programs(), st.integers(0, 2**16))
def test_compiled_equation_layouts_send_no_more_than_predicted(generated: Generated, seed: int) -> None:
    """The compiler sends no more bytes than the network predicts, because it completes sums at the cheapest place."""
    (program,) = load(generated.source).programs
    network = network_of(program, generated.mesh)
    random = np.random.default_rng(seed)
    sent_by = [node.costs for node in network.nodes]
    for node in network.nodes:  # any prices of equations, so that one of many tilings is the best
        node.costs = node.costs + random.integers(0, 1000, len(node.costs))
    solution = solve_with_memory(to_problem(network, 1.0, None, "random"), monotonic() + AMPLE)
    chosen = zip(network.nodes, sent_by, solution.choices, strict=True)
    priced = solution.cost - sum(float((node.costs - sent)[choice]) for node, sent, choice in chosen)
    layout = layout_of_choices(network, solution.choices, "random")
    sent = bytes_of(compiled(program, generated.mesh, layout).body, generated.mesh)
    assert sent <= priced + 1e-6


def test_memory_limits_what_is_chosen() -> None:
    """With enough memory the search finds the fastest layouts; with less memory, slower layouts that fit."""
    program, hardware = example("soybean_mlp_8k", layers=2), machine("p2_8xlarge")
    network = network_of(program, Mesh("line", (("gpus", 4),)), hardware)
    fastest = best_layouts(network, None, monotonic() + AMPLE)
    problem = to_problem(network, unit_of(network), None, "unlimited")
    needed = problem.peak(solve_with_memory(problem, monotonic() + AMPLE).choices)
    again = best_layouts(network, needed, monotonic() + AMPLE)
    assert again.objective == fastest.objective
    smaller = best_layouts(network, needed - 1, monotonic() + AMPLE)
    assert smaller.layout != fastest.layout
    assert fastest.objective <= smaller.lower_bound <= smaller.objective
    with pytest.raises(Infeasible):
        best_layouts(network, 1e6, monotonic() + AMPLE)


def test_one_of_the_choices_of_an_equation_is_the_best() -> None:
    """Force each layout of one equation: the cheapest result has the cost of the search's best layouts."""
    mesh, hardware = Mesh("line", (("gpus", 4),)), machine("p2_8xlarge")
    program = example("two_layer")
    free = best_layouts(network_of(program, mesh, hardware), None, monotonic() + AMPLE)
    costs = []
    for rules in ({}, {"batch": ("gpus",)}, {"io": ("gpus",)}, {"hidden": ("gpus",)}):
        network = network_of(program, mesh, hardware)
        fix(network, "forward.y", Rules(tuple(rules.items())))
        found = best_layouts(network, None, monotonic() + AMPLE)
        assert dict(found.layout.value_rules["forward.y"].axes) == rules
        costs.append(found.objective)
    assert min(costs) == free.objective < max(costs)
    with pytest.raises(NothingFits, match=r"forward\.y"):
        fix(network_of(program, mesh, hardware), "forward.y", Rules((("batch", ("nodes",)),)))


SLOW_DEVICES = Hardware(
    "slow_devices",
    Device({"f32": Rate.constant(1e8)}, 1e12, Rate.constant(1e12), 1e-7),
    (Link("net", "switch", (), Rate.constant(1e9), 1e-6),),
)
"""A machine on which even small work is worth dividing."""


@pytest.mark.parametrize(
    ("name", "dims"), [("two_layer", {}), ("soybean_mlp", {"batch": 8, "units": 16, "layers": 2})]
)
def test_xla_sends_the_predicted_bytes_of_equation_layouts_and_computes_the_same(
    name: str, dims: dict[str, int]
) -> None:
    program, mesh = example(name, **dims), Mesh("grid", (("rows", 2), ("cols", 4)))
    found = best_layouts(network_of(program, mesh, SLOW_DEVICES), None, monotonic() + AMPLE)
    lowered = lower(program, mesh, found.layout)
    text = jax_runtime.lowered(lowered, "step").compile(compiler_options=AS_WRITTEN).as_text()
    sent = sum(kind["bytes_per_device"] for kind in hlo.collectives(text).values())
    assert sent == total(charges(lowered.function("step"), Numbers(mesh))).sent.bytes > 0
    original = differentiated(program, "step")
    arrays = exact_data(original.function("step"), seed=7)
    expected = interpret(original.function("step"), original, arrays)
    for backend in (numpy_module(lowered), jax_module(lowered)):
        tolerance(program).check(call(backend, lowered.function("step"), arrays), expected, name)


@pytest.mark.parametrize("axes", [5, 6])
def test_a_mesh_of_many_axes_ends_in_time_with_what_is_known(axes: int) -> None:
    """Finding all choices on five axes takes a minute."""
    mesh = Mesh("many", tuple((f"axis{i}", 2) for i in range(axes)))
    program, hardware = example("soybean_mlp_8k", layers=2), machine("k80_cluster")
    pricing = LayoutPricer.of(program, hardware)
    known, dims, started = [(mesh, Layout("known"))], set(program.dims), process_time()
    found = search(prepared(program), dims, [mesh], hardware, pricing, monotonic() + 1, known=known)
    assert process_time() - started < 8
    assert found.layout == Layout("found") and 0 < found.lower_bound < found.objective


@pytest.mark.parametrize(("name", "dims", "axes", "target"), NETWORKS)
def test_no_tiling_is_below_the_least_seconds(
    name: str, dims: dict[str, int], axes: tuple[tuple[str, int], ...], target: str
) -> None:
    """The bound of all plans is known before any choice; a step on a slow device takes little longer."""
    program, mesh = example(name, **dims), Mesh("mesh", axes)
    slow = attrs.evolve(SLOW_DEVICES.device, overhead=0.0, bandwidth=Rate.constant(1e18))
    for hardware in (machine(target), attrs.evolve(SLOW_DEVICES, device=slow)):
        least = StepFacts.of(prepared(program), hardware.device).least_seconds(mesh.devices)
        found = best_layouts(network_of(program, mesh, hardware), None, monotonic() + AMPLE)
        assert 0 < least <= found.objective
        assert hardware.name != SLOW_DEVICES.name or found.objective < 1.01 * least


def test_a_loop_may_begin_with_a_maximum() -> None:
    """The carry may hold a pending sum, and its first value may not."""
    (program,) = load("""
dim batch = 4
dim io = 8
dim steps = 2
model m(x: [batch, io]) {
  param v: [batch, io] = normal(stddev = 0.5)
  h = max(v * x -> [io])
  repeat steps { h = 0.5 * h + einsum(v, x -> [io]) }
  y = sum(h * h)
  return y
}
""").programs
    mesh, hardware = Mesh("line", (("gpus", 4),)), machine("p2_8xlarge")
    found = best_layouts(network_of(program, mesh, hardware), None, monotonic() + AMPLE)
    seconds = seconds_of(compiled(program, mesh, found.layout), Topology.of(mesh, hardware), hardware.device)
    assert sum(seconds) == pytest.approx(found.objective, rel=0.005)


def test_an_interrupted_search_says_so() -> None:
    program, hardware = example("two_layer"), machine("k80_cluster")
    pricing, mesh = LayoutPricer.of(program, hardware), SQUARE

    def interrupt(*told: object) -> None:
        raise KeyboardInterrupt

    asked = prepared(program), set(program.dims), [mesh], hardware, pricing, monotonic() + AMPLE
    with progress_to(interrupt):
        found = search(*asked, known=[(mesh, Layout("known"))])
    assert found.is_interrupted and found.layout == Layout("found")
    assert not search(*asked, known=[(mesh, Layout("known"))]).is_interrupted


def test_without_time_nothing_is_split() -> None:
    """Without a known layout the search returns one all the same, and does not complain about memory."""
    program, hardware = example("two_layer"), machine("k80_cluster")
    pricing = LayoutPricer.of(program, hardware)
    found = search(prepared(program), set(program.dims), [SQUARE], hardware, pricing, monotonic())
    assert found.layout == Layout("found") and not found.is_optimal
    assert found.objective == pricing(SQUARE, Layout("none")).serial
