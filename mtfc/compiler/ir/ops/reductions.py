"""Reductions, whose attribute `over` names the dimensions reduced away (Mesh-TensorFlow paper, section 6); and `cumsum`.

Each processor reduces its shard of a split dimension; a reduction over the dimension's axes stays pending. No collective
completes `prod` and `cumsum`: the shards' products, or sums, are gathered. `argmax` takes two reductions: the largest element,
then the lowest index at which it stands. So does `is_argmax`.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from mtfc.compiler.ir.attributes import DIM, DIM_SET, DIMS, FLAG, Attribute, Kind
from mtfc.compiler.ir.core import Equation, Value
from mtfc.compiler.ir.opdef import (
    Attrs,
    BlockRewriter,
    Code,
    Gradient,
    LayoutRule,
    OpBuilder,
    OpDef,
    OpError,
    Shard,
    flops_per_operand,
    linear_in_first,
    no_gradient,
)
from mtfc.compiler.ir.ops.elementwise import BOOL, NUMBERS, check_dtypes, dims_text
from mtfc.compiler.ir.types import FLOATS, ITEM_BYTES, Dim, TensorType

OVER = Attribute("over", DIM_SET)
OVER_IN_ORDER = Attribute("over", DIMS)
"""The dimensions of a reduction that prefers the first among equals, in the order in which `over` names dimensions."""
OVER_ONE: Attribute[tuple[Dim, ...]] = Attribute(
    "over",
    Kind(
        "a tuple of one dimension",
        lambda value: isinstance(value, tuple) and len(value) == 1 and DIMS.accepts(value),
    ),
)
DIM_SUMMED = Attribute("dim", DIM)
EXCLUSIVE = Attribute("exclusive", FLAG)
REVERSE = Attribute("reverse", FLAG)


def over(eqn: Equation) -> tuple[Dim, ...]:
    return OVER.of(eqn.attrs)


def remaining(type: TensorType, attributes: Attrs) -> tuple[Dim, ...]:
    """Return the dims of `type` that the reduction keeps. Raise `OpError` for a dim that `type` lacks."""
    gone = OVER.of(attributes)
    for dim in gone:
        if dim not in type.dims:
            raise OpError(
                f"cannot reduce over `{dim.name}`: the operand has dimensions {dims_text(type.dims)}"
            )
    return tuple(dim for dim in type.dims if dim not in gone)


def _infer(accepted: frozenset[str]) -> Callable[[Sequence[TensorType], Attrs], tuple[TensorType]]:
    """Make the type rule of a reduction. accepted: the dtypes of the operand."""

    def infer(types: Sequence[TensorType], attributes: Attrs) -> tuple[TensorType]:
        return (TensorType(check_dtypes(types, accepted), remaining(types[0], attributes)),)

    return infer


def _partial(reduction: str) -> Callable[[Equation], LayoutRule]:
    return lambda eqn: LayoutRule(reduced=over(eqn), reduction=reduction)


def needs_whole(eqn: Equation) -> LayoutRule:
    return LayoutRule(index={dim.name: None for dim in over(eqn)})


def _positions(shard: Shard) -> tuple[int, ...]:
    names = shard.eqn.operands[0].type.names
    return tuple(names.index(dim.name) for dim in over(shard.eqn))


ACCUMULATING = ("sum", "prod")
"""Reductions with an intermediate result, which has 32 bits for 16-bit numbers."""


def _evaluate(function: str) -> Callable[..., Any]:
    """Make the evaluation of a reduction from the name of a function of NumPy."""

    def evaluate(shard: Shard, x: Any) -> Any:
        """Reduce over the positions. Without any, x is the result: NumPy would add 0.0 to it."""
        if not _positions(shard):
            return x
        wide = x.astype(shard.np.float32) if function in ACCUMULATING and x.dtype.itemsize == 2 else x
        return getattr(shard.np, function)(wide, axis=_positions(shard)).astype(x.dtype)

    return evaluate


def axes_text(code: Code) -> str:
    """Return the reduced array axes as text: `-1` or `(-2, -1)`."""
    numbers = sorted(code.axis(0, dim.name) for dim in over(code.eqn))
    return str(numbers[0]) if len(numbers) == 1 else str(tuple(numbers))


def _numpy_text(function: str) -> Callable[[Code], str]:
    """Return a writer of NumPy's reduction `function`, with the dtype of sums.

    By default NumPy sums 32-bit integers in 64 bits, and 16-bit floats in 16.
    """

    def text(code: Code) -> str:
        """Return the call of NumPy; sums and products of 16-bit numbers are computed in 32 bits."""
        call = f"np.{function}({code.args[0]}, axis={axes_text(code)}"
        if function not in ACCUMULATING:
            return f"{call})"
        narrow = ITEM_BYTES[code.eqn.result.type.dtype] == 2
        return f"{call}, dtype=np.float32).astype({code.dtype})" if narrow else f"{call}, dtype={code.dtype})"

    return text


def _jax_text(function: str) -> Callable[[Code], str]:
    """Pass the dtype of integer sums: JAX sums integers in 64 bits where they are enabled. It sums 16-bit floats in 32 bits."""

    def text(code: Code) -> str:
        """Return the call of JAX; sums and products of whole numbers keep their dtype."""
        whole = function in ACCUMULATING and code.eqn.result.type.dtype not in FLOATS
        dtype = f", dtype={code.dtype}" if whole else ""
        axis = f", axis={axes_text(code)}" if code.eqn.result.type.dims else ""
        return f"jnp.{function}({code.args[0]}{axis}{dtype})"

    return text


of_one = partial(OpDef, arity=(1,), gradient=no_gradient, flops=flops_per_operand, storage="reduced")
"""Makes an op that reads its one operand, where its own columns do not say otherwise."""


def reduction(
    name: str,
    accepted: frozenset[str] = NUMBERS,
    attribute: Attribute[tuple[Dim, ...]] = OVER,
    **columns: Any,
) -> OpDef:
    """Return the op of the NumPy function `name`, for operands of the accepted dtypes."""
    return of_one(
        name=name,
        attributes=(attribute,),
        infer=_infer(accepted),
        evaluate=_evaluate(name),
        numpy=_numpy_text(name),
        jax=_jax_text(name),
        **columns,
    )


def _extremum_gradient(sought: Callable[[OpBuilder, Value], Value]) -> Gradient:
    """Give the cotangent to the first element that attains the extremum.

    `is_argmax` finds that element. A comparison with the extremum may find none: XLA may compute the operand once for the
    extremum and once for the comparison, and round the two differently.
    """

    def gradient(b: OpBuilder, e: Equation, g: Sequence[Value]) -> tuple[Value]:
        return (b("mask", b("is_argmax", sought(b, e.operands[0]), over=over(e)), g[0]),)

    return gradient


def _jax_extremum(function: str) -> Callable[[Code], str]:
    """`largest(x, axes=(-1,))`, a function of the prelude, whose derivative goes to the first of equals."""

    def text(code: Code) -> str:
        axes = tuple(code.axis(0, dim.name) for dim in over(code.eqn))
        return f"{function}({code.args[0]}, axes={axes})"

    return text


def _prod_gradient(b: OpBuilder, e: Equation, g: Sequence[Value]) -> tuple[Value]:
    """The derivative is the product of the other elements. It is exact also where elements are 0."""
    x, gone = e.operands[0], over(e)
    zero = b("eq", x, b.like(0, x))
    filled = b("where", zero, b.like(1, x), x)
    product = b("prod", filled, over=gone)
    zeros = b("sum", b.cast(zero, x.type.dtype), over=gone)
    others = b("sub", zeros, b.cast(zero, x.type.dtype))
    alone = b("eq", others, b.like(0, x))
    return (b("mask", alone, b("mul", g[0], b("div", product, filled))),)


def _distribute_prod(b: BlockRewriter, eqn: Equation) -> tuple[Value] | None:
    """Multiply the shards' products."""
    splits = [split for dim in over(eqn) if (split := b.split(eqn, dim))]
    if not splits:
        return None
    x, inner = eqn.operands[0], list(over(eqn))
    for split in splits:
        x = b.cut(x, split)
        inner[inner.index(split.dim)] = split.inner
    parts = b.build("prod", x, over=tuple(inner))
    return (b.build("prod", parts, over=tuple(split.blocks for split in splits)),)


