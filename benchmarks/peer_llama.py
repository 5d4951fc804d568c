"""Llama 8 B on 64 chips of TPU v5p beside one written by hand (`handwritten_llama.py`), as the TPU compiler compiles them.

This needs libtpu, but no TPU. Cycles are those of kernels, without collectives and without attention, for whose kernels the
compiler states none: by hand the forward kernel runs twice, in generated modules once. The program by hand is compiled without
the flags of generated modules. A compilation takes three minutes of processor time.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from importlib.util import find_spec
from multiprocessing import get_context
from typing import Any

import attrs

from benchmarks.figures import Figure
from benchmarks.steps import EXAMPLES
from mtfc.backends import hlo
from mtfc.backends.common.tpu_flags import FUSION_FLAGS, TPU_FLAGS, TPU_VARIABLE
from mtfc.backends.jax import runtime as jax_runtime
from mtfc.backends.jax import tpu_topologies
from mtfc.compiler.ir.core import Program
from mtfc.driver.loading.choice import Choice
from mtfc.driver.loading.selection import choose

TOPOLOGY = "v5p:4x4x4"
BATCH, LENGTH = 64, 8192
RULES = "batch: data, vocab: model, kv_heads: model, d_ff: model"
STORED = "params: { d_model: data }, optimizer: { d_model: data }"
ON_PARTS = "forms: { regions: time, dots: joined }"


@attrs.frozen
class LlamaCase:
    """A layout of `examples/llama.mtf`. forms: those that `mtfc search --space forms` chooses for it on this machine."""

    name: str
    mesh: tuple[int, int]
    is_fsdp: bool
    forms: str = ""

    def program(self) -> Program:
        path = EXAMPLES / "llama.mtf"
        parts = [RULES, *([STORED] if self.is_fsdp else []), *([self.forms] if self.forms else [])]
        mesh = f"data:{self.mesh[0]};model:{self.mesh[1]}"
        choice = Choice(model=None, layout=f"{{ {', '.join(parts)} }}", mesh=mesh)
        selection = choose(path.read_text(), str(path), choice)
        return selection.cases[0].lower(selection.program)


CASES = (
    LlamaCase("FSDP and tensor parallelism", (8, 8), True, ON_PARTS),
    LlamaCase("tensor parallelism", (8, 8), False, ON_PARTS),
    LlamaCase("FSDP", (64, 1), True),
)


def figures() -> Iterator[Figure]:
    if find_spec("libtpu") is None:
        print("  left out: libtpu is not installed")
        return
    for case in CASES:
        ours, theirs = _alone(_generated, case), _alone(_by_hand, case)
        for what, unit in (("cycles without attention", ""), ("temporaries", "B")):
            yield Figure(f"{case.name}: {what}", ours[what], unit, theirs[what])
            yield Figure("    over those by hand", ours[what] / theirs[what], "x")


def _alone(measure: Callable[[LlamaCase], dict[str, float]], case: LlamaCase) -> dict[str, float]:
    """Measure in a process of its own, as libtpu reads its flags once."""
    with ProcessPoolExecutor(1, get_context("spawn")) as process:
        return process.submit(measure, case).result()


def _generated(case: LlamaCase) -> dict[str, float]:
    os.environ["JAX_PLATFORMS"] = "cpu"  # libtpu has no TPU to run on
    return _measured(jax_runtime.lowered(case.program(), "step", tpu_topologies.topology(TOPOLOGY)))


def _by_hand(case: LlamaCase) -> dict[str, float]:
    os.environ["JAX_PLATFORMS"] = "cpu"
    flags = (*TPU_FLAGS, *FUSION_FLAGS)
    os.environ[TPU_VARIABLE] = " ".join(flag.replace("=true", "=false") for flag in flags)
    import jax
    from jax.experimental import mesh_utils

    from benchmarks.handwritten_llama import Sizes, splash_attention, step

    chips = tpu_topologies.topology(TOPOLOGY)
    placed = mesh_utils.create_device_mesh(case.mesh, chips, allow_split_physical_axes=True)
    mesh = jax.sharding.Mesh(placed, ("data", "model"), axis_types=(jax.sharding.AxisType.Auto,) * 2)
    return _measured(step(mesh, case.is_fsdp, BATCH, LENGTH, splash_attention, Sizes()))


def _measured(lowered: Any) -> dict[str, float]:
    compiled = lowered.compile()
    temporaries = compiled.memory_analysis().temp_size_in_bytes
    return {
        "cycles without attention": hlo.cycles(tpu_topologies.text(compiled)),
        "temporaries": temporaries,
    }
