"""Every op on every dtype that it accepts: the interpreter and both backends, whole and split, against f64 and JAX."""

from collections.abc import Callable
from typing import Any

import jax
import numpy as np
import pytest

from mtfc.backends.interpreter import interpret
from mtfc.backends.jax import backend as jax_backend
from mtfc.backends.jax import runtime as jax_runtime
from mtfc.backends.numpy import backend as numpy_backend
from mtfc.compiler.ir.builder import Builder, Names
from mtfc.compiler.ir.core import Argument, Function, Output, Program, Value
from mtfc.compiler.ir.opdef import OpError
from mtfc.compiler.ir.ops import OPS, attention, calls, collectives, creation, random
from mtfc.compiler.ir.ops.elementwise import numpy_dtype
from mtfc.compiler.ir.types import FLOATS, Dim, Layout, Mesh, TensorType
from mtfc.compiler.passes.pipelines import lower
from tests import oracle
from tests.backends.cases import groups_of_rows
from tests.backends.models import layout
from tests.backends.small import DIMS
from tests.sampling import some

NUMBERS = FLOATS | {"i32", "u32"}
ALL = NUMBERS | {"bool"}
BOOL = frozenset({"bool"})

A, B, C, LONG, M, SHORT = (DIMS[name] for name in ("a", "b", "c", "long", "m", "short"))
"""Dimensions of sizes 6, 12, 3, 18, 4 and 3."""

Build = Callable[[Any, Value, Value], Value]


def unary(op: str) -> Build:
    return lambda b, x, y: b(op, x)


def binary(op: str) -> Build:
    return lambda b, x, y: b(op, x, y)


def reducing(op: str) -> Build:
    return lambda b, x, y: b(op, x, over=(B,))


def one(x: Value) -> int | bool:
    """Return 1 or true, as an element of the dtype of x."""
    return True if x.type.dtype == "bool" else 1


def condition(b: Any) -> Value:
    """Return a tensor of truth values."""
    return b("lt", b("range", dim=B), b.constant(5, "i32"))  # type: ignore[no-any-return]


def indices(b: Any) -> Value:
    """Return indices, some of which are out of range of every dimension."""
    return b("sub", b("range", dim=LONG), b.constant(2, "i32"))  # type: ignore[no-any-return]


def grouped(b: Any, x: Value, y: Value) -> Value:
    """Return the dots of rows along `b` with the parts of their groups."""
    parts = b("reshape", y, dims=(A, M, C))
    return b("grouped_dot", x, parts, groups_of_rows(b, ["b"], 2, 5, 6, 11), dims=(B, C), group=M)  # type: ignore[no-any-return]


def scattered(b: Any, x: Value, y: Value) -> Value:
    """Return rows of x, two for each index."""
    half = b("slice", indices(b), source=LONG, target=A, start=1, stride=2)
    return b("scatter_add", x, half, dim=M, dims=(M, B))  # type: ignore[no-any-return]


def added(b: Any, x: Value, y: Value) -> Value:
    """Return x with an element of y added in each row, unless the index of the row is out of range."""
    half = b("slice", indices(b), source=LONG, target=A, start=1, stride=2)
    return b("add_at", x, b("gather", y, half, dim=B), half, dim=B)  # type: ignore[no-any-return]


def changed(b: Any, x: Value, y: Value) -> Value:
    """Return x with an element of y in each row, unless the index of the row is out of range."""
    half = b("slice", indices(b), source=LONG, target=A, start=1, stride=2)
    return b("set_at", x, b("gather", y, half, dim=B), half, dim=B)  # type: ignore[no-any-return]


def best(which: int) -> Build:
    return lambda b, x, y: b.several("top_k", x, names=("values", "indices"), dim=B, k=M)[which]


def joined(b: Any, x: Value, y: Value) -> Value:
    cut = b("slice", y, source=B, target=DIMS["d"], start=1, stride=2)
    return b("concat", x, cut, sources=(B, DIMS["d"]), target=LONG)  # type: ignore[no-any-return]


WINDOW = {"source": B, "out": DIMS["d"], "kernel": C, "stride": 2, "before": 1, "after": 0, "dilation": 1}
CUMSUM = {"dim": B, "exclusive": False, "reverse": True}

