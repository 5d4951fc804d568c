"""The common form of searched spaces: global layouts, layouts for each equation, and placements."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Protocol

import attrs

from mtfc.compiler.ir.types import Mesh
from mtfc.compiler.search.found import Progress
from mtfc.driver.loading.selection import Selection
from mtfc.driver.loading.sources import Sources
from mtfc.driver.options import SearchOptions

if TYPE_CHECKING:
    from mtfc.compiler.cost.device_graph import Machine
    from mtfc.compiler.cost.hardware import Hardware


class WhyNotAnswer(Protocol):
    """The answer to `--why-not`: the difference between the best of a space, and the best with the rules that were given."""

    @property
    def files(self) -> set[str]:
        """The files whose lines the report shows."""
        ...

    def record(self) -> dict[str, Any]:
        """Return the JSON record."""
        ...

    def report(self, texts: Mapping[str, str]) -> str:
        """Return the report; `texts` holds each file's text by name."""
        ...


class SearchAnswer(Protocol):
    """The best of a space that a search found."""

    def record(self) -> dict[str, Any]:
        """Return the JSON record."""
        ...

    def report(self) -> str:
        """Return the report."""
        ...

    def written(self) -> str:
        """Return the text of the file with the result as a declaration."""
        ...

    def exported(self) -> str:
        """Return the question to the solver about the mesh of the result, for `mtfc solve`."""
        ...

    def why_not(self) -> WhyNotAnswer | None:
        """Search for the best with the rules of `--why-not`, if any were given. Raises the errors of a search."""
        ...


@attrs.frozen
class SearchTask:
    """The request of a search: the selected program, the machine, the candidate meshes and the deadline.

    started, until: times of `time.monotonic`.
    """

    options: SearchOptions
    selection: Selection
    machine: Machine
    meshes: tuple[Mesh, ...]
    sources: Sources
    started: float
    until: float
    progress: Progress

    @property
    def hardware(self) -> Hardware:
        """The machine of a search for layouts, which has equal devices."""
        from mtfc.compiler.cost.hardware import Hardware

        assert isinstance(self.machine, Hardware)
        return self.machine


@attrs.frozen
class SearchedSpace:
    """A space, and the function that searches it.

    objectives: the quantities that a search of the space can minimize, the default first. takes: the options that no other space
    takes. has_meshes: False if a result has devices without a mesh. has_cuts: True if the mesh has an axis for each prime factor.
    is_declared: True if the meshes are those of a declared layout.
    """

    name: str
    summary: str
    search: Callable[[SearchTask], SearchAnswer]
    objectives: tuple[str, ...]
    takes: frozenset[str] = frozenset()
    has_meshes: bool = True
    has_cuts: bool = False
    is_declared: bool = False

    @property
    def has_one_layout(self) -> bool:
        """True if the rules of one layout stay."""
        return "layout" in self.takes
