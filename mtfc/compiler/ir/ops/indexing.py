"""Ops on indices into a dimension: `gather`, its transpose `scatter_add`, `add_at` and `set_at` in place, and `top_k`.

`gather` is the einsum of a table with the one-hot rows of its indices, without making those rows. So an index outside of the
dimension reads 0, and `scatter_add` drops its update, because the one-hot row is 0 there. A processor that holds a part of the
dimension subtracts the part's first index from the indices. Indices into other parts then lie outside, and a sum over the
processors stays pending, as for the einsum (Mesh-TensorFlow paper, section 6).
"""

from collections.abc import Sequence
from typing import Any

from mtfc.compiler.ir.attributes import DIM, DIMS, Attribute
from mtfc.compiler.ir.core import Equation, Value
from mtfc.compiler.ir.opdef import (
    Attrs,
    BlockRewriter,
    Code,
    LayoutRule,
    OpBuilder,
    OpDef,
    OpError,
    Shard,
    flops_per_operand,
    linear_in_first,
    no_flops,
    no_gradient,
)
from mtfc.compiler.ir.ops.elementwise import INTEGERS, NUMBERS, align, check_dtypes, dims_text
from mtfc.compiler.ir.ops.structure import need, replaced
from mtfc.compiler.ir.types import Dim, TensorType

INDEXED = Attribute("dim", DIM)
TABLE_DIMS = Attribute("dims", DIMS)
MOST = Attribute("k", DIM)


def _table(eqn: Equation) -> TensorType:
    """Return the type of the tensor that the indices point into."""
    return (eqn.result if eqn.op == "scatter_add" else eqn.operands[0]).type


def _gathered(table: Sequence[Dim], ids: TensorType, dim: Dim) -> tuple[Dim, ...]:
    """Return the dims of the result of `gather`: those of the indices, then those that only the table has."""
    check_dtypes((ids,), INTEGERS)
    if dim in ids.dims:
        raise OpError(
            f"the indices already have dimension `{dim.name}`",
            "give it another name with `rename(ids, old -> new)`",
        )
    return (*ids.dims, *(other for other in table if other != dim and other not in ids.dims))


def _indices_text(code: Code) -> str:
    """Write the indices into this processor's part, the axis that they point into, and the axes that table and indices share."""
    table, ids, dim = _table(code.eqn), code.eqn.operands[-1].type, INDEXED.of(code.eqn.attrs).name
    offset = code.offset(dim, len(ids.dims))
    axis = {name: i - len(table.dims) for i, name in enumerate(table.names)}
    last = len(code.args) - 1
    shared = tuple((axis[name], code.axis(last, name)) for name in table.names if name in ids.names)
    indices = f"{code.args[last]} - {offset}" if offset else code.args[last]
    return f"{indices}, axis={axis[dim]}" + (f", shared={shared}" if shared else "")


def _places(
    shard: Shard, ids: Any, shape: Sequence[int], names: tuple[str, ...]
) -> tuple[Any, tuple[Any, ...]]:
    """Return a mask of the indices that point into this processor's part, of the given shape; and places in the part.

    The places are index arrays, one for each dimension of the part, that broadcast against dims `names`. An index into another
    part has place 0.
    """
    np, dim = shard.np, INDEXED.of(shard.eqn.attrs).name
    sizes = dict(zip(_table(shard.eqn).names, shape, strict=True))
    local = align(ids.astype(np.int64) - shard.offset(dim), shard.eqn.operands[-1].type.names, names)
    inside = (local >= 0) & (local < sizes[dim])
    places = {name: align(np.arange(sizes[name]), (name,), names) for name in sizes if name != dim}
    return inside, tuple({**places, dim: np.where(inside, local, 0)}[name] for name in sizes)


# gather


def _gather_infer(types: Sequence[TensorType], attributes: Attrs) -> tuple[TensorType]:
    table, ids = types
    need(table, INDEXED.of(attributes))
    return (TensorType(table.dtype, _gathered(table.dims, ids, INDEXED.of(attributes))),)


def _gather_rule(eqn: Equation) -> LayoutRule:
    """Each element is in one part of the table, and 0 for the others: a sum completes it, or a maximum of truth values."""
    reduction = "max" if eqn.result.type.dtype == "bool" else "sum"
    return LayoutRule(reduced=(INDEXED.of(eqn.attrs),), reduction=reduction)


def _gather_gradient(b: OpBuilder, e: Equation, g: Sequence[Value]) -> tuple[Value, None]:
    """Add the cotangent up at the places that were read; indices have no gradient."""
    table, ids = e.operands
    updates = b.ordered(g[0], e.result.type.dims)
    return b("scatter_add", updates, ids, dim=e.attrs["dim"], dims=table.type.dims), None


def _gather(shard: Shard, table: Any, ids: Any) -> Any:
    hit, places = _places(shard, ids, table.shape, shard.eqn.result.type.names)
    return shard.np.where(hit, table[places], shard.np.zeros((), table.dtype))


