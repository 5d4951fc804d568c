"""Training steps in which rounding decides: how far they come apart when gradients differ by as little as rounding does.

An optimizer that takes the sign of a gradient makes a whole step of one that is zero but for rounding, in f64 as in f32. So the
undistributed training is run again with a little noise in its gradients. A case that is no farther from the reference than these
runs are is not wrong.
"""

from __future__ import annotations

import attrs

from mtfc.cli.npz import Array, Arrays
from mtfc.compiler.ir.core import Argument, Function, Output, Program, Value
from mtfc.compiler.ir.types import FLOATS

RUNS = 8
"""Runs with noise: each entry of a gradient gets another sign in each."""

NOISE = 10.0
"""The noise is up to so many times what the gradients of the case differ by."""

SPREAD = 4.0
"""A difference of up to so many times the largest one among the runs is rounding."""

LEAST = 2.0**-24
"""At least this part of the largest gradient is noise: half a unit in the last place of f32."""


@attrs.frozen
class SplitStep:
    """A training step in two: up to its gradients, and from there. `crossing` are the values that the second part takes."""

    before: Function
    after: Function
    crossing: tuple[Value, ...]

    @classmethod
    def of(cls, step: Function) -> SplitStep:
        early = tuple(eqn for eqn in step.body if eqn.stage != "update")
        late = tuple(eqn for eqn in step.body if eqn.stage == "update")
        made = {value for eqn in early for value in eqn.results}
        used = (
            *(value for eqn in late for value in eqn.operands),
            *(output.value for output in step.outputs),
        )
        crossing = tuple(dict.fromkeys(value for value in used if value in made))
        before = Function("before", step.arguments, early, tuple(Output(v.name, v) for v in crossing))
        given = tuple(Argument(value, "input") for value in crossing)
        return cls(before, Function("after", (*step.arguments, *given), late, step.outputs), crossing)

    def interpret(self, program: Program, arguments: Arrays, noise: Noise) -> dict[str, Array]:
        """The step's outputs, with noise in all gradients."""
        from mtfc.backends.interpreter import interpret

        gradients = interpret(self.before, program, arguments)
        return interpret(self.after, program, {**arguments, **noise.added(gradients, self.crossing)})


@attrs.define
class Noise:
    """Uniform noise up to `size`, or up to the rounding of the largest gradient where that is more."""

    seed: int
    size: float

    def added(self, gradients: Arrays, values: tuple[Value, ...]) -> dict[str, Array]:
        import numpy as np

        self.seed += 1
        generator = np.random.default_rng(self.seed)
        floats = {value.name for value in values if value.type.dtype in FLOATS}
        largest = max((float(np.abs(gradients[name]).max(initial=0.0)) for name in floats), default=0.0)
        size = max(self.size, LEAST * largest)
        return {
            name: array + generator.uniform(-size, size, array.shape) if name in floats else array
            for name, array in gradients.items()
        }
