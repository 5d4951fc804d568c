"""All other primitives: a call of the primitive itself, which JAX evaluates.

Elementwise primitives and those that work along one axis are mapped along the other axes, so layouts may split these. They may
also split the axes of gathers and scatters that indices do not point into (`indexing.py`), and the batches of any primitive:
leading axes along which it does the same for each element. Without these a primitive is opaque: it gets whole operands on every
processor. So no primitive is unknown, and importing never fails for one.
"""

from collections.abc import Callable, Sequence
from functools import partial
from hashlib import sha256
from math import log2, prod
from typing import Any, Literal

import attrs

from mtfc.compiler.ir.core import Value
from mtfc.compiler.ir.ops.calls import FUNCTIONS, OnShards
from mtfc.compiler.ir.types import ARRAY_DTYPES, Dim
from mtfc.frontend.jaxpr.expansions import bound
from mtfc.frontend.jaxpr.factors import axis
from mtfc.frontend.jaxpr.flat import AppliedPrimitive, Operand, Var
from mtfc.frontend.jaxpr.primitive_rules import JaxprEmitter, Linker, PrimitiveRule
from mtfc.frontend.jaxpr.rules import elementwise, indexing
from mtfc.frontend.jaxpr.rules.indexing import SharedAxis
from mtfc.frontend.jaxpr.rules.reductions import windows_of

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


@attrs.frozen
class Along:
    """A primitive that works along some axes, alike for all others.

    axes: the parameter that has these axes, or the sizes of windows along all axes. result: tells if results have the same axes
    in their places, new ones, or none. is_sort: True if it sorts.
    """

    axes: str
    result: Literal["same", "new", "none"] = "same"
    is_sort: bool = False


ALONG = {
    **dict.fromkeys(("cumsum", "cumprod", "cummax", "cummin", "cumlogsumexp"), Along("axis")),
    "sort": Along("dimension", is_sort=True),
    "reduce": Along("dimensions", "none"),
    "top_k": Along("axis", "new", is_sort=True),
    "approx_top_k": Along("reduction_dimension", "new", is_sort=True),
    **dict.fromkeys(
        ("argmax", "argmin", "reduce_sum", "reduce_max", "reduce_min", "reduce_prod", "reduce_and", "reduce_or",
         "reduce_xor"),
        Along("axes", "none"),
    ),
    **dict.fromkeys(
        ("reduce_window", "reduce_window_max", "reduce_window_min", "reduce_window_sum", "select_and_gather_add"),
        Along("window_dimensions", "new"),
    ),
}  # fmt: skip

MATRIX = {
    "cholesky": 1 / 3,
    "lu": 2 / 3,
    "qr": 8 / 3,
    "geqrf": 4 / 3,
    "geqp3": 4 / 3,
    "householder_product": 4 / 3,
    "tridiagonal": 8 / 3,
    "hessenberg": 10 / 3,
    "eigh": 9,
    "svd": 22,
    "eig": 25,
    "schur": 25,
}
"""Decomposition of an m x n matrix -> its FLOPs over m n min(m, n)."""


def _is_elementwise(step: AppliedPrimitive) -> bool:
    """Accept also casts of bits between dtypes of one size. Random keys have no single elements."""
    if step.has_keys:
        return False
    return step.primitive in ELEMENTWISE or (
        step.primitive == "bitcast_convert_type" and step.operands[0].shape == step.results[0].shape
    )


def _along(step: AppliedPrimitive) -> tuple[int, ...]:
    """Return the axes along which a primitive works, alike for all others; none for other primitives.

    Operands behind those with all axes are numbers, such as the first values of a reduction: JAX does not map others.
    """
    shape = step.operands[0].shape if step.operands else ()
    work = ALONG.get(step.primitive)
    is_alike = all(x.shape == shape for x in step.operands if isinstance(x, Var))
    if work is None or step.has_keys or not shape or not is_alike:
        return ()
    if work.axes == "window_dimensions":
        return tuple(row[0] for row in windows_of(step)) or (0,)
    found = step.params[work.axes]
    return tuple(j % len(shape) for j in (found if isinstance(found, tuple | list) else (found,)))


