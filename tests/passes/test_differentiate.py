"""`differentiate` adds functions once."""

import pytest

from mtfc.compiler.passes.autodiff.differentiate import Differentiate
from tests.harness import load

SOURCE = """
dim batch = 8; dim io = 4
mesh line = [all: 2]
layout data on line = { batch: all }
model m(x: [batch, io]) {
  param w: [io] = normal(stddev = 0.05)
  loss = sum(square(einsum(x, w -> [batch])))
  return loss
}
train m { minimize loss; optimizer = sgd(learning_rate = 0.1) }
"""


@pytest.mark.parametrize("of", ["step", "gradients", "module"])
def test_a_second_run_changes_nothing(of: str) -> None:
    (program,) = load(SOURCE).programs
    once = Differentiate(of).run(program)
    assert Differentiate(of).run(once) is once
