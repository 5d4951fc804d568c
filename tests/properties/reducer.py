"""Make a failing program small: edits of its text that keep the failure, from large to small, until none is left.

Hypothesis shrinks its own choices, and a program of sixty lines depends on hundreds of them. The reducer works on the text
instead: it leaves out lines and blocks, puts a part of an expression in the place of the whole, and lowers sizes. An edit that
makes an illegal program does not fail in the same way, so no edit needs to be careful.
"""

import re
import time
from collections.abc import Callable, Iterator

import attrs

from mtfc.compiler.diagnostics import Diagnostics, Span
from mtfc.frontend.syntax import ast
from mtfc.frontend.syntax.parser import parse

SECONDS = 100.0
"""The time that making one program small may take."""

EXPRESSIONS = (ast.Unary, ast.Binary, ast.Call, ast.Name, ast.Int, ast.Float, ast.Bool, ast.Path)

Fails = Callable[[str], bool]
Edit = tuple[int, int, str]
"""Start and end of a stretch of the text, and the text in its place."""


def reduced(source: str, fails: Fails, seconds: float = SECONDS) -> str:
    """Return a program that fails as `source` does, as small as the time allows. `source` itself must fail."""
    return _Reducer(fails, time.monotonic() + seconds).reduce(source)


@attrs.define
class _Reducer:
    """tried: the texts that do not fail."""

    fails: Fails
    end: float
    tried: set[str] = attrs.field(factory=set)

    def reduce(self, source: str) -> str:
        """Repeat all kinds of edits until none of them helps."""
        while True:
            before = source
            for kind in (_blocks, _lines, _headers, _entries, _inlined, _expressions, _sizes):
                source = self._edited(source, kind)
            if source == before or time.monotonic() > self.end:
                return source

    def _edited(self, source: str, kind: Callable[[str], Iterator[Edit]]) -> str:
        """Apply each edit of a kind that keeps the failure. After one, go on behind its place."""
        reached = 0
        while True:
            for start, end, text in kind(source):
                if start < reached:
                    continue
                shorter = source[:start] + text + source[end:]
                if self._still_fails(shorter):
                    source, reached = shorter, start
                    break
            else:
                return source

    def _still_fails(self, source: str) -> bool:
        if source in self.tried or time.monotonic() > self.end:
            return False
        found = self.fails(source)
        if not found:
            self.tried.add(source)
        return found


def _blocks(source: str) -> Iterator[Edit]:
    """Leave out a block with its head."""
    lines = source.splitlines(keepends=True)
    starts = _starts(lines)
    for first, last in _ranges(lines):
        yield starts[first], starts[last + 1], ""


def _lines(source: str) -> Iterator[Edit]:
    """Leave out a line."""
    lines = source.splitlines(keepends=True)
    starts = _starts(lines)
    for i, line in enumerate(lines):
        if not line.rstrip().endswith("{") and line.strip() != "}":
            yield starts[i], starts[i + 1], ""


def _headers(source: str) -> Iterator[Edit]:
    """Leave out the head and the end of a block, and keep its statements."""
    lines = source.splitlines(keepends=True)
    starts = _starts(lines)
    for first, last in _ranges(lines):
        yield starts[first], starts[last + 1], "".join(lines[first + 1 : last])


def _ranges(lines: list[str]) -> Iterator[tuple[int, int]]:
    """Yield the first and last line of each block, outer blocks first."""
    open_lines: list[int] = []
    found = []
    for i, line in enumerate(lines):
        if line.strip() == "}" and open_lines:
            found.append((open_lines.pop(), i))
        elif line.rstrip().endswith("{"):
            open_lines.append(i)
    return iter(sorted(found))


def _starts(lines: list[str]) -> list[int]:
    """Return the place at which each line begins, and the end of the text."""
    places = [0]
    for line in lines:
        places.append(places[-1] + len(line))
    return places


def _entries(source: str) -> Iterator[Edit]:
    """Leave out an entry of a list: a result, an input, an axis."""
    for match in re.finditer(r"(?<=[(\[{ ])(?:[^\s,()\[\]{}]+: )?[\w.*]+(?:\[[^\]]*\])?, ", source):
        yield match.start(), match.end(), ""
    for match in re.finditer(r", (?:[^\s,()\[\]{}]+: )?[\w.*]+(?:\[[^\]]*\])?(?=[)\]}\n ])", source):
        yield match.start(), match.end(), ""


def _inlined(source: str) -> Iterator[Edit]:
    """Put the expression of a variable in the place of its uses."""
    for match in re.finditer(r"^ *(\w+) = (.+)\n", source, re.MULTILINE):
        rest = re.sub(rf"\b{match[1]}\b(?! = )", match[2].replace("\\", ""), source[match.end() :])
        yield match.start(), len(source), rest


def _expressions(source: str) -> Iterator[Edit]:
    """Put a part of an expression, or a number, in its place."""
    lines = _starts(source.splitlines(keepends=True))
    for node in _nodes(parse(source, "reduced.mtf", Diagnostics())):
        if not isinstance(node, ast.Unary | ast.Binary | ast.Call | ast.Name):
            continue
        start, end = _range(node.span, lines)
        parts = [each for each in _nodes(node) if isinstance(each, EXPRESSIONS)][1:]
        for part in parts:
            first, last = _range(part.span, lines)
            yield start, end, source[first:last]
        yield start, end, "1.0"


def _nodes(node: ast.Node) -> Iterator[ast.Node]:
    """Yield a node and all below it, from the top."""
    yield node
    for child in ast.children(node):
        yield from _nodes(child)


def _range(span: Span, lines: list[int]) -> tuple[int, int]:
    return lines[span.line - 1] + span.column - 1, lines[span.end_line - 1] + span.end_column - 1


def _sizes(source: str) -> Iterator[Edit]:
    """Lower the size of a dimension or of a mesh axis."""
    for match in re.finditer(r"(?<= = )\d+$|(?<=: )\d+(?=[,\]])", source, re.MULTILINE):
        size = int(match[0])
        yield from ((match.start(), match.end(), str(less)) for less in (1, 2, 3, 4) if less < size)
