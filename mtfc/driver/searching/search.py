"""The search for the best layout or placement on a machine, for `mtfc search`."""

from __future__ import annotations

from collections.abc import Mapping
from time import process_time
from typing import TYPE_CHECKING

import attrs

from mtfc.compiler.cost.hardware import Hardware
from mtfc.driver.errors import UsageError, say
from mtfc.driver.loading.memory_limit import bytes_in
from mtfc.driver.loading.selection import Selection, say_left_out, select
from mtfc.driver.loading.sources import Sources
from mtfc.driver.loading.target import check_room, machine_of, target_of
from mtfc.driver.options import SearchOptions
from mtfc.driver.searching.space import (
    RULES,
    Freedom,
    SearchAnswer,
    SearchedSpace,
    SearchTask,
    check_mesh_options,
    declared_mesh,
    searched_meshes,
)

if TYPE_CHECKING:
    from mtfc.compiler.cost.hardware import Machine
    from mtfc.compiler.ir.types import Mesh

DEFAULT_TARGET = "h100"


SPACES: Mapping[str, SearchedSpace] = {
    space.name: space
    for space in (
        SearchedSpace(
            "plan",
            "rules, storage, recomputation, pipelines and forms together",
            takes=frozenset({"storage", "recompute", "what-if"}),
            freedom=Freedom(),
        ),
        SearchedSpace("rules", "one rule for each dimension", takes=frozenset({"storage", "recompute"})),
        SearchedSpace(
            "forms",
            "the forms of one layout, whose rules stay",
            takes=frozenset({"layout", "recompute"}),
            is_declared=True,
            freedom=attrs.evolve(RULES, rules=False),
        ),
        SearchedSpace(
            "pipelines",
            "a pipeline of layers, with one rule for each other dimension",
            objectives=("time", "serial"),
            takes=frozenset({"recompute"}),
            freedom=Freedom(recompute=False, unstaged=False, micro_batches=False),
            no_function="it searches the loops of a .mtf file",
            no_rules="`mtfc diff` compares the pipelines of a file",
        ),
        SearchedSpace(
            "meshes",
            "the rules of each part of a declared layout of several meshes",
            "multi_mesh_search.search_multi_mesh",
            ("time",),
            is_declared=True,
            no_function="layouts of several meshes are for .mtf files",
        ),
        SearchedSpace(
            "tiling",
            "a layout for each equation",
            "layouts.search_per_equation",
            ("serial", "time", "bytes"),
            frozenset({"export"}),
        ),
        SearchedSpace(
            "kcuts",
            "a layout for each equation that sends few bytes, by SoyBean's k-cuts",
            "layouts.search_cuts",
            ("bytes",),
            has_cuts=True,
            no_rules="cuts take no rules; --space tiling --objective bytes takes them",
        ),
        SearchedSpace(
            "soap",
            "a placement of each operator",
            "placements.search_placements",
            ("time",),
            frozenset({"exhaustive", "chains"}),
            has_meshes=False,
            no_function="operators of a function of JAX have no placements",
        ),
    )
}
"""The spaces by the word of `--space`: global layouts, per-equation layouts, by proof or by k-cuts, and placements."""

REASONS = {
    "export": "the other spaces are not the solver's",
    "layout": "the other spaces search all layouts, and compare the declared ones",
    "exhaustive": "searches of the other spaces always aim at a proof",
    "recompute": "tilings and placements keep all values that the backward pass needs",
    "storage": "tilings place all stored arrays themselves, and placements hold copies",
    "what-if": "prices are those of whole plans",
}
"""Reasons why an option belongs to a single space."""


