"""Reductions: `over` names the dimensions reduced away (paper, section 6).

A split dimension is reduced on each processor first; what is left is a reduction pending over its axes. `prod` and `argmax` have
no such collective and need their dimensions whole.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from mtfc.compiler.ir.core import Equation, Value
from mtfc.compiler.ir.opdef import (
    Attrs,
    Code,
    Gradient,
    LayoutRule,
    OpDef,
    OpError,
    Shard,
    flops_per_operand,
    linear_in_first,
    no_gradient,
    not_linear,
)
from mtfc.compiler.ir.ops.componentwise import BOOL, NUMBERS, check_dtypes, dims_text
from mtfc.compiler.ir.place import place_by_layout
from mtfc.compiler.ir.types import FLOATS, Dim, TensorType


def over(eqn: Equation) -> tuple[Dim, ...]:
    return eqn.attrs["over"]  # type: ignore[return-value]


def remaining(type: TensorType, attributes: Attrs) -> tuple[Dim, ...]:
    """The dims of `type` that the reduction keeps. Raises `OpError` for a dim that it lacks."""
    gone: tuple[Dim, ...] = attributes["over"]  # type: ignore[assignment]
    for dim in gone:
        if dim not in type.dims:
            raise OpError(
                f"cannot reduce over `{dim.name}`: the operand has dimensions {dims_text(type.dims)}"
            )
    return tuple(dim for dim in type.dims if dim not in gone)


def _infer(accepted: frozenset[str]) -> Callable[[Sequence[TensorType], Attrs], tuple[TensorType]]:
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


def _evaluate(function: str) -> Callable[..., Any]:
    def evaluate(shard: Shard, x: Any) -> Any:
        return getattr(shard.np, function)(x, axis=_positions(shard)).astype(x.dtype)

    return evaluate


def axes_text(code: Code) -> str:
    """The reduced array axes as text: `-1` or `(-2, -1)`."""
    numbers = sorted(code.axis(0, dim.name) for dim in over(code.eqn))
    return str(numbers[0]) if len(numbers) == 1 else str(tuple(numbers))


def _text(module: str, function: str, keeps_dtype: bool) -> Callable[[Code], str]:
    """NumPy sums small integers in 64 bits unless told otherwise; JAX keeps the dtype."""

    def text(code: Code) -> str:
        dtype = "" if keeps_dtype else f", dtype={code.dtype}"
        return f"{module}.{function}({code.args[0]}, axis={axes_text(code)}{dtype})"

    return text


def reduction(
    name: str,
    rule: Callable[[Equation], LayoutRule],
    gradient: Gradient,
    doc: str,
    accepted: frozenset[str] = NUMBERS,
    linear: Callable[[Equation], tuple[tuple[int, ...], ...]] = not_linear,
) -> OpDef:
    return OpDef(
        name=name,
        infer=_infer(accepted),
        place=place_by_layout,
        layout_rule=rule,
        linear=linear,
        gradient=gradient,
        flops=flops_per_operand,
        evaluate=_evaluate(name),
        numpy=_text("np", name, keeps_dtype=name not in ("sum", "prod")),
        jax=_text("jnp", name, keeps_dtype=True),
        doc=doc,
    )


def _sum_gradient(b: Any, e: Equation, g: Sequence[Value]) -> tuple[Value]:
    return (b.broadcast(g[0], e.operands[0].type),)


def _extremum_gradient(b: Any, e: Equation, g: Sequence[Value]) -> tuple[Value]:
    """The cotangent shared equally by all elements that attain the extremum."""
    x = e.operands[0]
    hit = b("eq", x, e.result)
    count = b("sum", b.cast(hit, x.type.dtype), over=over(e))
    return (b("mask", hit, b("div", g[0], count)),)


def _prod_gradient(b: Any, e: Equation, g: Sequence[Value]) -> tuple[Value]:
    """The product of the others: exact also where one element is 0, or several are."""
    x, gone = e.operands[0], over(e)
    zero = b("eq", x, b.like(0, x))
    filled = b("where", zero, b.like(1, x), x)
    product = b("prod", filled, over=gone)
    zeros = b("sum", b.cast(zero, x.type.dtype), over=gone)
    others = b("sub", zeros, b.cast(zero, x.type.dtype))
    alone = b("eq", others, b.like(0, x))
    return (b("mask", alone, b("mul", g[0], b("div", product, filled))),)


def _argmax_infer(types: Sequence[TensorType], attributes: Attrs) -> tuple[TensorType]:
    check_dtypes(types, NUMBERS)
    return (TensorType("i32", remaining(types[0], attributes)),)


def _argmax(shard: Shard, x: Any) -> Any:
    return shard.np.argmax(x, axis=_positions(shard)[0]).astype(shard.np.int32)


def _argmax_text(module: str) -> Callable[[Code], str]:
    return lambda code: f"{module}.argmax({code.args[0]}, axis={axes_text(code)}).astype({module}.int32)"


ARGMAX = OpDef(
    name="argmax",
    infer=_argmax_infer,
    place=place_by_layout,
    layout_rule=needs_whole,
    linear=not_linear,
    gradient=no_gradient,
    flops=flops_per_operand,
    evaluate=_argmax,
    numpy=_argmax_text("np"),
    jax=_argmax_text("jnp"),
    doc="Index of the largest element along one dimension, the lowest among equals.",
)

OPS = (
    reduction("sum", _partial("sum"), _sum_gradient, "Sum over dimensions.", linear=linear_in_first),
    reduction("max", _partial("max"), _extremum_gradient, "Largest element; equals share the gradient."),
    reduction("min", _partial("min"), _extremum_gradient, "Smallest element; equals share the gradient."),
    reduction("prod", needs_whole, _prod_gradient, "Product over dimensions.", FLOATS),
    reduction("any", _partial("max"), no_gradient, "Whether any element holds.", BOOL),
    reduction("all", _partial("min"), no_gradient, "Whether all elements hold.", BOOL),
    ARGMAX,
)
