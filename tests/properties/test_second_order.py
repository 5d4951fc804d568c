"""Gradients of gradients agree with `jax.grad` of `jax.grad`, for the ops of random programs."""

from __future__ import annotations

from typing import Any

import attrs
import numpy as np

from mtfc.backends.interpreter import interpret
from mtfc.compiler.ir.builder import Builder, names_of
from mtfc.compiler.ir.core import Function, Output, Program, Value
from mtfc.compiler.passes.autodiff.backward import backward
from tests.generators.programs import programs
from tests.generators.scope import Options
from tests.harness import FINE, Arrays, HasSource, differentiated, generic_data, load
from tests.jax_gradients import minimized
from tests.properties.campaign import holds_for
from tests.properties.test_gradients import differentiable

DOUBLE_PRECISION = Options(reals=("f64",), layouts=1, slopes=True)


@holds_for(programs(DOUBLE_PRECISION), 6)
def test_second_gradients_are_those_of_jax(program: HasSource) -> None:
    (original,) = load(program.source).programs
    whole = differentiated(original, "gradients")
    again = of_their_squares(whole.function("gradients"))
    arrays = generic_data(again, seed=6)
    actual = interpret(again, attrs.evolve(whole, functions=(again,)), arrays)
    FINE.check(actual, jax_results(original, arrays), "JAX")


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


def jax_results(program: Program, arrays: Arrays) -> Arrays:
    import jax
    import jax.numpy as jnp

    from tests import oracle

    forward = program.function("forward")
    trained, wanted = oracle.in_training(forward), differentiable(forward)
    constant = {name: x for name, x in arrays.items() if name not in wanted}

    def objective(varying: Arrays) -> Any:
        known = {**varying, **constant}
        outputs = oracle.evaluate(trained, [known[a.value.name] for a in forward.arguments])
        return sum((outputs[name].sum() for name in minimized(program)), jnp.zeros(()))

    def squares(varying: Arrays) -> Any:
        return sum((jnp.square(x).sum() for x in jax.grad(objective)(varying).values()), jnp.zeros(()))

    with jax.enable_x64(True):
        gradients = jax.jit(jax.grad(squares))({name: arrays[name] for name in wanted})
        return {f"d_{name}": np.asarray(x) for name, x in gradients.items()}
