"""Component-wise ops. An operand may lack dimensions of the result: it is broadcast along them (paper, section 7)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from mtfc.compiler.ir.core import Equation, Value
from mtfc.compiler.ir.opdef import (
    NO_TRAITS,
    Attrs,
    Code,
    DimsError,
    DTypeError,
    Gradient,
    OpDef,
    Shard,
    Trait,
    flops_per_result,
    linear_in_all,
    linear_in_each,
    linear_in_first,
    no_flops,
    no_gradient,
    not_linear,
    rule_by_name,
)
from mtfc.compiler.ir.sharding_rules import place_by_layout
from mtfc.compiler.ir.types import FLOATS, ITEM_BYTES, Dim, TensorType

INTEGERS = frozenset({"i32", "u32"})
NUMBERS = FLOATS | INTEGERS
BOOL = frozenset({"bool"})


def dims_text(dims: Sequence[Dim]) -> str:
    return "[" + ", ".join(dim.name for dim in dims) + "]"


def joint_dims(types: Sequence[TensorType]) -> tuple[Dim, ...]:
    """The dims of the operand that has all of them. Raises `DimsError` when none has."""
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
    """The operands' common dtype. Raises `DTypeError` when they differ or the op does not take it."""
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
    """`array` (dims `names`) transposed and given axes of size 1 so that it broadcasts against dims `target`."""
    order = [names.index(name) for name in target if name in names]
    index = tuple(slice(None) if name in names else None for name in target)
    return array.transpose(order)[index]


def _infer(
    accepted: frozenset[str], result: str | None
) -> Callable[[Sequence[TensorType], Attrs], tuple[TensorType]]:
    def infer(types: Sequence[TensorType], attributes: Attrs) -> tuple[TensorType]:
        dtype = check_dtypes(types, accepted)
        return (TensorType(result or dtype, joint_dims(types)),)

    return infer


def _evaluate(function: Callable[..., Any]) -> Callable[..., Any]:
    def evaluate(shard: Shard, *arrays: Any) -> Any:
        target = shard.eqn.result.type.names
        operands = zip(arrays, shard.eqn.operands, strict=True)
        return function(shard.np, *(align(a, v.type.names, target) for a, v in operands))

    return evaluate


def componentwise(
    name: str,
    evaluate: Callable[..., Any],
    numpy: str,
    gradient: Gradient,
    doc: str,
    *,
    jax: str | None = None,
    jax_differentiated: str | None = None,
    accepted: frozenset[str] = FLOATS,
    result: str | None = None,
    linear: Callable[[Equation], tuple[tuple[int, ...], ...]] = not_linear,
    traits: Iterable[Trait] = (),
) -> OpDef:
    return OpDef(
        name=name,
        infer=_infer(accepted, result),
        place=place_by_layout,
        layout_rule=rule_by_name,
        distribute=None,
        linear=linear,
        gradient=gradient,
        flops=flops_per_result,
        storage="fused",
        traits=frozenset(traits),
        evaluate=_evaluate(evaluate),
        numpy=numpy,
        jax=jax or numpy.replace("np.", "jnp."),
        jax_differentiated=jax_differentiated,
        doc=doc,
    )


def elementwise_gradient(factor: Callable[[Any, Value, Value], Value]) -> Gradient:
    """Gradient of y = f(x) as cotangent times `factor(builder, x, y)`."""
    return lambda b, e, g: (b("mul", g[0], factor(b, e.operands[0], e.result)),)


def _product(b: Any, eqn: Equation, operand: int, *factors: Value) -> Value:
    """The product of `factors`, summed to the dims of an operand in one einsum where it was broadcast."""
    dims = eqn.operands[operand].type.dims
    broadcast = set(dims) != set(eqn.result.type.dims)
    return b.einsum(*factors, dims=dims) if broadcast else b("mul", *factors)  # type: ignore[no-any-return]


def _to_operand(b: Any, eqn: Equation, operand: int, cotangent: Value) -> Value:
    return b.sum_to(cotangent, eqn.operands[operand].type.dims)  # type: ignore[no-any-return]


def _mul_gradient(b: Any, e: Equation, g: Sequence[Value]) -> tuple[Value, ...]:
    x, y = e.operands
    return _product(b, e, 0, g[0], y), _product(b, e, 1, g[0], x)


def _div_gradient(b: Any, e: Equation, g: Sequence[Value]) -> tuple[Value, ...]:
    scaled = b("div", g[0], e.operands[1])
    return _to_operand(b, e, 0, scaled), b("neg", _product(b, e, 1, scaled, e.result))


