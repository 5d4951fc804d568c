"""Compare functions of the library with independent implementations.

A case is a small network that calls some functions, with its expected outputs computed by JAX. One more output, the loss, weighs
each element of each output differently, so that gradients depend on all of them.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import attrs
import jax
import numpy as np

from mtfc.backends.interpreter import interpret
from mtfc.compiler.ir.core import Function
from mtfc.compiler.ir.types import FLOATS
from mtfc.compiler.passes.pipelines import lower
from tests.harness import Arrays, Tolerance, call, differentiated, jax_module, load, numpy_module

Expected = Callable[..., Mapping[str, Any]]
"""Computes outputs from inputs and parameters, by name with `_` for dots."""

CLOSE = Tolerance(3e-5)


@attrs.frozen(kw_only=True)
class Network:
    """A model and its layouts.

    imports: modules. dims: sizes by name. layouts: rules; axes `a` and `b` of a 2 by 2 mesh. inputs: types by name. body:
    statements that bind the outputs. outputs: dimensions by name. below: integer inputs are drawn from 0 to their bound.
    """

    imports: Sequence[str]
    dims: Mapping[str, int]
    layouts: Sequence[str] = ()
    inputs: Mapping[str, str]
    body: str
    outputs: Mapping[str, str]
    below: Mapping[str, int] = attrs.field(factory=dict)

    @property
    def source(self) -> str:
        weights = {f"{name}_weight": f"f32[{dims}]" for name, dims in self.outputs.items()}
        arguments = ", ".join(f"{name}: {type}" for name, type in {**self.inputs, **weights}.items())
        loss = " + ".join(f"sum({name} * {name}_weight)" for name in self.outputs)
        return "\n".join(
            (
                *(f"import {name}" for name in self.imports),
                *(f"dim {name} = {size}" for name, size in self.dims.items()),
                "mesh square = [a: 2, b: 2]",
                *(f"layout layout_{i} = {{ {rules} }}" for i, rules in enumerate(self.layouts)),
                f"model network({arguments}) {{",
                self.body,
                f"loss = {loss}",
                f"return loss, {', '.join(self.outputs)}",
                "}\n",
            )
        )

    def arrays(self, function: Function) -> Arrays:
        """Draw normal numbers, small ones for parameters so that rounding does not grow; integers below their bound; truth
        values, most of them true."""
        random = np.random.default_rng(5)
        arrays: Arrays = {}
        for argument in function.arguments:
            name, type = argument.value.name, argument.value.type
            shape = tuple(dim.size for dim in type.dims)
            if type.dtype in FLOATS:
                scale = 0.5 if argument.role == "parameter" else 1.0
                arrays[name] = (scale * random.standard_normal(shape)).astype(np.float32)
            elif type.dtype == "bool":
                arrays[name] = random.uniform(size=shape) < 0.7
            else:
                arrays[name] = random.integers(0, self.below[name], shape).astype(np.int32)
        return arrays


def agrees(network: Network, expected: Expected) -> None:
    """Assert that outputs and gradients of the undistributed program are as expected, and those of each layout the same.

    XLA takes long to compile, so JAX runs the first layout only.
    """
    module = load(network.source)
    (program,) = module.programs
    original = differentiated(program, "gradients")
    function = original.function("gradients")
    arrays = network.arrays(function)
    results = interpret(function, original, arrays)
    CLOSE.check(results, _expected(network, expected, arrays), "undistributed")
    for i, layout in enumerate(module.layouts):
        placed = lower(program, layout.mesh, layout.layout, "gradients")
        for made in (numpy_module(placed), *([jax_module(placed)] if i == 0 else [])):
            found = call(made, placed.function("gradients"), arrays)
            CLOSE.check(found, results, f"{layout.name}: {made.__name__}")


def _expected(network: Network, expected: Expected, arrays: Arrays) -> Arrays:
    """Return the outputs, and the gradients of their sum by all floats."""
    floats = {name: x for name, x in arrays.items() if x.dtype == np.float32}

    def total(varying: Arrays) -> tuple[Any, Any]:
        known = {**arrays, **varying}
        weights = {name: known.pop(f"{name}_weight") for name in network.outputs}
        outputs = expected(**{name.replace(".", "_"): x for name, x in known.items()})
        loss = sum((outputs[name] * weights[name]).sum() for name in network.outputs)
        found = {"loss": loss, **outputs}
        return sum(x.sum() for x in found.values()), found

    (_, outputs), gradients = jax.jit(jax.value_and_grad(total, has_aux=True))(floats)
    return {**outputs, **{f"d_{name}": x for name, x in gradients.items()}}
