"""`mtfc search`: the best layout for a machine, what it costs beside others, and how far from the best it can be."""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Mapping, Sequence
from time import monotonic
from typing import TYPE_CHECKING, Any

import attrs

from mtfc.cli.options import add_format, add_model, add_source, count, seconds
from mtfc.cli.progress import clear, reporter
from mtfc.driver.data.files import check_apart, check_writable, report_to, write_text
from mtfc.driver.errors import ERRORS, INTERRUPTED, OK, UsageError, say
from mtfc.driver.searching.compilation_time import compiling
from mtfc.driver.selection import Choice, Selection, choose
from mtfc.driver.sources import Sources, known_as
from mtfc.driver.target import file_of, target_of

if TYPE_CHECKING:
    from mtfc.compiler.cost.hardware import Hardware
    from mtfc.compiler.ir.types import Layout, Mesh
    from mtfc.compiler.search.found import Found, Objective, Progress
    from mtfc.compiler.search.pricer import Pricer
    from mtfc.driver.searching.search_result import Result
    from mtfc.driver.searching.search_soap import Placed
    from mtfc.driver.searching.why_not import Asked

EXAMPLES = """\
examples:
  mtfc search model.mtf --target tpu_v2                     the best mesh and layout for all its processors
  mtfc search model.mtf --target h100 --devices 64 -o best.mtf
  mtfc search model.mtf --mesh "rows:16;cols:32" --target tpu_v2
  mtfc search model.mtf --target p2_8xlarge --objective memory
  mtfc search model.mtf --target tpu_v2 --axes-names data,model
  mtfc search model.mtf --mesh grid --why-not "batch:rows"  what this rule would cost, and through which lines

  mtfc search model.mtf --space soap --target p100_cluster --devices 4 -o placed.mtf
  mtfc search model.mtf --space soap --target p100_cluster --devices 4 --exhaustive
  mtfc search model.mtf --space soap --target p100_cluster --devices 4 --why-not "h: { batch: 4 }; y: {} on [0]"

OUT.mtf is FILE, with the sizes that --dim gives and the layout `found` as its first, so that `mtfc compile OUT.mtf` takes it; or
with the placement `found`, which `mtfc verify OUT.mtf` runs.
"""

DEFAULT_TARGET = "h100"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_source(parser)
    where = parser.add_argument_group("for which processors")
    where.add_argument("--devices", type=count, metavar="N", help="so many, as a mesh of any shape")
    where.add_argument("--mesh", metavar="NAME|SHAPE", help="this mesh; `one` is one device")
    where.add_argument(
        "--target",
        metavar="HW",
        help=f"which machine (default: the first that FILE declares, else {DEFAULT_TARGET})",
    )
    where.add_argument("--axes", type=count, metavar="N", help="axes of a mesh at most (default: 3)")
    where.add_argument(
        "--axes-names",
        type=lambda text: [name.strip() for name in text.split(",")],
        metavar="A,B",
        help="what the axes are called, the outermost first, and so how many there are at most (default: x,y,z)",
    )
    parser.add_argument(
        "--space",
        choices=(*SPACES, "soap"),
        default="rules",
        help="; ".join(f"{name}: {space.summary}" for name, space in SPACES.items())
        + "; soap: a placement of each operator (default: rules)",
    )
    parser.add_argument(
        "--storage",
        action="store_true",
        help="also how parameters and the optimizer's state are stored: the sections params and optimizer of a layout",
    )
    parser.add_argument(
        "--objective",
        choices=("time", "overlap", "memory"),
        default="time",
        help="the least time within memory, while nothing overlaps or with overlap; or the least memory (default: time)",
    )
    parser.add_argument(
        "--budget", type=seconds, default=60.0, metavar="SECONDS", help="when to stop (default: 60)"
    )
    parser.add_argument(
        "--exhaustive",
        action="store_true",
        help="until what is found is proven to be the best of all, on few devices; with --space soap",
    )
    parser.add_argument(
        "--why-not",
        metavar="RULES",
        help="what the best layout with these rules takes, and through which lines",
    )
    parser.add_argument("-o", "--output", metavar="OUT.mtf", help="write FILE with what was found")
    parser.add_argument(
        "--export",
        metavar="OUT.json",
        help="write what `mtfc solve` is asked about the mesh that was found; with --space tiling",
    )
    add_model(parser)
    add_format(parser)


@attrs.frozen
class Request:
    """The request of a search: the program, the machine, the candidate meshes, the deadline and the layouts known before.

    others: layouts to compare with the result. known: the same layouts under the axis names of the result.
    """

    selection: Selection
    pricer: Pricer
    hardware: Hardware
    meshes: tuple[Mesh, ...]
    others: Mapping[str, tuple[Mesh, Layout]]
    known: tuple[tuple[Mesh, Layout], ...]
    objective: Objective
    storage: bool
    until: float
    progress: Progress


