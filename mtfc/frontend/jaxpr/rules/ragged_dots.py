"""`ragged_dot_general`: a `grouped_dot`, whose rows have the numbers of their groups in place of the groups' sizes.

A processor that has some of the rows then knows their groups without those before them.
"""

from __future__ import annotations

from collections.abc import Sequence

from mtfc.compiler.ir.core import Value
from mtfc.compiler.ir.types import FLOATS
from mtfc.frontend.jaxpr.emitting import JaxprEmitter, dims_of_result
from mtfc.frontend.jaxpr.factors import Axis
from mtfc.frontend.jaxpr.flat import AppliedPrimitive
from mtfc.frontend.jaxpr.linking import Linker, PrimitiveRule
from mtfc.frontend.jaxpr.rules import calls

Numbers = tuple[Sequence[int], Sequence[int], int, Sequence[int]]
"""Contracted axes of both operands, the axis of rows in the left one, and that of groups in the right one, if it has groups."""


def _numbers(step: AppliedPrimitive) -> Numbers:
    numbers = step.params["ragged_dot_dimension_numbers"]
    ((left, right), _), (rows,) = numbers.dot_dimension_numbers, numbers.lhs_ragged_dimensions
    return left, right, rows, numbers.rhs_group_dimensions


def _accepts(step: AppliedPrimitive) -> bool:
    """Accept one axis of rows, without batches: rows by groups, or sums of the rows of each group."""
    numbers = step.params["ragged_dot_dimension_numbers"]
    (left, _), batches = numbers.dot_dimension_numbers
    if len(step.operands) != 3 or any(batches) or len(numbers.lhs_ragged_dimensions) != 1:
        return False
    sums_rows = numbers.lhs_ragged_dimensions[0] in left
    dtypes = {x.dtype for x in (*step.operands[:2], *step.results)}
    return len(numbers.rhs_group_dimensions) == (not sums_rows) and dtypes <= FLOATS


def _link(linker: Linker, step: AppliedPrimitive) -> None:
    """Keep the axes of the left operand. The right one is fitted to them, and the sizes to its groups."""
    left, right, _, groups = _numbers(step)
    x, y, _ = step.operands
    used = [f for each in x.axes for f in each]
    wanted: list[Axis | None] = [None] * len(y.shape)
    for i, k in zip(left, right, strict=True):
        wanted[k] = x.axes[i]
    found = linker.fit(step, 1, wanted, used)
    of_y = [found[k] for k in range(len(y.shape)) if k not in (*right, *groups)]
    own = [*(f for each in found for f in each)]
    (group,) = linker.fit(step, 2, [found[groups[0]] if groups else None], (*used, *own))
    free = [x.axes[i] for i in range(len(x.shape)) if i not in left]
    linker.give(step.results[0], (*([] if groups else [group]), *free, *of_y))
    linker.space(*x.axes, *found, group)


def _emit(emitter: JaxprEmitter, step: AppliedPrimitive) -> Sequence[Value]:
    _, _, rows, _ = _numbers(step)
    group = emitter.dims.of(step.axes(2)[0])
    if len(group) != 1:
        return calls.emit(emitter, step)
    build, (result,) = emitter.build, step.results
    x, y = (emitter.whole(build.cast(emitter.operand(step, i), result.dtype), step.axes(i)) for i in (0, 1))
    numbers = _groups_of_rows(emitter, step, rows)
    return (build("grouped_dot", x, y, numbers, dims=dims_of_result(emitter, step), group=group[0]),)


def _groups_of_rows(emitter: JaxprEmitter, step: AppliedPrimitive, rows: int) -> Value:
    """Return for each row the number of groups that end before it."""
    build, (group,) = emitter.build, emitter.dims.of(step.axes(2)[0])
    sizes = emitter.whole(build.cast(emitter.operand(step, 2), "i32"), step.axes(2))
    ends = build("cumsum", sizes, dim=group, exclusive=False, reverse=False)
    index = build.constant(0, "i32")
    for dim in emitter.dims.of(step.operands[0].axes[rows]):
        index = emitter.elementwise("mul", index, build.constant(dim.size, "i32"))
        index = emitter.elementwise("add", index, build("range", dim=dim))
    is_behind = build.cast(emitter.elementwise("ge", index, ends), "i32")
    return build("sum", is_behind, over=(group,))


RULES: dict[str, PrimitiveRule] = {"ragged_dot_general": PrimitiveRule(_link, _emit, _accepts)}
