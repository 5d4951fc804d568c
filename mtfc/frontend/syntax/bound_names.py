"""Find the names that statements bind. `dead` are the places of statements to leave out: see `unused_values.py`."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence

from mtfc.compiler.diagnostics import Span
from mtfc.frontend.syntax import ast

Places = Collection[Span]


def bound(statement: ast.Statement, dead: Places = ()) -> Sequence[ast.Name]:
    """Return the names that a statement binds in its body, those inside of loops too."""
    if statement.span in dead:
        return ()
    if isinstance(statement, ast.Assign):
        return statement.targets
    if isinstance(statement, ast.Param | ast.State | ast.Yield):
        return (statement.name,)
    if isinstance(statement, ast.Repeat | ast.Scan):
        inside = [name for inner in statement.body for name in bound(inner, dead)]
        return [*(each.name for each in statement.slices), *inside]
    return ()


def variables(
    given: Iterable[ast.Name], statements: Iterable[ast.Statement], dead: Places = ()
) -> dict[str, Span]:
    """Return the names that a body binds, each with the first place."""
    places: dict[str, Span] = {}
    for name in (*given, *(name for each in statements for name in bound(each, dead))):
        places.setdefault(name.text, name.span)
    return places


def bound_inside(statements: Iterable[ast.Statement], dead: Places = ()) -> Iterator[ast.Name]:
    """Yield the names that a loop's body binds; yields of inner loops are included, the loop's own yields are not."""
    for statement in statements:
        if statement.span in dead:
            continue
        if isinstance(statement, ast.Assign):
            yield from statement.targets
        elif isinstance(statement, ast.Param | ast.State):
            yield statement.name
        elif isinstance(statement, ast.Repeat | ast.Scan):
            slices = {each.name.text for each in statement.slices}
            inner = (*bound_inside(statement.body, dead), *yielded(statement, dead))
            yield from (name for name in inner if name.text not in slices)


def yielded(node: ast.Repeat | ast.Scan, dead: Places = ()) -> list[ast.Name]:
    """Return the names that a loop yields."""
    return [each.name for each in node.body if isinstance(each, ast.Yield) and each.span not in dead]
