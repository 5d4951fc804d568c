"""simplify: local rewrites that make the program smaller or cheaper and change no result.

The rules are rows of a table, each an algebraic identity; an equation is rewritten until no row applies. An identity of the reals
is a row only where it holds bit for bit in the dtype, signed zeros, infinities and NaN included. So numbers are folded only where
nothing is rounded and nothing overflows. There are two exceptions. Numbers below the normal range of a dtype may be rounded once
less. An einsum may multiply a sum by a factor in place of its terms, as pending sums pass through factors (decision 37).

Input:   %c = constant 1.0; %a = mul %x, %c; %b = broadcast %s dims=[batch, io]; %d = mul %a, %b
Output:  %d = mul %x, %s
After this pass no row of the table applies.
"""

import operator
from collections.abc import Callable, Mapping
from functools import partial
from math import copysign, inf
from typing import Any, ClassVar

import attrs

from mtfc.compiler.ir.attributes import fitted
from mtfc.compiler.ir.builder import Builder, Substitution, names_of
from mtfc.compiler.ir.core import Equation, Function, Program, Value
from mtfc.compiler.ir.loops import map_regions
from mtfc.compiler.ir.numbers import is_power_of_two, product, total, wrapped
from mtfc.compiler.ir.opdef import SameAs, Trait
from mtfc.compiler.ir.ops import OPS, elementwise, has_trait, reductions
from mtfc.compiler.ir.ops.contraction import reduced_dims
from mtfc.compiler.ir.ops.creation import VALUE
from mtfc.compiler.ir.types import FLOATS, Dim
from mtfc.compiler.passes.pass_base import Pass
from mtfc.compiler.records import frozen

Definitions = Mapping[Value, Equation]


@frozen
class Simplify(Pass):
    name: ClassVar[str] = "simplify"

    def run(self, program: Program) -> Program:
        return program.map_functions(lambda function: simplified(function, program.named_values))


@frozen
class RewriteContext:
    """The definitions that a rule may read, and a builder for the replacement of the equation."""

    defined: Definitions
    build: Builder

    def again(self, eqn: Equation, *operands: Value) -> Value:
        """Build the same op on other operands."""
        attributes: dict[str, Any] = dict(eqn.attrs)
        return self.build(eqn.op, *operands, **attributes)

    def op(self, value: Value) -> str | None:
        eqn = self.defined.get(value)
        return eqn.op if eqn else None

    def has_trait(self, value: Value, trait: Trait) -> bool:
        """Return True if an op with the trait gives the value."""
        return value in self.defined and has_trait(self.defined[value], trait)

    def source(self, value: Value) -> Value:
        """Return the first operand of the equation that defines `value`."""
        return self.defined[value].operands[0]

    def number(self, value: Value) -> float | int | bool | None:
        """Return the number of a scalar constant or of a tensor filled with one number, else None."""
        eqn = self.defined.get(value)
        return VALUE.of(eqn.attrs) if eqn and has_trait(eqn, "filled") else None


RewriteRule = Callable[[RewriteContext, Equation], Value | None]


def _same_dims(eqn: Equation, value: Value) -> Value | None:
    """Return `value` if it has the type of the result."""
    return value if value.type == eqn.result.type else None


def _is_number(number: float | int | bool | None, wanted: float | bool, dtype: str) -> bool:
    """Return True for the number `wanted`; of floats, with its sign: 0.0 is another number than -0.0."""
    return number == wanted and (dtype not in FLOATS or copysign(1.0, number) == copysign(1.0, wanted))


def _identity(neutral: float, place: int) -> RewriteRule:
    """x op neutral == x, for the neutral element at a place among the operands."""

    def rule(c: RewriteContext, eqn: Equation) -> Value | None:
        y, x = eqn.operands[place], eqn.operands[1 - place]
        return _same_dims(eqn, x) if _is_number(c.number(y), neutral, y.type.dtype) else None

    return rule


_right_identity, _left_identity = partial(_identity, place=1), partial(_identity, place=0)


def _double_negation(c: RewriteContext, eqn: Equation) -> Value | None:
    """- - x == x."""
    x = eqn.operands[0]
    return c.source(x) if c.op(x) == eqn.op else None


