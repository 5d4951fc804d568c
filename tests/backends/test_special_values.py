"""NaN, infinities, zeros of both signs, extreme and denormal numbers in every elementwise op and reduction, against `jax.numpy`.

The interpreter and both backends must give what `jax.numpy` gives, whole and split, forward and in slopes. The tables at the top
name each case in which they differ on purpose.
"""

import warnings
from collections.abc import Callable, Iterator
from typing import Any

import jax
import numpy as np
import pytest

from mtfc.backends.interpreter import interpret
from mtfc.compiler.ir.builder import Builder, Names
from mtfc.compiler.ir.core import Argument, Function, Output, Program, Value
from mtfc.compiler.ir.opdef import no_gradient
from mtfc.compiler.ir.ops import OPS, elementwise
from mtfc.compiler.ir.ops.elementwise import numpy_dtype
from mtfc.compiler.ir.types import FLOATS, Dim, Layout, Mesh, TensorType
from mtfc.compiler.passes.pipelines import lower
from tests import oracle
from tests.backends.models import layout
from tests.harness import call, jax_module, numpy_module

LINE = Mesh("line", (("all", 2),))

FEW_DIGITS = {"exp", "log", "tanh", "sigmoid", "erf", "sin", "cos", "pow", "rsqrt", "sqrt", "div"}
"""Ops that libraries round differently; all others have to agree to the last bit."""

ZERO_OF_ANY_SIGN = {"relu", "sign", "minimum", "maximum"}
"""Ops whose result may be 0 or -0 where both are right: NumPy and XLA differ, and each differs by dtype and length."""

CANCELLATION = {"tanh", "sigmoid"}
"""Ops whose slopes are differences of near numbers: errors are relative to 1."""

SLOPES_OF_OUR_OWN: dict[tuple[str, int], Callable[..., Any]] = {
    # `abs` has slope 0 at 0 and NaN at NaN; JAX's has 1 and -1.
    ("abs", 0): lambda x: (x == 0) | np.isnan(x),
    # JAX divides by y * y, which may be 0 or infinite where y is neither.
    ("div", 1): lambda x, y: np.isinf(x) | (x == 0) | (np.abs(y) >= 1e4) | (np.abs(y) < 1e-3),
    # `x ** y` has no gradient for y where x is not positive; JAX's is NaN. XLA makes 0 of a denormal power.
    ("pow", 1): lambda x, y: (x <= 0) | ((np.abs(x) > 1e38) & (y == -1)),
}
"""Op and operand -> the operands at which the language defines another slope than JAX has."""

ROUNDING = {"f64": 1e-12, "f32": 2e-5, "f16": 4e-3, "bf16": 3e-2}


JAX_SAYS = {**oracle.ELEMENTWISE, "relu": jax.nn.relu, "abs": jax.numpy.abs}
"""Name of an op -> its function of JAX."""


