"""The predicted time of a step on a machine, under a layout or a placement, for `mtfc simulate`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import attrs

from mtfc.compiler.activity import doing
from mtfc.compiler.cost.device_graph import MOST_PLACED, DeviceGraph, Machine
from mtfc.compiler.cost.hardware import Hardware
from mtfc.compiler.cost.step_time import IN, step_time
from mtfc.compiler.cost.volumes import layout_cost
from mtfc.compiler.diagnostics import Diagnostics
from mtfc.compiler.ir.core import Program
from mtfc.compiler.ir.types import Mesh
from mtfc.compiler.passes.pipelines import run, simplification
from mtfc.driver.errors import UsageError, say
from mtfc.driver.loading.cases import MultiMeshCase, PlacementCase
from mtfc.driver.loading.choice import Choice
from mtfc.driver.loading.selection import Case, LayoutOnMesh, select
from mtfc.driver.loading.sources import Sources
from mtfc.driver.loading.target import check_room, machine_of, target_of
from mtfc.driver.searching.compilation_time import timing_compilation
from mtfc.frontend.hardware_targets import find_machine, raise_no_room
from mtfc.frontend.semantics.names.standard_library import library_machines
from mtfc.meshes.multi_mesh_step import multi_mesh_step
from mtfc.reports.meshes_report import SimulatedMeshes
from mtfc.reports.step_report import SimulatedLayout, SimulatedStep

if TYPE_CHECKING:
    from mtfc.placements.declarations import DeclaredPlacement
    from mtfc.placements.placed_step_report import SimulatedPlacement
    from mtfc.placements.running.jax.part_times import MeasuredTimes


def simulate(
    file: str,
    choice: Choice,
    target: str,
    sources: Sources,
    place: str | None = None,
    measured: bool = False,
    servers: int = 0,
) -> SimulatedStep[Any, Any]:
    """Simulate a step under the chosen layout or placement. Raises `CompileError` and `UsageError`.

    place: the mesh axes from the innermost link outwards, with commas between them. measured: see `simulate_placement`. servers:
    the number of parameter servers in place of the all-reduces of gradients.
    """
    selection = select(file, choice, sources, or_placement=True, or_multi_mesh=True)
    case = selection.case
    if not isinstance(case, LayoutOnMesh):
        _check_options(case, place, measured, servers)
        return simulate_case(case, selection.program, selection.hardware, target, sources, measured)
    hardware = target_of(target, selection.hardware, sources)
    if measured:
        raise UsageError("--measured is for the operators of a placement: --layout names one")
    check_room(hardware, case.mesh, target)
    if servers:
        case = _for_servers(case)
    lowered = case.on(hardware).lower(selection.program)
    found = simulate_layout(lowered, hardware, _order(place, case.mesh), servers)
    limit = case.limit.memory if choice.memory and case.limit is not None else None
    return attrs.evolve(found, room=min(found.room, limit)) if isinstance(limit, int) else found


def _check_options(
    case: PlacementCase | MultiMeshCase, place: str | None, measured: bool, servers: int
) -> None:
    """Raise `UsageError` for options that a placement or a layout of several meshes does not take."""
    if isinstance(case, MultiMeshCase):
        case.refuse({"--parameter-servers": servers, "--place": place, "--measured": measured})
    elif servers:
        raise UsageError(f"`{case.name}` is a placement: --parameter-servers takes a layout")
    else:
        case.refuse({"--place": place}, ", which says where everything is")


def simulate_case(
    case: Case,
    program: Program,
    machines: Mapping[str, Machine],
    target: str,
    sources: Sources,
    measured: bool = False,
) -> SimulatedStep[Any, Any]:
    """Simulate a step of a global program under a layout or a placement. machines: those of the file.

    Raises `CompileError` if devices are missing (E316).
    """
    if isinstance(case, PlacementCase):
        machine = machine_of(target, machines, sources)
        return simulate_placement(case.placement, program, machine, target, measured)
    hardware = target_of(target, machines, sources)
    if isinstance(case, LayoutOnMesh):
        return simulate_program(case.lower(program), hardware, target)
    check_room(hardware, case.mesh, target, "the meshes have")
    return SimulatedMeshes.of(multi_mesh_step(case.program(program), hardware), hardware)


def _for_servers(case: LayoutOnMesh) -> LayoutOnMesh:
    """Return a layout whose program sums the gradients of all layers after the backward pass, where servers take them."""
    forms = attrs.evolve(case.layout.forms, sums="after")
    return attrs.evolve(case, layout=attrs.evolve(case.layout, forms=forms))


def simulate_program(program: Program, hardware: Hardware, target: str) -> SimulatedLayout:
    """Simulate a step of the program of one processor. Raises `CompileError` if the mesh does not fit on the machine (E316)."""
    check_room(hardware, program.placed_on, target)
    return simulate_layout(program, hardware)


def simulate_layout(
    program: Program, hardware: Hardware, order: tuple[str, ...] = (), servers: int = 0
) -> SimulatedLayout:
    """Simulate a step of the program of one processor. order: the mesh axes from the innermost link outwards.

    servers: see `simulate`. Raises `UsageError` if there are servers and they have nothing to do.
    """
    cost = layout_cost(program, device=hardware.device)
    function = program.function("step" if cost.trains else "forward")
    with doing("simulating the step"):
        step = step_time(function, cost.mesh, hardware, order, servers)
    if servers and IN not in step.busy:
        raise UsageError(
            "--parameter-servers: this layout does not sum gradients over devices before the update"
        )
    return SimulatedLayout.of(cost, step, hardware, servers)


def _order(text: str | None, mesh: Mesh) -> tuple[str, ...]:
    """Return the axes of `--place`. Raises `UsageError` unless these are all axes of the mesh."""
    if text is None:
        return ()
    axes = tuple(axis.strip() for axis in text.split(","))
    if sorted(axes) != sorted(mesh.names):
        raise UsageError(f"--place takes the axes of the mesh, each once: {','.join(mesh.names[::-1])}")
    return axes


def simulate_placement(
    placement: DeclaredPlacement, program: Program, hardware: Machine, target: str, measured: bool = False
) -> SimulatedPlacement:
    """Simulate a step under a placement, even if memory does not suffice. measured: take the times that `calibrate` has measured.

    Raises `CompileError` if operators differ from those of the placement (E317, E319) or devices are missing (E316).
    """
    from mtfc.placements.declarations import strategy_of
    from mtfc.placements.placed_step_report import SimulatedPlacement
    from mtfc.placements.placement_search import placement_space

    _check_devices(placement, hardware, target)
    simplified = run(program, simplification())
    most = max((len(each.devices) for each in placement.operators), default=1)
    times = _measured_times(hardware, placement.devices) if measured else None
    with doing(f"simulating placement {placement.name}"):
        space, _ = timing_compilation(
            lambda: placement_space(simplified, hardware, placement.devices, most, times, is_limited=False)
        )
        found = space.evaluator.full(strategy_of(placement, space.graph, Diagnostics()))
    if times is not None:
        _check_measured(times)
    return SimulatedPlacement.of(program.name, placement.name, hardware, space, found)


def _measured_times(machine: Machine, devices: int) -> MeasuredTimes:
    """Return the times that `mtfc calibrate` measured here. Raises `UsageError` for a device graph."""
    from mtfc.driver.calibrate import read_times

    if isinstance(machine, DeviceGraph):
        raise UsageError(f"--measured takes times of equal devices, and those of {machine.name} have kinds")
    return read_times(devices)


def _check_measured(times: MeasuredTimes) -> None:
    """Say how many parts have no measured time. Raises `UsageError` if none has."""
    if not times.found:
        raise UsageError("no part of this model has a measured time: mtfc calibrate --operators FILE")
    if times.missing:
        say(
            f"{times.missing} of {times.missing + times.found} parts are not measured, and take the time of the roofline"
        )


def _check_devices(placement: DeclaredPlacement, hardware: Machine, target: str) -> None:
    """Raise `CompileError` (E316) if the hardware has fewer devices than the placement."""
    has = hardware.devices
    if placement.devices > MOST_PLACED:
        message = f"placement `{placement.name}` is on {placement.devices:,} devices"
        raise_no_room(target, message, f"placements are simulated on {MOST_PLACED:,} devices at most")
    if has is not None and placement.devices > has:
        room = f"`{hardware.name}` has {has} device{'s'[: has - 1]}"
        message = f"placement `{placement.name}` is on {placement.devices} devices, and {room}"
        raise_no_room(target, message, "choose larger hardware, or search for a placement on fewer devices")


def machines(file: str | None, choice: Choice, sources: Sources) -> dict[str, Machine]:
    """Return the machines that a target can name: those of the file, if any, and those of the library."""
    declared = {} if file is None else select(file, choice, sources, or_placement=True).hardware
    return {name: find_machine(name, declared) for name in dict.fromkeys((*declared, *library_machines()))}
