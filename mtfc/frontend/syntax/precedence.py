"""Turn a flat chain of signs, operands and operators into a tree, by operator precedence.

The grammar leaves chains flat. Ten levels of precedence in the grammar would cost ten reductions for every name in a file.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import cast

from mtfc.compiler.diagnostics import CompileError, Diagnostic, Span
from mtfc.compiler.records import frozen
from mtfc.frontend.syntax import ast
from mtfc.frontend.syntax.lexer import Token

COMPARISONS = ("<", "<=", ">", ">=", "==", "!=")
# From the loosest to the tightest.
LEVELS = (("or",), ("and",), ("not",), COMPARISONS, ("+", "-"), ("*", "/", "//", "@"), ("negate",), ("**",))
LEVEL = {operator: level for level, operators in enumerate(LEVELS) for operator in operators}


@frozen
class _Pending:
    """An operator whose right operand is being read."""

    token: Token
    is_prefix: bool

    @property
    def level(self) -> int:
        return LEVEL["negate" if self.is_prefix and self.token.text == "-" else self.token.text]


def tree(chain: Iterable[Token | ast.Expr], file: str) -> ast.Expr:
    """Return the expression of a chain. Raises `CompileError` for `a < b < c`."""
    operands: list[ast.Expr] = []
    pending: list[_Pending] = []
    wants_operand = True
    for item in chain:
        if not isinstance(item, Token):
            operands.append(item)
            wants_operand = False
            continue
        operator = _Pending(item, is_prefix=wants_operand)
        while pending and not wants_operand and _comes_first(pending[-1], operator, file):
            _apply(pending.pop(), operands, file)
        pending.append(operator)
        wants_operand = True
    while pending:
        _apply(pending.pop(), operands, file)
    return operands[0]


def _comes_first(left: _Pending, right: _Pending, file: str) -> bool:
    """Return True if the left operator takes b in `a left b right c`. Raises `CompileError` for two comparisons."""
    if left.token.text in COMPARISONS and right.token.text in COMPARISONS:
        message = f"comparisons do not chain: `{left.token.text}` and then `{right.token.text}`"
        help = "compare twice and join the results with `and`"
        raise CompileError((Diagnostic("E011", message, right.token.span(file), help=help),))
    return left.level > right.level or (left.level == right.level and right.token.text != "**")


def _apply(operator: _Pending, operands: list[ast.Expr], file: str) -> None:
    last = operands.pop()
    if operator.is_prefix:
        start = operator.token.span(file)
        node: ast.Expr = ast.Unary(_join(start, last.span), cast(ast.UnaryOp, operator.token.text), last)
    else:
        first = operands.pop()
        node = ast.Binary(_join(first.span, last.span), cast(ast.BinaryOp, operator.token.text), first, last)
    operands.append(node)


def _join(first: Span, last: Span) -> Span:
    return Span(first.file, first.line, first.column, last.end_line, last.end_column)
