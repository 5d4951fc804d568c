"""The LALR tables of `grammar/mtf.lark`, which Lark computes ahead of time, in `tables.json`.

Importing Lark and computing the tables takes 150 ms, as long as `mtfc check` may take in all. So the tables are computed when
the grammar changes (`make tables`), and not when the compiler starts. They are JSON in the package: unlike a pickle in a cache
folder, no other program can write them, the first run is not slow, and the tested tables are the installed ones.
`tests/parser_tables.py` writes them, and a test says if the grammar has changed since.
"""

import json
from functools import cache
from pathlib import Path

from mtfc.compiler.records import frozen

END = "$END"
TABLES = Path(__file__).with_suffix(".json")


@frozen
class GrammarRule:
    """A rule of the grammar, which reduces `size` symbols to one `origin`.

    children: the values that the result is made of: index i takes the value of symbol i, ~i takes the values of a list, and None
    is an absent optional part. make: the name of the node to build; empty if the result is the list of values, None if it is the
    only value.
    """

    origin: str
    size: int
    children: tuple[int | None, ...]
    make: str | None


@frozen
class Tables:
    """The parser's tables. For each state, `moves` maps a terminal to the next state, or to ~r to reduce by rule r first."""

    terminals: dict[str, str]
    keywords: dict[str, str]
    rules: tuple[GrammarRule, ...]
    moves: tuple[dict[str, int], ...]
    gotos: tuple[dict[str, int], ...]


@cache
def load() -> Tables:
    """Return the tables of the grammar."""
    data = json.loads(TABLES.read_text("utf-8"))
    rules = tuple(
        GrammarRule(origin, size, tuple(children), make) for origin, size, children, make in data["rules"]
    )
    return Tables(data["terminals"], data["keywords"], rules, tuple(data["moves"]), tuple(data["gotos"]))
