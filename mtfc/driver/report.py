"""Drawings and pages of layouts, placements and training runs.

Drawings of a model's layout or placement, for `mtfc draw`.

Pages about a model's layouts or placements, and about a training run, for `mtfc report`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from html import escape
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING, Any

import attrs

from mtfc.compiler.activity import PROGRESS, Progress, each_of, progress_to
from mtfc.compiler.cost.hardware import Hardware, Machine
from mtfc.compiler.diagnostics import Diagnostics, did_you_mean
from mtfc.compiler.ir.core import Function, Program, Value, source_file, walk
from mtfc.compiler.passes.fuse_attention import reasons
from mtfc.compiler.passes.pipelines import run, simplification
from mtfc.driver.data.array_files import CHECKPOINTS, remote_steps, steps_in
from mtfc.driver.data.files import RemoteFolder, is_remote, write_text
from mtfc.driver.errors import UsageError, raised_as, reason_of
from mtfc.driver.loading.cases import MultiMeshCase
from mtfc.driver.loading.choice import Choice
from mtfc.driver.loading.selection import UNDISTRIBUTED, Case, LayoutOnMesh, Selection, say_left_out, select
from mtfc.driver.loading.sources import Sources, known_as
from mtfc.driver.loading.target import check_room, has_room, machine_of, target_of
from mtfc.driver.options import SearchOptions
from mtfc.driver.simulate import sent_under, simulate_layout, simulate_placement
from mtfc.driver.values import PathOption, file_option
from mtfc.driver.version import installed_version
from mtfc.frontend.syntax import ast
from mtfc.frontend.syntax.parser import parse
from mtfc.meshes.multi_mesh_step import multi_mesh_step
from mtfc.placements.operators.operator_graph import Operator, operators_of
from mtfc.reports.drawing import DrawnOperator, layout_drawing, placement_drawing
from mtfc.reports.page.document import (
    FORMAT,
    ReportedMeshes,
    ReportedPlacement,
    document,
    run_json,
    steps_json,
)
from mtfc.reports.page.layout_data import ReportedLayout, report_json
from mtfc.reports.plan_figures import PlanFigures
from mtfc.reports.step_report import SimulatedMeshes

if TYPE_CHECKING:
    from mtfc.placements.declarations import DeclaredPlacement
    from mtfc.placements.operators.strategy import Strategy


MOST_ARRAYS = 40
"""Most arrays of a drawing unless they are asked for by name."""


@attrs.frozen
class Drawing:
    """A drawing as the text of an SVG file, which a notebook shows."""

    svg: str

    def __repr__(self) -> str:
        return f"<Drawing of {len(self.svg):,} characters>"

    def _repr_svg_(self) -> str:
        return self.svg

    def save(self, path: PathOption) -> None:
        """Write the drawing to a file, whole or not at all. Raises `OSError`."""
        write_text(file_option(path), self.svg)


def drawing(file: str, choice: Choice, sources: Sources, arrays: Sequence[str] = ()) -> Drawing:
    """Draw the first chosen layout, or a placement. Raises `CompileError` and `UsageError`.

    arrays: names of arrays to draw; by default the parameters, and the values that the user's file names.
    """
    selection = select(file, choice, sources, or_placement=True, or_multi_mesh=True)
    return case_drawing(selection.case, selection.program, arrays)


def case_drawing(case: Case, program: Program, arrays: Sequence[str] = ()) -> Drawing:
    """Draw a global program under a layout or a placement. Raises `CompileError` and `UsageError`."""
    if isinstance(case, MultiMeshCase):
        return _multi_mesh(case, program, arrays)
    if isinstance(case, LayoutOnMesh):
        return program_drawing(case.lower(program), arrays)
    case.refuse({"--array": bool(arrays)}, ", whose operators are drawn")
    return _placement(program, case.placement)


def program_drawing(program: Program, names: Sequence[str] = ()) -> Drawing:
    """Draw the arrays of the program of one processor. Raises `UsageError` for unknown names."""
    layout = program.layout
    assert layout is not None, "only a placed program has parts"
    chosen, rest = _chosen(dict(_arrays(program)), names)
    return Drawing(layout_drawing(program.name, [(program.placed_on, layout, chosen)], rest))


def _chosen(known: Mapping[str, tuple[Value, bool]], names: Sequence[str]) -> tuple[list[Value], int]:
    """Return the arrays to draw, and the number of those that are left out. Raises `UsageError` for unknown names."""
    if unknown := [name for name in names if name not in known]:
        help = did_you_mean(unknown[0], known)
        raise UsageError(f"the model has no array `{unknown[0]}`{f': {help}' if help else ''}")
    own = [array for array, is_own in known.values() if is_own]
    chosen = [known[name][0] for name in names] or own[:MOST_ARRAYS]
    return chosen, 0 if names else max(0, len(own) - MOST_ARRAYS)


def _arrays(program: Program) -> Iterator[tuple[str, tuple[Value, bool]]]:
    """Yield the arrays of the forward pass by name, and whether a drawing has them by default."""
    function = program.function("step" if program.has_function("step") else "forward")
    for argument in function.arguments:
        if argument.role in ("input", "parameter"):
            yield argument.value.name, (argument.value, True)
    yield from _named_values(function, source_file(program.functions))


def _named_values(function: Function, own: str | None) -> Iterator[tuple[str, tuple[Value, bool]]]:
    """Yield the values that a function computes in the forward pass. own: the file whose values a drawing has by default."""
    for eqn in walk(function.body):
        if eqn.path and eqn.stage == "forward" and not eqn.regions:
            is_own = eqn.span is not None and eqn.span.file == own
            yield eqn.path, (Value(eqn.path, eqn.results[0].type), is_own)


def _multi_mesh(case: MultiMeshCase, program: Program, names: Sequence[str]) -> Drawing:
    """Draw the arrays on each mesh: those that are stored or computed there. Raises `UsageError` for unknown names."""
    multi_mesh = case.program(program)
    trains = any(each.name == "step" for each in multi_mesh.functions)
    function = multi_mesh.function("step" if trains else "forward")
    own = source_file([function.whole])
    known: dict[str, tuple[int, tuple[Value, bool]]] = {}
    for argument in function.whole.arguments:
        if argument.role in ("input", "parameter"):
            place = multi_mesh.places[argument.value.name]
            known[argument.value.name] = place.part, (Value(argument.value.name, place.type), True)
    for segment in function.segments:
        for name, array in _named_values(segment.function, own):
            known.setdefault(name, (segment.part, array))
    chosen, rest = _chosen({name: array for name, (_, array) in known.items()}, names)
    groups = [
        (part.mesh, part.layout, [each for each in chosen if known[each.name][0] == number])
        for number, part in enumerate(multi_mesh.parts)
    ]
    return Drawing(layout_drawing(program.name, groups, rest))


def drawn(operators: Sequence[Operator], strategy: Strategy) -> list[DrawnOperator]:
    """Return the operators of a graph under a strategy, as drawings have them."""
    pairs = zip(operators, strategy, strict=True)
    return [DrawnOperator(operator.name, each.degrees, each.devices) for operator, each in pairs]


def _placement(program: Program, placement: DeclaredPlacement) -> Drawing:
    """Draw a placement. Raises `CompileError` if operators differ from those of the placement."""
    from mtfc.placements.declarations import strategy_of

    graph = operators_of(run(program, simplification()))
    strategy = strategy_of(placement, graph, Diagnostics())
    operators = drawn(graph.operators, strategy)
    return Drawing(placement_drawing(program.name, placement.name, placement.devices, operators))


HEIGHT = 900
"""Pixels of a page in a notebook."""


@attrs.frozen(slots=False, repr=False)
class ReportPage:
    """A report as a page that needs no network: its title, and the record that it shows."""

    title: str
    data: Mapping[str, Any]

    def __repr__(self) -> str:
        return f"<ReportPage {self.title}>"

    @cached_property
    def html(self) -> str:
        """The whole page."""
        return document(self.title, self.data)

    def save(self, path: PathOption) -> None:
        """Write the page to a file, whole or not at all. Raises `OSError`."""
        write_text(file_option(path), self.html)

    def _repr_html_(self) -> str:
        style = f"width: 100%; height: {HEIGHT}px; border: 0"
        return f'<iframe srcdoc="{escape(self.html)}" style="{style}"></iframe>'


def layouts_page(
    file: str,
    choice: Choice,
    sources: Sources,
    target: str | None = None,
    search_seconds: float | None = None,
) -> ReportPage:
    """Return the page of a model under every chosen layout, or of what a file without layouts of one mesh declares instead.

    Raises `CompileError`, `UsageError` and `NothingFits`.

    target: the machine of predicted times; None for the first that the file declares, else the default one. search_seconds: also
    search so long for the best layout, on as many devices as the first layout has, and show it beside the others.
    """
    selection = select(file, choice, sources, every_layout=True, or_placement=True, or_multi_mesh=True)
    has_layouts = any(case.layout is not UNDISTRIBUTED for case in selection.cases)
    if not has_layouts and (selection.multi_mesh or selection.placements):
        several = bool(selection.multi_mesh)
        if search_seconds is not None:
            space, what = ("meshes", "those of several meshes") if several else ("soap", "placements")
            raise UsageError(f"--search finds layouts: `mtfc search {file} --space {space}` finds {what}")
        return (_multi_mesh_page if several else _placements_page)(selection, target, sources)
    say_left_out(selection, "the page lacks", "`mtfc report --layout NAME` has such a layout")
    hardware = _hardware(target, selection.cases, selection, sources)
    found, search = None, None
    if search_seconds is not None:
        found, search = _searched(file, choice, sources, hardware, selection, search_seconds, target)
    cases = (*selection.cases, *([found] if found else []))
    layouts = [reported_layout(selection.program, case, hardware) for case in each_of(cases, "layout")]
    return _page(layouts, hardware, sources, _size_expressions(file, choice, sources), search)


def plan_page(
    program: Program, case: LayoutOnMesh, hardware: Hardware, texts: Mapping[str, str]
) -> ReportPage:
    """Return the page of an imported function under one layout; texts: each file's text by name."""
    sources = Sources()
    sources.texts |= texts
    return _page([reported_layout(program, case, hardware)], hardware, sources, {}, None)


