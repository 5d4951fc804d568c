"""Communication of XLA's automatic partitioner (GSPMD) beside that of mtfc, for the same step under the same layout.

GSPMD is given the undistributed program that mtfc makes of the file, its gradients included, as plain JAX under
`jax.jit`, and where each argument and result is placed; in a second run also a constraint for every value of the step,
as someone writes them who annotates everything. What is compared is in the HLO: the bytes that each device hands to
collectives. XLA on a CPU adds up `bf16` in `f32`.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import suppress
from multiprocessing import get_context
from typing import Any

import attrs

from benchmarks.figures import Figure
from benchmarks.steps import Case
from mtfc.backends.common.devices import Unavailable, devices, import_jax
from mtfc.backends.common.emitter import Emitter
from mtfc.backends.hlo import collectives
from mtfc.backends.jax import backend as jax_backend
from mtfc.backends.jax import runtime as jax_runtime
from mtfc.backends.jax import tpu_topologies
from mtfc.backends.jax.convolution_fusion import fused
from mtfc.compiler.ir.core import Program, Value
from mtfc.compiler.ir.types import ARRAY_DTYPES

SMALL_LLAMA = (("layers", 4), ("length", 1024), ("batch", 16))

CASES = (
    ("v5e:2x4", Case("digits", "image_split")),
    ("v5e:2x4", Case("rnnlm", "hybrid", "nodes:2;gpus:4", (("length", 10),))),
    ("v5e:2x4", Case("unet", "tiles", "rows:2;cols:4")),
    ("v5e:2x4", Case("unet", "channels", "rows:2;cols:4")),
    ("v5e:2x4", Case("alexnet", "hybrid")),
    ("v5e:2x4", Case("vgg16", "hybrid")),
    ("v5e:2x4", Case("moe_lm", "expert_parallel")),
    ("v5e:2x4", Case("moe_lm", "hybrid", "rows:4;cols:2")),
    ("v5e:2x4", Case("llama", "tensor_parallel", "data:4;model:2", SMALL_LLAMA)),
    ("v5e:2x4", Case("llama", "fsdp", "data:4;model:2", SMALL_LLAMA)),
    ("v2:16x16", Case("transformer_seq2seq", "hybrid")),
    ("v2:16x16", Case("transformer_lm", "hybrid")),
)
"""The TPUs that the TPU compiler compiles for, and the compiled examples."""


def figures() -> Iterator[Figure]:
    """Yield the figures of XLA for CPUs, and with libtpu those of the TPU compiler, whose passes improve GSPMD's collectives."""
    with ProcessPoolExecutor(1, get_context("spawn"), _reserve_devices) as process:
        for found in process.map(_compared, *zip(*CASES, strict=True)):
            yield from found


def _reserve_devices() -> None:
    """Set the environment; call this before JAX starts in this process."""
    os.environ["JAX_PLATFORMS"] = "cpu"  # where libtpu is installed, it has no TPU to run on
    flags = "--xla_force_host_platform_device_count=512 --xla_backend_optimization_level=0"
    os.environ["XLA_FLAGS"] = f"{flags} --xla_llvm_disable_expensive_passes=true"  # nothing of this runs


def _compared(topology: str, case: Case) -> list[Figure]:
    program = case.lowered()
    whole = attrs.evolve(case, layout="", mesh="one:1").lowered()
    count = program.placed_on.devices
    places = {f"{count} virtual CPU devices": devices(count)}
    with suppress(Unavailable):
        places[f"TPU {topology}"] = tpu_topologies.topology(topology)
    return [figure for place, on in places.items() for figure in _on(place, on, case, program, whole)]


def _on(place: str, on: Sequence[Any], case: Case, program: Program, whole: Program) -> Iterator[Figure]:
    assert program.layout is not None
    rules = program.layout.compute

    def constraint(value: Value, name: str) -> str:
        type = value.type.split_by(rules.by_dim)
        return (
            f"{name} = lax.with_sharding_constraint({name}, {jax_backend.spec(type)})"
            if type.split_axes
            else ""
        )

    ours = _sent(jax_runtime.lowered(program, "step", on))
    unconstrained = _sent(partitioned(program, on, plain_step(whole, lambda value, name: "")))
    constrained = _sent(partitioned(program, on, plain_step(whole, constraint)))
    yield Figure(f"{case.name}, {place}: bytes in collectives", ours, "B", constrained)
    yield Figure("    GSPMD's over mtfc's", unconstrained / ours, "x")
    yield Figure("    GSPMD's over mtfc's, all constrained", constrained / ours, "x")


def _sent(lowered: Any) -> int:
    return sum(kind["bytes_per_device"] for kind in collectives(lowered.compile().as_text()).values())


def plain_step(whole: Program, after: Callable[[Value, str], str]) -> Callable[..., Any]:
    """Return the undistributed step in plain JAX. after: text that follows the statement that defines a value."""
    mesh = whole.placed_on
    function, texts = fused(whole.function("step"), mesh)
    dialect = attrs.evolve(jax_backend.dialect(mesh, function, texts), after=after)
    names: dict[str, Any] = {}
    exec(jax_backend.generate(whole), names)
    exec(
        "from jax import lax\n" + Emitter(dialect).function(function, "plain_step", "A training step."), names
    )
    step: Callable[..., Any] = names["plain_step"]
    return step


def partitioned(program: Program, on: Sequence[Any], step: Callable[..., Any]) -> Any:
    """Return `step`, lowered by JAX, with the shardings of the lowered program for arguments and results."""
    jax: Any = import_jax()
    sizes = program.placed_on.sizes
    automatic = (jax.sharding.AxisType.Auto,) * len(sizes)
    mesh = jax.make_mesh(
        tuple(sizes.values()), tuple(sizes), automatic, devices=on[: program.placed_on.devices]
    )
    placed: dict[str, dict[str, Any]] = {"parameter": {}, "state": {}, "input": {}, "step": {}}
    for argument in program.function("step").arguments:
        type = argument.value.type
        sharding = jax.NamedSharding(mesh, jax.P(*type.splits))
        dtype = ARRAY_DTYPES[type.dtype]
        array = jax.ShapeDtypeStruct([dim.size for dim in type.dims], dtype, sharding=sharding)
        placed[argument.role][argument.value.name] = array
    parameters, state = placed["parameter"], placed["state"]
    shardings = [{name: array.sharding for name, array in given.items()} for given in (parameters, state)]
    whole = jax.NamedSharding(mesh, jax.P())
    jitted = jax.jit(step, out_shardings=(whole, *shardings), donate_argnums=(0, 1))
    with jax.set_mesh(mesh):
        return jitted.lower(parameters, state, placed["input"], jax.ShapeDtypeStruct((), "int32"))
