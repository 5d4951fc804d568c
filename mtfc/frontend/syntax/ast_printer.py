"""Print a syntax tree, as an indented outline or as JSON, for `mtfc compile --emit ast`."""

from collections.abc import Iterator
from typing import Any

import attrs

from mtfc.frontend.syntax import ast


def to_text(node: ast.Node) -> str:
    """Return an outline with a line for each node: its field, class, place and plain values, without empty fields."""
    return "".join(f"{line}\n" for line in _lines(node, "", 0))


def _lines(node: ast.Node, label: str, depth: int) -> Iterator[str]:
    """Yield the lines of a node and of its children, which are indented. label: the field that holds the node."""
    plain = "".join(f" {name}={value!r}" for name, value in _fields(node) if not _nodes(value))
    yield f"{'  ' * depth}{label}{type(node).__name__} {node.span.line}:{node.span.column}{plain}"
    for name, value in _fields(node):
        for child in _nodes(value):
            yield from _lines(child, f"{name}: ", depth + 1)


def _fields(node: ast.Node) -> Iterator[tuple[str, Any]]:
    """Yield the fields of a node that hold something, without its span."""
    for name in node.fields:
        value = getattr(node, name)
        if name != "span" and value is not None and value != ():
            yield name, value


def _nodes(value: object) -> tuple[ast.Node, ...]:
    """Return the nodes in the value of a field: of a node itself, or of a tuple of nodes."""
    items = value if isinstance(value, tuple) else (value,)
    return tuple(item for item in items if isinstance(item, ast.Node))


def to_json(node: ast.Node) -> dict[str, Any]:
    """Return a node as JSON: its class as `node`, the place without the file, and all its fields."""
    place = attrs.asdict(node.span, filter=lambda field, _: field.name not in ("file", "call"))
    fields = {name: getattr(node, name) for name in node.fields[1:]}
    return {"node": type(node).__name__, **place, **{name: _json(value) for name, value in fields.items()}}


def _json(value: object) -> object:
    """Return nodes, tuples and plain values as JSON has them."""
    if isinstance(value, ast.Node):
        return to_json(value)
    return [_json(item) for item in value] if isinstance(value, tuple) else value
