"""Options of a search, with the defaults of `mtfc search` and of `mtfc.search`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import attrs


@attrs.frozen
class SearchOptions:
    """The options of a search from Python; options about printing and writing keep their defaults.

    budget: seconds. axes: the most axes of a mesh. None leaves a choice to the file or to the machine.
    """

    file: str
    target: str | None = None
    devices: int | None = None
    mesh: str | None = None
    axes: int | None = None
    model: str | None = None
    dims: Mapping[str, int] = attrs.field(factory=dict)
    settings: Sequence[str] = attrs.field(factory=list)
    axes_names: Sequence[str] | None = None
    space: str = "rules"
    storage: bool = False
    objective: str = "time"
    budget: float = 60.0
    exhaustive: bool = False
    why_not: str | None = None
    output: str | None = None
    export: str | None = None
    format: str = "text"
