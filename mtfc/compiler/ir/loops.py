"""Loops: the one equation with a region.

    %h_2: f32[batch, io], %hs: f32[layers, batch, io] = loop %h, %x, %w dim=layers reverse=false checkpoint=false region layers {
      carried %h: f32[batch, io]
      invariant %x: f32[batch, io]
      sliced %w: f32[io]
      ...
      output h = %h_2 updates h
      output hs = %h_2
    }

The region runs once for each index of `dim`, from the last index down if `reverse` holds. It has one argument for each operand,
in the order of their roles:

- a *carry* (role `carried`) starts as the operand, and after each iteration is replaced by the output that updates it;
- an *invariant* is the operand in every iteration;
- a *sliced* argument is one slice of the operand along `dim` in each iteration.

The loop has one result for each output of the region: first the last values of the carries, then the other outputs, which are
stacked along `dim` as a new first dimension.

With `while=true` the loop may end before the last index. The first carry is then a truth value, the same on all processors, and
an iteration runs if it is true. In the stacks, iterations that do not run have zeros. A
gradient through the loop makes it run all iterations: see `autodiff/backward.py`.

With `unbounded=true`, too, only the condition ends the loop, and nothing is sliced or stacked. The size of the dimension is then
the number of iterations that costs count.

With `unroll=2` a generated program runs two iterations in each one of its own loop, so that one sends while the other computes.
The results are the same.

A region sees only its arguments, so a pass treats it as it treats a function. `checkpoint` asks `differentiate` to keep only the
carries for the backward pass, and to compute the other values again.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import pairwise

import attrs

from mtfc.compiler.diagnostics import Span
from mtfc.compiler.ir.attributes import DIM, FLAG, INT, Attribute, Stated, kinds_error
from mtfc.compiler.ir.builder import Builder, Names, Substitution, fresh_copy
from mtfc.compiler.ir.core import Argument, Attr, Equation, Function, Output, Role, Value, walk
from mtfc.compiler.ir.opdef import form_error
from mtfc.compiler.ir.ops import OPS, has_trait
from mtfc.compiler.ir.types import Dim, TensorType
from mtfc.compiler.records import define

LOOP = "loop"
MICRO_BATCHES = "micro_batches"
"""The name of the region that runs once for each micro-batch."""
TICKS = "ticks"
"""The name of the region that runs once for each tick of a pipeline."""

LOOP_DIM = Attribute("dim", DIM)
WHILE = Attribute("while", FLAG, optional=True)
UNBOUNDED = Attribute("unbounded", FLAG, optional=True)
UNROLL = Attribute("unroll", INT, optional=True)
LOOP_ATTRIBUTES: Stated = (
    LOOP_DIM,
    Attribute("reverse", FLAG),
    Attribute("checkpoint", FLAG),
    WHILE,
    UNBOUNDED,
    UNROLL,
)

ROLES = ("carried", "invariant", "sliced")


def dim_of(eqn: Equation) -> Dim:
    """Return the dimension that a loop runs along; its size is the number of iterations, or the most iterations."""
    return LOOP_DIM.of(eqn.attrs)


def has_condition(eqn: Equation) -> bool:
    """Return True for a loop that ends when its first carry is false."""
    return bool(eqn.attrs.get(WHILE.name))


def is_unbounded(eqn: Equation) -> bool:
    """Return True for a loop that may run more often than its dimension says."""
    return bool(eqn.attrs.get(UNBOUNDED.name))


def unroll_of(eqn: Equation) -> int:
    """Return the number of iterations that one iteration of a generated loop runs."""
    return UNROLL.of(eqn.attrs) if UNROLL.name in eqn.attrs else 1


def looped_dims(function: Function) -> frozenset[Dim]:
    """Return the dimensions that loops run along, at any depth."""
    return frozenset(dim_of(eqn) for eqn in walk(function.body) if eqn.regions)


def executed(body: Iterable[Equation], times: int = 1) -> Iterator[tuple[Equation, int]]:
    """Yield every equation, also those in loops, with the number of iterations of all loops around it."""
    for eqn in body:
        yield eqn, times
        for region in eqn.regions:
            yield from executed(region.body, times * dim_of(eqn).size)


def region_of(eqn: Equation) -> Function:
    (region,) = eqn.regions
    return region


def is_over_micro_batches(eqn: Equation) -> bool:
    """Return True for the loop over micro-batches. Any other loop but a pipeline names its region after its dimension."""
    return bool(eqn.regions) and region_of(eqn).name == MICRO_BATCHES != dim_of(eqn).name


def is_loop_body(function: Function) -> bool:
    """Return True if the function is a loop's region."""
    return any(argument.role in ROLES for argument in function.arguments)


