"""`f(y) sharing tower`: a call with the parameters of an earlier call."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from mtfc.backends.interpreter import interpret
from tests.harness import agree, diagnose, differentiated, generic_data, load

HEAD = """
import nn
dim batch = 8; dim io = 4; dim hidden = 8; dim layers = 2
mesh grid = [rows: 2, cols: 2]
layout both = { batch: rows, hidden: cols }
fn tower(x: [..., io]) -> [..., io] {
  h = nn.dense[d_out = hidden](x)
  repeat layers {
    param u: [hidden] = normal(stddev = 1.0)
    h = h + tanh(h * u)
  }
  return nn.dense[d_out = io](h)
}
fn pair(x: [..., io], y: [..., io]) -> ([..., io], [..., io]) {
  a = tower(x)
  b = tower(y) sharing tower
  return a, b
}
fn counted(x: [..., io]) -> [..., io] {
  state calls: [] = 0
  update calls = calls + 1
  param w: [io] = ones()
  return x * w + calls
}
"""

SIAMESE = (
    HEAD
    + """
model siamese(x: [batch, io], y: [batch, io]) {
  a, b = pair(x, y)
  c, d = pair(y, x) as second sharing pair
  loss = mean(square(a - b)) + mean(c * d * d)
  return loss
}
train siamese { minimize loss; optimizer = sgd(0.1) }
"""
)


def tower(p: Any, x: Any) -> Any:
    h = x @ p["pair.tower.dense.w"] + p["pair.tower.dense.bias"]
    for u in p["pair.tower.layers.u"]:
        h = h + jnp.tanh(h * u)
    return h @ p["pair.tower.dense_2.w"] + p["pair.tower.dense_2.bias"]


def loss(p: Any) -> Any:
    a, b = tower(p, p["x"]), tower(p, p["y"])
    return jnp.mean(jnp.square(a - b)) + jnp.mean(b * a * a)


def test_towers_share_parameters_and_their_gradients() -> None:
    (program,) = load(SIAMESE).programs
    assert [each.name for each in program.parameters] == [
        "pair.tower.dense.w",
        "pair.tower.dense.bias",
        "pair.tower.layers.u",
        "pair.tower.dense_2.w",
        "pair.tower.dense_2.bias",
    ]
    whole = differentiated(program, "gradients")
    arrays = generic_data(whole.function("gradients"), seed=2)
    found = interpret(whole.function("gradients"), whole, arrays)
    value, grads = jax.jit(jax.value_and_grad(loss))(arrays)
    np.testing.assert_allclose(found["loss"], value, rtol=1e-4)
    for name, wanted in grads.items():
        np.testing.assert_allclose(found[f"d_{name}"], wanted, rtol=1e-3, atol=1e-4, err_msg=name)


def test_layouts_agree() -> None:
    agree(SIAMESE, jax=False)


@pytest.mark.parametrize(
    ("second", "message"),
    [
        ("tower(y) sharing towr", "under the name `towr`"),
        ("nn.dense[d_out = hidden](y) sharing tower", "no parameter `tower.w`"),
        ("relu(y) sharing tower", "owns no parameters to share"),
        ("nn.gelu(y) sharing tower", "has no parameters to share"),
        ("counted(y) sharing counted", "is a state"),
        ("nn.dense[d_out = io](h) sharing dense", "another type or initial value"),
        ("tower(y) as tower", "has another call in it"),
    ],
)
def test_other_calls_are_refused(second: str, message: str) -> None:
    source = f"""{HEAD}
model m(x: [batch, io], y: [batch, io]) {{
  a = tower(x) as tower
  c = counted(x)
  h = nn.dense[d_out = hidden](x)
  b = {second}
  return a, b, c, h
}}
"""
    errors = [each for each in diagnose(source) if each.code.startswith("E")]
    assert errors and message in errors[0].message, errors
    if "another call" in message:
        assert errors[0].help and "sharing tower" in errors[0].help


def test_a_call_that_nothing_uses_may_share() -> None:
    source = f"""{HEAD}
model m(x: [batch, io], y: [batch, io]) {{
  a = tower(x)
  b = tower(y) sharing tower
  return a
}}
"""
    from mtfc.frontend.check import check

    assert [each.code for each in check(source, "m.mtf") if each.code.startswith("E")] == []
