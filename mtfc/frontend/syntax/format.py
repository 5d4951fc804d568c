"""Write a .mtf file in canonical form, as `mtfc fmt` does.

The formatter works on tokens, not on syntax trees: parentheses, numbers and comments stay as written. It adds and removes only
separators, so the meaning stays too. A bracket is on one line if it fits, and else has one entry on each line. Braces that are
over several lines in the source stay so. Consecutive lines that declare the same kind of thing are aligned.

Tokens are first grouped by bracket: every bracket is a `Bracket` of `BracketEntry`s, each with its comments.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise

import attrs

from mtfc.compiler.diagnostics import Diagnostics
from mtfc.frontend.syntax.brackets import CLOSERS, CLOSING_TEXT
from mtfc.frontend.syntax.lexer import COMMENT, END, SEPARATOR, WORD, Token, lex
from mtfc.frontend.syntax.parser import parse

WIDTH = 100
INDENT = 2

# Aligned declarations, and the token at which their second column begins; the last column begins at the `=`.
ALIGNED = {"dim": 2, "mesh": 2, "layout": 2, "param": 3, "state": 3}

NAMES = ("NAME", "PATH", WORD)
OPERAND_ENDS = (*NAMES, "NUMBER", "TRUE", "FALSE")
SIGN = "SIGN"  # a minus with one operand

BLOCK = (SEPARATOR,)
LIST = ("COMMA",)
RULES = (SEPARATOR, "COMMA")


@attrs.frozen
class BracketEntry:
    """The tokens between two separators, with the comment after them. Without parts: a comment on its own line."""

    parts: tuple[Token | Bracket, ...]
    comment: str
    after_blank_line: bool


@attrs.frozen
class Bracket:
    """A bracket and its entries.

    separators: the kinds of tokens between entries. comment: the comment after the opening bracket. is_broken: True if the
    bracket must go over several lines, because it has a comment, or is a brace that does so in the source.
    """

    opener: str
    separators: tuple[str, ...]
    comment: str
    entries: tuple[BracketEntry, ...]
    is_broken: bool


Parts = Sequence[Token | Bracket]


def format_source(text: str, file: str = "<input>") -> str:
    """Return a program in canonical form. Raises `CompileError` if the text does not parse."""
    diagnostics = Diagnostics()
    parse(text, file, diagnostics)
    diagnostics.raise_if_errors()
    return "".join(f"{line}\n" for line in _entries(read(lex(text)), 0))


# On one line


def _flat(parts: Parts) -> str:
    """Return parts of a statement on one line."""
    text = ""
    for index, part in enumerate(parts):
        text += _gap(parts, index)
        text += part.text if isinstance(part, Token) else _flat_group(part)
    return text


def _flat_group(group: Bracket) -> str:
    joint = "; " if group.separators == BLOCK else ", "
    inner = joint.join(_flat(entry.parts) for entry in group.entries)
    pad = " " if group.opener == "{" and inner else ""
    return f"{group.opener}{pad}{inner}{pad}{CLOSING_TEXT[group.opener]}"


def _gap(parts: Parts, index: int) -> str:
    """Return the text before a part. `part (a, b) on mesh` is no call."""
    if index == 0:
        return ""
    left, after = parts[index - 1], parts[index + 1 : index + 2]
    is_on = any(isinstance(part, Token) and part.text == "on" for part in after)
    is_part = is_on and isinstance(left, Token) and left.text == "part"
    return " " if is_part else _space(left, parts[index])


def _space(left: Token | Bracket, right: Token | Bracket) -> str:
    """Return the text between two parts: nothing after a sign, and before `:`, `,` and a bracket of a call or of indices."""
    if isinstance(right, Token):
        is_tight = right.text in (":", ",")
    elif isinstance(left, Token):
        is_tight = right.opener != "{" and left.kind in NAMES and left.text != "on"
    else:
        is_tight = left.opener == "[" and right.opener == "("
    return "" if is_tight or (isinstance(left, Token) and left.kind == SIGN) else " "


# Over lines


def _entries(group: Bracket, indent: int) -> Iterator[str]:
    """Yield the entries of a bracket, with comments and blank lines; one entry may have several lines."""
    aligned = _aligned(group.entries, indent) if group.separators == BLOCK else {}
    last = max((index for index, entry in enumerate(group.entries) if entry.parts), default=-1)
    for index, entry in enumerate(group.entries):
        if index and entry.after_blank_line and group.separators != LIST:
            yield ""
        comma = "," if group.separators == LIST and entry.parts and index != last else ""
        text = aligned.get(index) or _text(entry.parts, indent, len(comma))
        comment = f"  {entry.comment}" if text and entry.comment else entry.comment
        yield f"{' ' * indent}{text}{comma}{comment}"


def _text(parts: Parts, indent: int, tail: int) -> str:
    """Return the text of parts, on several lines if they and `tail` more characters do not fit on one.

    The first line is not indented.
    """
    text = ""
    for index, part in enumerate(parts):
        text += _gap(parts, index)
        if isinstance(part, Token):
            text += part.text
            continue
        column = len(text) + indent if "\n" not in text else len(text) - text.rindex("\n") - 1
        text += _group(part, indent, WIDTH - column - _reach(parts[index:], tail))
    return text


def _group(group: Bracket, indent: int, room: int) -> str:
    """Return the text of a bracket: on one line if it fits into `room` characters, else with each entry on its own line."""
    if (not group.is_broken and len(_flat_group(group)) <= room) or not (group.entries or group.comment):
        return _flat_group(group)
    first = f"{group.opener}  {group.comment}" if group.comment else group.opener
    return "\n".join((first, *_entries(group, indent + INDENT), " " * indent + CLOSING_TEXT[group.opener]))


def _reach(parts: Parts, tail: int) -> int:
    """Return the number of characters that must be on the line after the first part.

    These are the characters up to the next bracket that may go over several lines. The type of a result stays on one line, and
    so do the operands of an optimizer: only the arguments before them may go over several lines.
    """
    width, stays = 0, False
    for index, (left, right) in enumerate(pairwise(parts), 1):
        width += len(_gap(parts, index))
        stays = stays or _is_result(left, right)
        if isinstance(right, Bracket) and (not stays or right.opener == "{"):
            return width + 1
        width += len(_flat((right,)))
    return width + tail


def _is_result(left: Token | Bracket, right: Token | Bracket) -> bool:
    """Return True if `right` begins the type of a result, or the operands of an optimizer."""
    if isinstance(left, Token):
        return left.text == "->"
    return left.opener == "(" and isinstance(right, Bracket)


def _aligned(entries: Sequence[BracketEntry], indent: int) -> dict[int, str]:
    """Return the aligned texts of entries, by index."""
    found: dict[int, str] = {}
    for run in _runs(entries, indent):
        cells = [_cells(entries[index].parts) for index in run]
        widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
        texts = [_columns(row, widths) for row in cells]
        if indent + max(map(len, texts)) <= WIDTH:
            found.update(zip(run, texts, strict=True))
    return found


def _runs(entries: Sequence[BracketEntry], indent: int) -> list[list[int]]:
    """Return the indices of entries on consecutive lines that declare the same kind of thing."""
    runs: list[list[int]] = []
    before = None
    for index, entry in enumerate(entries):
        keyword = _keyword(entry.parts, indent)
        if keyword and keyword == before and not entry.after_blank_line:
            runs[-1].append(index)
        elif keyword:
            runs.append([index])
        before = keyword
    return runs


def _keyword(parts: Parts, indent: int) -> str | None:
    """Return the keyword of an entry that is to be aligned; None for an entry of another kind or of several lines."""
    if len(parts) < 3 or any(isinstance(part, Bracket) and part.is_broken for part in parts):
        return None
    first, second = parts[:2]
    if isinstance(first, Bracket) or isinstance(second, Bracket) or second.kind not in NAMES:
        return None
    if first.text == "state" and not (isinstance(parts[2], Token) and parts[2].text == ":"):
        return None  # of an optimizer, without a type
    return first.text if first.text in ALIGNED and len(_flat(parts)) <= WIDTH - indent else None


def _cells(parts: Parts) -> tuple[str, ...]:
    """Return three columns; the middle one is the type of a parameter or the mesh of a layout."""
    words = [part.text if isinstance(part, Token) else "" for part in parts]
    equal = words.index("=")
    middle = min(ALIGNED[words[0]], equal)
    return _flat(parts[:middle]), _flat(parts[middle:equal]), _flat(parts[equal:])


def _columns(cells: Sequence[str], widths: Sequence[int]) -> str:
    return " ".join(cell.ljust(width) for cell, width in zip(cells, widths, strict=True) if width).rstrip()


# Tokens by bracket


def read(tokens: Iterable[Token]) -> Bracket:
    """Group the tokens of a file, whose brackets must match; the result has no brackets itself."""
    return _BracketReader(tokens).group("", BLOCK)


class _BracketReader:
    """Reads brackets; `line` is the line of the previous token."""

    def __init__(self, tokens: Iterable[Token]) -> None:
        self.tokens = iter(tokens)
        self.line = 1

    def group(self, opener: str, separators: tuple[str, ...]) -> Bracket:
        """Return the entries up to the end of a bracket. opener: the bracket, empty at the top.

        separators: the tokens between entries.
        """
        entries = _EntryReader(opener)
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
        return Bracket(opener, separators, entries.opening, tuple(entries.done), is_broken)


class _EntryReader:
    """The entries of one bracket while they are read; `parts` and `comments` belong to the current entry."""

    def __init__(self, opener: str) -> None:
        """Start a bracket.

        opening: the comment behind it. done: the read entries. comments: texts, with the newlines before each.
        """
        self.opener = opener
        self.opening = ""
        self.done: list[BracketEntry] = []
        self.parts: list[Token | Bracket] = []
        self.comments: list[tuple[str, int]] = []
        self.after_blank_line = False

    def add(self, part: Token | Bracket, newlines: int) -> None:
        """Add a part to the entry; comments in the middle of an entry move before the entry."""
        if not self.parts:
            self.after_blank_line = newlines > 1
        for text, _ in self.comments:
            self._line_of(text, self.after_blank_line)
            self.after_blank_line = False
        self.comments.clear()
        self.parts.append(part)

    def comment(self, text: str, newlines: int) -> None:
        """Put a comment behind the entry on its line, behind the opening bracket, or on a line of its own.

        newlines: the number of newlines before it.
        """
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
        """End an entry of brackets. A comment on its last line belongs to it; later ones stand on lines of their own."""
        if not self.parts:
            return
        beside = self.comments.pop(0)[0] if self.comments and not self.comments[0][1] else ""
        self.done.append(BracketEntry(tuple(self.parts), beside, self.after_blank_line))
        for text, newlines in self.comments:
            self._line_of(text, newlines > 1)
        self.parts.clear()
        self.comments.clear()

    def hold_comments(self) -> bool:
        """Return True if there is a comment in the brackets or in brackets inside them, so that they cannot be on one line."""
        groups = (part for entry in self.done for part in entry.parts if isinstance(part, Bracket))
        return (
            bool(self.opening)
            or any(entry.comment for entry in self.done)
            or any(g.is_broken for g in groups)
        )

    def _line_of(self, text: str, after_blank_line: bool) -> None:
        self.done.append(BracketEntry((), text, after_blank_line))


def _separators(opener: Token, before: Sequence[Token | Bracket]) -> tuple[str, ...]:
    if opener.text != "{":
        return LIST
    last = before[-1] if before else None
    return RULES if isinstance(last, Token) and last.text in ("=", ":") else BLOCK


def _signed(token: Token, before: Sequence[Token | Bracket]) -> Token:
    """Return the token; a minus without a left operand becomes a SIGN."""
    last = before[-1] if before else None
    if token.kind != "MINUS" or isinstance(last, Bracket) or (last is not None and last.kind in OPERAND_ENDS):
        return token
    return token._replace(kind=SIGN)
