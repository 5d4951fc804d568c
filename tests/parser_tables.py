"""Write the parser's tables after a change to the grammar: `make tables` runs this."""

import json
import zlib
from collections.abc import Iterator
from typing import Any

import attrs
from lark import Lark
from lark.grammar import Rule as LarkRule

from mtfc.frontend.syntax.tables import END, TABLES, GrammarRule, Tables

GRAMMAR = TABLES.parents[2] / "grammar" / "mtf.lark"


def build(grammar: str) -> Tables:
    """Compute the tables with Lark."""
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


if __name__ == "__main__":
    TABLES.write_text(encode(GRAMMAR.read_text("utf-8")), "utf-8")
