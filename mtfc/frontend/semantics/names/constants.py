"""Evaluate constant expressions, sizes of dimensions and numbers, and declare the dimensions and meshes of a file.

Sizes are exact integers; numbers are Python's. Every intermediate result is kept within limits, so that no expression takes
unbounded time or memory to evaluate. Dimensions may be declared in any order. The command line may override a size; sizes that
are computed from the size follow.
"""

import operator
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import takewhile
from math import isfinite

from mtfc.compiler.diagnostics import Label, Span
from mtfc.compiler.ir.attributes import INTEGER_RANGE, OVERFLOW
from mtfc.compiler.ir.ops import OPS
from mtfc.compiler.ir.types import FLOATS, Dim, Mesh
from mtfc.frontend.semantics.names.scope import Scope
from mtfc.frontend.syntax import ast
from mtfc.frontend.syntax.ast import children

Number = int | float | bool

LIMIT = 2**63 - 1
"""The largest size, and the largest integer in an expression."""


class ConstantError(Exception):
    """A constant expression has no value; the message says why."""


def _power(base: float, exponent: float) -> float:
    """Return a power: exact for integers that stay small, or else as a float."""
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
    """Return the value of a function of numbers. Raises `ConstantError` if it has none that a float holds."""
    try:
        return limited(function(*numbers))
    except ZeroDivisionError:
        raise ConstantError("division by zero") from None
    except OverflowError:
        raise ConstantError("the number is too large") from None


def limited(value: float) -> float:
    """Return a number. Raises `ConstantError` if it is too large."""
    if not (isfinite(value) if isinstance(value, float) else abs(value) <= LIMIT):
        raise ConstantError("the number is too large")
    return value


def plain(value: Number) -> float:
    """Return a number. Raises `ConstantError` for a truth value."""
    if isinstance(value, bool):
        raise ConstantError("expected a number, found a truth value")
    return value


def truth(value: Number) -> bool:
    """Return a truth value. Raises `ConstantError` for a number."""
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
    return scope.refuse("E208", "expected an integer, dimensions and `+ - * //` between them", node.span)


def _whole(node: ast.Binary, left: int | None, right: int | None, scope: Scope) -> int | None:
    """Return the value of an operator of sizes; None, with a diagnostic, for another operator or a number that is not
    defined.
    """
    if node.op not in ("+", "-", "*", "//"):
        help = "whole division is `//`" if node.op == "/" else None
        return scope.refuse(
            "E208", f"`{node.op}` is not among the operators of sizes, `+ - * //`", node.span, help=help
        )
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
    return scope.refuse("E213", "expected a number, such as `0.1` or `1e-3`", node.span)


def _folded(node: ast.Binary, left: float | None, right: float | None, scope: Scope) -> float | None:
    """Return the value of a binary operator; None without both operands, or with a diagnostic (E209) where it has no value."""
    if left is None or right is None:
        return None
    try:
        return plain(fold(node.op, left, right))
    except ConstantError as error:
        return scope.refuse("E209", str(error), node.span)


# Dimensions and meshes


Sizes = Mapping[str, int]

MOST_SHOWN = 6


def declare_dims(decls: Iterable[ast.DimDecl], overrides: Sizes, scope: Scope) -> None:
    """Fill in `scope.dims`, in the order of declaration, with None for a dimension that has an error."""
    found = {decl.name.text: decl for decl in decls if scope.declare("dimension", decl.name, scope.places)}
    scope.dims.update(dict.fromkeys(found))
    _override(overrides, scope)
    evaluated = {name: decl for name, decl in found.items() if name not in overrides}
    for name in _in_order(evaluated, scope):
        scope.dims[name] = _dim(evaluated[name], scope)


def _override(overrides: Sizes, scope: Scope) -> None:
    """Set the sizes of options. Errors point into a file `<--dim>` with a line for each option."""
    for line, (name, size) in enumerate(overrides.items(), 1):
        span = Span.of_line("<--dim>", name, line)
        if name not in scope.dims:
            scope.unknown("E103", f"unknown dimension `{name}`", ast.Name(span, name), scope.dims)
        elif valid_size(name, size, span, scope):
            scope.dims[name] = Dim(name, size)


