"""The common form of searched spaces: global layouts, layouts for each equation, and placements."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib import import_module
from time import monotonic, process_time
from typing import TYPE_CHECKING, Any, Protocol

import attrs

from mtfc.compiler.ir.types import Mesh
from mtfc.compiler.search.found import Plan
from mtfc.driver.loading.selection import Selection
from mtfc.driver.loading.sources import Sources, known_as
from mtfc.driver.options import SearchOptions
from mtfc.driver.searching.written import accumulated, resized

if TYPE_CHECKING:
    from mtfc.compiler.cost.device_graph import Machine
    from mtfc.compiler.cost.hardware import Hardware
    from mtfc.reports.why_not_report import WhyNot


GRACE = 0.1
"""The part of its time by which a search that has found nothing may be late."""


class SearchResult(Protocol):
    """The best of a space, or the prices of `--what-if`, as text and as JSON."""

    def record(self) -> Any:
        """Return the JSON record."""
        ...

    def report(self) -> str:
        """Return the report."""
        ...


def on_clock(until: float) -> float:
    """Return the time of `monotonic` for a time of `process_time`, for solvers that have processes of their own."""
    return monotonic() + until - process_time()


def unasked() -> None:
    """Answer no `--why-not` and no `--what-if`."""


@attrs.frozen
class SearchAnswer:
    """The result of a search, and what follows from it.

    written: returns the text of the file with the result as a declaration. why_not: searches for the best with the rules of
    `--why-not`, if any were given; it raises the errors of a search. exported: returns the question to the solver about the mesh
    of the result, for `mtfc solve`; None if the solver is not asked. prices: searches again for `--what-if`.
    """

    result: SearchResult
    written: Callable[[], str]
    why_not: Callable[[], WhyNot | None] = unasked
    exported: Callable[[], str] | None = None
    prices: Callable[[], SearchResult | None] = unasked


@attrs.frozen
class Freedom:
    """The parts of a plan that a search chooses; all others are those of the file, or are left out.

    rules: the mesh, and the rules of dimensions. storage: where parameters and the optimizer's state are stored. recompute: what
    the backward pass computes again. unstaged: False if each plan has a pipeline. micro_batches: their number.
    """

    rules: bool = True
    storage: bool = True
    recompute: bool = True
    pipelines: bool = True
    unstaged: bool = True
    micro_batches: bool = True


RULES = Freedom(storage=False, recompute=False, pipelines=False, micro_batches=False)


@attrs.frozen
class SearchTask:
    """The request of a search: the space, the selected program, the machine, the candidate meshes and the deadline.

    started, until: times of `process_time`. accumulate: the number of micro-batches, if it is not that of the file. start: a plan
    that is priced first, and has no place in tables.
    """

    options: SearchOptions
    space: SearchedSpace
    selection: Selection
    machine: Machine
    meshes: tuple[Mesh, ...]
    sources: Sources
    started: float
    until: float
    accumulate: int | None = None
    start: Plan | None = None

    @property
    def late(self) -> float:
        """The time until which a search goes on that has found nothing that fits."""
        return self.until + GRACE * self.options.budget

    @property
    def hardware(self) -> Hardware:
        """The machine of a search for layouts, which has equal devices."""
        from mtfc.compiler.cost.hardware import Hardware

        assert isinstance(self.machine, Hardware)
        return self.machine

    def resized(self, dims: Mapping[str, int], accumulate: int | None = None) -> SearchTask:
        """Return the same search at other sizes, and with another number of micro-batches. Raises `CompileError`."""
        from mtfc.driver.loading.selection import select

        choice, settings = self.options.choice, self.options.choice.settings
        if accumulate is not None:
            own = (each for each in settings if not each.startswith("accumulate"))
            settings = (*own, f"accumulate={accumulate}")
        choice = attrs.evolve(choice, dims={**choice.dims, **dims}, settings=settings)
        selection = select(self.options.file, choice, self.sources, every_layout=True, skip_illegal=True)
        options = attrs.evolve(self.options, choice=choice)
        return attrs.evolve(
            self, options=options, selection=selection, accumulate=accumulate or self.accumulate
        )

    @property
    def text(self) -> str:
        """The text of the file with the sizes of `--dim`, and the number of micro-batches of the search."""
        text = resized(self.sources.texts[known_as(self.options.file)], self.options.choice.dims)
        return (
            text
            if self.accumulate is None
            else accumulated(text, self.selection.program.name, self.accumulate)
        )


@attrs.frozen
class SearchedSpace:
    """A space, and the function of a module of this folder that searches it, as `MODULE.FUNCTION`.

    objectives: the quantities that a search of the space can minimize, the default first. takes: the options that no other space
    takes. has_meshes: False if a result has devices without a mesh. has_cuts: True if the mesh has an axis for each prime factor.
    is_declared: True if the meshes are those of a declared layout. freedom: the parts of a plan that a search chooses.
    no_function, no_rules: reasons why the space takes no function of JAX, and no `--why-not`.
    """

    name: str
    summary: str
    function: str = "plan.search_plan"
    objectives: tuple[str, ...] = ("time", "serial", "memory")
    takes: frozenset[str] = frozenset()
    has_meshes: bool = True
    has_cuts: bool = False
    is_declared: bool = False
    freedom: Freedom = RULES
    no_function: str = ""
    no_rules: str = ""

    def search(self, task: SearchTask) -> SearchAnswer:
        """Search the space, whose module is imported now. Raises `NothingFits`, `CompileError` and `UsageError`."""
        module, _, name = self.function.partition(".")
        search: Callable[[SearchTask], SearchAnswer] = getattr(
            import_module(f"mtfc.driver.searching.{module}"), name
        )
        return search(task)

    @property
    def has_one_layout(self) -> bool:
        """True if the rules of one layout stay."""
        return not self.freedom.rules
