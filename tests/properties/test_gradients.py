"""Gradients, and gradients of gradients, agree with JAX and finite differences, which do not use the rules of the compiler."""

from functools import partial
from typing import Any

import attrs
import numpy as np

from mtfc.backends.interpreter import interpret
from mtfc.compiler.ir.builder import Builder, names_of
from mtfc.compiler.ir.core import Function, Output, Program, Value
from mtfc.compiler.ir.types import FLOATS
from mtfc.compiler.passes.autodiff.backward import backward
from mtfc.compiler.passes.pipelines import lower
from tests.generators.programs import programs
from tests.generators.scope import Options
from tests.harness import FINE, Arrays, HasSource, differentiated, exact_data, generic_data, load
from tests.jax_gradients import gradients_by_jax, minimized
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

    with jax.enable_x64(True):
        gradients, outputs = jax.jit(jax.grad(partial(_objective, program, arrays), has_aux=True))(
            {name: arrays[name] for name in differentiable(program.function("forward"))}
        )
        found = {**outputs, **{f"d_{name}": x for name, x in gradients.items()}}
        return {name: np.asarray(x) for name, x in found.items()}


def _objective(program: Program, arrays: Arrays, varying: Arrays) -> Any:
    """Return the sum that is differentiated, and all outputs, by the oracle."""
    import jax.numpy as jnp

    from tests import oracle

    trained = oracle.in_training(program.function("forward"))
    known = {**arrays, **varying}
    outputs = oracle.evaluate(trained, [known[a.value.name] for a in trained.arguments])
    return sum((outputs[name].sum() for name in minimized(program)), jnp.zeros(())), outputs


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


@holds_for(programs(attrs.evolve(DOUBLE_PRECISION, slopes=True)), FEW_EXAMPLES)
def test_second_gradients_are_those_of_jax(program: HasSource) -> None:
    (original,) = load(program.source).programs
    whole = differentiated(original, "gradients")
    again = of_their_squares(whole.function("gradients"))
    arrays = generic_data(again, seed=6)
    actual = interpret(again, attrs.evolve(whole, functions=(again,)), arrays)
    FINE.check(actual, second_jax_results(original, arrays), "JAX")


def of_their_squares(function: Function) -> Function:
    """Return the function of the gradients of the sum of the squares of gradients, zeros left out."""
    builder = Builder(names_of(function), stage="backward")
    builder.body.extend(function.body)
    found = {o.name.removeprefix("d_"): o.value for o in function.outputs if o.name.startswith("d_")}
    inputs = {a.value.name: a.value for a in function.arguments if a.value.name in found}
    seeds: dict[Value, Value] = {}
    for value in found.values():  # the slope of a square is twice the value
        seeds[value] = builder("mul", value, builder.like(2.0, value))
    grads = backward(builder, function.body, seeds, list(inputs.values()))
    for value in inputs.values():
        if value not in grads:
            grads[value] = builder("full", dims=value.type.dims, value=0.0, dtype=value.type.dtype)
    outputs = tuple(Output(f"d_{name}", grads[value]) for name, value in inputs.items())
    return Function("second", function.arguments, tuple(builder.body), outputs)


def second_jax_results(program: Program, arrays: Arrays) -> Arrays:
    import jax
    import jax.numpy as jnp

    def squares(varying: Arrays) -> Any:
        gradients, _ = jax.grad(partial(_objective, program, arrays), has_aux=True)(varying)
        return sum((jnp.square(x).sum() for x in gradients.values()), jnp.zeros(()))

    with jax.enable_x64(True):
        wanted = differentiable(program.function("forward"))
        gradients = jax.jit(jax.grad(squares))({name: arrays[name] for name in wanted})
        return {f"d_{name}": np.asarray(x) for name, x in gradients.items()}


@holds_for(programs(Options(reals=("f64",), layouts=1, training=False)), FEW_EXAMPLES)
def test_jax_differentiates_forward(program: HasSource) -> None:
    """JAX's derivative of an emitted `forward`, under any layout, equals the compiler's own gradient."""
    module = load(program.source)
    (original,), layout = module.programs, module.layouts[0]
    whole = differentiated(original, "gradients")
    arrays = exact_data(whole.function("gradients"), seed=8)
    expected = interpret(whole.function("gradients"), whole, arrays)
    actual = gradients_by_jax(lower(original, layout.mesh, layout.layout, "gradients"), arrays)
    FINE.check(actual, {name: expected[name] for name in actual}, "jax.grad of forward")
