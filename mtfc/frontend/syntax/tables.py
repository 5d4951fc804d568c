"""The LALR tables of `grammar/mtf.lark`, which Lark computes ahead of time, in `tables.json`.

Importing Lark and computing the tables takes 150 ms, as long as `mtfc check` may take in all. So the tables are computed when the
grammar changes, and not when the compiler starts. They are JSON in the package: unlike a pickle in a cache folder, no other
program can write them, the first run is not slow, and the tested tables are the installed ones. A checksum tells if the grammar
has changed since; then the tables are computed in memory.

Run `python -m mtfc.frontend.syntax.tables` to write them.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import attrs

from mtfc.compiler.records import frozen

if TYPE_CHECKING:
    from lark import Lark
    from lark.grammar import Rule as LarkRule

END = "$END"
GRAMMAR = Path(__file__).parents[2] / "grammar" / "mtf.lark"
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
    """Return the tables of the current grammar."""
    grammar = GRAMMAR.read_bytes()
    if TABLES.is_file():
        data = json.loads(TABLES.read_text("utf-8"))
        if data["grammar"] == zlib.crc32(grammar):
            return _decode(data)
    return build(grammar.decode())


def build(grammar: str) -> Tables:
    """Compute the tables with Lark."""
    from lark import Lark

    lark = Lark(grammar, parser="lalr", lexer="basic", start="file", maybe_placeholders=True)
    fixed, patterns = _terminals(lark)
    rules, moves, gotos = _states(lark)
    return Tables(patterns, fixed, rules, moves, gotos)


def _terminals(lark: Lark) -> tuple[dict[str, str], dict[str, str]]:
    """Return the keywords by their text, and the patterns by terminal in the order in which a lexer must try them."""
    keywords = {t.pattern.value: t.name for t in lark.terminals if t.pattern.value.isalpha()}
    others = [t for t in lark.terminals if t.name not in keywords.values()]
    others.sort(key=lambda t: (-t.priority, -t.pattern.max_width, -len(t.pattern.value), t.name))
    return keywords, {t.name: t.pattern.to_regexp() for t in others}


def _states(
    lark: Lark,
) -> tuple[tuple[GrammarRule, ...], tuple[dict[str, int], ...], tuple[dict[str, int], ...]]:
    """Return rules and states, numbered in the order in which they are reached from the start."""
    table: Any = lark.parser.parser._parse_table
    end = table.end_states["file"]
    numbers = {table.start_states["file"]: 0}
    rules: dict[LarkRule, int] = {}
    moves: list[dict[str, int]] = []
    gotos: list[dict[str, int]] = []
    pending = list(numbers)
    for state in pending:
        row: dict[str, int] = {END: numbers[state]} if state == end else {}
        moves.append(row)
        gotos.append({})
        for symbol, (action, target) in sorted(table.states[state].items()):
            if action.name == "Reduce":
                row[symbol] = ~rules.setdefault(target, len(rules))
                continue
            if target not in numbers:
                numbers[target] = len(numbers)
                pending.append(target)
            (row if symbol.isupper() else gotos[-1])[symbol] = numbers[target]
    return tuple(map(_rule, rules)), tuple(moves), tuple(gotos)


def _rule(rule: LarkRule) -> GrammarRule:
    children = tuple(_children(rule))
    name = rule.origin.name
    if name.startswith("_"):
        make: str | None = ""
    elif rule.options.expand1 and len(children) == 1:
        make = None
    else:
        make = rule.alias or rule.options.template_source or name
    return GrammarRule(str(name), len(rule.expansion), children, make and str(make))


def _children(rule: LarkRule) -> Iterator[int | None]:
    """Yield the kept children, as in Lark: punctuation and keywords are dropped, rules called `_name` give their children."""
    absent = rule.options.empty_indices or (False,) * (len(rule.expansion) + 1)
    symbols = iter(enumerate(rule.expansion))
    for is_absent in absent:
        if is_absent:
            yield None
        elif (item := next(symbols, None)) is not None:
            index, symbol = item
            if not getattr(symbol, "filter_out", False):
                yield ~index if symbol.name.startswith("_") else index


def encode(grammar: str) -> str:
    """Return the text of `tables.json`, with one rule or state on each line."""
    from lark import __version__

    fields = {"grammar": zlib.crc32(grammar.encode()), "lark": __version__, **attrs.asdict(build(grammar))}
    return "{" + ",\n".join(f"{json.dumps(key)}: {_lines(value)}" for key, value in fields.items()) + "}\n"


def _lines(value: object) -> str:
    if not isinstance(value, tuple | list):
        return json.dumps(value)
    rows = (list(row.values()) if "origin" in row else row for row in value)
    return "[\n" + ",\n".join(json.dumps(row, separators=(",", ":")) for row in rows) + "]"


def _decode(data: dict[str, Any]) -> Tables:
    rules = tuple(
        GrammarRule(origin, size, tuple(children), make) for origin, size, children, make in data["rules"]
    )
    return Tables(data["terminals"], data["keywords"], rules, tuple(data["moves"]), tuple(data["gotos"]))


if __name__ == "__main__":
    TABLES.write_text(encode(GRAMMAR.read_text("utf-8")), "utf-8")
