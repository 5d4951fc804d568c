"""`einsum`: multiply all operands over the union of their dims, and sum over the dims that the result lacks.

The Mesh-TensorFlow paper defines it so in section 6. An einsum of two operands is a dot.

`grouped_dot` is a dot of which each row belongs to one group, or to none, as tokens belong to experts (`jax.lax.ragged_dot`).
Its operands are x, y, and the number of each row's group. It is the einsum of x, y and the one-hot form of these numbers, but it
computes one product for each row, and not one for each row and group. x and y may lack dimensions of the rows. A dimension of the
rows that y has beside the groups, or the result in the place of y, is one of batches: each has groups of its own.
Rows may be in any order: generated code sorts those that a processor has.
"""

from collections.abc import Iterable, Sequence
from functools import reduce
from operator import mul
from string import ascii_letters
from typing import Any

from mtfc.compiler.ir.attributes import DIM, DIMS, Attribute
from mtfc.compiler.ir.core import Equation, Value
from mtfc.compiler.ir.opdef import (
    Attrs,
    Code,
    DTypeError,
    LayoutRule,
    OpBuilder,
    OpDef,
    OpError,
    Shard,
    Sizes,
    linear_in_each,
)
from mtfc.compiler.ir.ops.elementwise import NUMBERS, align, check_dtypes, dims_text, numpy_dtype
from mtfc.compiler.ir.types import FLOATS, Dim, TensorType

RESULT_DIMS = Attribute("dims", DIMS)


def iteration_dims(eqn: Equation) -> tuple[Dim, ...]:
    """Return all dimensions of the operands, each once."""
    return tuple(dict.fromkeys(dim for value in eqn.operands for dim in value.type.dims))


def reduced_dims(eqn: Equation) -> tuple[Dim, ...]:
    return tuple(dim for dim in iteration_dims(eqn) if dim not in eqn.result.type.dims)


def _infer(types: Sequence[TensorType], attributes: Attrs) -> tuple[TensorType]:
    """Return the type of an einsum: the dims of the attribute, each of which some operand must have."""
    dtype = check_dtypes(types, NUMBERS)
    dims = RESULT_DIMS.of(attributes)
    known = {dim for type in types for dim in type.dims}
    for dim in dims:
        if dim not in known:
            found = ", ".join(dims_text(type.dims) for type in types)
            raise OpError(f"no operand of the einsum has dimension `{dim.name}`; they have {found}")
    return (TensorType(dtype, dims),)


def letters_of(dims: Iterable[Dim]) -> dict[Dim, str]:
    """Return a letter for each dimension: the first letter of its name that is free."""
    letters: dict[Dim, str] = {}
    for dim in dims:
        candidates = (c for c in dim.name + ascii_letters if c in ascii_letters)
        letters[dim] = next(c for c in candidates if c not in letters.values())
    return letters


def points_of(eqn: Equation, dims: Iterable[Dim], sizes: Sizes) -> Any:
    """Return the number of points of dimensions on one processor."""
    layout = eqn.layout or {}
    return reduce(mul, (sizes.dim(dim, layout.get(dim.name, ())) for dim in dims), 1)


def subscripts(eqn: Equation) -> str:
    """Return the einsum in letters, such as `bi,ih->bh`.

    Summed dimensions have ascending letters, as they are stored: `jnp.einsum` sums in the order of the alphabet, and XLA copies
    an operand that has another order.
    """
    letters = letters_of(iteration_dims(eqn))
    largest = max(eqn.operands, key=lambda value: value.type.size).type.dims
    summed = [dim for dim in largest if dim not in eqn.result.type.dims]
    letters |= zip(summed, sorted(letters[dim] for dim in summed), strict=True)
    terms = ["".join(letters[dim] for dim in value.type.dims) for value in (*eqn.operands, eqn.result)]
    return ",".join(terms[:-1]) + "->" + terms[-1]


def _evaluate(shard: Shard, *arrays: Any) -> Any:
    """Sum 16-bit numbers in 32 bits."""
    wide = [x.astype(shard.np.float32) if x.dtype.itemsize == 2 else x for x in arrays]
    return shard.np.einsum(subscripts(shard.eqn), *wide, optimize=True).astype(arrays[0].dtype)


def _gradient(b: OpBuilder, e: Equation, g: Sequence[Value]) -> tuple[Value, ...]:
    """Each operand's cotangent is the einsum of g and the other operands, broadcast along dims that no other operand has."""

    def of_operand(i: int) -> Value:
        """Return the gradient of an operand: an einsum of the cotangent and the other operands, repeated where none has a
        dim.
        """
        others = (g[0], *e.operands[:i], *e.operands[i + 1 :])
        dims = e.operands[i].type.dims
        known = {dim for value in others for dim in value.type.dims}
        inner = b.einsum(*others, dims=[dim for dim in dims if dim in known])
        return b.broadcast(inner, e.operands[i].type)

    return tuple(of_operand(i) for i in range(len(e.operands)))


