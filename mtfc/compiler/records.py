"""`frozen` and `define` of attrs, with one `__repr__` for all classes.

attrs writes and compiles a `__repr__` for each class while the class is imported. For the two hundred classes of `mtfc check`
this takes a tenth of the time.
"""

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, Self, TypeVar

import attrs

if TYPE_CHECKING:
    from attrs import define as define
    from attrs import frozen as frozen
else:

    def frozen(cls: type | None = None, **options: Any) -> Any:
        """Make an immutable class, as `attrs.frozen` does."""
        return _made(attrs.frozen, cls, options)

    def define(cls: type | None = None, **options: Any) -> Any:
        """Make a class, as `attrs.define` does."""
        return _made(attrs.define, cls, options)


Key = TypeVar("Key")


class Summed:
    """A record of attrs that is added to another one of its class, field by field."""

    __slots__ = ()

    def __add__(self, other: Self) -> Self:
        fields = attrs.fields(type(self))  # type: ignore[arg-type]
        return type(self)(*(getattr(self, each.name) + getattr(other, each.name) for each in fields))


def sums(entries: Iterable[tuple[Key, Any]]) -> dict[Key, Any]:
    """Return the sum of the amounts of each key, in the order in which the keys come."""
    found: dict[Key, Any] = {}
    for key, amount in entries:
        found[key] = found[key] + amount if key in found else amount
    return found


def _made(make: Callable[..., Any], cls: type | None, options: dict[str, Any]) -> Any:
    """Make a class, or a decorator if there is no class yet, by a function of attrs; `_text` writes its records."""
    if cls is None:
        return lambda found: _made(make, found, options)
    if "__repr__" not in vars(cls) and options.get("repr", True):
        cls.__repr__ = _text  # type: ignore[method-assign, assignment]
    return make(cls, **{**options, "repr": False})


def _text(self: Any) -> str:
    """Return the name of the class, and its fields in order, in the form of attrs."""
    fields = (field for field in attrs.fields(type(self)) if field.repr)
    values = ", ".join(f"{field.name}={getattr(self, field.name)!r}" for field in fields)
    return f"{type(self).__qualname__.rpartition('>.')[2]}({values})"
