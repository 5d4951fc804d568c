"""The LALR tables of `grammar/mtf.lark`, made by Lark ahead of time and kept in `tables.json`.

Importing Lark and building the tables takes 150 ms, half of what `mtfc check` may take in all, so it happens when the
grammar changes and not when the compiler starts. The tables are JSON in the package: unlike a pickle in a cache folder,
nobody else can write them, there is no slow first run, and what ships is what was tested. While the grammar is being
worked on they are out of date, which the checksum in them tells; then they are built in memory.

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

if TYPE_CHECKING:
    from lark import Lark
    from lark.grammar import Rule as LarkRule

END = "$END"
GRAMMAR = Path(__file__).parents[2] / "grammar" / "mtf.lark"
TABLES = Path(__file__).with_suffix(".json")


@attrs.frozen
class GrammarRule:
    """How to reduce `size` symbols to one `origin`.

    `children` says which of the symbols' values the result is made of: index i takes one value, ~i the values of a
    list, None is an optional part that is absent. `make` names the node to build; it is empty where the values
    themselves are the result, as a list, and None where the result is the only value.
    """

    origin: str
    size: int
    children: tuple[int | None, ...]
    make: str | None


@attrs.frozen
class Tables:
    """For each state, `moves` maps a terminal to the state after it, or to ~r for "reduce by rule r first"."""

    terminals: dict[str, str]
    keywords: dict[str, str]
    rules: tuple[GrammarRule, ...]
    moves: tuple[dict[str, int], ...]
    gotos: tuple[dict[str, int], ...]


@cache
def load() -> Tables:
    """The tables of the grammar as it is now."""
    grammar = GRAMMAR.read_bytes()
    if TABLES.is_file():
        data = json.loads(TABLES.read_text("utf-8"))
        if data["grammar"] == zlib.crc32(grammar):
            return _decode(data)
    return build(grammar.decode())


def build(grammar: str) -> Tables:
    """Let Lark compute the tables."""
    from lark import Lark

    lark = Lark(grammar, parser="lalr", lexer="basic", start="file", maybe_placeholders=True)
    fixed, patterns = _terminals(lark)
    rules, moves, gotos = _states(lark)
    return Tables(patterns, fixed, rules, moves, gotos)


def _terminals(lark: Lark) -> tuple[dict[str, str], dict[str, str]]:
    """Keywords by their text, and patterns by terminal, in the order in which a lexer must try them."""
    keywords = {t.pattern.value: t.name for t in lark.terminals if t.pattern.value.isalpha()}
    others = [t for t in lark.terminals if t.name not in keywords.values()]
    others.sort(key=lambda t: (-t.pattern.max_width, -len(t.pattern.value), t.name))
    return keywords, {t.name: t.pattern.to_regexp() for t in others}


def _states(
    lark: Lark,
) -> tuple[tuple[GrammarRule, ...], tuple[dict[str, int], ...], tuple[dict[str, int], ...]]:
    """Rules and states, numbered in the order in which they are met from the start: the same in every run."""
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
    """As Lark makes trees: punctuation and keywords are dropped, rules called `_name` give their children."""
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
    """The text of `tables.json`, one rule or state a line."""
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
