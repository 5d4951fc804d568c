"""Temporary arrays of `plan.step`: no more than those of `jax.jit` with the same shardings and donation."""

import re
from typing import Any

import jax
import numpy as np
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


def gradient_of_strided_convolution(x: Any, w: Any) -> Any:
    dims = ("NHWC", "HWIO", "NHWC")

    def loss(x: Any) -> Any:
        return jax.numpy.sin(jax.lax.conv_general_dilated(x, w, (2, 3), "SAME", dimension_numbers=dims)).sum()

    return jax.grad(loss)(x)


def test_gradients_of_strided_convolutions_store_no_windows() -> None:
    x, w = jax.numpy.ones((2, 7, 8, 3)), jax.random.normal(jax.random.key(0), (3, 2, 3, 4))
    plan = mtfc.from_jax(gradient_of_strided_convolution, x, w).plan({}, {"one": 1})
    text = plan.jax()
    assert "lhs_dilation=(2, 3)" in text
    assert " window(" not in text and "lax.pad(" not in text
    np.testing.assert_allclose(plan.step(x, w), gradient_of_strided_convolution(x, w), rtol=1e-5, atol=1e-6)
