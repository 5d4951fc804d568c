"""differentiate: add the training step, by reverse-mode differentiation of `forward`.

The step returns the loss and the values that `report` names (see `ir/training.py`).

With `accumulate = K` the step takes K micro-batches, stacked along a new first dimension of each input, and minimizes the mean of
their losses, weighed by the output `weigh_by` if there is one: gradients are added up and parameters updated once. A loop over
the micro-batches runs forward and backward pass, so only the activations of one are alive at a time. An output may be weighed by
another one, such as a number of tokens: sums of weight times value, divided by the sum of the weights, are what one large batch
gives for a mean over these tokens.

Input:   function forward(x, w) -> (y, loss) { ... }        with updates of its parameters
Output:  the same, and function step(x, w, w.velocity) -> (loss, w updates w, w.velocity updates w.velocity) { ... }
         or, with of=gradients, function gradients(x, w) -> (y, loss, d_x, d_w) { ... }
         or, with of=module, besides `step` functions of loss and gradients alone (see `gradient_functions`)
In the added functions `training` is true (see `ir/training.py`).
After this pass no gradient and no update is implicit; nothing is split yet.
"""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import ClassVar

import attrs

from mtfc.compiler.analysis.output_weights import unit_of, weights_of, with_counts
from mtfc.compiler.ir.builder import Builder, Names, Substitution, fresh_copy, names_of, rename_values
from mtfc.compiler.ir.core import Argument, Equation, Function, Output, Program, Role, Training, Value, walk
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
from mtfc.compiler.ir.training import (
    GRAD_NORM,
    LEARNING_RATE,
    LOSS_SCALE,
    bound,
    returned_outputs,
    update_of,
    updated,
)
from mtfc.compiler.ir.types import FLOATS, Dim, TensorType, scalar
from mtfc.compiler.ir.verifier import Level
from mtfc.compiler.passes.autodiff.backward import backward, with_constant_unbounded_loops
from mtfc.compiler.passes.autodiff.update_equations import (
    ParameterUpdate,
    ScaleState,
    averages_of,
    gradient_norm,
    inlined,
    is_finite,
    kept_unless,
    next_scale,
    scale_state,
    scale_value,
    seed,
    unscaled,
)
from mtfc.compiler.passes.autodiff.wide_sums import with_wide_sums
from mtfc.compiler.passes.pass_base import Pass
from mtfc.compiler.records import frozen


@frozen
class Differentiate(Pass):
    """`of` selects the functions to add.

    `step`: the training step, if the program trains. `gradients`: gradients of all float inputs and parameters. `module`: the
    step, and functions of loss and gradients alone for other callers.
    """

    name: ClassVar[str] = "differentiate"
    takes: ClassVar[tuple[Level, ...]] = ("global",)
    of: str = "step"

    def run(self, program: Program) -> Program:
        """Return the program with the functions that `of` selects.

        A program that has them already, or does not train, stays as it is.
        """
        if program.has_function("gradients" if self.of == "gradients" else "step"):
            return program
        if self.of == "gradients":
            return _declared(
                attrs.evolve(program, functions=(*program.functions, gradients_function(program)))
            )
        training = program.training
        if training is None or not training.updates:
            return program
        return _declared(with_step(program, training, with_gradients=self.of == "module"))


def _declared(program: Program) -> Program:
    """Declare the dimensions under which loops yield residuals (see `backward.py`)."""
    loops = (eqn for function in program.functions for eqn in walk(function.body) if eqn.regions)
    dims = {dim.name: dim for eqn in loops for value in eqn.results for dim in value.type.dims}
    return (
        program
        if dims.keys() <= program.dims.keys()
        else attrs.evolve(program, dims={**program.dims, **dims})
    )


def _float_arguments(function: Function, roles: tuple[str, ...]) -> list[Value]:
    return [a.value for a in function.arguments if a.role in roles and a.value.type.dtype in FLOATS]


