"""Reports: the values that a training step returns beside the loss.

A reported name stands for the model's output of that name, or else for one of `BUILT_IN`. With several micro-batches the mean
of an output is reported. Outputs of 16 bits are added up in 32.
"""

from __future__ import annotations

from collections.abc import Iterable

import attrs

from mtfc.compiler.ir.builder import Builder
from mtfc.compiler.ir.core import Function, Program, Training, Value
from mtfc.compiler.ir.rewrite import Substitution
from mtfc.compiler.ir.types import FLOATS, ITEM_BYTES, scalar
from mtfc.compiler.passes.autodiff.backward import total

GRAD_NORM = "grad_norm"
LEARNING_RATE = "learning_rate"
BUILT_IN = (GRAD_NORM, LEARNING_RATE)


def handed_out(forward: Function, training: Training) -> tuple[str, ...]:
    """Return the names of the outputs of `forward` that the step returns, the loss first."""
    outputs = {output.name for output in forward.outputs}
    return (training.minimize, *(name for name in training.report if name in outputs))


def report_error(training: Training, program: Program) -> str | None:
    """Return the first mistake in a program's reports, or None."""
    known = {output.name for output in program.function("forward").outputs}
    names = (training.minimize, *training.report)
    if len(set(names)) != len(names):
        return "the step hands out two values of one name"
    unknown = [name for name in training.report if name not in known and name not in BUILT_IN]
    if unknown:
        return f"{unknown[0]} is reported, and is no output of forward"
    return _rate_error(training, LEARNING_RATE in training.report and LEARNING_RATE not in known)


def _rate_error(training: Training, is_reported: bool) -> str | None:
    rate = training.learning_rate
    if rate is None:
        return (
            "the learning rate is reported, and nothing gives it"
            if is_reported and training.updates
            else None
        )
    if not is_reported:
        return "the learning rate is given, and not reported"
    is_right = not rate.arguments and [output.value.type for output in rate.outputs] == [scalar("f32")]
    return None if is_right else "the function of the learning rate takes nothing and gives f32[]"


def gradient_norm(builder: Builder, gradients: Iterable[Value]) -> Value:
    """Append the Euclidean norm of all gradients together, f32[]. Gradients of 16 bits are squared and summed in 32."""
    squares = [_square(builder, wide(builder, gradient)) for gradient in gradients]
    summed = total(builder, [builder.cast(square, "f32") for square in squares])
    return builder("sqrt", summed, name=GRAD_NORM)


def _square(builder: Builder, gradient: Value) -> Value:
    return builder("sum", builder("square", gradient), over=gradient.type.dims)


def wide(builder: Builder, value: Value) -> Value:
    """Cast a float of 16 bits to f32; return any other value as it is."""
    is_narrow = value.type.dtype in FLOATS and ITEM_BYTES[value.type.dtype] < ITEM_BYTES["f32"]
    return builder.cast(value, "f32") if is_narrow else value


def inlined(builder: Builder, function: Function) -> Value:
    """Append the equations of a function without arguments, and return its only output."""
    new = Substitution()
    for eqn in function.body:
        for value in eqn.results:
            new[value] = Value(builder.names.fresh(value.name), value.type)
        builder.append(attrs.evolve(new.equation(eqn), span=builder.span, stage=builder.stage, path=None))
    (output,) = function.outputs
    return new[output.value]