def valid_size(name: str, size: int, span: Span, scope: Scope) -> bool:
    """Return True if a dimension may have this size; report an error otherwise."""
    if size < 1:
        return scope.error("E207", f"`{name}` has size {size}, and the least possible is 1", span)
    return size <= LIMIT or scope.error("E207", f"the size of `{name}` does not fit in 64 bits", span)


def _dim(decl: ast.DimDecl, scope: Scope) -> Dim | None:
    """Return a declared dimension, under the full name `module.name` in a module; None, with a diagnostic, without a size."""
    name = decl.name.text
    size = _size(name, decl.size, scope)
    return None if size is None else Dim(f"{scope.module}.{name}" if scope.module else name, size)


def _size(name: str, node: ast.Expr, scope: Scope) -> int | None:
    size = integer(node, scope)
    return size if size is not None and valid_size(name, size, node.span, scope) else None


def _in_order(decls: Mapping[str, ast.DimDecl], scope: Scope) -> list[str]:
    """Return the names of dimensions, each after the names in its size. Report cycles, and leave their names out."""
    uses = {name: [use for use in _names(decl.size) if use in decls] for name, decl in decls.items()}
    order, cycles = _sorted(uses)
    for cycle in cycles:
        _report_cycle([decls[name].name for name in cycle], scope)
    return order


def _sorted(uses: Mapping[str, Iterable[str]]) -> tuple[list[str], list[list[str]]]:
    """Return the names that are in no cycle, each after the names that it uses, and cycles without common names."""
    done: dict[str, None] = {}
    cycles: list[list[str]] = []
    cyclic: set[str] = set()
    for root in uses:
        path = {} if root in done else {root: iter(uses[root])}
        while path:
            name, rest = next(reversed(path.items()))
            use = next(rest, None)
            if use is None:
                del path[name]
                done[name] = None
            elif use in path and use not in cyclic:
                cycle = _cycle(use, path)
                cycles += [cycle] if cyclic.isdisjoint(cycle) else []
                cyclic.update(cycle)
            elif use not in path and use not in done:
                path[use] = iter(uses[use])
    return [name for name in done if name not in cyclic], cycles


def _cycle(use: str, path: dict[str, Iterator[str]]) -> list[str]:
    """Return the part of the path that begins at `use`."""
    after = list(takewhile(lambda name: name != use, reversed(path)))
    return [use, *reversed(after)]


def _report_cycle(cycle: list[ast.Name], scope: Scope) -> None:
    """Report E115 at the first dimension of a cycle, with labels at some of the others."""
    first = min(cycle, key=lambda name: name.span)
    at = cycle.index(first)
    rest = [*cycle[at + 1 :], *cycle[:at]]
    shown = [name.text for name in rest[:MOST_SHOWN]] + ["..."] * (len(rest) > MOST_SHOWN)
    path = " -> ".join((first.text, *shown, first.text))
    labels = [Label(name.span, "through this one") for name in rest[:MOST_SHOWN]]
    scope.error("E115", f"the size of `{first.text}` is computed from itself: {path}", first.span, labels)


def _names(node: ast.Node) -> Iterator[str]:
    """Yield the names in an expression."""
    if isinstance(node, ast.Name):
        yield node.text
    for child in children(node):
        yield from _names(child)


def declare_meshes(decls: Iterable[ast.MeshDecl], scope: Scope) -> dict[str, Mesh | None]:
    """Return the meshes by name, with None for a mesh that has an error."""
    places: dict[str, Span] = {}
    return {decl.name.text: mesh(decl, scope) for decl in decls if scope.declare("mesh", decl.name, places)}


def mesh(decl: ast.MeshDecl, scope: Scope) -> Mesh | None:
    """Return a declared mesh; None, with a diagnostic, if it has no axes or an axis without a size."""
    places: dict[str, Span] = {}
    sizes = [
        (axis.name.text, _size(axis.name.text, axis.size, scope))
        for axis in decl.axes
        if scope.declare("mesh axis", axis.name, places)
    ]
    if not decl.axes:
        scope.error(
            "E310", f"mesh `{decl.name.text}` has no axes", decl.span, help="one processor is `[all: 1]`"
        )
    axes = tuple((name, size) for name, size in sizes if size is not None)
    return Mesh(decl.name.text, axes) if decl.axes and len(axes) == len(decl.axes) else None
