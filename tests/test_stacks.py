"""`stack` and `unstack`: values, gradients and layouts."""

import numpy as np

from tests.harness import agree, reference

SOURCE = """
dim batch = 4; dim io = 4; dim three = 3
mesh grid = [rows: 2, cols: 2]
layout both on grid = { batch: rows, io: cols }
layout one on grid = { batch: (rows, cols) }
model m(x: [batch, io], y: [io, batch], n: []) {
  param w: [batch, io] = normal()
  together = stack([x, y, w], three)
  first, second, third = unstack(together * together, three)
  two = 2.0
  numbers = stack([n, two, n], three)
  loss = sum(first * second * third)
  return together, first, numbers, loss
}
"""


def test_stacks_are_joined_in_order() -> None:
    """The new dimension comes first, and the dimensions of the first operand follow."""
    draw = np.random.default_rng(0).normal
    arrays = {name: draw(size=(4, 4)).astype(np.float32) for name in "xyw"} | {"n": np.float32(5)}
    found = reference(SOURCE, "forward", arrays)
    together = np.stack([arrays["x"], arrays["y"].T, arrays["w"]])
    np.testing.assert_array_equal(found["together"], together)
    np.testing.assert_array_equal(found["first"], together[0] ** 2)
    np.testing.assert_array_equal(found["numbers"], [5, 2, 5])


def test_every_layout_agrees() -> None:
    agree(SOURCE)
