"""SoyBean's experiments (arXiv:1805.04170, sections 6.2 and 6.4) in simulated time, on the GPUs of a p2.8xlarge.

Figure 8: a perceptron of four layers under data parallelism, model parallelism and the best tiling, on 2, 4 and 8 GPUs. Figure 9:
a convolutional network of five layers. Figure 10: the speed-up of AlexNet and VGG-16 on 8 GPUs over the best throughput of one. A
parameter server stands beside data parallelism. `SOYBEAN` in the environment selects cases, as in `SOYBEAN="8a 9b"`.

`python -m benchmarks.plots soybean speedups` draws the figures.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from functools import cache
from time import monotonic

import attrs

from benchmarks.figures import Figure
from benchmarks.tiling import data_parallel, example
from mtfc.compiler.cost.hardware import Hardware
from mtfc.compiler.cost.step_time import IN, StepTime, step_time
from mtfc.compiler.cost.topology import Topology
from mtfc.compiler.ir.core import Program
from mtfc.compiler.ir.types import Forms, Layout, Mesh, Rules
from mtfc.compiler.passes.pipelines import lower
from mtfc.compiler.search.per_equation.k_cuts import prime_factors
from mtfc.compiler.search.per_equation.per_equation_search import best_layouts, timed_network
from mtfc.driver.loading.layout_targets import prepared
from mtfc.frontend.hardware_targets import find_hardware

GPUS = (2, 4, 8)
BATCHES = (64, 128, 256, 512, 1024)
BUDGET = 20.0
"""Seconds for the search of a tiling."""


@attrs.frozen
class Case:
    """A figure of the paper: a file of `examples/`, its sizes, and the dimension that model parallelism splits."""

    network: str
    sizes: Mapping[str, int]
    model: str


CASES = {
    "8a": Case("soybean_mlp_8k", {"batch": 512, "units": 8192}, "units"),
    "8b": Case("soybean_mlp_8k", {"batch": 2048, "units": 8192}, "units"),
    "8c": Case("soybean_mlp_8k", {"batch": 2048, "units": 12288}, "units"),
    "9a": Case("soybean_cnn", {"height": 6, "width": 6, "channels": 2048}, "channels"),
    "9b": Case("soybean_cnn", {"height": 24, "width": 24, "channels": 512}, "channels"),
}

SERVER, DATA, MODEL, TILING = "parameter server", "data parallelism", "model parallelism", "tiling"


def machine() -> Hardware:
    """Return the machine of the paper, memory aside."""
    found = find_hardware("p2_8xlarge", {})
    return attrs.evolve(found, device=attrs.evolve(found.device, memory=1e15))


def line(gpus: int) -> Mesh:
    return Mesh("line", (("gpus", gpus),))


def with_server(program: Program, mesh: Mesh, hardware: Hardware) -> StepTime:
    """Simulate data parallelism with one parameter server, which takes the gradients of all layers after the backward pass."""
    layout = attrs.evolve(data_parallel(mesh), forms=Forms(sums="after"))
    step = step_time(lower(program, mesh, layout).function("step"), mesh, hardware, servers=1)
    assert IN in step.busy, "the server has nothing to do"
    return step


def tiling(program: Program, gpus: int, budget: float = BUDGET) -> StepTime:
    """Simulate the best tiling on the mesh whose axes are the prime factors of the number of GPUs."""
    hardware = machine()
    mesh = Mesh("cuts", tuple((f"cut{i}", size) for i, size in enumerate(prime_factors(gpus))))
    topology = Topology.of(mesh, hardware)
    network = timed_network(prepared(program), topology, hardware.device, set(program.dims))
    found = best_layouts(network, None, monotonic() + budget)
    return step_time(lower(program, mesh, found.layout).function("step"), mesh, hardware)


@cache
def steps(name: str, gpus: int) -> dict[str, StepTime]:
    """Return the simulated steps of a case under each strategy."""
    case, mesh, hardware = CASES[name], line(gpus), machine()
    program = example(case.network, **case.sizes)
    data = lower(program, mesh, data_parallel(mesh)).function("step")
    model = Layout("model", Rules(((case.model, mesh.names),)))
    return {
        SERVER: with_server(program, mesh, hardware),
        DATA: step_time(data, mesh, hardware),
        MODEL: step_time(lower(program, mesh, model).function("step"), mesh, hardware),
        TILING: tiling(program, gpus),
    }


@cache
def speed_ups(network: str) -> dict[str, dict[int, float]]:
    """Return the throughput on 8 GPUs by batch over the best throughput of one GPU, for each strategy (Figure 10)."""
    hardware, mesh, one = machine(), line(8), Mesh("one", ())
    throughput: dict[str, dict[int, float]] = {SERVER: {}, DATA: {}, TILING: {}}
    single = 0.0
    for batch in BATCHES:
        program = example(network, batch=batch)
        alone = lower(program, one, Layout("one")).function("step")
        single = max(single, batch / step_time(alone, one, hardware).seconds)
        data = lower(program, mesh, data_parallel(mesh)).function("step")
        throughput[SERVER][batch] = batch / with_server(program, mesh, hardware).seconds
        throughput[DATA][batch] = batch / step_time(data, mesh, hardware).seconds
        found = best_on_line(program)
        throughput[TILING][batch] = batch / found.seconds
    return {
        name: {batch: each / single for batch, each in found.items()} for name, found in throughput.items()
    }


@cache
def by_gpus(network: str, batch: int = 256) -> dict[str, dict[int, float]]:
    """Return the throughput over that of one GPU by the number of GPUs, for data parallelism and the best tiling."""
    hardware, one, program = machine(), Mesh("one", ()), example(network, batch=batch)
    single = step_time(lower(program, one, Layout("one")).function("step"), one, hardware).seconds
    found: dict[str, dict[int, float]] = {DATA: {}, TILING: {}}
    for gpus in GPUS:
        data = lower(program, line(gpus), data_parallel(line(gpus))).function("step")
        found[DATA][gpus] = single / step_time(data, line(gpus), hardware).seconds
        found[TILING][gpus] = single / best_on_line(program, gpus).seconds
    return found


def best_on_line(program: Program, gpus: int = 8) -> StepTime:
    """Simulate the best tiling on a mesh of one axis."""
    hardware, mesh = machine(), line(gpus)
    topology = Topology.of(mesh, hardware)
    network = timed_network(prepared(program), topology, hardware.device, set(program.dims))
    found = best_layouts(network, None, monotonic() + BUDGET)
    return step_time(lower(program, mesh, found.layout).function("step"), mesh, hardware)


def figures() -> Iterator[Figure]:
    wanted = set(os.environ.get("SOYBEAN", "").split())
    for name in CASES:
        for gpus in GPUS if not wanted or name in wanted else ():
            for strategy, step in steps(name, gpus).items():
                where = f"Figure {name}, {gpus} GPUs, {strategy}"
                yield Figure(f"{where}: computation", 1e3 * step.total.compute, "ms")
                yield Figure(f"{where}: waits for communication", 1e3 * step.total.exposed, "ms")
    for network in ("alexnet", "vgg16"):
        if not wanted or network in wanted:
            for strategy, found in speed_ups(network).items():
                for batch, each in found.items():
                    yield Figure(f"Figure 10, {network}, batch {batch}, {strategy}", each, "x")
            for strategy, found in by_gpus(network).items():
                for gpus, each in found.items():
                    yield Figure(f"{network}, batch 256, {gpus} GPUs, {strategy}", each, "x")