def _shared(step: AppliedPrimitive) -> tuple[SharedAxis, ...]:
    """Return the axes that layouts may split."""
    if _is_elementwise(step):
        sizes, operands = enumerate(step.results[0].shape), step.operands
        return tuple(
            SharedAxis(tuple(k if x.shape[k : k + 1] == (n,) else None for x in operands), k)
            for k, n in sizes
        )
    if own := _along(step):
        kept = [k for k in range(len(step.operands[0].shape)) if k not in own]
        places = range(len(kept)) if ALONG[step.primitive].result == "none" else kept
        rows = (tuple(k if x.shape else None for x in step.operands) for k in kept)
        return tuple(map(SharedAxis, rows, places))
    batches = (SharedAxis((k,) * len(step.operands), k) for k in range(batch_axes(step)))
    return indexing.shared_axes(step) or tuple(batches)


def link(linker: Linker, step: AppliedPrimitive) -> None:
    """Link the axes that a call maps: the same axes of operands and results share factors."""
    if _is_elementwise(step):
        elementwise.link(linker, step)
    elif own := _along(step):
        _link_along(linker, step, own)
    elif shared := indexing.shared_axes(step):
        indexing.link_call(linker, step, shared)
    else:
        batch = step.operands[0].axes[: batch_axes(step)] if step.operands else ()
        for i in range(len(step.operands)):
            if batch:
                linker.fit(step, i, dict(enumerate(batch)))
        for result in step.results:
            linker.give(result, (*batch, *map(axis, result.shape[len(batch) :])))


def _link_along(linker: Linker, step: AppliedPrimitive, own: Sequence[int]) -> None:
    """Keep the mapped axes. The others are new in the results, but for axes whose elements only change places."""
    first = step.operands[0]
    for i, operand in enumerate(step.operands):
        if i and operand.shape:
            linker.fit(step, i, first.axes)
    for result in step.results:
        if ALONG[step.primitive].result == "none":
            linker.give(result, tuple(a for j, a in enumerate(first.axes) if j not in own))
        elif ALONG[step.primitive].result == "new":
            sizes = enumerate(result.shape)
            linker.give(result, tuple(axis(n) if j in own else first.axes[j] for j, n in sizes))
        else:
            linker.give(result, first.axes)


def emit(emitter: JaxprEmitter, step: AppliedPrimitive) -> Sequence[Value]:
    """Append the call of a primitive for which there is no op."""
    values, mapped, results, function = indexing.call_operands(emitter, step, _shared(step))
    keys = step.params["num_keys"] if step.primitive == "sort" else 0
    return add_call(emitter, step, function, values, mapped, results, keys)


def add_call(
    emitter: JaxprEmitter,
    step: AppliedPrimitive,
    function: Callable[..., list[Any]],
    operands: Sequence[Value],
    mapped: tuple[Dim, ...],
    results: Sequence[tuple[Dim, ...]],
    keys: int = 0,
) -> Sequence[Value]:
    """Append an equation that calls a function of JAX on shards, and return its results: see `OnShards`.

    step: the primitive that the call computes. mapped: the dimensions over which the function is mapped, which layouts may
    split; some operand has each of them. results: the dimensions of each result behind the mapped ones. keys: the first `keys`
    operands are keys of a sort.

    Layouts cannot split a call without mapped dimensions, and the emitter notes it unless its arrays have no axes.
    """
    name = _name(step, operands, results)
    dims = (
        *zip(step.operands, (x.type.dims for x in operands), strict=False),
        *zip(step.results, results, strict=True),
    )
    if not mapped and any(_has_elements(*each) for each in dims):
        emitter.calls[name] = (*emitter.calls.get(name, ()), step)
    FUNCTIONS[name] = OnShards(function, len(mapped), keys)
    return emitter.build.several(
        "call",
        *operands,
        names=tuple(_identifier(step.primitive) for _ in results),
        function=name,
        mapped=mapped,
        results=tuple(dim for dims in results for dim in dims),
        ranks=" ".join(str(len(dims)) for dims in results),
        dtypes=" ".join(var.dtype for var in step.results),
        flops=round(_all_flops(step) / prod(dim.size for dim in mapped)),
    )


