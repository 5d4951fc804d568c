"""Reverse-mode differentiation of a body of equations.

Walks the equations backwards from the values that have cotangents, asks each op's gradient rule for its operands' cotangents in
terms of other ops, and adds up the contributions of a value's uses. Gradient equations carry the span of the equation that
they come from.

The sum of a pipeline's micro-batches is f32. It passes views and casts without being rounded.

The gradient of a loop is a backward loop in the opposite direction. It carries the cotangents of the forward loop's carries, and
for each invariant operand the sum of its cotangents over the iterations. It yields the cotangents of sliced operands. The
backward body gets forward values in one of three ways:

- Invariant and sliced operands are operands of the backward loop too.
- Values that depend only on invariant operands are recomputed. So are views with more elements than their source, such as the
  windows of a convolution and casts to a wider dtype.
- All other values are residuals: the forward loop yields them, and the backward loop slices them.

With `checkpoint` the only residuals are the carries and the results of attention; everything else is recomputed.

Residuals are stacked along the loop's dimension. A value that already has this dimension is renamed before it is yielded.

A loop with `while` first becomes a loop that runs all iterations and keeps its carries once the condition is false: see
`with_all_iterations`.
"""

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from functools import partial

import attrs

from mtfc.compiler.analysis.liveness import enlarged, readers_and_outputs, readers_of
from mtfc.compiler.ir.builder import Builder, Names, Substitution, VerifyError, names_of, needed_for
from mtfc.compiler.ir.core import Argument, Equation, Function, Output, Value, walk
from mtfc.compiler.ir.loops import (
    WHILE,
    NewLoop,
    carried,
    dim_of,
    has_condition,
    is_unbounded,
    make_loop,
    map_regions,
    outputs_of,
    pairs,
    region_of,
    results_of,
    with_carries,
)
from mtfc.compiler.ir.opdef import no_gradient
from mtfc.compiler.ir.ops import OPS, has_trait
from mtfc.compiler.ir.ops.creation import VALUE
from mtfc.compiler.ir.printer import equation_text
from mtfc.compiler.ir.types import FLOATS, ITEM_BYTES, Dim
from mtfc.compiler.records import define, frozen


class NoGradient(VerifyError):
    """A gradient would go through an unbounded loop, which only functions of JAX have: JAX has no such gradient either."""


def active_values(
    body: Iterable[Equation], wanted: Iterable[Value], dtypes: Collection[str] = FLOATS
) -> set[Value]:
    """Return the values of some dtypes, floats by default, through which a gradient may reach a wanted value."""
    active = set(wanted)
    for eqn in body:
        stops = not eqn.regions and OPS[eqn.op].gradient is no_gradient
        if stops or not any(value in active for value in eqn.operands):
            continue
        results = results_of(eqn, active_inside(eqn, active)) if eqn.regions else eqn.results
        active.update(value for value in results if value.type.dtype in dtypes)
    return active


def active_inside(eqn: Equation, active: set[Value]) -> set[Value]:
    """Return the values in a loop's region that depend on a wanted value, also through earlier iterations."""
    region = region_of(eqn)
    going = {a.value for v, a in pairs(eqn) if v in active and v.type.dtype in FLOATS}
    return with_carries(region, going, partial(active_values, region.body))


def total(builder: Builder, contributions: Sequence[Value]) -> Value:
    """Return the sum of contributions, added in their order."""
    total = contributions[0]
    for contribution in contributions[1:]:
        total = builder("add", total, contribution)
    return total


def _total_of(builder: Builder, value: Value, contributions: Sequence[Value], keeps: bool = True) -> Value:
    """Return the cotangent of a value in the value's dtype; a single contribution may stay wider."""
    if keeps and len(contributions) == 1:
        return contributions[0]
    return total(builder, [builder.cast(each, value.type.dtype) for each in contributions])


def _pull_back(
    builder: Builder, eqn: Equation, cotangents: dict[Value, list[Value]], active: set[Value]
) -> None:
    """Add the equation's contributions to the cotangents of its operands."""
    if not any(value in active for value in eqn.operands):
        return
    builder.span = eqn.span
    keeps = has_trait(eqn, "reshape", "transpose", "cast")
    totals = [_total_of(builder, v, cotangents[v], keeps) if v in cotangents else None for v in eqn.results]
    cotangents.update({v: [t] for v, t in zip(eqn.results, totals, strict=True) if t is not None})
    for operand, part in _parts(builder, eqn, totals, active):
        if part is not None and operand in active:
            cotangents.setdefault(operand, []).append(part)


