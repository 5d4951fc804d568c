"""Operands of an expression: a variable in scope, a nested expression, or a new one that fits."""

from collections.abc import Callable
from typing import Any

import attrs
from hypothesis import strategies as st

from mtfc.compiler.ir.types import Dim
from tests.generators.scope import MAX_DEPTH, Scope
from tests.generators.terms import Term, dims_text, tame

Wanted = Callable[[Term], bool]


def operand(draw: Any, scope: Scope, wanted: Wanted) -> Term | None:
    """Draw a term that fits, or None if there is none: mostly a variable, often a new one, sometimes a nested expression."""
    from tests.generators.features import expression

    if scope.depth < MAX_DEPTH and draw(st.integers(0, 4)) == 4:
        scope.depth += 1
        term = draw(expression(scope))
        scope.depth -= 1
        if wanted(term):
            return term
    fitting = [term for term in scope.terms if wanted(term)]
    tensors = [term for term in fitting if term.dims]
    if tensors and draw(st.integers(0, 7)) < 7:
        fitting = tensors
    if draw(st.integers(0, 3)) < 3:
        fitting = fitting[:2]
    return draw(st.sampled_from(fitting)) if fitting else None


def real_operand(draw: Any, scope: Scope) -> Term:
    """Draw any floating-point term, or a constant tensor if the program has none."""
    return operand(draw, scope, scope.is_real) or constant_tensor(draw, scope)


def sharp_operand(draw: Any, scope: Scope) -> Term:
    """Draw a term that ops that jump may be applied to."""
    return operand(draw, scope, scope.is_sharp) or count(draw, scope)


def number(draw: Any, scope: Scope) -> Term:
    """Draw a floating-point or integer term."""
    return operand(draw, scope, lambda t: t.dtype in (scope.real, "i32")) or constant_tensor(draw, scope)


def count(draw: Any, scope: Scope) -> Term:
    """Make 0, 1, 2, ... along a dimension, as integers."""
    dim = draw(st.sampled_from(scope.dims))
    return scope.seen(Term(f"range({dim.name})", (dim,), "i32", float(max(1, dim.size - 1))))


def constant_tensor(draw: Any, scope: Scope) -> Term:
    """Make a tensor of ones in the program's floating-point dtype."""
    dim = draw(st.sampled_from(scope.dims))
    return scope.seen(Term(in_real(f"ones([{dim.name}])", scope), (dim,), scope.real))


def in_real(call: str, scope: Scope) -> str:
    """Cast a call that makes an f32 tensor to the program's floating-point dtype."""
    return call if scope.real == "f32" else f"{call[:-1]}, dtype = {scope.real})"


def argument(term: Term) -> str:
    """Return the text of a function's argument. A literal there meets no tensor, so it gets a dtype."""
    is_literal = not term.dims and term.text.replace(".", "").isdigit()
    return f"cast({term.text}, {term.dtype})" if is_literal else term.text


def scalar(draw: Any, scope: Scope, like: Term) -> Term:
    """Draw a number for arithmetic with `like`: a literal, a number argument, or a function of the size of a dim."""
    if like.dtype == "i32" or draw(st.integers(0, 3)) < 3:
        return literal(draw, like)
    dim = draw(st.sampled_from(scope.dims))
    sizes = (
        Term(f"rsqrt({dim.name})", (), like.dtype, 1.0, None),
        Term(f"(1 / {dim.name})", (), like.dtype, 1.0, None),
    )
    return draw(st.sampled_from((*scope.numbers, *sizes)))  # type: ignore[no-any-return]


def literal(draw: Any, like: Term) -> Term:
    """Draw a scalar literal for arithmetic with `like`."""
    if like.dtype == "i32":
        value = draw(st.integers(0, 3))
        return Term(str(value), (), "i32", float(max(1, value)))
    quarters = draw(st.integers(1, 8))
    return Term(repr(quarters / 4), (), like.dtype, quarters / 4, 2)


def partner(draw: Any, scope: Scope, x: Term, wanted: Wanted) -> Term:
    """Draw the second operand of an elementwise op: its dims include those of `x`, or are among them."""
    kind = draw(st.sampled_from(("fitting", "fitting", "reduced", "literal")))
    if kind == "literal":
        found = scalar(draw, scope, x)
        return found if wanted(found) else literal(draw, x)
    same_dtype: Wanted = lambda t: t.dtype == x.dtype and wanted(t)  # noqa: E731
    if kind == "reduced" and (y := operand(draw, scope, same_dtype)):
        y = reduced_to(draw, scope, y, x.dims)
        return y if wanted(y) else x
    return operand(draw, scope, lambda t: same_dtype(t) and nested_dims(t.dims, x.dims)) or x


def nested_dims(a: tuple[Dim, ...], b: tuple[Dim, ...]) -> bool:
    return set(a) <= set(b) or set(b) <= set(a)


def reduced_to(draw: Any, scope: Scope, y: Term, dims: tuple[Dim, ...]) -> Term:
    """Sum `y` over the dims that `dims` lacks."""
    kept = tuple(dim for dim in y.dims if dim in dims)
    if len(kept) == len(y.dims):
        return y
    gone = [dim for dim in y.dims if dim not in kept]
    text = draw(
        st.sampled_from((f"sum({y.text} -> {dims_text(kept)})", f"sum({y.text}, over = {dims_text(gone)})"))
    )
    factor = 1
    for dim in gone:
        factor *= dim.size
    return tame(scope.seen(attrs.evolve(y, text=text, dims=kept, bound=y.bound * factor)), 64.0)


def joint_dims(*terms: Term) -> tuple[Dim, ...]:
    """Return the dims of an elementwise result."""
    return max((term.dims for term in terms), key=len)


def joint_grain(*terms: Term) -> int | None:
    grains = [term.grain for term in terms]
    return None if None in grains else max(grain for grain in grains if grain is not None)


def total_grain(*terms: Term) -> int | None:
    grains = [term.grain for term in terms]
    return None if None in grains else sum(grain for grain in grains if grain is not None)