def _same_type(c: RewriteContext, eqn: Equation) -> Value | None:
    """f(x) == x for an op that only rearranges dims, where nothing changes."""
    return _same_dims(eqn, eqn.operands[0])


def _twice(c: RewriteContext, eqn: Equation) -> Value | None:
    """broadcast(broadcast(x)) == broadcast(x), and so for transpose and reshape."""
    x = eqn.operands[0]
    return c.again(eqn, c.source(x)) if c.op(x) == eqn.op else None


def _number_last(c: RewriteContext, eqn: Equation) -> Value | None:
    """a op x == x op a for a scalar number a, so that other rules look in one place only."""
    a, x = eqn.operands
    swap = not a.type.dims and c.number(a) is not None and c.number(x) is None
    return c.build(eqn.op, x, a) if swap else None


def _implicit_broadcast(c: RewriteContext, eqn: Equation) -> Value | None:
    """op(broadcast(x), y) == op(x, y) where y has all dims, because elementwise ops broadcast by themselves."""
    for i, value in enumerate(eqn.operands):
        if c.has_trait(value, "broadcast"):
            others = (*eqn.operands[:i], c.source(value), *eqn.operands[i + 1 :])
            if any(other.type.dims == eqn.result.type.dims for other in others):
                return c.again(eqn, *others)
    return None


def _filled(c: RewriteContext, eqn: Equation) -> Value | None:
    """op(full(v), y) == op(constant(v), y) where y brings all dims."""
    for i, value in enumerate(eqn.operands):
        if c.has_trait(value, "filled") and value.type.dims:
            scalar = c.build.constant(VALUE.of(c.defined[value].attrs), value.type.dtype)
            others = (*eqn.operands[:i], scalar, *eqn.operands[i + 1 :])
            if any(other.type.dims == eqn.result.type.dims for other in others):
                return c.again(eqn, *others)
    return None


def _number(c: RewriteContext, eqn: Equation, number: float | int | bool) -> Value:
    """Build a tensor of the result's type, filled with the number."""
    type = eqn.result.type
    number = bool(number) if type.dtype == "bool" else fitted(number, type.dtype)
    if not type.dims:
        return c.build.constant(number, type.dtype)
    return c.build("full", dims=type.dims, value=number, dtype=type.dtype)


def _moved_full(c: RewriteContext, eqn: Equation) -> Value | None:
    """op(full(v)) == full(v), where op only moves elements."""
    number = c.number(eqn.operands[0])
    return None if number is None else _number(c, eqn, number)


def _sum_of_full(c: RewriteContext, eqn: Equation) -> Value | None:
    """sum(full(v)) == full(n v) over n elements, where n v is not rounded. A sum of -0.0 starts at 0.0, so it is 0.0."""
    number, dtype = c.number(eqn.operands[0]), eqn.result.type.dtype
    if number is None or dtype not in FLOATS or not eqn.attrs["over"]:
        return None
    count = eqn.operands[0].type.size // eqn.result.type.size
    times = product(number, count, dtype, wide=True)
    return None if times is None else _number(c, eqn, times + 0.0)


def _negated_number(c: RewriteContext, eqn: Equation) -> Value | None:
    """- full(v) == full(-v)."""
    number = c.number(eqn.operands[0])
    return None if number is None or eqn.result.type.dtype not in FLOATS else _number(c, eqn, -number)


def _shifted(c: RewriteContext, eqn: Equation) -> Value | None:
    """shift(x, by = 0) == x; so is a cyclic shift by a multiple of the size. shift(x) == 0 where every element falls off."""
    dim, by = eqn.attrs["dim"], eqn.attrs["by"]
    assert isinstance(dim, Dim) and isinstance(by, int)
    if by == 0 or (eqn.attrs["wrap"] and by % dim.size == 0):
        return eqn.operands[0]
    return _number(c, eqn, 0) if abs(by) >= dim.size and not eqn.attrs["wrap"] else None


def _sliced_twice(c: RewriteContext, eqn: Equation) -> Value | None:
    """slice(slice(x, t a + b), s a + c) == slice(x, s t a + t c + b)."""
    x, attributes = eqn.operands[0], eqn.attrs
    if not c.has_trait(x, "slice") or c.defined[x].attrs["target"] != attributes["source"]:
        return None
    inner: Mapping[str, Any] = c.defined[x].attrs
    start = inner["start"] + inner["stride"] * attributes["start"]
    stride = inner["stride"] * attributes["stride"]
    target = attributes["target"]
    return c.build("slice", c.source(x), source=inner["source"], target=target, start=start, stride=stride)


