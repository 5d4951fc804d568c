"""Primitives that work element by element. Those that no op stands for are mapped calls: see `calls.py`."""

from collections.abc import Callable, Sequence

from mtfc.compiler.ir.core import Attr, Value
from mtfc.compiler.ir.opdef import OpError
from mtfc.compiler.ir.ops import OPS
from mtfc.compiler.ir.ops.elementwise import BOOL, NUMBERS
from mtfc.compiler.ir.types import FLOATS, TensorType
from mtfc.frontend.jaxpr.factors import Axis, Factor, leaves
from mtfc.frontend.jaxpr.flat import DTYPES, AppliedPrimitive, Var, data_of
from mtfc.frontend.jaxpr.primitive_rules import JaxprEmitter, Linker, PrimitiveRule

EVERY = NUMBERS | BOOL

Accepts = Callable[[AppliedPrimitive], bool]
Emit = Callable[[JaxprEmitter, AppliedPrimitive, Sequence[Value]], Value]


def link(linker: Linker, step: AppliedPrimitive) -> None:
    """Give the result the axes of the operand with the most data, and fit the others to them.

    Of operands with as much, one of the forward pass comes first: a derivative has the axes of what the gradient is for, and a
    cotangent may have those of the next array.
    An operand may have size 1 along an axis, which the result then has from another operand. A factor that stands in for a factor
    of another operand gives way to it: so the gradient of renamed keys gets the dimension of the queries back.
    """
    arrays = {i: x for i, x in enumerate(step.operands) if isinstance(x, Var) and x.shape}
    if not arrays:
        for result in step.results:
            linker.give(result, ())
        return
    order = sorted(arrays, key=lambda i: (-data_of(arrays[i]), arrays[i].is_backward))
    shape = step.results[0].shape
    wanted: list[Axis] = []
    taken: set[Factor] = set()
    for j, size in enumerate(shape):
        axes = [arrays[i].axes[j] for i in order if arrays[i].shape[j] == size] or [()]
        originals = [a for a in axes[1:] if a != axes[0] and _is_original(a, axes[0])]
        if originals:
            beside = {f for x in arrays.values() for k, a in enumerate(x.axes) if k != j for f in leaves(a)}
            originals = [a for a in originals if beside.isdisjoint(leaves(a))]
        each = originals[0] if originals else axes[0]
        wanted.append(each if taken.isdisjoint(leaves(each)) else linker.instead(each, taken))
        taken |= {*leaves(wanted[-1])}
    for result in step.results:
        linker.give(result, tuple(wanted))
    for i in order:
        x = arrays[i]
        linker.fit(step, i, [target if x.shape[j] == shape[j] else () for j, target in enumerate(wanted)])
    everywhere = frozenset(range(len(shape)))
    repeated = [x.repeated | {j for j in everywhere if x.shape[j] != shape[j]} for x in arrays.values()]
    for result in step.results:
        result.repeated = everywhere.intersection(*repeated)


def _is_original(one: Axis, other: Axis) -> bool:
    """Return True if all factors of one axis stand in for the factors of the other."""
    pairs = [*zip(leaves(one), leaves(other), strict=False)]
    return bool(pairs) and all(
        y.stands_in and not x.stands_in and y.alternate is not None and y.alternate.root() is x
        for x, y in pairs
    )


def operands(emitter: JaxprEmitter, step: AppliedPrimitive) -> list[Value]:
    return [emitter.operand(step, i) for i in range(len(step.operands))]


def rule(make: Emit, accepted: frozenset[str] | Accepts, moves: bool = False) -> PrimitiveRule:
    """Make the rule of a primitive. accepted: the dtypes of its first operand, or a test of a step."""
    accepts: Accepts = accepted if callable(accepted) else lambda step: step.operands[0].dtype in accepted

    def emit(emitter: JaxprEmitter, step: AppliedPrimitive) -> Sequence[Value]:
        return (make(emitter, step, operands(emitter, step)),)

    return PrimitiveRule(link, emit, accepts, moves=moves)


def taken_by(name: str, **attributes: Attr) -> Accepts:
    """Return the test whether an op takes the dtypes of a step's operands."""

    def accepts(step: AppliedPrimitive) -> bool:
        """Return True if the op takes operands of these dtypes."""
        try:
            return bool(OPS[name].infer([TensorType(x.dtype, ()) for x in step.operands], attributes))
        except OpError:
            return False

    return accepts


def op(name: str) -> PrimitiveRule:
    return rule(lambda emitter, step, values: emitter.elementwise(name, *values), taken_by(name))