@pytest.fixture(autouse=True)
def narrow_again() -> Iterator[None]:
    """A module that computes in f64 switches all of JAX to it. NumPy warns of NaN and of numbers out of range."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)
        yield
    jax.config.update("jax_enable_x64", False)


def special(dtype: str) -> Any:
    """Return the special numbers of a dtype: an even number of them."""
    kind = numpy_dtype(np, dtype)
    if dtype == "bool":
        return np.array([False, True])
    if dtype in ("i32", "u32"):
        low, high = np.iinfo(kind).min, np.iinfo(kind).max
        return np.array([low, low + 1, high - 1, high, 0, 1, 2, high - 256 if dtype == "u32" else -1], kind)
    import ml_dtypes

    info = ml_dtypes.finfo(kind)
    found = [np.nan, np.inf, -np.inf, 0.0, -0.0, info.max, info.min, info.tiny, -info.tiny, 1, -1, 0.5, 2]
    return np.array([*found, -2, 3, -3, 1e4, -7.5], np.float64).astype(kind)


def pairs(dtype: str) -> tuple[Any, Any]:
    """Return all pairs of special numbers, as two arrays [n]."""
    numbers = special(dtype)
    return np.repeat(numbers, len(numbers)), np.tile(numbers, len(numbers))


def program_of(types: list[TensorType], build: Any) -> Program:
    values = [Value(name, type) for name, type in zip("xyz", types, strict=False)]
    b = Builder(Names("xyz"))
    outputs = tuple(Output(name, value) for name, value in build(b, *values).items())
    arguments = tuple(Argument(value, "input") for value in values)
    dims = {dim.name: dim for type in types for dim in type.dims}
    dims |= {dim.name: dim for value in outputs for dim in value.value.type.dims}
    return Program("p", dims, (), (Function("forward", arguments, tuple(b.body), outputs),))


def results(program: Program, arrays: dict[str, Any], rules: Layout) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the outputs of the interpreter and of both backends, under the layout."""
    function = program.function("forward")
    yield "interpreter", interpret(function, program, arrays)
    local = lower(program, LINE, rules)
    yield "interpreter, lowered", interpret(local.function("forward"), local, arrays)
    yield "NumPy", call(numpy_module(local), local.function("forward"), arrays)
    yield "JAX", call(jax_module(local), local.function("forward"), arrays)


def check(found: Any, wanted: Any, what: str, operands: tuple[Any, ...] = (), **accepted: Any) -> None:
    """Compare bits, with all NaN equal. `accepted` has the differences that are accepted: see `equal`."""
    found, wanted = np.asarray(found), np.asarray(wanted)
    assert found.dtype == wanted.dtype, what
    same = equal(found, wanted, **accepted) if found.dtype.kind not in "iub" else found == wanted
    rows = [tuple(map(str, (*(x[i] for x in operands), found[i], wanted[i]))) for i in np.flatnonzero(~same)]
    assert not rows, f"{what}: {len(rows)} differ: {rows[:9]}"


def equal(
    found: Any, wanted: Any, rounding: float = 0.0, least: float = 0.0, signs: bool = True, own: Any = False
) -> Any:
    """Return where numbers are equal.

    rounding: the relative error, of numbers of size `least` at least. signs: tell 0 from -0. own: where numbers may be any.
    """
    found, wanted = flushed(found), flushed(wanted)
    same = (found == wanted) & ((not signs) | (np.signbit(found) == np.signbit(wanted)))
    with np.errstate(all="ignore"):
        near = np.abs(found - wanted) <= rounding * np.maximum(np.abs(wanted), least)
    return same | (near & (rounding > 0)) | (np.isnan(found) & np.isnan(wanted)) | own


def flushed(x: Any) -> Any:
    """Return the numbers in f64, with zeros for denormal ones: on CPUs, XLA makes them zeros, except in f16."""
    import ml_dtypes

    wide, least = x.astype(np.float64), 0.0 if x.dtype == np.float16 else float(ml_dtypes.finfo(x.dtype).tiny)
    return np.where(np.abs(wide) < least, np.copysign(0.0, wide), wide)


def cases() -> Iterator[tuple[str, str]]:
    for op in (*elementwise.UNARY, *elementwise.BINARY):
        for dtype in ("f64", "f32", "f16", "bf16", "i32", "u32", "bool"):
            types = [TensorType(dtype, (Dim("n", 2),))] * _arity(op.name)
            try:
                op.infer(types, {})
            except Exception:
                continue
            yield op.name, dtype


def _arity(op: str) -> int:
    return 1 if any(each.name == op for each in elementwise.UNARY) else 2