def _trained(function: Function, training: Training) -> list[Value]:
    """Return the parameters that have an update: no gradient of a frozen parameter is computed."""
    names = updated(training)
    return [value for value in _float_arguments(function, ("parameter",)) if value.name in names]


def _continue(function: Function) -> Builder:
    """Return a builder whose body starts with the function's equations."""
    builder = Builder(names_of(function), stage="backward")
    builder.body.extend(function.body)
    return builder


def _seeds(builder: Builder, forward: Function, training: Training | None) -> dict[Value, Value]:
    """Return the seeds: 1 for the minimized value, or without training ones for every float output."""
    lines = {value: eqn.span for eqn in forward.body for value in eqn.results}
    seeds: dict[Value, Value] = {}
    for output in forward.handed_out:
        value = output.value
        wanted = training is None or output.name == training.minimize
        if wanted and value.type.dtype in FLOATS and value not in seeds:
            builder.span = lines.get(value)
            seeds[value] = builder("full", dims=value.type.dims, value=1.0, dtype=value.type.dtype)
    return seeds


def _named_gradients(body: Sequence[Equation], gradients: Mapping[Value, Value]) -> dict[Value, str]:
    """Return the names of computed gradients: `d_` and the value's name."""
    computed = {value for eqn in body if eqn.stage == "backward" for value in eqn.results}
    return {g: f"d_{value.name}" for value, g in gradients.items() if g in computed}


def gradients_function(program: Program) -> Function:
    """Return the function of forward's outputs and the gradients of all float inputs and parameters, zeros for unused ones.

    States have no gradient. Results of unbounded loops count as constants.
    """
    forward = with_constant_unbounded_loops(bound(program.function("forward"), training=True))
    builder = _continue(forward)
    arguments = _float_arguments(forward, ("input", "parameter"))
    wanted = [value for value in arguments if value.name not in program.states]
    gradients = backward(builder, forward.body, _seeds(builder, forward, program.training), wanted)
    for value in wanted:
        found = gradients.get(value)
        gradients[value] = builder.cast(found, value.type.dtype) if found else builder.zeros(value.type)
    outputs = [Output(f"d_{value.name}", gradients[value]) for value in wanted]
    function = Function("gradients", forward.arguments, tuple(builder.body), (*forward.handed_out, *outputs))
    return rename_values(function, _named_gradients(builder.body, gradients))


def clipped(
    builder: Builder, gradients: Mapping[Value, Value], norm: Value, limit: float
) -> dict[Value, Value]:
    """Scale gradients so that their joint norm, given as `norm`, becomes at most `limit`."""
    most = builder.constant(limit, "f32")
    scale = builder("div", most, builder("maximum", norm, most))
    return {value: _times(builder, g, scale) for value, g in gradients.items()}


def _times(builder: Builder, gradient: Value, scale: Value) -> Value:
    """Multiply a gradient by an f32 scale, which may be too small for f16; round the product once."""
    product = builder.wide(gradient)
    return builder.cast(builder("mul", product, builder.cast(scale, product.type.dtype)), gradient.type.dtype)


@frozen
class Differentiated:
    """Reported outputs, the loss first, and gradients of the parameters, in a builder's body.

    Both belong to one batch, or are means over several. A loss scale is still a factor of the gradients; `scale` has the states
    of a dynamic one. states: the new values of the model's states, after the last batch.
    """

    builder: Builder
    arguments: tuple[Argument, ...]
    outputs: Mapping[str, Value]
    gradients: dict[Value, Value]
    states: Mapping[str, Value]
    scale: ScaleState | None = None


