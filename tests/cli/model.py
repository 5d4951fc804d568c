"""A small model, and the outcome of a command."""

import json
from typing import Any

import attrs

MODEL = """\
dim batch = 4
dim io = 6
dim classes = 3

mesh line = [all: 2]
mesh grid = [rows: 2, cols: 3]

layout replicated on line = {}
layout data on line = { batch: all }
layout both on grid = { batch: rows, io: cols }

model small(x: f32[batch, io], labels: i32[batch]) {
  param w: f32[io, classes] = normal(stddev = 0.5)
  param bias: f32[classes] = zeros()

  y = einsum(x, w -> [batch, classes]) + bias
  loss = mean(square(y - one_hot(labels, classes)))
  return y, loss
}

train small {
  minimize loss
  optimizer = sgd(learning_rate = 0.1)
}
"""


@attrs.frozen
class Outcome:
    """Exit status, standard output, standard error."""

    status: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)