def _parts(
    builder: Builder, eqn: Equation, totals: Sequence[Value | None], active: set[Value]
) -> Iterable[tuple[Value, Value | None]]:
    """Return the operands with their cotangents. The cotangent of a result that nothing depends on is zero."""
    if eqn.regions:
        inside = active_inside(eqn, active)
        arguments = [argument for argument in region_of(eqn).arguments if argument.value in inside]
        return _pull_back_loop(builder, eqn, totals, arguments)
    given = [builder.zeros(v.type) if t is None else t for v, t in zip(eqn.results, totals, strict=True)]
    return zip(eqn.operands, OPS[eqn.op].gradient(builder, eqn, given), strict=True)


def backward(
    builder: Builder,
    body: Sequence[Equation],
    seeds: Mapping[Value, Value],
    wanted: Sequence[Value],
    dtypes: Collection[str] = FLOATS,
) -> dict[Value, Value]:
    """Return the cotangents of `wanted` values from the seeds; values that no seed depends on are left out.

    dtypes: those through which cotangents go. A linear map of integers has a transpose, and no gradient.
    """
    active = active_values(body, wanted, dtypes)
    cotangents = {value: [seed] for value, seed in seeds.items()}
    for eqn in reversed(body):
        if any(value in cotangents for value in eqn.results):
            _pull_back(builder, eqn, cotangents, active)
    return {
        value: builder.ordered(_total_of(builder, value, cotangents[value]), value.type.dims)
        for value in wanted
        if value in cotangents
    }


@define
class LoopBody:
    """The forward and the backward equations of one iteration.

    seeds: output name -> cotangent of the output, an argument of the backward region.
    grads: argument of the forward region -> its cotangent.
    """

    region: Function
    forward: list[Equation]
    backward: list[Equation]
    builder: Builder
    seeds: dict[str, Value]
    grads: dict[Value, Value]


def _seeded(builder: Builder, region: Function, seeds: Mapping[str, Value]) -> dict[Value, Value]:
    """Return the cotangents of the region's output values; a value with several outputs gets the sum."""
    found: dict[Value, Value] = {}
    for output in region.outputs:
        if output.name in seeds:
            seed = seeds[output.name]
            earlier = found.get(output.value)
            found[output.value] = seed if earlier is None else builder("add", earlier, seed)
    return found


def _differentiated(region: Function, seeded: set[str], active: Sequence[Value]) -> LoopBody:
    """Return the differentiated body of one iteration; `seeded` are the names of outputs with a cotangent."""
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
    """Return the values that equations and results use but no equation defines, in order of first use."""
    found: dict[Value, None] = {}
    defined: set[Value] = set()
    for eqn in equations:
        found.update(dict.fromkeys(value for value in eqn.operands if value not in defined))
        defined.update(eqn.results)
    found.update(dict.fromkeys(value for value in results if value not in defined))
    return list(found)


def _from_invariants(region: Function, body: Iterable[Equation]) -> set[Value]:
    """Return the values that are the same in every iteration."""
    known = {argument.value for argument in region.arguments if argument.role == "invariant"}
    for eqn in body:
        if known.issuperset(eqn.operands):
            known.update(eqn.results)
    return known


def _widened(body: Iterable[Equation]) -> set[Value]:
    """Return the results of casts to a wider dtype."""
    casts = [eqn for eqn in body if has_trait(eqn, "cast") and eqn.operands[0].type.dtype in FLOATS]
    return {e.result for e in casts if ITEM_BYTES[e.result.type.dtype] > ITEM_BYTES[e.operands[0].type.dtype]}


def _again(body: LoopBody, checkpoint: bool) -> list[Equation]:
    """Return the forward equations that the backward body recomputes, in order: with `checkpoint` all but attention."""
    same = _from_invariants(body.region, body.forward)
    free = same.union(enlarged(body.forward), _widened(body.forward))
    needed = set(_free_values(body.backward, body.grads.values()))
    again = []
    for eqn in reversed(body.forward):
        is_wanted = checkpoint and not has_trait(eqn, "attention")
        if needed.intersection(eqn.results) and (is_wanted or free.issuperset(eqn.results)):
            again.append(attrs.evolve(eqn, stage="backward"))
            needed.update(eqn.operands)
    return again[::-1]


Residuals = tuple[list[tuple[Value, Argument]], list[Output]]
"""Forward values that the backward body needs: operands of the backward loop, with their arguments in its body, and further
outputs of the forward region.
"""


