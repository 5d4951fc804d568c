"""The gradient of a loop is a loop.

The backward loop runs the other way. It carries the cotangents of what the forward loop carries, and the sums of what each
iteration contributes to the cotangents of invariant operands; it yields the cotangents of sliced ones. What its body needs of
the forward body it gets in one of three ways: invariant and sliced operands are handed in again; what follows from invariant
operands alone, and views that are larger than what they are a view of, such as the windows of a convolution, are computed again;
all the rest the forward loop yields, and the backward loop slices. Under `checkpoint` the forward loop yields what it carries
only, and the rest is computed again, too.

What is yielded is stacked along the loop's dimension. In a value that has it already it goes by another name on the way.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

import attrs

from mtfc.compiler.analysis.buffer_kinds import enlarged
from mtfc.compiler.ir.builder import Builder, Names
from mtfc.compiler.ir.core import Argument, Equation, Function, Output, Value
from mtfc.compiler.ir.loops import carried, dim_of, make_loop, pairs, region_of
from mtfc.compiler.ir.rewrite import Substitution, fresh_copy, names_of
from mtfc.compiler.ir.types import Dim

Backward = Callable[[Builder, Sequence[Equation], Mapping[Value, Value], Sequence[Value]], dict[Value, Value]]
"""`backward.backward`: it and this module need each other, so it is handed in."""


@attrs.define
class LoopBody:
    """The forward body, and what was appended to it to compute cotangents.

    seeds: cotangents of the region's outputs, by output name: arguments of the backward region. grads: of its arguments.
    """

    region: Function
    forward: list[Equation]
    backward: list[Equation]
    builder: Builder
    seeds: dict[str, Value]
    grads: dict[Value, Value]


def _seeded(builder: Builder, region: Function, seeds: Mapping[str, Value]) -> dict[Value, Value]:
    """The cotangents of the region's results; one that leaves under several names gets the sum."""
    found: dict[Value, Value] = {}
    for output in region.outputs:
        if output.name in seeds:
            seed = seeds[output.name]
            earlier = found.get(output.value)
            found[output.value] = seed if earlier is None else builder("add", earlier, seed)
    return found


def _differentiated(
    region: Function, seeded: set[str], active: Sequence[Value], backward: Backward
) -> LoopBody:
    """The body of one iteration with its cotangents; `seeded` names the outputs that have one."""
    builder = Builder(names_of(region), stage="backward")
    builder.body = list(region.body)
    seeds = {
        o.name: Value(builder.names.fresh(f"d_{o.name}"), o.value.type)
        for o in region.outputs
        if o.name in seeded
    }
    start = len(region.body)
    grads = backward(builder, region.body, _seeded(builder, region, seeds), active)
    return LoopBody(region, builder.body[:start], builder.body[start:], builder, seeds, grads)


def _free_values(equations: Iterable[Equation], results: Iterable[Value]) -> list[Value]:
    """What the equations and results use and no equation defines, in order of first use."""
    found: dict[Value, None] = {}
    defined: set[Value] = set()
    for eqn in equations:
        found.update(dict.fromkeys(value for value in eqn.operands if value not in defined))
        defined.update(eqn.results)
    found.update(dict.fromkeys(value for value in results if value not in defined))
    return list(found)


def _from_invariants(region: Function, body: Iterable[Equation]) -> set[Value]:
    """Values that are the same in every iteration."""
    known = {argument.value for argument in region.arguments if argument.role == "invariant"}
    for eqn in body:
        if known.issuperset(eqn.operands):
            known.update(eqn.results)
    return known


def _again(body: LoopBody, checkpoint: bool) -> list[Equation]:
    """The forward equations to be computed again for the backward ones, in order."""
    free = _from_invariants(body.region, body.forward).union(enlarged(body.forward))
    needed = set(_free_values(body.backward, body.grads.values()))
    again = []
    for eqn in reversed(body.forward):
        if needed.intersection(eqn.results) and (checkpoint or free.issuperset(eqn.results)):
            again.append(attrs.evolve(eqn, stage="backward"))
            needed.update(eqn.operands)
    return again[::-1]


