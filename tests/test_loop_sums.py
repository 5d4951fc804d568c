"""The sums that loops carry for gradients: added in place, and each counted once."""

import pytest

from mtfc.compiler.ir.core import walk
from mtfc.compiler.ir.ops import has_trait
from tests.harness import differentiated, load
from tests.test_pipelines import all_are_exact

NESTED = """
dim time = 3
dim layers = 2
dim batch = 2
dim d = 4
dim n = 5
mesh line = [x: 2]
layout data on line = { batch: x, allow W601 }
model net(x: [time, batch, d], ids: i32[time]) {
  param a: [d] = normal(stddev = 0.5)
  param b: [d] = normal(stddev = 0.5)
  param table: [n, d] = normal(stddev = 0.5)
  h = zeros([batch, d])
  scan x_t = x, t = ids along time {
    c = a + b
    h = h + x_t + gather(table, t, n)
    repeat layers {
      h = h * c + a
    }
    yield hs = h
  }
  loss = mean(square(hs)) + sum(a * a)
  return loss
}
train net { minimize loss; optimizer = sgd(learning_rate = 0.1) }
"""


@pytest.mark.parametrize("term", ["a", "0.5", "c", "c * a", "gather(table, t, n)"])
def test_sums_of_nested_loops_are_exact(term: str) -> None:
    """The sum of the inner loop is the gradient of `a` and of `b`, and must not start at the sum of either."""
    assert all_are_exact(load(NESTED.replace("h * c + a", f"h * c + {term}")))


def test_a_loop_adds_to_the_rows_that_it_has_read() -> None:
    (program,) = load(NESTED).programs
    step = differentiated(program, "step").function("step")
    ops = [eqn.op for eqn in walk(step.body) if not eqn.regions and has_trait(eqn, "scatter")]
    assert ops == ["add_at"]