GATHER = OpDef(
    name="gather",
    arity=(2,),
    attributes=(INDEXED,),
    infer=_gather_infer,
    layout_rule=_gather_rule,
    linear=lambda eqn: () if eqn.result.type.dtype == "bool" else ((0,),),
    gradient=_gather_gradient,
    flops=no_flops,
    storage="lookup",
    traits=frozenset({"indexes"}),
    evaluate=_gather,
    numpy=lambda code: f"gather({code.args[0]}, {_indices_text(code)})",
    doc="The elements of a table that indices into one of its dimensions point at; 0 where one points outside.",
)


# scatter_add


def _scatter_infer(types: Sequence[TensorType], attributes: Attrs) -> tuple[TensorType]:
    """Check that the updates have the dims that `gather` from the result gives, in that order."""
    updates, ids = types
    dims = TABLE_DIMS.of(attributes)
    need(TensorType(updates.dtype, dims), INDEXED.of(attributes))
    expected = _gathered(dims, ids, INDEXED.of(attributes))
    if updates.dims != expected:
        raise OpError(f"the updates have dimensions {dims_text(updates.dims)}, and not {dims_text(expected)}")
    return (TensorType(check_dtypes((updates,), NUMBERS), dims),)


def _scatter_rule(eqn: Equation) -> LayoutRule:
    """Updates to one element are added up. Only the result has the dimension that indices point into."""
    gone = (dim for dim in eqn.operands[1].type.dims if dim not in eqn.result.type.dims)
    return LayoutRule(reduced=tuple(gone))


def _scatter_gradient(b: OpBuilder, e: Equation, g: Sequence[Value]) -> tuple[Value, None]:
    table = b.ordered(g[0], e.result.type.dims)
    return b("gather", table, e.operands[1], dim=e.attrs["dim"]), None


def _sums_at(shard: Shard, updates: Any, ids: Any, names: tuple[str, ...]) -> Any:
    """Return zeros with updates of dims `names` added, 16-bit numbers in 32 bits."""
    np = shard.np
    hit, places = _places(shard, ids, shard.shape, names)
    sums = np.zeros(shard.shape, np.float32 if updates.dtype.itemsize == 2 else updates.dtype)
    np.add.at(sums, places, np.where(hit, updates, np.zeros((), updates.dtype)).astype(sums.dtype))
    return sums


def _scatter_add(shard: Shard, updates: Any, ids: Any) -> Any:
    return _sums_at(shard, updates, ids, shard.eqn.operands[0].type.names).astype(updates.dtype)


SCATTER_ADD = OpDef(
    name="scatter_add",
    arity=(2,),
    attributes=(INDEXED, TABLE_DIMS),
    infer=_scatter_infer,
    layout_rule=_scatter_rule,
    linear=linear_in_first,
    gradient=_scatter_gradient,
    flops=flops_per_operand,
    storage="kernel",
    traits=frozenset({"indexes", "scatter"}),
    evaluate=_scatter_add,
    numpy=lambda code: f"scatter_add({code.shape}, {code.args[0]}, {_indices_text(code)})",
    doc="Zeros with updates added where indices into one dimension point: what a gradient passes through `gather`.",
)


# add_at and set_at


def _set_at_infer(types: Sequence[TensorType], attributes: Attrs) -> tuple[TensorType]:
    """Check that the updates are what `gather` reads of this table, which has all other dimensions of the indices."""
    table, updates, ids = types
    need(table, INDEXED.of(attributes))
    expected = TensorType(table.dtype, _gathered(table.dims, ids, INDEXED.of(attributes)))
    if not {*ids.dims} <= {*table.dims}:
        raise OpError(f"indices of {dims_text(ids.dims)} point into a tensor of {dims_text(table.dims)}")
    if updates != expected:
        raise OpError(f"the updates are {updates}, and not {expected}")
    return (table,)


def _add_at_infer(types: Sequence[TensorType], attributes: Attrs) -> tuple[TensorType]:
    check_dtypes(types[:2], NUMBERS)
    return _set_at_infer(types, attributes)


def _add_at_gradient(b: OpBuilder, e: Equation, g: Sequence[Value]) -> tuple[Value | None, ...]:
    cotangent = b.ordered(g[0], e.result.type.dims)
    return cotangent, b("gather", cotangent, e.operands[2], dim=e.attrs["dim"]), None


def _add_at(shard: Shard, table: Any, updates: Any, ids: Any) -> Any:
    sums = _sums_at(shard, updates, ids, shard.eqn.operands[1].type.names)
    return (table.astype(sums.dtype) + sums).astype(table.dtype)


ADD_AT = OpDef(
    name="add_at",
    arity=(3,),
    attributes=(INDEXED,),
    infer=_add_at_infer,
    layout_rule=lambda eqn: LayoutRule(),
    linear=lambda eqn: ((0, 1),),
    gradient=_add_at_gradient,
    flops=lambda eqn, sizes: sizes.elements(eqn.operands[1].type),
    storage="reduced",
    traits=frozenset({"indexes", "scatter", "in_place"}),
    evaluate=_add_at,
    numpy=lambda code: f"add_at({code.args[0]}, {code.args[1]}, {_indices_text(code)})",
    doc="A tensor with updates added where indices into one dimension point; only these elements are read and written.",
)