def _whole_batch(forward: Function, training: Training, is_step: bool = False) -> Differentiated:
    """Return the gradients of the whole batch. is_step: a dynamic loss scale is a state of the step."""
    builder = _continue(forward)
    state = scale_state(builder, training.loss_scale) if is_step else None
    loss = _minimized(forward, training)
    builder.span = next((eqn.span for eqn in forward.body if loss in eqn.results), None)
    gradients = _scaled_gradients(builder, forward, training, state.scale.value if state else None)
    values = {output.name: output.value for output in forward.outputs}
    outputs = {name: values[name] for name in returned_outputs(forward, training)}
    return Differentiated(builder, forward.arguments, outputs, gradients, replaced_by(forward), state)


def _scaled_gradients(
    builder: Builder,
    forward: Function,
    training: Training,
    scale: Value | None,
    share: float = 1.0,
    weight: Value | None = None,
) -> dict[Value, Value]:
    """Append the gradients of the trained parameters for a share of the loss, with loss scale and weight as factors."""
    start = seed(builder, _minimized(forward, training), training.loss_scale, scale, share, weight)
    seeds = {_minimized(forward, training): start}
    found = backward(builder, forward.body, seeds, _trained(forward, training))
    found = {value: builder.cast(gradient, value.type.dtype) for value, gradient in found.items()}
    return with_wide_sums(builder, found, training.reduce, forward.outputs) if training.reduce else found


def _minimized(forward: Function, training: Training) -> Value:
    return next(output.value for output in forward.outputs if output.name == training.minimize)


def _micro_batches(
    forward: Function,
    training: Training,
    micro: Dim,
    is_step: bool = False,
) -> Differentiated:
    """Return the mean outputs and gradients over a loop's micro-batches.

    With `weigh_by`, the loss and the gradients are weighed by that output, other outputs that are means over a count of the data
    by their counts, and the sum of the weights is reported.
    """
    names = returned_outputs(forward, training)
    forward = with_counts(forward)[0] if training.weigh_by is not None else forward
    weights, unit = weights_of(forward, training), unit_of(forward, training)
    arguments = tuple(stacked(argument, micro) for argument in forward.arguments)
    builder = Builder(Names(argument.value.name for argument in arguments), training.span, "backward")
    state = scale_state(builder, training.loss_scale) if is_step else None

    def gradients(
        inner: Builder, body: Function, scale: Value | None, weight: Value | None
    ) -> dict[Value, Value]:
        return _scaled_gradients(inner, body, training, scale, unit, weight)

    scale = state.scale.value if state else None
    totals, sums, states = over_micro_batches(
        builder, forward, arguments, micro, names, weights, gradients, scale
    )
    outputs, sums = means(builder, forward, training, totals, sums)
    return Differentiated(builder, arguments, outputs, sums, states, state)


def means(
    builder: Builder,
    forward: Function,
    training: Training,
    totals: Mapping[str, Value],
    sums: dict[Value, Value],
) -> tuple[dict[str, Value], dict[Value, Value]]:
    """Append the means of outputs and gradients over micro-batches.

    totals, sums: the sums of outputs, with their weights as factors, of weights, and of gradients. forward: with all weights.
    """
    weights, unit = weights_of(forward, training), unit_of(forward, training)
    shares = {name: inverse(builder, totals[by]) for name, by in weights.items()}
    if weights:
        total = totals[str(training.weigh_by)]
        share = inverse(builder, builder("mul", total, builder.like(unit, total)))
        sums = {parameter: _times(builder, g, share) for parameter, g in sums.items()}
        shares[str(training.weigh_by)] = builder.like(1.0, total)
    dtypes = {output.name: output.value.type.dtype for output in forward.outputs}
    outputs = dict[str, Value]()
    for name in returned_outputs(forward, training):
        share = shares.get(name) or builder.like(1 / training.accumulate, totals[name])
        mean = builder("mul", totals[name], builder.cast(share, totals[name].type.dtype))
        outputs[name] = builder.cast(mean, dtypes[name]) if dtypes[name] in FLOATS else mean
    return outputs, sums