def _pow_gradient(b: Any, e: Equation, g: Sequence[Value]) -> tuple[Value, ...]:
    """d x**y = y x**(y-1) dx + x**y log(x) dy, the second taken as 0 where x <= 0, as the power is not defined around it."""
    x, y = e.operands
    dx = b("mul", b("mul", g[0], y), b("pow", x, b("sub", y, b.like(1, y))))
    positive = b("gt", x, b.like(0, x))
    log = b("log", b("where", positive, x, b.like(1, x)))
    dy = b("mul", b("mul", g[0], e.result), log)
    return _to_operand(b, e, 0, dx), _to_operand(b, e, 1, dy)


def _extremum_gradient(b: Any, e: Equation, g: Sequence[Value]) -> tuple[Value, ...]:
    """The winner takes the cotangent; at a tie each takes half."""
    x, y = e.operands
    half = b("mul", b("mask", b("eq", x, y), g[0]), b.like(-0.5, x))
    dx = b("add", b("mask", b("eq", x, e.result), g[0]), half)
    dy = b("add", b("mask", b("eq", y, e.result), g[0]), half)
    return _to_operand(b, e, 0, dx), _to_operand(b, e, 1, dy)


def _where_gradient(b: Any, e: Equation, g: Sequence[Value]) -> tuple[Value | None, ...]:
    condition = e.operands[0]
    dx, dy = b("mask", condition, g[0]), b("mask", b("not", condition), g[0])
    return None, _to_operand(b, e, 1, dx), _to_operand(b, e, 2, dy)


def _where_infer(types: Sequence[TensorType], attributes: Attrs) -> tuple[TensorType]:
    check_dtypes(types[:1], BOOL)
    dtype = check_dtypes(types[1:], NUMBERS | BOOL)
    return (TensorType(dtype, joint_dims(types)),)


def _cast_infer(types: Sequence[TensorType], attributes: Attrs) -> tuple[TensorType]:
    return (TensorType(str(attributes["dtype"]), types[0].dims),)


def _cast_gradient(b: Any, e: Equation, g: Sequence[Value]) -> tuple[Value | None]:
    source, target = e.operands[0].type.dtype, e.result.type.dtype
    return (b.cast(g[0], source) if {source, target} <= FLOATS else None,)


def _widens(eqn: Equation) -> tuple[tuple[int, ...], ...]:
    """Linear where nothing is rounded: rounding each part and then summing is not rounding the sum."""
    source, target = eqn.operands[0].type.dtype, eqn.result.type.dtype
    wider = {source, target} <= FLOATS and ITEM_BYTES[target] > ITEM_BYTES[source]
    return ((0,),) if wider else ()


def _cast_text(code: Code) -> str:
    return f"{code.args[0]}.astype({code.dtype})"


def _cast(shard: Shard, x: Any) -> Any:
    return x.astype(numpy_dtype(shard.np, shard.eqn.result.type.dtype))


def numpy_dtype(np: Any, dtype: str) -> Any:
    """The NumPy dtype of an IR dtype."""
    if dtype == "bf16":
        import ml_dtypes

        return ml_dtypes.bfloat16
    names = {
        "f32": "float32",
        "f16": "float16",
        "f64": "float64",
        "i32": "int32",
        "u32": "uint32",
        "bool": "bool_",
    }
    return getattr(np, names[dtype])


def _erf(np: Any, x: Any) -> Any:
    from scipy.special import erf

    return erf(x).astype(x.dtype)


def _relu_gradient(b: Any, e: Equation, g: Sequence[Value]) -> tuple[Value]:
    """By the result, which is above 0 just where the operand is: the operand need not be kept."""
    return (b("mask", b("gt", e.result, b.like(0, e.result)), g[0]),)


def _abs_gradient(b: Any, e: Equation, g: Sequence[Value]) -> tuple[Value]:
    return (b("mul", g[0], b("sign", e.operands[0])),)


def _square_gradient(b: Any, e: Equation, g: Sequence[Value]) -> tuple[Value]:
    x = e.operands[0]
    return (b("mul", b("mul", g[0], x), b.like(2, x)),)


def _sqrt_gradient(b: Any, e: Equation, g: Sequence[Value]) -> tuple[Value]:
    return (b("div", b("mul", g[0], b.like(0.5, g[0])), e.result),)


def _rsqrt_gradient(b: Any, e: Equation, g: Sequence[Value]) -> tuple[Value]:
    """d x**-1/2 = -1/2 (x**-1/2) / x dx."""
    slope = b("mul", b("div", e.result, e.operands[0]), b.like(-0.5, g[0]))
    return (b("mul", g[0], slope),)


