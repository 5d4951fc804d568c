"""Mesh-TensorFlow 0.1.21's own figures for a two-layer network: elements all-reduced, summed over all processors."""

import pytest

from mtfc.compiler.cost.sizes import Numbers
from mtfc.compiler.cost.volumes import charges, layout_cost, total
from mtfc.compiler.ir.core import Program
from tests.harness import lowered

NETWORK = """
dim batch = 64
dim io = 128
dim hidden = 256
mesh line = [all: 4]
mesh grid = [rows: 2, cols: 2]
layout replicated on line = {}
layout batch_split on line = { batch: all }
layout hidden_split on line = { hidden: all }
layout io_split on line = { io: all }
layout tiled on grid = { batch: rows, hidden: cols }
model network(x: [batch, io]) {
  param w: [io, hidden] = normal(stddev = 0.05)
  param bias: [hidden] = zeros()
  param v: [hidden, io] = normal(stddev = 0.05)
  h = relu(einsum(x, w -> [batch, hidden]) + bias)
  y = einsum(h, v -> [batch, io])
  loss = mean(square(y))
  return loss
}
train network {
  minimize loss
  optimizer = sgd(learning_rate = 0.1)
}
"""

FIGURES = {
    "replicated": 0, "batch_split": 263_172, "hidden_split": 32_768, "io_split": 131_076, "tiled": 147_972,
}  # fmt: skip


def all_reduced(program: Program) -> int:
    """Return the elements that all processors together put into all-reduces in a step. The step has no other collective."""
    cost = layout_cost(program)
    totals = total(cost.step)
    assert set(totals.collectives) <= {"all_reduce"}
    elements = totals.sent.elements
    assert isinstance(elements, int)
    return elements * cost.mesh.devices


@pytest.mark.parametrize("layout", FIGURES)
def test_elements_all_reduced(layout: str) -> None:
    assert all_reduced(lowered(NETWORK, layout=layout)) == FIGURES[layout]


def test_work_undistributed() -> None:
    """The paper counts 12,607,488 multiply-adds: six contractions, one of them for the gradient of x, and h and y twice. Our step
    has five contractions, which cost two operations per point.
    """
    program = lowered(NETWORK, "gradients", "replicated")
    assert program.mesh is not None
    contraction, ours = (
        64 * 128 * 256,
        total(charges(program.function("gradients"), Numbers(program.mesh))).flops,
    )
    assert 6 * contraction + 64 * (128 + 256) == 12_607_488
    assert isinstance(ours, int)
    assert 0 <= ours - 2 * 6 * contraction < 10 * 64 * (128 + 256)
