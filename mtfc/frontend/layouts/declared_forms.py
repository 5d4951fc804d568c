"""Resolve the section `forms` of a layout, which says how equations are computed."""

from __future__ import annotations

from mtfc.compiler.diagnostics import Label, Span
from mtfc.compiler.ir.types import FORMS, Forms
from mtfc.frontend.semantics.names.scope import Scope
from mtfc.frontend.syntax import ast

NUMBER = "a whole number from 1 to 2147483647"


def resolve_forms(section: ast.FormSet | None, scope: Scope) -> Forms:
    """Return the forms of a layout. Wrong entries are reported (E324) and left out."""
    places: dict[str, Span] = {}
    found: dict[str, str | int] = {}
    for each in section.entries if section else ():
        name = each.key if isinstance(each, ast.FormFigure) else each.dim
        if name.text in places:
            label = Label(places[name.text], "first entry")
            scope.error("E309", f"`{name.text}` has two entries", name.span, [label])
            continue
        places[name.text] = name.span
        if name.text not in FORMS:
            known = f"it has {', '.join(FORMS)}"
            near = scope.reports.nearest(name.text, FORMS)
            help = f"did you mean `{near}`?" if near else known
            scope.error("E324", f"`forms` has no entry `{name.text}`", name.span, help=help)
        elif (value := _value(each, name.text)) is None:
            *most, last = FORMS[name.text] or (NUMBER,)
            words = f"{', '.join(most)} or {last}" if most else last
            scope.error("E324", f"`{name.text}` is {words}", each.span)
        else:
            found[name.text] = value
    if "flops_per_byte" in found and found.get("dots") != "joined":
        help = "add `dots: joined`, or leave this out"
        span = places["flops_per_byte"]
        scope.error("E324", "`flops_per_byte` says which dots are joined, and none are", span, help=help)
        del found["flops_per_byte"]
    return Forms.of(found)


def _value(entry: ast.SplitRule | ast.FormFigure, key: str) -> str | int | None:
    """Return the value of an entry, or None if it is wrong."""
    if isinstance(entry, ast.FormFigure):
        number = entry.number
        is_right = not FORMS[key] and isinstance(number, ast.Int) and 1 <= number.value < 1 << 31
        return number.value if is_right and isinstance(number, ast.Int) else None
    (word, *more) = (axis.text for axis in entry.axes)
    return word if word in FORMS[key] and not more else None
