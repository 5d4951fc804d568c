"""Options as Python values, and the text that the command takes in their place.

A layout is a mapping from dimensions to axes, a mesh one from axes to sizes, as the declarations of the language are. Both become
the text of such a declaration, so that there is one parser, and errors can point into the text.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Iterable, Mapping, Sequence
from math import inf
from numbers import Real

from mtfc.driver.errors import UsageError

Axes = str | Sequence[str]
"""A mesh axis, or several with the most major one first."""

LayoutOption = str | Mapping[str, Axes | Mapping[str, Axes]]
"""The name of a layout, rules as text, or as `{"batch": "rows", "params": {"hidden": ("rows", "cols")}}`."""

MeshOption = str | Mapping[str, int]
"""The name of a mesh, its shape as text, or as `{"rows": 2, "cols": 4}`."""

NAME = re.compile(r"[A-Za-z_]\w*")
KEY = re.compile(r"(value\s+)?[A-Za-z_]\w*(\.\w+)*|\*")

RULE = "a rule is a dimension and its axes, such as {'batch': 'rows'} or {'batch': ('rows', 'cols')}"
SECTION = "only params, optimizer and value have rules of their own, such as {'params': {'hidden': 'rows'}}"


def layout_option(layout: LayoutOption | None) -> str | None:
    """Return the text of a layout. Raises `UsageError` for an illegal value."""
    if layout is None or isinstance(layout, str):
        return layout
    if not isinstance(layout, Mapping):
        raise UsageError(f"layout={layout!r} is neither text nor a mapping: {RULE}")
    return _rules(layout, has_sections=True)


def mesh_option(mesh: MeshOption | None) -> str | None:
    """Return the text of a mesh. Raises `UsageError` for an illegal value."""
    if mesh is None or isinstance(mesh, str):
        return mesh
    if not isinstance(mesh, Mapping):
        raise UsageError(f"mesh={mesh!r} is neither text nor a mapping such as {{'rows': 2, 'cols': 4}}")
    if not mesh:
        raise UsageError("mesh={} has no axes: a mesh has at least one, such as {'all': 1}")
    axes = (
        f"{_name(axis, 'mesh')}: {_size(size, f'axis {axis!r} of the mesh')}" for axis, size in mesh.items()
    )
    return f"[{', '.join(axes)}]"


def sizes_option(dims: Mapping[str, int] | None) -> dict[str, int]:
    """Return sizes of dimensions by name. Raises `UsageError` for a size that is not a whole number."""
    if not isinstance(dims, Mapping | None):
        raise UsageError(f"dims={dims!r} is no mapping such as {{'batch': 64}}")
    return {str(name): _size(size, f"dims[{name!r}]") for name, size in (dims or {}).items()}


def number_option(option: str, value: int | None, least: int, most: int) -> None:
    """Raise `UsageError` unless an option that is given is a whole number from `least` to `most`."""
    if value is not None and not least <= _size(value, option) <= most:
        raise UsageError(f"{option}={value!r} is not from {least} to {most:,}")


def seconds_option(option: str, value: float) -> None:
    """Raise `UsageError` unless an option is a number of seconds above 0."""
    if not isinstance(value, Real) or not 0 < value < inf:
        raise UsageError(f"{option}={value!r} is no number of seconds above 0")


def one_of(option: str, value: str, known: Iterable[str]) -> None:
    """Raise `UsageError` for an unknown word of an option, which the command's parser reports itself."""
    if value not in known:
        raise UsageError(f"{option}={value!r} is none of: {', '.join(known)}")


def _rules(rules: Mapping[str, Axes | Mapping[str, Axes]], has_sections: bool) -> str:
    return f"{{ {', '.join(_entry(key, value, has_sections) for key, value in rules.items())} }}"


def _entry(key: object, value: object, has_sections: bool) -> str:
    if not isinstance(key, str) or not KEY.fullmatch(key.strip()):
        raise UsageError(f"layout has the key {key!r}, which is no name: {RULE}")
    if isinstance(value, Mapping):
        if not has_sections:
            raise UsageError(f"layout has rules within rules for {key!r}: {SECTION}")
        return f"{key.strip()}: {_rules(value, has_sections=False)}"
    if isinstance(value, str):
        return f"{key.strip()}: {_name(value, 'layout')}"
    if not isinstance(value, Iterable):
        raise UsageError(f"layout splits {key!r} over {value!r}: {RULE}")
    return f"{key.strip()}: ({', '.join(_name(axis, 'layout') for axis in value)})"


def _name(axis: object, option: str) -> str:
    if not isinstance(axis, str) or not NAME.fullmatch(axis):
        raise UsageError(f"{option} has {axis!r} where the name of a mesh axis is expected")
    return axis


def _size(size: object, what: str) -> int:
    try:
        return operator.index(size)  # type: ignore[arg-type]
    except TypeError:
        raise UsageError(f"{what} is {size!r}, which is no whole number") from None
