"""Temporary arrays of `plan.step`: no more than those of `jax.jit` with the same shardings and donation."""

import re
from typing import Any

import jax
import optax
import pytest

import mtfc
from benchmarks.step_memory import compiled, plans, temporaries

CASES = [("perceptron", "data"), ("perceptron", "FSDP"), ("ppo", "FSDP"), ("experts", "data")]
"""Steps of `step_models.py` that copied gradients, activations or states into another order: 1.3 to 1.5 times as much."""

ROUNDED = 1.01
"""XLA puts small arrays between large ones."""


@pytest.mark.parametrize(("model", "layout"), CASES)
def test_step_needs_no_more_temporaries_than_jit(model: str, layout: str) -> None:
    ours, theirs = compiled(dict(plans(model))[layout])
    assert temporaries(ours) <= ROUNDED * temporaries(theirs)


def test_dots_sum_in_the_order_of_storage() -> None:
    x = jax.ShapeDtypeStruct((8, 4, 2), "float32")
    program = mtfc.from_jax(
        lambda x, y: jax.numpy.einsum("nmk,nml->kl", x, y), x, x, names={"x": "zeta alpha k"}
    )
    text = program.plan({}, {"one": 1}).jax()
    (summed,) = re.findall(r'einsum\("(\w\w)\w,\1\w->\w\w"', text)
    assert summed == "".join(sorted(summed))


def test_text_of_a_step_of_optax_needs_no_mtfc() -> None:
    """`is_finite` of the cross-entropy is a function of `lax`, and Adam's power of its count one of floats."""
    optimizer = optax.adam(0.1)

    def step(w: Any, state: Any, x: Any, labels: Any) -> Any:
        def loss(w: Any) -> Any:
            return optax.softmax_cross_entropy_with_integer_labels(x @ w, labels).mean()

        updates, state = optimizer.update(jax.grad(loss)(w), state)
        return optax.apply_updates(w, updates), state

    w, x = jax.numpy.ones((4, 3)), jax.numpy.ones((8, 4))
    program = mtfc.from_jax(step, w, optimizer.init(w), x, jax.numpy.zeros(8, "int32"))
    text = program.plan({"batch": "data"}, {"data": 2}).jax()
    assert "lax.is_finite(" in text and "jnp.power(" in text and "mtfc" not in text