@attrs.frozen
class Space:
    """A set of layouts, and how the best of them is found."""

    summary: str
    search: Callable[[Request], Found]


def _rules(request: Request) -> Found:
    from mtfc.compiler.search.global_layouts.global_search import search

    return search(
        request.pricer.undistributed(),
        request.selection.program.function("forward"),
        request.meshes,
        request.hardware,
        request.pricer.pricing(request.objective),
        request.until,
        request.objective,
        request.known,
        request.progress,
        storage=request.storage,
    )


def _tiling(request: Request) -> Found:
    from mtfc.compiler.search.per_equation.per_equation_search import search
    from mtfc.driver.layout_targets import prepared

    if request.objective == "memory":
        raise UsageError("the space `tiling` has the least time for its objective")
    return search(
        prepared(request.selection.program),
        set(request.selection.program.dims),
        request.meshes,
        request.hardware,
        request.pricer.pricing(request.objective),
        request.until,
        request.objective,
        request.known,
        request.progress,
    )


SPACES: Mapping[str, Space] = {
    "rules": Space("one rule for each dimension", _rules),
    "tiling": Space("a layout for each equation", _tiling),
}


def _export(path: str, request: Request, mesh: Mesh) -> None:
    from mtfc.compiler.search.per_equation.per_equation_search import exported
    from mtfc.compiler.search.solver.contest_format import write
    from mtfc.driver.layout_targets import prepared

    program = request.selection.program
    problem = exported(prepared(program), set(program.dims), mesh, request.hardware)
    write_text(path, f"{write(problem)}\n")


def run(options: argparse.Namespace, sources: Sources) -> int:
    from mtfc.compiler.search.found import NothingFits

    try:
        return _searched(options, sources)
    except NothingFits as error:
        say(f"{options.file}: {error}")
        return ERRORS
    finally:
        clear()


def _searched(options: argparse.Namespace, sources: Sources) -> int:
    check_writable(options.output, options.export)
    check_apart(
        {"-o": options.output, "--export": options.export},
        {"FILE": options.file, "--target": file_of(options.target)},
    )
    try:
        found = find(options, sources, reporter(".4g", monotonic() + options.budget))
    except KeyboardInterrupt:
        clear()
        say(f"{options.file}: interrupted before anything was found")
        return INTERRUPTED
    clear()
    return (_placed if options.space == "soap" else _shown)(options, found, sources)


def find(options: argparse.Namespace, sources: Sources, progress: Progress) -> Any:
    """What the options ask for: a `search_result.Result`, or in the space `soap` a `search_soap.Placed`.

    Raises `NothingFits`, `CompileError` and `UsageError`.
    """
    from mtfc.driver.searching.meshes import searched_meshes

    _check(options)
    started = monotonic()
    file = sources.read(options.file)
    selection = choose(
        sources.texts[file],
        file,
        _choice(options),
        every_layout=True,
        neighbour=sources.neighbour,
        skip_illegal=True,
    )
    hardware = _hardware(options, selection, sources)
    meshes = searched_meshes(options, selection, hardware)
    asked = _asked(options, selection, sources, meshes)
    until = started + options.budget
    if options.space == "tiling":
        from mtfc.compiler.search.solver.solver_search import compile_loops

        until += compiling(compile_loops, "--budget")[1]
    if options.space == "soap":
        from mtfc.driver.searching.search_soap import search

        why_not = options.why_not
        return search(selection, hardware, meshes[0].devices, until, options.exhaustive, progress, why_not)
    request = _request(options, selection, hardware, meshes, until, progress)
    found = SPACES[options.space].search(request)
    if options.export is not None:
        _export(options.export, request, found.mesh)
    return _result(options, request, found, asked, started)


def _asked(
    options: argparse.Namespace, selection: Selection, sources: Sources, meshes: Sequence[Mesh]
) -> Asked | None:
    """Return the rules of `--why-not` for a space of layouts, or None. Wrong rules raise an error before the search begins."""
    if options.why_not is None:
        return None
    sources.texts["<--why-not>"] = options.why_not
    if options.space == "soap":
        return None
    from mtfc.driver.searching.meshes import possible_meshes
    from mtfc.driver.searching.why_not import asked_of

    meshes = possible_meshes(options, selection, meshes)
    return asked_of(options.why_not, known_as(options.file), _choice(options), sources, options.space, meshes)


def _check(options: argparse.Namespace) -> None:
    """Raise `UsageError` where options do not go together, or ask for too much."""
    from mtfc.driver.searching.meshes import check_options

    check_options(options)
    if options.export is not None and options.space != "tiling":
        raise UsageError("--export takes --space tiling: the other spaces are not the solver's")
    if options.exhaustive and options.space != "soap":
        raise UsageError("--exhaustive takes --space soap: the other spaces are searched so anyway")
    if options.storage and options.space != "rules":
        raise UsageError(
            "--storage takes --space rules: tilings say how everything is stored, and placements hold copies"
        )
    if options.space == "soap" and options.objective != "time":
        raise UsageError("the space `soap` has no --objective but time")


