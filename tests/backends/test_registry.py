"""The registry of backends, and the records of collectives that all consumers read."""

import pytest

from mtfc.backends.calibrate.kernels import COLLECTIVES as MEASURED
from mtfc.backends.numpy import prelude
from mtfc.backends.registry import BACKENDS, text_kinds
from mtfc.compiler.ir.ops.collectives import COLLECTIVES, KINDS, SENDINGS
from tests.harness import lowered

SOURCE = """\
dim a = 8
dim b = 4
mesh line = [all: 2]
layout split on line = { a: all }
model net(x: [a, b]) {
  y = sum(x, over = [a])
  return y
}
"""


@pytest.mark.parametrize("name", BACKENDS)
def test_every_backend_generates_a_module_that_loads(name: str) -> None:
    source = BACKENDS[name].generate(lowered(SOURCE))
    assert callable(BACKENDS[name].load(source).forward)


def test_kinds_of_text_are_the_modules_and_the_further_kinds() -> None:
    assert list(text_kinds()) == ["numpy", "jax", "stablehlo", "hlo"]


def test_generated_numpy_modules_count_every_kind_of_collective() -> None:
    assert tuple(prelude.SENT) == KINDS


def test_every_sending_collective_has_its_costs() -> None:
    assert {each.sending.kind for each in COLLECTIVES if each.sending} == set(KINDS)
    assert set(MEASURED) <= set(KINDS)
    assert len({sending.hlo for sending in SENDINGS.values()}) == len(KINDS)
