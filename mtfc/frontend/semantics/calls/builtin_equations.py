"""Make the equations of built-in functions: one function for each, which takes the arguments of a call as read."""

from collections.abc import Callable, Mapping, Sequence, Set
from functools import partial
from math import prod
from typing import Any

import attrs

from mtfc.compiler.diagnostics import Label
from mtfc.compiler.ir.builder import needed_for
from mtfc.compiler.ir.core import Attr, Equation, Stage, Value, walk
from mtfc.compiler.ir.ops import OPS
from mtfc.compiler.ir.ops.creation import VALUE
from mtfc.compiler.ir.types import FLOATS, Dim
from mtfc.frontend.semantics.bodies.expressions import (
    Expressions,
    Operand,
    Result,
    Results,
    Site,
    common_dtype,
)
from mtfc.frontend.semantics.bodies.function_builder import LARGEST, BlockBuilder
from mtfc.frontend.semantics.calls.function_calls import NODES
from mtfc.frontend.semantics.names.constants import fold_call, truth
from mtfc.frontend.semantics.names.scope import count

Dims = tuple[Dim, ...]
Mapped = tuple[Dim, Dim]


def without_attributes(op: str, expressions: Expressions, site: Site, *operands: Operand) -> Result:
    """Apply an op without attributes; numbers alone give a number."""
    numbers = [operand.result for operand in operands if not isinstance(operand.result, Value)]
    if len(numbers) < len(operands):
        return expressions.emit(site, op, *operands)
    return expressions.folded(site.span, partial(fold_call, op), *numbers)


def applied(
    op: str,
    operands: int,
    names: Sequence[str],
    indices: int | None,
    defaults: Mapping[str, Any],
    expressions: Expressions,
    site: Site,
    *arguments: Any,
    **keywords: Any,
) -> Result:
    """Apply an op to its operands. Arguments behind these give the attributes `names`, which may be several for an argument.

    indices: the number of an operand for which a number is i32, whatever the dtype of the others.
    """
    given = {**defaults, **keywords}
    for each, value in zip(names, arguments[operands:], strict=True):
        given |= zip(each.split(), value, strict=True) if " " in each else {each: value}
    if "padding" in given:
        given["before"], given["after"] = given["padding"]
    if VALUE in OPS[op].attributes:
        given["value"] = _filler(expressions, site, arguments[0], given["value"])
        if given["value"] is None:
            return None
    attributes = {each.name: given[each.name] for each in OPS[op].attributes if each.name in given}
    apart = None if indices is None else {indices: "i32"}
    return expressions.emit(site, op, *arguments[:operands], apart=apart, **attributes)


def where(expressions: Expressions, site: Site, condition: Operand, x: Operand, y: Operand) -> Result:
    """Make `where`: numbers among x and y take the dtype of the other one. With numbers alone, the condition chooses one."""
    if any(isinstance(each.result, Value) for each in (condition, x, y)):
        return expressions.emit(site, "where", condition, x, y, apart={0: None})
    chosen = expressions.folded(condition.span, truth, condition.result)
    return None if chosen is None else (x if chosen else y).result


def einsum(expressions: Expressions, site: Site, *operands: Operand, dims: Dims) -> Result:
    warn_of_kept_dimension(expressions, site, operands, dims)
    return expressions.emit(site, "einsum", *operands, dims=dims)


def full(
    expressions: Expressions, site: Site, dims: Dims, number: Operand, dtype: str | None = None
) -> Result:
    """Make `full`; without a dtype, a number is f32 and a truth value bool."""
    dtype = dtype or ("bool" if isinstance(number.result, bool) else "f32")
    value = expressions.number_as(number, dtype)
    return None if value is None else expressions.emit(site, "full", dims=dims, value=value, dtype=dtype)


def filled(number: int, expressions: Expressions, site: Site, dims: Dims, dtype: str = "f32") -> Result:
    """Make a tensor whose elements are all 0, or all 1."""
    value = bool(number) if dtype == "bool" else number
    return full(expressions, site, dims, Operand(value, site.span), dtype)


