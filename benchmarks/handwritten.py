"""The two-layer example as a JAX user writes it for the automatic partitioner: `jax.jit` and `NamedSharding`.

Parameters, inputs and results get the placements that the .mtf layout gives them; XLA decides on all communication.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

LEARNING_RATE = 0.1
DIMS = {
    "x": ("batch", "io"),
    "target": ("batch", "io"),
    "w": ("io", "hidden"),
    "bias": ("hidden",),
    "v": ("hidden", "io"),
}


def loss(params: dict[str, Any], x: Any, target: Any) -> Any:
    h = jax.nn.relu(jnp.einsum("bi,ih->bh", x, params["w"]) + params["bias"])
    y = jnp.einsum("bh,hi->bi", h, params["v"])
    return jnp.mean(jnp.square(y - target))


def step(params: dict[str, Any], x: Any, target: Any) -> tuple[Any, dict[str, Any]]:
    value, gradients = jax.value_and_grad(loss)(params, x, target)
    updated = jax.tree.map(lambda p, g: p - LEARNING_RATE * g, params, gradients)
    return value, updated


def compiled_step(mesh: Any, rules: dict[str, str]) -> tuple[Any, dict[str, Any]]:
    """Return the jitted step under a layout, and the sharding of each argument."""
    specs: Any = {name: P(*map(rules.get, dims)) for name, dims in DIMS.items()}  # type: ignore[no-untyped-call]
    place = {name: NamedSharding(mesh, spec) for name, spec in specs.items()}
    params = {name: place[name] for name in ("w", "bias", "v")}
    jitted = jax.jit(
        step,
        in_shardings=(params, place["x"], place["target"]),
        out_shardings=(NamedSharding(mesh, P()), params),  # type: ignore[no-untyped-call]
        donate_argnums=0,
    )
    return jitted, place
