"""Select from a file, by the common options, one model and the layouts to compile it under.

A last batch of data with fewer rows is compiled from the same file, with another size of a dimension. A mask would have to reach
every operation that adds up rows. With another size, means, derived sizes and the split of the layout follow by themselves.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from itertools import chain
from typing import TYPE_CHECKING

import attrs

from mtfc.backends.registry import BACKENDS
from mtfc.compiler.activity import doing
from mtfc.compiler.diagnostics import CompileError, Diagnostics
from mtfc.compiler.ir.core import Program, walk
from mtfc.compiler.ir.types import Dim, Layout, Mesh, Rules
from mtfc.compiler.passes.pass_base import Pass
from mtfc.compiler.passes.pipelines import Observer, default_pipeline, pipeline_of, within_memory
from mtfc.compiler.passes.recompute import Recompute
from mtfc.driver.data.files import read_neighbour
from mtfc.driver.data.inputs import input_types, joined_axis
from mtfc.driver.errors import UsageError, say
from mtfc.driver.loading.cases import MultiMeshCase, PlacementCase, check_multi_mesh
from mtfc.driver.loading.choice import Choice, ProgramSource
from mtfc.driver.loading.layout_targets import layout_targets
from mtfc.driver.loading.memory_limit import limit_of, run_limited
from mtfc.driver.loading.sources import Sources, known_as
from mtfc.frontend import layout_options
from mtfc.frontend.elaborate import Module, elaborate
from mtfc.frontend.layout_options import (
    chosen_layouts,
    is_one_device,
    layouts_fitting,
    layouts_for,
    multi_mesh_named,
    parse_mesh,
    placement_named,
)
from mtfc.frontend.layouts.declared_layouts import DeclaredLayout
from mtfc.frontend.layouts.layout_text import layout_text, mesh_text
from mtfc.frontend.layouts.legality import check_layout
from mtfc.frontend.semantics.names.modules import Neighbour, declarations_of
from mtfc.frontend.syntax import ast
from mtfc.frontend.syntax.parser import parse

if TYPE_CHECKING:
    from mtfc.compiler.cost.hardware import Device, Hardware, Machine
    from mtfc.frontend.layouts.declared_layouts import MultiMeshLayout
    from mtfc.placements.declarations import DeclaredPlacement

ONE_DEVICE = layout_options.ONE_DEVICE

UNDISTRIBUTED = Layout("undistributed")

PLAN = ".json"
"""The end of the name of a plan's file, which `--layout` takes for a function of JAX."""


@attrs.frozen
class LayoutOnMesh:
    """A layout on a mesh. passes: the passes that lower a program; None for the default ones.

    limit: the memory limit of a device, if there is one.
    """

    mesh: Mesh
    layout: Layout
    passes: tuple[Pass, ...] | None = None
    limit: Recompute | None = None

    @property
    def name(self) -> str:
        return self.layout.name

    @property
    def device(self) -> Device | None:
        """The device of the memory limit's machine, whose memory counts."""
        return self.limit.hardware.device if self.limit is not None and self.limit.hardware else None

    def on(self, hardware: Hardware) -> LayoutOnMesh:
        """Return the layout for a machine, on which a memory limit without a machine counts, too."""
        if self.limit is None or self.limit.hardware is not None:
            return self
        return attrs.evolve(self, limit=attrs.evolve(self.limit, hardware=hardware))

    def placed(self, program: Program) -> Program:
        """Return the global program with this mesh and layout, ready to be compiled for them."""
        return attrs.evolve(program, mesh=self.mesh, layout=self.layout)

    def lower(self, program: Program, of: str = "step", observers: Sequence[Observer] = ()) -> Program:
        """Return the program of one processor, with the functions that `of` names: see `pipelines.differentiation`.

        Raises `CompileError` (E321) if no choice of kept values fits into the memory.
        """
        passes = default_pipeline(of) if self.passes is None else pipeline_of(self.passes, of)
        with doing(f"compiling layout {self.name}"):
            return run_limited(self.placed(program), self.limited(passes), observers)

    def lowered(self, program: Program) -> tuple[Program, ...]:
        """Return the program of one processor, alone."""
        return (self.lower(program),)

    def source(self, program: Program, backend: str, of: str = "step") -> str:
        """Return the text of the module that a backend generates. Raises `CompileError` (E321)."""
        return BACKENDS[backend].generate(self.lower(program, of))

    def forward_source(self, program: Program, backend: str) -> str:
        """Return the text of the forward pass alone as a module."""
        lowered = self.as_near().lower(program)
        return BACKENDS[backend].generate(attrs.evolve(lowered, functions=(lowered.function("forward"),)))

    def limited(self, passes: Sequence[Pass]) -> tuple[Pass, ...]:
        """Return the passes with the memory limit, if there is one."""
        return tuple(passes) if self.limit is None else within_memory(passes, self.limit)

    def as_near(self) -> LayoutOnMesh:
        """Return the layout for a variant of the program, which comes as near to the limit as possible."""
        return (
            self if self.limit is None else attrs.evolve(self, limit=attrs.evolve(self.limit, must_fit=False))
        )


