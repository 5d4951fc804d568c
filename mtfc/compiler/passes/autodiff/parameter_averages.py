"""Averages of parameters: a step keeps an exponential moving average of each parameter that it trains (`average = 0.999`).

An average is a state of the step, beside those of the optimizer. Step t adds the new parameter p to the average a:

    n = 1 + d n        the effective number of steps, with the share d that a step keeps: 1, 1 + d, 1 + d + d^2, ...
    a = a + (p - a) / n

So after the first step a is p, and later a = ((1 - d) / (1 - d^t)) (p_t + d p_(t-1) + d^2 p_(t-2) + ...): the moving average with
the usual correction for its start, as `optax.ema` has it. A power of d would lose most of its digits in 1 - d^t.

`averaged` is the function that puts the averages in the place of the parameters. Before the first step it changes nothing.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable

import attrs

from mtfc.compiler.ir.builder import Builder, Names
from mtfc.compiler.ir.core import Argument, Function, Output, Value
from mtfc.compiler.ir.training import average_of
from mtfc.compiler.ir.types import scalar
from mtfc.compiler.records import define

AVERAGED = "averaged"
"""The name of the function that gives parameters their averages."""


@define
class Averages:
    """The averages of a step.

    steps: the state with the effective number of steps. of: parameter -> the state with its average. outputs: the new values of
    these states.
    """

    steps: Argument
    outputs: list[Output]
    of: dict[str, Argument] = attrs.field(factory=dict)

    @property
    def arguments(self) -> list[Argument]:
        return [self.steps, *self.of.values()]

    def function(self, given: Iterable[Argument]) -> Function:
        """Return the function from parameters and states to parameters with their averages; others stay as they are."""
        parameters = [argument for argument in given if argument.role == "parameter"]
        arguments = (*parameters, *self.arguments)
        builder = Builder(Names(argument.value.name for argument in arguments), self.steps.span, "update")
        started = builder("gt", self.steps.value, builder.constant(0.0, "f32"))
        outputs = []
        for value in (argument.value for argument in parameters):
            found = value
            if value.name in self.of:
                average = builder.cast(self.of[value.name].value, value.type.dtype)
                found = builder("where", started, average, value)
            outputs.append(Output(value.name, found, value.name))
        return Function(AVERAGED, arguments, tuple(builder.body), tuple(outputs))


def averages_of(
    builder: Builder, share: float, outputs: Iterable[Output], trained: Collection[Value]
) -> Averages:
    """Append the averages of the new values of trained parameters. 16-bit parameters have averages in f32."""
    state = Argument(Value(builder.names.fresh("averaged_steps"), scalar("f32")), "state", builder.span)
    kept = builder("mul", state.value, builder.constant(share, "f32"))
    steps = builder("add", kept, builder.constant(1.0, "f32"), name=state.value.name)
    weight = builder("div", builder.constant(1.0, "f32"), steps)
    found = Averages(state, [Output(state.value.name, steps, state.value.name)])
    names = {value.name for value in trained}
    for output in (each for each in outputs if each.updates in names):
        new = builder.wide(output.value)
        old = Value(builder.names.fresh(average_of(str(output.updates))), new.type)
        step = builder("mul", builder("sub", new, old), builder.cast(weight, new.type.dtype))
        moved = builder("add", old, step, name=old.name)
        found.outputs.append(Output(old.name, moved, old.name))
        found.of[str(output.updates)] = Argument(old, "state", builder.span)
    return found
