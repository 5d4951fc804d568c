"""Prepare the tokens for the grammar: match brackets, and drop newlines inside parentheses.

After a missing bracket, a parser reads everything in the wrong context, and its errors make no sense. So brackets are matched
first. Two facts of the grammar help: a brace, or a `return` at the start of a line, is never inside parentheses; and a `model m`
in the first column is inside no bracket. A bracket that is never closed is reported once, at its opening, and closed at the end
of its line.
"""

from bisect import bisect_left
from collections.abc import Container, Iterable, Iterator, Sequence
from itertools import takewhile

import attrs

from mtfc.compiler.diagnostics import Diagnostic, Diagnostics
from mtfc.compiler.records import frozen
from mtfc.frontend.syntax import syntax_errors
from mtfc.frontend.syntax.lexer import BAD, COMMENT, END, SEPARATOR, STATEMENTS, WORD, Token

NESTING_LIMIT = 100
TOO_DEEP = "TOO_DEEP"

PARENTHESES = {"LPAR": "RPAR", "LSQB": "RSQB"}
CLOSERS = PARENTHESES | {"LBRACE": "RBRACE"}
CLOSING_TEXT = {"(": ")", "[": "]", "{": "}"}
KINDS = {")": "RPAR", "]": "RSQB", "}": "RBRACE"}
QUOTES = ('"', "'")
# Words that begin declarations. These stand in no braces; `dim` may, in a function.
DECLARATIONS = (
    "import", "dim", "mesh", "layout", "placement", "hardware", "model", "fn", "optimizer", "train"
)  # fmt: skip
IN_NO_BRACES = frozenset(DECLARATIONS) - {"dim"}
# A line inside a bracket goes on if it ends in one of these.
UNFINISHED = frozenset(
    ("COMMA", "ARROW", "EQUAL", "COLON", "OPERATOR", "STAR", "MINUS", "AND", "OR", "NOT", *CLOSERS)
)


@frozen
class TokenStream:
    """Tokens with matching brackets. All indices are of tokens.

    opener: for each token, the innermost bracket that it is inside of, or -1; a closing bracket is inside of its own. closer: the
    closing bracket of each opening one. repaired: the places of reported errors, in order. unclosed: the brackets that are never
    closed, in order.
    """

    tokens: list[Token] = attrs.field(factory=list)
    opener: list[int] = attrs.field(factory=list)
    closer: dict[int, int] = attrs.field(factory=dict)
    repaired: list[int] = attrs.field(factory=list)
    unclosed: list[int] = attrs.field(factory=list)

    def block(self, index: int) -> int:
        """Return the index of the innermost brace that a token is inside of, or -1."""
        opener = self.opener[index]
        while opener >= 0 and self.tokens[opener].text != "{":
            opener = self.opener[opener]
        return opener

    def after_brackets(self, index: int) -> int:
        """Return the first token from `index` on that is outside of parentheses."""
        while (opener := self.opener[index]) >= 0 and self.tokens[opener].text != "{":
            index = self.closer[opener] + 1
        return index

    def is_repaired(self, begin: int, end: int) -> bool:
        return _has_between(self.repaired, begin, end)

    def is_unclosed(self, begin: int, end: int) -> bool:
        """True if a bracket from token `begin` to token `end` is never closed."""
        return _has_between(self.unclosed, begin, end)


def _has_between(indices: Sequence[int], begin: int, end: int) -> bool:
    at = bisect_left(indices, begin)
    return at < len(indices) and indices[at] <= end


def arrange(tokens: Iterable[Token], file: str, diagnostics: Diagnostics) -> TokenStream:
    """Drop comments and bad characters, match the brackets, and report the errors of both."""
    kept = list(_with_strings([token for token in tokens if token.kind != COMMENT]))
    matcher = _Matcher(kept)
    matcher.run()
    emitter = _Emitter(matcher, file, diagnostics)
    for index, token in enumerate(kept):
        emitter.take(index, token)
    emitter.stream.repaired.sort()
    emitter.stream.unclosed.sort()
    return emitter.stream