Case = LayoutOnMesh | MultiMeshCase | PlacementCase
"""A program runs under each."""


@attrs.frozen
class Selection:
    """A global program with at least one layout, and the hardware, placements and names that its file declares.

    multi_mesh: the layouts of several meshes. If a placement was chosen, `cases` and `multi_mesh` are empty, and `placements`
    has that placement alone. If a layout of several meshes was chosen, `multi_mesh` alone has it.
    """

    program: Program
    cases: tuple[LayoutOnMesh, ...]
    hardware: Mapping[str, Machine]
    placements: tuple[DeclaredPlacement, ...]
    module: Module
    multi_mesh: tuple[MultiMeshCase, ...] = ()

    @property
    def case(self) -> Case:
        """The first layout, or the chosen layout of several meshes or placement."""
        layouts: tuple[Case, ...] = self.cases or self.multi_mesh
        return layouts[0] if layouts else PlacementCase(self.placements[0], self.program)


def select(
    file: str,
    choice: Choice,
    sources: Sources,
    every_layout: bool = False,
    or_placement: bool = False,
    skip_illegal: bool = False,
    or_multi_mesh: bool = False,
) -> Selection:
    """Read a file and return its chosen model, with the first chosen layout or with all; or with a placement or a layout of
    several meshes if that is allowed.

    `choice.source` makes the program of a file that is not a .mtf file. skip_illegal: see `choose`. Raises `CompileError` and
    `UsageError`.
    """
    sources.add_choice(choice)
    if choice.source is not None:
        return _from_source(choice.source, choice, sources, every_layout, skip_illegal)
    name = sources.read(file)
    text, neighbour = sources.texts[name], sources.neighbour
    with doing(f"checking {name}"):
        return choose(text, name, choice, every_layout, neighbour, skip_illegal, or_placement, or_multi_mesh)


def _from_source(
    source: ProgramSource, choice: Choice, sources: Sources, every_layout: bool, skip_illegal: bool
) -> Selection:
    """Return the program of a source under the chosen layout, which may be the file of a plan."""
    try:
        program, text = source.program, source.declarations
    finally:
        sources.texts |= source.texts
    name = "<dims>"
    if choice.layout is not None and choice.layout.endswith(PLAN):
        name = choice.layout
        mesh, layout, limit = source.planned(name)
        mesh, layout = attrs.evolve(mesh, name="plan_mesh"), attrs.evolve(layout, name="plan")
        text += mesh_text(mesh) + layout_text(layout, mesh)
        at = f"@{limit.hardware.name}" if limit and limit.hardware else ""
        memory = choice.memory or (f"{limit.memory}{at}" if limit else None)
        choice = attrs.evolve(choice, layout=layout.name, memory=memory)
    sources.texts[name] = text
    diagnostics = Diagnostics()
    module = elaborate(parse(text, name, diagnostics), diagnostics)
    diagnostics.raise_if_errors()
    return _chosen(program, module, choice, diagnostics, every_layout, skip_illegal)


