"""The candidate meshes of a search: the given mesh or all shapes, and the names of their axes."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from math import isqrt

from mtfc.compiler.cost.device_graph import MOST_PLACED, DeviceGraph, Machine
from mtfc.compiler.cost.topology import Topology
from mtfc.compiler.ir.types import Layout, Mesh, Rules
from mtfc.compiler.search.found import Plan
from mtfc.compiler.search.global_layouts.layout_space import AXES
from mtfc.driver.errors import UsageError
from mtfc.driver.loading.selection import Selection, with_rules
from mtfc.driver.loading.target import check_room
from mtfc.driver.options import SearchOptions
from mtfc.driver.searching.space import SearchedSpace
from mtfc.frontend.syntax.lexer import RESERVED

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
    if options.devices not in (None, mesh.devices):
        raise UsageError(
            f"--mesh {options.choice.mesh} has {mesh.devices} processors, and --devices is {options.devices}"
        )
    if len(mesh.axes) > len(AXES) and space.has_meshes:
        raise UsageError(
            f"--mesh {options.choice.mesh} has {len(mesh.axes)} axes; at most {len(AXES)} are searched"
        )
