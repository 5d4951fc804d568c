"""The update of a piece of a parameter as a function.

An optimizer that works element by element updates each piece by itself. One that looks at a whole parameter, such as LAMB or
Adafactor, gets it: each device that uses such a parameter holds it whole.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import attrs

from mtfc.compiler.analysis.buffer_kinds import storage
from mtfc.compiler.ir.builder import Builder, Names
from mtfc.compiler.ir.core import Argument, Function, Output, Training, Value
from mtfc.compiler.ir.ops import has_trait
from mtfc.compiler.ir.rewrite import fresh_copy
from mtfc.compiler.ir.training import GRAD_NORM, LEARNING_RATE, of_role, update_of
from mtfc.compiler.ir.types import Dim, TensorType, scalar
from mtfc.compiler.passes.autodiff.differentiate import clipped, numbered
from mtfc.compiler.passes.autodiff.loss_scaling import (
    ScaleState,
    is_finite,
    kept_unless,
    next_scale,
    scale_state,
    unscaled,
)
from mtfc.compiler.passes.autodiff.parameter_averages import averages_of
from mtfc.compiler.passes.autodiff.update_equations import ParameterUpdate, inlined

STEP = "step"


def is_local(training: Training, parameter: str) -> bool:
    """Return True if the update of a parameter works element by element."""
    body = update_of(training, parameter).body
    return all(storage(eqn) in ("fused", "made") and not has_trait(eqn, "random", "indices") for eqn in body)


def updates_slice(training: Training, parameter: str, slice: Value) -> bool:
    """Return True if a slice of a parameter can be updated without the other slices."""
    (unit,) = of_role(update_of(training, parameter), "parameter")
    return len(slice.type.dims) >= len(unit.type.dims) or is_local(training, parameter)


def needs_norm(training: Training) -> bool:
    """Return True if updates read the joint norm of all gradients."""
    return training.clip is not None or (training.loss_scale is not None and training.loss_scale.is_dynamic)


class PieceFunction:
    """A function of the gradient of a piece, under construction.

    given: the argument with the gradient. gradient: the same without the loss scale. norm: that of all gradients. scale: the
    states of a loss scale that changes.
    """

    def __init__(self, training: Training, type: TensorType, parameter: str | None = None) -> None:
        self.builder = b = Builder(Names([parameter] if parameter else ()), training.span, "update")
        self.given = self.gradient = Value(b.names.fresh(f"d_{parameter}" if parameter else "gradient"), type)
        self.scale = scale_state(b, training.loss_scale)
        self.norm = Value(b.names.fresh(GRAD_NORM), scalar("f32"))
        if training.loss_scale is not None:
            given = {self.given: self.given}
            self.gradient = unscaled(b, given, training.loss_scale, self.scale)[self.given]

    def clipped(self, training: Training) -> Value:
        """Return the clipped gradient."""
        if training.clip is None:
            return self.gradient
        return clipped(self.builder, {self.given: self.gradient}, self.norm, training.clip)[self.given]

    def function(
        self, outputs: Iterable[Output], piece: Sequence[Argument] = (), states: Sequence[Argument] = ()
    ) -> Function:
        """Return the function. Its last arguments are the scalars of all pieces that it reads."""
        shared = [Argument(self.norm, "input"), *(self.scale.arguments if self.scale else ())]
        used = {value for eqn in self.builder.body for value in eqn.operands}
        arguments = (*piece, Argument(self.given, "input"), *states, *(a for a in shared if a.value in used))
        return numbered(Function("update", arguments, tuple(self.builder.body), tuple(outputs)))


def update_function(training: Training, parameter: str, type: TensorType) -> Function:
    """Return the update of a piece of a parameter.

    Its arguments are the piece, its gradient, the states of the optimizer, and scalars. Outputs update arguments.
    """
    piece, own = Value(parameter, type), PieceFunction(training, type, parameter)
    b, gradient = own.builder, own.clipped(training)
    good = is_finite(b, own.norm) if own.scale is not None else None
    function = update_of(training, parameter)
    update = _shortened(function, of_role(function, "parameter")[0].type.dims, type.dims)
    states, outputs = ParameterUpdate(b, update, piece, {}).run(gradient)
    outputs = kept_unless(b, good, outputs, (piece, *(state.value for state in states)))
    if training.average is not None:
        averages = averages_of(b, training.average, outputs, [piece])
        states += averages.arguments
        outputs += kept_unless(b, good, averages.outputs, [state.value for state in averages.arguments])
    return own.function(outputs, [Argument(piece, "parameter")], states)


def _shortened(function: Function, whole: Sequence[Dim], dims: Sequence[Dim]) -> Function:
    """Return a function of a parameter for a piece, whose dimensions are shorter. A slice lacks some of the whole dimensions."""
    sizes: dict[str, Dim | None] = {dim.name: None for dim in whole} | {dim.name: dim for dim in dims}

    def type_of(value: Value) -> TensorType:
        return attrs.evolve(value.type, dims=_with(value.type.dims, sizes))

    return fresh_copy(
        function, type_of, lambda eqn: {key: _with(value, sizes) for key, value in eqn.attrs.items()}
    )


def _with(value: Any, sizes: Mapping[str, Dim | None]) -> Any:
    """Return dimensions with other sizes, without those that have none; anything else as it is."""
    if isinstance(value, Dim):
        return sizes.get(value.name, value)
    if not isinstance(value, tuple):
        return value
    return tuple(each for each in (_with(each, sizes) for each in value) if each is not None)


def unscaled_function(training: Training, type: TensorType) -> Function:
    """Return the gradient of the loss itself, from a piece of the gradient of the loss times its scale."""
    own = PieceFunction(training, type)
    return own.function([Output("unscaled", own.gradient)])


def clipped_function(training: Training, type: TensorType) -> Function:
    """Return a clipped piece of a gradient. Its arguments are the piece, and the norm of all gradients."""
    own = PieceFunction(training, type)
    return own.function([Output("clipped", own.clipped(training))])


def squares_function(training: Training, type: TensorType) -> Function:
    """Return the sum of squares of a piece of a gradient, f32[]: a term of the squared norm of all gradients.

    Its arguments are the gradient, and the scale of the loss if it changes.
    """
    own = PieceFunction(training, type)
    squared = own.builder("square", own.builder.wide(own.gradient))
    summed = own.builder("sum", squared, over=type.dims) if type.dims else squared
    return own.function([Output("squares", own.builder.cast(summed, "f32"))])


def scale_function(training: Training) -> Function:
    """Return the update of a loss scale that changes: from the norm of the gradients, the scale, and its good steps."""
    b = Builder(Names(), training.span, "update")
    norm, scale = Value(b.names.fresh(GRAD_NORM), scalar("f32")), scale_state(b, training.loss_scale)
    assert isinstance(scale, ScaleState)
    outputs = next_scale(b, is_finite(b, norm), scale)
    given = (Argument(norm, "input"), *scale.arguments)
    return Function("next_scale", given, tuple(b.body), tuple(outputs))


def rate_function(training: Training) -> Function:
    """Return the learning rate of a step."""
    assert training.learning_rate is not None
    b = Builder(Names(), training.span, "update")
    rate = inlined(b, training.learning_rate)
    return numbered(Function(LEARNING_RATE, (), tuple(b.body), (Output(LEARNING_RATE, rate),)))
