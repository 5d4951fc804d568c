"""Predictions: costs of one device, and step times on a machine.

Computation, communication and memory of one device under each layout, the difference of two layouts, and the causes.

The causes of a layout's collectives are its rules; there are also the reasons for separate attention, and the effect of a memory
limit, for `mtfc explain` and plans.

The predicted time of a step on a machine, under a layout or a placement, for `mtfc simulate`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import attrs

from mtfc.compiler.activity import doing, each_of
from mtfc.compiler.analysis.attention_forms import refusals
from mtfc.compiler.analysis.equation_names import names_by_place
from mtfc.compiler.analysis.provenance import SentArray, sent_arrays
from mtfc.compiler.cost.hardware import MOST_PLACED, DeviceGraph, Hardware, Machine
from mtfc.compiler.cost.step_time import IN, step_time
from mtfc.compiler.cost.volumes import PlacedCost, layout_cost
from mtfc.compiler.diagnostics import Diagnostics
from mtfc.compiler.ir.core import Function, Program
from mtfc.compiler.ir.types import Layout, Mesh
from mtfc.compiler.passes.fuse_attention import Reason, reasons
from mtfc.compiler.passes.pipelines import run, simplification
from mtfc.driver.errors import UsageError, say
from mtfc.driver.loading.cases import MultiMeshCase, PlacementCase
from mtfc.driver.loading.choice import Choice
from mtfc.driver.loading.layout_targets import prepared
from mtfc.driver.loading.selection import Case, LayoutOnMesh, select
from mtfc.driver.loading.sources import Sources
from mtfc.driver.loading.target import check_room, machine_of, target_of
from mtfc.driver.searching.compilation_time import timing_compilation
from mtfc.frontend.hardware_targets import find_machine, raise_no_room
from mtfc.frontend.semantics.names.standard_library import library_machines
from mtfc.meshes.multi_mesh_cost import MultiMeshCost, multi_mesh_cost
from mtfc.meshes.multi_mesh_step import multi_mesh_step
from mtfc.reports.cost_report import (
    LayoutFormulas,
    NoKernel,
    Recomputation,
    comparison,
    formula_report,
    formulas,
    formulas_json,
    heading,
    kernels_json,
    kernels_report,
    layout_json,
    layout_report,
    provenance_json,
    provenance_report,
    separate_json,
    separate_report,
)
from mtfc.reports.difference import ComparedLayout, StepDifference, difference_of
from mtfc.reports.step_report import (
    SimulatedLayout,
    SimulatedMeshes,
    SimulatedStep,
    multi_mesh_cost_json,
    multi_mesh_cost_text,
    travels_json,
    travels_text,
)

if TYPE_CHECKING:
    from mtfc.placements.declarations import DeclaredPlacement
    from mtfc.placements.placed_step_report import SimulatedPlacement
    from mtfc.placements.running.jax.part_times import MeasuredTimes


@attrs.frozen(eq=False)
class ModelCosts:
    """The costs of a model under each chosen layout.

    costs: of the layouts of one mesh. limits: the changes that a memory limit makes under each of these. formulas: those of each
    of these, if they are to be shown. multi_mesh: the costs of the layouts of several meshes.
    """

    model: str
    costs: Sequence[PlacedCost]
    limits: Sequence[Recomputation | None]
    formulas: Sequence[LayoutFormulas]
    multi_mesh: Sequence[MultiMeshCost]

    def record(self) -> dict[str, Any]:
        """Return the JSON record; see `docs/command.md`."""
        layouts = [layout_json(each) for each in self.costs]
        for entry, each in zip(layouts, self.formulas, strict=False):
            entry["formulas"] = formulas_json(each)
        for entry, limit in zip(layouts, self.limits, strict=True):
            entry |= {"recomputation": limit.record()} if limit is not None else {}
        return {"model": self.model, "layouts": [*layouts, *map(multi_mesh_cost_json, self.multi_mesh)]}

    def report(self, texts: Mapping[str, str]) -> str:
        """Return the costs by line and side by side, or the formulas; `texts` holds each file's text by name."""
        if self.formulas:
            return formula_report(self.formulas)
        parts = list[str]()
        for cost, limit in zip(self.costs, self.limits, strict=True):
            parts += [layout_report(cost, texts)] + ([limit.report(texts)] if limit else [])
        parts += [multi_mesh_cost_text(each, texts) for each in self.multi_mesh]
        return "\n".join([*parts, *([comparison(self.costs)] if self.costs else [])])