def _choice(options: argparse.Namespace) -> Choice:
    return Choice(options.model, None, options.mesh, options.dims, tuple(options.settings))


def _request(
    options: argparse.Namespace,
    selection: Selection,
    hardware: Hardware,
    meshes: tuple[Mesh, ...],
    until: float,
    progress: Progress,
) -> Request:
    """With the others priced already: what that takes for one of them is left for what will be found."""
    from mtfc.compiler.search.pricer import Pricer
    from mtfc.driver.searching.baselines import baselines
    from mtfc.driver.searching.meshes import under_names

    pricer = Pricer.of(selection.program, hardware)
    given = meshes[0] if options.mesh is not None else None
    others = baselines(selection, pricer, meshes[0].devices, given, until)
    known = tuple(others.values())
    if options.axes_names is not None:
        known = tuple(under_names(known, meshes))
    longest = max((_seconds_of(pricer, *each) for each in others.values()), default=0.0)
    return Request(
        selection,
        pricer,
        hardware,
        meshes,
        others,
        known,
        options.objective,
        options.storage,
        until - longest,
        progress,
    )


def _seconds_of(pricer: Pricer, mesh: Mesh, layout: Layout) -> float:
    """How long it takes to price a layout as it is shown."""
    started = monotonic()
    pricer.with_overlap(mesh, layout)
    return monotonic() - started


def _result(
    options: argparse.Namespace, request: Request, found: Found, asked: Asked | None, started: float
) -> Result:
    from mtfc.driver.searching.search_result import Result

    return Result(
        options.space,
        found,
        request.selection.program,
        request.pricer,
        request.others,
        tuple(case.mesh for case in request.selection.cases),
        request.meshes,
        options.objective,
        options.storage,
        monotonic() - started,
        asked,
    )


def _shown(options: argparse.Namespace, result: Result, sources: Sources) -> int:
    """Write and print what was found, and what was asked about it."""
    from mtfc.driver.searching.search_result import record, report
    from mtfc.driver.searching.why_not import forced, why_not_json, why_not_report

    if options.output is not None:
        write_text(options.output, _with_layout(options, result, sources))
    asked = forced(result.asked, result, options.budget) if result.asked is not None else None
    to = report_to(options.output, options.export)
    if options.format == "json":
        extra = {"why_not": why_not_json(asked, result)} if asked else {}
        print(json.dumps({**record(result), **extra}, indent=2), file=to)
        return OK
    print(report(result), file=to)
    if asked:
        print(f"\n{why_not_report(asked, result, sources)}", end="", file=to)
    return OK


def _with_layout(options: argparse.Namespace, result: Result, sources: Sources) -> str:
    """Return the text of the file with the found layout, which allows the warnings that the check has about it."""
    from mtfc.driver.layout_targets import placeable
    from mtfc.driver.searching.search_result import inserted, name_in, resized
    from mtfc.frontend.check import check
    from mtfc.frontend.layouts.allowed_warnings import OF_LAYOUTS

    file = known_as(options.file)
    text = resized(sources.texts[file], options.dims)
    name, neighbour = name_in(text, result), sources.neighbour
    found = check(inserted(text, result), file, None, options.model, name, None, neighbour, placeable)
    warned = {each.code for each in found}
    return inserted(text, result, [code for code in OF_LAYOUTS if code in warned])


def _placed(options: argparse.Namespace, found: Placed, sources: Sources) -> int:
    """The same in the `soap` space, in which there are no layouts."""
    from mtfc.driver.searching.search_result import resized
    from mtfc.driver.searching.search_soap import inserted, record, report
    from mtfc.driver.searching.why_not_soap import forced, why_not_json, why_not_report

    if options.output is not None:
        text = resized(sources.texts[known_as(options.file)], options.dims)
        write_text(options.output, inserted(text, found))
    budget = options.budget, options.exhaustive
    asked = forced(options.why_not, sources, found, *budget) if options.why_not is not None else None
    to = report_to(options.output)
    if options.format == "json":
        extra = {"why_not": why_not_json(asked)} if asked else {}
        print(json.dumps({**record(found), **extra}, indent=2), file=to)
        return OK
    print(report(found), file=to)
    if asked:
        print(f"\n{why_not_report(asked, sources)}", end="", file=to)
    return OK


def _hardware(options: argparse.Namespace, selection: Selection, sources: Sources) -> Hardware:
    """The machine that is asked for, or that the file declares, or the default one."""
    if options.target is None and selection.hardware:
        return next(iter(selection.hardware.values()))
    if options.target is None:
        say(f"for {DEFAULT_TARGET}; choose another machine with --target")
    return target_of(options.target or DEFAULT_TARGET, selection.hardware, sources)