def gradient_functions(program: Program, training: Training, micro: Dim | None) -> Iterator[Function]:
    """Yield the parts of a step that compute loss and gradients, so that another optimizer can replace the file's.

    `batch_gradients` is for one batch, `step_gradients` for several micro-batches, and `clip_gradients` scales the gradients of
    either. A gradient is an output that belongs to a parameter, and so is placed as the parameter is. In place of a gradient, a
    state has its new value.
    """
    forward = bound(program.function("forward"), training=True)
    yield gradient_function("batch_gradients", _whole_batch(forward, training), training, program.states)
    if micro is not None:
        found = _micro_batches(forward, training, micro)
        yield gradient_function("step_gradients", found, training, program.states)
    if training.clip is not None:
        yield _clipping(forward, training, training.clip, program.states)


def gradient_function(
    name: str, found: Differentiated, training: Training, states: Collection[str]
) -> Function:
    """Return the function of the loss, the gradient of each parameter, and the new value of each state.

    The gradient of a parameter that the loss does not depend on is zeros.
    """
    builder, gradients = found.builder, _without_scale(found, training)
    names = _named_gradients(builder.body, gradients)
    given = list[Output]()
    for value in (a.value for a in found.arguments if a.role == "parameter"):
        new = found.states.get(value.name, value) if value.name in states else gradients.get(value)
        if new is None:
            new = builder.zeros(value.type)
        given.append(Output(value.name, new, value.name))
    handed = Output(training.minimize, found.outputs[training.minimize])
    function = Function(name, found.arguments, tuple(builder.body), (handed, *_apart([handed], given)))
    return numbered(rename_values(function, names))


def _clipping(forward: Function, training: Training, limit: float, states: Collection[str]) -> Function:
    """Return the function that clips gradients; an argument is a gradient, under the name of its parameter.

    States stay as they are.
    """
    arguments = tuple(argument for argument in forward.arguments if argument.role == "parameter")
    values = [argument.value for argument in arguments]
    builder = Builder(Names(value.name for value in values), training.span, "update")
    trained = [value for value in values if value.name not in states]
    scaled = clipped(builder, {v: v for v in trained}, gradient_norm(builder, trained), limit)
    outputs = tuple(Output(value.name, scaled.get(value, value), value.name) for value in values)
    return Function("clip_gradients", arguments, tuple(builder.body), outputs)


def _without_scale(found: Differentiated, training: Training) -> dict[Value, Value]:
    """Return the gradients of the loss itself."""
    if training.loss_scale is None:
        return found.gradients
    return unscaled(found.builder, found.gradients, training.loss_scale, found.scale)


def _updated(
    builder: Builder,
    program: Program,
    training: Training,
    gradients: Mapping[Value, Value],
    good: Value | None,
) -> tuple[list[Argument], list[Output]]:
    """Append the update of every parameter with a gradient; return the states' arguments and the outputs.

    good: with a dynamic loss scale, a truth value: True if all gradients are finite. Else the old values are kept. That choice
    follows each update at once, so that old and new values of all parameters never exist together.
    """
    spans = {parameter.name: parameter.span for parameter in program.parameters}
    common: dict[Value, Value] = {}
    states, outputs = list[Argument](), list[Output]()
    for parameter, gradient in gradients.items():
        builder.span = spans[parameter.name]
        update = ParameterUpdate(builder, update_of(training, parameter.name), parameter, common)
        found = update.run(gradient)
        states += found[0]
        outputs += kept_unless(builder, good, found[1], (parameter, *(a.value for a in found[0])))
    return states, outputs


def _built_in(
    builder: Builder, training: Training, gradients: Mapping[Value, Value], state: ScaleState | None
) -> dict[str, Value]:
    """Append the norm of the gradients, the learning rate and the loss scale, where the step needs them."""
    found = dict[str, Value]()
    if training.clip is not None or state is not None or GRAD_NORM in training.report:
        found[GRAD_NORM] = gradient_norm(builder, gradients.values())
    if training.loss_scale is not None and LOSS_SCALE in training.report:
        found[LOSS_SCALE] = scale_value(builder, training.loss_scale, state)
    if training.learning_rate is not None:
        found[LEARNING_RATE] = inlined(builder, training.learning_rate)
    return found


