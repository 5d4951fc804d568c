"""Recognize training steps that rounding decides: measure how far noise in the gradients moves training.

An optimizer that takes the sign of a gradient makes a full step for a gradient that is rounding alone, in f64 as in f32. So the
undistributed training runs again with a little noise in its gradients. A case is not wrong if its distance from the reference
is at most the distance of these runs.
"""

from __future__ import annotations

import attrs

from mtfc.compiler.ir.core import Argument, Function, Output, Program, Value
from mtfc.compiler.ir.types import FLOATS
from mtfc.driver.data.array_files import Array, Arrays

RUNS = 8
"""Number of training runs with noise; each run draws its own noise."""

NOISE = 10.0
"""Size of the noise, relative to the largest difference in the gradients of the case."""

SPREAD = 4.0
"""A difference up to this many times the largest difference among the runs is rounding."""

LEAST = 2.0**-24
"""Least size of the noise, relative to the largest gradient: half a unit in the last place of f32."""


@attrs.frozen
class SplitStep:
    """A training step in two parts: up to the gradients, and the rest. crossing: the values that the second part takes."""

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
        """Return the step's outputs, with noise in all gradients."""
        from mtfc.backends.interpreter import interpret

        gradients = interpret(self.before, program, arguments)
        return interpret(self.after, program, {**arguments, **noise.added(gradients, self.crossing)})


@attrs.define
class Noise:
    """Uniform noise up to `size`, or up to the rounding of the largest gradient if that is more."""

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
