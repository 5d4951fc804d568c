"""All other primitives: a call of the primitive itself, which JAX evaluates.

Elementwise primitives and those that work along one axis are mapped along the other axes, so layouts may split these. They may
also split the axes of gathers and scatters that indices do not point into (`gathers.py`), and the batches of any primitive
(`batches.py`). Without these a primitive is opaque: it gets whole operands on every processor. So no primitive is unknown, and
importing never fails for one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from hashlib import sha256
from typing import Any

from mtfc.compiler.ir.core import Value
from mtfc.compiler.ir.ops.calls import FUNCTIONS, OnShards
from mtfc.compiler.ir.types import Dim
from mtfc.frontend.jaxpr.emitting import JaxprEmitter
from mtfc.frontend.jaxpr.equations import bound
from mtfc.frontend.jaxpr.factors import axis
from mtfc.frontend.jaxpr.flat import AppliedPrimitive, Var
from mtfc.frontend.jaxpr.linking import Linker, PrimitiveRule
from mtfc.frontend.jaxpr.rules import elementwise, gathers
from mtfc.frontend.jaxpr.rules.batches import batch_axes

ELEMENTWISE = frozenset({
    "abs", "acos", "acosh", "add", "add_any", "and", "asin", "asinh", "atan", "atan2", "atanh", "bessel_i0e",
    "bessel_i1e", "cbrt", "ceil", "clamp", "clz", "complex", "conj", "convert_element_type", "copysign", "cos",
    "cosh", "digamma", "div", "eq", "eq_to", "erf", "erf_inv", "erfc", "exp", "exp2", "expm1", "floor", "ge", "gt",
    "igamma", "igamma_grad_a", "igammac", "imag", "integer_pow", "is_finite", "le", "le_to", "lgamma", "log", "log1p",
    "logistic", "lt", "lt_to", "max", "min", "mul", "ne", "neg", "nextafter", "not", "or", "polygamma",
    "population_count", "pow", "random_gamma_grad", "real", "reduce_precision", "regularized_incomplete_beta",
    "rem", "round", "rsqrt", "select_n", "shift_left", "shift_right_arithmetic", "shift_right_logical", "sign",
    "sin", "sinh", "sqrt", "square", "sub", "tan", "tanh", "xor", "zeta",
})  # fmt: skip

ALONG = {
    **dict.fromkeys(("cumsum", "cumprod", "cummax", "cummin", "cumlogsumexp"), "axis"),
    "sort": "dimension",
    "argmax": "axes",
    "argmin": "axes",
    "rev": "dimensions",
    **dict.fromkeys(
        ("reduce_sum", "reduce_max", "reduce_min", "reduce_prod", "reduce_and", "reduce_or", "reduce_xor"),
        "axes",
    ),
}
"""Primitive that works along some axes, alike for all others -> the parameter that has the axes."""

REDUCING = frozenset({"argmax", "argmin"}) | {name for name in ALONG if name.startswith("reduce_")}


def _is_elementwise(step: AppliedPrimitive) -> bool:
    """Accept also casts of bits between dtypes of one size. Random keys have no single elements."""
    if step.has_keys:
        return False
    return step.primitive in ELEMENTWISE or (
        step.primitive == "bitcast_convert_type" and step.operands[0].shape == step.results[0].shape
    )


def _along(step: AppliedPrimitive) -> tuple[int, ...]:
    rank = len(step.operands[0].shape)
    found = step.params[ALONG[step.primitive]]
    return tuple(j % rank for j in (found if isinstance(found, tuple | list) else (found,)))


def link(linker: Linker, step: AppliedPrimitive) -> None:
    if _is_elementwise(step):
        elementwise.link(linker, step)
    elif step.primitive in ALONG and all(x.shape == step.operands[0].shape for x in step.operands):
        _link_along(linker, step)
    elif shared := gathers.shared_axes(step):
        gathers.link(linker, step, shared)
    else:
        batch = step.operands[0].axes[: batch_axes(step)] if step.operands else ()
        for i, operand in enumerate(step.operands):
            if batch:
                linker.fit(step, i, (*batch, *[None] * (len(operand.shape) - len(batch))))
        for result in step.results:
            linker.give(result, (*batch, *map(axis, result.shape[len(batch) :])))


def _link_along(linker: Linker, step: AppliedPrimitive) -> None:
    """Keep the mapped axes. The others are new in the results, but for axes whose elements only change places."""
    own, first = _along(step), step.operands[0]
    for i in range(1, len(step.operands)):
        linker.fit(step, i, first.axes)
    for result in step.results:
        if step.primitive in REDUCING:
            linker.give(result, tuple(a for j, a in enumerate(first.axes) if j not in own))
        else:
            linker.give(result, first.axes)


def emit(emitter: JaxprEmitter, step: AppliedPrimitive) -> Sequence[Value]:
    if _is_elementwise(step):
        return _emit_elementwise(emitter, step)
    if step.primitive in ALONG and all(x.shape == step.operands[0].shape for x in step.operands):
        return _emit_along(emitter, step)
    if shared := gathers.shared_axes(step):
        values, mapped, rest, on_shards = gathers.operands(emitter, step, shared)
        return add_call(emitter, step, on_shards, values, mapped, [rest])
    number = batch_axes(step)
    operands = [emitter.operand(step, i) for i in range(len(step.operands))]
    whole = [emitter.whole(value, step.axes(i)) for i, value in enumerate(operands)]
    shapes = [x.shape[number:] for x in step.operands]
    results = [emitter.dims.of(f for each in var.axes[number:] for f in each) for var in step.results]
    mapped = emitter.dims.of(f for each in step.results[0].axes[:number] for f in each)
    if not mapped:
        emitter.calls.append(step)
    return add_call(emitter, step, partial(_bound, step, shapes), whole, mapped, results)


def _emit_elementwise(emitter: JaxprEmitter, step: AppliedPrimitive) -> Sequence[Value]:
    values = elementwise.operands(emitter, step)
    dims = tuple(dict.fromkeys(dim for value in values for dim in value.type.dims))
    ordered = [emitter.build.ordered(v, [d for d in dims if d in v.type.dims]) for v in values]
    return add_call(
        emitter, step, partial(_bound, step, [()] * len(values)), ordered, dims, [()] * len(step.results)
    )


def _emit_along(emitter: JaxprEmitter, step: AppliedPrimitive) -> Sequence[Value]:
    """Call the primitive on arrays that have only the axes along which it works."""
    own, first = _along(step), step.operands[0]
    axes = first.axes
    core = [emitter.dims.of(axes[j]) for j in own]
    flat = tuple(dim for dims in core for dim in dims)
    values = []
    for i in range(len(step.operands)):
        value = emitter.operand(step, i)
        values.append(emitter.with_dims(value, (*(d for d in value.type.dims if d not in flat), *flat)))
    mapped = tuple(dict.fromkeys(d for value in values for d in value.type.dims if d not in flat))
    values = [emitter.build.ordered(v, (*(d for d in mapped if d in v.type.dims), *flat)) for v in values]
    shape = tuple(first.shape[j] for j in own)
    params = {**step.params, ALONG[step.primitive]: _renumbered(step, len(own))}
    results: list[tuple[Dim, ...]] = [() if step.primitive in REDUCING else flat] * len(step.results)
    function = partial(_bound, step, [shape] * len(values), params=params)
    return add_call(emitter, step, function, values, mapped, results, params)


def _renumbered(step: AppliedPrimitive, number: int) -> Any:
    found = step.params[ALONG[step.primitive]]
    return tuple(range(number)) if isinstance(found, tuple | list) else 0


def _bound(
    step: AppliedPrimitive, shapes: Sequence[tuple[int, ...]], *arrays: Any, params: Any = None
) -> list[Any]:
    """Apply a primitive to arrays, each reshaped to the shape that the user's program has."""
    import jax

    given = []
    for x, operand, shape in zip(arrays, step.operands, shapes, strict=True):
        y = x.reshape(shape)
        if isinstance(operand, Var) and operand.key is not None:
            y = jax.random.wrap_key_data(y, impl=operand.key)
        given.append(y)
    results = bound(step.bind, given, step.params if params is None else params)
    return [
        jax.random.key_data(y) if var.key is not None else y
        for y, var in zip(results, step.results, strict=True)
    ]