def _page(
    layouts: Sequence[ReportedLayout],
    hardware: Hardware,
    sources: Sources,
    expressions: Mapping[str, Any],
    search: Mapping[str, Any] | None,
) -> ReportPage:
    """Return the page of one layout, or of several side by side.

    expressions: formulas for JSON. search: the record of a search.
    """
    data = report_json(layouts, hardware, sources.with_library(), expressions, search)
    name = layouts[0].program.name
    return _page_of(f"{name}: layouts side by side" if len(layouts) > 1 else name, data)


def _page_of(title: str, data: Mapping[str, Any]) -> ReportPage:
    """Return the page of a record, with the versions of the record and of mtfc."""
    return ReportPage(title, {"format": FORMAT, **data, "version": installed_version()})


def _multi_mesh_page(selection: Selection, target: str | None, sources: Sources) -> ReportPage:
    """Return the page of layouts on several meshes."""
    hardware = _hardware(target, selection.multi_mesh, selection, sources)
    if target is None:
        for case in selection.multi_mesh:
            check_room(hardware, case.mesh, hardware.name)
    programs = [case.program(selection.program) for case in each_of(selection.multi_mesh, "layout")]
    found = [
        ReportedMeshes(each, SimulatedMeshes.of(multi_mesh_step(each, hardware), hardware))
        for each in programs
    ]
    return _titled(selection, "layout", found, hardware, sources)


