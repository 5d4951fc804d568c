"""Blocks of statements: assignments, and loops with blocks of their own."""

from typing import Any

import attrs
from hypothesis import strategies as st

from mtfc.compiler.ir.types import Dim
from tests.generators.operands import joint_grain, number, operand, real_operand, reduced_to
from tests.generators.scope import MAX_ELEMENTS, Scope
from tests.generators.statements import Loop, Slice, Yield
from tests.generators.terms import Shape, Term, dims_text, settled, tame, volume

LONGEST = 4
"""The most iterations of a loop; a loop in a loop has one less."""
DEEPEST = 2
KINDS = ("repeat", "scan")
COUNTED = Dim("trips", 3)
"""The dim of outer loops whose number of iterations a test changes; no tensor outside of them has it."""
UNTOUCHED = "anchor"
"""The variable that makes every loss depend on a parameter."""


def statements(draw: Any, scope: Scope, most: int) -> None:
    """Draw at least one statement, and mostly `most`. Programs without loops come first."""
    number = 0
    while not number or (number < most and draw(st.integers(0, 31)) > 0):
        if len(scope.loops) < DEEPEST and draw(st.integers(0, 3 if scope.options.structured else 7)) == 3:
            loop(draw, scope)
        else:
            assignment(draw, scope)
        number += 1


def assignment(draw: Any, scope: Scope) -> None:
    """Assign to a new name, or to a name that this block has bound."""
    from tests.generators.features import expression

    term = draw(expression(scope))
    known = sorted(scope.own - {UNTOUCHED})
    name = draw(st.sampled_from(known)) if known and draw(st.integers(0, 9)) == 9 else scope.fresh("h")
    scope.assign(name, term)


# Loops


def loop(draw: Any, scope: Scope) -> None:
    """Draw `repeat` or `scan`, with slices, parameters, carries and yields."""
    dim = _loop_dim(draw, scope)
    stacked = draw(st.sampled_from(KINDS)) == "repeat"
    slices = _slices(draw, scope, dim, least=0 if stacked else 1)
    carried = {term.text: term for term in (_start(draw, scope) for _ in range(draw(st.integers(0, 2))))}
    inner = scope.within(dim, stacked)
    for name, term in slices.items():
        inner.bind(name, inner.seen(attrs.evolve(term, dims=_without(term.dims, dim))))
    for name, term in carried.items():
        inner.carry(name, term)
    _parameters(draw, inner)
    _body(draw, inner, list(carried.values()))
    yielded = [_yield(draw, inner, dim) for _ in range(draw(st.integers(0 if carried else 1, 2)))]
    checkpoint = stacked and draw(st.integers(0, 2)) == 2
    heads = tuple(Slice(name, term.text, term.dims) for name, term in slices.items())
    scope.append(Loop(dim, stacked, checkpoint, heads, inner.block))
    for name, term in carried.items():
        scope.bind(name, term)
    for term in yielded:
        _bind_all(scope, dim, scope.seen(term))


def _bind_all(scope: Scope, dim: Dim, yielded: Term) -> None:
    """Make the yields of a loop usable: as they are, or reduced over the dim of a counted loop."""
    if dim != COUNTED:
        scope.bind(yielded.text, yielded)
        return
    scope.long.append(yielded)
    reduced = "any" if yielded.dtype == "bool" else "sum"
    text = f"{reduced}({yielded.text}, over = {dim.name})"
    scope.assign(
        scope.fresh("h"), scope.kept(attrs.evolve(yielded, text=text, dims=yielded.dims[1:]), yielded)
    )


def _without(dims: Shape, dim: Dim) -> Shape:
    return tuple(each for each in dims if each != dim)


def _loop_dim(draw: Any, scope: Scope) -> Dim:
    """Draw a short dim that no loop around has, mostly a known one."""
    if scope.options.counted and not scope.loops and not scope.inside:
        return COUNTED
    longest = LONGEST if not scope.loops else LONGEST - 1
    known = [dim for dim in scope.dims if dim.size <= longest and dim not in scope.loops]
    if known and draw(st.integers(0, 3)) < 3:
        return draw(st.sampled_from(known))  # type: ignore[no-any-return]
    return scope.new_dim(draw(st.sampled_from((2, 3, 2, 1))))


def _slices(draw: Any, scope: Scope, dim: Dim, least: int) -> dict[str, Term]:
    """Draw the operands that a loop slices, by the name of a slice; the terms are of the whole operands."""
    found = {}
    for _ in range(draw(st.integers(least, 2))):
        known = draw(st.sampled_from(scope.long)) if dim == COUNTED and draw(st.booleans()) else None
        term = known or operand(draw, scope, lambda t: dim in t.dims) or _spread(draw, scope, dim)
        found[scope.fresh("s")] = term
    return found


