"""A small program for every op, with operands that are hard for its text."""

from collections.abc import Callable, Sequence
from functools import partial, reduce
from typing import Any

import attrs

from mtfc.compiler.ir.core import Value
from mtfc.compiler.ir.ops import elementwise
from mtfc.compiler.ir.types import Dim
from tests.backends.small import DIMS, Case


def unary(op: str, dtype: str = "f32") -> Case:
    return Case([f"{dtype} a b"], lambda b, x: b(op, x))


def positive(op: str) -> Case:
    return Case(["f32 a b"], lambda b, x: b(op, b("add", b("square", x), b.like(0.5, x))))


def binary(op: str, dtype: str = "f32") -> Case:
    """Return an op of operands in different storage orders, one of which lacks a dimension, and with a scalar on either side."""

    def build(b: Any, x: Value, y: Value, z: Value, s: Value) -> list[Value]:
        return [b(op, x, y), b(op, x, z), b(op, z, x), b(op, x, s), b(op, s, x)]

    return Case([f"{dtype} a b c", f"{dtype} c a b", f"{dtype} c a", dtype], build)


def with_numbers(op: str, dtype: str, *numbers: float | int) -> Case:
    """Combine operands with literals. Of two constants, neither can be written as a number."""

    def build(b: Any, x: Value) -> list[Value]:
        constants = [b.constant(number, dtype) for number in numbers]
        return [
            b(op, constants[0], constants[1]),
            *(b(op, x, c) for c in constants),
            *(b(op, c, x) for c in constants),
        ]

    return Case([f"{dtype} a b"], build)


def reduction(op: str, dtype: str = "f32") -> Case:
    """Reduce over the first dimension, the last two, and all."""

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


def top_k(operand: str, dim: Dim, k: Dim) -> Case:
    return Case([operand], lambda b, x: b.several("top_k", x, names=("values", "indices"), dim=dim, k=k))


def window(operand: str, source: Dim, out: Dim, kernel: Dim, value: Any = 0.0, **numbers: int) -> Case:
    return one(
        "window", operand, source=source, out=out, kernel=kernel, value=value, **{**NO_PADDING, **numbers}
    )


def fold(operand: str, source: Dim, out: Dim, kernel: Dim, **numbers: int) -> Case:
    return one("fold", operand, source=source, out=out, kernel=kernel, **{**NO_PADDING, **numbers})


def windows_of_windows(op: str) -> Callable[..., Value]:
    """Make windows of two dimensions, one after the other, and fold them in reverse order."""
    first = {**NO_PADDING, "source": B, "out": A, "kernel": C, "stride": 2, "before": 1}
    second = {**NO_PADDING, "source": LONG, "out": LONG, "kernel": FIVE, "before": 2, "after": 2}
    more: dict[str, Any] = {"value": 0.5} if op == "window" else {}
    order = (first, second) if op == "window" else (second, first)
    return lambda b, x: b(op, b(op, x, **order[0], **more), **order[1], **more)


def drawn(op: str, dtype: str, b: Any) -> list[Value]:
    """Return a tensor and a single number."""
    return [b(op, dims=dims, stream="noise", dtype=dtype) for dims in ((A, B), ())]


def groups_of_rows(b: Any, rows: Sequence[str], *ends: int) -> Value:
    """Return for each row how many numbers are at most the distance of its own number from 3, so that groups are in no order."""
    index = b.constant(0, "i32")
    for name in rows:
        number = b("range", dim=DIMS[name])
        scaled = b("mul", index, b.constant(DIMS[name].size, "i32"))
        dims = (*scaled.type.dims, DIMS[name])
        index = b("add", b("broadcast", scaled, dims=dims), number)
    distance = b("sub", index, b.constant(3, "i32"))
    distance = b("maximum", distance, b("neg", distance))
    counted = [b.cast(b("ge", distance, b.constant(end, "i32")), "i32") for end in ends]
    return reduce(partial(b, "add"), counted)


def grouped(x: str, y: str, rows: str, group: str, result: str, *ends: int, tolerance: float = 1e-5) -> Case:
    """Return a dot of groups of rows; the last group may have rows that belong to none."""
    dims = tuple(DIMS[name] for name in result.split())

    def build(b: Any, x: Value, y: Value) -> Value:
        numbers = groups_of_rows(b, rows.split(), *ends)
        return b("grouped_dot", x, y, numbers, dims=dims, group=DIMS[group])

    return Case([x, y], build, tolerance)


