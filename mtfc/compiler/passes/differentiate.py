"""differentiate: add the training step, by reverse-mode differentiation of `forward`.

With `accumulate = K` the step takes K micro-batches, stacked along a new first dimension of each input, and minimizes the mean of
their losses: gradients are added up and parameters updated once.

Input:   function forward(x, w) -> (y, loss) { ... }        with a training specification
Output:  the same, and function step(x, w, w.momentum) -> (loss, w updates w, w.momentum updates w.momentum) { ... }
         or, with of=gradients, function gradients(x, w) -> (y, loss, d_x, d_w) { ... }
After this pass no gradient is implicit; nothing is split yet.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import ClassVar

import attrs

from mtfc.compiler.ir.autodiff import backward, total
from mtfc.compiler.ir.builder import Builder, Names
from mtfc.compiler.ir.core import Argument, Equation, Function, Output, Parameter, Program, Training, Value
from mtfc.compiler.ir.micro_batches import copies, stacked, with_micro_dims
from mtfc.compiler.ir.optimizers import OPTIMIZERS
from mtfc.compiler.ir.rewrite import names_of, rename_values
from mtfc.compiler.ir.transform import Pass
from mtfc.compiler.ir.types import FLOATS, Dim


@attrs.frozen
class Differentiate(Pass):
    """`of` says what to add: `step` (where the program trains), or `gradients` of all float inputs and parameters."""

    name: ClassVar[str] = "differentiate"
    of: str = "step"

    def run(self, program: Program) -> Program:
        if self.of == "gradients":
            return attrs.evolve(program, functions=(*program.functions, gradients_function(program)))
        return program if program.training is None else with_step(program, program.training)


def _float_arguments(function: Function, roles: tuple[str, ...]) -> list[Value]:
    return [a.value for a in function.arguments if a.role in roles and a.value.type.dtype in FLOATS]


def _continue(function: Function) -> Builder:
    """A builder whose body starts with the function's own."""
    builder = Builder(names_of(function), stage="backward")
    builder.body.extend(function.body)
    return builder


def _seeds(builder: Builder, forward: Function, training: Training | None) -> dict[Value, Value]:
    """1 for the minimized value; without training, ones for every float output (the gradient of their sum)."""
    outputs = {o.value: None for o in forward.outputs if training is None or o.name == training.minimize}
    return {
        value: builder("full", dims=value.type.dims, value=1.0, dtype=value.type.dtype)
        for value in outputs
        if value.type.dtype in FLOATS
    }


def _named_gradients(body: Sequence[Equation], gradients: Mapping[Value, Value]) -> dict[Value, str]:
    """A gradient that the backward pass computed is called `d_` and the value's name."""
    computed = {value for eqn in body if eqn.stage == "backward" for value in eqn.results}
    return {g: f"d_{value.name}" for value, g in gradients.items() if g in computed}


def gradients_function(program: Program) -> Function:
    """forward's outputs, and the gradient of every float input and parameter (zeros where nothing depends on it)."""
    forward = program.function("forward")
    builder = _continue(forward)
    wanted = _float_arguments(forward, ("input", "parameter"))
    gradients = backward(builder, forward.body, _seeds(builder, forward, program.training), wanted)
    for value in wanted:
        if value not in gradients:
            gradients[value] = builder("full", dims=value.type.dims, value=0.0, dtype=value.type.dtype)
    outputs = [Output(f"d_{value.name}", gradients[value]) for value in wanted]
    function = Function("gradients", forward.arguments, tuple(builder.body), (*forward.outputs, *outputs))
    return rename_values(function, _named_gradients(builder.body, gradients))


def _clipped(builder: Builder, gradients: Mapping[Value, Value], limit: float) -> dict[Value, Value]:
    """Gradients scaled so that their joint norm is at most `limit`."""
    squares = [builder("sum", builder("square", g), over=g.type.dims) for g in gradients.values()]
    norm = builder("sqrt", total(builder, [builder.cast(s, "f32") for s in squares]))
    bound = builder.constant(limit, "f32")
    scale = builder("div", bound, builder("maximum", norm, bound))
    return {value: builder("mul", g, builder.cast(scale, g.type.dtype)) for value, g in gradients.items()}