def _titled(
    selection: Selection,
    kind: str,
    found: Sequence[ReportedMeshes] | Sequence[ReportedPlacement],
    machine: Machine,
    sources: Sources,
) -> ReportPage:
    """Return the page of layouts of several meshes, or of placements."""
    shown = f"{kind}s side by side" if len(found) > 1 else f"{kind} {found[0].simulated.name}"
    return _page_of(f"{selection.program.name}: {shown}", steps_json(found, machine, sources.texts))


def _placements_page(selection: Selection, target: str | None, sources: Sources) -> ReportPage:
    """Return the page of placements, on the target or on a machine of the file with enough devices."""
    from mtfc.driver.searching.search import DEFAULT_TARGET

    placements = selection.placements
    devices = max(each.devices for each in placements)
    fitting = (each for each in selection.hardware.values() if (each.devices or devices) >= devices)
    if target is not None:
        hardware = machine_of(target, selection.hardware, sources)
    else:
        hardware = next(fitting, None) or target_of(DEFAULT_TARGET, {}, sources)
    found = [
        _reported_placement(each, selection.program, hardware, target)
        for each in each_of(placements, "placement")
    ]
    return _titled(selection, "placement", found, hardware, sources)


def _reported_placement(
    placement: DeclaredPlacement, program: Program, hardware: Machine, target: str | None
) -> ReportedPlacement:
    """Simulate the step of a placement. Raises `CompileError`."""
    from mtfc.placements.placed_step import span_of

    simulated = simulate_placement(placement, program, hardware, target or hardware.name)
    operators = simulated.space.graph.operators
    shown = drawn(operators, simulated.found.strategy)
    return ReportedPlacement(simulated, shown, [span_of(each) for each in operators])


