"""Structural comparison of two programs."""

from collections.abc import Mapping
from typing import Any

import attrs

from mtfc.compiler.ir.core import Function, Program, Value


def same_program(a: Program, b: Program, locations: bool = True) -> bool:
    """Return True if two programs have the same structure. Values match if they are defined at the same place."""
    return _same(a, b, {}, locations)


def _same(a: Any, b: Any, values: dict[int, object], locations: bool) -> bool:
    """Compare two pieces of IR; `values` maps the values of the first program seen so far to those of the second."""
    if isinstance(a, Mapping) and isinstance(b, Mapping):
        return a.keys() == b.keys() and all(_same(a[key], b[key], values, locations) for key in a)
    if type(a) is not type(b):
        return False
    if isinstance(a, Value) and values.setdefault(id(a), b) is not b:
        return False
    if isinstance(a, tuple):
        return len(a) == len(b) and all(_same(x, y, values, locations) for x, y in zip(a, b, strict=True))
    if attrs.has(type(a)):
        return _same_fields(a, b, {} if isinstance(a, Function) else values, locations)
    return repr(a) == repr(b)


def _same_fields(a: Any, b: Any, values: dict[int, object], locations: bool) -> bool:
    names = [field.name for field in attrs.fields(type(a))]
    pairs = ((_field(a, name), _field(b, name)) for name in names if locations or name != "span")
    return all(_same(x, y, values, locations) for x, y in pairs)


def _field(node: Any, name: str) -> Any:
    """Return the value of a field; a layout loses the dims that it does not split."""
    value = getattr(node, name)
    if name == "layout" and isinstance(value, Mapping):
        return {dim: axes for dim, axes in value.items() if axes}
    return value