def model_costs(file: str, choice: Choice, sources: Sources, symbolic: bool = False) -> ModelCosts:
    """Return the costs of a model under the chosen layouts. symbolic: with formulas. Raises `CompileError` and `UsageError`."""
    selection = select(file, choice, sources, every_layout=True, or_multi_mesh=not symbolic)
    program = selection.program
    lowered = [(case, case.lower(program)) for case in each_of(selection.cases, "layout")]
    return ModelCosts(
        program.name,
        [layout_cost(each, device=case.device) for case, each in lowered],
        [recomputation(program, case, each) for case, each in lowered],
        [formulas(each) for _, each in lowered] if symbolic else [],
        [multi_mesh_cost(each.program(program)) for each in selection.multi_mesh],
    )


def case_cost(case: PlacementCase | MultiMeshCase, program: Program) -> dict[str, Any]:
    """Return the entry of a layout of several meshes in the record. Raises `UsageError` for a placement."""
    if isinstance(case, PlacementCase):
        raise UsageError(f"`{case.name}` is a placement: `simulate` returns what each of its devices does")
    return multi_mesh_cost_json(multi_mesh_cost(case.program(program)))


# The difference of two layouts


def diff(
    file: str, choice: Choice, layouts: Sequence[str], target: str | None, sources: Sources
) -> StepDifference:
    """Compare the costs of a model under two layouts. Raises `CompileError` and `UsageError`.

    layouts: the two layouts, or none for the first two of the file. target: a machine on which the lines take seconds.
    """
    if len(layouts) not in (0, 2):
        raise UsageError("diff compares two layouts: --layout A --layout B")
    priced: list[ComparedLayout] = []
    chosen: Sequence[str | None] = layouts or [None]
    for layout in chosen:
        asked = attrs.evolve(choice, layout=layout)
        selection = select(file, asked, sources, every_layout=not layouts, or_multi_mesh=True)
        cases: tuple[LayoutOnMesh | MultiMeshCase, ...] = (*selection.cases, *selection.multi_mesh)
        for case in cases[: 2 - len(priced)]:
            hardware = target_of(target, selection.hardware, sources) if target else None
            if hardware is not None and target is not None:
                check_room(hardware, case.mesh, target)
            if isinstance(case, MultiMeshCase):
                priced.append(ComparedLayout.of_meshes(case.program(selection.program), hardware))
                continue
            case = case if hardware is None else case.on(hardware)
            program = attrs.evolve(case, layout=_distinct(case.layout, priced)).lower(selection.program)
            priced.append(ComparedLayout.of(program, hardware, device=case.device))
    if len(priced) < 2:
        raise UsageError(f"{file} has no two layouts to compare: say --layout A --layout B")
    one, other = priced
    return difference_of(one, other, one.hardware.caveat if one.hardware else ())


def _distinct(layout: Layout, before: list[ComparedLayout]) -> Layout:
    """Rename a layout if another one has its name: all rules of the command line are called `given`."""
    same_name = any(each.cost.layout.name == layout.name for each in before)
    if not same_name or any(each.cost.layout == layout for each in before):
        return layout
    return attrs.evolve(layout, name=f"{layout.name}_2")


# The causes of collectives


def explain(file: str, choice: Choice, sources: Sources) -> ExplainedLayout | ExplainedMeshes:
    """Explain the chosen layout. Raises `CompileError` and `UsageError`."""
    selection = select(file, choice, sources, or_multi_mesh=True)
    if isinstance(selection.case, MultiMeshCase):
        return _multi_mesh(selection.case, selection.program)
    (case,) = selection.cases
    return explained_layout(selection.program, case, case.lower(selection.program))