def _residuals(eqn: Equation, body: LoopBody, again: list[Equation]) -> Residuals:
    """Return the residuals; equations that rename them back are inserted at the start of `again`."""
    given, yielded = list[tuple[Value, Argument]](), list[Output]()
    operands = {argument.value: (value, argument) for value, argument in pairs(eqn)}
    stacked = {output.value: result for result, output in outputs_of(eqn) if output.updates is None}
    used = _free_values([*again, *body.backward], body.grads.values())
    taken = {output.name for output in body.region.outputs}
    for value in used:
        if value in body.seeds.values():
            continue
        operand, argument = operands.get(value, (None, None))
        if operand is not None and argument is not None and argument.role != "carried":
            given.append((operand, Argument(value, argument.role)))
        elif value in stacked:
            given.append((stacked[value], Argument(value, "sliced")))
        else:
            name = value.name if value.name not in taken else Names(taken).fresh(f"{value.name}.kept")
            yielded.append(Output(name, _stackable(eqn, body, again, value)))
            taken.add(name)
    return given, yielded


def _stackable(eqn: Equation, body: LoopBody, again: list[Equation], value: Value) -> Value:
    """Return the value to yield for a residual.

    A residual that has the loop's own dimension is yielded under another name of the dimension, and renamed back in `again`.
    """
    dim = dim_of(eqn)
    if dim not in value.type.dims:
        return value
    names = Names(each.name for each in value.type.dims)
    kept_dim = Dim(names.fresh(f"{dim.name}.kept"), dim.size)
    builder = Builder(body.builder.names, eqn.span)
    renamed = builder("rename", value, name=value.name, mapping=((dim, kept_dim),))
    back = builder("rename", renamed, mapping=((kept_dim, dim),))
    rename, rename_back = builder.body
    body.forward.append(rename)
    again.insert(0, Substitution({back: value}).equation(attrs.evolve(rename_back, stage="backward")))
    return renamed


def with_all_iterations(eqn: Equation) -> Equation:
    """Return a loop with `while` as a loop that runs all iterations, with the same results.

    Once the condition is false, an iteration keeps the carries and yields zeros. The region's arguments stay the same values.
    """
    region = region_of(eqn)
    builder = Builder(names_of(region), eqn.span)
    builder.body = list(region.body)
    goes_on, before = region.arguments[0].value, {a.value.name: a.value for a in carried(region)}
    outputs = []
    for each in region.outputs:
        builder.stage = next((e.stage for e in region.body if each.value in e.results), "forward")
        old = before[each.updates] if each.updates is not None else builder.zeros(each.value.type)
        is_kept = each.value is old
        value = each.value if is_kept else builder("where", goes_on, each.value, old, name=each.name)
        outputs.append(attrs.evolve(each, value=value))
    region = attrs.evolve(region, body=tuple(builder.body), outputs=tuple(outputs))
    kept = {name: value for name, value in eqn.attrs.items() if name != WHILE.name}
    return attrs.evolve(eqn, attrs=kept, regions=(region,))


def with_constant_unbounded_loops(function: Function) -> Function:
    """Return the function with a `stop_gradient` on the float operands of unbounded loops."""
    if not any(has_condition(eqn) for eqn in walk(function.body)):
        return function
    builder = Builder(names_of(function))
    for eqn in function.body:
        builder.span, builder.stage = eqn.span, eqn.stage
        if is_unbounded(eqn):
            operands = [
                builder("stop_gradient", v, name=v.name) if v.type.dtype in FLOATS else v
                for v in eqn.operands
            ]
            eqn = attrs.evolve(eqn, operands=tuple(operands))
        builder.append(map_regions(eqn, with_constant_unbounded_loops))
    return attrs.evolve(function, body=tuple(builder.body))


def with_differentiable_loops(function: Function) -> Function:
    """Return the function with loops that have gradients, for differentiation by others.

    A loop with `while` runs all iterations. Float operands of unbounded loops get a `stop_gradient`.
    """

    def whole(each: Function) -> Function:
        """Return a function whose loops run all of their iterations, where their number is bounded."""
        body = (
            map_regions(
                with_all_iterations(eqn) if has_condition(eqn) and not is_unbounded(eqn) else eqn, whole
            )
            for eqn in each.body
        )
        return attrs.evolve(each, body=tuple(body))

    return whole(with_constant_unbounded_loops(function))


