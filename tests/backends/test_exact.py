"""The exact check finds wrong gradients, also where some elements have no meaning in the field."""

import warnings

import numpy as np
import pytest

from mtfc.backends.exact.check import ExactReference
from mtfc.backends.exact.prime_field import PRIMES, PrimeField
from mtfc.backends.exact.residues import INFINITY, POISON, ExactArray
from mtfc.compiler.passes.pipelines import lower
from tests.harness import load

SOURCE = """dim n = 12
mesh grid = [rows: 2]
model m(x: f32[n], w: f32[n]) {{
  loss = sum({})
  return loss
}}
layout split = {{ n: rows }}
"""


def reference(expression: str) -> ExactReference:
    (program,) = load(SOURCE.format(expression)).programs
    return ExactReference(program)


def changed(x: ExactArray, place: int, value: np.uint64) -> ExactArray:
    values = x.residues().values.copy()
    values[place] = value
    return ExactArray(x.field, values, x.dtype, is_residue=True)


PARTLY_UNDEFINED = [
    "where(w > 0, x / relu(w), 0.0)",
    "sqrt(relu(w) * x) + x",
    "rsqrt(relu(w)) * x",
    "log(relu(w)) * x",
]


@pytest.mark.parametrize("expression", PARTLY_UNDEFINED)
def test_elements_without_a_meaning_hide_no_wrong_gradient(expression: str) -> None:
    """The gradient of `x` has no meaning where `w` is negative. It is judged elsewhere."""
    exact = reference(expression)
    for draw in range(2):
        _, outputs = exact.expected("gradients", draw)
        assert exact.disagreeing(outputs, draw) == ()
        gradient = outputs["d_x"].residues().values
        assert 0 < (gradient >= INFINITY).sum() < gradient.size
        place = int((gradient < INFINITY).argmax())
        wrong = changed(outputs["d_x"], place, gradient[place] ^ np.uint64(1))
        assert exact.disagreeing({**outputs, "d_x": wrong}, draw) == ("x",)


def test_a_gradient_without_a_meaning_needs_a_cause() -> None:
    """All values of the product have a meaning, so its gradients must have one, too."""
    exact = reference("x * w")
    _, outputs = exact.expected("gradients", 0)
    wrong = changed(outputs["d_x"], 0, POISON)
    assert exact.disagreeing({**outputs, "d_x": wrong}, 0) == ("x",)


def test_casts_to_integers_are_judged() -> None:
    module = load(SOURCE.format("cast(cast(x * w, i32), f32) + cast(cast(w, u32), f32)"))
    (program,), (layout,) = module.programs, module.layouts
    found = ExactReference(program).compare(lower(program, layout.mesh, layout.layout, "gradients"))
    assert found.ok
    assert found.unsure["casts to integers"] > 0


def test_draws_of_integers_have_either_sign() -> None:
    """Sums of integers of one sign saturate where a program limits them."""
    (program,) = load(SOURCE.replace("x: f32[n]", "x: i32[n]").format("cast(x, f32) * w")).programs
    exact = ExactReference(program)
    drawn = [exact.expected("forward", draw)[0]["x"].values for draw in range(2)]
    assert drawn[0].min() >= 0 > drawn[1].min()


def test_scalars_wrap_around_without_a_warning() -> None:
    """NumPy warns of scalars whose difference is negative, unlike of arrays."""
    field, small, large = PrimeField(PRIMES[0]), np.uint64(3), np.uint64(PRIMES[0] - 1)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert field.subtract(small, np.uint64(5)) == PRIMES[0] - 2
        assert (field.add(small, large), field.add(small, small)) == (2, 6)
        assert (field.negative(small), field.negative(np.uint64(0))) == (PRIMES[0] - 3, 0)