def zeros_like(expressions: Expressions, site: Site, x: Operand) -> Result:
    """Make zeros with the dtype and the dimensions of x."""
    return filled(0, expressions, site, x.dims, common_dtype((x,)) or "f32")


def reduction(
    op: str,
    expressions: Expressions,
    site: Site,
    x: Operand,
    over: Dims | None = None,
    dims: Dims | None = None,
) -> Result:
    """Make a reduction along the dims `over`, or to the dims `dims`. op: `sum`, `max` and the like."""
    value = expressions.tensor(x)
    if value is None:
        return None
    operand = Operand(value, x.span, x.shown)
    gone = _reduced(expressions, site, operand, over, dims)
    return None if gone is None else REDUCE.get(op, _reduce)(expressions, site, op, operand, gone, dims)


def _reduced(
    expressions: Expressions, site: Site, x: Operand, over: Dims | None, kept: Dims | None
) -> Dims | None:
    """Return the dimensions that a reduction of `x` removes: all dimensions, if the call states none.

    over, kept: the dimensions to remove, and to keep, as far as the call states them.
    """
    missing = [dim for dim in kept or () if dim not in x.dims]
    if missing:
        message = f"the operand has no dimension `{missing[0].name}` to keep"
        return expressions.scope.refuse("E205", message, site.span, [Label(x.span, f"{x.shown} is {x.type}")])
    return over if over is not None else tuple(dim for dim in x.dims if dim not in (kept or ()))


def _reduce(
    expressions: Expressions, site: Site, op: str, x: Operand, gone: Dims, kept: Dims | None
) -> Result:
    """Make the reduction, and a transposition if the call states another order of dimensions. gone: the dimensions to remove.

    kept: the stated dimensions of the result.
    """
    left = tuple(dim for dim in x.dims if dim not in gone)
    if kept is None or kept == left:
        return expressions.emit(site, op, x, over=gone)
    result = expressions.emit(Site(site.span), op, x, over=gone)
    return None if result is None else expressions.emit(site, "transpose", Operand(result, x.span), dims=kept)


def _mean(expressions: Expressions, site: Site, op: str, x: Operand, gone: Dims, kept: Dims | None) -> Result:
    """Make the sum, times one over the number of elements. gone: the dimensions to remove.

    kept: the stated dimensions of the result.
    """
    if x.dtype not in FLOATS:
        label = Label(x.span, f"{x.shown} is {x.type}")
        help = "convert it with `cast(x, dtype)`"
        message = f"expected a floating-point tensor, found {x.dtype}"
        return expressions.scope.refuse("E202", message, site.span, [label], help)
    elements = prod(dim.size for dim in gone)
    if elements == 1:
        return _reduce(expressions, site, "sum", x, gone, kept)
    total = _reduce(expressions, Site(site.span), "sum", x, gone, kept)
    share = Operand(1 / elements, site.span)
    return None if total is None else expressions.emit(site, "mul", Operand(total, x.span), share)


def _argmax(
    expressions: Expressions, site: Site, op: str, x: Operand, gone: Dims, kept: Dims | None
) -> Result:
    """Make an `argmax` over its one dimension; report several (E205)."""
    if len(gone) == 1:
        return _reduce(expressions, site, op, x, gone, kept)
    message = f"`argmax` goes over one dimension, found {len(gone)}"
    return expressions.scope.refuse("E205", message, site.span, help="write `argmax(x, over = d)`")


REDUCE: dict[str, Callable[..., Result]] = {"mean": _mean, "argmax": _argmax}


def rename(expressions: Expressions, site: Site, x: Operand, *mappings: Mapped) -> Result:
    """Make a `rename`; report a dimension that is renamed twice (E210)."""
    if len(dict(mappings)) < len(mappings):
        return expressions.scope.refuse("E210", "a dimension is renamed twice", site.span)
    return expressions.emit(site, "rename", x, mapping=mappings)


def _filler(
    expressions: Expressions, site: Site, x: Operand, value: Operand | None
) -> float | int | bool | None:
    """Return the number to pad `x` with, as an element of its dtype; zero if none is given."""
    dtype = x.dtype or "f32"
    nothing = Operand(False if dtype == "bool" else 0, site.span)
    return expressions.number_as(value or nothing, dtype)


