"""Test training and schedules against optax for 100 steps; `test_optimizers.py` tests updates by given gradients."""

import pytest

from benchmarks import peer_optax
from tests.sampling import some


@pytest.mark.parametrize("call", some(peer_optax.optimizers(), 5))
def test_training_follows_optax(call: str) -> None:
    """A network that computes in f64 has the parameters of optax after each of 100 steps, under a layout that splits them."""
    found = peer_optax.largest_difference(call, peer_optax.optimizers()[call], "numpy")
    assert found <= peer_optax.LIMIT


@pytest.mark.parametrize("call", peer_optax.schedules())
@pytest.mark.parametrize("backend", ["numpy", "jax"])
def test_schedules_are_those_of_optax(call: str, backend: str) -> None:
    found = peer_optax.schedule_difference(call, peer_optax.schedules()[call], backend)
    assert found <= peer_optax.LIMIT