def with_step(program: Program, training: Training, with_gradients: bool = False) -> Program:
    """Add forward pass, gradients and updates as `step`.

    A parameter that is frozen, or has no gradient, stays as it is. So does a state that the model does not update.
    """
    forward, micro = bound(program.function("forward"), training=True), None
    if training.accumulate > 1:
        program, micro = with_micro_dim(program, training.accumulate)
    more = tuple(gradient_functions(program, training, micro)) if with_gradients else ()
    found = (
        _whole_batch(forward, training, is_step=True)
        if micro is None
        else _micro_batches(forward, training, micro, is_step=True)
    )
    functions = (*program.functions, *more, *finished_step(program, training, found))
    done = attrs.evolve(training, updates=(), learning_rate=None)
    return attrs.evolve(program, functions=functions, training=done)


def finished_step(program: Program, training: Training, found: Differentiated) -> Iterator[Function]:
    """Append norm, clipping, updates and reports to a step; yield the function of averages if there are some, and the step."""
    builder, scale = found.builder, found.scale
    names = _named_gradients(builder.body, found.gradients)
    builder.stage, builder.span = "update", training.span
    gradients = _without_scale(found, training)
    own = _built_in(builder, training, gradients, scale)
    good = is_finite(builder, own[GRAD_NORM]) if scale else None
    if training.clip is not None:
        gradients = clipped(builder, gradients, own[GRAD_NORM], training.clip)
    states, changed = _updated(builder, program, training, gradients, good)
    others = list[Output]()
    if training.average is not None:
        builder.span = training.span
        averages = averages_of(builder, training.average, changed, gradients)
        states += averages.arguments
        others += averages.outputs
        yield averages.function(found.arguments)
    others += [Output(name, value, name) for name, value in found.states.items()]
    builder.span = training.span
    changed += kept_unless(builder, good, others, [a.value for a in (*found.arguments, *states)])
    if scale is not None and good is not None:
        changed += next_scale(builder, good, scale)
        states += scale.arguments
    unchanged = _unchanged(found.arguments, changed)
    values = {**own, **found.outputs}
    handed = [Output(name, values[name]) for name in (training.minimize, *training.report)]
    replacing = _apart(handed, (*changed, *unchanged))
    step = Function("step", (*found.arguments, *states), tuple(builder.body), (*handed, *replacing))
    yield numbered(rename_values(step, names))


def _unchanged(arguments: Iterable[Argument], changed: Iterable[Output]) -> Iterator[Output]:
    """Yield the outputs for parameters and states that the step leaves as they are."""
    updated = {output.updates for output in changed}
    for value in (argument.value for argument in arguments if argument.role == "parameter"):
        if value.name not in updated:
            yield Output(value.name, value, value.name)


def _apart(handed: Iterable[Output], replacing: Iterable[Output]) -> tuple[Output, ...]:
    """Rename outputs that replace arguments where another output has the same name."""
    names = Names(output.name for output in handed)
    return tuple(attrs.evolve(output, name=names.fresh(output.name)) for output in replacing)


def numbered(function: Function) -> Function:
    """Replace `step_number` by an argument, the number of the step. In other functions `step_number` is 0."""
    counting = [eqn for eqn in function.body if has_trait(eqn, "step_number")]
    if not counting:
        return function
    argument = Argument(Value(names_of(function).fresh("step"), scalar("i32")), "step", counting[0].span)
    number = Substitution(dict.fromkeys((eqn.result for eqn in counting), argument.value))
    body = [number.equation(eqn) for eqn in function.body if not has_trait(eqn, "step_number")]
    return attrs.evolve(number.function(function, body), arguments=(*function.arguments, argument))


# Micro-batches


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
