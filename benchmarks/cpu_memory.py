"""Predicted memory of training steps on eight virtual CPU devices, beside the memory that XLA allocates.

The device has the two facts of a calibrated CPU that change memory: dots of bf16 are no faster than those of f32, and operands
of dots are reordered. The second figure is `mtfc cost`, which knows no device.
"""

from __future__ import annotations

from collections.abc import Iterator

from benchmarks.accuracy import allocated
from benchmarks.figures import Figure
from benchmarks.steps import Case
from mtfc.backends.jax import runtime
from mtfc.compiler.cost.effects.memory import memory_of, memory_on
from mtfc.compiler.cost.sizes import Numbers, whole
from mtfc.driver.compiled_step import XLA_FOR_CPUS

SMALL = {"batch": 32, "length": 128, "vocab": 1024, "d_model": 128, "d_k": 32, "d_ff": 512, "layers": 4}
LLAMA = {**SMALL, "kv_heads": 4, "sharers": 2}
MOE = {
    "batch": 32,
    "length": 64,
    "vocab": 512,
    "d_model": 64,
    "heads": 4,
    "d_k": 16,
    "d_ff": 128,
    "layers": 4,
}
CASES = [
    Case(model, layout, mesh, tuple(dims.items()))
    for model, layout, mesh, dims in (
        ("alexnet", "data", "gpus:8", {"batch": 64}),
        ("vgg16", "data", "gpus:8", {"batch": 16}),
        ("unet", "data", "rows:4;cols:2", {"batch": 8}),
        ("transformer_lm", "hybrid", "rows:2;cols:4", {**SMALL, "heads": 8}),
        ("transformer_lm", "data_parallel", "all:8", {**SMALL, "heads": 8}),
        ("llama", "fsdp", "data:4;model:2", LLAMA),
        ("llama", "tensor_parallel", "data:4;model:2", LLAMA),
        ("gpt2", "fsdp", "all:8", {"batch": 8, "length": 256, "layers": 2}),
        ("moe_lm", "hybrid", "rows:4;cols:2", {**MOE, "experts": 4}),
        ("rnnlm", "data", "nodes:4;gpus:2", {"batch": 16, "length": 16, "vocab": 512}),
    )
]


def figures() -> Iterator[Figure]:
    for case in CASES:
        program = case.lowered()
        step, mesh = program.function("step"), program.placed_on
        bytes = allocated(runtime.lowered(program, "step").compile())
        yield Figure(
            f"{case.name}: predicted memory over XLA's",
            whole(memory_on(step, mesh, XLA_FOR_CPUS).total) / bytes,
            "",
            1.15,
        )
        yield Figure(
            "    predicted without a device", whole(memory_of(step, mesh, Numbers(mesh)).total) / bytes, ""
        )
