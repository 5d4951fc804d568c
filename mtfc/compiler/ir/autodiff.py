"""Reverse-mode differentiation of a body of equations.

Walks the equations backwards from the values that have cotangents, asks each op's gradient rule for its operands' cotangents in
terms of other ops, and adds up the contributions of a value's uses. Gradient equations carry the span of the equation that
they come from.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from mtfc.compiler.ir.builder import Builder
from mtfc.compiler.ir.core import Equation, Value
from mtfc.compiler.ir.ops import OPS
from mtfc.compiler.ir.types import FLOATS


def active_values(body: Iterable[Equation], wanted: Iterable[Value]) -> set[Value]:
    """Float values that depend on a wanted one."""
    active = set(wanted)
    for eqn in body:
        if any(value in active for value in eqn.operands):
            active.update(value for value in eqn.results if value.type.dtype in FLOATS)
    return active


def total(builder: Builder, contributions: Sequence[Value]) -> Value:
    total = contributions[0]
    for contribution in contributions[1:]:
        total = builder("add", total, contribution)
    return total


def _pull_back(
    builder: Builder, eqn: Equation, cotangents: dict[Value, list[Value]], active: set[Value]
) -> None:
    """Add what the equation contributes to its operands' cotangents."""
    if not any(value in active for value in eqn.operands):
        return
    builder.span = eqn.span
    totals = [total(builder, cotangents[value]) for value in eqn.results]
    cotangents.update({value: [total] for value, total in zip(eqn.results, totals, strict=True)})
    for operand, part in zip(eqn.operands, OPS[eqn.op].gradient(builder, eqn, totals), strict=True):
        if part is not None and operand in active:
            cotangents.setdefault(operand, []).append(part)


def backward(
    builder: Builder, body: Sequence[Equation], seeds: Mapping[Value, Value], wanted: Sequence[Value]
) -> dict[Value, Value]:
    """The cotangents of `wanted` values, given those of results; values that nothing depends on are left out."""
    active = active_values(body, wanted)
    cotangents = {value: [seed] for value, seed in seeds.items()}
    for eqn in reversed(body):
        if any(value in cotangents for value in eqn.results):
            _pull_back(builder, eqn, cotangents, active)
    return {
        value: builder.ordered(total(builder, cotangents[value]), value.type.dims)
        for value in wanted
        if value in cotangents
    }