@attrs.define
class Residuals:
    """What the backward body needs of the forward loop.

    invariant, sliced: operands that are handed in again, with the values that stand for them in the body. yielded: further
    outputs of the forward region.
    """

    invariant: list[tuple[Value, Value]] = attrs.field(factory=list)
    sliced: list[tuple[Value, Value]] = attrs.field(factory=list)
    yielded: list[Output] = attrs.field(factory=list)


def _residuals(eqn: Equation, body: LoopBody, again: list[Equation]) -> Residuals:
    """What the backward body needs; what of it must first be renamed there, `again` begins with."""
    found = Residuals()
    operands = {argument.value: (value, argument) for value, argument in pairs(eqn)}
    outputs = zip(body.region.outputs, eqn.results, strict=True)
    stacked = {output.value: result for output, result in outputs if output.updates is None}
    used = _free_values([*again, *body.backward], body.grads.values())
    taken = {output.name for output in body.region.outputs}
    for value in used:
        if value in body.seeds.values():
            continue
        operand, argument = operands.get(value, (None, None))
        if operand is not None and argument is not None and argument.role != "carried":
            (found.invariant if argument.role == "invariant" else found.sliced).append((operand, value))
        elif value in stacked:
            found.sliced.append((stacked[value], value))
        else:
            name = value.name if value.name not in taken else f"{value.name}.kept"
            found.yielded.append(Output(name, _stackable(eqn, body, again, value)))
            taken.add(name)
    return found


def _stackable(eqn: Equation, body: LoopBody, again: list[Equation], value: Value) -> Value:
    """What is yielded for a value: where that has the loop's own dimension, the same data under another name for it.

    The backward body begins by renaming it back.
    """
    dim = dim_of(eqn)
    if dim not in value.type.dims:
        return value
    names = Names(each.name for each in value.type.dims)
    other = Dim(names.fresh(f"{dim.name}.kept"), dim.size)
    builder = Builder(body.builder.names, eqn.span)
    renamed = builder("rename", value, name=value.name, mapping=((dim, other),))
    back = builder("rename", renamed, mapping=((other, dim),))
    there, here = builder.body
    body.forward.append(there)
    again.insert(0, Substitution({back: value}).equation(attrs.evolve(here, stage="backward")))
    return renamed


def _zeros(builder: Builder, like: Value) -> Value:
    return builder("full", dims=like.type.dims, value=0.0, dtype=like.type.dtype)


@attrs.frozen
class Carry:
    """Something that the backward loop carries: where it starts, its argument, what updates it, whose cotangent it is."""

    start: Value
    value: Value
    after: Value
    owner: Argument


@attrs.define
class BackwardLoop:
    """Collects what goes into the backward loop and what comes out; `outer` and `inner` build around and inside it."""

    outer: Builder
    inner: Builder
    carries: list[Carry] = attrs.field(factory=list)
    invariant: list[tuple[Value, Value]] = attrs.field(factory=list)
    sliced: list[tuple[Value, Value]] = attrs.field(factory=list)
    yields: list[tuple[Output, Argument]] = attrs.field(factory=list)

    def cotangent(self, owner: Argument, seed: Value, total: Value | None, grad: Value | None) -> None:
        """Of what the forward loop carries: from that after an iteration to that before it."""
        after = self.inner.ordered(grad, seed.type.dims) if grad else _zeros(self.inner, seed)
        start = self.outer.ordered(total, seed.type.dims) if total else _zeros(self.outer, seed)
        self.carries.append(Carry(start, seed, after, owner))

    def sum(self, owner: Argument, grad: Value) -> None:
        """Of something invariant: the contributions of all iterations."""
        value = Value(self.inner.names.fresh(f"d_{owner.value.name}"), owner.value.type)
        after = self.inner.ordered(self.inner("add", value, grad), value.type.dims)
        self.carries.append(Carry(_zeros(self.outer, value), value, after, owner))

    def region(self, name: str, body: Iterable[Equation]) -> Function:
        arguments = [Argument(carry.value, "carried") for carry in self.carries]
        arguments += [Argument(value, "invariant") for _, value in self.invariant]
        arguments += [Argument(value, "sliced") for _, value in self.sliced]
        outputs = [Output(c.value.name, c.after, c.value.name) for c in self.carries]
        outputs += [output for output, _ in self.yields]
        return fresh_copy(Function(name, tuple(arguments), tuple(body), tuple(outputs)))

    def operands(self) -> list[Value]:
        starts = [carry.start for carry in self.carries]
        return [*starts, *(operand for operand, _ in (*self.invariant, *self.sliced))]

    def owners(self) -> list[Argument]:
        """Whose cotangents the results are."""
        return [*(carry.owner for carry in self.carries), *(owner for _, owner in self.yields)]


