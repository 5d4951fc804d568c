"""Elementwise ops. An operand that lacks dimensions of the result is broadcast along them (Mesh-TensorFlow paper, section 7)."""

import inspect
import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from mtfc.compiler.ir.attributes import DTYPE, FLAG, Attribute
from mtfc.compiler.ir.core import Equation, Value
from mtfc.compiler.ir.opdef import (
    Attrs,
    Code,
    DimsError,
    DTypeError,
    Gradient,
    Infer,
    Logic,
    OpBuilder,
    OpDef,
    SameAs,
    Shard,
    Trait,
    flops_per_result,
    linear_in_all,
    linear_in_each,
    linear_in_first,
    no_flops,
    no_gradient,
    rule_by_name,
)
from mtfc.compiler.ir.types import ARRAY_DTYPES, FLOATS, ITEM_BYTES, OF_ML_DTYPES, Dim, TensorType

INTEGERS = frozenset({"i32", "u32"})
NUMBERS = FLOATS | INTEGERS
BOOL = frozenset({"bool"})

CAST_DTYPE = Attribute("dtype", DTYPE)
SUMS = Attribute("sums", FLAG, optional=True)

LARGEST = 2**63 - 1
"""The largest integer in an expression. A float that is larger is a whole number already."""


def decided(deciding: bool) -> Logic:
    """Return the logic of `and` (false decides) or `or` (true decides)."""

    def logic(truths: Sequence[bool | None]) -> bool | SameAs | None:
        """Return what an op on truth values is decided to be: a truth value, its only open operand, or None."""
        if deciding in truths:
            return deciding
        open = [i for i, truth in enumerate(truths) if truth is None]
        if not open:
            return not deciding
        return SameAs(open[0]) if len(open) < len(truths) else None

    return logic


def compared(is_equal: bool) -> Logic:
    """Return the logic of `eq` or `ne`."""

    def logic(truths: Sequence[bool | None]) -> bool | None:
        x, y = truths
        return None if x is None or y is None else (x == y) == is_equal

    return logic


def _chosen(truths: Sequence[bool | None]) -> bool | SameAs | None:
    """The logic of `where`: its condition chooses an operand."""
    if truths[0] is None:
        return None
    chosen = 1 if truths[0] else 2
    known = truths[chosen]
    return SameAs(chosen) if known is None else known


def dims_text(dims: Sequence[Dim]) -> str:
    return "[" + ", ".join(dim.name for dim in dims) + "]"


def joint_dims(types: Sequence[TensorType]) -> tuple[Dim, ...]:
    """Return the dims of the operand that has all dims. Raise `DimsError` if no operand has."""
    widest = max(types, key=lambda t: len(t.dims))
    for type in types:
        if not set(type.dims) <= set(widest.dims):
            raise DimsError(
                f"cannot broadcast {dims_text(type.dims)} against {dims_text(widest.dims)}: neither has all dimensions"
                " of the other",
                "give one operand the missing dimensions with `broadcast(x -> [dims])`",
            )
    return widest.dims


def check_dtypes(types: Sequence[TensorType], accepted: frozenset[str]) -> str:
    """Return the operands' common dtype. Raise `DTypeError` if they differ or the op does not take it."""
    first = types[0].dtype
    for type in types:
        if type.dtype != first:
            raise DTypeError(
                f"operands are {first} and {type.dtype}", "convert one of them with `cast(x, dtype)`"
            )
        if type.dtype not in accepted:
            raise DTypeError(
                f"expected {one_of(accepted)}, found {type.dtype}", "convert it with `cast(x, dtype)`"
            )
    return first


def one_of(dtypes: frozenset[str]) -> str:
    names = {FLOATS: "a floating-point tensor", INTEGERS: "an integer tensor", BOOL: "a bool tensor"}
    return names.get(dtypes, "a tensor of numbers")