def concat(expressions: Expressions, site: Site, *arguments: Operand | Mapped) -> Result:
    """Make `concat`, with one mapping `length -> both` for all operands, or one mapping for each."""
    operands = [argument for argument in arguments if isinstance(argument, Operand)]
    mappings = [argument for argument in arguments if not isinstance(argument, Operand)]
    if len(mappings) == 1:
        mappings *= len(operands)
    if not operands or len(mappings) != len(operands):
        message = f"`concat` of {count(len(operands), 'tensor')} has {count(len(mappings), 'mapping')}"
        help = "write `concat(a, b, left -> both, right -> both)`, or `length -> both` once for all"
        return expressions.scope.refuse("E203", message, site.span, help=help)
    targets = dict.fromkeys(target for _, target in mappings)
    if len(targets) > 1:
        names = " and ".join(f"`{dim.name}`" for dim in targets)
        return expressions.scope.refuse("E205", f"`concat` makes one dimension, not {names}", site.span)
    return _joined(expressions, site, operands, tuple(source for source, _ in mappings), mappings[0][1])


def _joined(
    expressions: Expressions, site: Site, operands: list[Operand], sources: Dims, target: Dim
) -> Result:
    """Concatenate operands, transposed to the dimension order of the first."""
    order = tuple(target if dim == sources[0] else dim for dim in operands[0].dims)
    ordered = [
        _in_order(expressions, operand, tuple(source if dim == target else dim for dim in order))
        for operand, source in zip(operands, sources, strict=True)
    ]
    return expressions.emit(site, "concat", *ordered, sources=sources, target=target)


def _one(expressions: Expressions, site: Site) -> Dim:
    """Return the dimension of size 1 along which values are joined to a stack, and cut from one."""
    return expressions.builder.local_dim("stack.one", 1, site.span)


def stack(expressions: Expressions, site: Site, operands: list[Operand], dim: Dim) -> Result:
    """Join tensors of equal dimensions along a new first dimension, which has an element for each of them."""
    if len(operands) != dim.size:
        message = f"a stack of {count(len(operands), 'tensor')} along `{dim.name}`, which has size {dim.size}"
        return expressions.scope.refuse("E205", message, site.span)
    dims, dtype = operands[0].dims, common_dtype(operands)
    one, parts = _one(expressions, site), list[Operand]()
    for each in operands:
        if set(each.dims) != set(dims) or dim in dims:
            labels = [Label(x.span, f"{x.shown} is {x.found}") for x in (operands[0], each)]
            message = (
                f"`{dim.name}` is no new dimension"
                if dim in dims
                else "a stack is of tensors of equal dimensions"
            )
            return expressions.scope.refuse(
                "E205", message, site.span, labels[: 1 if each is operands[0] else 2]
            )
        value = expressions.tensor(each, dtype)
        if value is None:
            return None
        ordered = _in_order(expressions, Operand(value, each.span, each.shown), dims)
        part = expressions.emit(Site(each.span), "reshape", ordered, dims=(one, *dims))
        parts += [] if part is None else [Operand(part, each.span, each.shown)]
    return expressions.emit(site, "concat", *parts, sources=(one,) * len(parts), target=dim)


def unstack(expressions: Expressions, site: Site, x: Operand, dim: Dim) -> Results:
    """Cut a tensor into its elements along a dimension."""
    names = 1 + len(site.more)
    nothing: Results = (None,) * names
    if dim not in x.dims:
        label = Label(x.span, f"{x.shown} is {x.found}")
        expressions.scope.error("E205", f"there is no dimension `{dim.name}`", site.span, [label])
        return nothing
    if names != dim.size:
        message = f"{count(names, 'name')} for the {dim.size} values along `{dim.name}`"
        expressions.scope.error("E218", message, site.span)
        return nothing
    one, rest_dims = _one(expressions, site), tuple(each for each in x.dims if each != dim)
    elements = list[Result]()
    for start, variable in zip(range(dim.size), site.variables, strict=False):
        part = expressions.emit(Site(site.span), "slice", x, source=dim, target=one, start=start, stride=1)
        if part is None:
            return nothing
        whole = Operand(part, site.span, x.shown)
        elements.append(expressions.emit(Site(site.span, variable), "reshape", whole, dims=rest_dims))
    return tuple(elements)


