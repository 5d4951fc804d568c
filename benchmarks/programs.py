"""Texts of .mtf programs of any size, to measure."""

from __future__ import annotations

HEADER = """\
dim batch  = 512
dim narrow = 512
dim wide   = 2048

mesh small = [rows: 2, cols: 4]
mesh large = [rows: 32, cols: 16]

layout on_8   on small = { batch: rows, wide: cols }
layout on_512 on large = { batch: rows, wide: cols }

model chain(x: [batch, narrow]) {
"""

FOOTER = """\
  loss = mean(square(h))
  return loss
}

train chain {
  minimize loss
  optimizer = sgd(learning_rate = 0.01)
}
"""


def dense_chain(layers: int) -> str:
    """Return a chain of dense layers with relu, alternately wide and narrow, with its training step."""
    sizes = ("narrow", "wide")
    lines = ["  h = x"]
    for i in range(layers):
        source, target = sizes[i % 2], sizes[(i + 1) % 2]
        lines += [
            f"  param w{i}: [{source}, {target}] = normal(stddev = 0.05)",
            f"  param b{i}: [{target}] = zeros()",
            f"  h = relu(einsum(h, w{i} -> [batch, {target}]) + b{i})",
        ]
    return HEADER + "\n".join(lines) + "\n" + FOOTER
