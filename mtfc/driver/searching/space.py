"""The space of a search: its candidate meshes, and the form that all spaces share.

The candidate meshes of a search: the given mesh or all shapes, and the names of their axes.

The common form of searched spaces: global layouts, layouts for each equation, and placements.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from importlib import import_module
from math import isqrt
from time import monotonic, process_time
from typing import TYPE_CHECKING, Any, Protocol

import attrs

from mtfc.compiler.cost.hardware import MOST_PLACED, DeviceGraph, Machine
from mtfc.compiler.cost.topology import Topology
from mtfc.compiler.ir.types import Layout, Mesh, Rules
from mtfc.compiler.search.found import Plan
from mtfc.compiler.search.global_layouts.layout_space import AXES
from mtfc.driver.errors import UsageError
from mtfc.driver.loading.selection import Selection, with_rules
from mtfc.driver.loading.sources import Sources, known_as
from mtfc.driver.loading.target import check_room
from mtfc.driver.options import SearchOptions
from mtfc.driver.searching.written import accumulated, resized
from mtfc.frontend.syntax.lexer import RESERVED

if TYPE_CHECKING:
    from mtfc.compiler.cost.hardware import Hardware
    from mtfc.reports.why_not_report import WhyNot


MOST_DEVICES = 1_000_000

MOST_AXES = 3
"""Most axes of a mesh, without `--axes` and `--axes-names`."""


def meshes(devices: int, most_axes: int, names: Sequence[str] = AXES) -> Iterator[Mesh]:
    """Yield all shapes of `devices` processors with up to `most_axes` axes, in all orders of sizes: the innermost axis matters.

    Axes have the first of the `names`.
    """
    for number in range(1, most_axes + 1):
        for sizes in _factors(devices, number):
            yield Mesh("found_mesh", tuple(zip(names, sizes, strict=False)))


def _factors(product: int, number: int) -> Iterator[tuple[int, ...]]:
    """Yield ordered factorizations. One processor has a single mesh, with one axis of size one."""
    if number == 1:
        yield (product,)
        return
    for first in _divisors(product):
        yield from ((first, *rest) for rest in _factors(product // first, number - 1))


def _divisors(number: int) -> list[int]:
    """Return the divisors but for 1 and the number itself, in ascending order."""
    small = [each for each in range(2, isqrt(number) + 1) if number % each == 0]
    return sorted({*small, *(number // each for each in small)})


def check_mesh_options(options: SearchOptions, space: SearchedSpace) -> None:
    """Raise `UsageError` for too many axes or devices, or for wrong names of axes."""
    if (options.axes or 0) > len(AXES) or (options.devices or 0) > MOST_DEVICES:
        raise UsageError(f"at most {len(AXES)} --axes and {MOST_DEVICES:,} --devices are searched")
    if options.axes_names is not None:
        given = f"--axes-names {','.join(options.axes_names)}"
        for fault in _faults_of_names(tuple(options.axes_names), options, space):
            raise UsageError(f"{given}{fault}")


def _faults_of_names(names: tuple[str, ...], options: SearchOptions, space: SearchedSpace) -> Iterator[str]:
    """Yield what is wrong with the names of axes, the worst first."""
    if not space.has_meshes:
        yield f": the space `{space.name}` has placements, and no mesh whose axes have names"
    if options.choice.mesh is not None:
        yield f": --mesh {options.choice.mesh} gives its axes names; leave one of the options out"
    for name in names:
        if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", name) or name in RESERVED:
            yield f": `{name}` cannot name a mesh axis, for example --axes-names data,model"
    yield from (f": `{name}` occurs twice" for name in names if names.count(name) > 1)
    if len(names) > len(AXES):
        yield f": at most {len(AXES)} axes are searched"
    if options.axes not in (None, len(names)):
        yield f" has {_count(len(names), 'name')} for {_count(options.axes, 'axis', 'axes')}"


def _count(number: int, one: str, several: str | None = None) -> str:
    return f"{number} {one if number == 1 else several or f'{one}s'}"


def declared_mesh(options: SearchOptions, space: SearchedSpace, selection: Selection) -> Mesh:
    """Return the mesh of the layout that is searched, or the devices of all its meshes.

    Raises `UsageError` for options about meshes, and without such a layout.
    """
    given = {
        "--devices": options.devices,
        "--mesh": None if space.has_one_layout else options.choice.mesh,
        "--axes": options.axes,
        "--axes-names": options.axes_names,
        "--why-not": options.why_not,
    }
    of = "mesh" if space.has_one_layout else "meshes"
    for name in (name for name, value in given.items() if value is not None):
        raise UsageError(f"`--space {space.name}` takes the {of} of a declared layout: no {name}")
    if space.has_one_layout:
        return selection.cases[0].mesh
    if not selection.multi_mesh:
        raise UsageError(
            "`--space meshes` takes a file with a layout of several meshes, such as `part embed on front: {}`"
        )
    return selection.multi_mesh[0].mesh


def searched_meshes(
    options: SearchOptions, space: SearchedSpace, selection: Selection, hardware: Machine
) -> tuple[Mesh, ...]:
    """Return the mesh of `--mesh`, or all shapes for `--devices` or for all devices of the machine. Raises `UsageError`."""
    if isinstance(hardware, DeviceGraph):
        return (_all_devices(options, hardware),)
    if options.choice.mesh is not None:
        found: tuple[Mesh, ...] = (selection.cases[0].mesh,)
        _check_given(options, space, found[0])
    else:
        devices = options.devices or hardware.devices
        if devices is None:
            raise UsageError(
                f"{hardware.name} has room for any number of devices: say how many with --devices N"
            )
        if devices > MOST_PLACED and not space.has_meshes:
            raise UsageError(f"placements are searched on {MOST_PLACED:,} devices at most: --devices N")
        names = options.axes_names or AXES[: options.axes or MOST_AXES]
        found = (
            (_mesh_of_cuts(devices, options),)
            if space.has_cuts
            else tuple(meshes(devices, len(names), names))
        )
        found = tuple(mesh for mesh in found if Topology.of(mesh, hardware).overfull() is None) or found
    check_room(hardware, found[0], options.target or hardware.name)
    return found


def _all_devices(options: SearchOptions, graph: DeviceGraph) -> Mesh:
    """Return a mesh with the devices of a graph, for placements. Raises `UsageError` for more devices, and for `--mesh`."""
    devices = options.devices or graph.devices
    if options.choice.mesh is not None:
        raise UsageError(f"{graph.name} has {graph.summary}, on which no mesh lies: leave out --mesh")
    if devices > graph.devices:
        raise UsageError(f"{graph.name} has {graph.summary}, and --devices is {devices}")
    if set(graph.servers) >= set(range(devices)):
        raise UsageError(f"the first {devices} of {graph.summary} are parameter servers, which run no parts")
    return Mesh("found_mesh", ((AXES[0], devices),))


def _mesh_of_cuts(devices: int, options: SearchOptions) -> Mesh:
    """Return the mesh with an axis for each prime factor, the largest first. Raises `UsageError` for other numbers of axes."""
    from mtfc.compiler.search.per_equation.k_cuts import prime_factors

    sizes = prime_factors(devices) or [1]
    names = options.axes_names or AXES
    cuts = f"{_count(devices, 'device')} {'is' if devices == 1 else 'are'} {_count(len(sizes), 'cut')}"
    if len(sizes) > len(AXES):
        raise UsageError(f"{cuts}, and at most {len(AXES)} are searched; --mesh takes larger ones")
    if options.axes not in (None, len(sizes)) or len(sizes) > len(names):
        raise UsageError(f"{cuts}, each an axis of the mesh")
    return Mesh("found_mesh", tuple(zip(names, sizes, strict=False)))


def possible_meshes(options: SearchOptions, selection: Selection, meshes: Sequence[Mesh]) -> tuple[Mesh, ...]:
    """Return the meshes that the result may be on: searched meshes, and, without `--axes-names`, meshes of the file's layouts."""
    from mtfc.compiler.search.per_equation.per_equation_search import of_few_axes

    searched = of_few_axes(meshes) if options.space == "tiling" else meshes
    declared = (case.mesh for case in selection.cases if case.mesh.devices == meshes[0].devices)
    return tuple(dict.fromkeys((*searched, *(declared if options.axes_names is None else ()))))