def _sigmoid_slope(b: Any, x: Value, y: Value) -> Value:
    return b("mul", y, b("sub", b.like(1, y), y))  # type: ignore[no-any-return]


def _erf_slope(b: Any, x: Value, y: Value) -> Value:
    """2 / sqrt(pi) exp(-x**2)."""
    return b("mul", b("exp", b("neg", b("square", x))), b.like(1.1283791670955126, x))  # type: ignore[no-any-return]


UNARY = (
    componentwise("neg", lambda np, x: -x, "-{0}", lambda b, e, g: (b("neg", g[0]),), "Minus x.",
                  accepted=NUMBERS, linear=linear_in_first),
    componentwise("relu", lambda np, x: np.maximum(x, 0), "np.maximum({0}, 0)", _relu_gradient, "max(x, 0).",
                  jax="jax.nn.relu({0})", accepted=NUMBERS),
    componentwise("exp", lambda np, x: np.exp(x), "np.exp({0})", elementwise_gradient(lambda b, x, y: y),
                  "e to the power x."),
    componentwise("log", lambda np, x: np.log(x), "np.log({0})", lambda b, e, g: (b("div", g[0], e.operands[0]),),
                  "Natural logarithm."),
    componentwise("tanh", lambda np, x: np.tanh(x), "np.tanh({0})",
                  elementwise_gradient(lambda b, x, y: b("sub", b.like(1, y), b("square", y))), "Hyperbolic tangent."),
    componentwise("sigmoid", lambda np, x: (np.tanh(x / 2) + 1) / 2, "(np.tanh({0} / 2) + 1) / 2",
                  elementwise_gradient(_sigmoid_slope), "1 / (1 + exp(-x)).", jax="jax.nn.sigmoid({0})"),
    componentwise("sqrt", lambda np, x: np.sqrt(x), "np.sqrt({0})", _sqrt_gradient, "Square root."),
    componentwise("rsqrt", lambda np, x: 1 / np.sqrt(x), "1 / np.sqrt({0})", _rsqrt_gradient, "1 / sqrt(x).",
                  jax="lax.rsqrt({0})"),
    componentwise("square", lambda np, x: np.square(x), "np.square({0})", _square_gradient, "x times x.",
                  accepted=NUMBERS),
    componentwise("abs", lambda np, x: np.abs(x), "np.abs({0})", _abs_gradient, "Absolute value; gradient 0 at 0.",
                  jax_differentiated="{0} * jnp.sign({0})",  # the slope of `jnp.abs` at 0 is 1, and not 0
                  accepted=NUMBERS),
    componentwise("sign", lambda np, x: np.sign(x), "np.sign({0})", no_gradient, "-1, 0 or 1; its gradient is 0.",
                  accepted=NUMBERS),
    componentwise("erf", _erf, "erf({0})", elementwise_gradient(_erf_slope), "The error function.",
                  jax="lax.erf({0})"),
    componentwise("sin", lambda np, x: np.sin(x), "np.sin({0})", elementwise_gradient(lambda b, x, y: b("cos", x)),
                  "Sine."),
    componentwise("cos", lambda np, x: np.cos(x), "np.cos({0})",
                  elementwise_gradient(lambda b, x, y: b("neg", b("sin", x))), "Cosine."),
    componentwise("floor", lambda np, x: np.floor(x), "np.floor({0})", no_gradient,
                  "Largest whole number not above x; its gradient is 0."),
    componentwise("not", lambda np, x: np.logical_not(x), "np.logical_not({0})", no_gradient, "Logical not.",
                  accepted=BOOL),
    componentwise("stop_gradient", lambda np, x: x, "{0}", no_gradient, "x, as a constant for differentiation.",
                  jax="lax.stop_gradient({0})", accepted=NUMBERS | BOOL, linear=linear_in_first,
                  traits=("stop_gradient",)),
)  # fmt: skip

