"""Resolve the section `forms` of a layout, which says how equations are computed."""

from __future__ import annotations

from mtfc.compiler.diagnostics import Span
from mtfc.compiler.ir.types import FORMS, MOST_FLOPS_PER_BYTE, Forms, is_form
from mtfc.frontend.semantics.names.scope import Scope
from mtfc.frontend.syntax import ast

NUMBER = f"a whole number from 1 to {MOST_FLOPS_PER_BYTE}"


def resolve_forms(section: ast.FormSet | None, scope: Scope) -> Forms:
    """Return the forms of a layout. Wrong entries are reported (E324) and left out."""
    places: dict[str, Span] = {}
    found: dict[str, str | int] = {}
    for each in section.entries if section else ():
        name = each.key if isinstance(each, ast.FormFigure) else each.dim
        if not scope.is_first(name, places, "E309", f"`{name.text}` has two entries", "first entry"):
            continue
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
    value: str | int | None
    if isinstance(entry, ast.FormFigure):
        value = entry.number.value if isinstance(entry.number, ast.Int) else None
    else:
        value = entry.axes[0].text if len(entry.axes) == 1 else None
    return value if value is not None and is_form(key, value) else None
