"""The messages of syntax errors.

A message says what was expected and what was found, in the words of the language and not of its grammar.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping

from mtfc.compiler.diagnostics import Diagnostic, Label, Span, nearest
from mtfc.frontend.syntax import tables
from mtfc.frontend.syntax.lexer import END, RESERVED, SEPARATOR, STATEMENTS, WORD, Token

A_PART = "a part is `part embed on front: { batch: all }`, and of several names `part (embed, head) on front: { ... }`"

NO_STRINGS = "the language has no strings"

LOOKALIKES = {
    "×": "`*`",
    "÷": "`/`",
    "−": "`-`",
    "–": "`-`",
    "→": "`->`",
    "≤": "`<=`",
    "≥": "`>=`",
    "≠": "`!=`",
    "\xa0": "a plain space",
    "&": "`and`",
    "|": "`or`",
    "!": "`not`",
    "^": "`**`",
    "%": "`x - y * floor(x / y)`",
    "~": "`not`",
    "?": "`where(condition, x, y)`",
}

OPERATORS = frozenset(("OPERATOR", "MINUS", "AND", "OR"))
# An expression that may end here may also go on with many tokens; a message lists only these ends.
ENDS = frozenset(("COMMA", "RPAR", "RSQB", "ALONG", SEPARATOR))
# Tokens that are always possible between statements or declarations: a message leaves them out.
BETWEEN = frozenset(("ERROR", "RBRACE", SEPARATOR, END))

TOP = "a declaration such as `dim` or `model`"

# Words for sets of possible tokens: the first row whose tokens are all possible counts.
STARTS = (
    (TOP, frozenset(("DIM", "MODEL"))),
    ("a statement", frozenset(("PARAM", "STATE", "RETURN", "NAME"))),
    ("an entry such as `minimize loss`", frozenset(("MINIMIZE", "REPORT", "NAME"))),
    ("an entry such as `device: { ... }`", frozenset(("LINK", "NAME"))),
    ("an entry such as `batch: rows`", frozenset(("VALUE", "NAME"))),
)
# Words for sets of tokens, which a message lists beside the other possible tokens.
PARTS = (
    ("an expression", frozenset(("NAME", "PATH", "NUMBER", "TRUE", "FALSE", "LPAR", "MINUS", "NOT"))),
    ("a name", frozenset(("NAME", "PATH"))),
    ("a name", frozenset(("NAME",))),
)


def describe(token: Token) -> str:
    if token.kind == END:
        return "the end of the file"
    if token.text == "\n":
        return "the end of the line"
    shown = token.text if len(token.text) <= 40 else token.text[:39] + "…"
    return f"`{shown}`"


def unexpected(
    previous: Token, token: Token, expected: Collection[str], instead: Collection[str], file: str
) -> Diagnostic:
    """Return E001 for a token that no rule takes, or E009 for a reserved word in place of a name.

    expected: the kinds of tokens that may stand here. instead: the keywords that may stand in the place of `previous`.
    """
    kinds = frozenset(expected)
    word = previous if token.text == "=" else token
    if word.text in RESERVED and "NAME" in kinds and not OPERATORS & kinds:
        return Diagnostic("E009", f"`{word.text}` is a reserved word, not a name", word.span(file))
    names = _names(kinds)
    message = f"expected {_one_of(names)}, found {describe(token)}"
    help = _advice(previous, token, kinds, instead) or _sign(previous, token, names)
    return Diagnostic("E001", message, token.span(file), help=help)


WRONG_SIGNS: Mapping[tuple[str, str], str] = {
    ("`:`", ","): "an argument has a type, `{0}: [dims]`, and a mesh axis a size, `{0}: 2`",
    ("`:`", ")"): "an argument has a type: `{0}: [dims]`",
    ("`{`", "->"): "a model states no types of its results: `return` has them",
    ("`)`", ","): "several values stand without parentheses: `return y, loss`",
    ("`,`", ":"): "a parameter is `param {0}: [dims] = normal(stddev = 0.02)`",
    ("`=`", ","): "declare each name in a line of its own",
    ("a statement", "//"): "a comment begins with `#`",
    (TOP, "//"): "a comment begins with `#`",
}
"""The first expected token and the one that was found -> help; `{0}` is the token before."""

REPLACED = ("=", ":", "->", "(", "[", "{", "==", "=>")
"""Signs that are written in the place of another one."""


def _sign(previous: Token, token: Token, names: list[str]) -> str | None:
    """Return help for a wrong sign, such as a colon in the place of `=`, and for a size without `dim`."""
    if help := WRONG_SIGNS.get((names[0], token.text)):
        return help.format(previous.text)
    if names[0] == TOP and token.kind == "NAME":
        return f"a size is `dim {token.text} = 4`, and a statement stands in a model: `model m(x: [batch]) {{ ... }}`"
    if names[0] == "a statement" and token.kind == "PATH":
        value, _, function = token.text.rpartition(".")
        return f"a statement names its result: `{value} = {function}({value})`"
    is_replaced = len(names) == 1 and names[0].startswith("`") and token.text in REPLACED
    return f"write {names[0]} in place of `{token.text}`" if is_replaced else None


def _names(kinds: frozenset[str]) -> list[str]:
    """Return how a message names the expected kinds of tokens: by a group if they are one, without dull separators."""
    if kinds == {"FOR"}:  # `optimizer` begins two kinds of entries
        return ["`=`", "`for`"]
    if kinds >= OPERATORS:
        kinds = kinds & ENDS or kinds - OPERATORS
    for name, group in STARTS:
        if group <= kinds:
            return [name]
    for name, group in PARTS:
        if group <= kinds:
            return [name, *map(_name, sorted(kinds - group - BETWEEN))]
    dull = BETWEEN - {SEPARATOR} if SEPARATOR in kinds and "COMMA" not in kinds else {"ERROR", END}
    return [_name(kind) for kind in sorted(kinds - dull)]


def _name(kind: str) -> str:
    if kind == "PATTERN":
        return 'a pattern such as `"*.bias"`'
    pattern = tables.load().terminals.get(kind, "")
    text = re.sub(r"\\(.)", r"\1", pattern)
    is_plain = pattern and re.escape(text) == pattern
    return "the end of the line" if kind == SEPARATOR else f"`{text if is_plain else kind.lower()}`"


def _one_of(names: list[str]) -> str:
    return f"{', '.join(names[:-1])} or {names[-1]}" if len(names) > 1 else names[0]


def _advice(previous: Token, token: Token, kinds: frozenset[str], instead: Collection[str]) -> str | None:
    """Return help for an unexpected token, or None. kinds: the expected ones. instead: names that may stand before it."""
    if token.text == "\n" and "NUMBER" in kinds and previous.text not in STATEMENTS:
        return "put an expression of several lines in parentheses"
    if token.text == ":" and "LBRACE" in kinds:
        return "a body stands in braces: `{ ... }`"
    if token.kind == "PATTERN" and "FOR" in kinds:
        return "write `optimizer for` before the pattern"
    if token.kind == "PATTERN" and "->" in token.text:
        return f"{NO_STRINGS}; dimensions have names: `einsum(a, b -> [dims])`"
    if token.kind == "PATTERN":
        return f'{NO_STRINGS}; quotes are for patterns, as in `frozen "*.bias"`'
    if token.text == "(" and "EQUAL" in kinds:
        return f"give the result a name: `name = {previous.text}(...)`"
    if token.kind not in ("NAME", "PATH", "NUMBER", WORD):
        return None
    keywords = tables.load().keywords
    meant = nearest(token.text, [text for text, kind in keywords.items() if kind in kinds - OPERATORS])
    if not meant and previous.kind == "NAME" and previous.text not in keywords and not OPERATORS & kinds:
        meant = nearest(previous.text, instead)
    return f"did you mean `{meant}`?" if meant else None


def unclosed(opener: Token, closing: str, shown_by: Token, file: str) -> Diagnostic:
    label = Label(shown_by.span(file), f"expected `{closing}` before {_place(shown_by)}")
    return Diagnostic("E002", f"this `{opener.text}` is never closed", opener.span(file), (label,))


def _place(token: Token) -> str:
    return describe(token) if token.kind == END or token.text == "\n" else "this"


def stray(token: Token, file: str) -> Diagnostic:
    return Diagnostic("E003", f"this `{token.text}` closes nothing", token.span(file))


def bad_character(token: Token, file: str) -> Diagnostic:
    """Return the error for characters that no token has."""
    text = token.text
    shown = f"`{text[:40]}`" if text.isprintable() else ", ".join(f"U+{ord(c):04X}" for c in text[:5])
    help = None
    if text in LOOKALIKES:
        help = f"write {LOOKALIKES[text]}"
    elif text.isalpha():
        help = "names are made of the letters a to z, digits and `_`"
    elif text == '"':
        help = 'close the quote on this line: a pattern is `"*.bias"`'
    elif text[0] in "\"'":
        help = NO_STRINGS
        help += "; dimensions have names: `einsum(a, b -> [dims])`" if "->" in text else ""
    return Diagnostic(
        "E004", f"unexpected character{'s'[: len(text) - 1]} {shown}", token.span(file), help=help
    )


def too_deep(span: Span, limit: int) -> Diagnostic:
    help = "give a part of the expression a name of its own"
    return Diagnostic("E007", f"this is nested more than {limit} levels deep", span, help=help)