def _merge_factors(c: RewriteContext, eqn: Equation) -> Value | None:
    """(x * a) * b == x * (a b) for integers, which wrap, and for floats where a or b is a power of two.

    A power of two rounds nothing. If |a| > 1 > |b|, then x * a might overflow where x * (a b) does not.
    """
    x, b = eqn.operands
    dtype, second = eqn.result.type.dtype, c.number(b)
    if b.type.dims or second is None or not c.has_trait(x, "multiply"):
        return None
    inner, a = c.defined[x].operands
    first = c.number(a)
    if a.type.dims or first is None:
        return None
    if dtype not in FLOATS:
        return c.build("mul", inner, c.build.constant(wrapped(first * second, dtype), dtype))
    if (abs(first) > 1 > abs(second)) or not (is_power_of_two(first) or is_power_of_two(second)):
        return None
    factor = product(first, second, dtype)
    return None if factor is None else c.build("mul", inner, c.build.constant(factor, dtype))


def _fold(exactly: Callable[[float, float, str], float | None]) -> RewriteRule:
    """op(a, b) == the number, for floating-point numbers a and b, where it is not rounded."""

    def rule(c: RewriteContext, eqn: Equation) -> Value | None:
        """Return the number of an op on two numbers; None if it would be rounded."""
        (a, b), dtype = (c.number(value) for value in eqn.operands), eqn.result.type.dtype
        if a is None or b is None or dtype not in FLOATS:
            return None
        number = exactly(a, b, dtype)
        return None if number is None else _number(c, eqn, number)

    return rule


def _einsum_of_broadcast(c: RewriteContext, eqn: Equation) -> Value | None:
    """einsum(broadcast(x), y) == einsum(x, y) where other operands bring the dims that the broadcast added."""
    for i, value in enumerate(eqn.operands):
        if c.has_trait(value, "broadcast"):
            others = (*eqn.operands[:i], c.source(value), *eqn.operands[i + 1 :])
            if {d for other in others for d in other.type.dims} >= set(value.type.dims):
                return c.again(eqn, *others)
    return None


def _einsum_of_full(c: RewriteContext, eqn: Equation) -> Value | None:
    """einsum(full(1), y) == einsum(y) where y brings all dims."""
    for i, value in enumerate(eqn.operands):
        others = (*eqn.operands[:i], *eqn.operands[i + 1 :])
        known = {dim for other in others for dim in other.type.dims}
        if others and c.number(value) == 1 and known >= {*value.type.dims, *eqn.result.type.dims}:
            return c.again(eqn, *others)
    return None


def _einsum_as_product(c: RewriteContext, eqn: Equation) -> Value | None:
    """einsum(x, y) == x * y where nothing is summed and one operand has the result's dims."""
    if len(eqn.operands) != 2 or not any(v.type.dims == eqn.result.type.dims for v in eqn.operands):
        return None
    return None if reduced_dims(eqn) else c.build("mul", *eqn.operands)


def _transposed_later(c: RewriteContext, eqn: Equation) -> Value | None:
    """op(transpose(x), y) == transpose(op(x, y)), where all operands that have all dims are transposed: ops go by names.

    Transposes move down like this until they meet another one, or an einsum, which needs none.
    """
    most = max((len(value.type.dims) for value in eqn.operands), default=0)
    complete = [value for value in eqn.operands if len(value.type.dims) == most]
    if not most or any(not c.has_trait(value, "transpose") for value in complete):
        return None
    return _without_transposes(c, eqn)


def _implicit_transpose(c: RewriteContext, eqn: Equation) -> Value | None:
    """op(y, transpose(x)) == op(y, x): dimensions are matched by name.

    The first operand with all dims gives the order of the result. So nothing changes if that operand is itself a transpose.
    """
    first = max(eqn.operands, key=lambda value: len(value.type.dims))
    return None if c.has_trait(first, "transpose") else _without_transposes(c, eqn)