def select_models(file: str, choice: Choice, sources: Sources) -> tuple[Selection, ...]:
    """Read a file and return each of its models with all chosen layouts for it, the first also with the placements.

    A model is left out if the chosen layout is for others. Raises `CompileError` and `UsageError`.
    """
    first = select(file, choice, sources, every_layout=True, or_placement=True, or_multi_mesh=True)
    text, neighbour = sources.texts[sources.read(file)], sources.neighbour
    module = elaborate(parse(text, file, Diagnostics()), Diagnostics(), choice.dims, None, neighbour)
    named = next((each for each in module.layouts if each.name == (choice.layout or "").strip()), None)
    others = [
        program.name
        for program in module.programs[1:]
        if first.cases and (named is None or named.is_for(program.name))
    ]
    found = [
        choose(text, file, attrs.evolve(choice, model=name), every_layout=True, neighbour=neighbour)
        for name in others
    ]
    return (first, *(attrs.evolve(each, placements=()) for each in found))


def select_program(file: str, choice: Choice, sources: Sources) -> Program:
    """Read a file and return its chosen model, at sizes that its layouts need not fit. Raises `CompileError` and `UsageError`."""
    sources.add_choice(choice)
    name = sources.read(file)
    return choose(sources.texts[name], name, choice, neighbour=sources.neighbour, skip_illegal=True).program


