"""Gradients agree with two witnesses that do not use the compiler's rules: JAX, and finite differences."""

from __future__ import annotations

from typing import Any

import attrs
import numpy as np

from mtfc.backends.interpreter import interpret
from mtfc.compiler.ir.core import Function, Program
from mtfc.compiler.ir.types import FLOATS
from tests.generators.programs import programs
from tests.generators.scope import Options
from tests.harness import FINE, Arrays, HasSource, differentiated, exact_data, generic_data, load
from tests.jax_gradients import minimized
from tests.properties.campaign import FEW_EXAMPLES, holds_for

DOUBLE_PRECISION = Options(reals=("f64",), layouts=1)


@holds_for(programs(DOUBLE_PRECISION), FEW_EXAMPLES)
def test_results_and_gradients_are_those_of_jax(program: HasSource) -> None:
    (original,) = load(program.source).programs
    whole = differentiated(original, "gradients")
    arrays = exact_data(whole.function("gradients"), seed=6)
    actual = interpret(whole.function("gradients"), whole, arrays)
    FINE.check(actual, jax_results(original, arrays), "JAX")


def jax_results(program: Program, arrays: Arrays) -> Arrays:
    """Return the outputs, and the gradients as `d_<name>`, of the undistributed program, by the oracle and `jax.grad`."""
    import jax
    import jax.numpy as jnp

    from tests import oracle

    forward = program.function("forward")
    trained = oracle.in_training(forward)
    wanted = differentiable(forward)
    constant = {name: x for name, x in arrays.items() if name not in wanted}

    def objective(varying: Arrays) -> Any:
        known = {**varying, **constant}
        outputs = oracle.evaluate(trained, [known[a.value.name] for a in forward.arguments])
        return sum((outputs[name].sum() for name in minimized(program)), jnp.zeros(())), outputs

    with jax.enable_x64(True):
        gradients, outputs = jax.jit(jax.grad(objective, has_aux=True))(
            {name: arrays[name] for name in wanted}
        )
        found = {**outputs, **{f"d_{name}": x for name, x in gradients.items()}}
        return {name: np.asarray(x) for name, x in found.items()}


def differentiable(forward: Function) -> list[str]:
    return [a.value.name for a in forward.arguments if a.value.type.dtype in FLOATS]


@holds_for(programs(attrs.evolve(DOUBLE_PRECISION, slopes=True)))
def test_gradients_are_those_of_finite_differences(program: HasSource) -> None:
    """Compare along a random direction. If the direction crosses a kink, try other data."""
    (original,) = load(program.source).programs
    whole = differentiated(original, "gradients")
    errors = [_directional_error(original, whole, seed) for seed in range(3)]
    assert min(errors) < 1e-5, errors


STEP = 1e-6


def _directional_error(original: Program, whole: Program, seed: int) -> float:
    """Return the difference between the slope along a random direction and the gradients' slope, relative to their terms."""
    from tests.oracle import in_training

    gradients, forward = whole.function("gradients"), in_training(original.function("forward"))
    arrays = generic_data(gradients, seed)
    random = np.random.default_rng(seed)
    direction = {name: random.uniform(-1, 1, arrays[name].shape) for name in differentiable(forward)}
    found = interpret(gradients, whole, arrays)
    terms = [found[f"d_{name}"] * v for name, v in direction.items()]

    def value(step: float) -> float:
        moved = {name: arrays[name] + step * direction.get(name, 0) for name in arrays}
        moved = {name: x if name in direction else arrays[name] for name, x in moved.items()}
        outputs = interpret(forward, original, moved)
        return float(sum(np.sum(outputs[name]) for name in minimized(original)))

    slope = (value(STEP) - value(-STEP)) / (2 * STEP)
    scale = 1 + abs(value(0.0)) + sum(float(np.abs(term).sum()) for term in terms)
    return abs(slope - sum(float(term.sum()) for term in terms)) / scale
