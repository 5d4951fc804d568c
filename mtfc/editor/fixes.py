"""Quick fixes: edits that a diagnostic's help names.

Help is a sentence with code in backticks. Each code says by its form how it may be used: `dim d = 8` is a declaration to add,
`batch: rows` a rule of a layout, `-> [dims]` the end of a call, and `cast(x, f32)` stands in the place of the text or of `x`. All
uses are tried: a fix is offered only if the check of the edited text has the diagnostic no more, and no more errors than before.
"""

import difflib
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice
from typing import TypeVar

import attrs

from mtfc.compiler.diagnostics import Diagnostic, Span
from mtfc.compiler.ir.types import WRITTEN_BYTES
from mtfc.editor.documents import Project, TextBuffer, declarations, parsed
from mtfc.editor.names import occurrences, statements
from mtfc.editor.token_kinds import FUNCTIONS, keywords
from mtfc.frontend.layouts.allowed_warnings import OF_LAYOUTS, WARNINGS
from mtfc.frontend.semantics.names.modules import declarations_of
from mtfc.frontend.syntax import ast

CODE = re.compile(r"`([^`]+)`")
DECLARATION = re.compile(r"(import|dim|mesh) [^;]+")
RULE = re.compile(r"([A-Za-z_][\w.]*): (?:\w+|\([\w, ]+\))")
CALL = re.compile(r"[\w.]+(?:\[[^\]]*\])?\(([A-Za-z_]\w*)\b.*\)")
WORD = re.compile(r"[A-Za-z_]\w*")
KEYWORD = re.compile(r"[A-Za-z_]\w*(?= = )")
RENAMED = re.compile(r"`rename\(\w+, (\w+) -> (\w+)\)`, with `(dim \w+ = \w+)`")
SIZED = re.compile(r"dim (\w+) = (\d+)")
SYNTAX = "E0"
"""The first letters of the codes of syntax errors."""

NUMBER = re.compile(r"\b\d[\w.]*")
MEANT = re.compile(r"did you mean `([^`(]+)`")
CLOSE = 0.6
"""The least similarity of a word to the name that is meant, as difflib measures it."""
DTYPES = {"floating-point": "f32", "integer": "i32", "numbers": "f32"}
"""Dtypes for the words of messages."""
MULTIPLE = re.compile(r"make it a multiple of (\d+)")
DEFINED = re.compile(r"`(\w+)` is (\w+)\[")

MOST_TRIES = 24
"""Most edits that are tried for one diagnostic."""

D = TypeVar("D", bound=ast.Node)

Check = Callable[[str], Sequence[Diagnostic]]
"""Returns the diagnostics of a text in the place of the buffer's."""

Change = tuple[Span, str]
"""A span, and the text that takes its place."""


@attrs.frozen
class Fix:
    """A title, and changes that do not overlap. is_sure: True for the one remedy, behind which another error may show."""

    title: str
    changes: tuple[Change, ...]
    is_sure: bool = False


def fixes(diagnostic: Diagnostic, buffer: TextBuffer, check: Check) -> list[Fix]:
    """Return the fixes of a diagnostic that work, each with another result."""
    before = _counts(check(buffer.text))
    found: dict[str, Fix] = {}
    for fix in islice(_Candidates(diagnostic, buffer).all(), MOST_TRIES):
        text = applied(buffer, fix.changes)
        if text not in found and text != buffer.text and _works(diagnostic, before, check(text), fix.is_sure):
            found[text] = fix
    return list(found.values())


def _counts(diagnostics: Sequence[Diagnostic]) -> tuple[list[tuple[str, str]], int]:
    """Return the code and message of each diagnostic, and the number of errors."""
    return [(each.code, each.message) for each in diagnostics], sum(
        e.severity == "error" for e in diagnostics
    )


