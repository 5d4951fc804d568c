"""Reverse-mode differentiation of a body of equations.

Walks the equations backwards from the values that have cotangents, asks each op's gradient rule for its operands' cotangents in
terms of other ops, and adds up the contributions of a value's uses. Gradient equations carry the span of the equation that
they come from.

The sum of a pipeline's micro-batches is f32 (see `loop_gradient.py`). It passes views and casts without being rounded.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from functools import partial

from mtfc.compiler.ir.builder import Builder
from mtfc.compiler.ir.core import Equation, Value
from mtfc.compiler.ir.loops import pairs, region_of, results_of, with_carries
from mtfc.compiler.ir.opdef import no_gradient
from mtfc.compiler.ir.ops import OPS, has_trait
from mtfc.compiler.ir.types import FLOATS
from mtfc.compiler.passes.autodiff.loop_gradient import NoGradient, pull_back

__all__ = ["NoGradient", "active_inside", "active_values", "backward", "total"]


def active_values(
    body: Iterable[Equation], wanted: Iterable[Value], dtypes: Collection[str] = FLOATS
) -> set[Value]:
    """Return the values of some dtypes, floats by default, through which a gradient may reach a wanted value."""
    active = set(wanted)
    for eqn in body:
        stops = not eqn.regions and OPS[eqn.op].gradient is no_gradient
        if stops or not any(value in active for value in eqn.operands):
            continue
        results = results_of(eqn, active_inside(eqn, active)) if eqn.regions else eqn.results
        active.update(value for value in results if value.type.dtype in dtypes)
    return active


def active_inside(eqn: Equation, active: set[Value]) -> set[Value]:
    """Return the values in a loop's region that depend on a wanted value, also through earlier iterations."""
    region = region_of(eqn)
    going = {a.value for v, a in pairs(eqn) if v in active and v.type.dtype in FLOATS}
    return with_carries(region, going, partial(active_values, region.body))


def total(builder: Builder, contributions: Sequence[Value]) -> Value:
    total = contributions[0]
    for contribution in contributions[1:]:
        total = builder("add", total, contribution)
    return total


def _total_of(builder: Builder, value: Value, contributions: Sequence[Value], keeps: bool = True) -> Value:
    """Return the cotangent of a value in the value's dtype; a single contribution may stay wider."""
    if keeps and len(contributions) == 1:
        return contributions[0]
    return total(builder, [builder.cast(each, value.type.dtype) for each in contributions])


def _pull_back(
    builder: Builder, eqn: Equation, cotangents: dict[Value, list[Value]], active: set[Value]
) -> None:
    """Add the equation's contributions to the cotangents of its operands."""
    if not any(value in active for value in eqn.operands):
        return
    builder.span = eqn.span
    keeps = has_trait(eqn, "reshape", "transpose", "cast")
    totals = [_total_of(builder, v, cotangents[v], keeps) if v in cotangents else None for v in eqn.results]
    cotangents.update({v: [t] for v, t in zip(eqn.results, totals, strict=True) if t is not None})
    for operand, part in _parts(builder, eqn, totals, active):
        if part is not None and operand in active:
            cotangents.setdefault(operand, []).append(part)


def _parts(
    builder: Builder, eqn: Equation, totals: Sequence[Value | None], active: set[Value]
) -> Iterable[tuple[Value, Value | None]]:
    """Return the operands with their cotangents. The cotangent of a result that nothing depends on is zero."""
    if eqn.regions:
        inside = active_inside(eqn, active)
        arguments = [argument for argument in region_of(eqn).arguments if argument.value in inside]
        return pull_back(builder, eqn, totals, arguments, backward)
    given = [builder.zeros(v.type) if t is None else t for v, t in zip(eqn.results, totals, strict=True)]
    return zip(eqn.operands, OPS[eqn.op].gradient(builder, eqn, given), strict=True)


def backward(
    builder: Builder,
    body: Sequence[Equation],
    seeds: Mapping[Value, Value],
    wanted: Sequence[Value],
    dtypes: Collection[str] = FLOATS,
) -> dict[Value, Value]:
    """Return the cotangents of `wanted` values from the seeds; values that no seed depends on are left out.

    dtypes: those through which cotangents go. A linear map of integers has a transpose, and no gradient.
    """
    active = active_values(body, wanted, dtypes)
    cotangents = {value: [seed] for value, seed in seeds.items()}
    for eqn in reversed(body):
        if any(value in cotangents for value in eqn.results):
            _pull_back(builder, eqn, cotangents, active)
    return {
        value: builder.ordered(_total_of(builder, value, cotangents[value]), value.type.dims)
        for value in wanted
        if value in cotangents
    }