@pytest.mark.parametrize(("op", "dtype"), list(cases()))
def test_forward(op: str, dtype: str) -> None:
    arrays = dict(zip("xy"[: _arity(op)], pairs(dtype), strict=False))
    types = [TensorType(dtype, (Dim("n", len(arrays["x"])),))] * len(arrays)
    program = program_of(types, lambda b, *v: {"it": b(op, *v)})
    with jax.enable_x64(dtype == "f64"):
        wanted = np.asarray(JAX_SAYS[op](*(jax.numpy.asarray(x) for x in arrays.values())))
    accepted = {
        "rounding": ROUNDING.get(dtype, 0.0) * (op in FEW_DIGITS),
        "signs": op not in ZERO_OF_ANY_SIGN,
    }
    for name, found in results(program, arrays, layout(n="all")):
        check(found["it"], wanted, f"{name}: {op}", tuple(arrays.values()), **accepted)


@pytest.mark.parametrize("source", ["f64", "f32", "f16", "bf16", "i32", "u32", "bool"])
@pytest.mark.parametrize("target", ["f64", "f32", "f16", "bf16", "i32", "u32", "bool"])
def test_casts(source: str, target: str) -> None:
    x = special(source)
    if source in FLOATS:
        more = [
            2.0**31,
            2.0**31 - 128,
            -(2.0**31),
            -(2.0**31) - 256,
            2.0**32,
            2.0**32 - 256,
            -0.5,
            -1.5,
            65519.0,
            1e30,
        ]
        x = np.concatenate([x, np.array(more).astype(x.dtype)])
    program = program_of(
        [TensorType(source, (Dim("n", len(x)),))], lambda b, v: {"it": b("cast", v, dtype=target)}
    )
    with jax.enable_x64("f64" in (source, target)):
        wanted = np.asarray(jax.numpy.asarray(x).astype(numpy_dtype(np, target)))
    for name, found in results(program, {"x": x}, layout(n="all")):
        check(found["it"], wanted, f"{name}: {source} to {target}", (x,))


@pytest.mark.parametrize("dtype", ["f64", "f32", "f16", "bf16"])
def test_a_product_with_a_truth_value_keeps_nan(dtype: str) -> None:
    """XLA makes a selection of a product with converted truth values, in which 0 times NaN or infinity is 0."""
    x = special(dtype)
    truth, ids = np.arange(len(x)) % 3 == 0, np.arange(len(x), dtype=np.int32) % 5 - 1
    n, m = Dim("n", len(x)), Dim("m", 4)
    types = [TensorType(dtype, (n,)), TensorType("bool", (n,)), TensorType("i32", (n,))]

    def build(b: Builder, x: Value, truth: Value, ids: Value) -> dict[str, Value]:
        hot = b("one_hot", ids, dim=m, dtype=dtype)
        return {"cast": b("mul", x, b("cast", truth, dtype=dtype)), "one_hot": b("mul", x, hot)}

    wanted = {"cast": x * truth.astype(x.dtype)}
    wanted["one_hot"] = x[:, None] * (ids[:, None] == np.arange(4)).astype(x.dtype)
    arrays = {"x": x, "y": truth, "z": ids}
    for name, found in results(program_of(types, build), arrays, layout(n="all")):
        for kind, expected in wanted.items():
            check(found[kind].ravel(), expected.ravel(), f"{name}: {kind}", signs=False)


REDUCTIONS = ("sum", "max", "min", "prod", "argmax")


