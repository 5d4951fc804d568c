"""Losses and normalizations of the library against formulas in NumPy, under layouts that split each dimension."""

import numpy as np

from mtfc.backends.interpreter import interpret
from tests.harness import agree, generic_data, load

SOURCE = """
import losses
import nn
dim batch = 4; dim height = 6; dim channels = 8; dim groups = 4
mesh grid = [a: 2, b: 2]
layout examples = { batch: a, height: b }
layout features = { channels: a, groups: a, batch: b }
model m(x: [batch, height, channels], y: [batch, channels], given: [batch, channels]) {
  normal = nn.group_norm[groups = groups](x)
  by_part = nn.part_batch_norm[parts = batch](x)
  loss = losses.soft_cross_entropy(y, given)
  return normal, by_part, loss
}
"""


def test_they_are_the_formulas() -> None:
    (program,) = load(SOURCE).programs
    arrays = generic_data(program.function("forward"), 4)
    found = interpret(program.function("forward"), program, arrays)
    parts = arrays["x"].reshape(4, 6, 4, 2)
    mean, variance = parts.mean((1, 3), keepdims=True), parts.var((1, 3), keepdims=True)
    normal = ((parts - mean) / np.sqrt(variance + 1e-5)).reshape(4, 6, 8)
    wanted = normal * arrays["group_norm.scale"] + arrays["group_norm.bias"]
    np.testing.assert_allclose(found["normal"], wanted, rtol=1e-4, atol=1e-5)
    mean, variance = arrays["x"].mean(1, keepdims=True), arrays["x"].var(1, keepdims=True)
    normal = (arrays["x"] - mean) / np.sqrt(variance + 1e-5)
    wanted = normal * arrays["part_batch_norm.scale"] + arrays["part_batch_norm.bias"]
    np.testing.assert_allclose(found["by_part"], wanted, rtol=1e-4, atol=1e-5)
    y = arrays["y"] - np.log(np.exp(arrays["y"]).sum(-1, keepdims=True))
    np.testing.assert_allclose(found["loss"], -(arrays["given"] * y).sum(-1).mean(), rtol=1e-5)


def test_layouts_agree() -> None:
    agree(SOURCE, jax=False)
