"""Resolve the section `forms` of a layout, which says how equations are computed."""

from __future__ import annotations

from mtfc.compiler.diagnostics import Span
from mtfc.compiler.ir.types import FORMS, MOST_FLOPS_PER_BYTE, Forms, is_form
from mtfc.frontend.semantics.names.scope import Scope
from mtfc.frontend.semantics.names.standard_library import library_machines
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
            scope.error("E324", f"`{name.text}` is {_words(name.text)}", each.span)
        elif name.text == "recompute" and not _is_known(value, scope):
            near = scope.reports.nearest(str(value), (*FORMS["recompute"], *_machines(scope)))
            nearest = f"did you mean `{near}`?" if near else None
            scope.error("E324", f"`recompute` is {_words(name.text)}", each.span, help=nearest)
        else:
            found[name.text] = value
    if "flops_per_byte" in found and found.get("dots") != "joined":
        help = "add `dots: joined`, or leave this out"
        span = places["flops_per_byte"]
        scope.error("E324", "`flops_per_byte` says which dots are joined, and none are", span, help=help)
        del found["flops_per_byte"]
    return Forms.of(found)


def _words(key: str) -> str:
    """Return the values that an entry may have."""
    words = FORMS[key] or (NUMBER,)
    *most, last = (*words, "a machine such as h100", "a number of bytes") if key == "recompute" else words
    return f"{', '.join(most)} or {last}" if most else last


def _is_known(value: str | int, scope: Scope) -> bool:
    """Return True if an entry `recompute` is a word, a number of bytes, or a machine of the file or of the library."""
    return isinstance(value, int) or value in FORMS["recompute"] or value in _machines(scope)


def _machines(scope: Scope) -> tuple[str, ...]:
    return *scope.machines, *library_machines()


def _value(entry: ast.SplitRule | ast.FormFigure, key: str) -> str | int | None:
    """Return the value of an entry, or None if it is wrong."""
    value: str | int | None
    if isinstance(entry, ast.FormFigure):
        value = entry.number.value if isinstance(entry.number, ast.Int) else None
    else:
        value = entry.axes[0].text if len(entry.axes) == 1 else None
    return value if value is not None and is_form(key, value) else None
