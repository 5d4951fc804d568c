"""A small program for every op, with the operands that its text has to cope with."""

from __future__ import annotations

from typing import Any

import attrs

from mtfc.compiler.ir.core import Value
from tests.backends.small import DIMS, Case


def unary(op: str, dtype: str = "f32") -> Case:
    return Case([f"{dtype} a b"], lambda b, x: b(op, x))


def positive(op: str) -> Case:
    return Case(["f32 a b"], lambda b, x: b(op, b("add", b("square", x), b.like(0.5, x))))


def binary(op: str, dtype: str = "f32") -> Case:
    """Of operands in different storage orders, of which one lacks a dim, and with a scalar on either side."""

    def build(b: Any, x: Value, y: Value, z: Value, s: Value) -> list[Value]:
        return [b(op, x, y), b(op, x, z), b(op, z, x), b(op, x, s), b(op, s, x)]

    return Case([f"{dtype} a b c", f"{dtype} c a b", f"{dtype} c a", dtype], build)


def with_numbers(op: str, dtype: str, *numbers: float | int) -> Case:
    """Against literals; of two constants alone none can be written as a number."""

    def build(b: Any, x: Value) -> list[Value]:
        constants = [b.constant(number, dtype) for number in numbers]
        return [
            b(op, constants[0], constants[1]),
            *(b(op, x, c) for c in constants),
            *(b(op, c, x) for c in constants),
        ]

    return Case([f"{dtype} a b"], build)


def reduction(op: str, dtype: str = "f32") -> Case:
    """Over the first dim, the last two, and all."""

    def build(b: Any, x: Value) -> list[Value]:
        p, q, r = x.type.dims
        return [b(op, x, over=(p,)), b(op, x, over=(r, q)), b(op, x, over=(p, q, r))]

    return Case([f"{dtype} b a five"], build)


def einsum(*terms: str, dtype: str = "f32", tolerance: float = 1e-5) -> Case:
    *operands, result = terms
    dims = tuple(DIMS[name] for name in result.split())
    return Case([f"{dtype} {term}" for term in operands], lambda b, *xs: b.einsum(*xs, dims=dims), tolerance)


def one(op: str, *inputs: str, **attributes: Any) -> Case:
    return Case(inputs, lambda b, *xs: b(op, *xs, **attributes))