def align(array: Any, names: Sequence[str], target: Sequence[str]) -> Any:
    """Transpose `array` (dims `names`) and insert axes of size 1, so that it broadcasts against dims `target`."""
    order = [names.index(name) for name in target if name in names]
    index = tuple(slice(None) if name in names else None for name in target)
    return array.transpose(order)[index]


def _infer(
    accepted: frozenset[str], result: str | None
) -> Callable[[Sequence[TensorType], Attrs], tuple[TensorType]]:
    """Make the type rule of an elementwise op: all dims of the operands, and their dtype or a given one.

    accepted: the dtypes of operands. result: the dtype of the result, None for that of the operands.
    """

    def infer(types: Sequence[TensorType], attributes: Attrs) -> tuple[TensorType]:
        dtype = check_dtypes(types, accepted)
        return (TensorType(result or dtype, joint_dims(types)),)

    return infer


def _evaluate(function: Callable[..., Any]) -> Callable[..., Any]:
    """Make the evaluation of an elementwise op from a function of arrays: operands get the axes of the result."""

    def evaluate(shard: Shard, *arrays: Any) -> Any:
        """Apply the function to arrays whose axes are aligned with those of the result."""
        target = shard.eqn.result.type.names
        operands = zip(arrays, shard.eqn.operands, strict=True)
        return function(shard.np, *(align(a, v.type.names, target) for a, v in operands))

    return evaluate


def elementwise(
    name: str,
    evaluate: Callable[..., Any],
    numpy: str,
    gradient: Gradient,
    doc: str,
    *,
    accepted: frozenset[str] = FLOATS,
    result: str | None = None,
    traits: Iterable[Trait] = (),
    infer: Infer | None = None,
    **columns: Any,
) -> OpDef:
    """Return an elementwise op.

    evaluate: (np, *arrays) -> array. numpy: the text of the op with `{0}`, `{1}` .. for its operands. accepted: the dtypes of
    operands. result: the dtype of the result, if it is not that of the operands.
    """
    return OpDef(
        name=name,
        arity=(len(inspect.signature(evaluate).parameters) - 1,),  # the first parameter is `np`
        infer=infer or _infer(accepted, result),
        layout_rule=rule_by_name,
        gradient=gradient,
        flops=flops_per_result,
        storage="fused",
        traits=frozenset(traits),
        evaluate=_evaluate(evaluate),
        numpy=numpy,
        doc=doc,
        **columns,
    )


def slope_gradient(factor: Callable[[OpBuilder, Value, Value], Value]) -> Gradient:
    """Return the gradient rule of y = f(x): the cotangent times `factor(builder, x, y)`."""
    return lambda b, e, g: (b("mul", g[0], factor(b, e.operands[0], e.result)),)


def _multiplied(b: OpBuilder, eqn: Equation, operand: int, *factors: Value) -> Value:
    """Multiply `factors`, and sum to the dims of an operand: in one einsum if the operand was broadcast."""
    dims = eqn.operands[operand].type.dims
    broadcast = set(dims) != set(eqn.result.type.dims)
    return b.einsum(*factors, dims=dims) if broadcast else b("mul", *factors)


def _to_operand(b: OpBuilder, eqn: Equation, operand: int, cotangent: Value) -> Value:
    return b.sum_to(cotangent, eqn.operands[operand].type.dims)


def _mul_gradient(b: OpBuilder, e: Equation, g: Sequence[Value]) -> tuple[Value, ...]:
    x, y = e.operands
    return _multiplied(b, e, 0, g[0], y), _multiplied(b, e, 1, g[0], x)


def _div_gradient(b: OpBuilder, e: Equation, g: Sequence[Value]) -> tuple[Value, ...]:
    scaled = b("div", g[0], e.operands[1])
    return _to_operand(b, e, 0, scaled), b("neg", _multiplied(b, e, 1, scaled, e.result))


