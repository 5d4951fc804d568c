"""Help for `h[0]`: the dimension that the index means, as far as the text before shows it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from mtfc.frontend.lexer import Token

FARTHEST = 2000
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
    texts = [token.text for token in before[-FARTHEST:]]
    for at in range(len(texts) - 2, -1, -1):
        if texts[at] == name and texts[at + 1] == ":":
            return _listed(texts[at + 2 :])
        if texts[at] == name and texts[at + 1] == "=" and texts[at - 1 : at] in ([], ["\n"], [";"], ["{"]):
            end = next((i for i in range(at, len(texts)) if texts[i] in ("\n", ";")), len(texts))
            value = texts[at + 2 : end]
            arrow = next((i for i in reversed(range(len(value))) if value[i] == "->"), None)
            return [] if arrow is None else _listed(value[arrow + 1 :])
    return []


def _listed(texts: Sequence[str]) -> list[str]:
    """Return the names in the brackets at the start, which may follow a dtype."""
    begin = 0 if texts[:1] == ["["] else 1
    if texts[begin : begin + 1] != ["["] or "]" not in texts:
        return []
    inside = texts[begin + 1 : texts.index("]")]
    return [text for text in inside if text != ","] if "..." not in inside else []
