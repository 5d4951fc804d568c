"""Einsums and reductions: the expressions that leave sums pending where a dim is split."""

from __future__ import annotations

from math import log2, prod
from typing import Any

import attrs
from hypothesis import strategies as st

from mtfc.compiler.ir.types import Dim
from tests.generators.componentwise import condition
from tests.generators.operands import Term, number, operand, real_operand, sharp_operand, total_grain
from tests.generators.scope import MAX_ELEMENTS, Scope, dims_text, tame

MAX_ITERATIONS = 6000


def subset(draw: Any, dims: tuple[Dim, ...]) -> tuple[Dim, ...]:
    return tuple(dim for dim in dims if draw(st.booleans()))


def volume(dims: Any) -> int:
    return prod(dim.size for dim in dims)


def einsum(draw: Any, scope: Scope) -> Term:
    """One to four operands, shared and contracted dims as they come; outer products too."""
    terms = _einsum_operands(draw, scope)
    union = tuple(dict.fromkeys(dim for term in terms for dim in term.dims))
    kept = subset(draw, union) or union[:1]
    if volume(kept) > MAX_ELEMENTS:
        kept = terms[0].dims
    kept = tuple(draw(st.permutations(kept)))
    bound = prod(term.bound for term in terms) * volume(union) / volume(kept)
    text = f"einsum({', '.join(term.text for term in terms)} -> {dims_text(kept)})"
    return tame(scope.seen(Term(text, kept, terms[0].dtype, bound, total_grain(*terms))), 32.0)


def _einsum_operands(draw: Any, scope: Scope) -> list[Term]:
    terms = [tame(number(draw, scope), 8.0)]
    share = draw(st.booleans())
    for _ in range(draw(st.sampled_from((1, 1, 1, 2, 3, 0)))):
        other = operand(draw, scope, lambda t: t.dtype == terms[0].dtype and (not share or meet(t, terms[0])))
        other = tame(other or terms[0], 4.0)
        dims = {dim for term in (*terms, other) for dim in term.dims}
        if volume(dims) <= MAX_ITERATIONS:
            terms.append(other)
    return terms


def meet(x: Term, y: Term) -> bool:
    """Whether two terms have a dim in common."""
    return bool(set(x.dims) & set(y.dims))


def _over(draw: Any, x: Term) -> tuple[tuple[Dim, ...], tuple[Dim, ...]]:
    """A choice of dims to keep and to reduce away; at least one goes where there is one."""
    if draw(st.booleans()):
        kept = subset(draw, x.dims)
    else:
        gone = draw(st.sampled_from(x.dims))
        kept = tuple(dim for dim in x.dims if dim != gone)
    if len(kept) == len(x.dims):
        kept = kept[1:]
    return kept, tuple(dim for dim in x.dims if dim not in kept)


def _call(draw: Any, name: str, x: Term, kept: tuple[Dim, ...], gone: tuple[Dim, ...]) -> str:
    """One of the ways to write the reduction."""
    forms = [f"{name}({x.text}, over = {dims_text(gone)})", f"{name}({x.text} -> {dims_text(kept)})"]
    if not kept:
        forms.append(f"{name}({x.text})")
    return draw(st.sampled_from(forms))  # type: ignore[no-any-return]


def total(draw: Any, scope: Scope) -> Term:
    """`sum` and `mean`."""
    x = tame(number(draw, scope), 32.0)
    if not x.dims:
        return x
    kept, gone = _over(draw, x)
    n = volume(gone)
    if x.dtype != "i32" and draw(st.booleans()):
        grain = x.grain + int(log2(n)) if x.grain is not None and n & (n - 1) == 0 else None
        return scope.seen(attrs.evolve(x, text=_call(draw, "mean", x, kept, gone), dims=kept, grain=grain))
    summed = attrs.evolve(x, text=_call(draw, "sum", x, kept, gone), dims=kept, bound=x.bound * n)
    return tame(scope.seen(summed), 64.0)


def extreme(draw: Any, scope: Scope) -> Term:
    """`max` and `min`, whose ties share the gradient."""
    x = sharp_operand(draw, scope)
    if not x.dims:
        return x
    kept, gone = _over(draw, x)
    name = draw(st.sampled_from(("max", "min")))
    return scope.seen(attrs.evolve(x, text=_call(draw, name, x, kept, gone), dims=kept))


def product(draw: Any, scope: Scope) -> Term:
    x = tame(real_operand(draw, scope), 1.5)
    narrow = [dim for dim in x.dims if dim.size <= 8]
    if not narrow:
        return x
    dim = draw(st.sampled_from(narrow))
    kept = tuple(d for d in x.dims if d != dim)
    result = attrs.evolve(
        x,
        text=_call(draw, "prod", x, kept, (dim,)),
        dims=kept,
        bound=max(1.0, x.bound) ** dim.size,
        grain=None if x.grain is None else x.grain * dim.size,
    )
    return tame(scope.seen(result), 32.0)


def quantifier(draw: Any, scope: Scope) -> Term:
    """`any` and `all`."""
    x = condition(draw, scope)
    if not x.dims:
        return x
    kept, gone = _over(draw, x)
    name = draw(st.sampled_from(("any", "all")))
    return scope.seen(attrs.evolve(x, text=_call(draw, name, x, kept, gone), dims=kept))


def argmax(draw: Any, scope: Scope) -> Term:
    x = sharp_operand(draw, scope)
    if not x.dims:
        return x
    dim = draw(st.sampled_from(x.dims))
    kept = tuple(d for d in x.dims if d != dim)
    return scope.seen(Term(f"argmax({x.text}, over = {dim.name})", kept, "i32", float(dim.size)))


def outer_product_summed_away(draw: Any, scope: Scope) -> Term:
    """Two dims in one equation's iteration space that no tensor has together."""
    x, y = real_operand(draw, scope), real_operand(draw, scope)
    x, y = tame(x, 4.0), tame(y, 4.0)
    if not x.dims or not y.dims or volume({*x.dims, *y.dims}) > MAX_ITERATIONS:
        return x
    kept = subset(draw, tuple(dim for dim in (*x.dims, *y.dims) if dim not in x.dims or dim not in y.dims))
    kept = kept[:1]
    bound = x.bound * y.bound * volume({*x.dims, *y.dims}) / volume(kept)
    text = f"einsum({x.text}, {y.text} -> {dims_text(kept)})"
    return tame(scope.seen(Term(text, kept, scope.real, bound, total_grain(x, y))), 32.0)