def _pow_gradient(b: OpBuilder, e: Equation, g: Sequence[Value]) -> tuple[Value, ...]:
    """d x**y = y x**(y-1) dx + x**y log(x) dy. The second term is 0 where x <= 0, because nearby powers are undefined there.

    It is NaN where x is NaN.
    """
    x, y = e.operands
    dx = b("mul", b("mul", g[0], y), b("pow", x, b("sub", y, b.like(1, y))))
    log = b("log", b("where", b("le", x, b.like(0, x)), b.like(1, x), x))
    dy = b("mul", b("mul", g[0], e.result), log)
    return _to_operand(b, e, 0, dx), _to_operand(b, e, 1, dy)


def _extremum_gradient(b: OpBuilder, e: Equation, g: Sequence[Value]) -> tuple[Value, ...]:
    """The operand that wins takes the cotangent; at a tie each takes half."""
    x, y = e.operands
    half = b("mul", b("mask", b("eq", x, y), g[0]), b.like(-0.5, x))
    dx = b("add", b("mask", b("eq", x, e.result), g[0]), half)
    dy = b("add", b("mask", b("eq", y, e.result), g[0]), half)
    return _to_operand(b, e, 0, dx), _to_operand(b, e, 1, dy)


def _where_gradient(b: OpBuilder, e: Equation, g: Sequence[Value]) -> tuple[Value | None, ...]:
    """Give each choice the cotangent where it was chosen, and 0 elsewhere."""
    condition = e.operands[0]
    dx, dy = b("mask", condition, g[0]), b("mask", b("not", condition), g[0])
    return None, _to_operand(b, e, 1, dx), _to_operand(b, e, 2, dy)


def _where_infer(types: Sequence[TensorType], attributes: Attrs) -> tuple[TensorType]:
    """Return the type of a choice: the condition is of truth values, and both choices are of one dtype."""
    check_dtypes(types[:1], BOOL)
    dtype = check_dtypes(types[1:], NUMBERS | BOOL)
    return (TensorType(dtype, joint_dims(types)),)


def _cast_gradient(b: OpBuilder, e: Equation, g: Sequence[Value]) -> tuple[Value | None]:
    """Cast the cotangent back. Terms of a bf16 cotangent are bf16 numbers, also those of an f32 sum that becomes one."""
    source, target = e.operands[0].type.dtype, e.result.type.dtype
    if (source, target) == ("bf16", "f32"):
        return (b("cast", g[0], dtype=source, sums=True),)
    return (b.cast(g[0], source) if {source, target} <= FLOATS else None,)


def _keeps_sums(eqn: Equation) -> tuple[tuple[int, ...], ...]:
    """A cast is linear if it rounds nothing: the sum of rounded parts is not the rounded sum.

    A cast from f32 to f16 rounds no terms, as those of an f16 sum are f32 numbers. A cast to fewer bits with the attribute `sums`
    asks for the sum of rounded terms.
    """
    source, target = eqn.operands[0].type.dtype, eqn.result.type.dtype
    if not {source, target} <= FLOATS:
        return ()
    wider = ITEM_BYTES[target] > ITEM_BYTES[source]
    return ((0,),) if wider or (source, target) == ("f32", "f16") or eqn.attrs.get(SUMS.name) else ()


def _cast_text(code: Code) -> str:
    return f"{code.args[0]}.astype({code.dtype})"


def _cast_jax(code: Code) -> str:
    is_truth = code.eqn.operands[0].type.dtype == "bool" and code.eqn.result.type.dtype in FLOATS
    return one_or_zero(code, code.args[0]) if is_truth else _cast_text(code)


def one_or_zero(code: Code, truth: str) -> str:
    """Return JAX code for truth values as floats.

    From a product with converted truth values XLA makes a selection, in which 0 times NaN is 0. It keeps a product with selected
    numbers.
    """
    return f"jnp.where({truth}, {code.dtype}(1), 0)"


def _rounds_to_integers(eqn: Equation) -> bool:
    return eqn.operands[0].type.dtype in FLOATS and eqn.result.type.dtype in INTEGERS


