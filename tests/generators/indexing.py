"""Lookups, cumulative sums, the best elements along a dim, and random numbers.

These ops record their dim as if something were summed over it, so that layouts are likely to split it.
"""

from typing import Any

import attrs
from hypothesis import strategies as st

from mtfc.compiler.ir.types import Dim
from tests.generators.operands import count, number, operand, sharp_operand
from tests.generators.scope import MAX_ELEMENTS, Scope
from tests.generators.statements import Assign, Variable
from tests.generators.terms import Shape, Term, dims_text, tame


def gather(draw: Any, scope: Scope) -> Term:
    """Look up in a tensor of any dtype; some indices may point outside."""
    table = operand(draw, scope, lambda t: bool(t.dims)) or count(draw, scope)
    dim = draw(st.sampled_from(table.dims))
    ids = operand(draw, scope, lambda t: t.dtype == "i32" and dim not in t.dims) or _places(draw, scope, dim)
    dims = (*ids.dims, *(other for other in table.dims if other != dim and other not in ids.dims))
    found = attrs.evolve(table, text=f"gather({table.text}, {ids.text}, {dim.name})", dims=dims)
    return scope.kept(found, table) if found.size <= MAX_ELEMENTS else table


def _places(draw: Any, scope: Scope, dim: Dim) -> Term:
    """Draw indices along another dim; some lie before the first element of `dim`."""
    other = draw(st.sampled_from([other for other in scope.dims if other != dim] or [scope.new_dim(2)]))
    text = f"{draw(st.integers(1, 3))} * range({other.name}) - {draw(st.integers(0, 2))}"
    return scope.seen(Term(text, (other,), "i32", 3.0 * other.size))


def cumsum(draw: Any, scope: Scope) -> Term:
    x = tame(number(draw, scope), 32.0)
    if not x.dims:
        return x
    dim = draw(st.sampled_from(x.dims))
    scope.facts.reduced.add(dim)
    options = "".join(f", {name} = true" for name in ("exclusive", "reverse") if draw(st.booleans()))
    text = f"cumsum({x.text}, over = {dim.name}{options})"
    return tame(scope.seen(attrs.evolve(x, text=text, bound=x.bound * dim.size)), 64.0)


def top_k(draw: Any, scope: Scope) -> Term:
    """Draw a statement for the two results of `top_k`, of which one is used here. The other may be used later."""
    x = sharp_operand(draw, scope)
    if not x.dims:
        return x
    dim = draw(st.sampled_from(x.dims))
    k = scope.dim_of_size(draw, draw(st.integers(1, min(dim.size, 4))), x.dims)
    dims: Shape = tuple(k if each == dim else each for each in x.dims)
    scope.facts.reduced.add(dim)
    names = scope.fresh("best"), scope.fresh("place")
    scope.append(
        Assign(tuple(Variable(name, dims) for name in names), f"top_k({x.text}, {dim.name} -> {k.name})")
    )
    values = scope.bind(names[0], scope.seen(attrs.evolve(x, text=names[0], dims=dims)))
    places = scope.bind(names[1], Term(names[1], dims, "i32", float(dim.size)))
    return draw(st.sampled_from((values, places)))  # type: ignore[no-any-return]


def drawn(draw: Any, scope: Scope) -> Term:
    """Draw random numbers. They depend on the place of the call, so programs in two forms have none."""
    if scope.options.structured or not scope.options.constants:
        return cumsum(draw, scope)
    dims = tuple(dim for dim in scope.dims[:3] if draw(st.booleans()))
    shown = dims_text(dims)
    if draw(st.booleans()):
        text = f"random.bernoulli({shown}, {draw(st.sampled_from((0.25, 0.5, 0.9)))})"
        return scope.seen(Term(text, dims, "bool"))
    name = draw(st.sampled_from(("uniform", "normal") if scope.real == "f32" else ("uniform",)))
    dtype = "" if scope.real == "f32" else f", dtype = {scope.real}"
    return scope.seen(Term(f"random.{name}({shown}{dtype})", dims, scope.real, 6.0, None))