def _argmax_infer(types: Sequence[TensorType], attributes: Attrs) -> tuple[TensorType]:
    check_dtypes(types, NUMBERS)
    return (TensorType("i32", remaining(types[0], attributes)),)


def _argmax(shard: Shard, x: Any) -> Any:
    return shard.np.argmax(x, axis=_positions(shard)[0]).astype(shard.np.int32)


def _distribute_argmax(b: BlockRewriter, eqn: Equation) -> tuple[Value] | None:
    """Take the lowest index of the shards' largest elements that are the largest of all, or not a number."""
    build, (dim,) = b.build, over(eqn)
    split = b.split(eqn, dim)
    if split is None:
        return None
    x = b.cut(eqn.operands[0], split)
    largest = build("max", x, over=(split.inner,))
    place = build("add", build("argmax", x, over=(split.inner,)), b.first(split))
    hit = build("eq", largest, build("max", largest, over=(split.blocks,)))
    if largest.type.dtype in FLOATS:
        hit = build("or", hit, build("ne", largest, largest))
    return (build("min", build("where", hit, place, build.constant(dim.size, "i32")), over=(split.blocks,)),)


ARGMAX = of_one(
    name="argmax",
    attributes=(OVER_ONE,),
    infer=_argmax_infer,
    layout_rule=needs_whole,
    distribute=_distribute_argmax,
    evaluate=_argmax,
    numpy=lambda code: f"np.argmax({code.args[0]}, axis={axes_text(code)}).astype(np.int32)",
    doc="Index of the largest element along one dimension, the lowest among equals.",
)