def _in_order(expressions: Expressions, x: Operand, dims: Dims) -> Operand:
    """Transpose `x` to the given order, if it has these dimensions."""
    if x.dims == dims or set(x.dims) != set(dims):
        return x
    moved = expressions.emit(Site(x.span), "transpose", x, dims=dims)
    return x if moved is None else Operand(moved, x.span, x.shown)


def scatter_add(
    expressions: Expressions, site: Site, updates: Operand, ids: Operand, dim: Dim, dims: Dims
) -> Result:
    """Make `scatter_add`, which takes updates with the dimensions of the indices in front."""
    order = (*ids.dims, *(each for each in dims if each != dim and each not in ids.dims))
    ordered = _in_order(expressions, updates, order)
    return expressions.emit(site, "scatter_add", ordered, ids, apart={1: "i32"}, dim=dim, dims=dims)


def cumsum(
    expressions: Expressions,
    site: Site,
    x: Operand,
    over: Dim | None = None,
    exclusive: bool = False,
    reverse: bool = False,
) -> Result:
    """Make a cumulative sum along one dim."""
    if over is None:
        return expressions.scope.refuse(
            "E203", "`cumsum` needs `over`", site.span, help="write `cumsum(x, over = d)`"
        )
    return expressions.emit(site, "cumsum", x, dim=over, exclusive=exclusive, reverse=reverse)


def top_k(expressions: Expressions, site: Site, x: Operand, dims: Mapped) -> Results:
    """Make `top_k`: the largest elements, and their indices."""
    value = expressions.tensor(x)
    if value is None:
        return None, None
    return expressions.equations(site, "top_k", (x,), (value,), {"dim": dims[0], "k": dims[1]}) or (
        None,
        None,
    )


def random(
    op: str, expressions: Expressions, site: Site, dims: Dims, dtype: str = "f32", seed: Operand | None = None
) -> Result:
    """Draw random numbers, which depend on the call, the step, the iterations of loops around, and a seed."""
    return _drawn(expressions, site, op, seed, dims=dims, dtype=dtype)


def bernoulli(
    expressions: Expressions, site: Site, dims: Dims, p: Operand, seed: Operand | None = None
) -> Result:
    """Make booleans that are true with probability p; for p of 0 or 1 no numbers are drawn."""
    number = expressions.number_as(p, "f32")
    if number is None:
        return None
    if number in (0, 1):
        return expressions.emit(site, "full", dims=dims, value=bool(number), dtype="bool")
    return _drawn(expressions, site, "bernoulli", seed, dims=dims, p=number)


def _drawn(expressions: Expressions, site: Site, op: str, seed: Operand | None, **attributes: Attr) -> Result:
    """Make random numbers, whose stream has the variable's name. They differ between steps, iterations of loops, and seeds."""
    builder = expressions.builder
    stream = builder.draws.fresh(site.variable or f"{expressions.prefix}{op}")
    numbers = [builder.step(site.span), *builder.indices(site.span)]
    if seed is not None:
        given = expressions.tensor(seed, "i32")
        if given is None:
            return None
        numbers.append(given)
    return expressions.equation(site, op, [], numbers, {**attributes, "stream": stream})


# W608: dimensions that an einsum probably should sum over, and keeps
#
# A dimension that two operands share is contracted if the result lacks it. If the result has it, it is a dimension such as a
# batch, along which operands are multiplied element by element. Two patterns show that this is hardly meant:
#
# - `einsum(x, w -> [batch, io])` of x[batch, io] and w[io, hidden]: nothing is summed between the two operands, and `hidden` of w
#   is summed alone. The result of a dot would have `hidden` in the place of `io`.
# - `einsum(x, w, w -> [batch, io])` of the same: x is multiplied element by element with the sum of squares of w, because a
#   dimension has one meaning in an einsum. A dot with w, and one with w turned, needs a second name for `io`.
#
# An operand whose dimensions another operand has too is a scale or a mask, and gives no warning.