@attrs.frozen
class ExplainedLayout:
    """The cost of a step, or of a forward pass, all arrays that a device sends, attention of separate ops, attention without
    kernels, and what a memory limit changes.
    """

    cost: PlacedCost
    sent: Sequence[SentArray]
    separate: Sequence[Reason]
    refused: Sequence[NoKernel]
    limit: Recomputation | None

    def record(self) -> dict[str, Any]:
        """Return the JSON record; see `docs/command.md`."""
        cost, limit = self.cost, self.limit
        return {
            "model": cost.model,
            "layout": cost.layout.name,
            "mesh": cost.mesh.sizes,
            "collectives": provenance_json(self.sent),
            "separate_attention": separate_json(self.separate),
            "attention_without_kernel": kernels_json(self.refused),
            **({} if limit is None else {"recomputation": limit.record()}),
        }

    def report(self, texts: Mapping[str, str]) -> str:
        """Return the collectives with their causes, by line and by rule. texts: each file's text by name."""
        file, limit = self.cost.file, self.limit
        report = provenance_report(self.sent, file, texts)
        report += separate_report(self.separate, file) + kernels_report(self.refused, file)
        return "\n".join([*heading(self.cost), "", report, *([limit.report(texts)] if limit else [])])


def explained_layout(program: Program, case: LayoutOnMesh, lowered: Program) -> ExplainedLayout:
    """Explain a layout of a program. lowered: the program under the layout."""
    cost = layout_cost(lowered, device=case.device)
    function, sent = sent_under(program, case, lowered)
    refused, limit = [*refusals(function, case.mesh)], recomputation(program, case, lowered)
    return ExplainedLayout(cost, sent, reasons(program), refused, limit)


def sent_under(program: Program, case: LayoutOnMesh, lowered: Program) -> tuple[Function, list[SentArray]]:
    """Return the function of a step or of a forward pass under a layout, and the arrays that a device sends in it."""
    names = names_by_place(prepared(program, case.mesh, case.layout))
    function = lowered.function("step" if lowered.has_function("step") else "forward")
    return function, [*sent_arrays(function, case.mesh, case.layout, names)]


def recomputation(program: Program, case: LayoutOnMesh, lowered: Program) -> Recomputation | None:
    """Return the lowered program's step beside the step without the memory limit; None without a limit."""
    if case.limit is None:
        return None
    kept = attrs.evolve(case.layout, forms=attrs.evolve(case.layout.forms, recompute=""))
    without = attrs.evolve(case, layout=kept, limit=None).lower(program)
    before, after = (layout_cost(each, device=case.device) for each in (without, lowered))
    machine = case.limit.hardware.name if case.limit.hardware else None
    return Recomputation(case.limit.memory, machine, before, after)


@attrs.frozen
class ExplainedMeshes:
    """The cost of a step on several meshes, and all arrays that a device of each mesh sends."""

    cost: MultiMeshCost
    sent: Sequence[Sequence[SentArray]]

    def record(self) -> dict[str, Any]:
        """Return the JSON record: the collectives of each mesh, and what travels."""
        meshes = [
            {"name": each.mesh.name, "mesh": each.mesh.sizes, "collectives": provenance_json(sent)}
            for each, sent in zip(self.cost.meshes, self.sent, strict=True)
        ]
        named = {"model": self.cost.model, "layout": self.cost.layout}
        return {**named, "meshes": meshes, "travels": travels_json(self.cost)}

    def report(self, texts: Mapping[str, str]) -> str:
        """Return the collectives of each mesh with their causes, and what travels; `texts` holds each file's text by name."""
        parts = list[str]()
        for each, sent in zip(self.cost.meshes, self.sent, strict=True):
            title, *rest = heading(each)
            parts += [f"on mesh {each.mesh.name}: {title}", *rest, ""]
            parts.append(provenance_report(sent, each.file, texts))
        return "\n".join([*parts, travels_text(self.cost)])


def _multi_mesh(case: MultiMeshCase, program: Program) -> ExplainedMeshes:
    """Return the collectives of each mesh, and the values that travel between meshes."""
    multi_mesh = case.program(program)
    cost = multi_mesh_cost(multi_mesh)
    function = multi_mesh.function("step" if cost.trains else "forward")
    found: list[list[SentArray]] = [[] for _ in multi_mesh.parts]
    for each in function.segments:
        part = multi_mesh.parts[each.part]
        found[each.part] += sent_arrays(each.function, part.mesh, part.layout)
    return ExplainedMeshes(cost, found)


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
    """Simulate a step of a global program under a layout or a placement. machines: the machines of the file.

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
