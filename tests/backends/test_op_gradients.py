"""Gradients of ops that look up, count or choose, whole and split: against `jax.grad` and against finite differences."""

from typing import Any

import attrs
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from mtfc.backends.interpreter import interpret
from mtfc.backends.numpy import backend as numpy_backend
from mtfc.compiler.ir.core import Program
from mtfc.compiler.ir.types import FLOATS, Mesh
from mtfc.compiler.passes.pipelines import differentiation, lower, run
from tests import oracle
from tests.backends.cases import CASES
from tests.backends.models import layout
from tests.backends.small import Case

GRID = Mesh("grid", (("rows", 2), ("cols", 3)))
SPLITS = (
    layout(a="rows", b="cols"),
    layout(b="rows cols"),
    layout(a="cols", m="rows"),
    layout(c="cols", m="rows"),
)
CHOSEN = [name for name in CASES if name.split()[0] in ("gather", "scatter_add", "cumsum", "top_k", "prod")]


def in_f64(case: Case) -> Case:
    """Return the case with floating-point operands in f64."""
    return attrs.evolve(case, inputs=[_in_f64(text) for text in case.inputs])


def _in_f64(text: str) -> str:
    dtype, *dims = text.split()
    return " ".join(["f64" if dtype in FLOATS else dtype, *dims])


def general_data(program: Program) -> dict[str, Any]:
    """Draw operands in which no two numbers are equal and none is near 0; some indices point outside."""
    random, arrays = np.random.default_rng(3), {}
    for argument in program.function("forward").arguments:
        type = argument.value.type
        shape = tuple(dim.size for dim in type.dims)
        if type.dtype in FLOATS:
            arrays[argument.value.name] = random.permutation(np.linspace(0.5, 2, type.size)).reshape(shape)
        else:
            arrays[argument.value.name] = random.integers(0, 7, shape).astype(
                type.dtype.replace("i", "int").replace("u", "uint")
            )
    return arrays


FLOATING = [name for name in CHOSEN if any(text.startswith("f64") for text in in_f64(CASES[name]).inputs)]


@pytest.mark.parametrize("name", FLOATING)
def test_gradients_are_those_of_jax_and_of_finite_differences(name: str) -> None:
    program = in_f64(CASES[name]).program()
    arrays, whole = general_data(program), run(program, differentiation("gradients"))
    found = interpret(whole.function("gradients"), whole, arrays)
    real = {key: x for key, x in arrays.items() if x.dtype == np.float64}
    with jax.enable_x64(True):
        expected = jax.grad(lambda given: total(program, {**arrays, **given}))(real)
    for key, gradient in expected.items():
        np.testing.assert_allclose(found[f"d_{key}"], gradient, 1e-12, 1e-12)
    direction = {key: np.random.default_rng(4).uniform(-1, 1, x.shape) for key, x in real.items()}
    slope = sum(float((found[f"d_{key}"] * v).sum()) for key, v in direction.items())
    assert abs(slope - difference(program, arrays, direction)) < 1e-6 * (1 + abs(slope))
    for rules in SPLITS:
        local = lower(program, GRID, rules, "gradients")
        module = numpy_backend.load(numpy_backend.generate(local, checked=True))
        split = module.unshard(
            module.gradients({}, module.shard(arrays, module.INPUTS)), module.OUTPUTS["gradients"]
        )
        for key, value in found.items():
            np.testing.assert_allclose(split[key].astype(float), value.astype(float), 1e-12, 1e-12)


def total(program: Program, arrays: dict[str, Any]) -> Any:
    """Return the sum of all floating-point outputs, which the test differentiates."""
    outputs = oracle.evaluate(program.function("forward"), list(arrays.values()))
    return sum((x.sum() for x in outputs.values() if jnp.issubdtype(x.dtype, jnp.floating)), jnp.zeros(()))


def difference(program: Program, arrays: dict[str, Any], direction: dict[str, Any]) -> float:
    """Return the slope of the sum along a direction."""

    def value(step: float) -> float:
        moved = {key: x + step * direction[key] if key in direction else x for key, x in arrays.items()}
        outputs = interpret(program.function("forward"), program, moved)
        return float(sum(np.sum(x) for x in outputs.values() if x.dtype == np.float64))

    return (value(1e-5) - value(-1e-5)) / 2e-5