def carried(region: Function) -> tuple[Argument, ...]:
    return tuple(argument for argument in region.arguments if argument.role == "carried")


def sliced_type(type: TensorType, dim: Dim) -> TensorType:
    """Return the type of one slice along `dim`."""
    kept = [i for i, each in enumerate(type.dims) if each != dim]
    dims, splits = tuple(type.dims[i] for i in kept), tuple(type.splits[i] for i in kept)
    return TensorType(type.dtype, dims, splits, type.pending, type.reduction)


def stacked_type(type: TensorType, dim: Dim) -> TensorType:
    """Return the type of values that are stacked along a new first dimension."""
    return TensorType(type.dtype, (dim, *type.dims), ((), *type.splits), type.pending, type.reduction)


def result_type(output: Output, dim: Dim) -> TensorType:
    return output.value.type if output.updates is not None else stacked_type(output.value.type, dim)


def joined_iterations(eqn: Equation) -> Function:
    """Return the region of a loop, for its costs. The iterations that run in one are one region, each with slices and stacks."""
    first = region_of(eqn)
    copies = [first, *(fresh_copy(first) for _ in range(unroll_of(eqn) - 1))]
    if len(copies) == 1:
        return first
    same, new = [a for a in first.arguments if a.role != "sliced"], Substitution()
    for before, copy in pairwise(copies):
        given = [*(output.value for output in before.outputs[: len(carried(first))])]
        given += [a.value for a in before.arguments if a.role == "invariant"]
        for argument, value in zip(copy.arguments, given, strict=False):
            new[argument.value] = value
    slices = [a for copy in copies for a in copy.arguments if a.role == "sliced"]
    carries = [output for output in copies[-1].outputs if output.updates is not None]
    stacks = [output for copy in copies for output in copy.outputs if output.updates is None]
    body = [new.equation(each) for copy in copies for each in copy.body]
    whole = attrs.evolve(first, arguments=(*same, *slices), outputs=(*carries, *stacks))
    return new.function(whole, body)


def make_loop(
    names: Names, region: Function, operands: Sequence[Value], like: Equation, results: Sequence[Value] = ()
) -> Equation:
    """Return a loop with attributes, span and stage of `like`. Its first results are `results`; the rest are new values."""
    dim = dim_of(like)
    new = [Value(names.fresh(o.name), result_type(o, dim)) for o in region.outputs[len(results) :]]
    return attrs.evolve(like, operands=tuple(operands), results=(*results, *new), regions=(region,))