def _without_transposes(c: RewriteContext, eqn: Equation) -> Value | None:
    """op(transpose(x), y) == op(x, y), such as an einsum."""
    if all(not c.has_trait(value, "transpose") for value in eqn.operands):
        return None
    return c.again(eqn, *(c.source(v) if c.has_trait(v, "transpose") else v for v in eqn.operands))


def _broadcast_to(c: RewriteContext, eqn: Equation, value: Value) -> Value:
    """Broadcast `value` to all dims of the result."""
    return c.build.ordered(c.build.broadcast(value, eqn.result.type), eqn.result.type.dims)


def _by_logic(c: RewriteContext, eqn: Equation) -> Value | None:
    """op(true, x) == x, and so on: the op's own logic of operands that are known to be true or false."""
    logic, numbers = OPS[eqn.op].logic, map(c.number, eqn.operands)
    found = logic([number if isinstance(number, bool) else None for number in numbers]) if logic else None
    if isinstance(found, SameAs):
        return _broadcast_to(c, eqn, eqn.operands[found.operand])
    return None if found is None else _number(c, eqn, found)


def _masked_by_number(c: RewriteContext, eqn: Equation) -> Value | None:
    """mask(true, x) == x, and mask(false, x) == 0."""
    condition, x = eqn.operands
    holds = c.number(condition)
    if holds is None:
        return None
    return _broadcast_to(c, eqn, x) if holds else _number(c, eqn, 0)


def _renamed_indices(c: RewriteContext, eqn: Equation) -> Value | None:
    """rename(range(a)) == range(b)."""
    return c.build("range", dim=eqn.result.type.dims[0]) if c.has_trait(eqn.operands[0], "indices") else None


def _chosen_truth(c: RewriteContext, eqn: Equation) -> Value | None:
    """where(x, true, false) == x, and where(x, false, true) == not x."""
    condition, *pair = eqn.operands
    found = [*map(c.number, pair)]
    if found == [True, False] and eqn.result.type.dtype == "bool":
        return _broadcast_to(c, eqn, condition)
    if found == [False, True] and eqn.result.type.dtype == "bool":
        return _broadcast_to(c, eqn, c.build("not", condition))
    return None


def _numbers_by_truth(c: RewriteContext, value: Value) -> tuple[Value, float, float] | None:
    """Return the condition of a choice between two numbers, and the numbers. A truth cast to a number is 1 or 0."""
    eqn = c.defined.get(value)
    if eqn is None or not has_trait(eqn, "choice", "cast"):
        return None
    condition, *pair = eqn.operands
    one, other = map(c.number, pair) if pair else (1, 0)
    is_truth = condition.type.dtype == "bool"
    return (condition, one, other) if is_truth and one is not None and other is not None else None


def _compared_choice(compare: Callable[[float, float], bool]) -> RewriteRule:
    """compare(where(x, a, b), n) == where(x, compare(a, n), compare(b, n)) for numbers a, b and n."""

    def rule(c: RewriteContext, eqn: Equation) -> Value | None:
        number = c.number(eqn.operands[1])
        return None if number is None else _choice_of_truths(c, eqn, lambda each: compare(each, number))

    return rule


def _choice_of_truths(c: RewriteContext, eqn: Equation, truth: Callable[[float], bool]) -> Value | None:
    """Return the choice between the truths of two numbers, if the first operand is a choice between them."""
    chosen = _numbers_by_truth(c, eqn.operands[0])
    if chosen is None:
        return None
    condition, *pair = chosen
    truths = (c.build.constant(truth(each), "bool") for each in pair)
    return _broadcast_to(c, eqn, c.build("where", condition, *truths))


def _truth_of_choice(c: RewriteContext, eqn: Equation) -> Value | None:
    """cast(where(x, a, b)) == where(x, a != 0, b != 0) for numbers a and b, cast to a truth."""
    is_truth = eqn.result.type.dtype == "bool"
    return _choice_of_truths(c, eqn, lambda number: number != 0) if is_truth else None


def _certain(c: RewriteContext, eqn: Equation) -> Value | None:
    """bernoulli(1) == true, and bernoulli(0) == false: draws are from 0 on and below 1."""
    p = eqn.attrs["p"]
    return _number(c, eqn, bool(p)) if p in (0, 1) else None


def _sum_of_nothing(c: RewriteContext, eqn: Equation) -> Value | None:
    """sum(x, over = []) == x, and so for every reduction."""
    return eqn.operands[0] if not eqn.attrs["over"] else None