UNARY = (
    "neg",
    "relu",
    "exp",
    "tanh",
    "sigmoid",
    "square",
    "abs",
    "sign",
    "erf",
    "sin",
    "cos",
    "floor",
    "stop_gradient",
)
BINARY = ("add", "sub", "mul", "minimum", "maximum", "lt", "le", "gt", "ge", "eq", "ne")
A, B, C, D, M, LONG, SHORT = (DIMS[name] for name in ("a", "b", "c", "d", "m", "long", "short"))
CASES = {
    **{op: unary(op) for op in UNARY},
    **{op: positive(op) for op in ("log", "sqrt", "rsqrt")},
    **{op: binary(op) for op in BINARY},
    "div": Case(["f32 a b", "f32 b"], lambda b, x, y: b("div", x, b("add", b("square", y), b.like(1, y)))),
    "pow": Case(["f32 a b", "f32 b"], lambda b, x, y: b("pow", b("exp", x), y)),
    "neg i32": unary("neg", "i32"),
    "relu bf16": unary("relu", "bf16"),
    "sigmoid bf16": attrs.evolve(unary("sigmoid", "bf16"), tolerance=0.01),
    "erf bf16": attrs.evolve(unary("erf", "bf16"), tolerance=0.01),
    "exp f64": unary("exp", "f64"),
    "sqrt f16": Case(["f16 a b"], lambda b, x: b("sqrt", b("square", x)), 0.01),
    "add i32": binary("add", "i32"),
    "mul u32": binary("mul", "u32"),
    **{f"{op} bool": binary(op, "bool") for op in ("and", "or", "eq", "ne")},
    "not": unary("not", "bool"),
    "numbers f32": with_numbers("mul", "f32", 0.1, -3, 2),
    "numbers bf16": attrs.evolve(with_numbers("mul", "bf16", 0.5, -3.0, 2), tolerance=0.01),
    "numbers f16": attrs.evolve(with_numbers("add", "f16", 0.5, -3.0, 2), tolerance=0.01),
    "numbers i32": with_numbers("sub", "i32", 7, -2),
    "where": one("where", "bool a", "f32 a b", "f32 b"),
    "where numbers": Case(["bool a b"], lambda b, c: b("where", c, b.constant(0.25, "f32"), b.constant(-1.0, "f32"))),
    "where infinite": Case(["bool a b", "f32 b"], lambda b, c, x: b("where", c, x, b.constant(float("-inf"), "f32"))),
    "mask": one("mask", "bool b", "f32 a b"),
    "mask bf16": one("mask", "bool a b", "bf16 b"),
    **{f"cast to {dtype}": one("cast", "f32 a b", dtype=dtype) for dtype in ("bf16", "f16", "f64", "i32", "bool")},
    "cast from i32": one("cast", "i32 a b", dtype="f32"),
    **{op: reduction(op) for op in ("sum", "max", "min")},
    "prod": Case(["f32 a b"], lambda b, x: b("prod", x, over=(A,))),
    "sum i32": reduction("sum", "i32"),
    "sum u32": reduction("sum", "u32"),
    "sum bf16": attrs.evolve(reduction("sum", "bf16"), tolerance=0.1),
    "any": reduction("any", "bool"),
    "all": reduction("all", "bool"),
    "argmax": one("argmax", "f32 b a", over=(A,)),
    "einsum": einsum("a b", "b c", "a c"),
    "einsum transposed": einsum("b a", "c b", "c a"),
    "einsum in a batch": einsum("a b c", "b m a", "m a c"),
    "einsum batch inside": einsum("m a b", "b a c", "c m a"),
    "einsum inner": einsum("a b", "b a", ""),
    "einsum inner in a batch": einsum("a b c", "c b a", "b"),
    "einsum outer": einsum("a", "b", "b a"),
    "einsum matrix by vector": einsum("a b", "b", "a"),
    "einsum summed alone": einsum("a b c", "b m five", "m a"),
    "einsum of one": einsum("a b c", "c a"),
    "einsum of three": einsum("a b", "b c", "c m", "a m"),
    "einsum of sizes one": einsum("a one", "one b", "a b"),
    "einsum i32": einsum("a b", "b c", "a c", dtype="i32"),
    "einsum bf16": einsum("a b", "b c", "a c", dtype="bf16", tolerance=0.05),
    "einsum f16": einsum("a b", "b c", "a c", dtype="f16", tolerance=0.01),
    "einsum f64": einsum("a b", "b c", "a c", dtype="f64"),
    "broadcast": one("broadcast", "f32 b", dims=(A, B, C)),
    "broadcast inside": one("broadcast", "f32 c a", dims=(A, B, C)),
    "broadcast number": Case([], lambda b: b("broadcast", b.constant(2.5, "f32"), dims=(A, B))),
    "transpose": one("transpose", "f32 a b c", dims=(C, A, B)),
    "rename": one("rename", "f32 a b", mapping=((A, D),)),
    "reshape to split": one("reshape", "f32 a b", dims=(A, C, M)),
    "reshape to merge": one("reshape", "f32 c a", dims=(LONG,)),
    "reshape across": one("reshape", "f32 a b", dims=(M, LONG)),
    "slice": one("slice", "f32 a b", source=B, target=SHORT, start=2, stride=3),
    "pad": one("pad", "f32 c a", source=A, target=B, before=1, stride=2, value=1.5),
    "pad bf16": one("pad", "bf16 c a", source=A, target=LONG, before=0, stride=1, value=0.0),
    **{
        f"shift by {by}{' round' * wrap}": one("shift", "f32 c a b", dim=A, by=by, wrap=bool(wrap))
        for by in (2, -1, 0, 9, -9)
        for wrap in (0, 1)
    },
    "concat": one("concat", "f32 m a c", "f32 m d c", sources=(A, D), target=B),
    "full": one("full", dtype="f32", dims=(A, B), value=0.1),
    "constant": Case([], lambda b: b.constant(7, "i32")),
    "range": one("range", dim=B),
    "one_hot": one("one_hot", "i32 a c", dim=B, dtype="f32"),
}  # fmt: skip
