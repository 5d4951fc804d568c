"""cse takes attributes as the ops mean them: `sum` over a set of dimensions, `max` over dimensions in an order."""

from typing import Any

import numpy as np
import pytest

from mtfc.backends.interpreter import interpret
from mtfc.compiler.ir.builder import Builder, Names
from mtfc.compiler.ir.core import Argument, Function, Output, Program, Value
from mtfc.compiler.ir.types import Dim, TensorType
from mtfc.compiler.passes.cse import Cse
from mtfc.compiler.passes.pass_base import Pass
from mtfc.compiler.passes.pipelines import run
from tests.harness import call, differentiated, jax_module, load, lowered, numpy_module

A, B, C = Dim("a", 2), Dim("b", 2), Dim("c", 2)

TIES = """\
dim a = 2
dim b = 2
mesh line = [all: 2]
layout whole on line = {}
layout split on line = { a: all }
model m(x: [a, b]) {
  param w: [a, b] = zeros()
  y = x + w
  p = max(y, over = [a, b])
  q = max(y, over = [b, a])
  loss = p + 10.0 * q
  return loss
}
train m {
  minimize loss
  optimizer = sgd(learning_rate = 1.0)
}
"""

X = np.array([[0, 1], [1, 0]], np.float32)
SLOPES = np.array([[0, 1], [10, 0]], np.float32)
"""The largest element is at [0, 1] and at [1, 0]: the first by rows, and the first by columns."""


@pytest.mark.parametrize("early", [False, True])
def test_each_order_of_dimensions_has_its_own_first_among_equals(early: bool) -> None:
    """Also if cse runs before differentiation: the order decides about gradients."""
    (program,) = load(TIES).programs
    before: tuple[Pass, ...] = (Cse(),) if early else ()
    whole = run(differentiated(run(program, before), "gradients"), (Cse(),))
    found = interpret(whole.function("gradients"), whole, {"x": X, "w": 0 * X})
    np.testing.assert_array_equal(found["d_w"], SLOPES)


@pytest.mark.parametrize("layout", ["whole", "split"])
@pytest.mark.parametrize("module", [numpy_module, jax_module])
def test_both_backends_keep_the_orders_apart(module: Any, layout: str) -> None:
    program = lowered(TIES, "gradients", layout)
    found = call(module(program), program.function("gradients"), {"x": X, "w": 0 * X})
    np.testing.assert_array_equal(found["d_w"], SLOPES)


def equations_left(op: str, type: TensorType, first: dict[str, Any], second: dict[str, Any]) -> int:
    """Return how many of two equations on one operand cse keeps."""
    x, build = Value("x", type), Builder(Names(["x"]))
    outputs = [Output(f"y{i}", build(op, x, **attributes)) for i, attributes in enumerate((first, second))]
    forward = Function("forward", (Argument(x, "input"),), tuple(build.body), tuple(outputs))
    program = Program("p", {dim.name: dim for dim in (A, B, C)}, (), (forward,))
    return len(run(program, (Cse(),)).function("forward").body)


NUMBERS, TRUTHS = TensorType("f32", (A, B)), TensorType("bool", (A, B))


@pytest.mark.parametrize(
    ("op", "type", "kept"),
    [
        ("sum", NUMBERS, 1),
        ("prod", NUMBERS, 1),
        ("any", TRUTHS, 1),
        ("all", TRUTHS, 1),
        ("max", NUMBERS, 2),
        ("min", NUMBERS, 2),
        ("is_argmax", NUMBERS, 2),
    ],
)
def test_a_reduction_over_a_set_is_computed_once(op: str, type: TensorType, kept: int) -> None:
    assert equations_left(op, type, {"over": (A, B)}, {"over": (B, A)}) == kept


def test_a_renaming_is_a_set_of_pairs() -> None:
    pairs = ((A, C), (B, A))
    assert equations_left("rename", NUMBERS, {"mapping": pairs}, {"mapping": pairs[::-1]}) == 1


def test_the_order_of_dimensions_in_storage_counts() -> None:
    assert equations_left("einsum", NUMBERS, {"dims": (A, B)}, {"dims": (B, A)}) == 2


def test_zeros_of_different_signs_are_different() -> None:
    pad = {"source": A, "target": Dim("c", 2), "before": 0, "stride": 1}
    assert equations_left("pad", NUMBERS, {**pad, "value": 0.0}, {**pad, "value": -0.0}) == 2