TEMPLATES: dict[str, tuple[frozenset[str], Build]] = {
    **{
        op: (FLOATS, unary(op))
        for op in ("exp", "log", "tanh", "sigmoid", "sqrt", "rsqrt", "erf", "sin", "cos", "floor")
    },
    **{op: (NUMBERS, unary(op)) for op in ("neg", "relu", "square", "abs", "sign")},
    "not": (BOOL, unary("not")),
    "stop_gradient": (ALL, unary("stop_gradient")),
    **{op: (FLOATS, binary(op)) for op in ("div", "pow")},
    **{
        op: (NUMBERS, binary(op))
        for op in ("add", "sub", "mul", "minimum", "maximum", "lt", "le", "gt", "ge")
    },
    **{op: (ALL, binary(op)) for op in ("eq", "ne")},
    **{op: (BOOL, binary(op)) for op in ("and", "or")},
    "where": (ALL, lambda b, x, y: b("where", condition(b), x, y)),
    "mask": (NUMBERS, lambda b, x, y: b("mask", condition(b), x)),
    **{op: (NUMBERS, reducing(op)) for op in ("sum", "max", "min", "argmax", "is_argmax")},
    "prod": (FLOATS, reducing("prod")),
    **{op: (BOOL, reducing(op)) for op in ("any", "all")},
    "cumsum": (NUMBERS, lambda b, x, y: b("cumsum", x, **CUMSUM)),
    "einsum": (
        NUMBERS,
        lambda b, x, y: b.einsum(x, b("rename", y, mapping=((A, DIMS["d"]),)), dims=(A, DIMS["d"])),
    ),
    "grouped_dot": (FLOATS, grouped),
    "broadcast": (ALL, lambda b, x, y: b("broadcast", x, dims=(B, C, A))),
    "transpose": (ALL, lambda b, x, y: b("transpose", x, dims=(B, A))),
    "rename": (ALL, lambda b, x, y: b("rename", x, mapping=((A, DIMS["d"]),))),
    "reshape": (ALL, lambda b, x, y: b("reshape", x, dims=(M, LONG))),
    "slice": (ALL, lambda b, x, y: b("slice", x, source=B, target=M, start=1, stride=3)),
    "pad": (ALL, lambda b, x, y: b("pad", x, source=B, target=LONG, before=2, stride=1, value=one(x))),
    "flip": (ALL, lambda b, x, y: b("flip", x, dim=B)),
    "interleave": (ALL, lambda b, x, y: b("interleave", x, dim=B, among=A, back=False)),
    "after": (ALL, lambda b, x, y: b("after", x, y)),
    "shift": (ALL, lambda b, x, y: b("shift", x, dim=B, by=5, wrap=False)),
    "concat": (ALL, joined),
    "window": (ALL, lambda b, x, y: b("window", x, **WINDOW, value=one(x))),
    "fold": (NUMBERS, lambda b, x, y: b("fold", b("window", x, **WINDOW, value=1), **WINDOW)),
    "gather": (ALL, lambda b, x, y: b("gather", x, indices(b), dim=B)),
    "scatter_add": (NUMBERS, scattered),
    "add_at": (NUMBERS, added),
    "set_at": (ALL, changed),
    "top_k": (NUMBERS, best(0)),
    "top_k indices": (NUMBERS, best(1)),
    **{f"cast to {dtype}": (ALL, lambda b, x, y, d=dtype: b("cast", x, dtype=d)) for dtype in sorted(ALL)},
}
"""Name of a result -> the dtypes that x and y, both [a, b], may have, and the function that builds it."""

TOLERANCE = {"f64": 1e-12, "f32": 1e-5, "f16": 4e-3, "bf16": 3e-2}
"""Tolerance relative to the largest element of a result, or to 1: some units in the last place."""

GRID = Mesh("grid", (("rows", 2), ("cols", 3)))
PLACEMENTS = (
    (Mesh("one", (("all", 1),)), layout()),
    (GRID, layout(a="rows", b="cols")),
    (GRID, layout(b="rows", d="cols")),
)


def program_of(dtype: str, build: dict[str, Build]) -> Program:
    values = [Value(name, TensorType(dtype, (A, B))) for name in "xy"]
    b = Builder(Names("xy"))
    outputs = tuple(Output(name.replace(" ", "_"), each(b, *values)) for name, each in build.items())
    arguments = tuple(Argument(value, "input") for value in values)
    return Program("p", DIMS, (), (Function("forward", arguments, tuple(b.body), outputs),))


def accepts(dtype: str, build: Build) -> bool:
    try:
        program_of(dtype, {"it": build})
    except OpError:
        return False
    return True


def accepted(dtype: str) -> Program:
    """Return a program with one output for each op that takes the dtype."""
    return program_of(dtype, {name: build for name, (dtypes, build) in TEMPLATES.items() if dtype in dtypes})


def inputs(dtype: str) -> dict[str, Any]:
    """Draw x > 0 and y != 0, multiples of 1/4 if the dtype has fractions; or any truth values."""
    draw = np.random.default_rng(5)
    x, y = draw.integers(1, 9, (2, A.size, B.size))
    if dtype == "bool":
        x, y = x % 2, y % 2
    else:
        y = y if dtype == "u32" else y * draw.choice([-1, 1], y.shape)
    scale = 4 if dtype in FLOATS else 1
    return {name: (value / scale).astype(numpy_dtype(np, dtype)) for name, value in (("x", x), ("y", y))}