KEPT = "W608"

MOST_OPERANDS = 32
"""Operands of an einsum that is searched: the patterns compare each operand with each other one."""


def warn_of_kept_dimension(
    expressions: Expressions, site: Site, operands: Sequence[Operand], result: Sequence[Dim]
) -> None:
    """Warn about the first dimension that looks contracted and stays, in a file of the user's own."""
    if expressions.scope.module or not 2 <= len(operands) <= MOST_OPERANDS:
        return
    dims = [operand.dims for operand in operands]
    found = _summed_alone(dims, result) or _scaled_by_sums(dims, result)
    if found is None:
        return
    kept, message, help = found
    labels = [Label(x.span, f"{x.shown} is {x.type}") for x in operands if kept in x.dims]
    expressions.scope.error(KEPT, message, site.span, labels, help)


def _summed_alone(dims: Sequence[Sequence[Dim]], result: Sequence[Dim]) -> tuple[Dim, str, str] | None:
    """Find an operand that shares a kept dimension with another one, and whose own dimension is summed without the other."""
    for i, own in enumerate(dims):
        others = [each for j, each in enumerate(dims) if j != i]
        summed = [dim for dim in own if dim not in result]
        if not summed or any(dim in each for dim in summed for each in others):
            continue
        for other in others:
            shared = [dim for dim in own if dim in other and dim in result]
            if shared and not set(own) <= set(other) and not set(other) <= set(own):
                kept, alone = shared[0], summed[0]
                message = (
                    f"`{kept.name}` stays in the result, and `{alone.name}` is summed before the product"
                )
                help = f"a dot sums over `{kept.name}` and keeps `{alone.name}`; to sum first, write `sum(x, over = d)`"
                return kept, message, help
    return None


def _scaled_by_sums(dims: Sequence[Sequence[Dim]], result: Sequence[Dim]) -> tuple[Dim, str, str] | None:
    """Find an operand without summed dimensions that shares a kept dimension with two operands that are summed together."""
    for i, operand_dims in enumerate(dims):
        others = [each for j, each in enumerate(dims) if j != i]
        if not set(operand_dims) <= set(result) or any(set(operand_dims) <= set(other) for other in others):
            continue
        for kept_dim in operand_dims:
            summed = [set(each) - set(result) for each in others if kept_dim in each]
            if any(a & b for j, a in enumerate(summed) for b in summed[:j]):
                message = f"`{kept_dim.name}` stays in the result, so nothing is summed over it"
                help = f"two dots need two names: `rename(w, {kept_dim.name} -> other)`; if a product is meant, write it with `*`"
                return kept_dim, message, help
    return None


# `gradients(loss, [w, x])`: the equations of reverse-mode differentiation follow those of the loss
#
# The equations are those that `differentiate` makes, as ordinary equations of the model: a layout splits them, reports price
# them, and `differentiate` or another `gradients` differentiates them again. In a loop, the gradients are those of one
# iteration: values of other iterations, and from outside of the loop, are arguments of its body.
#
# This is the only module of the front end that uses a pass, because types of values and errors depend on the equations. The pass
# is imported at the first call, so that `check` of other files does not wait for it.


INDEPENDENT = "E425"


def gradients(expressions: Expressions, site: Site, loss: Operand, values: Sequence[Operand]) -> Results:
    """Return the gradient of the loss for each value, which has the value's type: zeros where none reaches the value."""
    nothing: Results = (None,) * len(values)
    constants = [each for each in values if not _is_variable(expressions, each)]
    if not _is_loss(expressions, loss) or constants:
        return nothing
    block, builder = expressions.block, expressions.builder
    start, wanted, equations = _here(block, loss), [_here(block, each) for each in values], tuple(block.body)
    causes = needed_for((start,), equations)
    if not _all_cause(expressions, loss, values, {start, *(v for eqn in causes for v in eqn.operands)}):
        return nothing
    builder.grown.size += len(equations) // NODES
    is_small = builder.grown.size + len(causes) <= LARGEST  # a gradient has more equations than its value
    results = _differentiated(expressions, site, causes, start, wanted) if is_small else ()
    builder.grown.size += sum(1 for _ in walk(tuple(block.body[len(equations) :])))
    if not is_small or builder.grown.size > LARGEST:
        message = f"with these gradients, the program has more than {LARGEST:,} equations and calls"
        help = "each `gradients` of gradients makes several times as many equations"
        expressions.scope.error("E122", message, site.span, help=help)
        block.body = list(equations)
        return nothing
    return tuple(
        expressions.named(gradient, site.span, variable)
        for gradient, variable in zip(results, site.variables, strict=False)
    )