def _cast_numpy(code: Code) -> str:
    """Call `integers`, a function of the prelude: NumPy leaves NaN and numbers out of range to the processor."""
    return f"integers({code.args[0]}, {code.dtype})" if _rounds_to_integers(code.eqn) else _cast_text(code)


def _cast(shard: Shard, x: Any) -> Any:
    """Cast a shard. Casts to integers clip to their limits, and give 0 for NaN."""
    np, dtype = shard.np, numpy_dtype(shard.np, shard.eqn.result.type.local_dtype)
    if not _rounds_to_integers(shard.eqn):
        return x.astype(dtype)
    limits = np.iinfo(dtype)
    return np.clip(np.where(np.isnan(x), 0, x.astype(np.float64)), limits.min, limits.max).astype(dtype)


def numpy_dtype(np: Any, dtype: str) -> Any:
    """Return the NumPy dtype of an IR dtype."""
    if dtype in OF_ML_DTYPES:
        import ml_dtypes

        return getattr(ml_dtypes, ARRAY_DTYPES[dtype])
    return np.dtype(ARRAY_DTYPES[dtype]).type


def _erf(np: Any, x: Any) -> Any:
    """Compute the error function, which NumPy has not, with SciPy."""
    from scipy.special import erf

    return erf(x).astype(x.dtype)


def _sigmoid(np: Any, x: Any) -> Any:
    """Return 1 / (1 + exp(-x)) without overflow, and with small relative errors; 16-bit numbers are computed in 32 bits."""
    wide = x.astype(np.float32) if x.dtype.itemsize == 2 else x
    e = np.exp(-np.abs(wide))
    return (np.where(wide >= 0, 1, e) / (1 + e)).astype(x.dtype)


def _power(np: Any, x: Any, y: Any) -> Any:
    """Give each element its exponent: NumPy takes the root for a single exponent of 0.5, which differs at -0.0 and -inf."""
    shape = np.broadcast_shapes(x.shape, y.shape)
    return np.power(x, np.ascontiguousarray(np.broadcast_to(y, shape))).reshape(shape)


def _rsqrt_gradient(b: OpBuilder, e: Equation, g: Sequence[Value]) -> tuple[Value]:
    """d x**-1/2 = -1/2 (x**-1/2)**3 dx."""
    slope = b("mul", b("mul", b("square", e.result), e.result), b.like(-0.5, g[0]))
    return (b("mul", g[0], slope),)


def _erf_slope(b: OpBuilder, x: Value, y: Value) -> Value:
    """2 / sqrt(pi) exp(-x**2)."""
    return b("mul", b("exp", b("neg", b("square", x))), b.like(1.1283791670955126, x))


