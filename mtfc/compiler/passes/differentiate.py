"""differentiate: add the training step, by reverse-mode differentiation of `forward`.

Walks the equations backwards from the loss, asks each op's gradient rule for its operands' cotangents in terms of other ops,
and adds up the contributions of a value's uses. Gradient equations carry the span of the forward equation that they come from.

Input:   function forward(x, w) -> (y, loss) { ... }        with a training specification
Output:  the same, and function step(x, w, w.momentum) -> (loss, w updates w, w.momentum updates w.momentum) { ... }
         or, with of=gradients, function gradients(x, w) -> (y, loss, d_x, d_w) { ... }
After this pass no gradient is implicit; nothing is split yet.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import ClassVar

import attrs

from mtfc.compiler.ir.builder import Builder, Names
from mtfc.compiler.ir.core import Argument, Equation, Function, Output, Parameter, Program, Training, Value
from mtfc.compiler.ir.ops import OPS
from mtfc.compiler.ir.optimizers import OPTIMIZERS
from mtfc.compiler.ir.rewrite import rename_values
from mtfc.compiler.ir.transform import Pass
from mtfc.compiler.ir.types import FLOATS


@attrs.frozen
class Differentiate(Pass):
    """`of` says what to add: `step` (where the program trains), or `gradients` of all float inputs and parameters."""

    name: ClassVar[str] = "differentiate"
    of: str = "step"

    def run(self, program: Program) -> Program:
        if self.of == "gradients":
            return attrs.evolve(program, functions=(*program.functions, gradients_function(program)))
        if program.training is None:
            return program
        return attrs.evolve(program, functions=(*program.functions, step_function(program, program.training)))


def active_values(body: Iterable[Equation], wanted: Iterable[Value]) -> set[Value]:
    """Float values that depend on a wanted one."""
    active = set(wanted)
    for eqn in body:
        if any(value in active for value in eqn.operands):
            active.update(value for value in eqn.results if value.type.dtype in FLOATS)
    return active


def _total(builder: Builder, contributions: Sequence[Value]) -> Value:
    total = contributions[0]
    for contribution in contributions[1:]:
        total = builder("add", total, contribution)
    return total


def _pull_back(
    builder: Builder, eqn: Equation, cotangents: dict[Value, list[Value]], active: set[Value]
) -> None:
    """Add what the equation contributes to its operands' cotangents."""
    if not any(value in active for value in eqn.operands):
        return
    builder.span = eqn.span
    totals = [_total(builder, cotangents[value]) for value in eqn.results]
    cotangents.update({value: [total] for value, total in zip(eqn.results, totals, strict=True)})
    for operand, part in zip(eqn.operands, OPS[eqn.op].gradient(builder, eqn, totals), strict=True):
        if part is not None and operand in active:
            cotangents.setdefault(operand, []).append(part)


def backward(
    builder: Builder, body: Sequence[Equation], seeds: Mapping[Value, Value], wanted: Sequence[Value]
) -> dict[Value, Value]:
    """The cotangents of `wanted` values, given those of results; values that nothing depends on are left out."""
    active = active_values(body, wanted)
    cotangents = {value: [seed] for value, seed in seeds.items()}
    for eqn in reversed(body):
        if any(value in cotangents for value in eqn.results):
            _pull_back(builder, eqn, cotangents, active)
    return {
        value: builder.ordered(_total(builder, cotangents[value]), value.type.dims)
        for value in wanted
        if value in cotangents
    }


def _float_arguments(function: Function, roles: tuple[str, ...]) -> list[Value]:
    return [a.value for a in function.arguments if a.role in roles and a.value.type.dtype in FLOATS]


def _names(function: Function) -> Names:
    used = [argument.value.name for argument in function.arguments]
    return Names(used + [value.name for eqn in function.body for value in eqn.results])


def _continue(function: Function) -> Builder:
    """A builder whose body starts with the function's own."""
    builder = Builder(_names(function), stage="backward")
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
    norm = builder("sqrt", _total(builder, [builder.cast(s, "f32") for s in squares]))
    bound = builder.constant(limit, "f32")
    scale = builder("div", bound, builder("maximum", norm, bound))
    return {value: builder("mul", g, builder.cast(scale, g.type.dtype)) for value, g in gradients.items()}


def _states(names: Names, parameter: Value, kinds: Sequence[str]) -> dict[str, Argument]:
    return {
        kind: Argument(Value(names.fresh(f"{parameter.name}.{kind}"), parameter.type), "state")
        for kind in kinds
    }


def _update(
    builder: Builder, training: Training, parameter: Value, gradient: Value
) -> tuple[list[Argument], list[Output]]:
    """One parameter's update: the state arguments it needs, and what replaces them and the parameter."""
    optimizer = OPTIMIZERS[training.optimizer.name]
    states = _states(builder.names, parameter, optimizer.states)
    values = {kind: argument.value for kind, argument in states.items()}
    hyper = dict(training.optimizer.hyper)
    new, new_states = optimizer.update(builder, parameter, gradient, values, hyper)
    outputs = [Output(parameter.name, new, parameter.name)]
    outputs += [Output(values[kind].name, value, values[kind].name) for kind, value in new_states.items()]
    return list(states.values()), outputs


def step_function(program: Program, training: Training) -> Function:
    """Forward, gradient and update of every parameter; one without a gradient stays as it is."""
    forward = program.function("forward")
    builder = _continue(forward)
    parameters = _float_arguments(forward, ("parameter",))
    gradients = backward(builder, forward.body, _seeds(builder, forward, training), parameters)
    names = _named_gradients(builder.body, gradients)
    builder.stage, builder.span = "update", training.span
    if training.clip is not None:
        gradients = _clipped(builder, gradients, training.clip)
    declared: Mapping[str, Parameter] = {parameter.name: parameter for parameter in program.parameters}
    arguments, outputs = [], [o for o in forward.outputs if o.name == training.minimize]
    for parameter, gradient in gradients.items():
        builder.span = declared[parameter.name].span
        states, updated = _update(builder, training, parameter, gradient)
        arguments += states
        outputs += updated
    kept = (a.value for a in forward.arguments if a.role == "parameter" and a.value not in gradients)
    outputs += [Output(value.name, value, value.name) for value in kept]
    function = Function("step", (*forward.arguments, *arguments), tuple(builder.body), tuple(outputs))
    return rename_values(function, names)
