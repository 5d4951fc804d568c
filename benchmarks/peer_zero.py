"""Data parallelism, ZeRO-1 and FSDP of a small Llama beside GSPMD, on 8 virtual CPU devices.

Llama's attention shares keys and values among heads. GSPMD gets the undistributed step, and the same places of arguments and
results: see `peer_gspmd.py`. Steps are timed in turn; bytes, collectives and temporaries are those of the compiled programs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import attrs

from benchmarks.figures import Figure, median_ratio
from benchmarks.peer_gspmd import partitioned, plain_step
from benchmarks.steps import Case
from mtfc.backends.common.devices import devices, import_jax
from mtfc.backends.hlo import collectives
from mtfc.backends.jax import backend as jax_backend
from mtfc.backends.jax import runtime as jax_runtime
from mtfc.compiler.ir.core import Program
from mtfc.driver.data.inputs import draw_batch

DEVICES = 8
RUNS = 15
SMALL = (
    ("batch", 16),
    ("length", 64),
    ("vocab", 512),
    ("d_model", 64),
    ("d_k", 16),
    ("d_ff", 128),
    ("layers", 4),
)
LAYOUTS = {
    "data parallelism": "{ batch: data }",
    "ZeRO-1": "{ batch: data, optimizer: { *: data } }",
    "FSDP": "{ batch: data, params: { *: data }, optimizer: { *: data } }",
}


def figures() -> Iterator[Figure]:
    for name, rules in LAYOUTS.items():
        case = Case("llama", rules, f"data:{DEVICES}", SMALL)
        program, whole = case.lowered(), attrs.evolve(case, layout="", mesh="one:1").lowered()
        ours = jax_runtime.lowered(program, "step", devices(DEVICES)).compile()
        step = plain_step(whole, lambda value, name: "")
        theirs = partitioned(program, devices(DEVICES), step).compile()
        kinds, others = (tuple(collectives(each.as_text()).values()) for each in (ours, theirs))
        sent, by_hand = (sum(kind["bytes_per_device"] for kind in each) for each in (kinds, others))
        yield Figure(f"{name}: collectives", sum(kind["count"] for kind in kinds), "")
        yield Figure("    those of GSPMD", sum(kind["count"] for kind in others), "")
        yield Figure("    bytes over GSPMD's", sent / by_hand, "x", 1.0)
        temporaries = [each.memory_analysis().temp_size_in_bytes for each in (ours, theirs)]
        yield Figure("    temporaries over GSPMD's", temporaries[0] / temporaries[1], "x")
        a, b, ratio = median_ratio(*_steps(program, theirs), RUNS)
        yield Figure("    step over GSPMD's", ratio, f"({a:.4f} s, {b:.4f} s)")


def _steps(program: Program, compiled: Any) -> tuple[Callable[[], None], Callable[[], None]]:
    """Return functions that run a step: of the generated module, and of the program that GSPMD partitioned."""
    import numpy as np

    jax: Any = import_jax()

    module = jax_runtime.load(jax_backend.generate(program))
    inputs = module.shard(draw_batch(program.function("forward"), 0)[0], module.INPUTS)
    number = jax.device_put(np.int32(0), compiled.input_shardings[0][3])

    def stepping(step: Callable[..., Any], number: Any) -> Callable[[], None]:
        held = [module.init(0), module.init_state()]

        def run() -> None:
            _, *held[:] = step(*held, inputs, number)
            jax.block_until_ready(held)

        return run

    return stepping(module.train_step, 0), stepping(compiled, number)