def check(found: dict[str, Any], expected: dict[str, Any], program: Program) -> None:
    for output in program.function("forward").outputs:
        value, wanted, dtype = np.asarray(found[output.name]), expected[output.name], output.value.type.dtype
        assert value.dtype == numpy_dtype(np, dtype), output.name
        if dtype not in FLOATS:
            np.testing.assert_array_equal(value, wanted, err_msg=output.name)
            continue
        scale = max(1.0, float(np.abs(wanted.astype(np.float64)).max()))
        atol = TOLERANCE[dtype] * scale
        np.testing.assert_allclose(np.float64(value), np.float64(wanted), 0, atol, err_msg=output.name)


@pytest.mark.parametrize("name", TEMPLATES)
def test_ops_accept_these_dtypes(name: str) -> None:
    dtypes, build = TEMPLATES[name]
    assert {dtype for dtype in ALL if accepts(dtype, build)} == dtypes


def test_every_op_with_operands_is_there() -> None:
    covered = {eqn.op for dtype in ALL for eqn in accepted(dtype).function("forward").body}
    elsewhere = {op.name for family in (attention, calls, collectives, creation, random) for op in family.OPS}
    assert OPS.keys() - elsewhere <= covered


@pytest.mark.parametrize("dtype", some(sorted(ALL), 3))
def test_results_are_those_of_wide_numbers(dtype: str) -> None:
    """Return the results, in f64 for floats. Integers wrap around in all backends alike."""
    program, arrays = accepted(dtype), inputs(dtype)
    exact = accepted("f64") if dtype in FLOATS else program
    wide = inputs("f64") if dtype in FLOATS else arrays
    expected = interpret(exact.function("forward"), exact, wide)
    check(interpret(program.function("forward"), program, arrays), expected, program)
    for mesh, rules in PLACEMENTS:
        local = lower(program, mesh, rules)
        check(interpret(local.function("forward"), local, arrays), expected, program)
        for module in (
            numpy_backend.load(numpy_backend.generate(local)),
            jax_runtime.load(jax_backend.generate(local)),
        ):
            outputs = module.forward({}, module.shard(arrays, module.INPUTS))
            check(module.unshard(outputs, module.OUTPUTS["forward"]), expected, program)


@pytest.mark.parametrize("dtype", ["i32", "u32", "bool"])
def test_integers_are_what_jax_says(dtype: str) -> None:
    known = oracle.ELEMENTWISE.keys() | oracle.REDUCTIONS.keys() | oracle.STRUCTURE.keys() | {"top_k"}
    build = {name: build for name, (dtypes, build) in TEMPLATES.items() if dtype in dtypes}
    told = {name: each for name, each in build.items() if all(eqn.op in known for eqn in _body(dtype, each))}
    program, arrays = program_of(dtype, told), inputs(dtype)
    found = interpret(program.function("forward"), program, arrays)
    with jax.enable_x64(True):
        expected = oracle.evaluate(program.function("forward"), list(arrays.values()))
    check(found, {name: np.asarray(value) for name, value in expected.items()}, program)
    assert len(told) >= 15


def _body(dtype: str, build: Build) -> tuple[Any, ...]:
    return program_of(dtype, {"it": build}).function("forward").body


# Sums of 16-bit numbers


LONG_SUM = 6000
"""A sum of ones in bf16 stops at 256, and in f16 at 2048."""


def long_sums(b: Any, x: Value, dim: Dim) -> dict[str, Value]:
    zeros = b("mul", b("range", dim=dim), b.constant(0, "i32"))
    sums = b("cumsum", x, dim=dim, exclusive=False, reverse=False)
    return {
        "sum": b("sum", x, over=(dim,)),
        "einsum": b.einsum(x, x, dims=()),
        "cumsum": b("max", sums, over=(dim,)),
        "scatter_add": b("scatter_add", x, zeros, dim=SHORT, dims=(SHORT,)),
    }


@pytest.mark.parametrize("dtype", ["bf16", "f16"])
@pytest.mark.parametrize("rules", [layout(), layout(n="all")])
def test_sums_of_16_bit_numbers_are_kept_in_32(dtype: str, rules: Layout) -> None:
    dim, x = Dim("n", LONG_SUM), Value("x", TensorType(dtype, (Dim("n", LONG_SUM),)))
    b = Builder(Names("x"))
    outputs = tuple(Output(name, value) for name, value in long_sums(b, x, dim).items())
    function = Function("forward", (Argument(x, "input"),), tuple(b.body), outputs)
    program = Program("p", {"n": dim, "short": SHORT}, (), (function,))
    local, arrays = (
        lower(program, Mesh("line", (("all", 4),)), rules),
        {"x": np.ones(dim.size, numpy_dtype(np, dtype))},
    )
    results = [interpret(program.function("forward"), program, arrays)]
    for module in (
        numpy_backend.load(numpy_backend.generate(local)),
        jax_runtime.load(jax_backend.generate(local)),
    ):
        results.append(
            module.unshard(module.forward({}, module.shard(arrays, module.INPUTS)), module.OUTPUTS["forward"])
        )
    for found in results:
        for name, value in found.items():
            assert abs(float(np.max(value.astype(np.float64))) - LONG_SUM) <= LONG_SUM / 256, name
