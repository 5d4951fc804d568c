"""`accumulate = K`: a step over K micro-batches is a step over one batch K times as large, where the loss is a mean."""

from __future__ import annotations

import numpy as np
import pytest

from tests.harness import reference, simulate

SOURCE = """
dim batch = {batch}; dim io = 4; dim hidden = 6
mesh grid = [rows: 2, cols: 2]
layout plain on grid = {{ batch: rows, hidden: cols }}
layout stored on grid = {{ batch: rows, params: {{ io: cols }}, optimizer: {{ hidden: rows }} }}
model m(x: [batch, io]) {{
  param w: [io, hidden] = normal(stddev = 0.5)
  loss = mean(square(tanh(einsum(x, w -> [batch, hidden]))))
  return loss
}}
train m {{ minimize loss; optimizer = momentum(learning_rate = 0.5); clip = 0.01; accumulate = {accumulate} }}
"""


@pytest.mark.parametrize("layout", ["plain", "stored"])
def test_micro_batches_are_one_batch(layout: str) -> None:
    random = np.random.default_rng(0)
    x = random.standard_normal((12, 4)).astype(np.float32)
    w, m = (random.standard_normal((4, 6)).astype(np.float32) for _ in range(2))
    given = {"w": w, "w.velocity": m}
    expected = reference(SOURCE.format(batch=12, accumulate=1), "step", {"x": x, **given})
    parts = {"x": x.reshape(3, 4, 4), **given}
    actual = simulate(SOURCE.format(batch=4, accumulate=3), "step", parts, layout)
    for name in ("loss", "w", "w.velocity"):
        np.testing.assert_allclose(actual[name], expected[name], rtol=1e-5, atol=1e-7)
