"""Functions that are called and do not exist: what the caller may have meant."""

from __future__ import annotations

from collections.abc import Collection

from mtfc.frontend import ast, library
from mtfc.frontend.scope import Scope


def unknown_function(
    scope: Scope, function: ast.Name | ast.Path, values: Collection[str], builtins: Collection[str]
) -> None:
    """Report that there is no such function; `values` are the variables, `builtins` the functions that are built in."""
    if isinstance(function, ast.Path):
        _in_module(scope, function, builtins)
        return
    name = function.text
    help = "a model is an entry point, and cannot be called" if name in scope.models else None
    help = "it is a value, and cannot be called" if name in values else help or _in_library(scope, name)
    known = () if help else (*builtins, *scope.functions)
    scope.unknown("E104", f"unknown function `{name}`", function, known, help)


def _in_module(scope: Scope, function: ast.Path, builtins: Collection[str]) -> None:
    head, *rest = function.parts
    if head == "random" and head not in scope.modules:
        known = [name for name in builtins if name.startswith("random.")]
        scope.unknown("E104", f"unknown function `{function.text}`", function, known)
    elif head not in scope.modules:
        help = f"add `import {head}`" if library.text(head) is not None else None
        scope.error("E113", f"no module `{head}` is imported", function.span, help=help)
    elif (module := scope.modules[head]) is not None and module.doubtful.isdisjoint(rest):
        known = [f"{head}.{name}" for name in module.functions]
        message = f"module `{head}` has no function `{'.'.join(rest)}`"
        scope.unknown("E104", message, function, known)


def _in_library(scope: Scope, name: str) -> str | None:
    """Where the library has a function of that name."""
    modules = library.with_function(name)
    if not modules:
        return None
    imported = [module for module in modules if module in scope.modules]
    if imported:
        return f"write `{imported[0]}.{name}`"
    return f"the library has `{modules[0]}.{name}`: add `import {modules[0]}`"
