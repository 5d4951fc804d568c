"""Help for `h[0]`: the dimension that the index means, as far as the text before shows it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from mtfc.frontend.syntax.lexer import Token

FARTHEST = 1000
"""Tokens before a statement that are searched for a declaration, so that many errors take linear time."""


def index_help(name: str, index: Sequence[str], before: Sequence[Token]) -> str:
    """Return help for a tensor with an index: `index` is the text in the brackets, `before` the tokens before the statement."""
    dim = _meant(index, _dims(name, before))
    where = "" if dim else f"; `d` is a dimension of `{name}`"
    dim = dim or "d"
    return (
        f"dimensions have names: `slice({name}, {dim} -> short, start = 0)` takes a part of one, "
        f"and `gather({name}, ids, {dim})` the elements at positions{where}"
    )


def _meant(index: Sequence[str], dims: Sequence[str]) -> str | None:
    """Return the first dimension of which the index takes a part; `[..., 0]` counts from the end."""
    items: list[list[str]] = [[]]
    for text in index:
        if text == ",":
            items.append([])
        else:
            items[-1].append(text)
    places = [place for place, item in enumerate(items) if item not in ([":"], ["..."])]
    if not dims or not places:
        return None
    place = places[0] - len(items) if ["..."] in items else places[0]
    return dims[place] if -len(dims) <= place < len(dims) else None


def _dims(name: str, before: Sequence[Token]) -> list[str]:
    """Return the dimensions in the last declaration of a name: `x: [batch, io]`, or `h = einsum(x, w -> [batch, hidden])`."""
    for at in range(len(before) - 2, -1, -1):
        if before[at].text != name or before[at + 1].text not in (":", "="):
            continue
        texts = [token.text for token in before[at + 2 :]]
        if before[at + 1].text == ":":
            return _listed(texts)
        if at == 0 or before[at - 1].text in ("\n", ";", "{"):
            return _of_value(texts)
    return []


def _of_value(texts: Sequence[str]) -> list[str]:
    """Return the dimensions that an expression states at its end."""
    end = next((at for at, text in enumerate(texts) if text in ("\n", ";")), len(texts))
    arrow = next((at for at in reversed(range(end)) if texts[at] == "->"), None)
    return [] if arrow is None else _listed(texts[arrow + 1 :])


def _listed(texts: Sequence[str]) -> list[str]:
    """Return the names in the brackets at the start, which may follow a dtype."""
    begin = 0 if texts[:1] == ["["] else 1
    if texts[begin : begin + 1] != ["["] or "]" not in texts:
        return []
    inside = texts[begin + 1 : texts.index("]")]
    return [text for text in inside if text != ","] if "..." not in inside else []
