"""Queries and invariants of a program's training: its updates, and the values that a step reports beside the loss.

    update layers.w with momentum {
      parameter %p: f32[io, hidden]
      input %g: f32[io, hidden]
      state %velocity: f32[io, hidden]
      ...
      output p = %p_2 updates p
      output velocity = %velocity_2 updates velocity
    }

A reported name stands for the model's output of that name, or else for one of `BUILT_IN`. With several micro-batches a step
reports the mean of an output, and the sum of the output that micro-batches are weighed by.

`passes/autodiff/update_equations.py` makes the equations of updates and built-in reports.
"""

from __future__ import annotations

from collections.abc import Mapping

from mtfc.compiler.ir.core import Function, Program, Training, Update, Value
from mtfc.compiler.ir.types import TensorType, scalar

GRAD_NORM = "grad_norm"
LEARNING_RATE = "learning_rate"
LOSS_SCALE = "loss_scale"
BUILT_IN = (GRAD_NORM, LEARNING_RATE, LOSS_SCALE)


def average_of(parameter: str) -> str:
    """Return the name of a parameter's average in the step's state and in files."""
    return f"{parameter}.average"


def of_role(function: Function, role: str) -> list[Value]:
    return [argument.value for argument in function.arguments if argument.role == role]


def updated(training: Training) -> frozenset[str]:
    """Return the parameters that training changes; the others are frozen."""
    return frozenset(name for update in training.updates for name in update.parameters)


def update_of(training: Training, parameter: str) -> Function:
    return next(update.function for update in training.updates if parameter in update.parameters)


def returned_outputs(forward: Function, training: Training) -> tuple[str, ...]:
    """Return the names of the outputs of `forward` that the step returns, the loss first."""
    outputs = {output.name for output in forward.handed_out}
    return (training.minimize, *(name for name in training.report if name in outputs))


def updates_error(training: Training, program: Program) -> str | None:
    """Return the first mistake in a program's updates, or None. The bodies of their functions are not checked."""
    updated = [name for update in training.updates for name in update.parameters]
    declared = {each.name: each.type for each in program.parameters if not each.is_state}
    if len(updated) != len(set(updated)) or not declared.keys() >= set(updated):
        return "a parameter that the program declares has at most one update, and nothing else has one"
    errors = (_update_error(update, declared) for update in training.updates)
    return next((f"update {error}" for error in errors if error), None)


def _update_error(update: Update, declared: Mapping[str, TensorType]) -> str | None:
    """Return what is wrong with the function of an update, or None. declared: the types of all parameters."""
    function = update.function
    parameters, gradients, states = (of_role(function, role) for role in ("parameter", "input", "state"))
    if len(parameters) != 1 or len(gradients) != 1 or len(states) + 2 != len(function.arguments):
        return f"{function.name} takes a parameter, a gradient, and states"
    if gradients[0].type != parameters[0].type:
        return f"{function.name}: the gradient must have the parameter's type"
    if {output.updates for output in function.outputs} != {value.name for value in (*parameters, *states)}:
        return f"{function.name} returns the new parameter and the new states, and nothing else"
    own = parameters[0].type.dims
    unlike = (n for n in update.parameters if declared[n].dims[len(declared[n].dims) - len(own) :] != own)
    return next((f"{function.name} is for {parameters[0].type}, not for %{name}" for name in unlike), None)


def report_error(training: Training, program: Program) -> str | None:
    """Return the first mistake in a program's reports, or None."""
    known = {output.name for output in program.function("forward").handed_out}
    names = (training.minimize, *training.report)
    if len(set(names)) != len(names):
        return "the step returns two values of one name"
    unknown = [name for name in training.report if name not in known and name not in BUILT_IN]
    if unknown:
        return f"{unknown[0]} is reported, and is no output of forward"
    if training.weigh_by is not None and training.weigh_by not in known:
        return f"micro-batches are weighed by {training.weigh_by}, which is no output of forward"
    if LOSS_SCALE in training.report and LOSS_SCALE not in known and training.loss_scale is None:
        return "the loss scale is reported, and there is none"
    return _rate_error(training, LEARNING_RATE in training.report and LEARNING_RATE not in known)


def _rate_error(training: Training, is_reported: bool) -> str | None:
    """Return what is wrong with the function of the learning rate, or None.

    is_reported: training reports the learning rate.
    """
    rate = training.learning_rate
    if rate is None:
        is_missing = is_reported and training.updates
        return "the learning rate is reported, and no function computes it" if is_missing else None
    if not is_reported:
        return "a function computes the learning rate, and it is not reported"
    is_right = not rate.arguments and [output.value.type for output in rate.outputs] == [scalar("f32")]
    return None if is_right else "the function of the learning rate takes no arguments and returns f32[]"
