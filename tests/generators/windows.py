"""Sliding windows: alone, convolved with a filter, and pooled; and slices with a stride.

Often there is one window for each stride of the source, so that blocks of windows lie on blocks of the source. Often windows are
counted by the same dimension that they slide along: where that is split, so are the windows, and halos are exchanged.
"""

from typing import Any

import attrs
from hypothesis import strategies as st

from mtfc.compiler.ir.types import Dim
from tests.generators.contractions import subset
from tests.generators.operands import literal, number, real_operand, sharp_operand, total_grain
from tests.generators.scope import MAX_ELEMENTS, Scope
from tests.generators.terms import Term, dims_text, tame

MAX_WINDOW_ELEMENTS = 3 * MAX_ELEMENTS


@attrs.frozen
class Windows:
    """Draw a term of windows, and the dimension of their elements; None if none fits."""

    term: Term
    kernel: Dim | None


def window(draw: Any, scope: Scope) -> Term:
    return windows(draw, scope, number(draw, scope), padded=True).term


def windows(draw: Any, scope: Scope, x: Term, padded: bool) -> Windows:
    """Draw the windows of a dimension of `x`, which may be padded with a number other than 0."""
    if not x.dims:
        return Windows(x, None)
    source = draw(st.sampled_from(x.dims))
    size, stride, dilation = (draw(st.integers(1, n)) for n in (4, 3, 2))
    extent = dilation * (size - 1) + 1
    before, after = draw(st.sampled_from((_aligned, _aligned, _any_padding)))(
        draw, source.size, extent, stride
    )
    count = (source.size + before + after - extent) // stride + 1
    if count < 1 or x.size // source.size * count * size > MAX_WINDOW_ELEMENTS:
        return Windows(x, None)
    rest = tuple(dim for dim in x.dims if dim != source)
    out = source if count == source.size and draw(st.booleans()) else scope.dim_of_size(draw, count, x.dims)
    kernel = scope.dim_of_size(draw, size, (*rest, out))
    scope.slid.update((source, out))
    text = f"window({x.text}, {source.name} -> [{out.name}, {kernel.name}]"
    for name, value, default in (("stride", stride, 1), ("dilation", dilation, 1)):
        text += f", {name} = {value}" if value != default or draw(st.booleans()) else ""
    text += f", padding = ({before}, {after})" if before or after else ""
    if padded and draw(st.booleans()):
        filler = literal(draw, x)
        text += f", value = {filler.text}"
        x = attrs.evolve(
            x, bound=max(x.bound, filler.bound), grain=None if x.grain is None else max(x.grain, 2)
        )
    dims = tuple(d for dim in x.dims for d in ((out, kernel) if dim == source else (dim,)))
    return Windows(scope.seen(attrs.evolve(x, text=f"{text})", dims=dims)), kernel)


def _aligned(draw: Any, size: int, extent: int, stride: int) -> tuple[int, int]:
    """Return padding with which there is one window for each stride of the source, if that is possible."""
    total = max(0, (size // stride - 1) * stride + extent - size)
    before = draw(st.integers(0, total))
    return before, total - before


def _any_padding(draw: Any, size: int, extent: int, stride: int) -> tuple[int, int]:
    return draw(st.integers(0, 3)), draw(st.integers(0, 3))


def _nested(draw: Any, scope: Scope, x: Term, padded: bool) -> tuple[Term, tuple[Dim, ...]]:
    """Draw windows of one or two dimensions of `x`, and the dimensions of their elements."""
    kernels: list[Dim] = []
    for _ in range(draw(st.sampled_from((1, 1, 2)))):
        found = windows(draw, scope, x, padded)
        x, kernels = found.term, [*kernels, *([found.kernel] if found.kernel else [])]
    return x, tuple(dict.fromkeys(dim for dim in kernels if dim in x.dims))


def convolution(draw: Any, scope: Scope) -> Term:
    """Draw an einsum of windows and a new parameter; features are summed over, made, or kept apart by chance."""
    x, kernels = _nested(
        draw, scope, tame(real_operand(draw, scope), 4.0), padded=draw(st.integers(0, 3)) == 0
    )
    others = tuple(dim for dim in x.dims if dim not in kernels)
    shared = subset(draw, others[-2:])
    made = (scope.dim_of_size(draw, draw(st.sampled_from((1, 2, 4))), x.dims),) if draw(st.booleans()) else ()
    if not {*kernels, *shared, *made}.isdisjoint(scope.stacked):
        return x
    filter = scope.parameter(scope.fresh("filter"), tuple(draw(st.permutations((*kernels, *shared, *made)))))
    gone = {*kernels, *(dim for dim in shared if draw(st.integers(0, 3)) > 0)}
    kept = tuple(draw(st.permutations([dim for dim in (*x.dims, *made) if dim not in gone])))
    summed = Term("", tuple(gone), "f32").size
    operands = draw(st.permutations((x.text, filter.text)))
    text = f"einsum({', '.join(operands)} -> {dims_text(kept)})"
    result = Term(text, kept, x.dtype, x.bound * filter.bound * summed, total_grain(x, filter))
    return tame(scope.kept(result, x, filter), 32.0)


def average_pooling(draw: Any, scope: Scope) -> Term:
    """Draw a `sum` or `mean` over windows."""
    x, kernels = _nested(draw, scope, tame(real_operand(draw, scope), 8.0), padded=True)
    return _pooled(draw, scope, x, kernels, draw(st.sampled_from(("sum", "mean"))))


def extreme_pooling(draw: Any, scope: Scope) -> Term:
    """Draw a `max` or `min` over windows."""
    x, kernels = _nested(draw, scope, sharp_operand(draw, scope), padded=True)
    return _pooled(draw, scope, x, kernels, draw(st.sampled_from(("max", "min"))))


def _pooled(draw: Any, scope: Scope, x: Term, kernels: tuple[Dim, ...], name: str) -> Term:
    kept = tuple(dim for dim in x.dims if dim not in kernels)
    n = x.size // max(1, Term("", kept, "f32").size)
    text = f"{name}({x.text}, over = {dims_text(kernels)})"
    bound, grain = x.bound * n if name == "sum" else x.bound, None if name == "mean" else x.grain
    return tame(scope.kept(attrs.evolve(x, text=text, dims=kept, bound=bound, grain=grain), x), 64.0)


def strided(draw: Any, scope: Scope) -> Term:
    """Take every second or third element of a dimension that is two or three times as long as the result."""
    x = number(draw, scope)
    fitting = [(dim, step) for dim in x.dims for step in (2, 3) if dim.size % step == 0]
    if not fitting:
        return x
    source, step = draw(st.sampled_from(fitting))
    target = scope.dim_of_size(draw, source.size // step, x.dims)
    start = draw(st.integers(0, step - 1))
    text = f"slice({x.text}, {source.name} -> {target.name}, start = {start}, stride = {step})"
    dims = tuple(target if dim == source else dim for dim in x.dims)
    return scope.seen(attrs.evolve(x, text=text, dims=dims))