def add_call(
    emitter: JaxprEmitter,
    step: AppliedPrimitive,
    function: Callable[..., list[Any]],
    operands: Sequence[Value],
    mapped: tuple[Dim, ...],
    results: Sequence[tuple[Dim, ...]],
    params: Any = None,
) -> Sequence[Value]:
    """Append a call. Results get their own shapes, which have one axis for each dimension.

    An operand has each mapped dimension, so that it is split where the results are.
    """
    operands = _with_mapped(emitter, operands, mapped)
    name = _name(step, operands, results, params)
    sizes = [tuple(dim.size for dim in dims) for dims in results]
    is_whole = isinstance(function, OnShards)
    FUNCTIONS[name] = function if is_whole else partial(_shaped, function, sizes)
    return emitter.build.several(
        "call",
        *operands,
        names=tuple(_identifier(step.primitive) for _ in results),
        function=name,
        mapped=mapped,
        results=tuple(dim for dims in results for dim in dims),
        ranks=" ".join(str(len(dims)) for dims in results),
        dtypes=" ".join(var.dtype for var in step.results),
    )


def _with_mapped(
    emitter: JaxprEmitter, operands: Sequence[Value], mapped: tuple[Dim, ...]
) -> Sequence[Value]:
    """Repeat the first operand along the mapped dimensions that no operand has."""
    missing = [dim for dim in mapped if all(dim not in value.type.dims for value in operands)]
    if not missing or not operands:
        return operands
    first, *others = operands
    own = [dim for dim in mapped if dim in missing or dim in first.type.dims]
    return [emitter.with_dims(first, (*own, *(dim for dim in first.type.dims if dim not in own))), *others]


def _shaped(function: Callable[..., list[Any]], sizes: Sequence[tuple[int, ...]], *arrays: Any) -> list[Any]:
    return [x.reshape(size) for x, size in zip(function(*arrays), sizes, strict=True)]


def _identifier(name: str) -> str:
    return name.replace("-", "_")


def _name(
    step: AppliedPrimitive, operands: Sequence[Value], results: Sequence[tuple[Dim, ...]], params: Any
) -> str:
    """Return a name that equal calls share: primitive, parameters, shapes, and the dimensions of operands and results."""
    shapes = [(x.shape, x.dtype) for x in (*step.operands, *step.results)]
    dims = ([v.type.dims for v in operands], results)
    text = repr((step.params if params is None else params, shapes, dims))
    return f"{_identifier(step.primitive)}_{sha256(text.encode()).hexdigest()[:10]}"


OTHER = PrimitiveRule(link, emit)
