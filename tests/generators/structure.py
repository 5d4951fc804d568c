"""Expressions that move data or make it, and so can change a layout in the middle of a program."""

from itertools import permutations
from typing import Any

import attrs
from hypothesis import strategies as st

from mtfc.compiler.ir.types import Dim
from tests.generators import contractions
from tests.generators.operands import count, in_real, literal, number, operand, real_operand
from tests.generators.scope import MAX_ELEMENTS, Scope
from tests.generators.terms import Term, dims_text


def _some_tensor(draw: Any, scope: Scope) -> Term:
    """Draw a term with at least one dim, of any dtype."""
    return operand(draw, scope, lambda t: bool(t.dims)) or count(draw, scope)


def _replaced(x: Term, mapping: dict[Dim, Dim]) -> tuple[Dim, ...]:
    return tuple(mapping.get(dim, dim) for dim in x.dims)


def broadcast(draw: Any, scope: Scope) -> Term:
    x = number(draw, scope)
    dims = list(x.dims)
    for dim in draw(st.permutations(scope.dims)):
        if len(dims) < 4 and dim not in dims and x.size * dim.size <= MAX_ELEMENTS and draw(st.booleans()):
            dims.append(dim)
            x = attrs.evolve(x, dims=tuple(dims))
    dims = draw(st.permutations(dims))
    return scope.seen(attrs.evolve(x, text=f"broadcast({x.text} -> {dims_text(dims)})", dims=tuple(dims)))


def transpose(draw: Any, scope: Scope) -> Term:
    x = _some_tensor(draw, scope)
    dims = tuple(draw(st.permutations(x.dims)))
    return scope.seen(attrs.evolve(x, text=f"transpose({x.text} -> {dims_text(dims)})", dims=dims))


def rename(draw: Any, scope: Scope) -> Term:
    """Rename one dim to another, swap two, or rename every dim."""
    return renamed(draw, scope, _some_tensor(draw, scope))


def renamed(draw: Any, scope: Scope, x: Term) -> Term:
    old = draw(st.sampled_from(x.dims))
    twins = [dim for dim in x.dims if dim.size == old.size and dim != old]
    kind = draw(st.sampled_from(("one", "swap", "all")))
    if kind == "swap" and twins:
        mapping = {old: twins[0], twins[0]: old}
    else:
        mapping = {}
        for dim in x.dims if kind == "all" else (old,):
            mapping[dim] = scope.dim_of_size(draw, dim.size, (*x.dims, *mapping.values()))
    arrows = ", ".join(f"{a.name} -> {b.name}" for a, b in mapping.items())
    return scope.seen(attrs.evolve(x, text=f"rename({x.text}, {arrows})", dims=_replaced(x, mapping)))


def reduced_and_renamed(draw: Any, scope: Scope) -> Term:
    """Rename the dims of a sum: where the new dims are split, the sum can be scattered."""
    x = contractions.total(draw, scope) if draw(st.booleans()) else contractions.einsum(draw, scope)
    return renamed(draw, scope, x) if x.dims else x


def reshape(draw: Any, scope: Scope) -> Term:
    """Split dims, merge dims, or both."""
    x = _some_tensor(draw, scope)
    kind = draw(st.sampled_from(("split", "merge", "any")))
    dims = {"split": _split, "merge": _merged, "any": _any_shape}[kind](draw, scope, x)
    return scope.seen(attrs.evolve(x, text=f"reshape({x.text} -> {dims_text(dims)})", dims=dims))


