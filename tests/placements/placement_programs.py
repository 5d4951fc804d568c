"""Small programs with all kinds of operators."""

from typing import Any

import numpy as np

from mtfc.compiler.ir.core import Program
from mtfc.compiler.passes.pipelines import run, simplification
from mtfc.placements.operators.unroll_loops import Slices, Unrolled
from tests.harness import load

DENSE = """
dim batch = 8
dim io = 12
dim hidden = 16
dim classes = 4
model dense(x: [batch, io], labels: i32[batch]) {
  param w: [io, hidden] = normal(stddev = 0.3)
  param bias: [hidden] = normal(stddev = 0.3)
  param v: [hidden, classes] = normal(stddev = 0.3)
  h = relu(einsum(x, w -> [batch, hidden]) + bias)
  logits = einsum(h, v -> [batch, classes])
  loss = losses.softmax_cross_entropy(logits, labels)
  return logits, loss
}
train dense { minimize loss; optimizer = momentum(learning_rate = 0.1) }
"""

CLIPPED = DENSE.replace("minimize loss;", "minimize loss; clip = 1.0;")

DETACHED = DENSE.replace("loss = ", "t = stop_gradient(w)\n  loss = 0.1 * sum(square(t)) + ")
"""The loss is a sum with a term that has no gradient."""

UNTRAINED = DENSE[: DENSE.index("train dense")]

SWAPPED = """
dim rows = 8
dim cols = 8
model swapped(x: [rows, cols]) {
  param w: [rows, cols] = normal(stddev = 0.3)
  h = tanh(x * w)
  y = einsum(rename(h, rows -> cols, cols -> rows), w -> [rows])
  loss = mean(square(y)) + mean(square(h))
  return y, loss
}
train swapped { minimize loss; optimizer = sgd(learning_rate = 0.1) }
"""
"""Two dimensions swap names, so a part of a split dimension must not get the length of the other."""

SCALARS = """
dim batch = 8
dim io = 12
dim steps = 3
model scalars(x: [batch, io]) {
  param gain: [steps] = normal(stddev = 0.3)
  h = x
  repeat steps with s = gain { h = tanh(s * (h + sum(h, over = [io]))) }
  loss = mean(square(h))
  return h, loss
}
train scalars { minimize loss; optimizer = sgd(learning_rate = 0.1) }
"""
"""Slices of a parameter are single numbers, which NumPy copies unless told otherwise."""

PADDING = """
dim batch = 4
dim taps = 2
dim one = 1
dim out = 2
model padding(x: [batch, taps], y: [batch, one]) {
  param w: [taps, out] = normal(stddev = 0.5)
  a = einsum(x, w -> [batch, out])
  b = einsum(window(y, one -> [out, taps], stride = 3, padding = (3, 1)), w -> [batch, out])
  loss = mean(a * a) + mean(b)
  return a, b, loss
}
train padding { minimize loss; optimizer = sgd(learning_rate = 0.1) }
"""
"""Two dots share a parameter and have the same dimensions, but the second cannot be split in `out`: a part would see only
padding.
"""

CONVOLUTIONS = """
import conv
dim batch = 4
dim h1 = 8
dim h2 = 4
dim h3 = 2
dim c0 = 2
dim c1 = 4
dim k = 3
dim k2 = 2
dim samples = batch
dim units = h3 * c1
dim classes = 4
model convolutions(x: [batch, h1, c0], labels: i32[batch]) {
  param f: [k, c0, c1] = normal(stddev = 0.3)
  param v: [units, classes] = normal(stddev = 0.3)
  w = window(x, h1 -> [h1, k], stride = 1, padding = (1, 1))
  y = einsum(w, f -> [batch, h1, c1])
  y = relu(nn.batch_norm(y))
  y = max(window(y, h1 -> [h2, k2], stride = 2), over = [k2])
  y = y + shift(y, h2)
  y = max(window(y, h2 -> [h3, k2], stride = 2), over = [k2])
  z = nn.dropout(reshape(rename(y, batch -> samples) -> [samples, units]), rate = 0.5)
  logits = einsum(z, v -> [samples, classes])
  loss = losses.softmax_cross_entropy(logits, rename(labels, batch -> samples))
  return logits, loss
}
train convolutions { minimize loss; optimizer = sgd(learning_rate = 0.1) }
"""

