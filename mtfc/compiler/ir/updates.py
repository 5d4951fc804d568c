"""Updates: an optimizer's function for one parameter, and how it becomes part of a step for all of them.

    update layers.w with momentum {
      parameter %p: f32[io, hidden]
      input %g: f32[io, hidden]
      state %velocity: f32[io, hidden]
      ...
      output p = %p_2 updates p
      output velocity = %velocity_2 updates velocity
    }

What is declared in a loop over `layers` has that dimension too, in front. It is updated as the parameters of single layers would
be: every equation of the function gets the dimension, so that what it reduces it reduces layer by layer.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import attrs

from mtfc.compiler.ir.builder import Builder
from mtfc.compiler.ir.core import Argument, Equation, Function, Output, Program, Training, Update, Value
from mtfc.compiler.ir.ops import OPS, has_trait
from mtfc.compiler.ir.types import Dim, TensorType


def of_role(function: Function, role: str) -> list[Value]:
    return [argument.value for argument in function.arguments if argument.role == role]


def updated(training: Training) -> frozenset[str]:
    """Return the parameters that training changes; the others are frozen."""
    return frozenset(name for update in training.updates for name in update.parameters)


def update_of(training: Training, parameter: str) -> Function:
    return next(update.function for update in training.updates if parameter in update.parameters)


def updates_error(training: Training, program: Program) -> str | None:
    """What is wrong with a program's updates, the insides of their functions left aside; None where nothing is."""
    updated = [name for update in training.updates for name in update.parameters]
    declared = {parameter.name: parameter.type for parameter in program.parameters}
    if len(updated) != len(set(updated)) or not declared.keys() >= set(updated):
        return "each parameter has one update or none, and nothing else has one"
    errors = (_update_error(update, declared) for update in training.updates)
    return next((f"update {error}" for error in errors if error), None)


def _update_error(update: Update, declared: Mapping[str, TensorType]) -> str | None:
    function = update.function
    parameters, gradients, states = (of_role(function, role) for role in ("parameter", "input", "state"))
    if len(parameters) != 1 or len(gradients) != 1 or len(states) + 2 != len(function.arguments):
        return f"{function.name} takes a parameter, a gradient, and states"
    if gradients[0].type != parameters[0].type:
        return f"{function.name}: the gradient is like the parameter"
    if {output.updates for output in function.outputs} != {value.name for value in (*parameters, *states)}:
        return f"{function.name} gives what updates its parameter and its states, and nothing else"
    own = parameters[0].type.dims
    unlike = (n for n in update.parameters if declared[n].dims[len(declared[n].dims) - len(own) :] != own)
    return next((f"{function.name} is for {parameters[0].type}, not for %{name}" for name in unlike), None)


class Updater:
    """Appends updates of parameters to the builder's body.

    What depends on no parameter, a schedule for example, is computed once for all that are updated by the same function.
    """

    def __init__(self, builder: Builder) -> None:
        self.builder = builder
        self._common: dict[Value, Value] = {}

    def apply(
        self, function: Function, parameter: Value, gradient: Value
    ) -> tuple[list[Argument], list[Output]]:
        """The update of one parameter: the state that it needs, and what replaces state and parameter."""
        return _Application(self.builder, function, parameter, self._common).run(gradient)


class _Application:
    """The equations of an update function for one parameter: named after it, and for all its slices at once."""

    def __init__(
        self, builder: Builder, function: Function, parameter: Value, common: dict[Value, Value]
    ) -> None:
        self.builder, self.function, self.parameter, self.common = builder, function, parameter, common
        (self.like,) = of_role(function, "parameter")
        self.stack: tuple[Dim, ...] = parameter.type.dims[
            : len(parameter.type.dims) - len(self.like.type.dims)
        ]
        self.own: dict[Value, Value] = {}
        self.replaced = {self.like.name: parameter}

    def run(self, gradient: Value) -> tuple[list[Argument], list[Output]]:
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
        type = argument.value.type
        name = self.builder.names.fresh(f"{self.parameter.name}.{argument.value.name}")
        value = Value(name, TensorType(type.dtype, (*self.stack, *type.dims)))
        self.own[argument.value] = self.replaced[argument.value.name] = value
        return attrs.evolve(argument, value=value, span=self.builder.span)

    def _output(self, output: Output) -> Output:
        assert output.updates is not None
        old, found = self.replaced[output.updates], self._new(output.value)
        new = self.builder.ordered(self.builder.broadcast(found, old.type), old.type.dims)
        return Output(old.name, self.builder.cast(new, old.type.dtype), old.name)

    def _new(self, value: Value) -> Value:
        return self.common.get(value) or self.own[value]

    def _equation_for_all(self, eqn: Equation) -> None:
        if has_trait(eqn, "constant"):
            number = self.builder.constant(eqn.attrs["value"], eqn.result.type.dtype)  # type: ignore[arg-type]
            self.common[eqn.result] = number
        elif eqn.results[0] not in self.common:
            operands = [self.common[value] for value in eqn.operands]
            self._append(eqn, operands, eqn.attrs, eqn.path, self.common)

    def _equation(self, eqn: Equation) -> None:
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
        """The equation for other operands, and so perhaps other types; `new` learns of its results."""
        types = OPS[eqn.op].infer([value.type for value in operands], attributes)
        results = tuple(Value(self.builder.names.fresh(name or eqn.op), type) for type in types)
        new.update(zip(eqn.results, results, strict=True))
        span, stage = self.builder.span, self.builder.stage
        self.builder.append(Equation(eqn.op, tuple(operands), results, attributes, span=span, stage=stage))

    def _is_stacked(self, value: Value) -> bool:
        return bool(self.stack) and set(self.stack) <= set(value.type.dims)

    def _stacked(self, value: Value) -> Value:
        """A value that meets stacked ones; a scalar may stay what it is."""
        if self._is_stacked(value) or not value.type.dims:
            return value
        return self.builder("broadcast", value, dims=(*self.stack, *value.type.dims))

    def _stacked_attr(self, key: str, value: Any) -> Any:
        """`dims` are those of a result."""
        return (*self.stack, *value) if key == "dims" else value
