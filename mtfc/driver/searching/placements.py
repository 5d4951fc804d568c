"""The search for a placement of each operator: the strategies to start from, the proof, and the answer."""

from collections.abc import Callable, Collection
from functools import partial
from math import inf
from time import monotonic

import attrs

from mtfc.backends.common import allocator
from mtfc.compiler.cost.hardware import Hardware
from mtfc.compiler.diagnostics import Diagnostics
from mtfc.compiler.ir.types import Layout, Mesh
from mtfc.compiler.passes.pipelines import run, simplification
from mtfc.compiler.search.pricer import LayoutPricer
from mtfc.compiler.search.usual_layouts import usual_layouts
from mtfc.driver.errors import UsageError
from mtfc.driver.options import ChainOptions
from mtfc.driver.searching.compilation_time import timing_compilation
from mtfc.driver.searching.space import SearchAnswer, SearchTask, on_clock
from mtfc.placements.declarations import DeclaredPlacement, asked_configurations, entry_text, strategy_of
from mtfc.placements.mcmc import BETA, ChainSettings, PlacementResult, SearchBudget
from mtfc.placements.operators.operator_graph import operators_of
from mtfc.placements.operators.strategy import KINDS, layout_strategy
from mtfc.placements.placement_search import PlacementSpace, placement_search, placement_space, proven
from mtfc.placements.simulator.evaluation import EvaluatedStrategy
from mtfc.reports.search_report import LayoutAsPlacement, PlacementSearchResult
from mtfc.reports.source_lines import free_name
from mtfc.reports.why_not_report import WhyNot, placement_answer

BEFORE_PROOF = 0.1
"""The part of the time before an exhaustive search begins."""

FEW = 10_000
"""The most strategies of a space that is always searched exhaustively."""


def search_placements(task: SearchTask) -> SearchAnswer:
    """Search placements. An exhaustive search, also done if strategies are few, gets most of the time.

    Raises `NothingFits`, and `CompileError` if a declared placement or the placement of `--why-not` is wrong.
    """
    options, selection, devices = task.options, task.selection, task.meshes[0].devices
    started = monotonic()
    allocator.keep_memory()  # a task graph consists of few large arrays
    program = run(selection.program, simplification())
    graph = operators_of(program)  # errors come before loops are compiled
    if options.why_not is not None:
        task.sources.texts["<--why-not>"] = options.why_not
        asked_configurations(options.why_not, devices, graph, selection.module.scope, task.machine)
    declared = [each for each in selection.placements if _fits(each, devices)]
    given = {each.name: strategy_of(each, graph, Diagnostics()) for each in declared}
    made = partial(placement_space, program, task.machine, devices, operators=graph)
    space, compiled = timing_compilation(made, "--budget")
    space = _within(space, options.chains)
    starts, settings = _starts(options.chains, given), _settings(options.chains)
    find = partial(placement_search, space, settings=settings, given=given, starts=starts)
    until, proposals = on_clock(task.until + compiled), options.chains.proposals
    found = _searched(find, space, until, options.exhaustive, proposals)
    name = free_name("found", {each.name for each in selection.placements})
    is_declared = selection.hardware.get(task.machine.name) is task.machine
    seconds, machine = monotonic() - started, task.machine if is_declared else None
    placed, layout = (None, None) if found.is_interrupted else _best_layout(task, space)
    if placed is not None and space.kinds is None and placed.seconds < found.best.seconds:
        found = attrs.evolve(found, best=placed, locally_optimal=False)
    result = PlacementSearchResult(
        selection.program.name, name, space, found, seconds, machine, layout, options.exhaustive
    )
    return SearchAnswer(result, partial(_written, task, result), partial(_why_not, task, result))


