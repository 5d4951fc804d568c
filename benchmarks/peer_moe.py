"""Layers of experts from the library, with a capacity and without, beside the layer by hand for JAX: see `handwritten_moe.py`.

The same layout on eight virtual CPU devices, steps timed in turn. Bytes and temporaries are those of the programs that XLA
compiled.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import attrs
import numpy as np

from benchmarks.figures import Figure, median_ratio
from benchmarks.peer_jax import sent_bytes
from mtfc.driver.loading.choice import Choice
from mtfc.driver.loading.selection import choose

DIMS = {"groups": 8, "tokens": 256, "d_model": 256, "experts": 8, "d_ff": 512, "capacity": 80}
DEVICES = 8
RUNS = 15

SOURCE = """
import moe
import optimizers

mesh line = [all: {devices}]
{dims}
layout expert_parallel on line = {{ groups: all, experts: all }}

model layer(x: [groups, tokens, d_model], target: [groups, tokens, d_model]) {{
  y, balance = {mixture}(x) as moe
  loss = mean(square(x + y - target)) + 0.01 * balance
  return loss
}}

train layer {{
  minimize loss
  optimizer = sgd(learning_rate = 0.1)
}}
"""

MIXTURES = {
    "with a capacity": "moe.top_2[experts = experts, capacity = capacity, d_ff = d_ff]",
    "dropless": "moe.dropless_top_2[experts = experts, d_ff = d_ff]",
}

PARAMETERS = {
    "router": "moe.router",
    "wi": "moe.routed.feed_forwards.wi",
    "wo": "moe.routed.feed_forwards.wo",
}


@attrs.frozen
class Step:
    """A step to time, which returns its loss; the bytes that a device hands to collectives, and those of temporary arrays."""

    run: Callable[[], float]
    sent: int
    temporaries: int


def _step(run: Callable[[], float], compiled: Any) -> Step:
    return Step(run, sent_bytes(compiled.as_text()), compiled.memory_analysis().temp_size_in_bytes)


def generated(arrays: dict[str, Any], mixture: str) -> Step:
    from mtfc.backends.common.devices import devices
    from mtfc.backends.jax import backend as jax_backend
    from mtfc.backends.jax import runtime as jax_runtime

    dims = "\n".join(f"dim {name} = {size}" for name, size in DIMS.items())
    selection = choose(
        SOURCE.format(dims=dims, devices=DEVICES, mixture=MIXTURES[mixture]), "layer.mtf", Choice()
    )
    program = selection.cases[0].lower(selection.program)
    module = jax_runtime.load(jax_backend.generate(program))
    held = {
        "params": module.shard(
            {PARAMETERS[n]: a for n, a in arrays.items() if n in PARAMETERS}, module.PARAMETERS
        )
    }
    inputs = module.shard({name: arrays[name] for name in ("x", "target")}, module.INPUTS)

    def run() -> float:
        outputs, held["params"], _ = module.train_step(held["params"], {}, inputs, 0)
        return float(outputs["loss"])

    return _step(run, jax_runtime.lowered(program, "step", devices(DEVICES)).compile())


def handwritten(arrays: dict[str, Any]) -> dict[str, Step]:
    import jax

    from benchmarks.handwritten_moe import compiled_steps

    mesh = jax.make_mesh((DEVICES,), ("all",), (jax.sharding.AxisType.Auto,))
    steps, places = compiled_steps(mesh, DIMS["capacity"])

    def step(jitted: Any) -> Step:
        placed = {name: jax.device_put(array, places[name]) for name, array in arrays.items()}
        inputs = [placed.pop(name) for name in ("x", "target")]
        held = {"params": placed}

        def run() -> float:
            loss, held["params"] = jitted(held["params"], *inputs)
            return float(loss)

        return _step(run, jitted.lower(held["params"], *inputs).compile())

    return {name: step(jitted) for name, jitted in steps.items()}


def drawn() -> dict[str, Any]:
    """Return parameters and inputs."""
    random, sizes = np.random.default_rng(0), DIMS
    tokens, width, experts = (sizes["groups"], sizes["tokens"]), sizes["d_model"], sizes["experts"]
    shapes = {
        "router": (width, experts),
        "wi": (experts, width, sizes["d_ff"]),
        "wo": (experts, sizes["d_ff"], width),
        "x": (*tokens, width),
        "target": (*tokens, width),
    }
    return {
        name: random.standard_normal(shape, np.float32) * (width**-0.5 if name in PARAMETERS else 1)
        for name, shape in shapes.items()
    }


def figures() -> Iterator[Figure]:
    arrays = drawn()
    steps, by_hand = {name: generated(arrays, name) for name in MIXTURES}, handwritten(arrays)
    for mixture, ours in steps.items():
        yield Figure(f"{mixture}: bytes in collectives per device", ours.sent, "B")
        yield Figure(f"{mixture}: temporaries per device", ours.temporaries, "B")
        goal = 1.0 if mixture == "with a capacity" else None
        for name, theirs in by_hand.items():
            yield Figure(f"{mixture} over {name}: bytes", ours.sent / theirs.sent, "x", goal)
            yield Figure(
                f"{mixture} over {name}: temporaries", ours.temporaries / theirs.temporaries, "x", goal
            )
            a, b, ratio = median_ratio(ours.run, theirs.run, RUNS)
            yield Figure(f"{mixture} over {name}: step", ratio, f"({a:.4f} s, {b:.4f} s)")