def _states(builder: Builder, parameter: Value, kinds: Sequence[str]) -> dict[str, Argument]:
    names = {kind: builder.names.fresh(f"{parameter.name}.{kind}") for kind in kinds}
    return {
        kind: Argument(Value(name, parameter.type), "state", builder.span) for kind, name in names.items()
    }


def _update(
    builder: Builder, training: Training, parameter: Value, gradient: Value
) -> tuple[list[Argument], list[Output]]:
    """One parameter's update: the state arguments it needs, and what replaces them and the parameter."""
    optimizer = OPTIMIZERS[training.optimizer.name]
    states = _states(builder, parameter, optimizer.states)
    values = {kind: argument.value for kind, argument in states.items()}
    hyper = dict(training.optimizer.hyper)
    new, new_states = optimizer.update(builder, parameter, gradient, values, hyper)
    outputs = [Output(parameter.name, new, parameter.name)]
    outputs += [Output(values[kind].name, value, values[kind].name) for kind, value in new_states.items()]
    return list(states.values()), outputs


@attrs.frozen
class Differentiated:
    """Loss and gradients of the parameters, in a builder's body: of one batch, or the mean over several."""

    builder: Builder
    arguments: tuple[Argument, ...]
    loss: Value
    gradients: dict[Value, Value]


def _whole_batch(forward: Function, training: Training) -> Differentiated:
    builder = _continue(forward)
    parameters = _float_arguments(forward, ("parameter",))
    gradients = backward(builder, forward.body, _seeds(builder, forward, training), parameters)
    return Differentiated(builder, forward.arguments, _minimized(forward, training), gradients)


def _minimized(forward: Function, training: Training) -> Value:
    return next(output.value for output in forward.outputs if output.name == training.minimize)


def _micro_batches(forward: Function, training: Training, micro: Dim, single: Dim) -> Differentiated:
    """Forward and backward of one micro-batch after the other, so that the activations of one are alive at a time.

    Their gradients are added up as they are, pending sums and all, and so completed once.
    """
    arguments = tuple(stacked(argument, micro) for argument in forward.arguments)
    builder = Builder(Names(argument.value.name for argument in arguments), training.span)
    parameters, losses = _float_arguments(forward, ("parameter",)), list[Value]()
    sums: dict[Value, Value] = {}
    start = 0
    for copy in copies(builder, forward, arguments, micro, single):
        body, builder.stage = builder.body[start:], "backward"
        losses.append(copy[_minimized(forward, training)])
        seed = builder("full", dims=(), value=1 / micro.size, dtype=losses[-1].type.dtype)
        for parameter, gradient in backward(builder, body, {losses[-1]: seed}, parameters).items():
            sums[parameter] = total(builder, [sums[parameter], gradient] if parameter in sums else [gradient])
        start = len(builder.body)
    builder.span = training.span
    loss = builder("mul", total(builder, losses), builder.like(1 / micro.size, losses[0]))
    return Differentiated(builder, arguments, loss, sums)


def _differentiated(program: Program, training: Training) -> tuple[Program, Differentiated]:
    forward = program.function("forward")
    if training.accumulate == 1:
        return program, _whole_batch(forward, training)
    program, micro, single = with_micro_dims(program, training.accumulate)
    return program, _micro_batches(forward, training, micro, single)


def with_step(program: Program, training: Training) -> Program:
    """Forward, gradient and update of every parameter; one without a gradient stays as it is."""
    program, found = _differentiated(program, training)
    builder, gradients = found.builder, found.gradients
    names = _named_gradients(builder.body, gradients)
    builder.stage, builder.span = "update", training.span
    if training.clip is not None:
        gradients = _clipped(builder, gradients, training.clip)
    declared: Mapping[str, Parameter] = {parameter.name: parameter for parameter in program.parameters}
    arguments, outputs = [], [Output(training.minimize, found.loss)]
    for parameter, gradient in gradients.items():
        builder.span = declared[parameter.name].span
        states, updated = _update(builder, training, parameter, gradient)
        arguments += states
        outputs += updated
    kept = (a.value for a in found.arguments if a.role == "parameter" and a.value not in gradients)
    outputs += [Output(value.name, value, value.name) for value in kept]
    step = Function("step", (*found.arguments, *arguments), tuple(builder.body), tuple(outputs))
    return attrs.evolve(program, functions=(*program.functions, rename_values(step, names)))
