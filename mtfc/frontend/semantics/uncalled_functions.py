"""Check the names in functions that no model calls, and in optimizers that no `train` block uses.

Types are known only at a call, so a function that is called is checked there.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator

from mtfc.compiler.ir.initializers import DISTRIBUTIONS
from mtfc.compiler.ir.training_flag import TRAINING
from mtfc.compiler.ir.types import WRITTEN_BYTES
from mtfc.frontend.semantics.calls.builtin_calls import BUILTINS
from mtfc.frontend.semantics.calls.function_calls import find_function
from mtfc.frontend.semantics.names.scope import ANY, STEP, Scope
from mtfc.frontend.semantics.names.unknown_names import unknown_function
from mtfc.frontend.semantics.names.unused_values import TAKE_VARIABLES, value_names
from mtfc.frontend.syntax import ast, other_libraries
from mtfc.frontend.syntax.ast import children, walk
from mtfc.frontend.syntax.bound_names import variables


def check_uncalled(decl: ast.FnDecl, scope: Scope) -> None:
    """Report the names in a function's body that nothing declares."""
    inside = scope.inside(())
    own = (*decl.generics, *(node.name for node in walk(decl) if isinstance(node, ast.DimDecl)))
    inside.dims.update((name.text, None) for name in own)
    values = {*variables((each.name for each in decl.args), decl.body), TRAINING}
    for node in _expressions(decl):
        _check(node, inside, values)
    known = {*values, *inside.dims, *WRITTEN_BYTES, ANY}
    for name in (name for node in decl.body for name in value_names(node) if name.text not in known):
        inside.unknown("E101", f"unknown value `{name.text}`", name, values)


def as_function(decl: ast.OptimizerDecl) -> ast.FnDecl:
    """Return a function with the body of an optimizer, and with the names that the optimizer knows as arguments."""
    dims = decl.pattern.dims if decl.pattern else ()
    given = (*(hyper.name for hyper in decl.hypers), decl.parameter, decl.gradient, ast.Name(decl.span, STEP))
    arguments = tuple(ast.FnArg(name.span, name, None, None) for name in given)
    generics = tuple(dim for dim in dims if isinstance(dim, ast.Name))
    return ast.FnDecl(decl.span, decl.name, generics, arguments, (), decl.body)


def _expressions(node: ast.Node) -> Iterator[ast.Node]:
    """Yield all expressions, types and lists of dimensions in the body of a function, from the outside in."""
    takes_variables = isinstance(node, ast.Call) and node.function.text in TAKE_VARIABLES
    for child in children(node):
        if isinstance(child, ast.Name | ast.FnArg | ast.Broken):
            continue
        if takes_variables and isinstance(child, ast.DimList):
            continue
        yield child
        yield from _expressions(child)


def _check(node: ast.Node, scope: Scope, values: Collection[str]) -> None:
    if isinstance(node, ast.Call) and not _exists(node.function, scope):
        unknown_function(scope, node.function, values, BUILTINS)
    if isinstance(node, ast.Binary) and node.op == "@":
        scope.error("E004", other_libraries.NO_PRODUCT, node.span, help=other_libraries.EINSUM)
    if isinstance(node, ast.Type | ast.DimList):
        for dim in node.dims:
            if not isinstance(dim, ast.Ellipsis):
                scope.dim(dim)


def _exists(name: ast.Name | ast.Path, scope: Scope) -> bool:
    """Return True if there is a function or an initializer of this name."""
    return find_function(scope, name) is not None or name.text in BUILTINS or name.text in DISTRIBUTIONS
