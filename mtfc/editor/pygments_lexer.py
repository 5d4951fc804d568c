"""The language for Pygments, under the name `mtf`: for documents, notebooks and terminals."""

from collections.abc import Iterator
from typing import Any

from pygments.lexer import Lexer
from pygments.token import Text, Whitespace, _TokenType, string_to_tokentype

from mtfc.editor.token_kinds import END_OF_LINE, HIGHLIGHTS, classified


class MtfLexer(Lexer):  # type: ignore[misc]
    """Split a .mtf file into tokens of Pygments, by the compiler's own lexer."""

    name = "mtf"
    aliases = ("mtf", "mtfc")
    filenames = ("*.mtf",)
    mimetypes = ("text/x-mtf",)
    url = ""

    def get_tokens_unprocessed(self, text: str, *args: Any) -> Iterator[tuple[int, _TokenType, str]]:
        """Yield offset, type and text of each token; the texts add up to the whole."""
        starts = [0, *(match.end() for match in END_OF_LINE.finditer(text))]
        done = 0
        for token, kind in classified(text):
            begin = starts[token.line - 1] + token.column - 1
            end = starts[token.line] if kind is None else begin + len(token.text)
            if begin > done:
                yield done, Text, text[done:begin]
            shown = Whitespace if kind is None else string_to_tokentype(HIGHLIGHTS[kind].pygments)
            yield begin, shown, text[begin:end]
            done = end
        if done < len(text):
            yield done, Text, text[done:]
