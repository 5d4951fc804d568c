"""From a file and the common options to what is to be compiled: one model, and the layouts to compile it under."""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

import attrs

from mtfc.compiler.diagnostics import Diagnostics
from mtfc.compiler.ir.core import Program
from mtfc.compiler.ir.types import Layout, Mesh
from mtfc.compiler.passes.pipelines import Observer, lower
from mtfc.driver.data.files import read_neighbour
from mtfc.driver.errors import UsageError
from mtfc.driver.layout_targets import placeable
from mtfc.driver.sources import Sources
from mtfc.frontend import layout_options
from mtfc.frontend.elaborate import Module, elaborate
from mtfc.frontend.layout_options import (
    chosen_layouts,
    is_one_device,
    layouts_fitting,
    parse_mesh,
    placement_named,
)
from mtfc.frontend.layouts.declared_layouts import DeclaredLayout
from mtfc.frontend.layouts.legality import check_layout
from mtfc.frontend.semantics.names.modules import Neighbour
from mtfc.frontend.syntax.parser import parse

if TYPE_CHECKING:
    from mtfc.compiler.cost.hardware import Hardware
    from mtfc.frontend.layouts.placements import DeclaredPlacement
    from mtfc.frontend.semantics.names.scope import Scope

ONE_DEVICE = layout_options.ONE_DEVICE

UNDISTRIBUTED = Layout("undistributed")


@attrs.frozen
class Case:
    """A layout on a mesh."""

    mesh: Mesh
    layout: Layout

    @property
    def name(self) -> str:
        return self.layout.name

    def placed(self, program: Program) -> Program:
        """The global program, set to be compiled for this case."""
        return attrs.evolve(program, mesh=self.mesh, layout=self.layout)

    def lower(self, program: Program, of: str = "step", observers: Sequence[Observer] = ()) -> Program:
        """The program of one processor: see `pipelines.lower`."""
        return lower(program, self.mesh, self.layout, of, observers)


@attrs.frozen
class Selection:
    """A global program, at least one case, the hardware and placements that its file declares, and its names. No case, and the
    one placement, where a placement was chosen.
    """

    program: Program
    cases: tuple[Case, ...]
    hardware: Mapping[str, Hardware]
    placements: tuple[DeclaredPlacement, ...]
    scope: Scope


@attrs.frozen
class Choice:
    """The parts of a file to compile, and the layouts; None leaves the choice to the file.

    `settings` are entries of the model's `train` block, each `KEY=VALUE` (see `training/overrides.py`).
    """

    model: str | None
    layout: str | None
    mesh: str | None
    dims: Mapping[str, int]
    settings: tuple[str, ...] = ()


def settings_of(values: Mapping[str, object]) -> tuple[str, ...]:
    """Return entries of a `train` block, given as Python values, in the form of `Choice.settings`."""
    return tuple(f"{key}={_text_of(value)}" for key, value in values.items())


def _text_of(value: object) -> str:
    if isinstance(value, list | tuple):
        return ", ".join(map(_text_of, value))
    return str(value).lower() if isinstance(value, bool) else " ".join(str(value).splitlines())


def select(
    options: argparse.Namespace, sources: Sources, every_layout: bool = False, or_placement: bool = False
) -> Selection:
    """What the options choose of a file: its model, and the first layout or all; or a placement where that may be.

    Raises `CompileError` and `UsageError`.
    """
    file = sources.read(options.file)
    text = sources.texts[file]
    return choose(text, file, choice_of(options), every_layout, sources.neighbour, or_placement=or_placement)


def choice_of(options: argparse.Namespace) -> Choice:
    return Choice(options.model, options.layout, options.mesh, options.dims, tuple(options.settings))


def choose(
    text: str,
    file: str,
    choice: Choice,
    every_layout: bool = False,
    neighbour: Neighbour = read_neighbour,
    skip_illegal: bool = False,
    or_placement: bool = False,
) -> Selection:
    """What is chosen of a file's text. What it imports is looked for beside it.

    or_placement: a placement may be chosen, as if it were a layout. Raises `CompileError`, for a layout that is illegal or a mesh
    that has none unless these are to be skipped, and `UsageError`.
    """
    diagnostics = Diagnostics()
    tree = parse(text, file, diagnostics)
    module = elaborate(tree, diagnostics, choice.dims, choice.model, neighbour, choice.settings)
    diagnostics.raise_if_errors()
    if not module.programs:
        raise UsageError(f"{file} declares no model")
    program = module.programs[0]
    placement = placement_named(choice.layout, module) if or_placement else None
    if placement is not None:
        if choice.mesh is not None:
            raise UsageError(f"`{placement.name}` is a placement, which has devices of its own: no --mesh")
        return Selection(program, (), module.hardware, (placement,), module.scope)
    is_one = is_one_device(choice.mesh, module)
    if skip_illegal and choice.layout is None and choice.mesh is not None and not is_one:
        declared = layouts_fitting(parse_mesh(choice.mesh, module), module, program.name)
    else:
        declared = chosen_layouts(module, choice.layout, choice.mesh, program.name)
    declared = declared if every_layout else declared[:1]
    if skip_illegal:
        declared = tuple(each for each in declared if not _errors(program, each))
    _check_legal(program, declared, diagnostics)
    cases = tuple(_cases(declared, module, choice.mesh))
    placements = tuple(each for each in module.placements if each.devices == 1 or not is_one)
    return Selection(program, cases, module.hardware, placements, module.scope)


def _check_legal(program: Program, declared: Iterable[DeclaredLayout], diagnostics: Diagnostics) -> None:
    """Raise `CompileError` unless the program can be placed under each of the layouts."""
    for each in declared:
        diagnostics.extend(check_layout(program, each, placeable))
    diagnostics.raise_if_errors()


def _errors(program: Program, declared: DeclaredLayout) -> bool:
    return any(each.severity == "error" for each in check_layout(program, declared, placeable))


def _cases(declared: Sequence[DeclaredLayout], module: Module, mesh: str | None) -> Iterable[Case]:
    """The declared layouts; where there are none, nothing is split."""
    if declared:
        return (Case(each.mesh, each.layout) for each in declared)
    return (Case(parse_mesh(mesh, module) if mesh is not None else ONE_DEVICE, UNDISTRIBUTED),)
