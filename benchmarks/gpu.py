"""Predicted times beside measured times on a GPU, if JAX has one.

- Training steps on one GPU beside `mtfc simulate`, after a calibration of the GPU.
- Collectives and memory of programs that XLA compiles for eight such GPUs, which need not exist, beside `mtfc cost`.
"""

from __future__ import annotations

from collections.abc import Iterator
from statistics import fmean
from typing import Any

from benchmarks.accuracy import allocated, measured, memory, predicted, unpredicted
from benchmarks.figures import Figure
from benchmarks.steps import Case
from mtfc.backends.calibrate import calibration
from mtfc.backends.common.devices import import_jax
from mtfc.backends.jax.runtime import lowered
from mtfc.frontend.hardware_targets import find_hardware

AT_ONCE = 8
"""Number of steps that are started before the first one has ended, as in training."""

LANGUAGE = (("batch", 16), ("length", 512), ("d_model", 1024), ("d_ff", 4096), ("heads", 16), ("d_k", 64))
TRANSLATION = (
    ("batch", 32),
    ("positions", 256),
    ("d_model", 1024),
    ("d_ff", 4096),
    ("heads", 16),
    ("d_k", 64),
)
LLAMA = (("batch", 2), ("length", 2048), ("layers", 2), ("vocab", 32768))
SHORT_LLAMA = (("batch", 16), ("length", 512), ("layers", 2), ("vocab", 32768))
NODE = "nodes:1;gpus:1"

MEASURED = (
    Case("two_layer", "tiled_3d", "rows:1;cols:1;planes:1", (("batch", 8192), ("io", 4096), ("hidden", 8192))),
    Case("digits", "tiled", "processor_rows:1;processor_cols:1", (("batch", 8192), ("hidden", 8192), ("rows", 64), ("cols", 64))),
    Case("soybean_mlp_8k", "tiled", "groups:1;gpus:1"),
    Case("transformer_lm", "data_parallel", "all:1", LANGUAGE),
    Case("llama", "tensor_parallel", "data:1;model:1", LLAMA),
    Case("transformer_seq2seq", "data_parallel", "all:1", TRANSLATION),
    Case("moe_lm", "hybrid", "rows:1;cols:1"),
    Case("rnnlm", "data", NODE, (("batch", 256),)),
    Case("rnntc", "data", NODE, (("batch", 256),)),
    Case("nmt", "data", NODE, (("batch", 128),)),
    Case("lenet", "data", "gpus:1", (("batch", 4096),)),
    Case("alexnet", "data", "gpus:1", (("batch", 256),)),
    Case("vgg16", "data", "gpus:1", (("batch", 64),)),
    Case("soybean_cnn", "data", "gpus:1"),
    Case("unet", "data", "rows:1;cols:1"),
    Case("resnet101", "data", NODE, (("batch", 64),)),
    Case("inception_v3", "data", NODE, (("batch", 64),)),
)  # fmt: skip

SMALL = (
    ("batch", 16),
    ("length", 512),
    ("d_model", 512),
    ("d_ff", 2048),
    ("heads", 8),
    ("d_k", 64),
    ("layers", 2),
    ("vocab", 8192),
)

COMPILED = (
    Case("two_layer", "hybrid", None, (("batch", 8192), ("io", 2048))),
    Case("two_layer", "tiled_3d", None, (("batch", 8192), ("io", 2048))),
    Case("digits", "tiled"),
    Case("soybean_mlp", "hybrid", "groups:2;gpus:4"),
    Case("lenet", "hybrid", "rows:4;cols:2"),
    Case("unet", "data", "rows:2;cols:4"),
    Case("transformer_lm", "hybrid", "rows:2;cols:4", SMALL),
    Case("transformer_lm", "model_parallel", "all:8", SMALL),
    Case("llama", "tensor_parallel", "data:4;model:2", SHORT_LLAMA),
    Case("moe_lm", "expert_parallel"),
)


def figures() -> Iterator[Figure]:
    try:
        import_jax().devices("gpu")
    except RuntimeError:
        print("  left out: JAX has no GPU")
        return
    yield from _measured()
    yield from _compiled()


def _measured() -> Iterator[Figure]:
    hardware, _ = calibration.with_jax(1, calibration.Effort())
    errors = []
    for case in MEASURED:
        program = case.lowered()
        seconds = measured(program, AT_ONCE)
        ratio = predicted(program, hardware).seconds / seconds
        errors.append(abs(ratio - 1))
        yield Figure(f"{case.name}: measured step", seconds, "s")
        yield Figure("    predicted over measured", ratio, "")
    yield Figure("mean relative error", fmean(errors), "")


def _compiled() -> Iterator[Figure]:
    from jax.experimental import topologies

    hardware = find_hardware("h100", {})
    node: list[Any] = topologies.get_topology_desc("", "cuda", topology="1x1x8").devices
    for case in COMPILED:
        program = case.lowered()
        step = lowered(program, "step", node).compile()
        yield Figure(
            f"{case.name}: elements in collectives that were not predicted",
            unpredicted(program, step.as_text()),
            "",
            0,
        )
        ratio = memory(program, hardware) / allocated(step)
        yield Figure("    predicted memory over the compiler's", ratio, "")
