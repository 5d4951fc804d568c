"""Report unknown functions and values, with help that guesses the intended one."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from mtfc.compiler.ir.core import Value
from mtfc.compiler.ir.types import WRITTEN_BYTES, Dim
from mtfc.frontend.semantics.names import standard_library
from mtfc.frontend.semantics.names.scope import Scope
from mtfc.frontend.syntax import ast, other_libraries


def unknown_function(
    scope: Scope, function: ast.Name | ast.Path, values: Collection[str], builtins: Mapping[str, str]
) -> None:
    """Report an unknown function; `values` are the variables, `builtins` examples of calls of built-in functions."""
    if isinstance(function, ast.Path):
        _in_module(scope, function, values, builtins)
        return
    name = function.text
    help = "a model is an entry point, and cannot be called" if name in scope.models else None
    help = "it is a value, and cannot be called" if name in values else help or _habit(scope, name, {})
    if help and name not in scope.doubtful:
        scope.error("E104", f"unknown function `{name}`", function.span, help=help)
    else:
        scope.unknown("E104", f"unknown function `{name}`", function, (*builtins, *scope.functions))


def unknown_value(scope: Scope, node: ast.Name | ast.Path, values: Mapping[str, object]) -> None:
    """Report an unknown value, unless the text asks for a part of a value with an error."""
    head, _, attribute = node.text.partition(".")
    if attribute and head in values and values[head] is None:
        return
    value, help = values.get(head), other_libraries.VALUES.get(node.text)
    if attribute and isinstance(value, Value):
        help = other_libraries.attribute(attribute, value.type.names)
    if help and node.text not in scope.doubtful:
        message = f"`{head}` has no `{attribute}`" if attribute else f"unknown value `{node.text}`"
        scope.error("E101", message, node.span, help=help)
    else:
        scope.unknown("E101", f"unknown value `{node.text}`", node, values)


def product_help(node: ast.Binary, left: tuple[Dim, ...], right: tuple[Dim, ...]) -> str:
    """Return help that writes `x @ w` as an einsum: the result has the dimensions that only one operand has."""
    dims = ", ".join(dim.name for dim in (*left, *right) if (dim in left) != (dim in right))
    pairs = ((node.left, "a"), (node.right, "b"))
    names = [each.text if isinstance(each, ast.Name) else new for each, new in pairs]
    call = f"write `einsum({', '.join(names)} -> [{dims}])`, with the dimensions of the result"
    unnamed = " and ".join(f"`{new} = ...`" for each, new in pairs if not isinstance(each, ast.Name))
    return f"give the operand a name first, {unnamed}, and {call}" if unnamed else call


def _habit(scope: Scope, name: str, builtins: Mapping[str, str]) -> str | None:
    """Return help for a function of another library."""
    if name in builtins:
        return f"write `{builtins[name]}`"
    if name in WRITTEN_BYTES:
        return f"write `cast(x, {name})`"
    return _in_library(scope, name) or other_libraries.FUNCTIONS.get(name) or other_libraries.LAYERS.get(name)


def _in_module(
    scope: Scope, function: ast.Path, values: Collection[str], builtins: Mapping[str, str]
) -> None:
    head, *rest = function.parts
    if head == "random" and head not in scope.modules:
        known = [name for name in builtins if name.startswith("random.")]
        scope.unknown("E104", f"unknown function `{function.text}`", function, known)
    elif head in scope.modules:
        _missing(scope, function, builtins)
    elif head in values:
        help = _habit(scope, rest[-1], builtins) or f"functions take the value: `f({head})`"
        message = f"`{head}` is a value, and has no function `{'.'.join(rest)}`"
        scope.error("E104", message, function.span, help=help)
    else:
        message = f"no module `{head}` is imported"
        scope.error("E113", message, function.span, help=_import(scope, function, builtins))


def _missing(scope: Scope, function: ast.Path, builtins: Mapping[str, str]) -> None:
    """Report a function that an imported module lacks, unless an error in the module may be the reason."""
    head, *rest = function.parts
    module, last = scope.modules[head], rest[-1]
    if module is None or not module.doubtful.isdisjoint(rest):
        return
    message = f"module `{head}` has no function `{'.'.join(rest)}`"
    usage = f"write `{builtins[last]}`" if last in builtins else None
    if advice := other_libraries.LAYERS.get(last) or usage:
        scope.error("E104", message, function.span, help=advice)
    else:
        scope.unknown("E104", message, function, [f"{head}.{name}" for name in module.functions])


def _import(scope: Scope, function: ast.Path, builtins: Mapping[str, str]) -> str | None:
    """Return help for a module that is not imported."""
    head, *_, name = function.parts
    if head == "self":
        return f"there are no objects: declare `fn {name}(x: [...]) -> [...] {{ ... }}`, and call `{name}(x)`"
    if head in other_libraries.MODULES:
        return _habit(scope, name, builtins) or "modules of Python cannot be used here"
    return f"add `import {head}`" if standard_library.text(head) is not None else None


def _in_library(scope: Scope, name: str) -> str | None:
    """Return help that names a function of the library."""
    modules = standard_library.with_function(name)
    if not modules:
        return None
    imported = [module for module in modules if module in scope.modules]
    if imported:
        return f"write `{imported[0]}.{name}`"
    return f"the library has `{modules[0]}.{name}`: add `import {modules[0]}`"