def _works(
    fixed: Diagnostic,
    before: tuple[list[tuple[str, str]], int],
    diagnostics: Sequence[Diagnostic],
    is_sure: bool,
) -> bool:
    """Return True if a diagnostic has gone and no other has come; warnings may come once all errors have gone."""
    after, errors = _counts(diagnostics)
    key = fixed.code, fixed.message
    has_gone = after.count(key) < before[0].count(key)
    if not is_sure and any(code.startswith(SYNTAX) for code, _ in {*after} - {*before[0]}):
        return False  # a syntax error hides others
    if fixed.severity == "error":
        return has_gone and errors < before[1] + is_sure
    return has_gone and errors <= before[1] and len(after) < len(before[0])


def applied(buffer: TextBuffer, changes: Iterable[Change]) -> str:
    """Return the text of a buffer with changes."""
    text = buffer.text
    for span, new in sorted(changes, key=lambda change: change[0], reverse=True):
        start, end = buffer.offsets(span)
        text = text[:start] + new + text[end:]
    return text


def _text_of(dim: ast.Node) -> str:
    return dim.text if isinstance(dim, ast.Name) else ""


def _joined(codes: Iterable[str]) -> str:
    return ", and ".join(f"`{code}`" for code in codes)


@attrs.frozen
class _Candidates:
    """The edits to try for one diagnostic."""

    diagnostic: Diagnostic
    buffer: TextBuffer

    @property
    def tree(self) -> ast.File:
        return parsed(self.buffer.text, self.buffer.file)

    @property
    def places(self) -> list[Span]:
        """The places of the diagnostic in this file, its own first."""
        return [span for span in self.diagnostic.spans if span.file == self.buffer.file]

    def all(self) -> Iterator[Fix]:
        """Yield all fixes of a diagnostic. Code in its help is inserted, together with the declarations that the code needs."""
        help = self.diagnostic.help or ""
        yield from self._meant(help)
        codes = [code for code in CODE.findall(help) if code not in WARNINGS]
        declarations = [code for code in codes if DECLARATION.fullmatch(code)]
        for code in codes:
            if code not in declarations:
                names = set(WORD.findall(code))
                needed = [each for each in declarations if each.split()[1] in names]
                added = [change for each in needed for change in self._declare(each)]
                title_end = f", with {_joined(needed)}" if needed else ""
                yield from (Fix(title + title_end, (change, *added)) for title, change in self._uses(code))
        added = [change for each in declarations for change in self._declare(each)]
        yield from (
            Fix(f"Add {_joined(declarations)}", tuple(added), help.startswith("add `import"))
            for _ in added[:1]
        )
        yield from self._padded(help)
        yield from self._converted(codes)
        yield from self._resized(codes)
        yield from self._kept(help)
        yield from self._renamed(help)
        yield from self._removed(help)
        yield from self._allowed()

    def _uses(self, code: str) -> Iterator[tuple[str, Change]]:
        """Yield the uses of a code: in the place of a text, of a name in it, at its end, in a layout or in a `train` block."""
        if code.startswith("-> "):
            for place in self.places[:1]:
                end = attrs.evolve(place, line=place.end_line, column=place.end_column - 1)
                yield f"Add `{code}`", (attrs.evolve(end, end_column=place.end_column), f" {code})")
            return
        if code.startswith("return "):
            returns = (
                node
                for decl in self._declarations(ast.Node, self.places)
                if isinstance(decl, ast.ModelDecl | ast.FnDecl)
                for node in decl.body
                if isinstance(node, ast.Return)
            )
            yield from (("Return it too", (node.span, code)) for node in returns)
            return
        if RULE.fullmatch(code):
            yield from self._rule(code)
        for place in (*self.places, *self._around(code)):
            if self._fits(code, place):
                yield f"Write `{code}`", (place, code)
        if call := CALL.fullmatch(code):
            yield from self._instead_of(call[1], code)
        if code.endswith(" = ..."):
            yield from self._left_side(code.removesuffix(" = ..."))
        elif "= " in code:
            yield from self._setting(code)

    def _instead_of(self, name: str, code: str) -> Iterator[tuple[str, Change]]:
        """Yield a code in the place of each name in the texts."""
        for place in self.places:
            for match in re.finditer(rf"(?<![\w.]){re.escape(name)}(?![\w.])", self.buffer.span_text(place)):
                yield f"Write `{code}`", (self._within(place, match.start(), match.end()), code)

    def _meant(self, help: str) -> Iterator[Fix]:
        """Yield the fixes that write the name which is meant for a word like it on the same line."""
        for code in MEANT.findall(help):
            for place in self.places[:1]:
                line = self.buffer.line(place.line)
                words = [match for match in re.finditer(r'"[^"]*"|[\w.]+', line) if match[0] != code]
                close = difflib.get_close_matches(code, [match[0] for match in words], 3, CLOSE)
                for match in sorted(words, key=lambda match: abs(match.start() + 1 - place.column)):
                    if match[0] in close:
                        span = Span(place.file, place.line, match.start() + 1, place.line, match.end() + 1)
                        yield Fix(f"Write `{code}`", ((span, code),), is_sure=True)

    def _around(self, code: str) -> Iterator[Span]:
        """Yield the line of the diagnostic, for a statement, and the calls on it of the function that a code calls."""
        for place in self.places[:1]:
            line = self.buffer.line(place.line)
            text = line.partition("#")[0].rstrip()
            column = len(text) - len(text.lstrip()) + 1
            if re.match(r"\w+ = |\w+ \w+: ", code):
                yield Span(place.file, place.line, column, place.line, len(text) + 1)
            called = re.match(r"[\w.]+(?=\()", code)
            for match in re.finditer(rf"(?<![\w.]){re.escape(called[0])}\([^()]*\)", text) if called else ():
                yield Span(place.file, place.line, match.start() + 1, place.line, match.end() + 1)

    def _left_side(self, left: str) -> Iterator[tuple[str, Change]]:
        """Yield the edits that write a left side before a `=`: of the text, or of its line."""
        for place in self.places[:1]:
            line = self.buffer.line(place.line)
            if line[place.end_column - 1 :].startswith(" ="):
                yield f"Write `{left}`", (place, left)
            start, _, found = line.partition(" = ")
            if found:
                column = len(start) - len(start.lstrip()) + 1
                span = Span(place.file, place.line, column, place.line, len(start) + 1)
                yield f"Write `{left} = ...`", (span, left)

    def _fits(self, code: str, place: Span) -> bool:
        """Return True if a code may stand for a text: a word for a word, and other code if it keeps the text's numbers, and has
        no names but those of the text and of the language.
        """
        if re.fullmatch(r"[\w.]+|\W+", code):
            return " " not in self.buffer.span_text(place)
        if not set(NUMBER.findall(self.buffer.span_text(place))) <= set(NUMBER.findall(code)):
            return False
        known = {*WORD.findall(self.buffer.span_text(place)), *FUNCTIONS, *WRITTEN_BYTES, *keywords()}
        words = set(WORD.findall(code)) - set(KEYWORD.findall(code))
        return len(self.places) > 0 and "..." not in code and words <= known | self._names()

    def _names(self) -> set[str]:
        """Return the names of dimensions, meshes, axes and modules of the file."""
        kinds = ast.DimDecl | ast.MeshDecl | ast.MeshAxis | ast.ImportDecl
        nodes = (node for decl in self.tree.declarations for node in (decl, *ast.children(decl)))
        return {node.name.text for node in nodes if isinstance(node, kinds)}

    def _within(self, place: Span, start: int, end: int) -> Span:
        """Return the span of a part of a span's text."""
        offset = self.buffer.starts[place.line - 1] + place.column - 1
        (line, column), (end_line, end_column) = map(self.buffer.place_at, (offset + start, offset + end))
        return Span(place.file, line, column, end_line, end_column)

    def _declarations(self, kind: type[D], places: Iterable[Span]) -> Iterator[D]:
        """Yield the declaration of a kind around each place."""
        for place in places:
            for decl in self.tree.declarations:
                if isinstance(decl, kind) and decl.span.line <= place.line <= decl.span.end_line:
                    yield decl

    def _declare(self, code: str) -> list[Change]:
        """Return the change that adds a declaration, behind the last one of its kind."""
        kind = {"import": ast.ImportDecl, "dim": ast.DimDecl, "mesh": ast.MeshDecl}[code.partition(" ")[0]]
        ends = [decl.span.end_line for decl in self.tree.declarations if isinstance(decl, kind)]
        first = min((decl.span.line for decl in self.tree.declarations), default=1)
        line = max(ends) + 1 if ends else first
        line -= line > len(self.buffer.starts)
        return [(Span(self.buffer.file, line, 1, line, 1), f"{code}\n")]

    def _rule(self, code: str) -> Iterator[tuple[str, Change]]:
        """Yield the edits of layouts at the places that give a dimension a rule."""
        dim = code.partition(":")[0]
        for decl in self._declarations(ast.LayoutDecl, self.places):
            own = [rule for rule in decl.rules if rule.dim.text == dim]
            if own:
                yield f"Write `{code}`", (own[0].span, code)
            elif decl.rules:
                span = decl.rules[-1].span
                end = attrs.evolve(span, line=span.end_line, column=span.end_column)
                yield f"Add `{code}`", (end, f", {code}")
            else:
                yield from self._first_rule(decl, code)

    def _first_rule(self, decl: ast.LayoutDecl, code: str) -> Iterator[tuple[str, Change]]:
        """Yield the change that adds a rule to a layout without rules."""
        text = self.buffer.span_text(decl.span)
        start = text.find("{") + 1
        if start and text[start : start + 1] == "}":
            yield f"Add `{code}`", (self._within(decl.span, start, start), f" {code} ")

    def _setting(self, code: str) -> Iterator[tuple[str, Change]]:
        """Yield the edit that adds an entry at the end of a `train` block."""
        for decl in self._declarations(ast.TrainDecl, self.places):
            new = f"  {code}\n" if decl.span.end_line > decl.span.line else f"; {code} "
            yield f"Add `{code}`", (self._end_of(decl), new)

    def _padded(self, help: str) -> Iterator[Fix]:
        """Yield the fix that makes a dimension a multiple of the parts that it is split into."""
        for parts in map(int, MULTIPLE.findall(help)[:1]):
            for decl in declarations_of(self.tree, ast.DimDecl):
                if decl.name.span in self.places and isinstance(decl.size, ast.Int):
                    size = -(-decl.size.value // parts) * parts
                    yield Fix(f"Pad `{decl.name.text}` to {size}", ((decl.size.span, str(size)),))

    def _converted(self, codes: Iterable[str]) -> Iterator[Fix]:
        """Yield casts of the operands, and of the text itself, for help that leaves the dtype open."""
        if "cast(x, dtype)" not in codes:
            return
        words = re.findall(r"[\w-]+", self.diagnostic.message)
        named = (DTYPES.get(word, word) for word in words)
        dtypes = dict.fromkeys((*(word for word in named if word in WRITTEN_BYTES), "f32"))
        for place in self.places:
            for dtype in dtypes:
                code = f"cast({self.buffer.span_text(place)}, {dtype})"
                yield Fix(f"Write `{code}`", ((place, code),))
        for name, own in dict.fromkeys(
            found for label in self.diagnostic.labels for found in DEFINED.findall(label.message)
        ):
            for dtype in dtypes:
                if dtype != own:
                    yield from (Fix(t, (c,)) for t, c in self._instead_of(name, f"cast({name}, {dtype})"))

    def _resized(self, codes: Iterable[str]) -> Iterator[Fix]:
        """Yield the fix that gives a declared dimension the size that help gives it."""
        for name, size in (match.groups() for code in codes if (match := SIZED.fullmatch(code))):
            for decl in declarations_of(self.tree, ast.DimDecl):
                if decl.name.text == name:
                    yield Fix(f"Write `dim {name} = {size}`", ((decl.size.span, size),))

    def _kept(self, help: str) -> Iterator[Fix]:
        """Yield the fixes that keep one of two rules of a layout, and remove the other."""
        if not help.startswith("keep one of the two rules"):
            return
        for rules in (decl.rules for decl in declarations_of(self.tree, ast.LayoutDecl)):
            for index, rule in enumerate(rules):
                if rule.span in self.places:
                    span, text = rule.span, self.buffer.span_text(rule.span)
                    if index:
                        before = rules[index - 1].span
                        span = attrs.evolve(span, line=before.end_line, column=before.end_column)
                    elif len(rules) > 1:
                        after = rules[1].span
                        span = attrs.evolve(span, end_line=after.line, end_column=after.column)
                    yield Fix(f"Remove the rule `{text}`", ((span, ""),))

    def _renamed(self, help: str) -> Iterator[Fix]:
        """Yield the fix that renames a dimension where a model reads its parameters and inputs, and in all that follows."""
        for old, new, code in RENAMED.findall(help)[:1]:
            for decl in dict.fromkeys(self._declarations(ast.ModelDecl, self.places)):
                changes = [*self._declare(code), *self._renamed_in(decl, old, new)]
                yield Fix(f"Rename `{old}` to `{new}` where `{decl.name.text}` computes", tuple(changes))

    def _renamed_in(self, decl: ast.ModelDecl, old: str, new: str) -> Iterator[Change]:
        """Yield the changes that rename a dimension in a model.

        Inputs and parameters keep their dimension; their uses are renamed.
        """
        declared: list[ast.Input | ast.Param] = [
            *decl.inputs,
            *(each for each in statements(decl.body) if isinstance(each, ast.Param)),
        ]
        whole = {each.name.text for each in declared if old in map(_text_of, each.type.dims)}
        text = self.buffer.text
        file = declarations(text, self.buffer.file)
        for each in occurrences(file, Project(lambda file: text if file == self.buffer.file else None)):
            span, name = each.span, each.symbol.name
            inside = decl.span.line <= span.line <= decl.span.end_line
            if not inside or any(other.span.line <= span.line <= other.span.end_line for other in declared):
                continue
            if each.symbol.kind == "dimension" and name == old:
                yield span, new
            elif name in whole and each.role == "used":
                yield span, f"rename({name}, {old} -> {new})"

    def _removed(self, help: str) -> Iterator[Fix]:
        """Yield the fix that removes the lines of an unused statement, for help that says so."""
        if not help.startswith("remove the line"):
            return
        place = self.diagnostic.span
        for decl in self.tree.declarations:
            for node in ast.walk(decl):
                if isinstance(node, ast.Assign | ast.Param | ast.State) and node.span.line == place.line:
                    whole = Span(place.file, node.span.line, 1, node.span.end_line + 1, 1)
                    yield Fix("Remove the line", ((whole, ""),))
                    return

    def _allowed(self) -> Iterator[Fix]:
        """Yield the fixes that allow a warning, in a layout or on its line."""
        code = self.diagnostic.code
        if self.diagnostic.severity != "warning":
            return
        for decl in self._declarations(ast.LayoutDecl, self.places[1:]) if code in OF_LAYOUTS else ():
            has_rules = decl.rules or decl.values or decl.params or decl.allows
            new = f", allow {code} " if has_rules else f" allow {code} "
            yield Fix(f"Allow {code} in this layout", ((self._before_space(self._end_of(decl)), new),))
        place = self.diagnostic.span
        if place.file == self.buffer.file:
            column = len(self.buffer.line(place.end_line)) + 1
            end = Span(place.file, place.end_line, column, place.end_line, column)
            yield Fix(f"Allow {code} on this line", ((end, f"  # allow {code}"),))

    def _end_of(self, decl: ast.Node) -> Span:
        """Return the place before the last character of a declaration."""
        line, column = decl.span.end_line, decl.span.end_column - 1
        return Span(self.buffer.file, line, column, line, column)

    def _before_space(self, span: Span) -> Span:
        """Return an insertion in front of the blanks before it, which it takes the place of."""
        before = self.buffer.line(span.line)[: span.column - 1]
        return attrs.evolve(span, column=len(before.rstrip()) + 1) if before.strip() else span
