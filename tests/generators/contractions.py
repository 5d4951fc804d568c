"""Einsums and reductions: the expressions that leave sums pending where a dim is split."""

from math import log2, prod
from typing import Any

import attrs
from hypothesis import strategies as st

from mtfc.compiler.ir.types import Dim
from tests.generators.elementwise import condition
from tests.generators.operands import (
    argument,
    joint_grain,
    literal,
    number,
    operand,
    real_operand,
    sharp_operand,
    total_grain,
)
from tests.generators.scope import MAX_ELEMENTS, Scope
from tests.generators.terms import Term, dims_text, tame, volume

MAX_ITERATIONS = 6000


def subset(draw: Any, dims: tuple[Dim, ...]) -> tuple[Dim, ...]:
    return tuple(dim for dim in dims if draw(st.booleans()))


def einsum(draw: Any, scope: Scope) -> Term:
    """Draw one to four operands, with shared and contracted dims by chance; outer products too."""
    terms = _einsum_operands(draw, scope)
    union = tuple(dict.fromkeys(dim for term in terms for dim in term.dims))
    kept = subset(draw, union) or union[:1]
    if volume(kept) > MAX_ELEMENTS:
        kept = terms[0].dims
    kept = tuple(draw(st.permutations(kept)))
    bound = prod(term.bound for term in terms) * volume(union) / volume(kept)
    text = f"einsum({', '.join(term.text for term in terms)} -> {dims_text(kept)})"
    result = Term(text, kept, terms[0].dtype, bound, total_grain(*terms))
    return tame(scope.kept(result, *terms), 32.0)


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
    """Return True if two terms have a dim in common."""
    return bool(set(x.dims) & set(y.dims))


def _over(draw: Any, x: Term) -> tuple[tuple[Dim, ...], tuple[Dim, ...]]:
    """Draw the dims to keep and to reduce away; reduce at least one if there are dims."""
    if draw(st.booleans()):
        kept = subset(draw, x.dims)
    else:
        gone = draw(st.sampled_from(x.dims))
        kept = tuple(dim for dim in x.dims if dim != gone)
    if len(kept) == len(x.dims):
        kept = kept[1:]
    return kept, tuple(dim for dim in x.dims if dim not in kept)


def _call(draw: Any, name: str, x: Term, kept: tuple[Dim, ...], gone: tuple[Dim, ...]) -> str:
    """Draw one of the ways to write the reduction."""
    forms = [f"{name}({x.text}, over = {dims_text(gone)})", f"{name}({x.text} -> {dims_text(kept)})"]
    if not kept:
        forms.append(f"{name}({x.text})")
    return draw(st.sampled_from(forms))  # type: ignore[no-any-return]


def total(draw: Any, scope: Scope) -> Term:
    """Draw a `sum` or `mean`."""
    x = tame(number(draw, scope), 32.0)
    if not x.dims:
        return x
    kept, gone = _over(draw, x)
    n = volume(gone)
    if x.dtype != "i32" and draw(st.booleans()):
        grain = x.grain + int(log2(n)) if x.grain is not None and n & (n - 1) == 0 else None
        return scope.kept(attrs.evolve(x, text=_call(draw, "mean", x, kept, gone), dims=kept, grain=grain), x)
    summed = attrs.evolve(x, text=_call(draw, "sum", x, kept, gone), dims=kept, bound=x.bound * n)
    return tame(scope.kept(summed, x), 64.0)


def sums_combined(draw: Any, scope: Scope) -> Term:
    """Combine two sums to the same dims, so that pending sums meet. The result may be summed further."""
    x, y = tame(real_operand(draw, scope), 8.0), tame(real_operand(draw, scope), 8.0)
    shared = tuple(dim for dim in x.dims if dim in y.dims)
    kept = subset(draw, shared[:-1] if len(shared) in (len(x.dims), len(y.dims)) else shared)
    a, b = _summed_to(draw, scope, x, kept), _summed_to(draw, scope, y, kept)
    if draw(st.integers(0, 4)) == 0:
        b = literal(draw, a)
    combined = draw(st.sampled_from((_added, _added, _multiplied, _divided)))(a, b)
    if kept and draw(st.booleans()):
        dim = draw(st.sampled_from(kept))
        rest = tuple(d for d in kept if d != dim)
        text, bound = f"sum({combined.text}, over = [{dim.name}])", combined.bound * dim.size
        combined = scope.seen(attrs.evolve(combined, text=text, dims=rest, bound=bound))
    return tame(combined, 64.0)


def _summed_to(draw: Any, scope: Scope, x: Term, kept: tuple[Dim, ...]) -> Term:
    """Sum `x` to the dims `kept` by `sum` or `einsum`, and perhaps negate or scale the result."""
    form = draw(
        st.sampled_from(("sum({} -> {})", "einsum({} -> {})", "-sum({} -> {})", "0.5 * sum({} -> {})"))
    )
    bound = x.bound * volume(x.dims) / volume(kept)
    grain = None if x.grain is None else x.grain + 1
    text = form.format(x.text, dims_text(kept))
    return tame(scope.kept(attrs.evolve(x, text=text, dims=kept, bound=bound, grain=grain), x), 8.0)


def _added(a: Term, b: Term) -> Term:
    return Term(f"{a.operand} + {b.operand}", a.dims, a.dtype, a.bound + b.bound, joint_grain(a, b))


def _multiplied(a: Term, b: Term) -> Term:
    return Term(f"{a.operand} * {b.operand}", a.dims, a.dtype, a.bound * b.bound, total_grain(a, b))


def _divided(a: Term, b: Term) -> Term:
    return Term(f"{a.operand} / (0.5 + square({argument(b)}))", a.dims, a.dtype, 2 * a.bound, None)


def extreme(draw: Any, scope: Scope) -> Term:
    """Draw a `max` or `min`; the first among equals has the gradient."""
    x = sharp_operand(draw, scope)
    if not x.dims:
        return x
    kept, gone = _over(draw, x)
    name = draw(st.sampled_from(("max", "min")))
    return scope.kept(attrs.evolve(x, text=_call(draw, name, x, kept, gone), dims=kept), x)


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
    """Draw an `any` or `all`."""
    x = condition(draw, scope)
    if not x.dims:
        return x
    kept, gone = _over(draw, x)
    name = draw(st.sampled_from(("any", "all")))
    return scope.kept(attrs.evolve(x, text=_call(draw, name, x, kept, gone), dims=kept), x)


def argmax(draw: Any, scope: Scope) -> Term:
    x = sharp_operand(draw, scope)
    if not x.dims:
        return x
    dim = draw(st.sampled_from(x.dims))
    kept = tuple(d for d in x.dims if d != dim)
    return scope.seen(Term(f"argmax({x.text}, over = {dim.name})", kept, "i32", float(dim.size)))


def outer_product_summed_away(draw: Any, scope: Scope) -> Term:
    """Put two dims into one equation's iteration space that no tensor has together."""
    x, y = real_operand(draw, scope), real_operand(draw, scope)
    x, y = tame(x, 4.0), tame(y, 4.0)
    if not x.dims or not y.dims or volume({*x.dims, *y.dims}) > MAX_ITERATIONS:
        return x
    kept = subset(draw, tuple(dim for dim in (*x.dims, *y.dims) if dim not in x.dims or dim not in y.dims))
    kept = kept[:1]
    bound = x.bound * y.bound * volume({*x.dims, *y.dims}) / volume(kept)
    text = f"einsum({x.text}, {y.text} -> {dims_text(kept)})"
    return tame(scope.kept(Term(text, kept, scope.real, bound, total_grain(x, y)), x, y), 32.0)