def _split(draw: Any, scope: Scope, x: Term) -> tuple[Dim, ...]:
    i = draw(st.integers(0, len(x.dims) - 1))
    factors = [k for k in range(1, x.dims[i].size + 1) if x.dims[i].size % k == 0]
    major = draw(st.sampled_from(factors))
    first = scope.dim_of_size(draw, major, x.dims)
    second = scope.dim_of_size(draw, x.dims[i].size // major, (*x.dims, first))
    return (*x.dims[:i], first, second, *x.dims[i + 1 :])


def _merged(draw: Any, scope: Scope, x: Term) -> tuple[Dim, ...]:
    if len(x.dims) < 2:
        return x.dims
    i = draw(st.integers(0, len(x.dims) - 2))
    rest = (*x.dims[:i], *x.dims[i + 2 :])
    return (*x.dims[:i], scope.dim_of_size(draw, x.dims[i].size * x.dims[i + 1].size, rest), *x.dims[i + 2 :])


def _any_shape(draw: Any, scope: Scope, x: Term) -> tuple[Dim, ...]:
    """Choose declared dims that together have this number of elements."""
    shapes = [
        dims
        for n in (1, 2, 3)
        for dims in permutations(scope.dims[:6], n)
        if attrs.evolve(x, dims=dims).size == x.size
    ]
    return draw(st.sampled_from(shapes)) if shapes else x.dims


def cut(draw: Any, scope: Scope) -> Term:
    """Draw a `slice`, with a start and a stride."""
    x = _some_tensor(draw, scope)
    source = draw(st.sampled_from(x.dims))
    start = draw(st.integers(0, source.size - 1))
    stride = draw(st.integers(1, 3))
    size = draw(st.integers(1, (source.size - 1 - start) // stride + 1))
    target = scope.dim_of_size(draw, size, x.dims)
    options = "".join(
        f", {name} = {value}"
        for name, value, default in (("start", start, 0), ("stride", stride, 1))
        if value != default
    )
    text = f"slice({x.text}, {source.name} -> {target.name}{options})"
    return scope.seen(attrs.evolve(x, text=text, dims=_replaced(x, {source: target})))


def pad(draw: Any, scope: Scope) -> Term:
    x = number(draw, scope)
    if not x.dims or x.size > MAX_ELEMENTS // 2:
        return x
    source = draw(st.sampled_from(x.dims))
    before, after = draw(st.integers(0, 2)), draw(st.integers(0, 2))
    target = scope.dim_of_size(draw, source.size + before + after, x.dims)
    options = f", before = {before}" if before else ""
    if draw(st.booleans()):
        filler = literal(draw, x)
        options += f", value = {filler.text}"
        x = attrs.evolve(
            x, bound=max(x.bound, filler.bound), grain=None if x.grain is None else max(x.grain, 2)
        )
    text = f"pad({x.text}, {source.name} -> {target.name}{options})"
    return scope.seen(attrs.evolve(x, text=text, dims=_replaced(x, {source: target})))


def concat(draw: Any, scope: Scope) -> Term:
    """Concatenate two or three tensors along dims of one name or of several."""
    x = _some_tensor(draw, scope)
    source = draw(st.sampled_from(x.dims))
    parts = [(x, source)]
    for _ in range(draw(st.integers(1, 2))):
        parts.append(_alike(draw, scope, x, source))
    if sum(part.size for part, _ in parts) > MAX_ELEMENTS:
        parts = parts[:1]
    target = scope.dim_of_size(
        draw, sum(dim.size for _, dim in parts), tuple(d for p, _ in parts for d in p.dims)
    )
    sources = [dim for _, dim in parts]
    arrows = [f"{dim.name} -> {target.name}" for dim in sources]
    if len(set(sources)) == 1:
        arrows = arrows[:1]
    terms = [part for part, _ in parts]
    text = f"concat({', '.join([*(term.text for term in terms), *arrows])})"
    grain = None if any(t.grain is None for t in terms) else max(t.grain or 0 for t in terms)
    bound = max(t.bound for t in terms)
    return scope.seen(Term(text, _replaced(x, {source: target}), x.dtype, bound, grain))


def _alike(draw: Any, scope: Scope, x: Term, source: Dim) -> tuple[Term, Dim]:
    """Draw another operand for a concat of `x` along `source`, and the dim along which it is joined."""
    others = set(x.dims) - {source}
    known = [
        t for t in scope.terms if t.dtype == x.dtype and others < set(t.dims) and len(t.dims) == len(x.dims)
    ]
    if known and draw(st.booleans()):
        y = draw(st.sampled_from(known))
        (dim,) = set(y.dims) - others
        return y, dim
    if source.size > 1 and draw(st.booleans()):
        dim = scope.dim_of_size(draw, draw(st.integers(1, source.size - 1)), x.dims)
        text = f"slice({x.text}, {source.name} -> {dim.name})"
        return scope.seen(attrs.evolve(x, text=text, dims=_replaced(x, {source: dim}))), dim
    return x, source


def shift(draw: Any, scope: Scope) -> Term:
    x = _some_tensor(draw, scope)
    if x.dtype == "bool":
        x = attrs.evolve(x, text=f"cast({x.text}, {scope.real})", dtype=scope.real)
    dim = draw(st.sampled_from(x.dims))
    most = dim.size if scope.options.constants else dim.size - 1
    by = draw(st.integers(-most, most))
    forms = [
        f", by = {by}",
        f", by = {by}, wrap = true",
        f", by = {by}, wrap = false",
        "" if most > 0 else ", by = 0",
    ]
    options = draw(st.sampled_from(forms))
    return attrs.evolve(x, text=f"shift({x.text}, {dim.name}{options})")


def creation(draw: Any, scope: Scope) -> Term:
    """Draw `zeros`, `ones`, `full`, `range` or `one_hot`."""
    kind = draw(st.sampled_from(("one_hot", "full", "zeros", "ones", "range")))
    if kind == "one_hot" or not scope.options.constants:
        return one_hot(draw, scope)
    if kind == "range":
        return count(draw, scope)
    dims = tuple(dim for dim in scope.dims[:3] if draw(st.booleans()))
    value = draw(st.integers(-4, 4)) / 4
    call = f"full({dims_text(dims)}, {value!r})" if kind == "full" else f"{kind}({dims_text(dims)})"
    return scope.seen(Term(in_real(call, scope), dims, scope.real, 1.0, 2))


def one_hot(draw: Any, scope: Scope) -> Term:
    """Draw the one-hot rows of some integers, or of a new range if there are none."""
    ids = operand(draw, scope, lambda t: t.dtype == "i32")
    if ids is None:
        return count(draw, scope) if scope.options.constants else real_operand(draw, scope)
    if draw(st.integers(0, 3)) == 0:
        ids = attrs.evolve(ids, text=f"cast(abs({ids.text}), u32)")
    free = [dim for dim in scope.dims if dim not in ids.dims and ids.size * dim.size <= MAX_ELEMENTS]
    dim = draw(st.sampled_from(free)) if free else scope.new_dim(2)
    text = in_real(f"one_hot({ids.text}, {dim.name})", scope)
    return scope.seen(Term(text, (*ids.dims, dim), scope.real))


def rename_there_and_back(draw: Any, scope: Scope) -> Term:
    """Rename in the middle of a computation, and sometimes rename back."""
    x = real_operand(draw, scope)
    if not x.dims:
        return x
    old = draw(st.sampled_from(x.dims))
    new = scope.dim_of_size(draw, old.size, x.dims)
    scope.seen(attrs.evolve(x, dims=_replaced(x, {old: new})))
    inner = f"rename({x.text}, {old.name} -> {new.name})"
    return x.rounded(f"rename(tanh({inner}), {new.name} -> {old.name})", 1.0)
