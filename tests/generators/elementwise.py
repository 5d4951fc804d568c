"""Elementwise expressions."""

from math import exp
from typing import Any

import attrs
from hypothesis import strategies as st

from tests.generators.operands import (
    argument,
    joint_dims,
    joint_grain,
    number,
    operand,
    partner,
    real_operand,
    scalar,
    sharp_operand,
    total_grain,
)
from tests.generators.scope import Scope
from tests.generators.terms import Term, tame

FOURTHS = Term("0.25", (), "f32", 0.25, 2)

# template, largest bound of the operand, bound of the result as a function of the operand's
SMOOTH = (
    ("tanh({})", 1e9, lambda b: 1.0),
    ("sigmoid({})", 1e9, lambda b: 1.0),
    ("exp({})", 3.0, exp),
    ("log(1.0 + square({}))", 64.0, lambda b: b),
    ("sqrt(0.5 + square({}))", 64.0, lambda b: b + 1.0),
    ("rsqrt(0.5 + square({}))", 64.0, lambda b: 1.5),
    ("erf({})", 1e9, lambda b: 1.0),
    ("sin({})", 16.0, lambda b: 1.0),
    ("cos({})", 16.0, lambda b: 1.0),
    ("(0.5 + sigmoid({})) ** 3.0", 16.0, lambda b: 3.5),
)


def smooth(draw: Any, scope: Scope) -> Term:
    template, limit, bound = draw(st.sampled_from(SMOOTH))
    x = tame(real_operand(draw, scope), limit)
    return x.rounded(template.format(x.operand if "**" not in template else x.text), bound(x.bound))


def linear(draw: Any, scope: Scope) -> Term:
    """Draw an op through which a pending sum may pass: minus, scaling, stop_gradient."""
    x = tame(number(draw, scope), 64.0)
    kind = draw(
        st.sampled_from(("neg", "scale", "divide", "neg" if scope.options.slopes else "stop_gradient"))
    )
    if kind == "neg":
        return attrs.evolve(x, text=f"-{x.operand}")
    if kind == "stop_gradient":
        return attrs.evolve(x, text=f"stop_gradient({x.text})")
    if kind == "divide" and x.dtype != "i32":
        return attrs.evolve(x, text=f"{x.operand} / 4.0", bound=x.bound / 4, grain=total_grain(x, FOURTHS))
    factor = scalar(draw, scope, x)
    text = draw(st.sampled_from((f"{x.operand} * {factor.text}", f"{factor.text} * {x.operand}")))
    return attrs.evolve(x, text=text, bound=x.bound * factor.bound, grain=total_grain(x, factor))


def square(draw: Any, scope: Scope) -> Term:
    x = tame(number(draw, scope), 8.0)
    return attrs.evolve(x, text=f"square({x.text})", bound=x.bound**2, grain=total_grain(x, x))


def kinked(draw: Any, scope: Scope) -> Term:
    """Draw an op whose value or slope jumps somewhere."""
    x = sharp_operand(draw, scope)
    names = ("relu", "abs", "sign") if x.dtype == "i32" else ("relu", "abs", "sign", "floor")
    name = draw(st.sampled_from(names))
    if name in ("relu", "abs"):
        return attrs.evolve(x, text=f"{name}({x.text})")
    return attrs.evolve(x, text=f"{name}({x.text})", grain=0, bound=1.0 if name == "sign" else x.bound + 1.0)


def arithmetic(draw: Any, scope: Scope) -> Term:
    """Draw `+ - *` of two terms, of which one may be broadcast."""
    operator = draw(st.sampled_from("+-*"))
    limit = 8.0 if operator == "*" else 64.0
    x = tame(number(draw, scope), limit)
    y = tame(partner(draw, scope, x, lambda t: True), limit)
    x, y = (x, y) if x.dims and draw(st.booleans()) else (y, x)
    bound = x.bound * y.bound if operator == "*" else x.bound + y.bound
    grain = total_grain(x, y) if operator == "*" else joint_grain(x, y)
    return Term(f"{x.operand} {operator} {y.operand}", joint_dims(x, y), x.dtype, bound, grain)


def quotient(draw: Any, scope: Scope) -> Term:
    x = real_operand(draw, scope)
    y = tame(partner(draw, scope, x, lambda t: True), 64.0)
    text = f"{x.operand} / (0.5 + square({argument(y)}))"
    return Term(text, joint_dims(x, y), x.dtype, 2 * x.bound, None)