def _with_strings(tokens: Sequence[Token]) -> Iterator[Token]:
    """Yield the tokens; text between quotes on one line becomes one token, which the language does not have."""
    index = 0
    while index < len(tokens):
        token, end = tokens[index], index
        if token.kind == BAD and token.text in QUOTES:
            after = range(index + 1, len(tokens))
            line = takewhile(lambda i, number=token.line: tokens[i].line == number, after)  # type: ignore[misc]
            end = next((i for i in line if tokens[i].text == token.text), index)
        yield token if end == index else token._replace(text=_between(tokens[index : end + 1]))
        index = end + 1


def _between(tokens: Sequence[Token]) -> str:
    """Return the text of tokens of one line."""
    text = ""
    for token in tokens:
        text = text.ljust(token.column - tokens[0].column) + token.text
    return text


class _Matcher:
    """Finds brackets without a partner. `unclosed` maps an opening bracket to the token that shows the error."""

    def __init__(self, tokens: list[Token]) -> None:
        """Start before the first token.

        open: the places of open brackets. stray: the places of brackets without an opening one.
        """
        self.tokens = tokens
        self.open: list[int] = []
        self.unclosed: dict[int, int] = {}
        self.stray: set[int] = set()

    def run(self) -> None:
        """Pair brackets over all tokens. A new declaration closes all open brackets, and a new statement the parentheses."""
        closers = frozenset(CLOSERS.values())
        for index, token in enumerate(self.tokens):
            if token.kind in CLOSERS:
                self._open(index, token.kind)
            elif token.kind in closers:
                self._close(index, token.kind)
            elif token.kind == END or (token.column == 1 and self._starts_declaration(index)):
                self._abandon(index, CLOSERS)
            elif token.text in STATEMENTS and self._starts_line(index):
                self._abandon(index, PARENTHESES)

    def _starts_declaration(self, index: int) -> bool:
        token, after = self.tokens[index], self.tokens[index + 1 : index + 3]
        begins = self._starts_line(index) and token.text in IN_NO_BRACES and after[0].kind in ("NAME", WORD)
        return begins and after[1].kind != "PATTERN"  # `optimizer for "*.bias" = ...` is no declaration

    def _starts_line(self, index: int) -> bool:
        return index == 0 or self.tokens[index - 1].kind == SEPARATOR

    def _abandon(self, index: int, kinds: Container[str]) -> None:
        """Note the innermost open brackets of these kinds as unclosed: no such bracket can be open here."""
        while self.open and self.tokens[self.open[-1]].kind in kinds:
            self.unclosed[self.open.pop()] = index

    def _open(self, index: int, kind: str) -> None:
        if kind == "LBRACE":
            self._abandon(index, PARENTHESES)
        self.open.append(index)

    def _close(self, index: int, kind: str) -> None:
        """Close the nearest bracket of this kind, but none beyond the nearest brace or the nesting limit."""
        depths = range(len(self.open))
        for depth in reversed(depths[-NESTING_LIMIT:]):
            opener = self.tokens[self.open[depth]].kind
            if CLOSERS[opener] == kind:
                self.unclosed.update(dict.fromkeys(self.open[depth + 1 :], index))
                del self.open[depth:]
                return
            if opener == "LBRACE":
                break
        self.stray.add(index)