def _leave_out(body: LoopBody) -> None:
    """Let iterations after the end of the loop pass cotangents on, whatever their own equations give: it may be NaN."""
    goes_on, builder = body.region.arguments[0].value, body.builder
    seeds = {o.updates: body.seeds[o.name] for o in body.region.outputs if o.name in body.seeds}
    builder.body = []
    for argument in (each for each in body.region.arguments if each.value in body.grads):
        grad = body.grads[argument.value]
        seed = seeds.get(argument.value.name) if argument.role == "carried" else None
        other = builder.zeros(grad.type) if seed is None else builder.ordered(seed, grad.type.dims)
        body.grads[argument.value] = builder("where", goes_on, grad, other)
    body.backward += builder.body


@frozen
class Carry:
    """A carry of the backward loop: initial value, argument, updated value, and the forward argument whose cotangent it is."""

    start: Value
    value: Value
    after: Value
    owner: Argument


@define
class BackwardLoop(NewLoop):
    """Collects the arguments and outputs of the backward loop."""

    carries: list[Carry] = attrs.field(factory=list)
    yields: list[tuple[Output, Argument]] = attrs.field(factory=list)

    def cotangent(self, owner: Argument, seed: Value, total: Value | None, grad: Value | None) -> None:
        """Carry the cotangent of a forward carry: each iteration maps the one after it to the one before it."""
        after = self.inner.ordered(grad, seed.type.dims) if grad else self.inner.zeros(seed.type)
        after = self.inner.cast(after, seed.type.dtype)
        start = self.outer.ordered(total, seed.type.dims) if total else self.outer.zeros(seed.type)
        self.carries.append(Carry(start, seed, after, owner))

    def sum(self, owner: Argument, operand: Value, grad: Value, is_alone: bool) -> None:
        """Carry the sum of an argument's cotangents over all iterations. is_alone: True if `grad` has no other use."""
        inner, type = self.inner, operand.type.unsplit()
        total = Value(inner.names.fresh(f"d_{owner.value.name}"), type)
        after = added(inner, total, grad) if is_alone else inner("add", total, inner.cast(grad, type.dtype))
        self.carries.append(
            Carry(self.outer.zeros(total.type), total, inner.ordered(after, total.type.dims), owner)
        )

    def finish(self, name: str, like: Equation) -> Equation:
        """Append the loop and return it."""
        self.given += [(carry.start, Argument(carry.value, "carried")) for carry in self.carries]
        self.outputs = [Output(c.value.name, c.after, c.value.name) for c in self.carries]
        self.outputs += [output for output, _ in self.yields]
        return self.append(name, like)

    def owners(self) -> list[Argument]:
        """Return for each result of the loop the forward argument whose cotangent it is."""
        return [*(carry.owner for carry in self.carries), *(owner for _, owner in self.yields)]


def added(build: Builder, total: Value, term: Value) -> Value:
    """Return the sum of a carried total and a term without other uses, in the dtype of the total.

    The total is changed in place if the term has elements at some indices, or is the sum of an inner loop, which then starts at
    the total.
    """
    makers = {v: eqn for eqn in build.body for v in eqn.results}
    maker, dtype = makers.get(term), total.type.dtype
    if maker is not None and maker.regions and term not in readers_of(build.body):
        number = maker.results.index(term)
        start = maker.operands[number] if _is_sum(maker, number) else term
        if start.type == total.type and _is_zero(makers.get(start)):
            operands = (*maker.operands[:number], total, *maker.operands[number + 1 :])
            build.replace(maker, attrs.evolve(maker, operands=operands))
            return term
    if maker is not None and has_trait(maker, "scatter") and term.type.dims == total.type.dims:
        updates, ids = maker.operands
        if {*ids.type.dims} <= {*total.type.dims}:
            return build("add_at", total, build.cast(updates, dtype), ids, dim=maker.attrs["dim"])
    return build("add", total, build.cast(term, dtype))


def _is_zero(eqn: Equation | None) -> bool:
    return eqn is not None and has_trait(eqn, "filled") and VALUE.of(eqn.attrs) == 0


def only_reader(region: Function, number: int) -> Equation | None:
    """Return the equation that alone reads a carry, once, and that makes its next value for nothing else; None if none does."""
    carry, next_value = region.arguments[number].value, region.outputs[number].value
    uses = readers_and_outputs(region)
    (reader, *others) = uses.get(carry, [None])
    if reader is None or others or reader.operands.count(carry) > 1 or uses[next_value] != [None]:
        return None
    return reader if next_value in reader.results else None


def _is_sum(loop: Equation, number: int) -> bool:
    """Return True if a result of a loop is a carry to which each iteration only adds terms."""
    region = region_of(loop)
    adding = only_reader(region, number) if number < len(carried(region)) else None
    if adding is None:
        return False
    place = adding.operands.index(region.arguments[number].value)
    if adding.regions:
        made = adding.results[place : place + 1]
        return made == (region.outputs[number].value,) and _is_sum(adding, place)
    return place == 0 and has_trait(adding, "add", "in_place")


