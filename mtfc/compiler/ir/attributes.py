"""Attributes of ops: their names and kinds, which the record of each op states.

A kind says which Python values an attribute may have, and when two values mean the same. The verifier and the parser of IR text
ask for the first, `cse` for the second. The record's objects are also the typed way to read an attribute:

    OVER = Attribute("over", DIM_SET)
    OVER.of(eqn.attrs)              # tuple[Dim, ...]

A kind knows nothing about operands. An op's type rule refuses values that do not fit the operands.
"""

import math
from collections.abc import Callable, Hashable, Mapping
from typing import Any, Generic, TypeVar, cast

from mtfc.compiler.ir.core import Attr
from mtfc.compiler.ir.numbers import SIGNIFICANDS
from mtfc.compiler.ir.twins import TwinFloat, TwinInt, on_twins, plain
from mtfc.compiler.ir.types import FLOATS, ITEM_BYTES, Axes, Dim
from mtfc.compiler.records import frozen

T = TypeVar("T")

Number = int | float | bool

INTEGER_RANGE: Mapping[str, range] = {
    **{f"i{bits}": range(-(2 ** (bits - 1)), 2 ** (bits - 1)) for bits in (8, 16, 32, 64)},
    **{f"u{bits}": range(2**bits) for bits in (8, 16, 32, 64)},
}

OVERFLOW: Mapping[str, int] = {
    dtype: 2**most - 2 ** (most - bits - 1) for dtype, (bits, _, most) in SIGNIFICANDS.items()
}
"""Float dtype -> the smallest number that rounds to infinity."""


@frozen
class Kind(Generic[T]):
    """The values that an attribute may have.

    text: its name in messages. accepts: says if a Python value is of the kind. meaning: value -> a key that is equal for values
    with the same meaning.
    """

    text: str
    accepts: Callable[[object], bool]
    meaning: Callable[[T], Hashable] = lambda value: value


@frozen
class Attribute(Generic[T]):
    """One attribute of an op. An optional one may be missing."""

    name: str
    kind: Kind[T]
    optional: bool = False

    def of(self, attributes: Mapping[str, Attr]) -> T:
        """Return the attribute's value, which the verifier has checked."""
        return cast("T", attributes[self.name])


Stated = tuple[Attribute[Any], ...]
"""The attributes of one op."""


def is_integer(value: object) -> bool:
    """Return True for an integer that is no truth value."""
    return type(value) in (int, TwinInt)


def is_number(value: object) -> bool:
    """Return True for an integer or a float that is no truth value."""
    return type(value) in (int, float, TwinInt, TwinFloat)


def _is_int(value: object) -> bool:
    """Leave out -2**31, so that minus the number is one, too."""
    return is_integer(value) and abs(cast("int", value)) < 2**31


def _is_text(value: object) -> bool:
    """Accept text that generated code can hold between quotes as it is."""
    return isinstance(value, str) and value.isprintable() and not {'"', "\\"} & set(value)


def _is_dim(value: object) -> bool:
    """Accept a dimension with a name and a positive size."""
    return (
        isinstance(value, Dim) and isinstance(value.name, str) and is_integer(value.size) and value.size > 0
    )


def _are_dims(value: object) -> bool:
    return isinstance(value, tuple) and all(map(_is_dim, value))


def _are_different(names: list[str]) -> bool:
    return len(set(names)) == len(names)


def _are_different_dims(value: object) -> bool:
    return _are_dims(value) and _are_different([dim.name for dim in cast("tuple[Dim, ...]", value)])


def _are_axes(value: object) -> bool:
    """Accept a tuple of different names of axes that is not empty."""
    if not isinstance(value, tuple) or not value or not all(isinstance(axis, str) for axis in value):
        return False
    return _are_different(list(value))


def _is_mapping(value: object) -> bool:
    """Accept pairs of dimensions. A rename may map each dimension once."""
    if not isinstance(value, tuple) or not all(_are_dims(pair) and len(pair) == 2 for pair in value):
        return False
    return _are_different([old.name for old, _ in value])


