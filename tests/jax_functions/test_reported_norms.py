"""Norms that a step reports: of gradients, of parameters, and of the update. FSDP scatters gradients all the same."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import mtfc

LAYOUT = "batch: data; params: { *: data }; optimizer: { *: data }"

REPORTS: dict[str, Callable[[Any, Any, Any], Any]] = {
    "gradients": lambda parameters, gradients, updates: optax.tree.norm(gradients),
    "parameters": lambda parameters, gradients, updates: optax.tree.norm(parameters),
    "several": lambda *trees: [*map(optax.tree.norm, trees), jnp.max(jnp.abs(trees[1]["up"]))],
}


def step_with(
    report: Callable[[Any, Any, Any], Any], has_loss: bool
) -> tuple[Callable[..., Any], tuple[Any, ...]]:
    """Return a training step that reports something beside its loss, or alone, and its arguments."""
    optimizer = optax.chain(optax.clip_by_global_norm(1.0), optax.adam(1e-2))

    def step(parameters: Any, state: Any, x: Any) -> Any:
        def loss(p: Any) -> Any:
            return jnp.mean(jnp.square(jnp.tanh(x @ p["up"]) @ p["down"] - x))

        value, gradients = jax.value_and_grad(loss)(parameters)
        updates, state = optimizer.update(gradients, state, parameters)
        parameters = optax.apply_updates(parameters, updates)
        return parameters, state, *([value] * has_loss), report(parameters, gradients, updates)

    up, down, x = (
        jax.random.normal(jax.random.key(i), shape) for i, shape in enumerate([(16, 64), (64, 16), (32, 16)])
    )
    parameters = {"up": up, "down": down}
    return step, (parameters, optimizer.init(parameters), x)


@pytest.mark.parametrize("has_loss", [True, False])
@pytest.mark.parametrize("name", REPORTS)
def test_a_reported_norm_costs_one_number(name: str, has_loss: bool) -> None:
    step, args = step_with(REPORTS[name], has_loss)
    plan = mtfc.from_jax(step, *args).plan(LAYOUT, {"data": 8})
    cost = plan.cost()
    sent = {kind: each["bytes_per_device"] for kind, each in cost["step"]["collectives"].items()}
    assert sent["reduce_scatter"] == 4 * 2 * 16 * 64, "gradients are scattered"
    assert sent["all_reduce"] <= 64, "and only numbers are summed for all"
    assert cost["memory_per_device"]["gradients"] == 4 * 2 * 16 * 64 // 8
    found, expected = plan.step(*args), step(*args)
    for one, other in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(one, other, rtol=2e-5, atol=1e-6)