def _connect(loop: BackwardLoop, eqn: Equation, body: LoopBody, totals: Mapping[str, Value | None]) -> None:
    """Add the cotangents that enter and leave the backward loop."""
    updated = {argument.value.name: argument for argument in carried(body.region)}
    for output in body.region.outputs:
        seed, total = body.seeds.get(output.name), totals[output.name]
        if seed is None:
            continue
        if output.updates is not None:
            owner = updated[output.updates]
            loop.cotangent(owner, seed, total, body.grads.get(owner.value))
            continue
        assert total is not None, "a yielded output has a seed because its stack has a cotangent"
        stack = loop.outer.ordered(total, (dim_of(eqn), *seed.type.dims))
        loop.given.append((stack, Argument(seed, "sliced")))
    grads = Counter(body.grads.values())
    for operand, argument in pairs(eqn):
        grad = body.grads.get(argument.value)
        if grad is not None and argument.role == "invariant":
            loop.sum(argument, operand, grad, grads[grad] == 1)
        elif grad is not None and argument.role == "sliced":
            grad = loop.inner.cast(grad, argument.value.type.dtype)
            loop.yields.append((Output(loop.inner.names.fresh(f"d_{argument.value.name}"), grad), argument))


def _extended(builder: Builder, eqn: Equation, body: LoopBody, yielded: Sequence[Output]) -> Equation:
    """Replace the forward loop by one that also yields the residuals, and return it."""
    outputs = (*body.region.outputs, *yielded)
    region = attrs.evolve(body.region, body=tuple(body.forward), outputs=outputs)
    extended = make_loop(builder.names, region, eqn.operands, eqn, eqn.results)
    builder.replace(eqn, extended)
    return extended


def _going(region: Function, active: Sequence[Argument], given: Mapping[str, Value | None]) -> set[str]:
    """Return the names of the active carries with a cotangent: of their last value, or because an output with one needs them."""
    carries = {argument.value: argument.value.name for argument in active if argument.role == "carried"}
    going: set[str] = set()
    while True:
        used = {o.value for o in region.outputs if given[o.name] is not None or o.updates in going}
        used.update(value for eqn in needed_for(used, region.body) for value in eqn.operands)
        last = {o.updates for o in region.outputs if o.updates and given[o.name] is not None}
        more = {name for value, name in carries.items() if value in used or name in last} - going
        if not more:
            return going
        going |= more


def _pull_back_loop(
    builder: Builder, eqn: Equation, totals: Sequence[Value | None], active: Sequence[Argument]
) -> list[tuple[Value, Value]]:
    """Return (operand, cotangent) pairs for the loop's active arguments, from the cotangents of its results.

    The forward loop in the builder's body is replaced by a loop that also yields the residuals. Raises `NoGradient`.
    """
    if is_unbounded(eqn):
        raise NoGradient("an unbounded loop has no gradient", equation_text(eqn), eqn.span)
    ends = has_condition(eqn)
    if ends:
        full = with_all_iterations(eqn)
        builder.replace(eqn, full)
        eqn = full
    region = region_of(eqn)
    given = dict(zip((output.name for output in region.outputs), totals, strict=True))
    going = _going(region, active, given)
    seeded = {
        o.name for o in region.outputs if (o.updates in going if o.updates else given[o.name] is not None)
    }
    body = _differentiated(region, seeded, [argument.value for argument in active])
    if not body.grads and not going:
        return []
    if ends:
        _leave_out(body)
    again = _again(body, bool(eqn.attrs["checkpoint"]))
    needed, yielded = _residuals(eqn, body, again)
    extended = _extended(builder, eqn, body, yielded)

    body.builder.span, body.builder.body = eqn.span, [*again, *body.backward]
    loop = BackwardLoop(builder, body.builder, dim_of(eqn))
    _connect(loop, eqn, body, given)
    stacks = zip(extended.results[len(eqn.results) :], yielded, strict=True)
    loop.given += [*needed, *((stack, Argument(o.value, "sliced")) for stack, o in stacks)]
    like = attrs.evolve(
        eqn, attrs={**eqn.attrs, "reverse": not eqn.attrs["reverse"]}, stage="backward", path=None
    )
    made = loop.finish(region.name, like)
    operands = {argument.value: operand for operand, argument in pairs(eqn)}
    return [
        (operands[owner.value], result) for owner, result in zip(loop.owners(), made.results, strict=True)
    ]