def _all_flops(step: AppliedPrimitive) -> float:
    """Return the FLOPs of a call for all elements.

    Linear algebra counts the leading terms of the usual algorithms (Golub and Van Loan, Matrix Computations, 4th ed.). Any other
    primitive counts one FLOP for each element that it makes or combines.
    """
    name, work = step.primitive, ALONG.get(step.primitive)
    made: float = sum(prod(result.shape) for result in step.results)
    if not step.operands:
        return made
    first = step.operands[0].shape
    if name in MATRIX:
        return MATRIX[name] * prod(first) * min(first[-2:])
    if name == "triangular_solve":
        return prod(step.operands[1].shape) * first[-1]
    if name == "tridiagonal_solve":
        return 8 * prod(step.operands[-1].shape)
    if name == "fft":
        return 5 * made * max(1.0, log2(prod(step.params["fft_lengths"])))
    if "window_dimensions" in step.params:
        return made * float(prod(step.params["window_dimensions"]))
    if work and work.is_sort:
        return prod(first) * max(1.0, log2(max(first, default=1)))
    return max(made, prod(first)) if work and work.result == "none" else made


def _has_elements(operand: Operand, dims: Sequence[Dim]) -> bool:
    """Return False for an array that repeats a single element, and for a single key."""
    return prod(dim.size for dim in (dims if operand.key is None else dims[:-1])) > 1


def _identifier(name: str) -> str:
    return name.replace("-", "_")


def _name(step: AppliedPrimitive, operands: Sequence[Value], results: Sequence[tuple[Dim, ...]]) -> str:
    """Return a name that equal calls share: primitive, parameters, shapes, and the dimensions of operands and results."""
    shapes = [(x.shape, x.dtype) for x in (*step.operands, *step.results)]
    dims = ([v.type.dims for v in operands], results)
    text = repr((step.params, shapes, dims))
    return f"{_identifier(step.primitive)}_{sha256(text.encode()).hexdigest()[:10]}"


OTHER = PrimitiveRule(link, emit)


def batch_axes(step: AppliedPrimitive) -> int:
    """Return the number of leading axes of all operands and results that are batches."""
    from jax.extend.core import Primitive

    if step.bodies or not isinstance(step.bind, Primitive):
        return 0
    shapes, number = [_struct(x).shape for x in (*step.operands, *step.results)], 0
    for sizes in zip(*shapes, strict=False):
        if len({*sizes}) > 1 or not _is_mapped(step, number):
            break
        number += 1
    return number


def _is_mapped(step: AppliedPrimitive, number: int) -> bool:
    """Return True if `jax.vmap` makes this primitive, with its batch axes, from the same primitive with one axis less."""
    import jax

    def structs(first: int) -> list[Any]:
        struct: Any = jax.ShapeDtypeStruct
        return [struct(x.shape[first:], x.dtype) for x in map(_struct, step.operands)]

    def function(*operands: Any) -> Sequence[Any]:
        return bound(step.bind, operands, step.params)

    try:
        jax.eval_shape(function, *structs(number + 1))
        eqn = _only_equation(jax.make_jaxpr(jax.vmap(function))(*structs(number)).jaxpr)
        return eqn is not None and eqn.primitive is step.bind and dict(eqn.params) == dict(step.params)
    except Exception:  # a primitive without a batching rule, or one that asks for more axes
        return False