@define
class NewLoop:
    """Collects the arguments and outputs of a new loop; `outer` builds around the loop, `inner` inside it.

    given: operands with their arguments, in any order. outputs: those of the region, carries first.
    """

    outer: Builder
    inner: Builder
    dim: Dim
    given: list[tuple[Value, Argument]] = attrs.field(factory=list, init=False)
    outputs: list[Output] = attrs.field(factory=list, init=False)

    def argument(self, operand: Value, role: Role, name: str = "", span: Span | None = None) -> Value:
        """Return the value inside the loop that stands for an operand, or for a slice of it."""
        type = sliced_type(operand.type, self.dim) if role == "sliced" else operand.type
        value = Value(self.inner.names.fresh(name or operand.name), type)
        self.given.append((operand, Argument(value, role, span)))
        return value

    def append(self, name: str, like: Equation, results: Sequence[Value] = ()) -> Equation:
        """Append the loop, whose region has this name, and return it: see `make_loop`.

        like: a loop with the attributes of the new one.
        """
        given = by_role(self.given)
        region = Function(name, tuple(a for _, a in given), tuple(self.inner.body), tuple(self.outputs))
        loop = make_loop(self.outer.names, fresh_copy(region), [v for v, _ in given], like, results)
        self.outer.append(loop)
        return loop


def by_role(given: Iterable[tuple[Value, Argument]]) -> list[tuple[Value, Argument]]:
    """Return operands with their arguments in the order of a loop's."""
    return sorted(given, key=lambda pair: ROLES.index(pair[1].role))


def with_operands(loop: Equation, region: Function, given: Iterable[tuple[Value, Argument]]) -> Equation:
    """Return the loop with other operands and arguments, given in any order, and with another region."""
    ordered = by_role(given)
    whole = attrs.evolve(region, arguments=tuple(argument for _, argument in ordered))
    return attrs.evolve(loop, operands=tuple(operand for operand, _ in ordered), regions=(whole,))


def plain_loop(dim: Dim, build: Builder, checkpoint: bool = False) -> Equation:
    """Return a loop without operands, with the span and stage of a builder, for `make_loop`."""
    attributes: dict[str, Attr] = {"dim": dim, "reverse": False, "checkpoint": checkpoint}
    return Equation(LOOP, (), (), attributes, span=build.span, stage=build.stage)


def map_regions(eqn: Equation, change: Callable[[Function], Function]) -> Equation:
    """Change the regions of an equation. `change` must keep the roles and types of arguments and outputs."""
    if not eqn.regions:
        return eqn
    return attrs.evolve(eqn, regions=tuple(change(region) for region in eqn.regions))


def pairs(eqn: Equation) -> Iterator[tuple[Value, Argument]]:
    """Pair each operand of a loop with its argument of the region."""
    return zip(eqn.operands, region_of(eqn).arguments, strict=True)


def outputs_of(eqn: Equation) -> Iterator[tuple[Value, Output]]:
    """Pair each result of a loop with its output of the region."""
    return zip(eqn.results, region_of(eqn).outputs, strict=True)


def malformed(op: str, operands: int, attributes: Mapping[str, Attr]) -> str | None:
    """Return why no equation of the op has such operands and attributes, or None."""
    if op == LOOP:
        wrong = kinds_error(attributes, LOOP_ATTRIBUTES)
        return wrong and f"{op}: {wrong}"
    return form_error(OPS[op], operands, attributes) if op in OPS else f"unknown op {op}"


def loop_error(eqn: Equation, fitting: bool = True) -> str | None:
    """Return the first mistake in a loop, or None. The equations of its region are not checked.

    Unless `fitting`, only the global types of operands and arguments, and of outputs and results, must agree.
    """
    if eqn.op != LOOP or len(eqn.regions) != 1:
        return f"op {eqn.op} with {len(eqn.regions)} regions: a loop has one region, and other ops have none"
    region = region_of(eqn)
    if len(eqn.operands) != len(region.arguments) or len(eqn.results) != len(region.outputs):
        return "a loop has one operand for each argument of its region, and one result for each output"
    order = [ROLES.index(a.role) if a.role in ROLES else -1 for a in region.arguments]
    if order != sorted(order) or -1 in order:
        return "the arguments of a loop's region are first carried, then invariant, then sliced"
    if [o.updates for o in region.outputs if o.updates is not None] != [
        a.value.name for a in carried(region)
    ]:
        return "the first outputs of a loop's region update its carries, in order"
    if has_condition(eqn) and not (carried(region) and _is_truth(carried(region)[0].value.type)):
        return "the first carry of a loop with `while` is a complete bool[]"
    if is_unbounded(eqn) and not (has_condition(eqn) and len(carried(region)) == len(region.outputs)):
        return "a loop with `unbounded` has `while`, and stacks nothing"
    if is_unbounded(eqn) and any(a.role == "sliced" for a in region.arguments):
        return "a loop with `unbounded` slices nothing"
    if UNROLL.name in eqn.attrs and (has_condition(eqn) or not _divides(unroll_of(eqn), dim_of(eqn).size)):
        return (
            "`unroll` is a divisor of the iterations that leaves at least 2, and such a loop has no `while`"
        )
    return _types_error(eqn, region, (lambda type: type) if fitting else TensorType.unsplit)


