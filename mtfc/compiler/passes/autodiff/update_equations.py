"""The equations of a step's update stage: the update of each parameter, the norm of the gradients, and the learning rate.

An optimizer's function is for one parameter. A parameter that is declared in a loop over `layers` has that dimension too, in
front. Each of its slices is updated by itself: every equation of the function gets the dimension, so a reduction in the function
reduces each slice separately.

A step keeps an exponential moving average of each parameter that it trains (`average = 0.999`). An average is a state of the
step, beside those of the optimizer. Step t adds the new parameter p to the average a:

    n = 1 + d n        the effective number of steps, with the share d that a step keeps: 1, 1 + d, 1 + d + d^2, ...
    a = a + (p - a) / n

So after the first step a is p, and later a = ((1 - d) / (1 - d^t)) (p_t + d p_(t-1) + d^2 p_(t-2) + ...): the moving average with
the usual correction for its start, as `optax.ema` has it. A power of d would lose most of its digits in 1 - d^t.

`averaged` is the function that puts the averages in the place of the parameters. Before the first step it changes nothing.

Loss scaling: the backward pass of a scaled loss, so that small gradients do not underflow in f16. The seed of the backward pass
is the scale S instead of 1. Gradients are divided by S in the dtype of the parameters, before their norm is computed and before
clipping.

A dynamic scale is a state of the step, and so is the number of good steps in a row. A step whose gradients are not all finite
keeps parameters and states, also those of the model, and halves the scale. After `PATIENCE` good steps in a row the scale
doubles. The decision is `norm <= the largest f32`, with the joint norm of all gradients. The norm is one sum over all processors,
which clipping computes too. So all processors decide alike, and the decision costs one scalar in an all-reduce.

Sources: Micikevicius et al., "Mixed Precision Training", ICLR 2018, section 3.2; the constants are those of jmp and NVIDIA Apex.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

import attrs

from mtfc.compiler.ir.attributes import fitted
from mtfc.compiler.ir.builder import Builder, Names, Substitution
from mtfc.compiler.ir.core import Argument, Equation, Function, LossScale, Output, Value
from mtfc.compiler.ir.ops import OPS, has_trait
from mtfc.compiler.ir.ops.creation import VALUE
from mtfc.compiler.ir.training import GRAD_NORM, LOSS_SCALE, average_of, of_role
from mtfc.compiler.ir.types import Dim, TensorType, scalar
from mtfc.compiler.passes.autodiff.backward import total
from mtfc.compiler.records import define, frozen


def gradient_norm(builder: Builder, gradients: Iterable[Value]) -> Value:
    """Append the Euclidean norm of all gradients together, f32[]. Gradients of 16 bits are squared and summed in 32."""
    found = (builder.wide(gradient) for gradient in gradients)
    squares = [builder("sum", builder("square", x), over=x.type.dims) for x in found]
    summed = total(builder, [builder.cast(square, "f32") for square in squares])
    return builder("sqrt", summed, name=GRAD_NORM)


def inlined(builder: Builder, function: Function) -> Value:
    """Append the equations of a function without arguments, and return its only output."""
    new = Substitution()
    for eqn in function.body:
        for value in eqn.results:
            new[value] = Value(builder.names.fresh(value.name), value.type)
        builder.append(attrs.evolve(new.equation(eqn), span=builder.span, stage=builder.stage, path=None))
    (output,) = function.outputs
    return new[output.value]


class ParameterUpdate:
    """Appends the equations of an update function for one parameter, under its name, for all its slices at once."""

    def __init__(
        self, builder: Builder, function: Function, parameter: Value, common: dict[Value, Value]
    ) -> None:
        """Start the update of one parameter.

        common: the values that depend on no parameter, such as a learning rate. They are computed once for all parameters
        with the same function. own: the other values of the function -> their values for this parameter. stack: the
        dimensions of the parameter that the function's parameter `like` lacks. replaced: the parameter and the states, by
        their names in the function.
        """
        self.builder, self.function, self.parameter, self.common = builder, function, parameter, common
        (self.like,) = of_role(function, "parameter")
        self.stack: tuple[Dim, ...] = parameter.type.dims[
            : len(parameter.type.dims) - len(self.like.type.dims)
        ]
        self.own: dict[Value, Value] = {}
        self.replaced = {self.like.name: parameter}

    def run(self, gradient: Value) -> tuple[list[Argument], list[Output]]:
        """Return the states as arguments, and the outputs that replace parameter and states."""
        states = []
        given = {"parameter": self.parameter, "input": gradient}
        for argument in self.function.arguments:
            if argument.role == "state":
                states.append(self._state(argument))
            else:
                dtype = argument.value.type.dtype
                self.own[argument.value] = self.builder.cast(given[argument.role], dtype)
        for eqn in self.function.body:
            if all(value in self.common for value in eqn.operands):
                self._equation_for_all(eqn)
            else:
                self._equation(eqn)
        return states, [self._output(output) for output in self.function.outputs]

    def _state(self, argument: Argument) -> Argument:
        """Return the argument of the step for a state of this parameter, which has the parameter's further dimensions too."""
        type = argument.value.type
        name = self.builder.names.fresh(f"{self.parameter.name}.{argument.value.name}")
        value = Value(name, TensorType(type.dtype, (*self.stack, *type.dims)))
        self.own[argument.value] = self.replaced[argument.value.name] = value
        return attrs.evolve(argument, value=value, span=self.builder.span)

    def _output(self, output: Output) -> Output:
        """Return the output of the step that replaces the parameter or a state."""
        assert output.updates is not None
        old, found = self.replaced[output.updates], self._new(output.value)
        new = self.builder.ordered(self.builder.broadcast(found, old.type), old.type.dims)
        return Output(old.name, self.builder.cast(new, old.type.dtype), old.name)

    def _new(self, value: Value) -> Value:
        return self.common.get(value) or self.own[value]

    def _equation_for_all(self, eqn: Equation) -> None:
        """Append an equation that depends on no parameter, unless an earlier parameter has it."""
        if has_trait(eqn, "constant"):
            number = self.builder.constant(VALUE.of(eqn.attrs), eqn.result.type.dtype)
            self.common[eqn.result] = number
        elif eqn.results[0] not in self.common:
            operands = [self.common[value] for value in eqn.operands]
            self._append(eqn, operands, eqn.attrs, eqn.path, self.common)

    def _equation(self, eqn: Equation) -> None:
        """Append an equation for this parameter.

        Operands with the parameter's further dimensions give these to the result.
        """
        operands, attributes = [self._new(value) for value in eqn.operands], eqn.attrs
        if any(self._is_stacked(value) for value in operands):
            operands = [self._stacked(value) for value in operands]
            attributes = {key: self._stacked_attr(key, value) for key, value in eqn.attrs.items()}
        owner = self.parameter.name
        path = owner if eqn.path == self.like.name else eqn.path and f"{owner}.{eqn.path}"
        self._append(eqn, operands, attributes, path, self.own)

    def _append(
        self,
        eqn: Equation,
        operands: list[Value],
        attributes: Mapping[str, Any],
        name: str | None,
        new: dict[Value, Value],
    ) -> None:
        """Append the equation with other operands, which may have other types, and enter its results in `new`."""
        types = OPS[eqn.op].infer([value.type for value in operands], attributes)
        results = tuple(Value(self.builder.names.fresh(name or eqn.op), type) for type in types)
        new.update(zip(eqn.results, results, strict=True))
        span, stage = self.builder.span, self.builder.stage
        self.builder.append(Equation(eqn.op, tuple(operands), results, attributes, span=span, stage=stage))

    def _is_stacked(self, value: Value) -> bool:
        return bool(self.stack) and set(self.stack) <= set(value.type.dims)

    def _stacked(self, value: Value) -> Value:
        """Broadcast a value along the slices, for an equation whose other operands have them; a scalar needs no broadcast."""
        if self._is_stacked(value) or not value.type.dims:
            return value
        return self.builder("broadcast", value, dims=(*self.stack, *value.type.dims))

    def _stacked_attr(self, key: str, value: Any) -> Any:
        """Add the dimensions of slices to `dims`, the attribute that lists the dimensions of a result."""
        return (*self.stack, *value) if key == "dims" else value