def choose(
    text: str,
    file: str,
    choice: Choice,
    every_layout: bool = False,
    neighbour: Neighbour = read_neighbour,
    skip_illegal: bool = False,
    or_placement: bool = False,
    or_multi_mesh: bool = False,
) -> Selection:
    """Return the chosen model and layouts of a file's text. `neighbour` reads the files that it imports.

    or_placement, or_multi_mesh: `choice.layout` may name a placement, or a layout of several meshes, which is the default if the
    model has no other layouts. skip_illegal: leave out illegal layouts, and accept a mesh without a layout. Raises `CompileError`
    and `UsageError`.
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
        chosen = PlacementCase(placement, program)
        chosen.refuse({"--mesh": choice.mesh}, ", which has devices of its own")
        by_passes = {"--passes": choice.passes, "--memory": choice.memory}
        chosen.refuse(by_passes, ", which is not lowered by passes")
        return Selection(program, (), module.hardware, (placement,), module)
    multi_mesh = _chosen_multi_mesh(module, choice, program.name, every_layout) if or_multi_mesh else None
    if multi_mesh is not None:
        diagnostics.extend(check_multi_mesh([program], [multi_mesh]))
        diagnostics.raise_if_errors()
        case = MultiMeshCase.of(multi_mesh)
        return Selection(program, (), module.hardware, (), module, (case,))
    if not (or_multi_mesh or skip_illegal):
        _refuse_multi_mesh(module, choice, program.name, file)
    return _chosen(program, module, choice, diagnostics, every_layout, skip_illegal)


def _refuse_multi_mesh(module: Module, choice: Choice, model: str, file: str) -> None:
    """Raise `UsageError` if no layout is chosen, and all layouts of a model have several meshes."""
    if choice.layout is not None or choice.mesh is not None or layouts_for(model, module):
        return
    names = [f"`{each.name}`" for each in module.multi_mesh if each.is_for(model)]
    if names:
        raise UsageError(
            f"model {model} of {file} has only layouts of several meshes, {', '.join(names)}, and this takes a layout of one:"
            f" choose one with `--layout`, or `--mesh one` for no layout; {layout_options.MULTI_MESH}"
        )


def say_left_out(selection: Selection, what: str, help: str) -> None:
    """Say which layouts of several meshes a command leaves out.

    what: the beginning of the sentence. help: the command that shows such layouts.
    """
    if names := [f"`{each.name}`" for each in selection.multi_mesh]:
        say(f"{what} {', '.join(names)}, of several meshes: {help}")


def _chosen_multi_mesh(
    module: Module, choice: Choice, model: str, every_layout: bool
) -> MultiMeshLayout | None:
    """Return the layout of several meshes that is chosen by its name, or as the only kind of layout. Raises `UsageError`."""
    found = multi_mesh_named(choice.layout, module)
    is_default = choice.layout is None and choice.mesh is None and not layouts_for(model, module)
    if is_default and not every_layout:
        found = next((each for each in module.multi_mesh if each.is_for(model)), None)
    if found is None:
        return None
    for_one_mesh = {"--mesh": choice.mesh, "--passes": choice.passes, "--memory": choice.memory}
    MultiMeshCase.of(found).refuse(for_one_mesh)
    if not found.is_for(model):
        raise UsageError(
            f"layout `{found.name}` is for model {' and '.join(found.models)}, and not for {model}"
        )
    return found


def _chosen(
    program: Program,
    module: Module,
    choice: Choice,
    diagnostics: Diagnostics,
    every_layout: bool,
    skip_illegal: bool,
) -> Selection:
    """Return a program with the chosen layouts, and with what a module declares."""
    is_one = is_one_device(choice.mesh, module)
    if skip_illegal and choice.layout is None and choice.mesh is not None and not is_one:
        declared = layouts_fitting(parse_mesh(choice.mesh, module), module, program.name)
    else:
        declared = chosen_layouts(module, choice.layout, choice.mesh, program.name)
    declared = declared if every_layout else declared[:1]
    if skip_illegal:
        declared = tuple(each for each in declared if not _errors(program, each))
    for each in declared:
        diagnostics.extend(check_layout(program, each, layout_targets))
    diagnostics.raise_if_errors()
    passes, own = choice.pipeline(), module.hardware
    cases = tuple(
        attrs.evolve(each, passes=passes, limit=limit_of(choice.memory, own, each.layout))
        for each in _cases(declared, module, choice.mesh)
    )
    placements = tuple(each for each in module.placements if each.devices == 1 or not is_one)
    multi_mesh = tuple(map(MultiMeshCase.of, _multi_mesh_beside(program, module, choice, diagnostics)))
    return Selection(program, cases, module.hardware, placements, module, multi_mesh if every_layout else ())


def _multi_mesh_beside(
    program: Program, module: Module, choice: Choice, diagnostics: Diagnostics
) -> Sequence[MultiMeshLayout]:
    """Return the layouts of several meshes of a file of which no layout or mesh is chosen. Raises `CompileError`."""
    options = choice.layout, choice.mesh, choice.passes, choice.memory
    if any(option is not None for option in options):
        return ()
    found = [each for each in module.multi_mesh if each.is_for(program.name)]
    if found:
        diagnostics.extend(check_multi_mesh([program], found))
        diagnostics.raise_if_errors()
    return found


def _errors(program: Program, declared: DeclaredLayout) -> bool:
    return any(each.severity == "error" for each in check_layout(program, declared, layout_targets))


def _cases(declared: Sequence[DeclaredLayout], module: Module, mesh: str | None) -> Iterable[LayoutOnMesh]:
    """Return the declared layouts; without any, return the layout that splits nothing."""
    if declared:
        return (LayoutOnMesh(each.mesh, each.layout) for each in declared)
    return (LayoutOnMesh(parse_mesh(mesh, module) if mesh is not None else ONE_DEVICE, UNDISTRIBUTED),)


# Other sizes


@attrs.frozen(slots=False)
class Resizing:
    """Compiles a selection again, with another size of one dimension."""

    path: str
    choice: Choice
    sources: Sources
    selection: Selection

    def refusal(self, dim: Dim, inputs: Sequence[str], joined: bool = False) -> str | None:
        """Return the reason why `dim` cannot have that size in these inputs with all other sizes unchanged; None if it can.

        `joined`: the outputs of all batches must fit together along the dimension.
        """
        if dim.name not in self._plain:
            return f"the file does not declare `{dim.name}` as a number"
        try:
            resized = self.program(dim)
        except CompileError as error:
            return f"with `{dim.name}` of {dim.size}, {error.diagnostics[0].message}"
        before = self.selection.program
        found = chain(
            _conflicts(before, resized, dim.name, inputs), _apart(before, resized, dim.name) if joined else ()
        )
        return next(found, None)

    @cached_property
    def _file(self) -> str:
        return known_as(self.path)

    @cached_property
    def _plain(self) -> frozenset[str]:
        """The dimensions whose size is a number in the file."""
        decls = declarations_of(parse(self.sources.texts[self._file], self._file, Diagnostics()), ast.DimDecl)
        return frozenset(decl.name.text for decl in decls if isinstance(decl.size, ast.Int))

    def program(self, dim: Dim) -> Program:
        """Return the undistributed model with that size. Raises `CompileError`."""
        dims = {**self.choice.dims, dim.name: dim.size}
        choice = attrs.evolve(self.choice, layout=None, mesh=None, dims=dims)
        text, neighbour = self.sources.texts[self._file], self.sources.neighbour
        return choose(text, self._file, choice, neighbour=neighbour, skip_illegal=True).program

    def case(self, program: Program) -> Case:
        """Return the first case of the selection, without the rules that cannot split this program's dimensions evenly.

        A layout never changes a result. A placement leaves out such splits by itself.
        """
        case = self.selection.case
        if isinstance(case, MultiMeshCase):
            rules = zip(case.declared.parts, case.rules, strict=True)
            sizes = _sizes(program)
            return attrs.evolve(case, rules=tuple(dividing(each, part.mesh, sizes) for part, each in rules))
        if not isinstance(case, LayoutOnMesh):
            return case
        return LayoutOnMesh(case.mesh, dividing(case.layout, case.mesh, _sizes(program)))


def _conflicts(program: Program, resized: Program, dim: str, inputs: Sequence[str]) -> Iterator[str]:
    """Yield the reasons why data and parameters of `program` do not fit `resized`."""
    for before, after in zip(program.parameters, resized.parameters, strict=True):
        if before.type != after.type:
            yield f"the shape of parameter `{before.name}` depends on `{dim}`"
    types = input_types(resized.function("forward"))
    for name, type in input_types(program.function("forward")).items():
        if name in inputs and type.names[0] != dim:
            yield f"the first dimension of `{name}` is `{type.names[0]}`, and not `{dim}`"
        elif name not in inputs and type != types[name]:
            yield f"the shape of `{name}` depends on `{dim}`, and its array holds one batch"
        elif name in inputs and type.dims[1:] != types[name].dims[1:]:
            yield f"a further dimension of `{name}` depends on `{dim}`"


def _apart(program: Program, resized: Program, dim: str) -> Iterator[str]:
    """Yield the outputs that cannot be joined along the dimension."""
    types = {output.name: output.value.type for output in resized.function("forward").handed_out}
    for output in program.function("forward").handed_out:
        before, after = list(output.value.type.dims), list(types[output.name].dims)
        axis = joined_axis(output.value.type, {dim})
        if [*before[:axis], *before[axis + 1 :]] != [*after[:axis], *after[axis + 1 :]]:
            yield f"a further dimension of output `{output.name}` depends on `{dim}`"


def _sizes(program: Program) -> dict[str, int]:
    """Return every dimension of the program, including dimensions that functions declare."""
    function = program.function("forward")
    arguments = [argument.value for argument in function.arguments]
    values = (*arguments, *(value for eqn in walk(function.body) for value in eqn.results))
    return {dim.name: dim.size for value in values for dim in value.type.dims}


def dividing(layout: Layout, mesh: Mesh, sizes: Mapping[str, int]) -> Layout:
    """Return the layout without the rules whose axes do not divide the dimension."""

    def kept(rules: Rules) -> Rules:
        """Return the rules whose axes divide the dimension's size."""
        return Rules(
            tuple((dim, axes) for dim, axes in rules.axes if not sizes.get(dim, 0) % mesh.size(axes))
        )

    return with_rules(layout, kept)


def with_rules(layout: Layout, change: Callable[[Rules], Rules]) -> Layout:
    """Return a layout with the rules of each section changed."""
    return attrs.evolve(
        layout,
        rules=change(layout.rules),
        params=change(layout.params),
        optimizer=change(layout.optimizer),
        values=tuple((path, change(rules)) for path, rules in layout.values),
    )