def _is_argmax_infer(types: Sequence[TensorType], attributes: Attrs) -> tuple[TensorType]:
    """Return the type of `is_argmax`: truth values with the dims of its operand.

    `remaining` refuses dims that the operand lacks.
    """
    check_dtypes(types, NUMBERS)
    remaining(types[0], attributes)
    return (TensorType("bool", types[0].dims),)


def _is_argmax(shard: Shard, x: Any) -> Any:
    """Return True at the first largest element, in row-major order of the reduced dims, which are flattened to one axis."""
    np, positions = shard.np, _positions(shard)
    parts = np.moveaxis(x, positions, range(len(positions)))
    flat = parts.reshape(-1, *parts.shape[len(positions) :])
    found = np.argmax(flat, axis=0) == np.arange(len(flat)).reshape(-1, *[1] * (flat.ndim - 1))
    return np.moveaxis(found.reshape(parts.shape), range(len(positions)), positions)


def _is_argmax_rule(eqn: Equation) -> LayoutRule:
    return LayoutRule(index={dim.name: None for dim in over(eqn)}, whole=frozenset(d.name for d in over(eqn)))


def _distribute_is_argmax(b: BlockRewriter, eqn: Equation) -> tuple[Value] | None:
    """Mark one dimension after the other. Along a split one, mark the first place in the first shard with the largest element."""
    build, gone, x = b.build, over(eqn), eqn.operands[0]
    if not any(b.split(eqn, dim) for dim in gone):
        return None
    hits = []
    for i, dim in enumerate(gone):
        largest = build("max", x, over=gone[i + 1 :]) if gone[i + 1 :] else x
        split = b.split(eqn, dim)
        if split is None:
            hits.append(build("is_argmax", largest, over=(dim,)))
        else:
            parts = b.cut(largest, split)
            inside = build("is_argmax", parts, over=(split.inner,))
            shard = build("is_argmax", build("max", parts, over=(split.inner,)), over=(split.blocks,))
            hit = build("and", inside, build.broadcast(shard, inside.type))
            hits.append(b.merged(hit, split.blocks, split.inner, dim))
    found = hits[-1]
    for hit in hits[:-1]:
        found = build("and", found, build.broadcast(hit, found.type))
    return (found,)


def _is_argmax_text(code: Code) -> str:
    axes = tuple(code.axis(0, dim.name) for dim in over(code.eqn))
    return f"is_argmax({code.args[0]}, axes={axes})"


IS_ARGMAX = of_one(
    name="is_argmax",
    attributes=(OVER_IN_ORDER,),
    infer=_is_argmax_infer,
    layout_rule=_is_argmax_rule,
    distribute=_distribute_is_argmax,
    traits=frozenset({"is_argmax"}),
    evaluate=_is_argmax,
    numpy=_is_argmax_text,
    doc="True at the largest element over dimensions: the first among equals, in the order in which `over` names dimensions.",
)


def _cumsum_infer(types: Sequence[TensorType], attributes: Attrs) -> tuple[TensorType]:
    """Return the type of the operand, which must have the dimension."""
    (type,), dim = types, DIM_SUMMED.of(attributes)
    check_dtypes(types, NUMBERS)
    if dim not in type.dims:
        raise OpError(f"cannot sum along `{dim.name}`: the operand has dimensions {dims_text(type.dims)}")
    return (type,)


def _cumsum_rule(eqn: Equation) -> LayoutRule:
    name = DIM_SUMMED.of(eqn.attrs).name
    return LayoutRule(index={name: None}, whole=frozenset({name}))


