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

Bind `training`, the truth value that tells a training step from other runs of a model, to true or false.

    %training: bool[] = training                          %training: bool[] = constant value=true dtype="bool"
    %y: f32[batch] = where %training, %dropped, %x        %y: f32[batch] = transpose %dropped dims=[batch]

Binding evaluates logic on the flag and picks one side of each choice by it, in loops too. Nothing then uses the other side: no
gradient reaches that side, and `dce` drops it. Results keep their names and types.
"""

from collections.abc import Mapping

import attrs

from mtfc.compiler.ir.core import Attr, Equation, Function, Program, Training, Update, Value, walk
from mtfc.compiler.ir.loops import outputs_of, pairs, region_of
from mtfc.compiler.ir.opdef import SameAs
from mtfc.compiler.ir.ops import OPS, has_trait
from mtfc.compiler.ir.ops.attention import without_operands
from mtfc.compiler.ir.ops.creation import VALUE
from mtfc.compiler.ir.types import FLOATS, TensorType, scalar

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


TRAINING = "training"

Truths = dict[Value, bool]
"""Values whose elements are all known to be true, or all false."""


def asks_for_training(function: Function) -> bool:
    return any(has_trait(eqn, "training") for eqn in walk(function.body))


def bound(function: Function, training: bool) -> Function:
    """Return the function as it is in training, or outside of training."""
    return _bound(function, training, {}) if asks_for_training(function) else function


def _bound(function: Function, training: bool, known: Truths) -> Function:
    return attrs.evolve(function, body=tuple(_equation(eqn, training, known) for eqn in function.body))


def _equation(eqn: Equation, training: bool, known: Truths) -> Equation:
    """Bind one equation, and add to `known` the results whose truth follows."""
    if eqn.regions:
        return _loop(eqn, training, known)
    found = training if has_trait(eqn, "training") else _follows(eqn, known)
    if isinstance(found, bool):
        known[eqn.result] = found
        return _made(eqn, found)
    if has_trait(eqn, "attention", "attention_gradient"):
        return without_operands(eqn, {value for value, truth in known.items() if truth})
    if has_trait(eqn, "cast") and eqn.operands[0] in known:
        return _made(eqn, known[eqn.operands[0]])
    return _renamed(eqn, eqn.operands[found.operand]) if found else eqn


def _loop(eqn: Equation, training: bool, known: Truths) -> Equation:
    """Return a loop in which `training` is bound.

    known: values that are known to be true or false; the loop's results join them.
    """
    region = region_of(eqn)
    inside = {a.value: known[v] for v, a in pairs(eqn) if a.role != "carried" and v in known}
    smaller = _bound(region, training, inside)
    known.update({v: inside[o.value] for v, o in outputs_of(eqn) if o.updates is None and o.value in inside})
    return attrs.evolve(eqn, regions=(smaller,))


def _follows(eqn: Equation, known: Mapping[Value, bool]) -> bool | SameAs | None:
    """Return the truth of all elements of the result, or the operand that the result equals; None if neither is known."""
    if has_trait(eqn, "filled"):
        value = VALUE.of(eqn.attrs)
        return value if isinstance(value, bool) else None
    logic = OPS[eqn.op].logic
    return logic([known.get(value) for value in eqn.operands]) if logic else None


def _made(eqn: Equation, truth: bool) -> Equation:
    """Replace an equation by a constant: the truth value, or as a number 1 or 0."""
    type = eqn.result.type
    value = truth if type.dtype == "bool" else float(truth) if type.dtype in FLOATS else int(truth)
    attributes: dict[str, Attr] = {"value": value, "dtype": type.dtype}
    if type.dims:
        return attrs.evolve(eqn, op="full", operands=(), attrs={"dims": type.dims, **attributes})
    return attrs.evolve(eqn, op="constant", operands=(), attrs=attributes)


def _renamed(eqn: Equation, same: Value) -> Equation:
    """Replace an equation by a copy of `same` under its name and dimensions. `simplify` drops copies that change nothing."""
    dims = eqn.result.type.dims
    op = "transpose" if len(dims) == len(same.type.dims) else "broadcast"
    return attrs.evolve(eqn, op=op, operands=(same,), attrs={"dims": dims})