FLAG: Kind[bool] = Kind("true or false", lambda value: type(value) is bool)
INT: Kind[int] = Kind("a whole number of 32 bits", _is_int)
REAL: Kind[float] = Kind("a number", is_number, repr)
NUMBER: Kind[Number] = Kind(  # `repr` tells 0.0 from -0.0 and False
    "a number or a truth value", lambda value: is_number(value) or type(value) is bool, repr
)
TEXT: Kind[str] = Kind("printable text without quotes", _is_text)
DTYPE: Kind[str] = Kind("a dtype", lambda value: isinstance(value, str) and value in ITEM_BYTES)
DIM: Kind[Dim] = Kind("a dimension", _is_dim)
DIM_LIST: Kind[tuple[Dim, ...]] = Kind("a tuple of dimensions", _are_dims)
DIMS: Kind[tuple[Dim, ...]] = Kind("a tuple of different dimensions", _are_different_dims)
DIM_SET: Kind[tuple[Dim, ...]] = Kind("a set of dimensions, as a tuple", _are_different_dims, frozenset)
AXES: Kind[Axes] = Kind("a tuple of different mesh axes", _are_axes)
AXIS_SET: Kind[Axes] = Kind("a set of mesh axes, as a tuple", _are_axes, frozenset)
MAPPING: Kind[tuple[tuple[Dim, Dim], ...]] = Kind(
    "a set of pairs of dimensions, as a tuple, each dimension mapped once", _is_mapping, frozenset
)


def kinds_error(attributes: Mapping[str, object], stated: Stated) -> str | None:
    """Return the first attribute that is missing, unknown or of another kind than stated, as a message; or None.

    A constant, `value`, must fit into the `dtype` beside it.
    """
    for attribute in stated:
        name, kind = attribute.name, attribute.kind
        if name not in attributes:
            if attribute.optional:
                continue
            return f"attribute {name} is missing: {kind.text}"
        if not kind.accepts(attributes[name]):
            return f"attribute {name} is {shown(attributes[name])}, and must be {kind.text}"
    unknown = attributes.keys() - {attribute.name for attribute in stated}
    if unknown:
        known = ", ".join(attribute.name for attribute in stated) or "none"
        return f"unknown attribute {min(map(str, unknown))}; the attributes are: {known}"
    if {"value", "dtype"} <= attributes.keys():
        return value_error(cast("Number", attributes["value"]), cast("str", attributes["dtype"]))
    return None


def meaning(attributes: Mapping[str, Attr], stated: Stated) -> tuple[Hashable, ...]:
    """Return a key that is equal for attributes with the same meaning."""

    def key(attribute: Attribute[Any]) -> Hashable:
        return attribute.kind.meaning(attribute.of(attributes)) if attribute.name in attributes else None

    return tuple([key(attribute) for attribute in stated])


def shown(value: object) -> str:
    """Return a value for messages, cut where it is long."""
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


def value_error(value: Number, dtype: str) -> str | None:
    """Return why a number or truth value is no element of a dtype, or None. Floats are rounded, but not to infinity."""
    if (type(value) is bool) != (dtype == "bool"):
        return f"{shown(value)} is not a value of {dtype}"
    if dtype in FLOATS:
        if not isinstance(value, bool) and abs(plain(value)) < math.inf and abs(value) >= OVERFLOW[dtype]:
            return f"{shown(value)} is too large for {dtype}"
        wide = is_integer(value) and plain(value) not in INTEGER_RANGE["i32"]
        return f"{shown(value)} has more than 32 bits: write it as a float" if wide else None
    if dtype == "bool":
        return None
    if dtype not in INTEGER_RANGE:
        return f"{dtype} has no constants"
    fits = is_integer(value) and plain(value) in INTEGER_RANGE[dtype]
    return None if fits else f"{shown(value)} is not a value of {dtype}"


@on_twins(lambda value, dtype: value)
def fitted(value: Number, dtype: str) -> Number:
    """Return a number as a constant of a float dtype: too large numbers become infinite, as in a cast. Keep other values."""
    if dtype not in FLOATS or isinstance(value, bool):
        return value
    if value == value and abs(value) >= OVERFLOW[dtype]:
        return math.inf if value > 0 else -math.inf
    return value if isinstance(value, float) or plain(value) in INTEGER_RANGE["i32"] else float(value)
