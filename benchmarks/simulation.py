"""Compare the NumPy backend's simulation of 512 processors with the undistributed step of the same program."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np

from benchmarks.figures import Figure, median_ratio
from mtfc.backends.numpy import backend as numpy_backend
from mtfc.compiler.diagnostics import Diagnostics
from mtfc.compiler.ir.core import Program
from mtfc.compiler.ir.types import Layout, Mesh, Rules
from mtfc.compiler.passes import pipelines
from mtfc.frontend.elaborate import elaborate
from mtfc.frontend.syntax.parser import parse

DIMS = {"batch": 4096, "io": 1024, "hidden": 4096}
RUNS = 5
EXAMPLE = Path(__file__).parent.parent / "examples" / "two_layer.mtf"


def two_layer(dims: dict[str, int]) -> Program:
    diagnostics = Diagnostics()
    module = elaborate(parse(EXAMPLE.read_text(), str(EXAMPLE), diagnostics), diagnostics, dims=dims)
    diagnostics.raise_if_errors()
    return module.programs[0]


def training_step(program: Program, mesh: Mesh, layout: Layout) -> Callable[[], object]:
    """Return a function that runs one step of the generated module on random data."""
    module = numpy_backend.load(numpy_backend.generate(pipelines.lower(program, mesh, layout)))
    random = np.random.default_rng(0)
    shapes = {a.value.name: a.value.type for a in program.function("forward").arguments if a.role == "input"}
    arrays = {
        name: random.standard_normal([dim.size for dim in type.dims]).astype(np.float32)
        for name, type in shapes.items()
    }
    params, inputs = module.init(), module.shard(arrays, module.INPUTS)
    return lambda: module.train_step(params, {}, inputs, 0)


def figures() -> Iterator[Figure]:
    program = two_layer(DIMS)
    mesh = Mesh("mesh", (("rows", 32), ("cols", 16)))
    rules = Rules((("batch", ("rows",)), ("hidden", ("cols",))))
    simulated = training_step(program, mesh, Layout("hybrid", rules))
    undistributed = training_step(program, Mesh("one", ()), Layout("undistributed"))
    many, one, ratio = median_ratio(simulated, undistributed, RUNS)
    yield Figure("two-layer step, undistributed", one, "s")
    yield Figure("two-layer step, 512 processors simulated", many, "s")
    yield Figure("512 processors over undistributed", ratio, "", 3.0)
