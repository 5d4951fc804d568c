"""The kind of each token, for highlighting: one source for the Pygments lexer, the TextMate grammar and semantic tokens.

The keywords and their patterns come from the tables of the grammar. A word that may also be a name is a keyword where it begins a
statement or stands where only the keyword can; this is decided by the words around it, because highlighters see no syntax tree.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from typing import Literal, NamedTuple

from mtfc.compiler.ir.initializers import DISTRIBUTIONS
from mtfc.compiler.ir.types import WRITTEN_BYTES
from mtfc.frontend.semantics.calls.builtin_calls import BUILTINS
from mtfc.frontend.semantics.names.scope import ANY
from mtfc.frontend.syntax import tables
from mtfc.frontend.syntax.lexer import COMMENT, END, RESERVED, SEPARATOR, WORD, Token, lex

TokenKind = Literal[
    "comment", "keyword", "constant", "dtype", "number", "string", "operator", "builtin", "name", "punctuation", "error"
]  # fmt: skip


class Highlight(NamedTuple):
    """Names of a kind of tokens: the scope of TextMate, the token of Pygments, and the type of the protocol, empty for none."""

    scope: str
    pygments: str
    semantic: str = ""


HIGHLIGHTS: Mapping[TokenKind, Highlight] = {
    "comment": Highlight("comment.line.number-sign", "Comment.Single", "comment"),
    "keyword": Highlight("keyword.control", "Keyword", "keyword"),
    "constant": Highlight("constant.language", "Keyword.Constant", "keyword"),
    "dtype": Highlight("storage.type", "Keyword.Type", "type"),
    "number": Highlight("constant.numeric", "Number", "number"),
    "string": Highlight("string.quoted.double", "String", "string"),
    "operator": Highlight("keyword.operator", "Operator", "operator"),
    "builtin": Highlight("support.function", "Name.Builtin", "function"),
    "name": Highlight("variable.other", "Name"),
    "punctuation": Highlight("punctuation", "Punctuation"),
    "error": Highlight("invalid", "Error"),
}

END_OF_LINE = re.compile(r"\r\n|\r|\n")
"""The only ends of lines that the compiler knows."""

CONSTANTS = ("true", "false")

LEADING = ("import", "dim", "mesh", "layout", "placement", "hardware", "device", "link", "model", "fn", "optimizer",
           "train", "param", "state", "update", "watch", "repeat", "scan", "return", "yield", "minimize", "report",
           "frozen", "value", "pipeline", "part", "allow")  # fmt: skip
"""Keywords that begin a declaration, a statement or an entry."""

JOINING = ("on", "for", "with", "along", "checkpoint", "sharing", "while")
"""Keywords between the parts of a line that one of `LEADING` begins."""

DTYPES = (*WRITTEN_BYTES, ANY)

FUNCTIONS = tuple(dict.fromkeys((*BUILTINS, *DISTRIBUTIONS)))
"""Built-in functions and initializers."""

KINDS_OF_TOKENS: dict[str, TokenKind] = {
    COMMENT: "comment",
    "NUMBER": "number",
    "RANGE": "number",
    "PATTERN": "string",
    "OPERATOR": "operator",
    "STAR": "operator",
    "MINUS": "operator",
    "ARROW": "operator",
    "EQUAL": "operator",
    "ELLIPSIS": "constant",
    "BAD": "error",
}


@cache
def keywords() -> frozenset[str]:
    """Return the words that the grammar knows."""
    return frozenset(tables.load().keywords)


def classified(text: str) -> Iterator[tuple[Token, TokenKind | None]]:
    """Yield the tokens of a text with their kinds; None for a line end."""
    tokens = [token for token in lex(text) if token.kind != END]
    code = [token for token in tokens if token.kind != COMMENT]
    places = {id(token): i for i, token in enumerate(code)}
    for token in tokens:
        yield token, _kind(token, code, places.get(id(token), -1))


def _kind(token: Token, code: Sequence[Token], index: int) -> TokenKind | None:
    """Return the kind by which a token is coloured; None for a new line. code: all tokens, of which this one has the index."""
    if token.kind == SEPARATOR:
        return None if token.text == "\n" else "punctuation"
    if token.kind in KINDS_OF_TOKENS:
        return KINDS_OF_TOKENS[token.kind]
    if token.kind == "NAME" or token.kind == "PATH":
        return _of_name(token, code, index)
    if token.text in CONSTANTS:
        return "constant"
    if token.text in RESERVED:
        return "keyword"
    if token.kind == WORD:
        return "keyword" if is_keyword(_text(code, index - 1), token.text, _text(code, index + 1)) else "name"
    return "punctuation"


def _of_name(token: Token, code: Sequence[Token], index: int) -> TokenKind:
    """Return the kind of a name: a builtin that is called, a dtype, or any other name."""
    after = _text(code, index + 1)
    if token.text in FUNCTIONS and after == "(":
        return "builtin"
    return "dtype" if token.text in DTYPES and after != "=" and after != ":" else "name"


def _text(code: Sequence[Token], index: int) -> str:
    """Return the text of a token, `\\n` outside of the text."""
    return code[index].text if 0 <= index < len(code) else "\n"


STARTS = ("\n", ";", "{", "}", ",")
"""Texts before the start of a statement or an entry."""

NO_NAMES = ("=", ":", ",", ".", "(", ")", "]", "}", "->", "*", "+", "-", "/", "\n", ";")
"""Texts that follow a name, and no keyword."""


def is_keyword(before: str, word: str, after: str) -> bool:
    """Return True if a word that may be a name is a keyword between two texts."""
    if word in LEADING:
        return before in STARTS and after not in NO_NAMES
    if word == "checkpoint":
        return before not in (*STARTS, "=", "(", "[", ",") and after in ("{", "with", ":")
    if word == "while":  # an expression follows, which may begin with a sign or a parenthesis
        return re.fullmatch(r"[\w.]+|[)\]]", before) is not None and before not in RESERVED
    return (
        word in JOINING
        and before not in STARTS
        and after not in NO_NAMES
        and before not in ("=", "(", "[", ":")
    )
