"""Temporary arrays of `plan.step`: no more than those of `jax.jit` with the same shardings and donation."""

import re

import jax
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
