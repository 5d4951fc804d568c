"""The TPU compiler: the error without libtpu, and the cycles of a compiled dot with it."""

from __future__ import annotations

from importlib.util import find_spec

import pytest

from mtfc.backends import hlo
from mtfc.backends.common.devices import Unavailable
from mtfc.backends.jax import tpu_compiler
from tests.harness import lowered


def test_without_libtpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tpu_compiler, "find_spec", lambda name: None)
    with pytest.raises(Unavailable, match="pip install libtpu"):
        tpu_compiler.topology("v5e:2x2")


@pytest.mark.skipif(find_spec("libtpu") is None, reason="libtpu is not installed")
def test_a_dot_takes_the_cycles_of_its_flops() -> None:
    text = """\
dim a = 8192
dim b = 4096
dim c = 4096
mesh line = [all: 4]
layout split on line = { a: all }
model net(x: [a, b]) {
  param w: [b, c] = normal()
  h = einsum(x, w -> [a, c])
  return h
}
"""
    cycles = hlo.cycles(tpu_compiler.compiled(lowered(text), "v5e:2x2", "forward").as_text())
    flops = 2 * 8192 * 4096 * 4096 / 4
    assert flops / 197e12 < cycles / tpu_compiler.CLOCKS["v5e"] < 2 * flops / 197e12
