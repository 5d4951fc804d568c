"""Find the warnings that a file allows: `allow W601` in a layout, and `# allow W601` on a line."""

import re
from collections.abc import Collection, Iterable, Mapping

import attrs

from mtfc.compiler.diagnostics import Span
from mtfc.compiler.records import frozen
from mtfc.frontend.semantics.names.scope import Scope
from mtfc.frontend.syntax import ast

COMMENT = re.compile(r"#[ \t]*allow[ \t]+([A-Za-z]\d+(?:[ \t]*,[ \t]*[A-Za-z]\d+)*)")
OF_LAYOUTS = ("W601", "W602")
WARNINGS = (*OF_LAYOUTS, "W603", "W604", "W605", "W606", "W607", "W608", "W609", "W801", "W802", "W803")


@frozen
class Allowed:
    """The lines of a file on which a warning is allowed, by the code of the warning."""

    file: str = ""
    lines: Mapping[str, frozenset[int]] = attrs.field(factory=dict)

    def at(self, code: str, span: Span) -> bool:
        """True if a warning about this place is allowed."""
        lines = self.lines.get(code, frozenset())
        return span.file == self.file and not lines.isdisjoint(range(span.line, span.end_line + 1))


def in_layout(allows: Iterable[ast.Allow], scope: Scope) -> frozenset[str]:
    """Return the codes that a layout allows."""
    return frozenset(each.code.text for each in allows if _is_known(each.code, OF_LAYOUTS, scope))


def on_lines(text: str, file: str, scope: Scope) -> Allowed:
    """Return what comments allow: a comment holds for its own line, or, standing alone, for the next line of code."""
    found: dict[str, set[int]] = {}
    waiting: list[str] = []
    for number, line in enumerate(re.split(r"\r\n?|\n", text), 1):
        before, mark, _ = line.partition("#")
        comment = COMMENT.match(line, len(before)) if mark else None
        codes = _codes(line, number, comment, file, scope) if comment else []
        if not before.strip():
            waiting += codes
            continue
        for code in (*waiting, *codes):
            found.setdefault(code, set()).add(number)
        waiting = []
    return Allowed(file, {code: frozenset(lines) for code, lines in found.items()})


def _codes(line: str, number: int, comment: re.Match[str], file: str, scope: Scope) -> list[str]:
    """Return the known codes in a comment; report an error for every other code."""
    names = []
    for each in re.finditer(r"\w+", comment[1]):
        column = comment.start(1) + each.start() + 1
        names.append(ast.Name(Span(file, number, column, number, column + len(each[0])), each[0]))
    return [name.text for name in names if _is_known(name, WARNINGS, scope)]


def _is_known(code: ast.Name, known: Collection[str], scope: Scope) -> bool:
    """Return True if a layout can allow a warning; otherwise report why not (E012). known: the warnings that it can allow."""
    if code.text in known:
        return True
    others = " and ".join(known)
    if code.text in WARNINGS:
        message = f"a layout cannot allow `{code.text}`"
        help = f"{others} can be allowed here, others on lines"
        return scope.error("E012", message, code.span, help=help)
    if re.fullmatch(r"E\d{3}", code.text):
        message = f"`{code.text}` is an error, which cannot be allowed"
        return scope.error("E012", message, code.span, help=f"{others} can be")
    return scope.unknown("E012", f"there is no warning `{code.text}`", code, known)
