"""Find dimensions that an einsum probably should sum over, and keeps: W608.

A dimension that two operands share is contracted if the result lacks it. If the result has it, it is a dimension such as a batch,
along which operands are multiplied element by element. Two patterns show that this is hardly meant:

- `einsum(x, w -> [batch, io])` of x[batch, io] and w[io, hidden]: nothing is summed between the two operands, and `hidden` of w
  is summed alone. The result of a dot would have `hidden` in the place of `io`.
- `einsum(x, w, w -> [batch, io])` of the same: x is multiplied element by element with the sum of squares of w, because a
  dimension has one meaning in an einsum. A dot with w, and one with w turned, needs a second name for `io`.

An operand whose dimensions another operand has too is a scale or a mask, and gives no warning.
"""

from __future__ import annotations

from collections.abc import Sequence

from mtfc.compiler.diagnostics import Label
from mtfc.compiler.ir.types import Dim
from mtfc.frontend.semantics.bodies.expressions import Expressions, Operand, Site

CODE = "W608"

MOST_OPERANDS = 32
"""Operands of an einsum that is searched: the patterns compare each operand with each other one."""

Dims = Sequence[Dim]


def warn_of_kept_dimension(
    expressions: Expressions, site: Site, operands: Sequence[Operand], result: Dims
) -> None:
    """Warn about the first dimension that looks contracted and stays, in a file of the user's own."""
    if expressions.scope.module or not 2 <= len(operands) <= MOST_OPERANDS:
        return
    dims = [operand.dims for operand in operands]
    found = _summed_alone(dims, result) or _scaled_by_sums(dims, result)
    if found is None:
        return
    kept, message, help = found
    labels = [Label(x.span, f"{x.shown} is {x.type}") for x in operands if kept in x.dims]
    expressions.scope.error(CODE, message, site.span, labels, help)


def _summed_alone(dims: Sequence[Dims], result: Dims) -> tuple[Dim, str, str] | None:
    """Find an operand that shares a kept dimension with another one, and whose own dimension is summed without the other."""
    for i, own in enumerate(dims):
        others = [each for j, each in enumerate(dims) if j != i]
        summed = [dim for dim in own if dim not in result]
        if not summed or any(dim in each for dim in summed for each in others):
            continue
        for other in others:
            shared = [dim for dim in own if dim in other and dim in result]
            if shared and not set(own) <= set(other) and not set(other) <= set(own):
                kept, alone = shared[0], summed[0]
                message = (
                    f"`{kept.name}` stays in the result, and `{alone.name}` is summed before the product"
                )
                help = f"a dot sums over `{kept.name}` and keeps `{alone.name}`; to sum first, write `sum(x, over = d)`"
                return kept, message, help
    return None


def _scaled_by_sums(dims: Sequence[Dims], result: Dims) -> tuple[Dim, str, str] | None:
    """Find an operand without summed dimensions that shares a kept dimension with two operands that are summed together."""
    for i, own in enumerate(dims):
        others = [each for j, each in enumerate(dims) if j != i]
        if not set(own) <= set(result) or any(set(own) <= set(other) for other in others):
            continue
        for kept in own:
            rest = [set(each) - set(result) for each in others if kept in each]
            if any(a & b for j, a in enumerate(rest) for b in rest[:j]):
                message = f"`{kept.name}` stays in the result, so nothing is summed over it"
                help = f"two dots need two names: `rename(w, {kept.name} -> other)`; if a product is meant, write it with `*`"
                return kept, message, help
    return None
