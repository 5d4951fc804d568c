"""Find copies of statements that a `repeat` could run: W607.

Two statements are copies if they are equal but for the names of values. A row of copies is a loop if each name means the same in
every copy: a value of the same copy, a value of the copy before, or a value from before the row. After the row, only values of
the last copy may be read.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Hashable, Iterable, Iterator, Sequence
from itertools import repeat

import attrs

from mtfc.compiler.diagnostics import Diagnostic, Label, Span
from mtfc.compiler.records import frozen
from mtfc.frontend.semantics.names.unused_values import value_names
from mtfc.frontend.syntax import ast
from mtfc.frontend.syntax.ast import bound

CODE = "W607"

FEWEST = 8
"""The fewest copies that are worth a loop."""

PERIODS = 8
"""The number of lengths of a copy that are tried at each statement."""


@frozen
class _Statement:
    """A statement of a body.

    form: the statement without the names of its values. reads: for each of these names, the number of the statement that bound
    the name last, or the name itself.
    """

    node: ast.Statement
    form: Hashable
    reads: tuple[int | str, ...]


@frozen
class _Copies:
    """Copies in a row: copy k has the statements from `start + k * period` on."""

    start: int
    period: int
    number: int

    @property
    def end(self) -> int:
        return self.start + self.period * self.number


def unrolled_layers(decl: ast.ModelDecl | ast.FnDecl) -> Iterator[Diagnostic]:
    """Yield W607 for each row of copies in a model or a function."""
    yield from _in_body(decl.body)


def _in_body(body: Sequence[ast.Statement]) -> Iterator[Diagnostic]:
    for node in body:
        if isinstance(node, ast.Repeat | ast.Scan):
            yield from _in_body(node.body)
    if len(body) >= FEWEST:
        statements = _statements(body)
        yield from (_warning(copies, statements) for copies in _rows(statements))


def _statements(body: Iterable[ast.Statement]) -> list[_Statement]:
    last: dict[str, int] = {}
    found: list[_Statement] = []
    for number, node in enumerate(body):
        names, targets = (*value_names(node),), (*bound(node),)
        form: Hashable = number
        if isinstance(node, ast.Assign | ast.Param):
            scopes = (each.scope for each in ast.walk(node) if isinstance(each, ast.Call) and each.scope)
            form = _form(node, {id(name) for name in (*names, *targets, *scopes)})
        found.append(_Statement(node, form, tuple(last.get(name.text, name.text) for name in names)))
        last.update((name.text, number) for name in targets)
    return found


def _form(node: object, left_out: set[int]) -> Hashable:
    """Return a node as nested tuples, without the nodes of some identities."""
    if isinstance(node, tuple):
        return tuple(_form(each, left_out) for each in node)
    if not isinstance(node, ast.Node):
        return node
    return () if id(node) in left_out else (type(node), _form(node.structure(), left_out))


def _rows(statements: Sequence[_Statement]) -> Iterator[_Copies]:
    places: dict[Hashable, list[int]] = defaultdict(list)
    for number, each in enumerate(statements):
        places[each.form].append(number)
    last_read: dict[int | str, int] = {
        r: number for number, each in enumerate(statements) for r in each.reads
    }
    start = 0
    while start < len(statements):
        alike = places[statements[start].form]
        after = bisect_right(alike, start)
        periods = [number - start for number in alike[after : after + PERIODS]]
        row = next((row for p in periods if (row := _row(statements, start, p)).number >= FEWEST), None)
        if row and all(last_read.get(i, 0) < row.end for i in range(start, row.end - row.period)):
            yield row
        start = row.end if row else start + 1


def _row(statements: Sequence[_Statement], start: int, period: int) -> _Copies:
    """Return the copies of a period of statements that follow each other from a statement on."""
    row = _Copies(start, period, 1)
    while row.end + period <= len(statements) and _is_next(statements, row):
        row = attrs.evolve(row, number=row.number + 1)
    return row


def _is_next(statements: Sequence[_Statement], row: _Copies) -> bool:
    """True if another copy follows."""
    for number in range(row.end, row.end + row.period):
        one, other = statements[number - row.period], statements[number]
        if one.form != other.form or not all(map(_is_alike, one.reads, other.reads, repeat(row))):
            return False
    return True


def _is_alike(was: int | str, now: int | str, row: _Copies) -> bool:
    """True if a name means the same in the copy that follows a row as in the last copy of the row."""
    if isinstance(now, str) or now < row.start:
        return was == now
    if row.number == 1 and now < row.end:
        return isinstance(was, str) or was < row.start
    return now >= row.end - row.period and was == now - row.period


def _warning(row: _Copies, statements: Sequence[_Statement]) -> Diagnostic:
    first, second = (_place(statements[row.start + k * row.period].node) for k in (0, 1))
    what = "a statement" if row.period == 1 else f"{row.period} statements"
    return Diagnostic(
        CODE,
        f"{row.number} copies of {what} in a row",
        first,
        (Label(second, "the second copy begins here"),),
        f"write them once inside of `repeat layers {{ ... }}`, with `dim layers = {row.number}`: it compiles faster",
    )


def _place(node: ast.Statement) -> Span:
    names = bound(node)
    return names[0].span if names else node.span