def _flops(eqn: Equation, sizes: Sizes) -> Any:
    """Per point of the iteration space: one multiplication less than operands, and one addition if the einsum sums."""
    return points_of(eqn, iteration_dims(eqn), sizes) * (len(eqn.operands) - 1 + bool(reduced_dims(eqn)))


def _is_wide(eqn: Equation) -> bool:
    return eqn.result.type.local_dtype != eqn.result.type.dtype


def _numpy_text(code: Code) -> str:
    """Sum in 32 bits; the result has the dtype of the first operand."""
    first, *others = code.args
    first = f"{first}.astype({code.dtype})" if _is_wide(code.eqn) else first
    return f'einsum("{subscripts(code.eqn)}", {", ".join([first, *others])})'


def _jax_text(code: Code) -> str:
    dtype = f", preferred_element_type={code.dtype}" if _is_wide(code.eqn) else ""
    return f'jnp.einsum("{subscripts(code.eqn)}", {", ".join(code.args)}{dtype})'


EINSUM = OpDef(
    name="einsum",
    arity=(1, None),
    attributes=(RESULT_DIMS,),
    infer=_infer,
    layout_rule=lambda eqn: LayoutRule(reduced=reduced_dims(eqn)),
    linear=linear_in_each,
    gradient=_gradient,
    flops=_flops,
    storage="kernel",
    traits=frozenset({"dot"}),
    evaluate=_evaluate,
    numpy=_numpy_text,
    jax=_jax_text,
    doc="Product of the operands over the union of their dimensions, summed over those that the result lacks.",
)

# grouped_dot

GROUP = Attribute("group", DIM)


def _all_dims(types: Sequence[TensorType], attributes: Attrs) -> tuple[Dim, ...]:
    """Return the dimensions of the operands and the groups, each once."""
    return tuple(dict.fromkeys([*(dim for type in types for dim in type.dims), GROUP.of(attributes)]))


def _grouped_infer(types: Sequence[TensorType], attributes: Attrs) -> tuple[TensorType]:
    """Groups are in y, and all rows in the result; or groups are in the result, and rows are summed but for batches of groups."""
    x, y, groups = types
    dtype = check_dtypes((x, y), FLOATS)
    if groups.dtype != "i32":
        message = f"the numbers of groups are i32, found {groups.dtype}"
        raise DTypeError(message, "convert them with `cast(x, i32)`")
    _check_groups(types, attributes)
    _check_dims(types, attributes)
    return (TensorType(dtype, RESULT_DIMS.of(attributes)),)


def _check_groups(types: Sequence[TensorType], attributes: Attrs) -> None:
    """Raise `OpError` if the groups are not in one of y and the result, or if y has them and the result lacks rows."""
    x, y, groups = types
    dims, group = RESULT_DIMS.of(attributes), GROUP.of(attributes)
    if group in (*x.dims, *groups.dims):
        raise OpError(f"the first operand, or the numbers of rows, have the groups `{group.name}`")
    if (group in y.dims) == (group in dims):
        message = f"the second operand and the result both have the groups `{group.name}`, or neither has"
        help = "give one of them the dimension: the parts of the groups, or sums of the rows of each group"
        raise OpError(message, help)
    if group in y.dims and not {*groups.dims} <= {*dims}:
        message = f"the result {dims_text(dims)} lacks some of the rows {dims_text(groups.dims)}"
        raise OpError(message, "keep all rows in the result, and sum over some of them afterwards")


def _check_dims(types: Sequence[TensorType], attributes: Attrs) -> None:
    """Raise `OpError` for a dimension that is neither of the rows nor of the groups, and not in two of x, y and the result."""
    x, y, groups = types
    dims, operand_dims = RESULT_DIMS.of(attributes), _all_dims(types, attributes)
    group_dims = {*groups.dims, GROUP.of(attributes)}
    for dim in dims:
        if dim not in operand_dims:
            raise OpError(f"no operand of the grouped dot has dimension `{dim.name}`")
    for dim in (each for each in (*x.dims, *y.dims) if each not in group_dims):
        count = sum(dim in each for each in (x.dims, y.dims, dims))
        if count == 1:
            raise OpError(f"only one operand has `{dim.name}`, and the result lacks it", "sum over it before")
        if count == 3:
            message = f"both operands and the result have `{dim.name}`, which is no dimension of the rows"
            raise OpError(message)


def _grouped_rule(eqn: Equation) -> LayoutRule:
    """Every dimension may be split: a processor has some of the groups, and 0 for rows of others."""
    dims = _all_dims([value.type for value in eqn.operands], eqn.attrs)
    return LayoutRule(reduced=tuple(dim for dim in dims if dim not in eqn.result.type.dims))


