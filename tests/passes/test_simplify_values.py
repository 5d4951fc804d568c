"""Every row of the table of `simplify` keeps every bit of every result, for all dtypes and for special numbers.

For each op and dtype one program applies the op to operands of all forms that rows look for: constants, tensors filled with a
number, broadcasts, transposes, and results of other ops. The interpreter runs the program before and after `simplify`. A row that
no program triggers is a failure, so a new row needs a form or a case here.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from itertools import product
from typing import Any

import attrs
import numpy as np

from mtfc.backends.interpreter import interpret
from mtfc.compiler.ir.builder import Builder, Names, VerifyError
from mtfc.compiler.ir.core import Argument, Function, Output, Program, Value
from mtfc.compiler.ir.numbers import SIGNIFICANDS
from mtfc.compiler.ir.opdef import OpError
from mtfc.compiler.ir.ops import OPS, elementwise
from mtfc.compiler.ir.ops.elementwise import numpy_dtype
from mtfc.compiler.ir.types import FLOATS, Dim, TensorType
from mtfc.compiler.passes import simplify
from mtfc.compiler.passes.simplify import TABLE, RewriteContext, simplified
from tests.sampling import EVERY_CASE

DTYPES = ("f16", "bf16", "f32", "f64", "i32", "u32", "bool")

FEW_DTYPES = ("bf16", "f32", "i32", "bool")
"""A dtype of each kind: those of `make test`."""

HALVED = ("f16", "bf16", "f64")
"""Dtypes whose elementwise ops take every second form: `f32` has them all."""

A, B, C, D = Dim("a", 2), Dim("b", 16), Dim("c", 3), Dim("d", 2)
"""Sums are over `a`: two numbers have the same sum in any order."""

HALF, QUARTER, FLAT, WIDE, LONG = Dim("h", 8), Dim("q", 4), Dim("ab", 32), Dim("e", 5), Dim("f", 17)

Row = tuple[str, int]
"""An op, and the place of a rule among those of the op."""


def smallest(dtype: str) -> tuple[float, float]:
    """Return the smallest normal number of a dtype, and the smallest of all."""
    bits, least, _ = SIGNIFICANDS[dtype]
    return math.ldexp(0.5, least), math.ldexp(0.5, least - bits + 1)


def largest(dtype: str) -> float:
    bits, _, most = SIGNIFICANDS[dtype]
    return math.ldexp(1 - 2.0**-bits, most)


def special(dtype: str) -> list[Any]:
    """Return 16 numbers of a dtype: special ones, their neighbours, and ordinary ones."""
    if dtype == "bool":
        return [True, False, False, True] * 4
    if dtype not in FLOATS:
        low, high = (-(2**31), 2**31 - 1) if dtype == "i32" else (0, 2**32 - 1)
        return [low, high, 0, 1, 2, 3, high - 1, low + 1, 2**30, 2**16, 7, 7, 5, high // 3, low // 2, 1]
    normal, denormal = smallest(dtype)
    most = largest(dtype)
    finite = [0.0, -0.0, 1.0, -1.0, 1.5, 3.0, most, -most, normal, -normal, denormal, 3 * denormal, -0.1]
    return [math.nan, math.inf, -math.inf, *finite]


def numbers(dtype: str) -> list[Any]:
    """Return the numbers that constants have."""
    if dtype == "bool":
        return [True, False]
    if dtype not in FLOATS:
        return [0, 1, 2, 3, 2**31 - 1, *([-1, -3, -(2**31)] if dtype == "i32" else [2**32 - 1])]
    normal, denormal = smallest(dtype)
    plain = [0.0, -0.0, 1.0, -1.0, 2.0, 0.5, 0.1, 3.0]
    return [*plain, math.inf, -math.inf, math.nan, largest(dtype), normal, denormal]


class Case:
    """A program for one op and dtype: its arguments, and an output for each application that the op accepts."""

    def __init__(self, dtype: str) -> None:
        self.dtype = dtype
        self.builder = Builder(Names())
        self.arguments: dict[Value, Any] = {}
        self.outputs: list[Value] = []
        found = np.array(special(dtype), numpy_dtype(np, dtype))
        turned = np.roll(found, 5)
        self.x = self.argument("x", (A, B), np.stack([found, turned]))
        self.y = self.argument("y", (A, B), np.stack([turned[::-1], turned[::-1]]))
        self.z = self.argument("z", (B, A), np.stack([turned, found[::-1]], 1))
        self.row = self.argument("row", (B,), found)
        self.scalar = self.argument("scalar", (), found[5])
        truths = np.array([True, False] * 16).reshape(2, 16)
        self.condition = self.argument("condition", (A, B), truths, "bool")

    def argument(self, name: str, dims: tuple[Dim, ...], array: Any, dtype: str | None = None) -> Value:
        value = Value(self.builder.names.fresh(name), TensorType(dtype or self.dtype, dims))
        self.arguments[value] = array
        return value

    def build(self, op: str, *operands: Value | None, **attributes: Any) -> Value | None:
        """Append one equation, and return its result; None if the op does not accept the operands."""
        given = [value for value in operands if value is not None]
        if len(given) < len(operands):
            return None
        try:
            return self.builder(op, *given, **attributes)
        except (OpError, VerifyError):
            return None

    def number(self, number: Any, dtype: str | None = None) -> Value | None:
        return self.build("constant", value=number, dtype=dtype or self.dtype)

    def full(self, number: Any, dims: tuple[Dim, ...] = (A, B), dtype: str | None = None) -> Value | None:
        return self.build("full", dims=dims, value=number, dtype=dtype or self.dtype)

    def output(self, value: Value | None) -> None:
        if value is not None:
            self.outputs.append(value)

    def program(self) -> Program:
        arguments = tuple(Argument(value, "input") for value in self.arguments)
        outputs = tuple(Output(f"y{i}", value) for i, value in enumerate(self.outputs))
        return Program("case", {}, (), (Function("forward", arguments, tuple(self.builder.body), outputs),))

    def results(self, program: Program) -> list[Any]:
        given = {value.name: array for value, array in self.arguments.items()}
        with np.errstate(all="ignore"):
            return list(interpret(program.function("forward"), program, given).values())


def forms(c: Case) -> list[Value]:
    """Return operands of all forms: tensors, scalars, numbers, tensors of numbers, and what rows look through."""
    moved = [
        c.x,
        c.y,
        c.z,
        c.row,
        c.scalar,
        c.build("broadcast", c.row, dims=(A, B)),
        c.build("broadcast", c.scalar, dims=(A, B)),
        c.build("transpose", c.x, dims=(B, A)),
        c.build("transpose", c.z, dims=(A, B)),
    ]
    numbered = [c.number(n) for n in numbers(c.dtype)]
    chosen = [c.build("where", c.condition, *pair) for pair in (numbered[:2], numbered[-2:])]
    chosen += [c.build("cast", c.condition, dtype=c.dtype), c.build("range", dim=A)]
    filled = [c.full(n) for n in numbers(c.dtype)]
    scaled = [c.build("mul", c.x, number) for number in numbered]
    return [value for value in (*moved, *numbered, *chosen, *filled, *scaled) if value is not None]


def conditions(c: Case) -> list[Value | None]:
    truths = [c.number(truth, "bool") for truth in (True, False)]
    filled = [c.full(truth, dtype="bool") for truth in (True, False)]
    turned = c.build("transpose", c.build("transpose", c.condition, dims=(B, A)), dims=(A, B))
    return [c.condition, c.build("transpose", c.condition, dims=(B, A)), turned, *truths, *filled]


def elementwise_case(c: Case, op: str) -> None:
    (count,) = OPS[op].arity
    found = forms(c)
    operands: list[Sequence[Value | None]] = [found[::2] if c.dtype in HALVED else found] * count
    if op in ("where", "mask"):
        operands[0] = conditions(c)
        truths = [c.number(truth) for truth in (True, False)]
        operands[1:] = [[*forms(c)[:20:2], *truths]] * (count - 1)
    for given in product(*operands):
        c.output(c.build(op, *given))
    if count == 1:
        c.output(c.build(op, c.build(op, c.x)))


def attributes(op: str) -> Iterator[dict[str, Any]]:
    """Yield attributes of an op that moves, casts or reduces a tensor with dimensions a and b."""
    if op in ("sum", "prod", "max", "min", "any", "all"):
        yield from ({"over": over} for over in ((A,), ()))
        yield from ({"over": over} for over in ((B,), (B, A)) if op not in ("sum", "prod"))
    elif op in ("argmax", "is_argmax"):
        yield from ({"over": over} for over in ((A,), (B,), (B, A)))
    elif op == "cumsum":
        flags = product((True, False), repeat=2)
        yield from ({"dim": A, "exclusive": exclusive, "reverse": reverse} for exclusive, reverse in flags)
    elif op == "broadcast":
        yield from ({"dims": dims} for dims in ((A, B), (B, A), (C, A, B), (B, C, A)))
    elif op == "transpose":
        yield from ({"dims": dims} for dims in ((A, B), (B, A), (B, C, A)))
    elif op == "reshape":
        yield from ({"dims": dims} for dims in ((A, B), (FLAT,), (D, B), (QUARTER, HALF)))
    elif op == "rename":
        yield {"mapping": ((A, D),)}
    elif op == "slice":
        yield {"source": B, "target": HALF, "start": 1, "stride": 2}
        yield {"source": HALF, "target": QUARTER, "start": 1, "stride": 2}
    elif op == "shift":
        shifts = product((0, 1, -1, 2, -2, 5), (True, False))
        yield from ({"dim": A, "by": by, "wrap": wrap} for by, wrap in shifts)
    elif op == "pad":
        yield from (
            {"source": A, "target": WIDE, "before": 1, "stride": 2, "value": v} for v in (0, 1, False)
        )
    elif op == "window":
        windows = {"source": B, "out": HALF, "kernel": D, "stride": 2, "before": 0, "after": 0, "dilation": 1}
        yield from ({**windows, "value": value} for value in (0, False))
    elif op == "fold":
        yield {"source": LONG, "out": A, "kernel": B, "stride": 1, "before": 0, "after": 0, "dilation": 1}
    elif op == "cast":
        yield from ({"dtype": dtype} for dtype in DTYPES)


def moving_case(c: Case, op: str) -> None:
    """Apply an op of one operand to all forms, and twice."""
    for given, several in product(forms(c), list(attributes(op))):
        once = c.build(op, given, **several)
        c.output(once)
        if given is c.x or given is c.z:
            for more in attributes(op):
                c.output(c.build(op, once, **more))


def einsum_case(c: Case, op: str) -> None:
    """Multiply special numbers where nothing is summed, and sum products of small numbers, which are exact in any order."""
    small = np.arange(1, 33).reshape(2, 16) % 4 + 1
    dtype = numpy_dtype(np, c.dtype)
    x, z = (
        c.argument("small", (A, B), small.astype(dtype)),
        c.argument("turned", (B, A), small.T.astype(dtype)),
    )
    row = c.argument("few", (B,), small[0].astype(dtype))
    for dims, given in (((A, B), (c.x, c.z, c.row)), ((B, A), (c.x, c.z, c.row)), ((B,), (x, z, row))):
        along = c.build("broadcast", given[-1], dims=(A, B))
        turned = c.build("transpose", given[0], dims=(B, A))
        ones = [c.full(1, shape) for shape in ((A, B), (B,), ())]
        operands = [*given, given[0], along, turned, *ones]
        for several in (*((value,) for value in operands), *product(operands, repeat=2)):
            c.output(c.build(op, *several, dims=dims))


def drawn_case(c: Case, op: str) -> None:
    for p, dims in product((0, 0.0, 1, 1.0, 0.5), ((), (A, B))):
        c.output(c.build(op, dims=dims, stream="s", p=p))


ELEMENTWISE = {op.name for op in elementwise.OPS if op.name != "cast"}


def case_of(op: str) -> Callable[[Case, str], None]:
    return {"einsum": einsum_case, "bernoulli": drawn_case}.get(
        op, elementwise_case if op in ELEMENTWISE else moving_case
    )


@attrs.frozen
class Rewritten:
    """The effect of a row on one equation: the old and the new value, and the first operand of the equation."""

    row: Row
    old: Value
    new: Value
    first: Value | None


def rewritten_once(c: Case) -> list[Rewritten]:
    """Append what each row makes of each equation by itself."""
    defined = {value: eqn for eqn in c.builder.body for value in eqn.results}
    context = RewriteContext(defined, c.builder)
    found = []
    for eqn in tuple(c.builder.body):
        for i, rule in enumerate(TABLE.get(eqn.op, ())):
            value = rule(context, eqn)
            if value is not None:
                new = c.builder.ordered(value, eqn.result.type.dims)
                first = eqn.operands[0] if eqn.operands else None
                found.append(Rewritten((eqn.op, i), eqn.result, new, first))
    return found


def same_bits(one: Any, other: Any) -> Any:
    """Return where two arrays have the same bits, or are both NaN."""
    assert (one.dtype, one.shape) == (other.dtype, other.shape)
    size = f"u{one.dtype.itemsize}"
    ones, others = (np.ascontiguousarray(array).view(size) for array in (one, other))
    return ((ones == others) | ((one != one) & (other != other))).reshape(one.shape)


def rounded_once_less(dtype: str, row: Row, first: Any) -> Any:
    """Return where `simplify` promises less: factors merge where their first product is below the normal numbers."""
    if TABLE[row[0]][row[1]] is not simplify._merge_factors or dtype not in FLOATS:
        return np.False_
    return np.abs(first.astype(np.float64)) < smallest(dtype)[0]


def name_of(row: Row) -> str:
    op, i = row
    return f"row {i} of {op}, {TABLE[op][i].__qualname__.partition('.')[0]}"


def checked(dtype: str, op: str) -> set[Row]:
    """Assert that every row, and the whole pass, keeps every bit of the programs for an op. Return the rows that they trigger.

    Multiplications are left out of the whole pass: their factors may be rounded once less.
    """
    c = Case(dtype)
    case_of(op)(c, op)
    before, outputs = c.program(), c.outputs
    found = rewritten_once(c)
    c.outputs = list(
        dict.fromkeys([*outputs, *(v for each in found for v in (each.old, each.new, each.first) if v)])
    )
    arrays = dict(zip(c.outputs, c.results(c.program()), strict=True))
    for each in found:
        old, new = arrays[each.old], arrays[each.new]
        same = same_bits(old, new)
        if each.first is not None:
            same |= rounded_once_less(dtype, each.row, arrays[each.first])
        assert same.all(), f"{dtype}: {name_of(each.row)}: {old[~same]} becomes {new[~same]}"
    if op != "mul":
        after = before.map_functions(lambda function: simplified(function, set()))
        for value, new in zip(outputs, c.results(after), strict=True):
            assert same_bits(arrays[value], new).all(), f"{dtype}: {op}: {arrays[value]} becomes {new}"
    return {each.row for each in found}


def test_every_bit_stays_and_every_row_has_a_case() -> None:
    """One test, so that one process runs the programs of each dtype once."""
    rows = {(op, i) for op, rules in TABLE.items() for i in range(len(rules))}
    triggered = [checked(dtype, op) for dtype in (DTYPES if EVERY_CASE else FEW_DTYPES) for op in TABLE]
    missing = rows.difference(*triggered)
    assert not missing, "; ".join(map(name_of, missing))
