"""Syntax trees without regard to what their nodes are."""

from __future__ import annotations

from collections.abc import Iterator

import attrs

from mtfc.frontend.syntax.ast import Node


def children(node: Node) -> Iterator[Node]:
    """The nodes directly below, in the order of the fields."""
    for field in attrs.fields(type(node)):
        value = getattr(node, field.name)
        if isinstance(value, Node):
            yield value
        elif isinstance(value, tuple):
            yield from (item for item in value if isinstance(item, Node))


def walk(node: Node) -> Iterator[Node]:
    """The node and all below it."""
    waiting = [node]
    while waiting:
        node = waiting.pop()
        yield node
        waiting += children(node)
