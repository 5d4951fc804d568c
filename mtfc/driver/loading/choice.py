"""The options that choose the parts of a file, as a Python value."""

from __future__ import annotations

from collections.abc import Mapping

import attrs


@attrs.frozen
class Choice:
    """The chosen parts of a file, and the layouts; None leaves the choice to the file.

    layout: a name, or rules as text. mesh: a name, or a shape as text. settings: entries of the model's `train` block, each
    `KEY=VALUE`.
    """

    model: str | None = None
    layout: str | None = None
    mesh: str | None = None
    dims: Mapping[str, int] = attrs.field(factory=dict)
    settings: tuple[str, ...] = ()


def settings_of(values: Mapping[str, object]) -> tuple[str, ...]:
    """Return entries of a `train` block, given as Python values, in the form of `Choice.settings`."""
    return tuple(f"{key}={_text_of(value)}" for key, value in values.items())


def _text_of(value: object) -> str:
    if isinstance(value, list | tuple):
        return ", ".join(map(_text_of, value))
    return str(value).lower() if isinstance(value, bool) else " ".join(str(value).splitlines())