BINARY = (
    componentwise("add", lambda np, x, y: x + y, "{0} + {1}",
                  lambda b, e, g: (_to_operand(b, e, 0, g[0]), _to_operand(b, e, 1, g[0])), "x + y.",
                  accepted=NUMBERS, linear=linear_in_all, traits=("add",)),
    componentwise("sub", lambda np, x, y: x - y, "{0} - {1}",
                  lambda b, e, g: (_to_operand(b, e, 0, g[0]), b("neg", _to_operand(b, e, 1, g[0]))), "x - y.",
                  accepted=NUMBERS, linear=linear_in_all),
    componentwise("mul", lambda np, x, y: x * y, "{0} * {1}", _mul_gradient, "x times y.",
                  accepted=NUMBERS, linear=linear_in_each, traits=("multiply",)),
    componentwise("div", lambda np, x, y: x / y, "{0} / {1}", _div_gradient, "x / y.", linear=linear_in_first),
    componentwise("pow", lambda np, x, y: np.power(x, y), "np.power({0}, {1})", _pow_gradient, "x to the power y."),
    componentwise("minimum", lambda np, x, y: np.minimum(x, y), "np.minimum({0}, {1})", _extremum_gradient,
                  "The smaller of x and y; at a tie each takes half of the gradient.", accepted=NUMBERS),
    componentwise("maximum", lambda np, x, y: np.maximum(x, y), "np.maximum({0}, {1})", _extremum_gradient,
                  "The larger of x and y; at a tie each takes half of the gradient.", accepted=NUMBERS),
    componentwise("lt", lambda np, x, y: x < y, "{0} < {1}", no_gradient, "x < y.", accepted=NUMBERS, result="bool"),
    componentwise("le", lambda np, x, y: x <= y, "{0} <= {1}", no_gradient, "x <= y.", accepted=NUMBERS, result="bool"),
    componentwise("gt", lambda np, x, y: x > y, "{0} > {1}", no_gradient, "x > y.", accepted=NUMBERS, result="bool"),
    componentwise("ge", lambda np, x, y: x >= y, "{0} >= {1}", no_gradient, "x >= y.", accepted=NUMBERS, result="bool"),
    componentwise("eq", lambda np, x, y: x == y, "{0} == {1}", no_gradient, "x == y.", accepted=NUMBERS | BOOL,
                  result="bool"),
    componentwise("ne", lambda np, x, y: x != y, "{0} != {1}", no_gradient, "x != y.", accepted=NUMBERS | BOOL,
                  result="bool"),
    componentwise("and", lambda np, x, y: np.logical_and(x, y), "np.logical_and({0}, {1})", no_gradient,
                  "Logical and.", accepted=BOOL),
    componentwise("or", lambda np, x, y: np.logical_or(x, y), "np.logical_or({0}, {1})", no_gradient, "Logical or.",
                  accepted=BOOL),
)  # fmt: skip

WHERE = OpDef(
    name="where",
    infer=_where_infer,
    place=place_by_layout,
    layout_rule=rule_by_name,
    distribute=None,
    linear=lambda eqn: ((1, 2),),
    gradient=_where_gradient,
    flops=flops_per_result,
    storage="fused",
    traits=NO_TRAITS,
    evaluate=_evaluate(lambda np, c, x, y: np.where(c, x, y)),
    numpy="np.where({0}, {1}, {2})",
    jax="jnp.where({0}, {1}, {2})",
    jax_differentiated=None,
    doc="x where the condition holds, else y.",
)


def _mask_infer(types: Sequence[TensorType], attributes: Attrs) -> tuple[TensorType]:
    check_dtypes(types[:1], BOOL)
    return (TensorType(check_dtypes(types[1:], NUMBERS), joint_dims(types)),)


def _mask_gradient(b: Any, e: Equation, g: Sequence[Value]) -> tuple[Value | None, ...]:
    return None, _to_operand(b, e, 1, b("mask", e.operands[0], g[0]))


MASK = OpDef(
    name="mask",
    infer=_mask_infer,
    place=place_by_layout,
    layout_rule=rule_by_name,
    distribute=None,
    linear=lambda eqn: ((1,),),
    gradient=_mask_gradient,
    flops=flops_per_result,
    storage="fused",
    traits=NO_TRAITS,
    evaluate=_evaluate(lambda np, c, x: np.where(c, x, np.zeros((), x.dtype))),
    numpy="np.where({0}, {1}, 0)",
    jax="jnp.where({0}, {1}, 0)",
    jax_differentiated=None,
    doc="x where the condition holds, else 0: what a gradient passes through a choice.",
)

CAST = OpDef(
    name="cast",
    infer=_cast_infer,
    place=place_by_layout,
    layout_rule=rule_by_name,
    distribute=None,
    linear=_widens,
    gradient=_cast_gradient,
    flops=no_flops,
    storage="fused",
    traits=frozenset({"cast"}),
    evaluate=_cast,
    numpy=_cast_text,
    jax=_cast_text,
    jax_differentiated=None,
    doc="x converted to another dtype.",
)

OPS = (*UNARY, *BINARY, WHERE, MASK, CAST)