def _divides(copies: int, trips: int) -> bool:
    return 1 < copies < trips and trips % copies == 0


def _is_truth(type: TensorType) -> bool:
    return type.dtype == "bool" and not type.dims and not type.pending


def _types_error(eqn: Equation, region: Function, shown: Callable[[TensorType], TensorType]) -> str | None:
    """Return what is wrong with the types at the ends of a loop, or None. shown: turns types into those that must agree."""
    dim = dim_of(eqn)
    for value, argument in pairs(eqn):
        operand, type = shown(value.type), shown(argument.value.type)
        if argument.role == "sliced" and (dim not in operand.dims or operand.axes_of(dim.name)):
            return f"{value} is sliced along {dim.name}, which must not be split"
        wanted = sliced_type(operand, dim) if argument.role == "sliced" else operand
        if type != wanted:
            return f"{argument.role} {argument.value} is {type}, and its operand gives {wanted}"
    carries = len(carried(region))
    for i, (result, output) in enumerate(outputs_of(eqn)):
        if (output.updates is not None) != (i < carries):
            return "the outputs of a loop's region that update carries come first"
        shown_result, shown_output = shown(result.type), shown(result_type(output, dim))
        if shown_result != shown_output:
            return f"{result} is {shown_result}, and output {output.name} gives {shown_output}"
    return None


def with_carries(
    region: Function, start: set[Value], inside: Callable[[set[Value]], set[Value]]
) -> set[Value]:
    """Return the values `inside` gives for arguments, with the carries that later iterations add to these arguments.

    start: the arguments. inside: arguments -> values of the region.
    """
    while True:
        found = inside(start)
        updated = {output.updates for output in region.outputs if output.value in found}
        more = {a.value for a in carried(region) if a.value.name in updated} - start
        if not more:
            return found
        start = start | more


def results_of(eqn: Equation, inside: set[Value]) -> list[Value]:
    """Return the results of a loop whose values, or whose carries, are among the given values of the region."""
    names = {argument.value.name for argument in carried(region_of(eqn)) if argument.value in inside}
    return [result for result, o in outputs_of(eqn) if o.value in inside or o.updates in names]


def operand_owner(eqn: Equation, value: Value, makers: Mapping[Value, Equation]) -> Equation:
    """Return the equation to which a report charges an operand of a collective: its maker if the collective has several."""
    return charged_equation(makers[value], value) if len(eqn.operands) > 1 and value in makers else eqn


def charged_equation(eqn: Equation, result: Value) -> Equation:
    """Return the equation to which a report charges a result.

    A loop's result belongs to the equation of the region that makes it. A carry that sums a term over the iterations belongs to
    the equation that makes the term.
    """
    if not eqn.regions:
        return eqn
    region = region_of(eqn)
    makers = {value: each for each in region.body for value in each.results}
    carries = {argument.value for argument in carried(region)}
    value = region.outputs[eqn.results.index(result)].value
    while value in makers and has_trait(makers[value], "add"):
        terms = [term for term in makers[value].operands if term not in carries]
        if len(terms) != 1:
            break
        (value,) = terms
    return charged_equation(makers[value], value) if value in makers else eqn