def reported_layout(program: Program, case: LayoutOnMesh, hardware: Hardware) -> ReportedLayout:
    """Compile a global program for a layout, and simulate its step if the mesh fits on the machine."""
    lowered = case.lower(program)
    function, sent = sent_under(program, case, lowered)
    if not has_room(hardware, case.mesh):
        return ReportedLayout(lowered, program.dims, sent, reasons(program), None)
    step = simulate_layout(lowered, hardware)
    plan = PlanFigures(program, function, case.mesh, case.layout, hardware, step.step).rows()
    return ReportedLayout(lowered, program.dims, sent, reasons(program), step, plan)


def _hardware(target: str | None, cases: Sequence[Case], selection: Selection, sources: Sources) -> Hardware:
    """Return the machine of the predictions. Raises `CompileError` if a mesh does not fit on the machine that was asked for."""
    from mtfc.driver.searching.search import DEFAULT_TARGET

    if target is not None:
        hardware = target_of(target, selection.hardware, sources)
        for case in cases:
            check_room(hardware, case.mesh, target)
        return hardware
    fitting = (
        each
        for each in selection.hardware.values()
        if isinstance(each, Hardware) and all(has_room(each, case.mesh) for case in cases)
    )
    return next(fitting, None) or target_of(DEFAULT_TARGET, {}, sources)


# The search


@attrs.define
class _Recorder:
    """Keeps the best cost and the bound of a search over time, and reports on."""

    outer: Progress
    started: float
    points: list[list[float | None]] = attrs.field(factory=list)

    def __call__(self, doing: str, best: float | None, bound: float | None) -> None:
        self.outer(doing, best, bound)
        point = [round(monotonic() - self.started, 4), best, bound]
        if not self.points or self.points[-1][1:] != point[1:]:
            self.points.append(point)


def _searched(
    file: str,
    choice: Choice,
    sources: Sources,
    hardware: Hardware,
    selection: Selection,
    seconds: float,
    target: str | None,
) -> tuple[LayoutOnMesh, dict[str, Any]]:
    """Return the best layout that a search finds, under a name of its own, and the record of the search with its progress."""
    from mtfc.driver.searching.search import search
    from mtfc.reports.search_report import LayoutSearchResult
    from mtfc.reports.source_lines import free_name

    devices = selection.cases[0].mesh.devices
    recorder = _Recorder(PROGRESS.get(), monotonic())
    declared = hardware.name if hardware.name in selection.hardware else None
    asked = SearchOptions(
        file,
        attrs.evolve(choice, layout=None, mesh=None),
        target or declared or hardware.name,
        devices,
        budget=seconds,
    )
    with progress_to(recorder):
        answer = search(asked, sources)
    result = answer.result
    assert isinstance(result, LayoutSearchResult)
    record, found = result.record(), result.found
    recorder("done", result.seconds_of(result.price), found.lower_bound or None)
    layout = attrs.evolve(found.layout, name=free_name("found", {case.name for case in selection.cases}))
    return LayoutOnMesh(found.mesh, layout), {
        "record": record,
        "points": recorder.points,
        "name": layout.name,
        "kinds": result.kinds,
    }


