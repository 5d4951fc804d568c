"""The dtypes of results under mixed precision."""

from mtfc.compiler.passes.mixed_precision import MixedPrecision
from mtfc.compiler.passes.pipelines import run
from tests.harness import load

SOURCE = """
dim batch = 8; dim io = 4
mesh line = [all: 2]
layout data on line = { batch: all }
model m(x: [batch, io]) {
  param w: [io] = normal(stddev = 0.05)
  y = einsum(x, w -> [batch])
  loss = sum(square(y))
  return loss, y
}
train m { minimize loss; optimizer = sgd(learning_rate = 0.1); precision = { params: f32, compute: bf16 } }
"""


def test_only_scalar_results_are_widened() -> None:
    """A loss is handed out in f32; a tensor keeps the dtype that it is computed in."""
    (program,) = load(SOURCE).programs
    outputs = run(program, (MixedPrecision(),)).function("forward").outputs
    assert {output.name: output.value.type.dtype for output in outputs} == {"loss": "f32", "y": "bf16"}