SEVERAL = tuple(op.name for op in (*elementwise.BINARY, *elementwise.CHOICES))
"""Elementwise ops of several operands, which broadcast by themselves."""

RULES: dict[str, tuple[RewriteRule, ...]] = {
    "add": (_right_identity(-0.0), _left_identity(-0.0), _number_last, _fold(total)),
    "sub": (_right_identity(0), _fold(lambda a, b, dtype: total(a, -b, dtype))),
    "mul": (_right_identity(1), _left_identity(1), _number_last, _fold(product), _merge_factors),
    "div": (_right_identity(1),),
    "pow": (_right_identity(1),),
    "neg": (_double_negation, _negated_number),
    "not": (_double_negation, _by_logic),
    "and": (_by_logic,),
    "or": (_by_logic,),
    "maximum": (_right_identity(-inf), _left_identity(-inf)),
    "minimum": (_right_identity(inf), _left_identity(inf)),
    "eq": (_by_logic, _compared_choice(operator.eq)),
    "ne": (_by_logic, _compared_choice(operator.ne)),
    **{name: (_compared_choice(getattr(operator, name)),) for name in ("lt", "le", "gt", "ge")},
    "where": (_by_logic, _chosen_truth),
    "mask": (_masked_by_number,),
    "bernoulli": (_certain,),
    "transpose": (_same_type, _twice, _moved_full),
    "reshape": (_same_type, _twice, _moved_full),
    "broadcast": (_same_type, _twice, _moved_full),
    "rename": (_moved_full, _renamed_indices),
    "slice": (_moved_full, _sliced_twice),
    "shift": (_shifted,),
    "cast": (_same_type, _truth_of_choice),
    "einsum": (_without_transposes, _einsum_of_broadcast, _einsum_of_full, _einsum_as_product),
    "sum": (_sum_of_nothing, _sum_of_full),
    **dict.fromkeys(("max", "min", "any", "all"), (_sum_of_nothing, _moved_full)),
    "prod": (_sum_of_nothing,),
}
BY_NAME = (
    *(op.name for op in (*elementwise.OPS, *reductions.OPS)),
    *("broadcast", "rename", "slice", "pad", "shift", "window", "fold"),
)
"""Ops of which only the order of the result's dims depends on that of their operands', if anything does."""

TABLE = {
    op: (
        *RULES.get(op, ()),
        *((_implicit_broadcast, _implicit_transpose, _filled) if op in SEVERAL else ()),
        *((_transposed_later,) if op in BY_NAME else ()),
    )
    for op in (*RULES, *BY_NAME)
}


def _rewrite(c: RewriteContext, eqn: Equation, named: set[str]) -> Value | None:
    """Return the value that the first fitting rule gives for an equation; None if none fits, or if a layout names it."""
    if eqn.op not in TABLE or eqn.path in named:
        return None
    return next((value for rule in TABLE[eqn.op] if (value := rule(c, eqn)) is not None), None)


def _keep_name(build: Builder, eqn: Equation, value: Value) -> Value:
    """`value`; if the rule has just built it, under the name and path of the result that it replaces."""
    if not build.body or build.body[-1].results != (value,) or has_trait(build.body[-1], "constant"):
        return value
    renamed = attrs.evolve(value, name=eqn.result.name)
    build.body[-1] = attrs.evolve(build.body[-1], results=(renamed,), path=eqn.path)
    return renamed


def simplified(function: Function, named: set[str]) -> Function:
    """Rewrite the equations in order of definition; the equations that a rule builds are rewritten too."""
    build, defined, new = Builder(names_of(function)), dict[Value, Equation](), Substitution()
    context = RewriteContext(defined, build)
    work = list(reversed(function.body))
    done: list[Equation] = []
    while work:
        eqn = map_regions(new.equation(work.pop()), lambda region: simplified(region, named))
        build.span, build.stage = eqn.span, eqn.stage
        value = _rewrite(context, eqn, named)
        if value is None:
            done.append(eqn)
            defined.update(dict.fromkeys(eqn.results, eqn))
            continue
        value = build.ordered(value, eqn.result.type.dims)
        new[eqn.result] = _keep_name(build, eqn, value)
        work += reversed(build.body)
        build.body.clear()
    return new.function(function, done)
