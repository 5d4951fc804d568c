"""`dot_general` is an einsum, and `ragged_dot_general` a `grouped_dot`.

The rows of a grouped dot have the numbers of their groups in place of the sizes of the groups. So a processor that has some of
the rows knows their groups without those before them.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

import attrs

from mtfc.compiler.ir.core import Value
from mtfc.compiler.ir.ops.elementwise import NUMBERS
from mtfc.compiler.ir.types import FLOATS, Dim
from mtfc.frontend.jaxpr.flat import AppliedPrimitive
from mtfc.frontend.jaxpr.primitive_rules import JaxprEmitter, Linker, PrimitiveRule


def _free(rank: int, *used: Sequence[int]) -> list[int]:
    taken = {j for each in used for j in each}
    return [j for j in range(rank) if j not in taken]


def link(linker: Linker, step: AppliedPrimitive) -> None:
    """Keep the axes of the larger operand, and fit the smaller one to them."""
    ((left_sum, right_sum), (left_batch, right_batch)) = step.params["dimension_numbers"]
    left, right = step.operands
    pairs = [*zip((*left_sum, *left_batch), (*right_sum, *right_batch), strict=True)]
    is_left = prod(left.shape) >= prod(right.shape)
    base = left if is_left else right
    wanted = {k if is_left else i: base.axes[i if is_left else k] for i, k in pairs}
    found = linker.fit(step, int(is_left), wanted, base.axes)
    a, b = (base.axes, found) if is_left else (found, base.axes)
    free = [*(a[j] for j in _free(len(left.shape), left_sum, left_batch))]
    free += [b[j] for j in _free(len(right.shape), right_sum, right_batch)]
    linker.give(step.results[0], (*(a[j] for j in left_batch), *free))


def emit(emitter: JaxprEmitter, step: AppliedPrimitive) -> Sequence[Value]:
    """Multiply operands. A sum along a dimension that neither has is a multiplication by its size."""
    (result,) = step.results
    x, y = (emitter.build.cast(emitter.operand(step, i), result.dtype) for i in (0, 1))
    ((summed, _), _) = step.params["dimension_numbers"]
    known = {*x.type.dims, *y.type.dims}
    found = emitter.build.einsum(x, y, dims=emitter.dims_in_order(result, x, y))
    for dim in emitter.dims.of(f for j in summed for f in step.axes(0)[j]):
        if dim not in known:
            found = emitter.times(found, dim.size)
    return (found,)


def _is_plain(step: AppliedPrimitive) -> bool:
    """Accept operands that casts to the dtype of the result leave as they are."""
    return step.results[0].dtype in NUMBERS and not any(x.dtype.startswith("c") for x in step.operands)


@attrs.frozen
class _Numbers:
    """Axes of the operands: those of batches and contracted ones in both, rows in the left one, groups in the right one, if any.

    before: the axes of the left operand whose elements may have group sizes of their own.
    """

    batches: tuple[Sequence[int], Sequence[int]]
    contracted: tuple[Sequence[int], Sequence[int]]
    rows: int
    groups: Sequence[int]
    before: Sequence[int]

    @property
    def are_batches(self) -> bool:
        """True if the rows are batches, where the sizes of groups change nothing."""
        return self.rows in self.batches[0]

    @classmethod
    def of(cls, step: AppliedPrimitive) -> _Numbers:
        """Read the dimension numbers of a ragged dot."""
        numbers = step.params["ragged_dot_dimension_numbers"]
        contracted, batches = numbers.dot_dimension_numbers
        (rows,), rank = numbers.lhs_ragged_dimensions, len(step.operands[0].shape)
        batch, summed = [*batches[0]], [*contracted[0]]
        own = summed if rows in summed else [i for i in range(rank) if i not in (*batch, *summed)]
        before = batch[: batch.index(rows)] if rows in batch else batch + own[: own.index(rows)]
        return cls(batches, contracted, rows, numbers.rhs_group_dimensions, before)


def _is_ragged(step: AppliedPrimitive) -> bool:
    dtypes = {x.dtype for x in (*step.operands[:2], *step.results)}
    return len(step.operands) == 3 and dtypes <= FLOATS


def _as_dot(step: AppliedPrimitive) -> AppliedPrimitive:
    """Return the plain dot of the same operands."""
    numbers = step.params["ragged_dot_dimension_numbers"].dot_dimension_numbers
    return attrs.evolve(step, operands=step.operands[:2], params={"dimension_numbers": numbers})


def _link_ragged(linker: Linker, step: AppliedPrimitive) -> None:
    """Keep the axes of the left operand. The right one is fitted to them, and the sizes to its groups."""
    numbers = _Numbers.of(step)
    if numbers.are_batches:
        link(linker, _as_dot(step))
        return
    (batches, right_batches), (left, right), groups = numbers.batches, numbers.contracted, numbers.groups
    x, y, sizes = step.operands
    pairs = zip((*left, *batches), (*right, *right_batches), strict=True)
    found = linker.fit(step, 1, {k: x.axes[i] for i, k in pairs}, x.axes)
    of_y = [found[k] for k in range(len(y.shape)) if k not in (*right, *right_batches, *groups)]
    before = [x.axes[i] for i in numbers.before] if len(sizes.shape) > 1 else []
    (*_, group) = linker.fit(step, 2, [*before, found[groups[0]] if groups else None], (*x.axes, *found))
    free = [x.axes[i] for i in range(len(x.shape)) if i not in (*left, *batches)]
    shared = [x.axes[i] for i in batches]
    linker.give(step.results[0], (*([] if groups else [group]), *shared, *free, *of_y))


def _emit_ragged(emitter: JaxprEmitter, step: AppliedPrimitive) -> Sequence[Value]:
    """Append a ragged dot as a dot of groups: each row uses the weights of its group, or each group sums its own rows."""
    numbers = _Numbers.of(step)
    if numbers.are_batches:
        return emit(emitter, _as_dot(step))
    build, (result,) = emitter.build, step.results
    x, y = (emitter.whole(build.cast(emitter.operand(step, i), result.dtype), step.axes(i)) for i in (0, 1))
    sizes = emitter.whole(build.cast(emitter.operand(step, 2), "i32"), step.axes(2))
    sizes, group = emitter.merged(sizes, step.axes(2), -1)
    for k in numbers.groups:
        y, _ = emitter.merged(y, step.axes(1), k, group)
    of_rows = _groups_of_rows(emitter, step, numbers, sizes, group)
    own, dims = emitter.dims.of(step.axes(2)[-1]), emitter.dims.of_axes(step.results[0].axes)
    if numbers.groups:
        return (build("grouped_dot", x, y, of_rows, dims=dims, group=group),)
    found = build("grouped_dot", x, y, of_rows, dims=(group, *dims[len(own) :]), group=group)
    return (emitter.as_dims(found, dims),)


def _groups_of_rows(
    emitter: JaxprEmitter, step: AppliedPrimitive, numbers: _Numbers, sizes: Value, group: Dim
) -> Value:
    """Return for each row, in each batch, the number of groups that end before it."""
    build, axes = emitter.build, step.operands[0].axes
    ends = build("cumsum", sizes, dim=group, exclusive=False, reverse=False)
    index = build.constant(0, "i32")
    for dim in emitter.dims.of(axes[numbers.rows]):
        index = emitter.elementwise("mul", index, build.constant(dim.size, "i32"))
        index = emitter.elementwise("add", index, build("range", dim=dim))
    is_behind = build.cast(emitter.elementwise("ge", index, ends), "i32")
    found = build("sum", is_behind, over=(group,))
    batches = emitter.dims.of(f for i in numbers.batches[0] for f in axes[i])
    return emitter.with_dims(found, tuple(dict.fromkeys((*batches, *found.type.dims))))


RULES: dict[str, PrimitiveRule] = {
    "dot_general": PrimitiveRule(link, emit, _is_plain, moves=True),
    "ragged_dot_general": PrimitiveRule(_link_ragged, _emit_ragged, _is_ragged),
}