@pytest.mark.parametrize("dtype", ["f64", "f32", "f16", "bf16"])
@pytest.mark.parametrize("op", [*REDUCTIONS, "is_argmax", "cumsum", "top_k"])
def test_no_reduction_loses_nan(op: str, dtype: str) -> None:
    """Put NaN of either sign at each place of a row of numbers, and of a row of infinities."""
    rows = [[1, 2, 3, 4, 5, 6, 7, 8], [-np.inf] * 8, [np.inf, *range(7)], [-3.0] * 8, [0, *range(7)]]
    rows += [
        [x if i == j else (j * 5) % 7 - 3 for j in range(8)] for x in (np.nan, -np.nan) for i in range(8)
    ]
    rows += [[np.nan if i == j else s * np.inf for j in range(8)] for s in (1, -1) for i in range(8)]
    rows += [[np.nan] * 8]
    x = np.array(rows, np.float64).astype(numpy_dtype(np, dtype))
    n, m, k = Dim("n", len(x)), Dim("m", 8), Dim("k", 2)
    attributes: dict[str, Any] = {"cumsum": {"dim": m, "exclusive": False, "reverse": False}}.get(
        op, {"over": (m,)}
    )

    def build(b: Builder, v: Value) -> dict[str, Value]:
        if op == "top_k":
            return dict(zip("vi", b.several("top_k", v, names=("v", "i"), dim=m, k=k), strict=True))
        return {"it": b(op, v, **attributes)}

    program = program_of([TensorType(dtype, (n, m))], build)
    with jax.enable_x64(dtype == "f64"):
        wanted = {name: np.asarray(value) for name, value in _expected(op, jax.numpy.asarray(x)).items()}
    rounding = ROUNDING[dtype] * (op in ("sum", "prod", "cumsum"))
    for rules in (layout(), layout(m="all")):
        for name, found in results(program, {"x": x}, rules):
            for output, expected in wanted.items():
                check(
                    found[output].ravel(), expected.ravel(), f"{name}: {op}", rounding=rounding, signs=False
                )


def _expected(op: str, x: Any) -> dict[str, Any]:
    jnp = jax.numpy
    if op == "top_k":
        wide = np.asarray(x).astype(np.float64)
        order = np.array([sorted(range(8), key=lambda i: (not np.isnan(row[i]), -row[i])) for row in wide])
        places = order[:, :2].astype(np.int32)
        return {"v": np.take_along_axis(np.asarray(x), places, 1), "i": places}
    if op == "is_argmax":
        return {"it": jnp.argmax(x, -1)[:, None] == jnp.arange(x.shape[1])}
    if op == "argmax":
        return {"it": jnp.argmax(x, -1).astype(jnp.int32)}
    return {"it": jnp.cumsum(x, -1) if op == "cumsum" else getattr(jnp, op)(x, axis=-1)}


def slopes(b: Builder, op: str, *operands: Value) -> dict[str, Value]:
    """Return the cotangents of the operands by the op's gradient rule, where the cotangent of the result is 1."""
    result = b(op, *operands)
    found = OPS[op].gradient(
        b, b.body[-1], [b("full", dims=result.type.dims, value=1.0, dtype=result.type.dtype)]
    )
    return {f"d{i}": value for i, value in enumerate(found) if value is not None}


@pytest.mark.parametrize("dtype", ["f64", "f32", "f16", "bf16"])
@pytest.mark.parametrize(
    "op", [o.name for o in (*elementwise.UNARY, *elementwise.BINARY) if o.gradient is not no_gradient]
)
def test_slopes(op: str, dtype: str) -> None:
    arrays = dict(zip("xy"[: _arity(op)], pairs(dtype), strict=False))
    types = [TensorType(dtype, (Dim("n", len(arrays["x"])),))] * len(arrays)
    program = program_of(types, lambda b, *v: slopes(b, op, *v))
    with jax.enable_x64(dtype == "f64"):
        y, transposed = jax.vjp(JAX_SAYS[op], *(jax.numpy.asarray(x) for x in arrays.values()))
        wanted = transposed(jax.numpy.ones_like(y))
    accepted = {"rounding": ROUNDING[dtype], "least": float(op in CANCELLATION), "signs": False}
    for name, found in results(program, arrays, layout(n="all")):
        for i, expected in enumerate(wanted):
            own = SLOPES_OF_OUR_OWN.get((op, i), lambda *_: False)(*arrays.values())
            check(
                found[f"d{i}"],
                expected,
                f"{name}: slope {i} of {op}",
                tuple(arrays.values()),
                own=own,
                **accepted,
            )