def _power(emitter: JaxprEmitter, step: AppliedPrimitive, values: Sequence[Value]) -> Value:
    """Multiply as JAX does: by squares, the lowest power first."""
    (x,), y = values, step.params["y"]
    result, left = None, abs(y)
    while left:
        if left & 1:
            result = x if result is None else emitter.build("mul", result, x)
        left >>= 1
        x = emitter.build("square", x) if left else x
    one = emitter.build.like(1.0, x)
    if result is None:
        return emitter.elementwise("add", emitter.build("sub", x, x), one)
    return result if y > 0 else emitter.elementwise("div", one, result)


def _one_minus_square(emitter: JaxprEmitter, step: AppliedPrimitive, values: Sequence[Value]) -> Value:
    """Multiply 1 + x by 1 - x as JAX does, which rounds less than the square near 1."""
    (x,) = values
    one = emitter.build.like(1.0, x)
    sum, difference = emitter.elementwise("add", one, x), emitter.elementwise("sub", one, x)
    return emitter.build("mul", sum, difference)


def _choice(emitter: JaxprEmitter, step: AppliedPrimitive, values: Sequence[Value]) -> Value:
    condition, if_false, if_true = values
    return emitter.elementwise("where", condition, if_true, if_false)


def _cast(emitter: JaxprEmitter, step: AppliedPrimitive, values: Sequence[Value]) -> Value:
    return emitter.build.cast(values[0], step.results[0].dtype)


def _clamp(emitter: JaxprEmitter, step: AppliedPrimitive, values: Sequence[Value]) -> Value:
    low, x, high = values
    return emitter.elementwise("minimum", emitter.elementwise("maximum", x, low), high)


def _as_result(name: str) -> Emit:
    """Return what emits an op whose operands get the dtype of the result, as in JAX."""

    def emit(emitter: JaxprEmitter, step: AppliedPrimitive, values: Sequence[Value]) -> Value:
        return emitter.elementwise(name, *(emitter.build.cast(x, step.results[0].dtype) for x in values))

    return emit


def _is_finite(emitter: JaxprEmitter, step: AppliedPrimitive, values: Sequence[Value]) -> Value:
    """Compare the magnitude with infinity: NaN is not below it."""
    magnitude = emitter.build("abs", values[0])
    return emitter.elementwise("lt", magnitude, emitter.build.like(float("inf"), magnitude))


SAME_NAMES = ("neg", "exp", "log", "tanh", "sqrt", "rsqrt", "square", "abs", "sign", "erf", "sin", "cos", "floor", "add", "sub",
              "div", "lt", "le", "gt", "ge", "eq", "ne", "and", "or", "not")  # fmt: skip
OF_OPS = {name: name for name in SAME_NAMES}
OF_OPS |= {"logistic": "sigmoid", "add_any": "add", "max": "maximum", "min": "minimum"}
"""Elementwise primitive -> the op that it is."""

SAME = ("stop_gradient", "copy", "copy_p", "name", "sharding_constraint", "mesh_cast", "reshard", "pvary",
        "pcast")  # fmt: skip
"""Primitives whose result is their operand."""


def _is_cast(step: AppliedPrimitive) -> bool:
    """Accept casts to dtypes that the language has; other than JAX, it says nothing of numbers out of range."""
    return DTYPES.get(step.params["new_dtype"].name) in EVERY and not step.operands[0].dtype.startswith("c")


def _is_plain_choice(step: AppliedPrimitive) -> bool:
    """Accept a choice between two arrays."""
    return step.operands[0].dtype == "bool" and len(step.operands) == 3


def _barrier(emitter: JaxprEmitter, step: AppliedPrimitive) -> Sequence[Value]:
    """Return the operands as arrays of their own, so that what is computed from them is computed again."""
    return [emitter.build("after", value) for value in operands(emitter, step)]


def _link_several(linker: Linker, step: AppliedPrimitive) -> None:
    """Give each result the axes of its own operand."""
    for operand, result in zip(step.operands, step.results, strict=True):
        linker.give(result, operand.axes)
        result.repeated = operand.repeated


RULES: dict[str, PrimitiveRule] = {
    **{name: op(ours) for name, ours in OF_OPS.items()},
    **{
        name: rule(lambda emitter, step, values: values[0], frozenset(DTYPES.values()), moves=True)
        for name in SAME
    },
    "mul": rule(_as_result("mul"), NUMBERS),
    "pow": rule(_as_result("pow"), FLOATS),
    "is_finite": rule(_is_finite, FLOATS),
    "integer_pow": rule(_power, FLOATS),
    "one_minus_square": rule(_one_minus_square, FLOATS),
    "select_n": rule(_choice, _is_plain_choice),
    "convert_element_type": rule(_cast, _is_cast, moves=True),
    "clamp": rule(_clamp, NUMBERS),
    **dict.fromkeys(
        ("device_put", "random_wrap", "random_unwrap"),
        PrimitiveRule(_link_several, operands, takes_keys=True, moves=True),
    ),
    "optimization_barrier": PrimitiveRule(_link_several, _barrier, takes_keys=True, moves=True),
}