def check_options(options: SearchOptions, exports: bool = False) -> None:
    """Raise `UsageError` if options contradict each other, or ask for too much. exports: True if `--export` is given."""
    space = SPACES[options.space]
    check_mesh_options(options, space)
    given = {
        "export": exports,
        "exhaustive": options.exhaustive,
        "layout": options.choice.layout is not None,
        "recompute": options.recompute,
        "storage": options.storage,
        "what-if": options.what_if,
    }
    for option, reason in REASONS.items():
        owner = next(each for each in SPACES.values() if option in each.takes)
        if given[option] and option not in space.takes:
            raise UsageError(f"--{option} takes --space {owner.name}: {reason}")
    if options.what_if and options.objective == "memory":
        raise UsageError("--what-if compares the time of examples, and the objective is memory")
    if options.chains.given and "chains" not in space.takes:
        raise UsageError(f"--{options.chains.given[0]} takes --space soap: the other spaces have no chains")
    if options.objective not in (None, *space.objectives):
        *most, last = space.objectives
        known = f"{', '.join(most)} or {last}" if most else last
        why = "a layout that splits nothing sends nothing; the spaces `tiling` and `kcuts` divide all work"
        reason = f": {why}" if options.objective == "bytes" else ""
        raise UsageError(f"the space `{space.name}` has no --objective but {known}{reason}")
    is_function, asks = options.choice.source is not None, options.why_not is not None
    if is_function and space.no_function:
        raise UsageError(f"--space {space.name}: {space.no_function}")
    if asks and space.no_rules:
        raise UsageError(f"--space {space.name} cannot take --why-not: {space.no_rules}")
    if is_function and asks:
        raise UsageError("--why-not takes a .mtf file: compare plans of a function of JAX with `mtfc diff`")


def search(options: SearchOptions, sources: Sources, exports: bool = False) -> SearchAnswer:
    """Search the space of the options. Raises `NothingFits`, `CompileError` and `UsageError`, and `KeyboardInterrupt`.

    An interrupt ends the search with the best result so far; it raises `KeyboardInterrupt` only if nothing was found.
    """
    check_options(options, exports)
    space, memory = SPACES[options.space], options.choice.memory
    options = attrs.evolve(options, choice=attrs.evolve(options.choice, memory=None))
    has_all = not space.has_one_layout
    selection = select(options.file, options.choice, sources, every_layout=has_all, skip_illegal=has_all)
    if not space.is_declared:
        say_left_out(
            selection,
            "the result is not compared with",
            "`mtfc cost` and `mtfc simulate --layout NAME` show such layouts",
        )
    hardware = _machine(options, space, selection, sources)
    hardware = with_memory(hardware, memory)
    options = attrs.evolve(options, objective=options.objective or space.objectives[0])
    meshes = _meshes(options, space, selection, hardware)
    started = process_time()
    task = SearchTask(options, space, selection, hardware, meshes, sources, started, started + options.budget)
    return space.search(task)


def _meshes(
    options: SearchOptions, space: SearchedSpace, selection: Selection, hardware: Machine
) -> tuple[Mesh, ...]:
    """Return the candidate meshes, or the mesh or all devices of a declared layout. Raises `CompileError` and `UsageError`."""
    if not space.is_declared:
        return searched_meshes(options, space, selection, hardware)
    mesh = declared_mesh(options, space, selection)
    check_room(
        target_of(options.target or hardware.name, selection.hardware, Sources()),
        mesh,
        hardware.name,
        "the meshes have",
    )
    return (mesh,)


def _machine(options: SearchOptions, space: SearchedSpace, selection: Selection, sources: Sources) -> Machine:
    """Return the machine of `--target`, else the first one that the file declares, else the default machine."""
    declared = next(iter(selection.hardware), None)
    if options.target is None and declared is None:
        say(f"for {DEFAULT_TARGET}; choose another machine with --target")
    target = options.target or declared or DEFAULT_TARGET
    find = target_of if space.has_meshes else machine_of
    return find(target, selection.hardware, sources)


def with_memory(machine: Machine, memory: str | None) -> Machine:
    """Return the machine, or the machine with other memory on each device. Raises `UsageError`."""
    if memory is None:
        return machine
    if not isinstance(machine, Hardware):
        raise UsageError(
            "--memory takes a machine with equal devices: write the memory of each into the file of the machine"
        )
    try:
        return attrs.evolve(machine, device=attrs.evolve(machine.device, memory=float(bytes_in(memory))))
    except ValueError as error:
        raise UsageError(f"--memory: {error}") from None
