"""Calls outside of models, with numbers alone: initializers and optimizers."""

from __future__ import annotations

from collections.abc import Mapping

from mtfc.frontend import ast
from mtfc.frontend.constants import number
from mtfc.frontend.scope import Scope

Signature = Mapping[str, float | None]
"""Numbers by name with their defaults; None where one must be given."""


def read_numbers(
    node: ast.Expr, what: str, known: Mapping[str, Signature], unknown: str, wrong: str, scope: Scope
) -> tuple[str, dict[str, float]] | None:
    """`normal(stddev = 0.05)` as its name and all its numbers.

    `what` is what is expected, among the `known`; `unknown` is the code of the error for another one, `wrong` for others.
    """
    example = usage(next(iter(known)), known)
    if not isinstance(node, ast.Call):
        scope.error(wrong, f"expected an {what}", node.span, help=f"for example `{example}`")
        return None
    name = node.function.text
    if name not in known:
        scope.unknown(unknown, f"unknown {what} `{name}`", node.function, known)
        return None
    given = _given(node, known, wrong, scope)
    if given is None:
        return None
    return _complete(node, {**known[name], **given}, usage(name, known), wrong, scope)


def usage(name: str, known: Mapping[str, Signature]) -> str:
    arguments = (f"{key} = {0.1 if default is None else default}" for key, default in known[name].items())
    return f"{name}({', '.join(arguments)})"


def _given(
    node: ast.Call, known: Mapping[str, Signature], wrong: str, scope: Scope
) -> dict[str, float] | None:
    """The numbers in the call by name; positional ones are in the signature's order."""
    name = node.function.text
    signature = known[name]
    extra = (*node.arguments[len(signature) :], *node.bindings, *((node.scope,) if node.scope else ()))
    for each in extra:
        scope.error(
            wrong, f"`{name}` takes no such argument", each.span, help=f"write `{usage(name, known)}`"
        )
    values = {key: number(argument, scope) for key, argument in zip(signature, node.arguments, strict=False)}
    for keyword in node.keywords:
        key = keyword.name.text
        if key not in signature:
            scope.unknown(wrong, f"`{name}` has no number `{key}`", keyword.name, signature)
        elif key in values:
            scope.error(wrong, f"`{key}` is given twice", keyword.span)
        values[key] = number(keyword.value, scope)
    found = {key: float(value) for key, value in values.items() if value is not None}
    right = (
        not extra
        and len(found) == len(node.arguments) + len(node.keywords)
        and found.keys() <= signature.keys()
    )
    return found if right else None


def _complete(
    node: ast.Call, numbers: Mapping[str, float | None], example: str, wrong: str, scope: Scope
) -> tuple[str, dict[str, float]] | None:
    complete = {key: value for key, value in numbers.items() if value is not None}
    for key in numbers.keys() - complete.keys():
        scope.error(wrong, f"`{node.function.text}` needs `{key}`", node.span, help=f"write `{example}`")
    return (node.function.text, complete) if len(complete) == len(numbers) else None
