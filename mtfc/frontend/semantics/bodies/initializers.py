"""Read the initial values of parameters: calls of distributions with numbers."""

from __future__ import annotations

from collections.abc import Mapping

from mtfc.compiler.ir.core import Initializer
from mtfc.compiler.ir.initializers import DISTRIBUTIONS
from mtfc.frontend.semantics.bodies.expressions import Expressions
from mtfc.frontend.syntax import ast


def initializer(node: ast.Expr, expressions: Expressions) -> Initializer | None:
    """Read an initializer such as `normal(stddev = 0.05)`; return None, and report an error, if it is wrong."""
    scope = expressions.scope
    if not isinstance(node, ast.Call):
        help = f"for example `{_usage('zeros')}`"
        if isinstance(node, ast.Int | ast.Float):
            help = f"write `constant({node.value})`"
        scope.error("E217", "expected an initializer", node.span, help=help)
        return None
    name = node.function.text
    if name not in DISTRIBUTIONS:
        scope.unknown("E117", f"unknown initializer `{name}`", node.function, DISTRIBUTIONS)
        return None
    given = _given(node, DISTRIBUTIONS[name].args, expressions)
    numbers = _complete(node, given, expressions) if given is not None else None
    if numbers is None or not _is_possible(node, numbers, expressions):
        return None
    return Initializer(name, tuple(numbers.items()))


def _usage(name: str) -> str:
    numbers = DISTRIBUTIONS[name].args.items()
    return (
        f"{name}({', '.join(f'{key} = {0.1 if default is None else default}' for key, default in numbers)})"
    )


def _given(
    node: ast.Call, signature: Mapping[str, float | None], expressions: Expressions
) -> dict[str, float] | None:
    """Return the numbers of the call by name; positional ones are in the order of the signature."""
    name, scope = node.function.text, expressions.scope
    extra = (*node.arguments[len(signature) :], *node.bindings, *((node.scope,) if node.scope else ()))
    for each in extra:
        scope.error("E217", f"`{name}` takes no such argument", each.span, help=f"write `{_usage(name)}`")
    arguments = zip(signature, node.arguments, strict=False)
    values = {key: expressions.number(argument) for key, argument in arguments}
    for keyword in node.keywords:
        key = keyword.name.text
        if key not in signature:
            scope.unknown("E217", f"`{name}` has no number `{key}`", keyword.name, signature)
        elif key in values:
            scope.error("E217", f"`{key}` is given twice", keyword.span)
        values[key] = expressions.number(keyword.value)
    found = {key: float(value) for key, value in values.items() if value is not None}
    all_found = len(found) == len(node.arguments) + len(node.keywords)
    return found if all_found and not extra and found.keys() <= signature.keys() else None


def _complete(
    node: ast.Call, given: Mapping[str, float], expressions: Expressions
) -> dict[str, float] | None:
    """Add the defaults of the numbers that are not given."""
    name = node.function.text
    numbers = {**DISTRIBUTIONS[name].args, **given}
    complete = {key: value for key, value in numbers.items() if value is not None}
    for key in numbers.keys() - complete.keys():
        help = f"write `{_usage(name)}`"
        expressions.scope.error("E217", f"`{name}` needs `{key}`", node.span, help=help)
    return complete if len(complete) == len(numbers) else None


def _is_possible(node: ast.Call, numbers: Mapping[str, float], expressions: Expressions) -> bool:
    problem = None
    if numbers.get("stddev", 0.0) < 0:
        problem = "a standard deviation is not negative"
    if node.function.text == "uniform" and numbers["low"] > numbers["high"]:
        problem = "`low` is above `high`"
    if problem:
        expressions.scope.error("E217", problem, node.span)
    return problem is None
