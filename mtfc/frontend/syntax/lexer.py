"""Turn the bytes of a file into text, and text into tokens.

The patterns come from the grammar; one regular expression tries them all. The lexer keeps comments and newlines for the
formatter. It reports no errors: text that no pattern takes becomes a BAD token. It knows no context: a keyword that may also be a
name is a WORD, and the parser decides.
"""

import re
from functools import cache
from typing import NamedTuple

from mtfc.compiler.diagnostics import Span, failure
from mtfc.frontend.syntax import tables

BAD = "BAD"
COMMENT = "COMMENT"
END = tables.END
SEPARATOR = "_SEP"
WORD = "WORD"

# Keywords that cannot be names: those that begin statements, and those in expressions.
STATEMENTS = frozenset(("param", "repeat", "return", "scan", "yield"))
RESERVED = STATEMENTS | {"and", "as", "false", "not", "or", "true"}


class Token(NamedTuple):
    """A token of one line; the text of a newline is `\\n`. Lines and columns count from 1, columns in characters.

    Columns of tokens before the file are below 1.
    """

    kind: str
    text: str
    line: int
    column: int

    @property
    def end_column(self) -> int:
        return self.column + len(self.text)

    def span(self, file: str) -> Span:
        return Span(file, self.line, max(self.column, 1), self.line, max(self.end_column, 1))


@cache
def _scanner() -> tuple[re.Pattern[str], dict[str, str]]:
    """Return the pattern of all tokens, whose groups are their kinds, and the kind of each keyword."""
    table = tables.load()
    patterns = [f"(?P<{name}>{pattern})" for name, pattern in table.terminals.items()]
    bad = rf"(?P<{BAD}>[^ -~\t\f\r\n\ufeff]+|.)"
    words = {text: name if text in RESERVED else WORD for text, name in table.keywords.items()}
    return re.compile("|".join((*patterns, bad)), re.DOTALL), words


def lex(text: str, line: int = 1, before: int = 0) -> list[Token]:
    """Return the tokens of a text without white space, and an END token.

    The text begins in line `line` of its file. before: characters of the text that stand before the file.
    """
    scanner, words = _scanner()
    tokens = []
    start = before
    for match in scanner.finditer(text):
        kind = str(match.lastgroup)
        if kind == "WS":
            continue
        word = match[0]
        if kind == "NAME":
            kind = words.get(word, kind)
        elif kind == SEPARATOR and word != ";":
            tokens.append(Token(kind, "\n", line, match.start() - start + 1))
            line, start = line + 1, match.end()
            continue
        tokens.append(Token(kind, word, line, match.start() - start + 1))
    tokens.append(Token(END, "", line, len(text) - start + 1))
    return tokens


def decode(data: bytes, file: str) -> str:
    """Return the text of a file without a byte order mark. Raises `CompileError` (E013) if it is not UTF-8."""
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        good = data[: error.start].decode("utf-8-sig", errors="ignore")
        lines = re.split(r"\r\n|\r|\n", good)
        span = Span(file, len(lines), len(lines[-1]) + 1, len(lines), len(lines[-1]) + 2)
        message = f"this file is not UTF-8 text: it has the byte 0x{data[error.start]:02x} here"
        raise failure("E013", message, span) from None
