"""Micro-batches: a loop over slices of the inputs that runs forward and backward pass.

Only the activations of one slice are alive at a time. An output may be weighed by another one, such as a number of tokens: sums
of weight times value, divided by the sum of the weights, are what one large batch gives for a mean over these tokens.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

import attrs

from mtfc.compiler.ir.builder import Builder, Names
from mtfc.compiler.ir.core import Argument, Equation, Function, Output, Program, Role, Value, walk
from mtfc.compiler.ir.loops import (
    MICRO_BATCHES,
    NewLoop,
    is_over_micro_batches,
    pairs,
    plain_loop,
    region_of,
)
from mtfc.compiler.ir.ops import has_trait
from mtfc.compiler.ir.ops.collectives import axes_of
from mtfc.compiler.ir.rewrite import Substitution, fresh_copy, names_of
from mtfc.compiler.ir.types import FLOATS, Dim, TensorType, scalar

Gradients = Callable[[Builder, Function, "Value | None", "Value | None"], Mapping[Value, Value]]
"""Appends to the builder the gradients of a function's parameters for a loss scale and a weight: parameter -> gradient."""


def gathered_anew(eqn: Equation) -> list[Value]:
    """Return the operands that each micro-batch gathers: parameters that are stored split over further axes."""
    if not is_over_micro_batches(eqn):
        return []
    gathers = [each for each in walk(region_of(eqn).body) if has_trait(each, "all_gather")]
    axes = {axis for each in gathers for axis in axes_of(each)}
    return [v for v, a in pairs(eqn) if a.role == "invariant" and not axes.isdisjoint(v.type.split_axes)]


def with_micro_dim(program: Program, number: int) -> tuple[Program, Dim]:
    """Add the dimension that counts micro-batches to a program; return both."""
    micro = Dim(Names(program.dims).fresh("micro"), number)
    return attrs.evolve(program, dims={**program.dims, micro.name: micro}), micro


def stacked(argument: Argument, micro: Dim) -> Argument:
    """Return an input with `micro` as its first dimension, or any other argument unchanged."""
    if argument.role != "input":
        return argument
    old = argument.value
    return attrs.evolve(argument, value=Value(old.name, TensorType(old.type.dtype, (micro, *old.type.dims))))


def over_micro_batches(
    b: Builder,
    forward: Function,
    arguments: tuple[Argument, ...],
    micro: Dim,
    outputs: Sequence[str],
    weights: Mapping[str, str],
    gradients: Gradients,
    scale: Value | None = None,
) -> tuple[dict[str, Value], dict[Value, Value], dict[str, Value]]:
    """Append the loop; return the sums over micro-batches of the named `outputs` and of each parameter's gradient.

    weights: output -> the output that it is weighed by; gradients have the weight of the first of `outputs`, the loss.

    `arguments` are the forward function's, with stacked inputs. The sums are carries, pending or not, so each sum is completed
    once. `scale` is a loss scale that is a state of the step. The states of the model are carries too: each micro-batch updates
    what the one before left. Their last values are the third result, by name.
    """
    body, counted = _counted(b, fresh_copy(forward), micro)
    inner = Builder(names_of(body), b.span, "backward")
    inner.body = list(body.body)
    scaled = Value(inner.names.fresh(scale.name), scale.type) if scale else None
    given = {output.name: output.value for output in body.handed_out}
    numbers = weight_numbers(inner, given, weights)
    weight = numbers[weights[outputs[0]]] if weights else None
    found = gradients(inner, body, scaled, weight)
    outside = dict(zip((a.value for a in body.arguments), (a.value for a in arguments), strict=False))
    outside |= counted
    if scaled and scale:
        body = attrs.evolve(body, arguments=(*body.arguments, Argument(scaled, "parameter")))
        outside[scaled] = scale
    inner.span = b.span
    if weight:
        is_there = _is_there(inner, weight)
        found = {parameter: inner("mask", is_there, g) for parameter, g in found.items()}
    reported = weighed_terms(inner, given, outputs, weights, numbers)
    sums = {f"sum_{name}": value for name, value in reported.items()}
    sums |= {f"d_{parameter.name}": g for parameter, g in found.items()}
    states = replaced_by(body)
    over = NewLoop(b, inner, micro)
    for name, value in sums.items():
        total = over.argument(b.zeros(value.type), "carried", name)
        over.outputs.append(Output(total.name, inner("add", total, value), total.name))
    over.outputs += [Output(name, value, name) for name, value in states.items()]
    own = {a.value.name: a for a in body.arguments}
    for name in (*states, *(name for name in own if name not in states)):
        argument = own[name]
        role: Role = "carried" if name in states else "sliced" if argument.role == "input" else "invariant"
        over.given.append((outside[argument.value], attrs.evolve(argument, role=role)))
    loop = over.append(MICRO_BATCHES, attrs.evolve(plain_loop(micro, b), stage="backward"))
    totals, of_gradients = loop.results[: len(reported)], loop.results[len(reported) : len(sums)]
    of_parameters = {outside[p]: total for p, total in zip(found, of_gradients, strict=True)}
    new = dict(zip(states, loop.results[len(sums) :], strict=True))
    return dict(zip(reported, totals, strict=True)), of_parameters, new