RECURRENT = """
import rnn
dim batch = 4
dim length = 3
dim words = 8
dim vocab = words
dim units = 4
dim inputs = units
dim layers = 2
model recurrent(read: i32[batch, length], next: i32[batch, length]) {
  x = nn.dropout(nn.embedding[vocab = words, d_model = units](read, stddev = 0.5), rate = 0.5)
  repeat layers {
    x = nn.dropout(rnn.lstm[hidden = units](rename(x, units -> inputs)), rate = 0.5)
  }
  logits = nn.dense[d_out = vocab](rename(x, units -> inputs))
  loss = losses.softmax_cross_entropy(logits, next)
  return logits, loss
}
train recurrent { minimize loss; optimizer = adam(learning_rate = 0.1) }
"""

ATTENTION = """
dim batch = 4
dim length = 4
dim memory = length
dim model_dim = 8
dim inner = model_dim
dim heads = 2
dim key = 4
model attend(x: [batch, length, model_dim]) {
  param wq: [model_dim, heads, key] = normal(stddev = 0.3)
  param wk: [model_dim, heads, key] = normal(stddev = 0.3)
  param wo: [heads, key, inner] = normal(stddev = 0.3)
  q = einsum(x, wq -> [batch, heads, length, key])
  k = rename(einsum(x, wk -> [batch, heads, length, key]), length -> memory)
  weights = nn.softmax[d = memory](einsum(q, k -> [batch, heads, length, memory]))
  y = einsum(weights, k, wo -> [batch, length, inner])
  loss = mean(square(y))
  return y, loss
}
train attend { minimize loss; optimizer = sgd(learning_rate = 0.1) }
"""

PROGRAMS = {
    "dense": "import nn\nimport losses\n" + DENSE,
    "clipped": "import nn\nimport losses\n" + CLIPPED,
    "detached": "import nn\nimport losses\n" + DETACHED,
    "untrained": "import nn\nimport losses\n" + UNTRAINED,
    "swapped": SWAPPED,
    "scalars": SCALARS,
    "padding": PADDING,
    "convolutions": "import nn\nimport losses\n" + CONVOLUTIONS,
    "recurrent": "import nn\nimport losses\n" + RECURRENT,
    "attention": "import nn\n" + ATTENTION,
}


def prepared(name: str) -> Program:
    (program,) = load(PROGRAMS[name]).programs
    return run(program, simplification())


def arguments(name: str) -> dict[str, Any]:
    """Return arrays for the inputs and parameters of a program's forward pass."""
    random = np.random.default_rng(0)
    found = {}
    for argument in prepared(name).function("forward").arguments:
        type = argument.value.type
        shape = [dim.size for dim in type.dims]
        is_index = type.dtype == "i32"
        found[argument.value.name] = (
            random.integers(0, 4, shape).astype(np.int32)
            if is_index
            else (0.5 * random.standard_normal(shape)).astype(np.float32)
        )
    return found


def of_slice(array: Any, at: Slices) -> Any:
    """Return a view of an array after indexing it with several slices in turn."""
    for axis, index in at:
        array = array[(*(slice(None),) * axis, index, ...)]
    return array


def sliced(unrolled: Unrolled, arrays: dict[str, Any]) -> dict[str, Any]:
    """Return arguments of the unrolled function from those of the function."""
    found = dict(arrays)
    for name, (whole, at) in unrolled.slices.items():
        found[name] = arrays[whole]
        for axis, index in at:
            found[name] = found[name].take(index, axis)
    return found