def _here(block: BlockBuilder, operand: Operand) -> Value:
    assert isinstance(operand.result, Value), "numbers are refused"
    return block.here(operand.result)


def _is_loss(expressions: Expressions, loss: Operand) -> bool:
    """Return True for a floating-point scalar; report an error otherwise."""
    scope = expressions.scope
    if loss.type is None:
        return scope.error("E403", "a number has no gradients", loss.span)
    if loss.type.dims:
        help = "sum it first: `gradients(sum(x), [w])` adds the gradients of all elements"
        return scope.error("E402", f"`gradients` takes a scalar, found {loss.type}", loss.span, help=help)
    message = f"`gradients` takes a floating-point scalar, found {loss.type}"
    return loss.type.dtype in FLOATS or scope.error("E403", message, loss.span)


def _is_variable(expressions: Expressions, value: Operand) -> bool:
    """Return True for a floating-point tensor; report an error otherwise."""
    if value.type is not None and value.type.dtype in FLOATS:
        return True
    return expressions.scope.error(
        "E202", f"only floating-point tensors have gradients, found {value.found}", value.span
    )


def _all_cause(
    expressions: Expressions, loss: Operand, values: Sequence[Operand], causes: Set[Value]
) -> bool:
    """Return True if all values are among the causes of the loss; report errors otherwise.

    A dead statement does not see the equations before it, so it is not checked.
    """
    block = expressions.block
    if expressions.builder.around is not None:
        return True
    missing = [each for each in values if _here(block, each) not in causes]
    for each in missing:
        help = f"its gradient would be 0: write `zeros_like({each.shown.strip('`')})` if that is meant"
        if any(block.loops()):
            help = (
                "in a loop, `gradients` sees one iteration: compute the loss from the value in the same loop"
            )
        labels = [Label(loss.span, f"{loss.shown} is computed without it")]
        message = f"the loss does not depend on {each.shown}"
        expressions.scope.error(INDEPENDENT, message, each.span, labels, help)
    return not missing


def _differentiated(
    expressions: Expressions, site: Site, causes: Sequence[Equation], loss: Value, wanted: Sequence[Value]
) -> tuple[Value, ...]:
    """Append the equations of the gradients of a loss, in the block's stage, and return the gradients.

    The equations belong to the places that they differentiate. Loops among the causes also yield what the gradients need.

    causes: the equations that the loss depends on. wanted: the values whose gradients are returned.
    """
    from mtfc.compiler.passes.autodiff.backward import backward

    block = expressions.block
    known, place = len(block.body), block.located(site.span)
    call, block.call, block.span = block.call, None, place
    seed = block("full", dims=(), value=1.0, dtype=loss.type.dtype)
    found = backward(block, causes, {loss: seed}, wanted)
    block.span = place
    gradients = tuple(
        found.get(each) or block("full", dims=each.type.dims, value=0.0, dtype=each.type.dtype)
        for each in wanted
    )
    block.call = call
    needed = needed_for(
        gradients, block.body[known:], lambda eqn: not eqn.operands
    )  # the builder shares constants
    block.body[known:] = [_in_stage(eqn, block.stage) for eqn in needed]
    return gradients


def _in_stage(eqn: Equation, stage: Stage) -> Equation:
    """Return an equation, and those in its loops, in another stage."""
    regions = tuple(
        attrs.evolve(region, body=tuple(_in_stage(each, stage) for each in region.body))
        for region in eqn.regions
    )
    return attrs.evolve(eqn, stage=stage, regions=regions)