UNARY = (
    elementwise("neg", lambda np, x: -x, "-{0}", lambda b, e, g: (b("neg", g[0]),), "Minus x.",
                accepted=NUMBERS, linear=linear_in_first, traits=("negate",)),
    elementwise("relu", lambda np, x: np.maximum(x, 0), "np.maximum({0}, 0)",
                # the result is above 0 at the same elements as the operand, which need not be kept
                lambda b, e, g: (b("mask", b("gt", e.result, b.like(0, e.result)), g[0]),), "max(x, 0).",
                jax="jax.nn.relu({0})", accepted=NUMBERS, number=lambda x: max(x, 0)),
    elementwise("exp", lambda np, x: np.exp(x), "np.exp({0})", slope_gradient(lambda b, x, y: y),
                "e to the power x.", number=math.exp, traits=("exponential",)),
    elementwise("log", lambda np, x: np.log(x), "np.log({0})", lambda b, e, g: (b("div", g[0], e.operands[0]),),
                "Natural logarithm.", number=math.log),
    elementwise("tanh", lambda np, x: np.tanh(x), "np.tanh({0})",
                slope_gradient(lambda b, x, y: b("sub", b.like(1, y), b("square", y))), "Hyperbolic tangent.",
                number=math.tanh, traits=("hyperbolic",)),
    elementwise("sigmoid", _sigmoid, "sigmoid({0})",
                slope_gradient(lambda b, x, y: b("mul", y, b("sub", b.like(1, y), y))), "1 / (1 + exp(-x)).",
                jax="jax.nn.sigmoid({0})", number=lambda x: 0.5 * (1 + math.tanh(0.5 * x))),
    elementwise("sqrt", lambda np, x: np.sqrt(x), "np.sqrt({0})",
                lambda b, e, g: (b("div", b("mul", g[0], b.like(0.5, g[0])), e.result),), "Square root.", number=math.sqrt),
    elementwise("rsqrt", lambda np, x: 1 / np.sqrt(x), "1 / np.sqrt({0})", _rsqrt_gradient, "1 / sqrt(x).",
                jax="lax.rsqrt({0})", number=lambda x: 1 / math.sqrt(x)),
    elementwise("square", lambda np, x: np.square(x), "np.square({0})",
                lambda b, e, g: (b("mul", b("mul", g[0], e.operands[0]), b.like(2, e.operands[0])),), "x times x.",
                accepted=NUMBERS, traits=("square",), number=lambda x: x * x),
    elementwise("abs", lambda np, x: np.abs(x), "np.abs({0})",
                lambda b, e, g: (b("mul", g[0], b("sign", e.operands[0])),), "Absolute value; gradient 0 at 0.",
                jax_differentiated="{0} * jnp.sign({0})",  # the slope of `jnp.abs` at 0 is 1, and not 0
                accepted=NUMBERS, number=abs),
    elementwise("sign", lambda np, x: np.sign(x), "np.sign({0})", no_gradient, "-1, 0 or 1; its gradient is 0.",
                accepted=NUMBERS, number=lambda x: (x > 0) - (x < 0)),
    elementwise("erf", _erf, "erf({0})", slope_gradient(_erf_slope), "The error function.",
                jax="lax.erf({0})", number=math.erf),
    elementwise("sin", lambda np, x: np.sin(x), "np.sin({0})", slope_gradient(lambda b, x, y: b("cos", x)),
                "Sine.", number=math.sin),
    elementwise("cos", lambda np, x: np.cos(x), "np.cos({0})",
                slope_gradient(lambda b, x, y: b("neg", b("sin", x))), "Cosine.", number=math.cos),
    elementwise("floor", lambda np, x: np.floor(x), "np.floor({0})", no_gradient,
                "Largest whole number not above x; its gradient is 0.",
                number=lambda x: math.floor(x) if abs(x) <= LARGEST else x),
    elementwise("not", lambda np, x: np.logical_not(x), "np.logical_not({0})", no_gradient, "Logical not.",
                accepted=BOOL, logic=lambda truths: None if truths[0] is None else not truths[0]),
    elementwise("stop_gradient", lambda np, x: x, "{0}", no_gradient, "x, as a constant for differentiation.",
                jax="lax.stop_gradient({0})", accepted=NUMBERS | BOOL, linear=linear_in_first,
                traits=("stop_gradient",), number=lambda x: x),
)  # fmt: skip

