"""`dot_general`: an einsum."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from mtfc.compiler.ir.core import Value
from mtfc.frontend.jaxpr.emitting import JaxprEmitter, dims_of_result
from mtfc.frontend.jaxpr.factors import Axis
from mtfc.frontend.jaxpr.flat import AppliedPrimitive
from mtfc.frontend.jaxpr.linking import Linker, PrimitiveRule
from mtfc.frontend.jaxpr.rules.elementwise import NUMBERS


def _free(rank: int, *used: Sequence[int]) -> list[int]:
    taken = {j for each in used for j in each}
    return [j for j in range(rank) if j not in taken]


def link(linker: Linker, step: AppliedPrimitive) -> None:
    """Keep the axes of the larger operand, and fit the smaller one to them."""
    ((left_sum, right_sum), (left_batch, right_batch)) = step.params["dimension_numbers"]
    left, right = step.operands
    pairs = [*zip((*left_sum, *left_batch), (*right_sum, *right_batch), strict=True)]
    is_left = prod(left.shape) >= prod(right.shape)
    base, other = (left, right) if is_left else (right, left)
    wanted: list[Axis | None] = [None] * len(other.shape)
    for i, k in pairs:
        wanted[k if is_left else i] = base.axes[i if is_left else k]
    found = linker.fit(step, int(is_left), wanted, [f for each in base.axes for f in each])
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
    dims = tuple(dim for dim in dims_of_result(emitter, step) if dim in known)
    found = emitter.build.einsum(x, y, dims=dims)
    for dim in emitter.dims.of(f for j in summed for f in step.axes(0)[j]):
        if dim not in known:
            found = emitter.times(found, dim.size)
    return (found,)


def _is_plain(step: AppliedPrimitive) -> bool:
    """Accept operands that casts to the dtype of the result leave as they are."""
    return step.results[0].dtype in NUMBERS and not any(x.dtype.startswith("c") for x in step.operands)


RULES: dict[str, PrimitiveRule] = {
    "dot_general": PrimitiveRule(link, emit, _is_plain, moves=True),
}
