"""The TextMate grammar of the language, for VS Code and other editors, made from the words of the compiler.

`pytest --update-golden tests/editor/test_highlighting.py` writes it. Each pattern is a plain `match`, tried in order, so that the
first one that fits the text decides. The patterns are regular expressions of Python and of Oniguruma alike.
"""

import json
import re
from collections.abc import Iterable
from typing import Any

from mtfc.editor.token_kinds import CONSTANTS, DTYPES, FUNCTIONS, HIGHLIGHTS, JOINING, LEADING, TokenKind
from mtfc.frontend.syntax import tables
from mtfc.frontend.syntax.lexer import RESERVED

SCOPE = "source.mtf"

NAME_FOLLOWS = r"(?=[ \t]+[A-Za-z_\"(\[*0-9])"
"""Behind a keyword that begins something stands a name, a pattern or a number."""


def words(of: Iterable[str]) -> str:
    """Return a pattern for any of some words, which are no parts of names."""
    found = "|".join(
        re.escape(word).replace("\\_", "_") for word in sorted(of, key=lambda word: (-len(word), word))
    )
    return rf"(?<![\w.])(?:{found})(?![\w.])"


def patterns() -> list[tuple[TokenKind, str]]:
    """Return the patterns in order; a group stands for the part of the match that has the kind."""
    terminals = tables.load().terminals
    leading = words(set(LEADING) - RESERVED)
    joining = words(set(JOINING) - {"checkpoint", "while"})
    return [
        ("comment", terminals["COMMENT"]),
        ("string", terminals["PATTERN"]),
        ("keyword", rf"(?:^|(?<=[;{{}},]))[ \t]*({leading}){NAME_FOLLOWS}"),
        ("keyword", words(RESERVED - set(CONSTANTS))),
        ("constant", words(CONSTANTS)),
        ("keyword", rf"(?<=[\w)\]}}])[ \t]+({joining}){NAME_FOLLOWS}"),
        ("keyword", r"(?<=[\w)\]])[ \t]+(while)(?=[ \t]*\(|[ \t]+[\w.-])"),
        ("keyword", r"(?<=[ \t])checkpoint(?=[ \t]*(?:\{|with\b))"),
        ("keyword", r"(?<=\w[ \t])checkpoint(?=[ \t]*:)"),
        ("keyword", r"(?<=optimizer )for(?=[ \t]*\")"),
        ("builtin", words(FUNCTIONS) + r"(?=[ \t]*\()"),
        ("dtype", words(DTYPES) + r"(?![ \t]*[=:])"),
        ("name", terminals["PATH"]),
        ("name", terminals["NAME"]),
        ("number", terminals["NUMBER"]),
        ("constant", terminals["ELLIPSIS"]),
        ("operator", f"{terminals['ARROW']}|{terminals['OPERATOR']}|[*=-]"),
        ("punctuation", r"[()\[\]{},:;]"),
    ]


def grammar() -> dict[str, Any]:
    """Return the grammar as JSON has it."""
    return {
        "$schema": "https://raw.githubusercontent.com/martinring/tmlanguage/master/tmlanguage.json",
        "name": "mtf",
        "scopeName": SCOPE,
        "fileTypes": ["mtf"],
        "patterns": [_pattern(kind, match) for kind, match in patterns()],
    }


def scope_of(kind: TokenKind) -> str:
    """Return the scope of a kind of tokens."""
    return f"{HIGHLIGHTS[kind].scope}.mtf"


def _pattern(kind: TokenKind, match: str) -> dict[str, Any]:
    if re.compile(match).groups:
        return {"match": match, "captures": {"1": {"name": scope_of(kind)}}}
    return {"match": match, "name": scope_of(kind)}


def text() -> str:
    """Return the text of the grammar's file."""
    return json.dumps(grammar(), indent=2) + "\n"
