"""Tokens by bracket, for the formatter: every bracket is a `Group` of `Entry`s, and comments have a place in it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import attrs

from mtfc.frontend.syntax.brackets import CLOSERS
from mtfc.frontend.syntax.lexer import COMMENT, END, SEPARATOR, WORD, Token

NAMES = ("NAME", "PATH", WORD)
OPERAND_ENDS = (*NAMES, "NUMBER", "TRUE", "FALSE")
SIGN = "SIGN"  # a minus with one operand

BLOCK = (SEPARATOR,)
LIST = ("COMMA",)
RULES = (SEPARATOR, "COMMA")


@attrs.frozen
class Entry:
    """What stands between separators, with the comment behind it; or, without parts, a comment on its own line."""

    parts: tuple[Token | Group, ...]
    comment: str
    after_blank_line: bool


@attrs.frozen
class Group:
    """A bracket and its entries.

    `separators` are the kinds of tokens that divide it. `comment` is behind the opening bracket. `is_broken` says that
    it goes over lines even where one would do: for a comment in it, or because it is a brace and does in the source.
    """

    opener: str
    separators: tuple[str, ...]
    comment: str
    entries: tuple[Entry, ...]
    is_broken: bool


def read(tokens: Iterable[Token]) -> Group:
    """The whole file as a group without brackets; the brackets in it must match."""
    return _Reader(tokens).group("", BLOCK)


class _Reader:
    """`line` is where the token before stands."""

    def __init__(self, tokens: Iterable[Token]) -> None:
        self.tokens = iter(tokens)
        self.line = 1

    def group(self, opener: str, separators: tuple[str, ...]) -> Group:
        entries = _Entries(opener)
        has_newline = False
        for token in self.tokens:
            if token.kind in separators:
                entries.end()
            if token.text == "\n":
                has_newline = True
                continue
            newlines, self.line = token.line - self.line, token.line
            if token.kind == END or token.kind in CLOSERS.values():
                break
            if token.kind == COMMENT:
                entries.comment(token.text.rstrip(), newlines)
            elif token.kind in CLOSERS:
                entries.add(self.group(token.text, _separators(token, entries.parts)), newlines)
            elif token.kind not in (SEPARATOR, *separators):
                entries.add(_signed(token, entries.parts), newlines)
        entries.end()
        is_broken = (opener == "{" and has_newline) or entries.hold_comments()
        return Group(opener, separators, entries.opening, tuple(entries.done), is_broken)


class _Entries:
    """The entries of one bracket while they are read: `parts` and `comments` are those of the last."""

    def __init__(self, opener: str) -> None:
        self.opener = opener
        self.opening = ""
        self.done: list[Entry] = []
        self.parts: list[Token | Group] = []
        self.comments: list[tuple[str, int]] = []
        self.after_blank_line = False

    def add(self, part: Token | Group, newlines: int) -> None:
        """A part of the entry; comments in the middle of an entry move before it."""
        if not self.parts:
            self.after_blank_line = newlines > 1
        for text, _ in self.comments:
            self._line_of(text, self.after_blank_line)
            self.after_blank_line = False
        self.comments.clear()
        self.parts.append(part)

    def comment(self, text: str, newlines: int) -> None:
        last = self.done[-1] if self.done else None
        if self.parts:
            self.comments.append((text, newlines))
        elif newlines:
            self._line_of(text, newlines > 1)
        elif last and last.parts and not last.comment:
            self.done[-1] = attrs.evolve(last, comment=text)
        elif self.opener and not last and not self.opening:
            self.opening = text
        else:
            self._line_of(text, False)

    def end(self) -> None:
        if not self.parts:
            return
        beside = self.comments.pop(0)[0] if self.comments and not self.comments[0][1] else ""
        self.done.append(Entry(tuple(self.parts), beside, self.after_blank_line))
        for text, newlines in self.comments:
            self._line_of(text, newlines > 1)
        self.parts.clear()
        self.comments.clear()

    def hold_comments(self) -> bool:
        groups = (part for entry in self.done for part in entry.parts if isinstance(part, Group))
        return (
            bool(self.opening)
            or any(entry.comment for entry in self.done)
            or any(g.is_broken for g in groups)
        )

    def _line_of(self, text: str, after_blank_line: bool) -> None:
        self.done.append(Entry((), text, after_blank_line))


def _separators(opener: Token, before: Sequence[Token | Group]) -> tuple[str, ...]:
    if opener.text != "{":
        return LIST
    last = before[-1] if before else None
    return RULES if isinstance(last, Token) and last.text in ("=", ":") else BLOCK


def _signed(token: Token, before: Sequence[Token | Group]) -> Token:
    """The token; a minus that no operand precedes is a SIGN."""
    last = before[-1] if before else None
    if token.kind != "MINUS" or isinstance(last, Group) or (last is not None and last.kind in OPERAND_ENDS):
        return token
    return token._replace(kind=SIGN)
