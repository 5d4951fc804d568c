"""Train `two_layer.mtf` with optax instead of the file's optimizer: mtfc computes loss and gradients, and optax the update.

    python examples/optax_loop.py --layout hybrid --steps 100

AdamW updates the weights, and plain gradient descent the bias (`optax.multi_transform`). An exponential moving average of the
parameters serves evaluation. Parameters, gradients and optimizer state are split by the layout.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import jax
import numpy as np
import optax

import mtfc

FILE = Path(__file__).with_name("two_layer.mtf")
DEVICES = 8


def optimizer() -> Any:
    """Return an optimizer with a transformation for each group of parameters."""
    groups = {"weights": optax.adamw(1e-2), "bias": optax.sgd(1e-1)}
    return optax.multi_transform(groups, {"w": "weights", "v": "weights", "bias": "bias"})


def train(layout: str, steps: int, seed: int = 0) -> dict[str, Any]:
    """Return the losses before training and after, the loss of the averaged parameters, and the parameters."""
    module = mtfc.compile(FILE, layout=layout).load("jax")
    draw = np.random.default_rng(seed)
    x = draw.standard_normal((64, 128), np.float32)
    batch = module.shard({"x": x, "target": np.roll(x, 1, axis=1)}, module.INPUTS)

    tx, average = optimizer(), optax.ema(0.9)

    @jax.jit
    def update(params: Any, state: Any, means: Any, batch: Any, step: Any) -> Any:
        loss, gradients = module.value_and_grad(params, batch, step)
        changes, state = tx.update(gradients, state, params)
        params = optax.apply_updates(params, changes)
        averaged, means = average.update(params, means)
        return loss, params, state, averaged, means

    params = module.init(seed)
    state, means, losses = tx.init(params), average.init(params), []
    for step in range(steps):
        loss, params, state, averaged, means = update(params, state, means, batch, step)
        losses.append(float(loss))
    evaluated = float(module.forward(averaged, batch)["loss"])
    return {"losses": losses, "averaged": evaluated, "params": params}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--layout", default="hybrid", help="a layout of two_layer.mtf (default: hybrid)")
    parser.add_argument("--steps", type=int, default=100, help="how many steps (default: 100)")
    options = parser.parse_args()
    found = train(options.layout, options.steps)
    print(f"loss {found['losses'][0]:.4g} -> {found['losses'][-1]:.4g}, averaged {found['averaged']:.4g}")
    for name, x in found["params"].items():
        print(f"{name:<5} {x.shape}, split as {x.sharding.spec}")


if __name__ == "__main__":
    jax.config.update("jax_num_cpu_devices", DEVICES)
    main()