def _spread(draw: Any, scope: Scope, dim: Dim) -> Term:
    """Draw a term with this dim."""
    x = real_operand(draw, scope)
    if dim in x.dims or x.size * dim.size > MAX_ELEMENTS or draw(st.booleans()):
        return scope.seen(Term(f"range({dim.name})", (dim,), "i32", float(max(1, dim.size - 1))))
    dims = (*x.dims, dim)
    return scope.seen(attrs.evolve(x, text=f"broadcast({x.text} -> {dims_text(dims)})", dims=dims))


def _start(draw: Any, scope: Scope) -> Term:
    """Draw a variable to carry, with its value before the first iteration: small, and exact if the kind says so."""
    x = operand(draw, scope, lambda t: t.dtype in (scope.real, "i32", "bool")) or number(draw, scope)
    exact = x.dtype != scope.real or (scope.is_sharp(x) and draw(st.booleans()))
    limit = 4.0 if exact else 2.0
    x = tame(x, limit)
    if x.text == UNTOUCHED or x.text not in scope.own | scope.carried or draw(st.booleans()):
        x = scope.assign(scope.fresh("h"), x)
    grain = max(x.grain or 0, 2) if exact and x.dtype == scope.real else 0 if exact else None
    return attrs.evolve(x, bound=1.0 if x.dtype == "bool" else limit, grain=grain)


def _parameters(draw: Any, scope: Scope) -> None:
    for _ in range(draw(st.sampled_from((1, 0, 2)))):
        dims = tuple(dim for dim in draw(st.permutations(scope.dims)) if dim not in scope.stacked)[:2]
        while volume((*scope.stacked, *dims)) > MAX_ELEMENTS:
            dims = dims[1:]
        scope.parameter(scope.fresh("w"), dims)


def _body(draw: Any, scope: Scope, carried: list[Term]) -> None:
    """Draw statements and updates of carries: some updates in the middle, and all at the end."""
    statements(draw, scope, 2)
    for term in carried:
        if draw(st.integers(0, 3)) == 3:
            scope.assign(term.text, _update(draw, scope, term))
            assignment(draw, scope)
    for term in carried:
        scope.assign(term.text, _update(draw, scope, term))


UPDATES = (
    ("{} + {}", lambda a, b: a + b),
    ("{} - {}", lambda a, b: a + b),
    ("0.5 * {} + 0.25 * {}", lambda a, b: a / 2 + b / 4),
    ("{} * tanh({})", lambda a, b: a),
    ("tanh({} + {})", lambda a, b: 1.0),
)
"""A template, and the bound of its result. The first two do not round."""


def _update(draw: Any, scope: Scope, carried: Term) -> Term:
    """Return the value of `carried` after the iteration, with the dims and the kind of values of before."""
    now = scope.variables[carried.text]
    if carried.dtype == "bool":
        return attrs.evolve(now, text=f"not {now.text}")
    exact = carried.exact and now.dtype != "i32"
    x = operand(draw, scope, lambda t: t.dtype == now.dtype and (t.exact or not exact)) or now
    x = reduced_to(draw, scope, x, carried.dims)
    if draw(st.integers(0, 3)) == 3:
        return scope.seen(settled(_spread_to(scope, x, carried.dims), now, carried))
    form, bound = draw(st.sampled_from(UPDATES if carried.grain is None else UPDATES[:2]))
    text = form.format(now.operand, x.operand)
    term = Term(text, now.dims, now.dtype, bound(now.bound, x.bound), joint_grain(now, x) if exact else None)
    return scope.seen(settled(term, now, carried))


def _spread_to(scope: Scope, x: Term, dims: Shape) -> Term:
    """Return `x` with all of these dims."""
    if set(x.dims) == set(dims):
        return x
    return attrs.evolve(x, text=f"broadcast({x.text} -> {dims_text(dims)})", dims=dims)


def _yield(draw: Any, scope: Scope, dim: Dim) -> Term:
    """Draw a value to yield in each iteration; the term is of all iterations together."""
    x = operand(draw, scope, lambda t: dim not in t.dims and t.size * dim.size <= MAX_ELEMENTS)
    x = x or reduced_to(draw, scope, number(draw, scope), ())
    name = scope.fresh("s")
    scope.append(Yield(name, x.text, x.dims))
    return attrs.evolve(x, text=name, dims=(dim, *x.dims))