def _set_at(shard: Shard, table: Any, updates: Any, ids: Any) -> Any:
    """Take each element from the updates or from the table: the table has all dimensions of the indices."""
    np, dim, (of_table, of_updates, of_ids) = shard.np, INDEXED.of(shard.eqn.attrs).name, shard.eqn.operands
    names = of_table.type.names
    local = align(ids.astype(np.int64) - shard.offset(dim), of_ids.type.names, names)
    places = align(np.arange(table.shape[names.index(dim)]), (dim,), names)
    return np.where(local == places, align(updates, of_updates.type.names, names), table)


SET_AT = OpDef(
    name="set_at",
    arity=(3,),
    attributes=(INDEXED,),
    infer=_set_at_infer,
    layout_rule=lambda eqn: LayoutRule(),
    gradient=no_gradient,
    flops=no_flops,
    storage="reduced",
    traits=frozenset({"indexes", "scatter", "in_place"}),
    evaluate=_set_at,
    numpy=lambda code: f"set_at({code.args[0]}, {code.args[1]}, {_indices_text(code)})",
    jax=lambda code: f"set_part({code.args[0]}, {code.args[1]}, {_indices_text(code)})",
    doc="A tensor with other elements where indices into one dimension point, each at one place; only these are written.",
)


# top_k


def _top_k_infer(types: Sequence[TensorType], attributes: Attrs) -> tuple[TensorType, TensorType]:
    """Return the types of the largest values and of their indices: the dimension has the size k."""
    (type,) = types
    dim, k = INDEXED.of(attributes), MOST.of(attributes)
    need(type, dim)
    check_dtypes(types, NUMBERS)
    if k.size > dim.size:
        raise OpError(f"`{k.name}` (size {k.size}) asks for more than `{dim.name}` has (size {dim.size})")
    (values,) = replaced(type, {dim: k})
    return values, values.with_dtype("i32")


def _top_k_rule(eqn: Equation) -> LayoutRule:
    return LayoutRule(index={INDEXED.of(eqn.attrs).name: None}, whole=frozenset({MOST.of(eqn.attrs).name}))


def _top_k_gradient(b: OpBuilder, e: Equation, g: Sequence[Value]) -> tuple[Value]:
    """The cotangent of each value goes to the element that it was taken from."""
    x, indices = e.operands[0].type, e.results[1]
    updates = b.ordered(g[0], indices.type.dims)
    return (b("scatter_add", updates, indices, dim=e.attrs["dim"], dims=x.dims),)


def _distribute_top_k(b: BlockRewriter, eqn: Equation) -> tuple[Value, Value] | None:
    """Take the k best of the shards' k best. Among equals, elements of earlier shards come first: their indices are lower."""
    build, split, k = b.build, b.split(eqn, INDEXED.of(eqn.attrs)), MOST.of(eqn.attrs)
    if split is None or k.size >= split.inner.size:
        return None
    best = b.part(split.dim, k.size)
    x, names = b.cut(eqn.operands[0], split), ("values", "indices")
    values, places = build.several("top_k", x, names=names, dim=split.inner, k=best)
    candidates = b.new_dim(f"{split.dim.name}.best", split.blocks.size * k.size, split.axes)
    indices = b.merged(build("add", places, b.first(split)), split.blocks, best, candidates)
    values = b.merged(values, split.blocks, best, candidates)
    values, places = build.several("top_k", values, names=names, dim=candidates, k=k)
    return values, build("gather", indices, places, dim=candidates)


def _top_k(shard: Shard, x: Any) -> tuple[Any, Any]:
    """Sort stably from the largest to the smallest: NumPy has only ascending sorts, so reverse the array before and after.

    NumPy sorts NaN in bf16 wrongly, so 16-bit numbers are widened.
    """
    np, eqn = shard.np, shard.eqn
    axis = eqn.operands[0].type.names.index(INDEXED.of(eqn.attrs).name)
    wide = x.astype(np.float32) if x.dtype.itemsize == 2 else x
    order = np.flip(np.argsort(np.flip(wide, axis), axis, kind="stable"), axis)
    indices = (x.shape[axis] - 1 - order).take(range(MOST.of(eqn.attrs).size), axis)
    return np.take_along_axis(x, indices, axis), indices.astype(np.int32)


def _top_k_text(code: Code) -> str:
    return f"top_k({code.args[0]}, {MOST.of(code.eqn.attrs).size}, axis={code.axis(0, INDEXED.of(code.eqn.attrs).name)})"


TOP_K = OpDef(
    name="top_k",
    arity=(1,),
    attributes=(INDEXED, MOST),
    infer=_top_k_infer,
    layout_rule=_top_k_rule,
    distribute=_distribute_top_k,
    gradient=_top_k_gradient,
    flops=flops_per_operand,
    storage="kernel",
    traits=frozenset({"chosen"}),
    evaluate=_top_k,
    numpy=_top_k_text,
    doc="The k largest elements along a dimension and their indices, the largest first, the lowest index first among equals.",
)

OPS = (GATHER, SCATTER_ADD, ADD_AT, SET_AT, TOP_K)
