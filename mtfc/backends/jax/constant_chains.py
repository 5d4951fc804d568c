"""Barriers between two numbers that XLA must not merge.

XLA computes `(x * a) * b` as `x * (a * b)`, and `(x + a) + b` as `x + (a + b)`. That rounds differently, as the language allows.
But `a * b` may be no normal number, as in `x * 1e-30 * 1e-30 * 1e30`. And `x * a` may overflow or underflow where `x * (a * b)`
does not, as in `x * 1e30 * 1e-30`. The first factor then stands in an `optimization_barrier`. This is so for numbers that are far
from 1 for their dtype; chains of other numbers keep their text.

XLA computes `x / a` as `x * (1 / a)`. Where `1 / a` is no normal number, as for `x / 2e38`, both are divided by 4 first.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import attrs

from mtfc.compiler.ir.core import Equation, Function, Value
from mtfc.compiler.ir.loops import pairs, region_of
from mtfc.compiler.ir.numbers import SIGNIFICANDS, rounded
from mtfc.compiler.ir.opdef import Text
from mtfc.compiler.ir.ops import OPS, has_trait
from mtfc.compiler.ir.ops.creation import VALUE, literal
from mtfc.compiler.ir.types import FLOATS


@attrs.frozen
class NumberChain:
    """The end of a chain of equations with numbers.

    scales: True if the numbers are multiplied, False if they are added. number: all of them together, from the last barrier on.
    last: the last equation. text: its text without a barrier.
    """

    scales: bool
    number: float
    last: Equation
    text: str


def guarded(function: Function) -> dict[Value, Text]:
    """Return the texts of equations whose results need a barrier, also in loops."""
    texts: dict[Value, Text] = {}
    _collect(function, {}, texts)
    return texts


def _collect(function: Function, numbers: Mapping[Value, float], texts: dict[Value, Text]) -> None:
    """Add the texts of a function's body. numbers: arguments that are written as numbers."""
    known = {**numbers, **_numbers(function.body)}
    chains: dict[Value, NumberChain] = {}
    for eqn in function.body:
        if eqn.regions:
            inside = {a.value: known[v] for v, a in pairs(eqn) if v in known and a.role == "invariant"}
            _collect(region_of(eqn), inside, texts)
            continue
        link = _link(eqn, known, chains)
        if link is None:
            continue
        if link.last is eqn and link.text != OPS[eqn.op].jax:
            texts[eqn.result] = link.text
        before = chains.get(eqn.operands[0])
        chains[eqn.result] = _joined(before, link, texts) if before and link.last is eqn else link


def _joined(before: NumberChain, link: NumberChain, texts: dict[Value, Text]) -> NumberChain:
    """Return the chain with one more equation, or its last equation behind a barrier."""
    if before.scales != link.scales:
        return link
    number = before.number * link.number if link.scales else before.number + link.number
    dtype = link.last.result.type.dtype
    may_merge = _may_scale if link.scales else _may_add
    if may_merge(before.number, link.number, number, dtype):
        return attrs.evolve(link, number=number)
    texts[before.last.result] = f"lax.optimization_barrier({before.text})"
    return link


def _numbers(body: Iterable[Equation]) -> dict[Value, float]:
    constants = [eqn for eqn in body if has_trait(eqn, "constant") and eqn.result.type.dtype in FLOATS]
    return {eqn.result: float(VALUE.of(eqn.attrs)) for eqn in constants}


def _link(
    eqn: Equation, numbers: Mapping[Value, float], chains: Mapping[Value, NumberChain]
) -> NumberChain | None:
    """Return the chain that an equation with a number begins or ends, or that a view shows; None for any other equation."""
    if len(eqn.results) != 1 or not eqn.operands or eqn.result.type.dtype not in FLOATS:
        return None
    if OPS[eqn.op].storage == "view":
        return chains.get(eqn.operands[0])
    number = numbers.get(eqn.operands[-1])
    if len(eqn.operands) != 2 or number is None:
        return None
    text = str(OPS[eqn.op].jax)
    if has_trait(eqn, "multiply"):
        return NumberChain(True, number, eqn, text)
    if has_trait(eqn, "add", "subtract"):
        return NumberChain(False, number if has_trait(eqn, "add") else -number, eqn, text)
    return _divided(eqn, number, text) if has_trait(eqn, "divide") and number else None


def _divided(eqn: Equation, number: float, text: str) -> NumberChain:
    inverse, dtype = abs(1 / number), eqn.result.type.dtype
    is_normal = not 0 < inverse < 1 or rounded(1 / number, dtype) is not None
    quarters = f"lax.optimization_barrier({{0}} * 0.25) / {literal(number / 4)}"
    return NumberChain(True, 1 / number, eqn, text if is_normal else quarters)


def _may_scale(first: float, second: float, merged: float, dtype: str) -> bool:
    """Return True if the merged number is a normal one, and the second undoes no large scaling of the first."""
    if rounded(merged, dtype) is None or (merged == 0 and first and second):
        return False
    far = 2.0 ** (SIGNIFICANDS[dtype][2] // 4)
    up, back = abs(first), abs(second)
    return not ((up > far and back < 1) or (up < 1 / far and back > 1))


def _may_add(first: float, second: float, merged: float, dtype: str) -> bool:
    """Return True if the merged number is finite, and the first of two numbers of different sign leaves the digits of 1."""
    bits, _, most = SIGNIFICANDS[dtype]
    if not abs(merged) < 2.0 ** (most - 1):
        return False
    comes_back = (first > 0) != (second > 0)
    return not (comes_back and max(abs(first), abs(second)) >= 2.0**bits)