def weight_numbers(b: Builder, given: Mapping[str, Value], weights: Mapping[str, str]) -> dict[str, Value]:
    """Append the weights of a micro-batch as floats of 32 bits at least. given: its outputs."""
    return {by: b.wide(_as_float(b, given[by])) for by in dict.fromkeys(weights.values())}


def weighed_terms(
    b: Builder,
    given: Mapping[str, Value],
    outputs: Iterable[str],
    weights: Mapping[str, str],
    numbers: dict[str, Value],
) -> dict[str, Value]:
    """Append what a micro-batch adds to the sums of outputs and of weights. numbers: see `weight_numbers`."""
    found = {name: b.wide(_as_float(b, given[name])) for name in outputs} | numbers
    return found | {name: _weighed(b, found[name], numbers[by]) for name, by in weights.items()}


def _is_there(b: Builder, weight: Value) -> Value:
    return b("ne", weight, b.like(0.0, weight))


def _weighed(b: Builder, value: Value, weight: Value) -> Value:
    """Return a value times its weight: 0 for a weight of 0, where the value may be no number."""
    return b("mask", _is_there(b, weight), b("mul", value, b.cast(weight, value.type.dtype)))


def inverse(b: Builder, total: Value) -> Value:
    """Return one by the sum of all weights; 1 if the sum is 0."""
    one = b.like(1.0, total)
    return b("div", one, b("where", _is_there(b, total), total, one))


def replaced_by(function: Function) -> dict[str, Value]:
    """Return the new value of each argument that the function replaces, by the argument's name."""
    return {output.updates: output.value for output in function.outputs if output.updates is not None}


def _counted(b: Builder, body: Function, micro: Dim) -> tuple[Function, dict[Value, Value]]:
    """Replace `step_number` by a number that increases with each micro-batch: step * K + micro-batch.

    Return the body with two more arguments, the step and the number of the micro-batch, and these arguments' operands.
    """
    counting = [eqn for eqn in body.body if has_trait(eqn, "step_number")]
    if not counting:
        return body, {}
    inner = Builder(names_of(body), counting[0].span)
    step, number = (Value(inner.names.fresh(name), scalar("i32")) for name in ("step", "micro_batch"))
    before = inner("mul", step, inner.constant(micro.size, "i32"))
    new = Substitution(dict.fromkeys((eqn.result for eqn in counting), inner("add", before, number)))
    equations = [*inner.body, *(new.equation(eqn) for eqn in body.body if not has_trait(eqn, "step_number"))]
    arguments = (*body.arguments, Argument(step, "parameter"), Argument(number, "input"))
    made = {step: b("step_number"), number: b("range", dim=micro)}
    return attrs.evolve(new.function(body, equations), arguments=arguments), made


def _as_float(b: Builder, value: Value) -> Value:
    """Cast an integer or truth value to f32, as a mean needs."""
    return value if value.type.dtype in FLOATS else b.cast(value, "f32")
