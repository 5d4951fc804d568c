"""Evaluate constant expressions: sizes of dimensions, and numbers.

Sizes are exact integers; numbers are Python's. Every intermediate result is kept within limits, so that no expression takes
unbounded time or memory to evaluate.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from math import isfinite

from mtfc.compiler.ir.attributes import INTEGER_RANGE, OVERFLOW
from mtfc.compiler.ir.ops import OPS
from mtfc.compiler.ir.types import FLOATS
from mtfc.frontend.semantics.names.scope import Scope
from mtfc.frontend.syntax import ast

Number = int | float | bool

LIMIT = 2**63 - 1
"""The largest size, and the largest integer in an expression."""


class ConstantError(Exception):
    """A constant expression has no value; the message says why."""


def _power(base: float, exponent: float) -> float:
    whole = isinstance(base, int) and isinstance(exponent, int) and exponent >= 0
    exact = whole and int(base).bit_length() * exponent <= LIMIT.bit_length()
    result: float | complex = base**exponent if exact else float(base) ** float(exponent)
    if isinstance(result, complex):
        raise ConstantError("a root of a negative number")
    return result


ARITHMETIC: dict[str, Callable[[float, float], float]] = {
    "+": operator.add,
    "-": operator.sub,
    "*": operator.mul,
    "/": operator.truediv,
    "//": operator.floordiv,
    "**": _power,
}
OPERATORS = {
    "+": "add",
    "-": "sub",
    "*": "mul",
    "/": "div",
    "**": "pow",
    "<": "lt",
    "<=": "le",
    ">": "gt",
    ">=": "ge",
    "==": "eq",
    "!=": "ne",
    "and": "and",
    "or": "or",
}
"""Operator -> the op that applies it to tensors."""
COMPARISONS: dict[str, Callable[[float, float], bool]] = {
    sign: getattr(operator, OPERATORS[sign]) for sign in ("<", "<=", ">", ">=", "==", "!=")
}
LOGIC: dict[str, Callable[[bool, bool], bool]] = {"and": operator.and_, "or": operator.or_}


def fold_call(op: str, *numbers: Number) -> Number:
    """Return the value of an elementwise function. Raises `ConstantError` if it has no value, or too large a one."""
    function = OPS[op].number
    assert function is not None, f"`{op}` takes no numbers"
    try:
        return _computed(function, *map(plain, numbers))
    except ValueError:
        raise ConstantError(f"`{op}` has no value at {', '.join(map(shown, numbers))}") from None


def fold(op: str, left: Number, right: Number) -> Number:
    """Return the value of `left op right`. Raises `ConstantError` if it has no value, or too large a one."""
    if op in LOGIC:
        return LOGIC[op](truth(left), truth(right))
    if op in ("==", "!=") and isinstance(left, bool) and isinstance(right, bool):
        return COMPARISONS[op](left, right)
    a, b = plain(left), plain(right)
    return COMPARISONS[op](a, b) if op in COMPARISONS else _computed(ARITHMETIC[op], a, b)


def _computed(function: Callable[..., float], *numbers: float) -> float:
    try:
        return limited(function(*numbers))
    except ZeroDivisionError:
        raise ConstantError("division by zero") from None
    except OverflowError:
        raise ConstantError("the number is too large") from None


def limited(value: float) -> float:
    if not (isfinite(value) if isinstance(value, float) else abs(value) <= LIMIT):
        raise ConstantError("the number is too large")
    return value


def plain(value: Number) -> float:
    if isinstance(value, bool):
        raise ConstantError("expected a number, found a truth value")
    return value


def truth(value: Number) -> bool:
    if not isinstance(value, bool):
        raise ConstantError("expected a truth value, found a number")
    return value


def convert(value: Number, dtype: str) -> Number:
    """Return `value` as an element of a dtype. Raises `ConstantError` if the dtype cannot hold the value, up to rounding."""
    if dtype == "bool" or isinstance(value, bool):
        if dtype != "bool" or not isinstance(value, bool):
            raise ConstantError(f"{shown(value)} is not a value of {dtype}")
        return value
    if dtype in FLOATS:
        if abs(value) >= OVERFLOW[dtype]:
            raise ConstantError(f"{shown(value)} is too large for {dtype}")
        return float(value)
    if isinstance(value, float):
        raise ConstantError(f"{shown(value)} is not a value of {dtype}")
    if value not in INTEGER_RANGE[dtype]:
        raise ConstantError(f"{shown(value)} does not fit in {dtype}")
    return value


def shown(value: Number) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def integer(node: ast.Node, scope: Scope) -> int | None:
    """Return the value of an expression of integers, dimensions and `+ - * //`; None, and an error, if it has none."""
    if isinstance(node, ast.Int):
        return node.value
    if isinstance(node, ast.DimName):
        dim = scope.dim(node)
        return dim.size if dim else None
    if isinstance(node, ast.Unary) and node.op == "-":
        operand = integer(node.operand, scope)
        return None if operand is None else -operand
    if isinstance(node, ast.Binary):
        return _whole(node, integer(node.left, scope), integer(node.right, scope), scope)
    scope.error("E208", "expected an integer, dimensions and `+ - * //` between them", node.span)
    return None


def _whole(node: ast.Binary, left: int | None, right: int | None, scope: Scope) -> int | None:
    if node.op not in ("+", "-", "*", "//"):
        help = "whole division is `//`" if node.op == "/" else None
        scope.error(
            "E208", f"`{node.op}` is not among the operators of sizes, `+ - * //`", node.span, help=help
        )
        return None
    found = _folded(node, left, right, scope)
    return None if found is None else int(found)


def number(node: ast.Node, scope: Scope) -> float | None:
    """Return the value of an expression of numbers; None, and an error, if it has none."""
    if isinstance(node, ast.Int | ast.Float):
        return node.value
    if isinstance(node, ast.Unary) and node.op == "-":
        operand = number(node.operand, scope)
        return None if operand is None else -operand
    if isinstance(node, ast.Binary) and node.op in ARITHMETIC:
        return _folded(node, number(node.left, scope), number(node.right, scope), scope)
    scope.error("E213", "expected a number, such as `0.1` or `1e-3`", node.span)
    return None


def _folded(node: ast.Binary, left: float | None, right: float | None, scope: Scope) -> float | None:
    if left is None or right is None:
        return None
    try:
        return plain(fold(node.op, left, right))
    except ConstantError as error:
        scope.error("E209", str(error), node.span)
        return None