class _Emitter:
    """Writes the token stream without stray brackets and repeated separators, and adds missing brackets."""

    def __init__(self, matcher: _Matcher, file: str, diagnostics: Diagnostics) -> None:
        """Start an empty stream.

        open: the brackets that the stream has not closed.
        """
        self.matcher = matcher
        self.file = file
        self.diagnostics = diagnostics
        self.stream = TokenStream()
        self.open: list[tuple[int, int]] = []  # indices: in the stream, in the matcher

    def take(self, index: int, token: Token) -> None:
        """Put a token into the stream, or drop it and report it; close brackets that were left open before it."""
        while self.open and self._is_closed_by(index, token):
            self._close(token)
        if token.kind == BAD:
            if not self._is_doubled(index, token):
                self._drop(syntax_errors.bad_character(token, self.file))
            if len(token.text) > 1 and token.text[0] in QUOTES:
                self._put(token)  # no statement takes quotes
        elif index in self.matcher.stray:
            self._drop(syntax_errors.stray(token, self.file))
        elif token.kind == SEPARATOR:
            if not self._in_parentheses() and self._last().kind != SEPARATOR:
                self._put(token)
        elif token.kind in CLOSERS:
            self._open(index, token)
        else:
            self._put(token)
            if token.kind in ("RPAR", "RSQB", "RBRACE"):
                self.stream.closer[self.open.pop()[0]] = len(self.stream.tokens) - 1

    def _is_doubled(self, index: int, token: Token) -> bool:
        """True if the token is the second character of `||` or `&&`."""
        before = self.matcher.tokens[index - 1] if index else token
        return token.text in ("&", "|") and before.text == token.text and before.end_column == token.column

    def _put(self, token: Token) -> None:
        self.stream.opener.append(self.open[-1][0] if self.open else -1)
        self.stream.tokens.append(token)

    def _drop(self, diagnostic: Diagnostic) -> None:
        self.diagnostics.extend((diagnostic,))
        self.stream.repaired.append(len(self.stream.tokens))

    def _open(self, index: int, token: Token) -> None:
        self._put(token if len(self.open) < NESTING_LIMIT else token._replace(kind=TOO_DEEP))
        self.open.append((len(self.stream.tokens) - 1, index))

    def _last(self) -> Token:
        return self.stream.tokens[-1] if self.stream.tokens else Token(SEPARATOR, "\n", 1, 1)

    def _in_parentheses(self) -> bool:
        return bool(self.open) and self.stream.tokens[self.open[-1][0]].text != "{"

    def _is_closed_by(self, index: int, token: Token) -> bool:
        """Return True if the innermost bracket has no partner, and this token shows the error or ends the line."""
        shown_by = self.matcher.unclosed.get(self.open[-1][1])
        if shown_by is None or shown_by == index:
            return shown_by == index
        if token.text != "\n" or not self._in_parentheses():
            return False
        last = self._last()
        return last.kind not in UNFINISHED or (last.kind != "COMMA" and self._is_before_assignment(index))

    def _is_before_assignment(self, newline: int) -> bool:
        """True if the line after a newline begins with `name =`, and does not end in a comma, as an argument may."""
        tokens = self.matcher.tokens
        kinds = [token.kind for token in tokens[newline + 1 : newline + 3]]
        if len(kinds) < 2 or kinds[0] not in ("NAME", WORD) or kinds[1] != "EQUAL":
            return False
        end = newline + 1
        while tokens[end].kind not in (SEPARATOR, END):
            end += 1
        return tokens[end - 1].kind != "COMMA"

    def _close(self, token: Token) -> None:
        """Report an open bracket that is not closed, and put in the missing bracket."""
        opener = self.stream.tokens[self.open[-1][0]]
        text = CLOSING_TEXT[opener.text]
        if len(self.open) <= NESTING_LIMIT:
            self.diagnostics.extend((syntax_errors.unclosed(opener, text, token, self.file),))
        self.stream.repaired.append(self.open[-1][0])
        self.stream.unclosed.append(self.open[-1][0])
        last = self._last()
        self._put(Token(KINDS[text], "", last.line, last.end_column))
        self.stream.closer[self.open.pop()[0]] = len(self.stream.tokens) - 1
        if text == "}" and token.kind != END:
            self._put(Token(SEPARATOR, "\n", last.line, last.end_column))
