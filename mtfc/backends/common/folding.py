"""Expressions that are read once move into the statement that reads them.

    mul = x * x                                   mean = jnp.sum(x * x, axis=-1) / 64.0
    sum = jnp.sum(mul, axis=-1)          ->
    mean = sum / 64.0

Only statements of the same source line are joined, and only while they fit on one line. Collectives, loops and values with a name
of the user keep their statements. JAX traces the same equations; some stand later.
"""

from __future__ import annotations

import ast
import re
from collections import Counter
from collections.abc import Callable, Iterable, Sequence

import attrs

from mtfc.backends.common.repeats import MARK, Statement

_NAME = re.compile(f"{MARK}\\d+{MARK}")
_DEFINITION = re.compile(f"({MARK}\\d+{MARK}) = (.+)")


def uses(texts: Iterable[str]) -> Counter[str]:
    """Return how often each name stands in texts."""
    return Counter(name for text in texts for name in _NAME.findall(text))


def folded(
    statements: Sequence[Statement], counts: Counter[str], length: Callable[[str], int], width: int
) -> list[Statement]:
    """Return statements with each expression that is read once in its reader, where the line then has at most `width` columns.

    counts: how often a name stands in the function, its definition included. length: the columns of a text with marks.
    """
    found: list[Statement | None] = []
    open_ones: dict[str, tuple[int, str]] = {}
    for statement in statements:
        text = statement.text
        for name in () if "\n" in text or "lambda" in text else _NAME.findall(text):
            number, expression = open_ones.get(name, (-1, ""))
            maker = found[number] if number >= 0 else None
            if maker is not None and maker.place in ("", statement.place):
                longer = _put(text, name, expression)
                if length(longer) <= width:
                    text, found[number] = longer, None
        found.append(statement if text == statement.text else attrs.evolve(statement, text=text))
        defined = None if statement.is_kept else _DEFINITION.fullmatch(text)
        if defined and counts[defined[1]] == 2:
            open_ones[defined[1]] = len(found) - 1, defined[2]
    return [each for each in found if each is not None]


def _put(text: str, name: str, expression: str) -> str:
    """Return a text with an expression in the place of a name, in parentheses where Python needs them."""
    plain, grouped = text.replace(name, expression), text.replace(name, f"({expression})")
    try:
        return plain if ast.dump(ast.parse(plain)) == ast.dump(ast.parse(grouped)) else grouped
    except SyntaxError:  # as of `x - 10.astype(jnp.float32)`
        return grouped
