"""The generated JAX module beside the same network written by hand for JAX's automatic partitioner.

Same layouts, same eight virtual CPU devices, steps timed in turn. The bytes are those of the collectives in the HLO that XLA
compiled for either.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from benchmarks.figures import Figure, median_ratio
from benchmarks.simulation import two_layer
from mtfc.compiler.ir.types import Layout, Mesh, Rules
from mtfc.compiler.passes import pipelines

DIMS = {"batch": 1024, "io": 512, "hidden": 2048}
RUNS = 15
LAYOUTS = {
    "replicated": ({"all": 8}, {}),
    "data_parallel": ({"all": 8}, {"batch": "all"}),
    "model_parallel": ({"all": 8}, {"hidden": "all"}),
    "hybrid": ({"rows": 2, "cols": 4}, {"batch": "rows", "hidden": "cols"}),
    "cube": ({"rows": 2, "cols": 2, "planes": 2}, {"batch": "rows", "hidden": "cols", "io": "planes"}),
}


def sent_bytes(hlo_text: str) -> int:
    from mtfc.backends.hlo import collectives

    return sum(int(kind["bytes_per_device"]) for kind in collectives(hlo_text).values())


def generated(sizes: dict[str, int], rules: dict[str, str], arrays: dict[str, Any]) -> tuple[Any, int]:
    """Return a function that runs a step of the generated module, and the communicated bytes in its HLO."""
    from mtfc.backends.jax import backend as jax_backend
    from mtfc.backends.jax import runtime as jax_runtime

    mesh = Mesh("mesh", tuple(sizes.items()))
    layout = Layout("layout", Rules(tuple((dim, (axis,)) for dim, axis in rules.items())))
    program = pipelines.lower(two_layer(DIMS), mesh, layout)
    module = jax_runtime.load(jax_backend.generate(program))
    held = {"params": module.init(0)}
    inputs = module.shard(arrays, module.INPUTS)

    def step() -> None:
        outputs, held["params"], _ = module.train_step(held["params"], {}, inputs, 0)
        outputs["loss"].block_until_ready()

    return step, sent_bytes(jax_runtime.hlo(program, "step"))


def handwritten(sizes: dict[str, int], rules: dict[str, str], arrays: dict[str, Any]) -> tuple[Any, int]:
    """Return a function that runs a step of the hand-written network, and the communicated bytes in its HLO."""
    import jax

    from benchmarks.handwritten import compiled_step

    mesh = jax.make_mesh(tuple(sizes.values()), tuple(sizes), (jax.sharding.AxisType.Auto,) * len(sizes))
    jitted, place = compiled_step(mesh, rules)
    random = np.random.default_rng(0)
    shapes = {"w": ("io", "hidden"), "bias": ("hidden",), "v": ("hidden", "io")}
    host = {
        n: 0.05 * random.standard_normal([DIMS[d] for d in dims], np.float32) for n, dims in shapes.items()
    }
    held = {"params": {name: jax.device_put(array, place[name]) for name, array in host.items()}}
    inputs = [jax.device_put(arrays[name], place[name]) for name in ("x", "target")]

    def step() -> None:
        loss, held["params"] = jitted(held["params"], *inputs)
        loss.block_until_ready()

    return step, sent_bytes(jitted.lower(held["params"], *inputs).compile().as_text())


def figures() -> Iterator[Figure]:
    random = np.random.default_rng(1)
    arrays = {n: random.standard_normal([DIMS["batch"], DIMS["io"]], np.float32) for n in ("x", "target")}
    for name, (sizes, rules) in LAYOUTS.items():
        ours, our_bytes = generated(sizes, rules, arrays)
        theirs, their_bytes = handwritten(sizes, rules, arrays)
        yield Figure(f"{name}: bytes in collectives per device, jax.jit and NamedSharding", their_bytes, "B")
        yield Figure(f"{name}: bytes in collectives per device, generated", our_bytes, "B", their_bytes)
        a, b, ratio = median_ratio(ours, theirs, RUNS)
        yield Figure(
            f"{name}: step, generated over jax.jit and NamedSharding", ratio, f"({a:.4f} s, {b:.4f} s)"
        )