# Averages of parameters


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
    decayed = builder("mul", state.value, builder.constant(share, "f32"))
    steps = builder("add", decayed, builder.constant(1.0, "f32"), name=state.value.name)
    weight = builder("div", builder.constant(1.0, "f32"), steps)
    averages = Averages(state, [Output(state.value.name, steps, state.value.name)])
    names = {value.name for value in trained}
    for output in (each for each in outputs if each.updates in names):
        new = builder.wide(output.value)
        old = Value(builder.names.fresh(average_of(str(output.updates))), new.type)
        step = builder("mul", builder("sub", new, old), builder.cast(weight, new.type.dtype))
        new_average = builder("add", old, step, name=old.name)
        averages.outputs.append(Output(old.name, new_average, old.name))
        averages.of[str(output.updates)] = Argument(old, "state", builder.span)
    return averages


# Loss scaling


GOOD_STEPS = "good_steps"
PATIENCE = 2000
"""Good steps in a row after which the scale doubles."""

SMALLEST, LARGEST = 1.0, 2.0**24
"""Limits of a dynamic scale."""

LARGEST_NUMBER = (2 - 2**-23) * 2.0**127
"""The largest finite f32."""


@frozen
class ScaleState:
    """The states of a dynamic scale at the start of a step."""

    scale: Argument
    good_steps: Argument

    @property
    def arguments(self) -> tuple[Argument, Argument]:
        return self.scale, self.good_steps


