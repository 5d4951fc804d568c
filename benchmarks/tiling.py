"""The search for tilings: its time, the gap to its bound, and the gains of tilings in simulated time (SoyBean, section 6.4)."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from time import monotonic

import attrs

from benchmarks.figures import Figure
from mtfc.compiler.cost.hardware import Hardware
from mtfc.compiler.cost.step_time import seconds_of, step_time
from mtfc.compiler.cost.topology import Topology
from mtfc.compiler.diagnostics import Diagnostics
from mtfc.compiler.ir.core import Function, Program
from mtfc.compiler.ir.types import Layout, Mesh, Rules
from mtfc.compiler.passes.pipelines import lower
from mtfc.compiler.search.found import Found
from mtfc.compiler.search.per_equation.per_equation_search import (
    EquationSpace,
    best_layouts,
    timed_network,
)
from mtfc.compiler.search.pricer import LayoutPricer
from mtfc.driver.loading.layout_targets import prepared
from mtfc.frontend.elaborate import elaborate
from mtfc.frontend.hardware_targets import find_hardware
from mtfc.frontend.syntax.parser import parse

EXAMPLES = Path(__file__).parent.parent / "examples"

BUDGET = 60.0
"""Seconds that a search may take."""

LINE = Mesh("line", (("gpus", 8),))
GRID = Mesh("grid", (("pairs", 2), ("gpus", 4)))
ROOM = 1e15
"""Bytes that suffice for every program."""

BATCHES = (64, 128, 256, 512, 1024, 2048)


def example(name: str, **dims: int) -> Program:
    diagnostics = Diagnostics()
    path = EXAMPLES / f"{name}.mtf"
    module = elaborate(parse(path.read_text(), str(path), diagnostics), diagnostics, dims=dims)
    diagnostics.raise_if_errors()
    return module.programs[0]


def found(program: Program, mesh: Mesh, hardware: Hardware, memory: float | None) -> Found:
    topology = Topology.of(mesh, hardware)
    network = timed_network(prepared(program), topology, hardware.device, set(program.dims))
    return best_layouts(network, memory, monotonic() + BUDGET)


def overlapped(program: Program, mesh: Mesh, hardware: Hardware) -> Found:
    """Return the best tiling with overlap, memory aside."""
    hardware = attrs.evolve(hardware, device=attrs.evolve(hardware.device, memory=ROOM))
    pricer, until = LayoutPricer.of(program, hardware), monotonic() + BUDGET
    dims = set(program.dims)
    space = EquationSpace(prepared(program), dims, [mesh], hardware, "time")
    return space.best(pricer, until)


def step(program: Program, mesh: Mesh, layout: Layout) -> Function:
    return lower(program, mesh, layout).function("step")


def data_parallel(mesh: Mesh) -> Layout:
    """Return data parallelism; the examples have a batch dimension of its own for dense layers."""
    return Layout("data", Rules((("batch", mesh.names), ("samples", mesh.names))))


def figures() -> Iterator[Figure]:
    yield from llama()
    yield from speed_ups("alexnet", 1 / 1.5)
    yield from speed_ups("vgg16", None)


def llama() -> Iterator[Figure]:
    """Yield the figures of 32 layers, 8.03 billion parameters, 64 sequences of 8192 tokens, on 8 nodes of 8 GPUs."""
    program, mesh, hardware = (
        example("llama"),
        Mesh("grid", (("nodes", 8), ("gpus", 8))),
        find_hardware("h100", {}),
    )
    started = monotonic()
    best = found(program, mesh, hardware, hardware.device.memory)
    yield Figure(
        "Llama 8B, 64 H100, gradients and update: tiling found and bounded", monotonic() - started, "s", 20.0
    )
    yield Figure(
        "  gap between its cost and the bound", 100 * (1 - best.lower_bound / best.objective), "%", 1.0
    )
    yield Figure("  its step, nothing overlapping", best.objective, "s")
    compiled = step(program, mesh, best.layout)
    seconds = sum(seconds_of(compiled, Topology.of(mesh, hardware), hardware.device))
    yield Figure("  the same of the compiled program, over that", seconds / best.objective, "", 1.01)
    yield Figure("  its step, simulated", step_time(compiled, mesh, hardware).seconds, "s")
    other = step_time(step(program, mesh, data_parallel(mesh)), mesh, hardware).seconds
    yield Figure("  data parallelism's, simulated (does not fit the memory)", other, "s")


KINDS = {"data": "data parallelism", "tiling": "tiling", "overlap": "tiling, --objective time"}


def speed_ups(name: str, limit: float | None) -> Iterator[Figure]:
    """Yield SoyBean's Figure 10: throughput on 8 GPUs over the largest on one, memory aside; and the steps at batch 256."""
    hardware, one = find_hardware("p2_8xlarge", {}), Mesh("one", ())
    throughput: dict[str, dict[int, float]] = {kind: {} for kind in ("one", *KINDS)}
    apart: dict[int, float] = {}
    for batch in BATCHES:
        program = example(name, batch=batch)
        tiling = found(program, LINE, hardware, None)
        layouts = {
            "one": (one, Layout("one")),
            "data": (LINE, data_parallel(LINE)),
            "tiling": (LINE, tiling.layout),
            "overlap": (LINE, overlapped(program, LINE, hardware).layout),
        }
        alone = {}
        for kind, (mesh, layout) in layouts.items():
            compiled = step(program, mesh, layout)
            throughput[kind][batch] = batch / step_time(compiled, mesh, hardware).seconds
            alone[kind] = sum(seconds_of(compiled, Topology.of(mesh, hardware), hardware.device))
        apart[batch] = alone["data"] / alone["tiling"]
    single = max(throughput["one"].values())
    for batch in BATCHES:
        for kind, what in KINDS.items():
            value = throughput[kind][batch] / single
            yield Figure(f"{name}, batch {batch}, 8 GPUs of p2.8xlarge: {what} over one GPU", value, "x")
        yield Figure("  tiling over data parallelism, nothing overlapping", apart[batch], "x")
    program = example(name, batch=256)
    for mesh in (LINE, GRID):
        best = found(program, mesh, hardware, None)
        seconds = step_time(step(program, mesh, best.layout), mesh, hardware).seconds
        ratio = seconds * throughput["data"][256] / 256
        yield Figure(f"{name}, batch 256, mesh {mesh.name}: step over data parallelism's", ratio, "", limit)
