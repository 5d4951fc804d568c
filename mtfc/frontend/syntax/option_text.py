"""Parse the text of an option, such as `--layout "batch: rows"`, as the rest of a declaration.

Spans are moved back, so that errors point into the text that the user gave.
"""

from __future__ import annotations

from typing import TypeVar

import attrs

from mtfc.compiler.diagnostics import CompileError, Diagnostic, Diagnostics, Span
from mtfc.frontend.syntax import ast
from mtfc.frontend.syntax.parser import parse

N = TypeVar("N", bound=ast.Node)


def parse_option(
    prefix: str, text: str, brackets: str, file: str, kind: type[N], diagnostics: Diagnostics
) -> N:
    """Return the declaration that `prefix` and `text` make together, with spans that point into `text`.

    `brackets` are added where `text` does not begin with the first of them. Raises `CompileError` (syntax errors and E312).
    """
    whole = Span(file, 1, 1, 1, 1 + len(text))
    if not text.lstrip().startswith(brackets[0]):
        prefix, text = prefix + brackets[0], f"{text}\n{brackets[1]}"
    found = Diagnostics()
    declarations = parse(prefix + text, file, found).declarations
    diagnostics.extend(_moved_diagnostic(each, -len(prefix)) for each in found)
    diagnostics.raise_if_errors()
    decl = declarations[0]
    if len(declarations) > 1 or not isinstance(decl, kind):
        diagnostics.add("E312", "expected one list of rules, and nothing else", whole)
        raise CompileError(diagnostics)
    return _moved(decl, -len(prefix))


def _moved_span(span: Span, by: int) -> Span:
    """Return a span with the columns of line 1 moved."""
    column = max(1, span.column + by) if span.line == 1 else span.column
    end = max(column, span.end_column + by) if span.end_line == 1 else span.end_column
    return attrs.evolve(span, column=column, end_column=end)


def _moved_diagnostic(diagnostic: Diagnostic, by: int) -> Diagnostic:
    labels = tuple(attrs.evolve(label, span=_moved_span(label.span, by)) for label in diagnostic.labels)
    return attrs.evolve(diagnostic, span=_moved_span(diagnostic.span, by), labels=labels)


def _moved(node: N, by: int) -> N:
    """Return a node with all its spans moved."""
    return node.evolve(**{name: _moved_field(getattr(node, name), by) for name in node.fields})


def _moved_field(value: object, by: int) -> object:
    if isinstance(value, Span):
        return _moved_span(value, by)
    if isinstance(value, tuple):
        return tuple(_moved_field(item, by) for item in value)
    return _moved(value, by) if isinstance(value, ast.Node) else value