BINARY = (
    elementwise("add", lambda np, x, y: x + y, "{0} + {1}",
                lambda b, e, g: (_to_operand(b, e, 0, g[0]), _to_operand(b, e, 1, g[0])), "x + y.",
                accepted=NUMBERS, linear=linear_in_all, traits=("add",)),
    elementwise("sub", lambda np, x, y: x - y, "{0} - {1}",
                lambda b, e, g: (_to_operand(b, e, 0, g[0]), b("neg", _to_operand(b, e, 1, g[0]))), "x - y.",
                accepted=NUMBERS, linear=linear_in_all, traits=("subtract",)),
    elementwise("mul", lambda np, x, y: x * y, "{0} * {1}", _mul_gradient, "x times y.",
                accepted=NUMBERS, linear=linear_in_each, traits=("multiply",)),
    elementwise("div", lambda np, x, y: x / y, "{0} / {1}", _div_gradient, "x / y.", linear=linear_in_first,
                traits=("divide",)),
    elementwise("pow", _power, "power({0}, {1})", _pow_gradient, "x to the power y.", jax="jnp.power({0}, {1})"),
    elementwise("minimum", lambda np, x, y: np.minimum(x, y), "np.minimum({0}, {1})", _extremum_gradient,
                "The smaller of x and y; at a tie each takes half of the gradient.", accepted=NUMBERS, number=min),
    elementwise("maximum", lambda np, x, y: np.maximum(x, y), "np.maximum({0}, {1})", _extremum_gradient,
                "The larger of x and y; at a tie each takes half of the gradient.", accepted=NUMBERS, number=max,
                traits=("maximum",)),
    elementwise("lt", lambda np, x, y: x < y, "{0} < {1}", no_gradient, "x < y.", accepted=NUMBERS, result="bool",
                traits=("order", "strict")),
    elementwise("le", lambda np, x, y: x <= y, "{0} <= {1}", no_gradient, "x <= y.", accepted=NUMBERS, result="bool",
                traits=("order",)),
    elementwise("gt", lambda np, x, y: x > y, "{0} > {1}", no_gradient, "x > y.", accepted=NUMBERS, result="bool",
                traits=("order", "above", "strict")),
    elementwise("ge", lambda np, x, y: x >= y, "{0} >= {1}", no_gradient, "x >= y.", accepted=NUMBERS, result="bool",
                traits=("order", "above")),
    elementwise("eq", lambda np, x, y: x == y, "{0} == {1}", no_gradient, "x == y.", accepted=NUMBERS | BOOL,
                result="bool", logic=compared(True), traits=("equality",)),
    elementwise("ne", lambda np, x, y: x != y, "{0} != {1}", no_gradient, "x != y.", accepted=NUMBERS | BOOL,
                result="bool", logic=compared(False)),
    elementwise("and", lambda np, x, y: np.logical_and(x, y), "np.logical_and({0}, {1})", no_gradient,
                "Logical and.", accepted=BOOL, logic=decided(False), traits=("conjunction",)),
    elementwise("or", lambda np, x, y: np.logical_or(x, y), "np.logical_or({0}, {1})", no_gradient, "Logical or.",
                accepted=BOOL, logic=decided(True)),
)  # fmt: skip


def _mask_infer(types: Sequence[TensorType], attributes: Attrs) -> tuple[TensorType]:
    check_dtypes(types[:1], BOOL)
    return (TensorType(check_dtypes(types[1:], NUMBERS), joint_dims(types)),)


CHOICES = (
    elementwise("where", lambda np, c, x, y: np.where(c, x, y), "np.where({0}, {1}, {2})", _where_gradient,
                "x where the condition holds, else y.", infer=_where_infer, linear=lambda eqn: ((1, 2),),
                traits=("choice",), logic=_chosen),
    elementwise("mask", lambda np, c, x: np.where(c, x, np.zeros((), x.dtype)), "np.where({0}, {1}, 0)",
                lambda b, e, g: (None, _to_operand(b, e, 1, b("mask", e.operands[0], g[0]))),
                "x where the condition holds, else 0: what a gradient passes through a choice.", infer=_mask_infer,
                linear=lambda eqn: ((1,),), traits=("mask",)),
)  # fmt: skip

CAST = OpDef(
    name="cast",
    arity=(1,),
    attributes=(CAST_DTYPE, SUMS),
    infer=lambda types, attributes: (TensorType(CAST_DTYPE.of(attributes), types[0].dims),),
    layout_rule=rule_by_name,
    linear=_keeps_sums,
    gradient=_cast_gradient,
    flops=no_flops,
    storage="fused",
    traits=frozenset({"cast"}),
    evaluate=_cast,
    numpy=_cast_numpy,
    jax=_cast_jax,
    doc="x converted to another dtype.",
)

OPS = (*UNARY, *BINARY, *CHOICES, CAST)