def _cumsum_gradient(b: OpBuilder, e: Equation, g: Sequence[Value]) -> tuple[Value]:
    """An element adds to the sums behind it, so it takes their cotangents."""
    return (
        b(
            "cumsum",
            g[0],
            dim=e.attrs["dim"],
            exclusive=e.attrs["exclusive"],
            reverse=not e.attrs["reverse"],
        ),
    )


def _distribute_cumsum(b: BlockRewriter, eqn: Equation) -> tuple[Value] | None:
    """Add the total of the shards before to the sums within each shard. Sum 16-bit numbers in 32 bits."""
    build, split = b.build, b.split(eqn, DIM_SUMMED.of(eqn.attrs))
    if split is None:
        return None
    dtype = eqn.result.type.dtype
    x = build.cast(b.cut(eqn.operands[0], split), "f32" if ITEM_BYTES[dtype] == 2 else dtype)
    attributes: dict[str, Any] = {**eqn.attrs, "dim": split.inner}
    inner = build("cumsum", x, **attributes)
    totals = build("sum", x, over=(split.inner,))
    before = build("cumsum", totals, dim=split.blocks, exclusive=True, reverse=eqn.attrs["reverse"])
    sums = build.cast(build("add", inner, before), dtype)
    return (b.merged(sums, split.blocks, split.inner, split.dim),)


def _cumsum(shard: Shard, x: Any) -> Any:
    """Sum 16-bit numbers in 32 bits."""
    np, attributes = shard.np, shard.eqn.attrs
    axis = shard.eqn.operands[0].type.names.index(DIM_SUMMED.of(attributes).name)
    along = np.moveaxis(x, axis, 0)
    along = along[::-1] if attributes["reverse"] else along
    sums = np.cumsum(along, axis=0, dtype=np.float32 if x.dtype.itemsize == 2 else x.dtype)
    if attributes["exclusive"]:
        sums = np.concatenate([np.zeros_like(sums[:1]), sums[:-1]])
    return np.moveaxis(sums[::-1] if attributes["reverse"] else sums, 0, axis).astype(x.dtype)


def _cumsum_text(code: Code) -> str:
    options = "".join(f", {key}=True" for key in ("exclusive", "reverse") if code.eqn.attrs[key])
    return f"cumsum({code.args[0]}, axis={code.axis(0, DIM_SUMMED.of(code.eqn.attrs).name)}{options})"


CUMSUM = of_one(
    name="cumsum",
    attributes=(DIM_SUMMED, EXCLUSIVE, REVERSE),
    infer=_cumsum_infer,
    layout_rule=_cumsum_rule,
    distribute=_distribute_cumsum,
    linear=linear_in_first,
    gradient=_cumsum_gradient,
    storage="kernel",
    evaluate=_cumsum,
    numpy=_cumsum_text,
    doc="Sums of the elements up to each one along a dimension, without it where `exclusive`, from the end where `reverse`.",
)

OPS = (
    reduction(
        "sum",
        layout_rule=_partial("sum"),
        gradient=lambda b, e, g: (b.broadcast(g[0], e.operands[0].type),),
        linear=linear_in_first,
        traits=frozenset({"sum"}),
        doc="Sum over dimensions.",
    ),
    reduction(
        "max",
        attribute=OVER_IN_ORDER,
        layout_rule=_partial("max"),
        gradient=_extremum_gradient(lambda b, x: x),
        jax_differentiated=_jax_extremum("largest"),
        traits=frozenset({"extremum", "largest"}),
        doc="Largest element; the first among equals has the gradient.",
    ),
    reduction(
        "min",
        attribute=OVER_IN_ORDER,
        layout_rule=_partial("min"),
        gradient=_extremum_gradient(lambda b, x: b("neg", x)),
        jax_differentiated=_jax_extremum("smallest"),
        traits=frozenset({"extremum"}),
        doc="Smallest element; the first among equals has the gradient.",
    ),
    reduction(
        "prod",
        FLOATS,
        layout_rule=needs_whole,
        distribute=_distribute_prod,
        gradient=_prod_gradient,
        doc="Product over dimensions.",
    ),
    reduction("any", BOOL, layout_rule=_partial("max"), doc="True if any element is true."),
    reduction("all", BOOL, layout_rule=_partial("min"), doc="True if all elements are true."),
    ARGMAX,
    IS_ARGMAX,
    CUMSUM,
)