def _grouped_letters(eqn: Equation) -> tuple[list[str], str]:
    """Return x, y, the rows and the result in letters, and the letter of the group."""
    dims = _all_dims([value.type for value in eqn.operands], eqn.attrs)
    letters = dict(zip(dims, ascii_letters, strict=False))
    terms = ["".join(letters[dim] for dim in value.type.dims) for value in (*eqn.operands, eqn.result)]
    return terms, letters[GROUP.of(eqn.attrs)]


def _grouped_evaluate(shard: Shard, x: Any, y: Any, groups: Any) -> Any:
    """Add up the products of each group's rows, selected on both sides: a NaN in other rows has no effect."""
    np, eqn = shard.np, shard.eqn
    (of_x, of_y, rows, result), group = _grouped_letters(eqn)
    x, y = (value.astype(np.float32) if value.dtype.itemsize == 2 else value for value in (x, y))
    place = (of_y if group in of_y else result).index(group)
    first, number = shard.offset(GROUP.of(eqn.attrs).name), (y.shape if group in of_y else shard.shape)[place]

    def selected(value: Any, term: str, holds: Any) -> tuple[Any, str]:
        whole = "".join(dict.fromkeys(term + rows))
        return np.where(align(holds, rows, whole), align(value, term, whole), 0).astype(value.dtype), whole

    def product(i: int) -> Any:
        """Return the product of the rows of one group with the weights of the group."""
        holds, part = groups == i + first, (slice(None),) * place
        (left, a), (right, b) = (
            selected(value, term, holds)
            for value, term in ((x, of_x), (y[(*part, i)] if group in of_y else y, of_y.replace(group, "")))
        )
        return np.einsum(f"{a},{b}->{result.replace(group, '')}", left, right, optimize=True)

    found = [product(i) for i in range(number)]
    whole = np.stack(found, place) if group in result else sum(found)
    return whole.astype(numpy_dtype(np, eqn.result.type.dtype))


def _grouped_gradient(b: OpBuilder, e: Equation, g: Sequence[Value]) -> tuple[Value | None, ...]:
    """The gradients are grouped dots over the same groups. An operand without some of the rows gets the sum over them."""
    x, y, groups = e.operands
    group = GROUP.of(e.attrs)

    def of_rows(left: Value, right: Value, type: TensorType) -> Value:
        dims = (*(dim for dim in groups.type.dims if dim not in type.dims), *type.dims)
        return b.sum_to(b("grouped_dot", left, right, groups, dims=dims, group=group), type.dims)

    if group in y.type.dims:
        dy = b("grouped_dot", x, g[0], groups, dims=y.type.dims, group=group)
        return of_rows(g[0], y, x.type), dy, None
    return of_rows(y, g[0], x.type), of_rows(x, g[0], y.type), None


def _grouped_flops(eqn: Equation, sizes: Sizes) -> Any:
    """A multiplication and an addition for each row: where groups are split, a processor has its share of the rows."""
    group = GROUP.of(eqn.attrs)
    points = points_of(eqn, _all_dims([value.type for value in eqn.operands], eqn.attrs), sizes)
    of_groups = (eqn.operands[1] if group in eqn.operands[1].type.dims else eqn.result).type.dims
    batches = [dim for dim in eqn.operands[2].type.dims if dim in of_groups]
    return points * 2 / reduce(mul, (sizes.dim(dim, ()) for dim in (group, *batches)))


def _grouped_text(code: Code) -> str:
    """Return the call of `grouped_dot`, a function of the prelude. A shard of the groups counts from its own first group."""
    (*given, result), letter = _grouped_letters(code.eqn)
    offset = code.offset(GROUP.of(code.eqn.attrs).name, len(given[2]))
    groups = f"{code.args[2]} - {offset}" if offset else code.args[2]
    number = f", number={code.sizes[result.index(letter)]}" if letter in result else ""
    return f'grouped_dot("{",".join(given)}->{result}", "{letter}", {code.args[0]}, {code.args[1]}, {groups}{number})'


GROUPED_DOT = OpDef(
    name="grouped_dot",
    arity=(3,),
    attributes=(RESULT_DIMS, GROUP),
    infer=_grouped_infer,
    layout_rule=_grouped_rule,
    linear=lambda eqn: ((0,), (1,)),
    gradient=_grouped_gradient,
    flops=_grouped_flops,
    storage="kernel",
    traits=frozenset({"groups"}),
    evaluate=_grouped_evaluate,
    numpy=_grouped_text,
    jax_differentiated=lambda code: f"differentiable_{_grouped_text(code)}",
    doc="Dot of each row with the part of its group, or the sum of the dots of each group's rows.",
)

OPS = (EINSUM, GROUPED_DOT)