def _best_layout(
    task: SearchTask, space: PlacementSpace
) -> tuple[EvaluatedStrategy, LayoutAsPlacement] | tuple[None, None]:
    """Return the best placement that is also a layout, of the file or one that anybody would try; None if there is none.

    The layout has the price of all other spaces.
    """
    program, devices = task.selection.program, space.devices
    if not isinstance(task.machine, Hardware) or devices == 1:
        return None, None
    line = Mesh("line", (("all", devices),))
    cases = [(line, each) for each in usual_layouts(program.function("forward"), line, False).values()]
    own = [(each.mesh, each.layout) for each in task.selection.cases if each.mesh.devices == devices]
    cases += [(mesh, layout) for mesh, layout in own if layout == Layout(layout.name, layout.rules)]
    found = [
        (space.evaluator.full(strategy), mesh, layout)
        for mesh, layout in cases
        if (strategy := layout_strategy(space.graph, space.choices, mesh, layout.rules)) is not None
    ]
    placed, mesh, layout = min(found, key=lambda each: each[0].seconds, default=(None, line, Layout("")))
    if placed is None or placed.seconds == inf:
        return None, None
    step = LayoutPricer.of(program, task.machine)(mesh, layout)
    return placed, LayoutAsPlacement(mesh, layout, placed.seconds, step.seconds)


def _written(task: SearchTask, result: PlacementSearchResult) -> str:
    """Return the text of the file with the found placement at the end."""
    text = task.text
    return f"{text}{'' if text.endswith(chr(10)) else chr(10)}\n{result.text()}"


def _why_not(task: SearchTask, best: PlacementSearchResult) -> WhyNot | None:
    """Search for the best placement with the configurations of `--why-not`, if any, in the time of the search.

    Raises `CompileError` if no operator can be split so, and `NothingFits`.
    """
    options, graph = task.options, best.space.graph
    if options.why_not is None:
        return None
    scope, machine = task.selection.module.scope, task.machine
    rules = asked_configurations(options.why_not, best.space.devices, graph, scope, machine)
    within, known = best.space.restricted_to(rules), {"found": best.found.best, **best.found.baselines}
    find = partial(
        placement_search, within, settings=_settings(options.chains), starts=known, evaluated=known
    )
    found = _searched(find, within, monotonic() + options.budget, options.exhaustive)
    written = "; ".join(entry_text(graph.operators[i], each) for i, each in sorted(rules.items()))
    return placement_answer(written, best, found)


def _searched(
    find: Callable[[SearchBudget], PlacementResult],
    space: PlacementSpace,
    until: float,
    exhaustive: bool,
    proposals: int | None = None,
) -> PlacementResult:
    """Return the best strategy of a space, with a proof if the search is exhaustive or strategies are few."""
    few = int(space.strategies) if space.strategies <= FEW else None
    exhaustive |= few is not None
    seconds = (until - monotonic()) * (BEFORE_PROOF if exhaustive else 1.0)
    result = find(SearchBudget(seconds, proposals=few if proposals is None else proposals, descent=few))
    if exhaustive and not result.is_interrupted and not result.is_optimal:
        result = proven(space, result, until - monotonic())
    return result


def _settings(options: ChainOptions) -> ChainSettings:
    beta = BETA if options.beta is None else options.beta
    return ChainSettings(beta, options.seed or 0, options.simulation == "full")


def _within(space: PlacementSpace, options: ChainOptions) -> PlacementSpace:
    """Restrict the space to the kinds of parallelism that are asked for. Raises `UsageError` for an unknown kind."""
    if options.dimensions is None and not options.one_dimension:
        return space
    allowed = tuple(KINDS) if options.dimensions is None else options.dimensions
    unknown = [each for each in allowed if each not in KINDS]
    if unknown or not allowed:
        kinds = "; ".join(f"{kind}: {what}" for kind, what in KINDS.items())
        raise UsageError(f"--dimensions {','.join(allowed)}: choose some of {kinds}")
    return space.within(allowed, options.one_dimension)


def _starts(options: ChainOptions, given: Collection[str]) -> Collection[str] | None:
    """Return the names of the strategies to start from. Raises `UsageError` for an unknown one."""
    names = ("data_parallel", "expert", "random", *given)
    unknown = [each for each in options.starts or () if each not in names]
    if unknown or options.starts == []:
        raise UsageError(f"--starts {','.join(options.starts or ())}: choose some of {', '.join(names)}")
    return options.starts


def _fits(placement: DeclaredPlacement, devices: int) -> bool:
    """True if a placement is for this number of devices, and splits no operator into more parts than devices."""
    return placement.devices == devices and all(len(each.devices) <= devices for each in placement.operators)
