"""Read the arguments of calls: one function for each kind of argument.

Such a function takes the argument as written, and returns the value that the call's rule gets. It returns None, and reports an
error, for an argument of another kind.
"""

from collections.abc import Callable
from typing import Any

from mtfc.compiler.ir.core import Value
from mtfc.compiler.ir.types import WRITTEN_BYTES, Dim
from mtfc.frontend.semantics.bodies.expressions import Expressions, Operand
from mtfc.frontend.semantics.names.constants import Number
from mtfc.frontend.semantics.names.scope import T
from mtfc.frontend.syntax import ast, other_libraries

Kind = Callable[[Expressions, ast.Node], Any]


def tensor(expressions: Expressions, node: ast.Node) -> Operand | None:
    """Return the operand that an expression gives; None, with a diagnostic, for brackets of dimensions or an arrow."""
    if not isinstance(node, ast.DimList | ast.Tuple | ast.Arrow):
        return expressions.operand(node)
    if isinstance(node, ast.Arrow):
        _misplaced_arrow(expressions, node)
    else:
        is_list = isinstance(node, ast.DimList) and len(node.dims) > 1
        help = "tensors are separate arguments, without brackets" if is_list else None
        _expected("a tensor", expressions, node, help)
    return None


def variables(expressions: Expressions, node: ast.Node) -> list[Operand] | None:
    """Read a list of variables `[w, x]`, or one variable without brackets."""
    nodes = node.dims if isinstance(node, ast.DimList) else (node,)
    if not nodes or not all(isinstance(each, ast.Name) for each in nodes):
        return _expected("variables, as in `[w, x]`", expressions, node)
    found = [expressions.operand(each) for each in nodes]
    return None if None in found else [each for each in found if each is not None]


def _misplaced_arrow(expressions: Expressions, node: ast.Arrow) -> None:
    """Report an arrow in a call that takes none."""
    if isinstance(node.target, ast.DimList):
        expressions.scope.error("E215", "this call takes no `-> [dims]`: its result's follow", node.span)
        return
    help = f"the dimensions of a result stand in brackets: `-> [{node.target.text}]`"
    _expected("a tensor", expressions, node, help)


def dim(expressions: Expressions, node: ast.Node) -> Dim | None:
    """Return the dimension that an expression names; None, with a diagnostic, for anything else."""
    if isinstance(node, ast.DimName):
        return expressions.scope.dim(node)
    return _expected("a dimension", expressions, node, _dimension(node))


def _dimension(node: ast.Node) -> str | None:
    """Return help for a size in place of a dimension."""
    if isinstance(node, ast.Int):
        return f"dimensions have names: declare `dim d = {node.value}`, and write `d`"
    return None


def dims(expressions: Expressions, node: ast.Node) -> tuple[Dim, ...] | None:
    """Read a list `[batch, io]`, or one dimension without brackets."""
    if isinstance(node, ast.DimList):
        return expressions.scope.dim_list(node.dims, node.span)
    if isinstance(node, ast.DimName):
        return expressions.scope.dim_list((node,), node.span)
    help = _dimension(node)
    if isinstance(node, ast.Tuple) and all(isinstance(item, ast.DimName) for item in node.items):
        names = (item.text for item in node.items if isinstance(item, ast.DimName))
        help = f"write `[{', '.join(names)}]`"
    return _expected("dimensions, as in `[batch, io]`", expressions, node, help)


def mapping(expressions: Expressions, node: ast.Node) -> tuple[Dim, Dim] | None:
    """Read `length -> memory`."""
    if (
        not isinstance(node, ast.Arrow)
        or not isinstance(node.source, ast.DimName)
        or isinstance(node.target, ast.DimList)
    ):
        return _expected("`old -> new`, two dimensions", expressions, node)
    source, target = expressions.scope.dim(node.source), expressions.scope.dim(node.target)
    return (source, target) if source and target else None


def windows(expressions: Expressions, node: ast.Node) -> tuple[Dim, Dim, Dim] | None:
    """Read `height -> [out, kernel]`: a dimension, the dimension of its windows, and the positions within a window."""
    if (
        isinstance(node, ast.Arrow)
        and isinstance(node.source, ast.DimName)
        and isinstance(node.target, ast.DimList)
    ):
        source, found = expressions.scope.dim(node.source), dims(expressions, node.target)
        if source is None or found is None:
            return None
        if len(found) == 2:
            return (source, *found)
    return _expected("`length -> [windows, kernel]`", expressions, node)


def two_integers(expressions: Expressions, node: ast.Node) -> tuple[int, int] | None:
    """Read `(1, 1)`."""
    if not isinstance(node, ast.Tuple) or len(node.items) != 2:
        return _expected("two numbers, as in `(1, 1)`", expressions, node)
    first, second = (integer(expressions, item) for item in node.items)
    return None if first is None or second is None else (first, second)


def tensor_or_mapping(expressions: Expressions, node: ast.Node) -> Operand | tuple[Dim, Dim] | None:
    return (mapping if isinstance(node, ast.Arrow) else tensor)(expressions, node)


def dtype(expressions: Expressions, node: ast.Node) -> str | None:
    """Return the dtype that an expression names; None, with a diagnostic, for anything else."""
    if isinstance(node, ast.Name):
        return expressions.scope.dtype(node)
    last = node.parts[-1] if isinstance(node, ast.Path) else ""
    help = f"write `{last}`" if last in WRITTEN_BYTES else other_libraries.DTYPES.get(last)
    return _expected("a dtype", expressions, node, help)


integer: Kind = Expressions.integer
"""Read a whole number, which may be computed from sizes of dimensions and other numbers."""


def number(expressions: Expressions, node: ast.Node) -> Operand | None:
    """Read a number that is known at compile time; a variable may stand for it."""
    operand = tensor(expressions, node)
    if operand is None or not isinstance(operand.result, Value):
        return operand
    return _expected("a number", expressions, node)


def boolean(expressions: Expressions, node: ast.Node) -> Number | None:
    """Return `true` or `false`; None, with a diagnostic, for anything else."""
    if isinstance(node, ast.Bool):
        return node.value
    return _expected("`true` or `false`", expressions, node)


def _expected(what: str, expressions: Expressions, node: ast.Node, help: str | None = None) -> T | None:
    return expressions.scope.refuse("E204", f"expected {what}", node.span, help=help)