def scale_state(builder: Builder, loss_scale: LossScale | None) -> ScaleState | None:
    """Return the states of a dynamic scale; a fixed scale has none."""
    if loss_scale is None or not loss_scale.is_dynamic:
        return None
    scale = Value(builder.names.fresh(LOSS_SCALE), scalar("f32"))
    steps = Value(builder.names.fresh(GOOD_STEPS), scalar("i32"))
    return ScaleState(
        Argument(scale, "state", builder.span, initial=loss_scale.start),
        Argument(steps, "state", builder.span),
    )


def seed(
    builder: Builder,
    loss: Value,
    loss_scale: LossScale | None,
    scale: Value | None,
    share: float = 1.0,
    weight: Value | None = None,
) -> Value:
    """Return the cotangent of the loss, from which the backward pass starts: `share` times the scale.

    loss: the minimized value; the cotangent has its dtype. scale: the dynamic scale of the step; without one, the fixed scale
    of `loss_scale` counts, or 1. share: the part of the batch that this loss averages over. weight: a further factor.
    """
    if weight is not None:
        weighed = builder("mul", seed(builder, weight, loss_scale, scale, share), weight)
        return builder.cast(weighed, loss.type.dtype)
    if scale is None:
        start = loss_scale.start if loss_scale else 1.0
        return builder("full", dims=(), value=fitted(share * start, loss.type.dtype), dtype=loss.type.dtype)
    return builder("mul", builder.cast(scale, loss.type.dtype), builder.constant(share, loss.type.dtype))


def scale_value(builder: Builder, loss_scale: LossScale, state: ScaleState | None) -> Value:
    """Return the scale of the step, f32[]."""
    return builder.constant(loss_scale.start, "f32") if state is None else state.scale.value


def unscaled(
    builder: Builder, gradients: Mapping[Value, Value], loss_scale: LossScale, state: ScaleState | None
) -> dict[Value, Value]:
    """Append the division of all gradients by the scale. The reciprocal of a power of 2 is exact."""
    if state is None:
        return {p: builder("mul", g, builder.like(1 / loss_scale.start, g)) for p, g in gradients.items()}
    factor = builder("div", builder.constant(1.0, "f32"), state.scale.value)
    return {p: builder("mul", g, builder.cast(factor, g.type.dtype)) for p, g in gradients.items()}


def is_finite(builder: Builder, norm: Value) -> Value:
    """Append the decision of the step from the norm of its gradients: bool[], false for an infinite norm and for NaN."""
    return builder("le", norm, builder.constant(LARGEST_NUMBER, "f32"))


def kept_unless(
    builder: Builder, good: Value | None, outputs: Sequence[Output], arguments: Iterable[Value]
) -> list[Output]:
    """Return the outputs of an update, each replaced by the old value of its argument unless the step is good.

    good: None if every step is.
    """
    if good is None:
        return list(outputs)
    old = {argument.name: argument for argument in arguments}
    chosen = (builder("where", good, o.value, old[o.updates or ""], name=o.name) for o in outputs)
    return [attrs.evolve(o, value=value) for o, value in zip(outputs, chosen, strict=True)]


def next_scale(builder: Builder, good: Value, state: ScaleState) -> list[Output]:
    """Append the scale and the number of good steps for the next step."""
    scale, steps = state.scale.value, state.good_steps.value
    count = builder("add", steps, builder.constant(1, "i32"))
    is_due = builder("ge", count, builder.constant(PATIENCE, "i32"))
    doubled, halved = (
        builder(op, builder("mul", scale, builder.constant(by, "f32")), builder.constant(limit, "f32"))
        for op, by, limit in (("minimum", 2.0, LARGEST), ("maximum", 0.5, SMALLEST))
    )
    after = builder("where", good, builder("where", is_due, doubled, scale), halved, name=scale.name)
    counts = builder("and", good, builder("not", is_due))
    counted = builder("mask", counts, count, name=steps.name)
    return [Output(scale.name, after, scale.name), Output(steps.name, counted, steps.name)]