NO_PADDING = {"stride": 1, "before": 0, "after": 0, "dilation": 1}
POSITIVE = ("log", "sqrt", "rsqrt")
UNARY = tuple(op.name for op in elementwise.UNARY if op.name not in (*POSITIVE, "not"))
BINARY = ("add", "sub", "mul", "minimum", "maximum", "lt", "le", "gt", "ge", "eq", "ne")
A, B, C, D, M, FIVE, ONE, LONG, SHORT = (
    DIMS[name] for name in ("a", "b", "c", "d", "m", "five", "one", "long", "short")
)
CASES = {
    **{op: unary(op) for op in UNARY},
    **{op: positive(op) for op in POSITIVE},
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
    "is_argmax": one("is_argmax", "f32 b a", over=(A,)),
    "is_argmax of several": one("is_argmax", "i32 c a b", over=(B, C)),
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
    "grouped_dot": grouped("f32 b a", "f32 m a c", "b", "m", "b c", 2, 5, 6, 11),
    "grouped_dot transposed": grouped("f32 a b", "f32 c m a", "b", "m", "c b", 2, 2, 6),
    "grouped_dot of two row dimensions": grouped("f32 c b a five", "f32 d b m", "c a", "m", "d a five c", 4, 9, 9, 17),
    "grouped_dot of empty groups": grouped("f32 b a", "f32 m a c", "b", "m", "b c", 0, 0, 12, 12),
    "grouped_dot by group": grouped("f32 b a", "f32 c b", "b", "m", "c m a", 2, 5, 6, 11),
    "grouped_dot by group of two row dimensions": grouped("f32 c b a", "f32 five a c", "c a", "m", "m b five", 4, 9, 9),
    "grouped_dot of repeated rows": grouped("f32 b a", "f32 m a d", "b c", "m", "c b d", 2, 2, 9, 17),
    "grouped_dot by group of repeated rows": grouped("f32 b a", "f32 c d", "b c", "m", "m a d", 2, 2, 9, 17),
    "grouped_dot of batches": grouped("f32 b c a", "f32 c m a d", "b c", "m", "b d c", 2, 2, 9, 17),
    "grouped_dot by group of batches": grouped("f32 a b", "f32 c d b", "b c", "m", "m d c a", 2, 2, 9, 17),
    "grouped_dot bf16": grouped("bf16 b a", "bf16 m a c", "b", "m", "b c", 2, 5, 6, tolerance=0.05),
    "broadcast": one("broadcast", "f32 b", dims=(A, B, C)),
    "broadcast inside": one("broadcast", "f32 c a", dims=(A, B, C)),
    "broadcast number": Case([], lambda b: b("broadcast", b.constant(2.5, "f32"), dims=(A, B))),
    "transpose": one("transpose", "f32 a b c", dims=(C, A, B)),
    "rename": one("rename", "f32 a b", mapping=((A, D),)),
    "reshape to split": one("reshape", "f32 a b", dims=(A, C, M)),
    "reshape to merge": one("reshape", "f32 c a", dims=(LONG,)),
    "reshape across": one("reshape", "f32 a b", dims=(M, LONG)),
    "slice": one("slice", "f32 a b", source=B, target=SHORT, start=2, stride=3),
    "slice block by block": one("slice", "f32 m b", source=B, target=A, start=1, stride=2),
    "slice across blocks": one("slice", "bool long m", source=LONG, target=A, start=5, stride=1),
    "slice the end": one("slice", "f32 long m", source=LONG, target=B, start=1, stride=1),
    "window": window("f32 c b m", B, A, SHORT, stride=2, before=1),
    "window of the dim itself": window("f32 b m", B, B, C, before=1, after=1),
    "window with numbers around": window("bf16 c long", LONG, A, M, -1.5, stride=3, before=2, after=3, dilation=2),
    "window with gaps": window("f32 long m", LONG, A, ONE, stride=3),
    "window longer than a block": window("f32 m a", A, D, FIVE, 2.0, before=4, after=4, dilation=2),
    "window across blocks": window("f32 long c", LONG, B, M, 0.5, dilation=2),
    "window i32": window("i32 b m", B, A, SHORT, 7, stride=2, before=1),
    "window bool": window("bool b m", B, A, SHORT, True, stride=2, before=1),
    "windows of windows": Case(["f32 b m long"], windows_of_windows("window")),
    "fold": fold("f32 c a short", B, A, SHORT, stride=2, before=1),
    "fold of the dim itself": fold("f32 c b m", B, B, C, before=1, after=1),
    "fold with gaps": fold("f32 m a one", LONG, A, ONE, stride=3),
    "fold longer than a block": fold("f64 d m five", A, D, FIVE, before=4, after=4, dilation=2),
    "fold bf16": attrs.evolve(fold("bf16 a m", LONG, A, M, stride=3, before=2, after=3, dilation=2), tolerance=0.1),
    "folds of folds": Case(["f32 a c long m five"], windows_of_windows("fold")),
    "pad across blocks": one("pad", "f32 m b", source=B, target=LONG, before=2, stride=1, value=2.5),
    "pad in between": one("pad", "f32 m a", source=A, target=LONG, before=1, stride=3, value=0.0),
    "pad": one("pad", "f32 c a", source=A, target=B, before=1, stride=2, value=1.5),
    "pad bf16": one("pad", "bf16 c a", source=A, target=LONG, before=0, stride=1, value=0.0),
    **{
        f"shift by {by}{' round' * wrap}": one("shift", "f32 c a b", dim=A, by=by, wrap=bool(wrap))
        for by in (2, -1, 0, 9, -9)
        for wrap in (0, 1)
    },
    "flip": one("flip", "f32 c a b", dim=A),
    "flip bool": one("flip", "bool a b", dim=B),
    "interleave": one("interleave", "f32 c a b", dim=A, among=B, back=False),
    "interleave back": one("interleave", "f32 b c a", dim=A, among=B, back=True),
    "interleave bool": one("interleave", "bool a b", dim=B, among=A, back=False),
    "after": one("after", "f32 a b", "f32 b c"),
    "after nothing": one("after", "f32 a b"),
    "concat": one("concat", "f32 m a c", "f32 m d c", sources=(A, D), target=B),
    "full": one("full", dtype="f32", dims=(A, B), value=0.1),
    "constant": Case([], lambda b: b.constant(7, "i32")),
    "range": one("range", dim=B),
    "gather": one("gather", "f32 a b", "i32 c d", dim=A),
    "gather inside": one("gather", "f32 b m c", "i32 d", dim=M),
    "gather in a batch": one("gather", "f32 b m c", "i32 d c a", dim=M),
    "gather in a larger batch": one("gather", "f32 m b c", "u32 c b", dim=M),
    "gather bool": one("gather", "bool m b", "i32 a", dim=M),
    "gather bf16": one("gather", "bf16 c b", "i32 a", dim=C),
    "scatter_add": one("scatter_add", "f32 d c b", "i32 d c", dim=A, dims=(A, B)),
    "scatter_add inside": one("scatter_add", "f32 d b c", "i32 d", dim=M, dims=(B, M, C)),
    "scatter_add in a batch": one("scatter_add", "i32 d c a b", "i32 d c a", dim=M, dims=(B, M, C)),
    "scatter_add bf16": attrs.evolve(
        one("scatter_add", "bf16 b a", "u32 b a", dim=M, dims=(A, M)), tolerance=0.1
    ),
    "add_at": one("add_at", "f32 c a b", "f32 c b", "i32 c", dim=A),
    "add_at at one place": one("add_at", "f32 c m b", "f32 c b", "i32", dim=M),
    "add_at in a batch": one("add_at", "i32 b m c", "i32 c b", "u32 c b", dim=M),
    "set_at": one("set_at", "f32 c a b", "f32 c b", "i32 c", dim=A),
    "set_at at one place": one("set_at", "bf16 c m b", "bf16 c b", "i32", dim=M),
    "set_at in a batch": one("set_at", "bool b m c", "bool c b", "u32 c b", dim=M),
    "add_at bf16": attrs.evolve(one("add_at", "bf16 m b", "bf16 b", "i32 b", dim=M), tolerance=0.1),
    "cumsum": one("cumsum", "f32 b a c", dim=A, exclusive=False, reverse=False),
    "cumsum exclusive": one("cumsum", "f32 b a", dim=B, exclusive=True, reverse=False),
    "cumsum reverse": one("cumsum", "i32 b a", dim=B, exclusive=False, reverse=True),
    "cumsum exclusive reverse": one("cumsum", "f64 a b", dim=B, exclusive=True, reverse=True),
    "cumsum bf16": attrs.evolve(
        one("cumsum", "bf16 a b", dim=B, exclusive=False, reverse=False), tolerance=0.1
    ),
    **{f"top_k {dtype}": top_k(f"{dtype} a b c", B, M) for dtype in ("f32", "i32", "u32", "bf16")},
    "top_k last": top_k("f32 a b", B, SHORT),
    "top_k all": top_k("f64 b a", A, D),
    **{
        f"{op} {dtype}": Case([], partial(drawn, op, dtype))
        for op in ("uniform", "normal")
        for dtype in ("f32", "f64", "bf16", "f16")
    },
    "bernoulli": Case([], lambda b: b("bernoulli", dims=(B, A, C), stream="mask", p=0.3)),
    "bernoulli in a loop": Case(
        ["i32"], lambda b, i: b("bernoulli", b("step_number"), i, dims=(A, B), stream="mask", p=0.9)
    ),
    "training": Case([], lambda b: b("training")),
    "one_hot": one("one_hot", "i32 a c", dim=B, dtype="f32"),
    "one_hot of one": one("one_hot", "i32", dim=B, dtype="f32"),
}  # fmt: skip
