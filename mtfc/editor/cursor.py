"""The place of the cursor in a text that does not parse yet, by its tokens alone."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import attrs

from mtfc.compiler.diagnostics import Span
from mtfc.frontend.syntax import ast
from mtfc.frontend.syntax.brackets import CLOSERS, DECLARATIONS
from mtfc.frontend.syntax.lexer import COMMENT, END, SEPARATOR, Token, lex

NAMES = ("NAME", "PATH", "WORD")

DEEPEST = 40
"""The number of innermost brackets that are looked at."""


@attrs.frozen
class OpenBracket:
    """A bracket that is open at the cursor.

    before: the tokens of its statement before the bracket. inside: the tokens in the bracket up to the cursor, with
    those of closed brackets in it.
    """

    token: Token
    before: Sequence[Token]
    inside: Sequence[Token]

    @property
    def text(self) -> str:
        return self.token.text

    @property
    def function(self) -> Token | None:
        """The name of the function whose call this bracket belongs to: `f(`, `f[`, or `f[...](`."""
        before = list(self.before)
        if self.text == "(" and before and before[-1].text == "]":
            while before and before[-1].text != "[":
                before.pop()
            before = before[:-1]
        is_call = self.text in ("(", "[") and before and before[-1].kind in NAMES
        return before[-1] if is_call and (self.text == "(" or _touches(before[-1], self.token)) else None

    @property
    def entry(self) -> Sequence[Token]:
        """The tokens since the last comma in this bracket."""
        return list(self.entries())[-1]

    def entries(self) -> Iterator[Sequence[Token]]:
        """Yield the tokens between commas and line ends."""
        depth, start = 0, 0
        for i, token in enumerate(self.inside):
            depth += (token.kind in CLOSERS) - (token.text in (")", "]", "}"))
            is_end = token.kind == "COMMA" or (token.kind == SEPARATOR and self.text == "{")
            if is_end and depth == 0:
                yield self.inside[start:i]
                start = i + 1
        yield self.inside[start:]


def _touches(left: Token, right: Token) -> bool:
    return left.line == right.line and left.end_column == right.column


@attrs.frozen
class Cursor:
    """The tokens before the cursor.

    word: the name that the cursor is in or behind, empty if there is none; it is among no tokens. statement: the tokens of the
    innermost statement or entry. brackets: the open brackets, the
    outermost first; of deeply nested ones, the outermost and the innermost. top: the tokens of the declaration.
    """

    line: int
    column: int
    word: str
    statement: Sequence[Token]
    brackets: Sequence[OpenBracket]
    top: Sequence[Token]
    in_comment: bool

    @property
    def innermost(self) -> OpenBracket | None:
        return self.brackets[-1] if self.brackets else None

    @property
    def previous(self) -> str:
        """The text of the token before the word; empty at the start of a statement."""
        return self.statement[-1].text if self.statement else ""

    @property
    def keyword(self) -> str:
        """The first word of the declaration."""
        return self.top[0].text if self.top else ""

    def call(self) -> OpenBracket | None:
        """Return the innermost open bracket of a call."""
        return next((each for each in reversed(self.brackets) if each.function is not None), None)


def cursor_at(text: str, line: int, column: int) -> Cursor:
    """Return the cursor at a line and column, which count from 1."""
    before = []
    for token in lex(text):
        if token.kind == END or (token.line, token.column) >= (line, column):
            break
        before.append(token)
    in_comment = bool(before) and before[-1].kind == COMMENT and before[-1].line == line
    before = [token for token in before if token.kind != COMMENT]
    word = ""
    if (
        before
        and before[-1].kind != SEPARATOR
        and before[-1].line == line
        and before[-1].end_column >= column
    ):
        last = before[-1]
        if last.text.replace(".", "").replace("_", "").isalnum() and not last.text[0].isdigit():
            word = last.text[: column - last.column]
            before.pop()
    if word == "" and before and before[-1].text == "." and before[-1].end_column == column:
        before.pop()  # `nn.`, where the lexer finds no path yet
        if before and before[-1].kind in NAMES:
            word = before.pop().text + "."
    return _cursor(before, line, column, word, in_comment)


def _cursor(before: Sequence[Token], line: int, column: int, word: str, in_comment: bool) -> Cursor:
    stack: list[tuple[int, int]] = []  # (index of an open bracket, start of the statement before it)
    start = top = 0
    for i, token in enumerate(before):
        if token.column == 1 and token.text in DECLARATIONS:
            stack, start, top = [], i, i  # a bracket that the declarations above leave open
        inside_lines = not stack or before[stack[-1][0]].text == "{"
        if token.kind in CLOSERS:
            stack.append((i, start))
            start = i + 1 if token.text == "{" else start
        elif token.text in (")", "]", "}") and stack:
            start = stack.pop()[1]
        elif token.kind == SEPARATOR and inside_lines:
            start = i + 1
            top = i + 1 if not stack else top
    shown = stack if len(stack) <= DEEPEST else [stack[0], *stack[-DEEPEST:]]
    brackets = [OpenBracket(before[i], before[begin:i], before[i + 1 :]) for i, begin in shown]
    return Cursor(line, column, word, before[start:], brackets, before[top:], in_comment)


def name_of(token: Token, file: str = "") -> ast.Name | ast.Path:
    """Return the node of a name's token."""
    span: Span = token.span(file)
    return ast.Path(span, tuple(token.text.split("."))) if "." in token.text else ast.Name(span, token.text)