def _connect(loop: BackwardLoop, eqn: Equation, body: LoopBody, totals: Mapping[str, Value | None]) -> None:
    """Cotangents in and out of the backward loop."""
    updated = {argument.value.name: argument for argument in carried(body.region)}
    for output in body.region.outputs:
        seed, total = body.seeds.get(output.name), totals[output.name]
        if seed is not None and output.updates is not None:
            owner = updated[output.updates]
            loop.cotangent(owner, seed, total, body.grads.get(owner.value))
        elif seed is not None and total is not None:
            loop.sliced.append((loop.outer.ordered(total, (dim_of(eqn), *seed.type.dims)), seed))
    for argument in body.region.arguments:
        grad = body.grads.get(argument.value)
        if grad is not None and argument.role == "invariant":
            loop.sum(argument, grad)
        elif grad is not None and argument.role == "sliced":
            loop.yields.append((Output(loop.inner.names.fresh(f"d_{argument.value.name}"), grad), argument))


def _extended(builder: Builder, eqn: Equation, body: LoopBody, residuals: Residuals) -> Equation:
    """The forward loop, which also yields the residuals."""
    outputs = (*body.region.outputs, *residuals.yielded)
    region = attrs.evolve(body.region, body=tuple(body.forward), outputs=outputs)
    extended = make_loop(builder.names, region, eqn.operands, eqn, eqn.results)
    builder.replace(eqn, extended)
    return extended


def pull_back(
    builder: Builder,
    eqn: Equation,
    totals: Sequence[Value | None],
    active: Sequence[Argument],
    backward: Backward,
) -> list[tuple[Value, Value]]:
    """(operand, cotangent) of the loop's active arguments, from the cotangents of its results.

    The forward loop in the builder's body is replaced by one that yields what the backward loop needs.
    """
    region = region_of(eqn)
    given = dict(zip((output.name for output in region.outputs), totals, strict=True))
    going = {argument.value.name for argument in active if argument.role == "carried"}
    seeded = {
        o.name for o in region.outputs if (o.updates in going if o.updates else given[o.name] is not None)
    }
    body = _differentiated(region, seeded, [argument.value for argument in active], backward)
    if not body.grads and not going:
        return []
    again = _again(body, bool(eqn.attrs["checkpoint"]))
    residuals = _residuals(eqn, body, again)
    extended = _extended(builder, eqn, body, residuals)

    body.builder.span, body.builder.body = eqn.span, [*again, *body.backward]
    loop = BackwardLoop(builder, body.builder)
    _connect(loop, eqn, body, given)
    loop.invariant += residuals.invariant
    loop.sliced += residuals.sliced
    stacks = extended.results[len(eqn.results) :]
    loop.sliced += [(stack, output.value) for stack, output in zip(stacks, residuals.yielded, strict=True)]
    like = attrs.evolve(
        eqn, attrs={**eqn.attrs, "reverse": not eqn.attrs["reverse"]}, stage="backward", path=None
    )
    made = make_loop(builder.names, loop.region(region.name, body.builder.body), loop.operands(), like)
    builder.append(made)
    operands = {argument.value: operand for operand, argument in pairs(eqn)}
    return [
        (operands[owner.value], result) for owner, result in zip(loop.owners(), made.results, strict=True)
    ]
