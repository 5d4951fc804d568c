"""FSDP of `examples/jax/gpt.py` on eight devices: shardings for `jax.jit` beside plans, as XLA compiles the training step.

By hand, each array of the model and of the optimizer's state is split along its largest axis. *One constraint* also splits the
batch at both ends of each block. The shardings of the plan alone are those of `plan.in_shardings` and `plan.out_shardings`.
With libtpu, the same programs are compiled for a TPU v5e of eight chips, which takes minutes for each.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from importlib import import_module
from importlib.util import find_spec
from typing import Any

import mtfc
from benchmarks.figures import Figure
from benchmarks.steps import EXAMPLES
from mtfc.backends.common.devices import import_jax
from mtfc.backends.hlo import FLOPS, wire_bytes, work
from mtfc.backends.jax import runtime as jax_runtime
from mtfc.backends.jax import tpu_topologies

RULES: Any = {"batch": "data", "params": {"*": "data"}, "optimizer": {"*": "data"}}
NAMES = {"tokens": "batch positions"}
DEVICES = 8
TOPOLOGY = "v5e:2x4"


def figures() -> Iterator[Figure]:
    os.environ.setdefault("JAX_PLATFORMS", "cpu")
    jax: Any = import_jax()

    yield from _on("8 virtual CPU devices", jax.devices()[:DEVICES])
    if find_spec("libtpu") is None:
        print("  left out: libtpu is not installed")
        return
    yield from _on(TOPOLOGY, tpu_topologies.topology(TOPOLOGY))


def _on(where: str, devices: Sequence[Any]) -> Iterator[Figure]:
    """Yield the bytes that leave a device and the temporary arrays, for each way to split the step."""
    sys.path.insert(0, str(EXAMPLES / "jax"))
    gpt = import_module("gpt")

    plan = mtfc.from_jax(gpt.step, *gpt.example(), names=NAMES).plan(RULES, {"data": DEVICES})
    ways: Mapping[str, Callable[[], Any]] = {
        "by hand": lambda: _by_hand(gpt, devices, constrained=False),
        "by hand, one constraint": lambda: _by_hand(gpt, devices, constrained=True),
        "the plan's shardings alone": lambda: plan.lowered(devices)[1],
        "plan.apply": lambda: plan.lowered(devices)[0],
        "plan.step": lambda: jax_runtime.lowered(plan.program, plan.imported.main.name, devices),
    }
    for name, lowered in ways.items():
        compiled = lowered().compile()
        text = compiled.as_text()
        yield Figure(f"{where}, {name}: bytes sent", wire_bytes(text), "B")
        yield Figure(
            "    FLOPs",
            sum(amounts["count"] for item, _, amounts in work(text) if item.kind == FLOPS) / 1e12,
            "TFLOP",
        )
        yield Figure("    temporaries", compiled.memory_analysis().temp_size_in_bytes, "B")


def _by_hand(gpt: Any, devices: Sequence[Any], constrained: bool) -> Any:
    """Return the step with shardings as one writes them, lowered."""
    import numpy as np

    jax: Any = import_jax()

    mesh = jax.sharding.Mesh(np.array(devices), ("data",))

    def split(axis: int | None) -> Any:
        before = () if axis is None else (*[None] * axis, "data")
        return jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec(*before))

    def stored(leaf: Any) -> Any:
        axes = [axis for axis, size in enumerate(leaf.shape) if size % DEVICES == 0]
        return split(max(axes, key=lambda axis: leaf.shape[axis], default=None))

    params, state, tokens = gpt.example()
    model = jax.tree.map(stored, (params, state))
    block = gpt.block

    def constrained_block(x: Any, p: Any) -> Any:
        y, _ = block(jax.lax.with_sharding_constraint(x, split(0)), p)
        return jax.lax.with_sharding_constraint(y, split(0)), None

    jax.clear_caches()
    gpt.block = constrained_block if constrained else block
    try:
        step = jax.jit(
            lambda *args: gpt.step(*args),
            in_shardings=(*model, split(0)),
            out_shardings=(*model, split(None)),
        )
        return step.lower(params, state, tokens)
    finally:
        gpt.block = block