def under_names(known: Iterable[Plan], meshes: Iterable[Mesh]) -> Iterator[Plan]:
    """Yield each layout, with renamed axes, on the mesh of the same shape among `meshes`; leave out layouts of other shapes."""
    by_shape = {tuple(mesh.sizes.values()): mesh for mesh in meshes}
    for own, layout in known:
        mesh = by_shape.get(tuple(own.sizes.values()))
        if mesh is not None:
            yield mesh, _renamed(layout, dict(zip(own.names, mesh.names, strict=True)))


def _renamed(layout: Layout, names: Mapping[str, str]) -> Layout:
    """Return a layout whose axes have other names."""

    def section(rules: Rules) -> Rules:
        return Rules(tuple((dim, tuple(names[axis] for axis in axes)) for dim, axes in rules.axes))

    return with_rules(layout, section)


def _check_given(options: SearchOptions, space: SearchedSpace, mesh: Mesh) -> None:
    """Raise `UsageError` unless the given mesh can be searched and has the number of devices that `--devices` asks for."""
    given = f"--mesh {options.choice.mesh} has"
    if options.devices not in (None, mesh.devices):
        devices = f"{mesh.devices} processors, and --devices is {options.devices}"
        raise UsageError(f"{given} {devices}: leave one out")
    if len(mesh.axes) > len(AXES) and space.has_meshes:
        raise UsageError(f"{given} {len(mesh.axes)} axes; at most {len(AXES)} are searched")


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
