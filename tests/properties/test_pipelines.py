"""Random loops over layers run as pipelines: whatever a layer does and whatever follows it, stages compute the same."""

import os
from random import Random

import numpy as np
import pytest

from mtfc.compiler.passes.recompute import KEPT, Recompute
from mtfc.driver.loading.selection import LayoutOnMesh
from mtfc.driver.verification.exact_cases import exact_cases
from tests.harness import load

LAYERS = (
    "h = h + einsum(relu(einsum(h, w -> [batch, time, e])), v -> [batch, time, d])", "h = h * (1.0 + scale) + memory",
    "h = nn.layer_norm(h) + 0.5 * h", "h = nn.dropout(h, rate = 0.25)", "h = where(keep, h, 0.5 * h)",
    "total = 0.5 * total + mean(h * h)", "count = count * 1.5\n    h = h + 0.1 * count",
    "side = side + mean(h -> [batch, d])\n    h = h + 0.1 * side", "h = h + cumsum(h, over = time) * 0.1",
    "yield seen = mean(h -> [batch, d])", "yield sums = sum(h)", "h = h + shared",
)  # fmt: skip
"""Lines that a layer may have."""

ENDS = (
    "loss = mean(square(h - y))",
    "loss = sum(mean(square(h), over = time) * weight -> []) / sum(weight)",
    "loss = mean(square(einsum(nn.dropout(h, rate = 0.2), head -> [batch, time, classes])))",
    "loss = mean(log(1.0 + exp(einsum(h, head -> [batch, time, classes]))))",
    "loss = log(1.0 + mean(square(h)))",
    "loss = mean(square(cumsum(h, over = time) + shift(h, time)))",
    "loss = mean(square(max(h, over = time))) + mean(exp(h) / sum(exp(h), over = time))",
    "loss = mean(square(slice(h, time -> single, start = 3)))",
    "loss = mean(h)",
    "loss = mean(square(h - mean(h, over = batch)))",
    "z = einsum(h, head -> [batch, time, classes])\n  loss = mean(square(z)) + 0.1 * mean(square(h))",
)
"""Lines that may follow the loop. The gradient of the fifth, and of the last but one, needs all micro-batches."""


def source(random: Random) -> str:
    """Return a program with a layout for pipelines."""
    stages, chunks = random.choice((2, 2, 3, 4)), random.choice((1, 1, 2, 3))
    micro = stages * random.randint(1, 3) if chunks > 1 else random.choice((1, 2, 3, 4, 6, 8))
    parts = random.randint(1, 2)
    lines = [LAYERS[0], *random.sample(LAYERS[1:], random.randint(1, 6))]
    lines.sort(key=lambda line: line.startswith("yield"))
    end = random.choice(ENDS)
    extra = ["0.1 * total"] if any("total" in line for line in lines) else []
    extra += ["0.1 * mean(side)"] if any("side" in line for line in lines) else []
    extra += ["0.1 * mean(seen)"] if any("seen" in line for line in lines) else []
    extra += ["0.01 * sum(sums)"] if any("sums" in line for line in lines) else []
    body = "\n    ".join(lines)
    rules = ["layers: stages", random.choice(("batch: data", "batch: (data, stages)"))]
    rules += [random.choice(("e: cols", "time: cols", "params: { *: cols }", "optimizer: { *: data }"))]
    cut = f"batch: {micro}" + (f", layers: {chunks}" if chunks > 1 else "")
    word = random.choice((" checkpoint", "", ""))
    return f"""
import nn
dim layers = {stages * chunks * random.randint(1, 2)}
dim batch = {2 * micro * parts * stages}
dim time = 4
dim d = 4
dim e = 4
dim classes = 3
dim single = 1
mesh grid = [stages: {stages}, data: 2, cols: 2]
layout piped on grid = {{ {", ".join(rules)}, pipeline layers{word}: {{ {cut} }}, allow W601 }}
model net(x: [batch, time, d], y: [batch, time, d], keep: bool[batch, time], weight: [batch]) {{
  h = x
  total = 0.0
  count = 1.0
  side = zeros([batch, d])
  memory = 0.5 * y
  param shared: [d] = normal(stddev = 0.3)
  param head: [d, classes] = normal(stddev = 0.3)
  repeat layers {{
    param w: [d, e] = normal(stddev = 0.4)
    param v: [e, d] = normal(stddev = 0.4)
    param scale: [d] = normal(stddev = 0.1)
    {body}
  }}
  {end}
  loss = {" + ".join(["loss", *extra])}
  return loss, h
}}
train net {{
  minimize loss
  optimizer = {random.choice(("sgd(learning_rate = 0.1)", "adam(learning_rate = 0.1)"))}
  {random.choice(("", "clip = 1.0", f"accumulate = {random.choice((1, 2))}"))}
}}
"""


@pytest.mark.parametrize("seed", range(int(os.environ.get("EVERY_PIPELINE", "4"))))
def test_random_pipelines_are_exact(seed: int) -> None:
    random = Random(seed)
    module = load(source(random))
    (program,) = module.programs
    (declared,) = module.layouts
    word = random.choice(("", *KEPT))
    case = LayoutOnMesh(declared.mesh, declared.layout, limit=Recompute(word) if word else None)
    with np.errstate(all="ignore"):
        found = list(exact_cases(program, [case], seed=0))
    assert all(each.ok and not each.skipped for each in found), source(Random(seed))
