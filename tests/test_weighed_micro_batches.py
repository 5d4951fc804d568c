"""`weigh_by = tokens`: a step over K micro-batches equals one over a batch K times as large, for a loss per token."""

import numpy as np
import pytest

import mtfc
from tests.harness import SINGLE, Arrays, call, jax_module, lowered, reference, simulate

SOURCE = """
import losses
dim batch = {batch}; dim length = 6; dim vocab = 8; dim hidden = 4
mesh grid = [rows: 2, cols: 2]
layout plain on grid = {{ batch: rows, hidden: cols }}
layout tokens on grid = {{ length: cols }}
layout stored on grid = {{ batch: rows, vocab: cols, params: {{ hidden: rows }}, optimizer: {{ hidden: rows }} }}
model lm(x: [batch, length, hidden], labels: i32[batch, length], weights: {dtype}[batch, length], wanted: [batch, length]) {{
  param e: [hidden, vocab] = normal(stddev = 0.5)
  logits = einsum(x, e -> [batch, length, vocab])
  of_tokens = cast(weights, f32)
  loss = losses.weighted_cross_entropy(logits, labels, of_tokens)
  tokens = sum(weights)
  score = sum(max(logits, over = vocab) * wanted) / maximum(sum(wanted), 1.0)
  whole = mean(square(logits))
  return loss, tokens, score, whole
}}
train lm {{
  minimize loss
  optimizer = momentum(learning_rate = 0.5)
  clip = 0.1
  report tokens, score, whole, grad_norm
  {entries}
}}
"""

WEIGHED = "accumulate = 3; weigh_by = tokens"


def source(batch: int = 4, entries: str = WEIGHED, dtype: str = "f32") -> str:
    return SOURCE.format(batch=batch, entries=entries, dtype=dtype)


def drawn(dtype: str = "f32") -> Arrays:
    """Return twelve rows with few tokens in the second micro-batch, and none in the last."""
    random = np.random.default_rng(0)
    weights = (random.random((12, 6)) < 0.7).astype(np.int32 if dtype == "i32" else np.float32)
    weights[5:], wanted = 0, random.random((12, 6)).astype(np.float32)
    wanted[:4] = 0
    return {
        "x": random.standard_normal((12, 6, 4)).astype(np.float32),
        "labels": random.integers(0, 8, (12, 6)).astype(np.int32),
        "weights": weights,
        "wanted": wanted,
        "e": random.standard_normal((4, 8)).astype(np.float32),
        "e.velocity": random.standard_normal((4, 8)).astype(np.float32),
    }


def stacked(given: Arrays) -> Arrays:
    return {n: x if n.startswith("e") else x.reshape(3, 4, *x.shape[1:]) for n, x in given.items()}


@pytest.mark.parametrize("backend", ["numpy", "jax"])
@pytest.mark.parametrize(
    ("layout", "dtype"), [("plain", "f32"), ("plain", "i32"), ("tokens", "f32"), ("stored", "i32")]
)
def test_weighed_micro_batches_are_one_batch(layout: str, dtype: str, backend: str) -> None:
    given, text = drawn(dtype), source(dtype=dtype)
    expected = reference(source(12, "", dtype), "step", given)
    if backend == "numpy":
        actual = simulate(text, "step", stacked(given), layout)
    else:
        placed = lowered(text, "step", layout)
        actual = call(jax_module(placed), placed.function("step"), stacked(given))
    assert np.isfinite(expected["loss"])
    expected["tokens"] = expected["tokens"].astype(np.float32)
    SINGLE.check(actual, expected, f"{layout} on {backend}")


def test_gradients_for_other_optimizers_are_weighed() -> None:
    given = drawn()
    params = {"e": given["e"]}
    inputs = {name: x for name, x in given.items() if not name.startswith("e")}
    whole = mtfc.compile_text(source(12, ""), layout="plain")
    parts = mtfc.compile_text(source(), layout="plain")
    loss, gradients = whole.value_and_grad(params, inputs)
    its_loss, its = parts.value_and_grad(params, stacked(inputs), accumulate=True)
    np.testing.assert_allclose(its_loss, loss, rtol=1e-6)
    np.testing.assert_allclose(np.asarray(its["e"]), np.asarray(gradients["e"]), rtol=1e-5, atol=1e-7)