def _struct(operand: Operand) -> Any:
    """Return the shape and the dtype that JAX gives an array: random keys have no axis for their data."""
    import jax

    struct: Any = jax.ShapeDtypeStruct
    if operand.key is not None:
        return struct(operand.shape[:-1], jax.random.key(0, impl=operand.key).dtype)
    return struct(operand.shape, ARRAY_DTYPES[operand.dtype])


def _only_equation(jaxpr: Any) -> Any | None:
    """Return the equation of a jaxpr that applies one primitive to its arguments and returns the results; None for others."""
    if len(jaxpr.eqns) != 1:
        return None
    (eqn,) = jaxpr.eqns
    if eqn.invars != jaxpr.invars or eqn.outvars != jaxpr.outvars:
        return None
    return _only_equation(eqn.params["jaxpr"].jaxpr) if eqn.primitive.name in ("jit", "pjit") else eqn


# Random bits and new keys of JAX's default generator: each is a function of the key and of its index. So every processor draws
# its own part of an array, and all layouts draw the numbers that JAX draws.


GENERATOR = "threefry2x32"


def _is_by_index(step: AppliedPrimitive) -> bool:
    """Accept elements, or new keys, that JAX draws by index from a single key of the default generator, fewer than 2**32."""
    import jax

    (key,) = step.operands
    is_known = key.key in ("fry", GENERATOR) and key.shape == (2,)
    is_by_index = bool(jax.config.values["jax_threefry_partitionable"])
    return is_known and is_by_index and prod(step.params["shape"]) < 2**32


def _link_bits(linker: Linker, step: AppliedPrimitive) -> None:
    linker.arguments(step.results)


def _emit_bits(emitter: JaxprEmitter, step: AppliedPrimitive) -> Sequence[Value]:
    """Draw each element by its index in row-major order. New keys have two numbers each."""
    dims = emitter.dims.of_axes(step.results[0].axes)
    own: tuple[Dim, ...] = () if step.primitive == "random_bits" else dims[-1:]
    mapped = dims[: len(dims) - len(own)]
    key = emitter.whole(emitter.operand(step, 0), step.axes(0))
    function = partial(_bits, step.params["bit_width"]) if not own else _keys
    return add_call(emitter, step, function, [key, _row_major(emitter, mapped)], mapped, [own])


def _row_major(emitter: JaxprEmitter, dims: tuple[Dim, ...]) -> Value:
    """Return the index of each element in row-major order."""
    build = emitter.build
    index = build.constant(0, "u32")
    for i, dim in enumerate(dims):
        stride = build.constant(prod(d.size for d in dims[i + 1 :]), "u32")
        place = build("mul", build.cast(build("range", dim=dim), "u32"), stride)
        index = emitter.elementwise("add", index, place)
    return build.ordered(index, dims)


def _pair(key: Any, index: Any) -> Any:
    """Return two numbers of 32 bits for each element; the array has fewer than 2**32 elements."""
    from jax import numpy as jnp
    from jax.extend.random import threefry2x32_p

    primitive: Any = threefry2x32_p
    first, second = (jnp.broadcast_to(key[..., i], index.shape) for i in (0, 1))
    return primitive.bind(first, second, jnp.zeros_like(index), index)


def _bits(width: int, sizes: Sequence[int], key: Any, index: Any) -> list[Any]:
    """Return random bits of some width for each index, as JAX's threefry makes them."""
    high, low = _pair(key, index)
    if width == 64:
        return [(high.astype("uint64") << 32) | low.astype("uint64")]
    return [(high ^ low).astype(f"uint{width}")]


def _keys(sizes: Sequence[int], key: Any, index: Any) -> list[Any]:
    from jax import numpy as jnp

    return [jnp.stack(_pair(key, index), -1)]


RULES: dict[str, PrimitiveRule] = {
    name: PrimitiveRule(_link_bits, _emit_bits, _is_by_index, takes_keys=True, moves=True)
    for name in ("random_bits", "random_split")
}