# Sizes that are computed from others


def _size_expressions(file: str, choice: Choice, sources: Sources) -> dict[str, Any]:
    """Return for each declared dimension how its size is computed; sizes of options are numbers."""
    if choice.source is not None:
        return {}
    tree = parse(sources.texts[known_as(file)], file, Diagnostics())
    declared = (each for each in tree.declarations if isinstance(each, ast.DimDecl))
    return {each.name.text: _expression(each.size) for each in declared if each.name.text not in choice.dims}


def _expression(node: ast.Expr) -> Any:
    """Return a number, a name, or `[operator, operand, ...]`."""
    match node:
        case ast.Int():
            return node.value
        case ast.Name() | ast.Path():
            return node.text
        case ast.Unary():
            return [node.op, _expression(node.operand)]
        case ast.Binary():
            return [node.op, _expression(node.left), _expression(node.right)]
    return None


# Runs


def is_run(file: str) -> bool:
    """True if a path is a folder, which only a training run is; remote paths are those of folders."""
    return is_remote(file) or Path(file).is_dir()


def run_page(folder: str) -> ReportPage:
    """Return the page of a training run, which may still go on.

    Raises `UsageError` if the folder has no figures of steps, and `Unavailable` if a remote one cannot be read.
    """
    read = _remote_run if is_remote(folder) else _local_run
    name, path, text, checkpoints = read(folder)
    data = run_json(name, _figures(path, text), checkpoints)
    return _page_of(f"run {name}", data)


def _local_run(folder: str) -> tuple[str, str, str, Sequence[int]]:
    """Return the name of a run, the path and the text of its figures, and the steps of its checkpoints."""
    from mtfc.driver.training.metrics import METRICS

    path = Path(folder) / METRICS
    try:
        text = path.read_text("utf-8")
    except FileNotFoundError:
        raise UsageError(f"{folder} has no {METRICS}: {NAME_A_RUN}") from None
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"cannot read {path}: {reason_of(error)}") from None
    return Path(folder).resolve().name, str(path), text, steps_in(Path(folder) / CHECKPOINTS)


def _remote_run(url: str) -> tuple[str, str, str, Sequence[int]]:
    """Return the same of a run in a remote folder, whose figures may stand in several files."""
    from mtfc.driver.training.run_folder import figures_in

    remote = RemoteFolder.open(url)
    names = remote.names()
    parts = [remote.read(each) or b"" for each in figures_in(names)]
    if not parts:
        raise UsageError(f"{url} has no figures of steps: {NAME_A_RUN}")
    with raised_as(UsageError, f"cannot read the figures in {url}", UnicodeDecodeError):
        text = b"".join(parts).decode("utf-8")
    return remote.url.rpartition("/")[2], f"the figures in {remote.url}", text, remote_steps(names)


NAME_A_RUN = "name the --dir of a training run, or a .mtf file"


def _figures(path: str, text: str) -> list[dict[str, Any]]:
    """Return the figures of each step, by rising steps; the last line may be a part of one."""
    from mtfc.driver.training.metrics import record_of

    lines = text.splitlines()
    found: dict[int, dict[str, Any]] = {}
    for number, line in enumerate(lines, 1):
        record = record_of(line)
        if record is not None:
            found[record["step"]] = record
        elif number < len(lines):
            raise UsageError(f"{path}: line {number} is no object with a `step`, as `mtfc train` writes it")
    if not found:
        raise UsageError(f"{path} has no steps yet")
    return [found[step] for step in sorted(found)]