def power(draw: Any, scope: Scope) -> Term:
    x = tame(real_operand(draw, scope), 8.0)
    y = partner(draw, scope, x, lambda t: True)
    text = f"(0.5 + sigmoid({x.text})) ** tanh({argument(y)})"
    return Term(text, joint_dims(x, y), x.dtype, 2.0, None)


def extremum(draw: Any, scope: Scope) -> Term:
    x = sharp_operand(draw, scope)
    y = partner(draw, scope, x, scope.is_sharp)
    x, y = (x, y) if draw(st.booleans()) else (y, x)
    name = draw(st.sampled_from(("maximum", "minimum")))
    text = f"{name}({x.text}, {y.text})"
    return Term(text, joint_dims(x, y), x.dtype, max(x.bound, y.bound), joint_grain(x, y))


def comparison(draw: Any, scope: Scope) -> Term:
    x = sharp_operand(draw, scope)
    y = partner(draw, scope, x, scope.is_sharp)
    operator = draw(st.sampled_from((">", "<", "<=", ">=", "==", "!=")))
    return Term(f"{x.operand} {operator} {y.operand}", joint_dims(x, y), "bool")


def condition(draw: Any, scope: Scope) -> Term:
    return operand(draw, scope, lambda t: t.dtype == "bool") or comparison(draw, scope)


def logical(draw: Any, scope: Scope) -> Term:
    x = condition(draw, scope)
    if draw(st.booleans()):
        return attrs.evolve(x, text=f"not {x.operand}")
    fitting = operand(draw, scope, lambda t: t.dtype == "bool" and _nested(t, x))
    y, operator = fitting or x, draw(st.sampled_from(("and", "or", "==", "!=")))
    return Term(f"{x.operand} {operator} {y.operand}", joint_dims(x, y), "bool")


def _nested(x: Term, y: Term) -> bool:
    return set(x.dims) <= set(y.dims) or set(y.dims) <= set(x.dims)


def choice(draw: Any, scope: Scope) -> Term:
    """Draw a `where`, whose condition may be broadcast; one of the three has all dims."""
    x = number(draw, scope)
    y = partner(draw, scope, x, lambda t: True)
    dims = joint_dims(x, y)
    c = operand(
        draw, scope, lambda t: t.dtype == "bool" and (set(t.dims) <= set(dims) or set(dims) <= set(t.dims))
    )
    if c is None:
        sharp = operand(draw, scope, lambda t: scope.is_sharp(t) and set(t.dims) <= set(dims))
        if sharp is None:
            return x
        c = Term(f"{sharp.operand} > 0", sharp.dims, "bool")
    if draw(st.booleans()):
        x, y = y, x
    dtype = x.dtype
    text = f"where({c.text}, {x.text}, {y.text})"
    return Term(text, joint_dims(c, x, y), dtype, max(x.bound, y.bound), joint_grain(x, y))


def by_training(draw: Any, scope: Scope) -> Term:
    """Draw the flag of training, or a choice by the flag."""
    if not scope.options.constants or not scope.options.training:
        return arithmetic(draw, scope)
    if draw(st.booleans()):
        return Term("training", (), "bool")
    x = number(draw, scope)
    y = partner(draw, scope, x, lambda t: True)
    flag = draw(st.sampled_from(("training", "not training")))
    text = f"where({flag}, {x.text}, {y.text})"
    return Term(text, joint_dims(x, y), x.dtype, max(x.bound, y.bound), joint_grain(x, y))


def conversion(draw: Any, scope: Scope) -> Term:
    """Draw a `cast`: integers and truth values to floating point, exact numbers to integers, or both ways."""
    x = operand(draw, scope, lambda t: True) or number(draw, scope)
    if x.dtype != scope.real:
        return attrs.evolve(x, text=f"cast({x.text}, {scope.real})", dtype=scope.real)
    if not scope.is_sharp(x):
        return attrs.evolve(x, text=f"cast({x.text}, {scope.real})")
    narrow = [
        dtype for dtype, bits in (("f16", 10), ("bf16", 7)) if x.bound * 2.0 ** (x.grain or 0) <= 2.0**bits
    ]
    dtype = draw(st.sampled_from(("i32", *narrow))) if not scope.options.slopes else "i32"
    if dtype == "i32":
        return attrs.evolve(x, text=f"cast({x.text}, i32)", dtype="i32", grain=0)
    return attrs.evolve(x, text=f"cast(cast({x.text}, {dtype}), {scope.real})")
