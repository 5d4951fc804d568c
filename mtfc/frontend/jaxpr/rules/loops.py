"""`scan` and `while`: a loop."""

from collections.abc import Iterator, Sequence

from mtfc.compiler.ir.builder import Builder, Names
from mtfc.compiler.ir.core import Argument, Attr, Equation, Function, Output, Role, Value
from mtfc.compiler.ir.loops import LOOP, UNBOUNDED, WHILE, make_loop
from mtfc.compiler.ir.types import Dim, TensorType
from mtfc.frontend.jaxpr.expansions import scan_counts
from mtfc.frontend.jaxpr.factors import Axis, axis, leaves
from mtfc.frontend.jaxpr.flat import AppliedPrimitive, Body, Var
from mtfc.frontend.jaxpr.primitive_rules import Axes, JaxprEmitter, Linker, PrimitiveRule

NAMES = {"carried": "carry", "sliced": "x"}
"""Role of an argument of a loop's body -> its name; others are constants."""


def _numbers(step: AppliedPrimitive) -> tuple[int, int]:
    """Return the number of constants and of carries."""
    return scan_counts(step.params)


def link(linker: Linker, step: AppliedPrimitive) -> None:
    """Arguments of the body have the operands' axes. A carry keeps its axes in every iteration."""
    (body,), (consts, carries) = step.bodies, _numbers(step)
    along: Axis | None = None
    for i, (operand, argument) in enumerate(zip(step.operands, body.arguments, strict=True)):
        own = operand.axes
        if not isinstance(operand, Var) or not operand.shape:
            own = tuple(map(axis, operand.shape))
        if i >= consts + carries:
            if along is None:
                along = own[0]
            own = linker.fit(step, i, (along, *own[1:]))[1:] if isinstance(operand, Var) else own
        linker.give(argument, own)
    if along is None:
        along = axis(step.params["length"])
    linker.body(body)
    for i, output in enumerate(body.outputs):
        result = step.results[i]
        if i < carries:
            wanted = body.arguments[consts + i].axes
            found = linker.fitted(output.axes, wanted) if output.shape else wanted
            if any(leaves(a) != leaves(b) for a, b in zip(found, output.axes, strict=False)):
                body.renamed[i] = found
            linker.give(result, wanted)
        else:
            own = output.axes if isinstance(output, Var) else tuple(map(axis, output.shape))
            if not {*leaves(along)}.isdisjoint(f for each in own for f in leaves(each)):
                own = linker.fitted(own, [None] * len(own), (along,))
                body.renamed[i] = own
            linker.give(result, (along, *own))


def emit(emitter: JaxprEmitter, step: AppliedPrimitive) -> Sequence[Value]:
    """Append a loop: its carries, the arrays that all iterations read, and the arrays that it takes slices of, in this order."""
    (body,), (consts, carries) = step.bodies, _numbers(step)
    dim = _dim(emitter, step)
    order: list[tuple[int, Role]] = [(i, "carried") for i in range(consts, consts + carries)]
    order += [(i, "invariant") for i in range(consts)]
    order += [(i, "sliced") for i in range(consts + carries, len(step.operands))]
    builder = Builder(Names(), step.span, step.stage)
    inner = emitter.inside(builder)
    operands, arguments = [], []
    for i, role in order:
        var = body.arguments[i]
        value = _operand(emitter, step, i, role, dim, var)
        type = TensorType(var.dtype, tuple(d for d in value.type.dims if d != dim))
        argument = Argument(Value(builder.names.fresh(NAMES.get(role, "const")), type), role, step.span)
        operands.append(value)
        arguments.append(argument)
        inner.known[var] = argument.value
    inner.run(body.steps)
    outputs = _outputs(inner, step, arguments[:carries])
    region = Function(dim.name, tuple(arguments), tuple(builder.body), tuple(outputs))
    attributes: dict[str, Attr] = {"dim": dim, "reverse": bool(step.params["reverse"]), "checkpoint": False}
    attributes |= {name: True for name in (WHILE.name, UNBOUNDED.name) if step.params.get(name)}
    like = Equation(LOOP, (), (), attributes, span=step.span, stage=step.stage)
    made = make_loop(emitter.build.names, region, operands, like)
    emitter.build.append(made)
    results = list(made.results)
    for i in range(carries, len(results)):
        own = emitter.dims.of(step.results[i].axes[0])
        results[i] = emitter.as_dims(results[i], (*own, *results[i].type.dims[1:]))
    return results


def _dim(emitter: JaxprEmitter, step: AppliedPrimitive) -> Dim:
    """Return the dimension of a loop: the one of its stacks, unless arrays inside have it too, or several dimensions stand
    for it.
    """
    (body,), (consts, carries) = step.bodies, _numbers(step)
    sliced = [
        step.axes(i)[0] for i, x in enumerate(step.operands) if i >= consts + carries and isinstance(x, Var)
    ]
    along = next(iter((*sliced, *(result.axes[0] for result in step.results[carries:]))), ())
    inside = {factor for axes in _axes_in(body) for each in axes for factor in leaves(each)}
    dims = emitter.dims.of(along)
    if len(dims) == 1 and inside.isdisjoint(leaves(along)):
        return dims[0]
    return emitter.dims.new("loop", step.params["length"])


def _axes_in(body: Body) -> Iterator[Axes]:
    """Yield the axes of all arrays of a body, and of the bodies inside, also those at single uses."""
    yield from (var.axes for var in body.arguments)
    yield from body.renamed.values()
    for step in body.steps:
        yield from (var.axes for var in step.results)
        yield from step.renamed.values()
        for inner in step.bodies:
            yield from _axes_in(inner)


def _operand(emitter: JaxprEmitter, step: AppliedPrimitive, i: int, role: Role, dim: Dim, var: Var) -> Value:
    """Return a loop's operand. A carry has all dimensions; a sliced operand has the loop's, as the first one."""
    operand = step.operands[i]
    if not isinstance(operand, Var):
        return emitter.raw(operand)
    value, axes = emitter.operand(step, i), step.axes(i)
    if role == "carried":
        return emitter.whole(value, axes)
    if role == "invariant":
        return value
    own = emitter.dims.of(axes[0])
    others = tuple(each for each in value.type.dims if each not in own)
    return emitter.as_dims(emitter.with_dims(value, (*own, *others)), (dim, *others))


def _outputs(inner: JaxprEmitter, step: AppliedPrimitive, carried: Sequence[Argument]) -> list[Output]:
    """Return the outputs of a loop's body: first the new carries with the carries' dimensions, then what is stacked."""
    (body,), (_, carries) = step.bodies, _numbers(step)
    names, found = Names(), []
    for i, output in enumerate(body.outputs):
        axes: Axes = body.renamed.get(i, output.axes)
        value = inner.raw(output)
        if i in body.renamed and isinstance(output, Var):
            value = inner.renamed(step, value, output.axes, axes)
        if i < carries:
            argument = carried[i].value
            value = inner.with_dims(value, argument.type.dims)
            found.append(Output(names.fresh(argument.name), value, argument.name))
        else:
            found.append(Output(names.fresh("y"), inner.whole(value, axes)))
    return found


RULES: dict[str, PrimitiveRule] = {"scan": PrimitiveRule(link, emit, takes_keys=True, moves=True)}
