"""Which part of each value a part of an operator needs: from the parts of the results backwards, equation by equation.

A part is given by one index along each dimension that is split. What it needs of a value along one of the value's dimensions
depends on the index along one split dimension at most, so a `Span` says it for all indices at once. Names do the rest: a
dimension of an operand is needed where the dimension of the iteration space that runs along it is computed. Windows and slices
need positions around or beside that, within the operand's ends; other ops that mix the positions of a dimension need all of it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import attrs
import numpy as np

from mtfc.compiler.ir.core import Equation, Value
from mtfc.compiler.ir.opdef import LayoutRule
from mtfc.compiler.ir.ops import OPS, has_trait
from mtfc.compiler.ir.ops.windows import geometry
from mtfc.compiler.ir.types import Dim, TensorType

Indices = Any
"""An integer array with one element for each index along a split dimension."""


class Unsplittable(Exception):
    """An equation cannot be computed in such parts."""


@attrs.frozen(eq=False)
class Span:
    """Positions `low` to `high` (not included) of a dimension, for each index along the split dimension `by`."""

    by: str
    low: Indices
    high: Indices

    def covers(self, other: Span | None) -> bool:
        """Whether all positions of the other are among these."""
        return other is not None and self.by == other.by and self._is_outside(other)

    def _is_outside(self, other: Span) -> bool:
        return bool((self.low <= other.low).all() and (self.high >= other.high).all())


Region = Mapping[str, Span]
"""Dimension of a value -> what is needed along it; dimensions that it lacks are needed whole."""


def equal_parts(dim: Dim, degree: int) -> Span:
    """A dimension in equal parts. Raises `Unsplittable` where it cannot be."""
    if dim.size % degree:
        raise Unsplittable(f"`{dim.name}` (size {dim.size}) cannot be split in {degree}")
    size = dim.size // degree
    low = np.arange(degree) * size
    return Span(dim.name, low, low + size)


def needed(
    equations: Sequence[Equation], results: Iterable[tuple[Value, Region]]
) -> tuple[dict[Value, Region], dict[Equation, Region]]:
    """What is needed of every value that the equations use, and what each equation computes.

    `results` are the parts wanted of some values. Raises `Unsplittable`.
    """
    values: dict[Value, Region] = {}
    for value, region in results:
        _need(values, value, region)
    computed: dict[Equation, Region] = {}
    for eqn in reversed(equations):
        wanted = [values[value] for value in eqn.results if value in values]
        if not wanted:
            continue
        computed[eqn] = _result(eqn, wanted)
        for number, operand in enumerate(eqn.operands):
            _need(values, operand, of_operand(eqn, number, computed[eqn]))
    return values, computed


def _need(values: dict[Value, Region], value: Value, region: Region) -> None:
    values[value] = _hull(values[value], region) if value in values else region


def _hull(one: Region, other: Region) -> Region:
    """A region that holds both."""
    found = {}
    for dim in one.keys() & other.keys():
        a, b = one[dim], other[dim]
        if a.by == b.by:
            found[dim] = a if b is a else Span(a.by, np.minimum(a.low, b.low), np.maximum(a.high, b.high))
    return found


def _result(eqn: Equation, wanted: Sequence[Region]) -> Region:
    """What is computed of the results: the same of all, as they have the same dimensions."""
    region = wanted[0]
    for other in wanted[1:]:
        region = _hull(region, other)
    rule, mixes = OPS[eqn.op].layout_rule(eqn), _mixing(eqn)
    own = mixes(eqn)[1].name if mixes else None
    for dim in region:
        if dim in rule.whole | rule.single and dim != own:
            raise Unsplittable(f"{eqn.op} needs `{dim}` whole")
    return region


def of_operand(eqn: Equation, number: int, result: Region) -> Region:
    """What an equation needs of an operand to compute a region of its results."""
    type, rule = eqn.operands[number].type, OPS[eqn.op].layout_rule(eqn)
    mixes = _mixing(eqn)
    found: dict[str, Span] = {}
    for dim in type.dims:
        if mixes is not None and dim == mixes(eqn)[0]:
            source, target, around = mixes(eqn)
            if target.name in result:
                found[source.name] = around(result[target.name])
            continue
        span = _along(eqn, rule, type, dim, result)
        if span is not None:
            found[dim.name] = span
    return found


def _along(eqn: Equation, rule: LayoutRule, type: TensorType, dim: Dim, result: Region) -> Span | None:
    """What is needed along a dimension of an operand whose positions are not mixed; None: all."""
    name = rule.index.get(dim.name, dim.name)
    if name is None or name not in result or any(name == each.name for each in rule.reduced):
        return None
    size = next((d.size for d in eqn.results[0].type.dims if d.name == name), dim.size)
    return result[name] if size == dim.size else _scaled(result[name], size, dim.size)


def _scaled(span: Span, old: int, new: int) -> Span:
    """The same stripe of the major dimension of a group that is reshaped. Raises `Unsplittable` where that is none."""
    if (span.low * new % old).any() or (span.high * new % old).any():
        raise Unsplittable(f"a stripe of {old} is none of {new}")
    return Span(span.by, span.low * new // old, span.high * new // old)


Mixing = Callable[[Equation], tuple[Dim, Dim, Callable[[Span], Span]]]
"""Of an op that takes elements at positions of its operand: the dimensions, and what the operand is needed for a span of
results.
"""


def _window(eqn: Equation) -> tuple[Dim, Dim, Callable[[Span], Span]]:
    g = geometry(eqn.attrs)

    def around(span: Span) -> Span:
        low = span.low * g.stride - g.before
        high = (span.high - 1) * g.stride - g.before + g.extent
        if (low >= g.source.size).any() or (high < 1).any():
            raise Unsplittable(f"some parts of `{g.out.name}` see nothing but padding")
        low, high = np.clip(low, 0, g.source.size - 1), np.clip(high, 1, g.source.size)
        return Span(span.by, low, high)

    return g.source, g.out, around


def _slice(eqn: Equation) -> tuple[Dim, Dim, Callable[[Span], Span]]:
    source, target, start, stride = (eqn.attrs[key] for key in ("source", "target", "start", "stride"))
    assert isinstance(source, Dim) and isinstance(target, Dim)
    assert isinstance(start, int) and isinstance(stride, int)

    def beside(span: Span) -> Span:
        return Span(span.by, start + span.low * stride, start + (span.high - 1) * stride + 1)

    return source, target, beside


def _mixing(eqn: Equation) -> Mixing | None:
    if has_trait(eqn, "window"):
        return _window
    return _slice if has_trait(eqn, "slice") else None
