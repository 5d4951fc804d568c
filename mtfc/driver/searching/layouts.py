"""Searches for global layouts and for per-equation layouts: the request, the baselines and the answer."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from time import monotonic
from typing import cast

import attrs

from mtfc.compiler.garbage import few_collections
from mtfc.compiler.ir.core import Function, Program
from mtfc.compiler.ir.printer import bytes_text
from mtfc.compiler.ir.types import Forms, Layout, Mesh, Rules
from mtfc.compiler.passes.recompute import limit_on
from mtfc.compiler.search.forms_search import FormsSearch, RecordedPricing, forms_of, with_loop_forms
from mtfc.compiler.search.found import (
    IN_BYTES,
    Found,
    NothingFits,
    Objective,
    Pricing,
    Progress,
    silent,
    value_of,
)
from mtfc.compiler.search.pricer import LayersPricer, LayoutPricer, of_layers
from mtfc.driver.errors import say
from mtfc.driver.loading.layout_targets import layout_targets, prepared
from mtfc.driver.loading.sources import known_as
from mtfc.driver.searching.baselines import baselines
from mtfc.driver.searching.compilation_time import timing_compilation
from mtfc.driver.searching.meshes import possible_meshes, under_names, without_idle_axes
from mtfc.driver.searching.space import SearchAnswer, SearchTask, WhyNotAnswer
from mtfc.driver.searching.why_not import AskedRules, asked_rules, best_with_rules
from mtfc.driver.searching.written import declared_name, insert_layout, resized
from mtfc.reports.search_report import LayoutSearchResult
from mtfc.reports.why_not_report import LayoutDifference, UnfitRules

STARTING = 0.25
"""The part of the time of a search of tilings for the best global layout."""

FORMS_SHARE = 0.2
"""The part of the time of a search of global layouts in which the forms of the best of them are priced."""

EXACT = 1.5
"""The time that is left to price the best layout of a model with repeated layers exactly, in expected times."""


@attrs.frozen
class LayoutFinder:
    """A search of one space of layouts for a program on a machine, ready for any meshes and rules.

    objective: the quantity to minimize. storage: True to choose also how parameters and optimizer state are stored.
    """

    program: Program
    pricer: LayoutPricer
    objective: Objective
    storage: bool = False

    def best_global(
        self,
        meshes: Sequence[Mesh],
        until: float,
        known: Sequence[tuple[Mesh, Layout]] = (),
        rules: Layout | None = None,
        progress: Progress = silent,
        with_forms: bool = False,
    ) -> Found:
        """Find the best global layout until a time of `monotonic`. Raises `NothingFits`.

        known: layouts to start from. rules: rules that the layout must have. Repeated layers are priced once, and at the end the
        best layout is priced exactly. with_forms: choose also the forms of the layout, in a part of the time.
        """
        found = self._best_global(meshes, until, known, rules, progress, with_forms)
        return self.with_loop_forms(found) if with_forms else found

    def _best_global(
        self,
        meshes: Sequence[Mesh],
        until: float,
        known: Sequence[tuple[Mesh, Layout]],
        rules: Layout | None,
        progress: Progress,
        with_forms: bool,
    ) -> Found:
        layers, short = of_layers(self.pricer)
        asked = _GlobalRequest(self, meshes, known, rules or Layout(""), progress, short)
        with few_collections():
            return self._found(asked, layers, until, with_forms)

    def _found(
        self, asked: _GlobalRequest, layers: LayersPricer | None, until: float, with_forms: bool
    ) -> Found:
        find = asked.with_forms if with_forms else asked.without_forms
        exact = self.pricer.pricing(self.objective)
        if layers is None:
            return find(exact, until)
        pricing = layers.pricing(self.objective)
        some = [*asked.plain, *((mesh, asked.rules) for mesh in asked.meshes)]
        compiling = EXACT * min(_seconds(pricing, *each) for each in some[:2]) / layers.share
        best = find(pricing, until - compiling)
        price = exact(best.mesh, best.layout)
        if price.tiled > self.pricer.hardware.device.memory and self.objective != "memory":
            return find(exact, until)
        return _with_value(best, value_of(price, self.objective))

    def with_loop_forms(self, found: Found) -> Found:
        """Return the found layout with the forms of loops that shorten the step with overlap, if the time of a step counts."""
        (function,) = self.pricer.program.functions
        has_loops = any(eqn.regions for eqn in function.body)
        if not has_loops or found.is_interrupted or self.objective in IN_BYTES:
            return found
        memory = self.pricer.hardware.device.memory
        return with_loop_forms(found, self.pricer.with_overlap, self.objective, memory)

    def forms_search(
        self, recorded: RecordedPricing, until: float, given: Sequence[tuple[Mesh, Layout]] = ()
    ) -> FormsSearch:
        """Return a search for the forms of priced layouts. given: layouts with forms that are tried, too."""
        (function,) = self.pricer.program.functions
        hardware, prices = self.pricer.hardware, recorded.prices
        forms = forms_of(hardware.device, function)
        return FormsSearch(recorded.pricing, self.objective, hardware, forms, prices, until, given)

    def best_per_equation(
        self,
        meshes: Sequence[Mesh],
        until: float,
        known: Sequence[tuple[Mesh, Layout]] = (),
        rules: Layout | None = None,
        progress: Progress = silent,
        best_global: tuple[Mesh, Layout] | None = None,
    ) -> Found:
        """Find the best layouts of single equations until a time of `monotonic`. Arguments and errors are as in `best_global`."""
        from mtfc.compiler.search.per_equation.per_equation_search import search

        return search(
            prepared(self.program),
            set(self.program.dims),
            meshes,
            self.pricer.hardware,
            self.pricer.pricing(self.objective),
            until,
            self.objective,
            known,
            progress,
            fixed=(rules or Layout("")).value_rules,
            best_global=best_global,
        )


@attrs.frozen
class _GlobalRequest:
    """A search for the best global layout. known, rules: see `LayoutFinder.best_global`. layers: see `global_search.search`."""

    finder: LayoutFinder
    meshes: Sequence[Mesh]
    known: Sequence[tuple[Mesh, Layout]]
    rules: Layout
    progress: Progress
    layers: tuple[Sequence[Function], int] | None

    @property
    def plain(self) -> list[tuple[Mesh, Layout]]:
        """The known layouts without their forms, each once."""
        found = ((mesh, attrs.evolve(layout, forms=Forms())) for mesh, layout in self.known)
        return [*dict.fromkeys(found)]

    def without_forms(self, pricing: Pricing, until: float) -> Found:
        """Find the best layout without forms. Raises `NothingFits`."""
        from mtfc.compiler.search.global_layouts.global_search import search

        finder = self.finder
        return search(
            finder.pricer.undistributed(),
            finder.program.function("forward"),
            self.meshes,
            finder.pricer.hardware,
            pricing,
            until,
            finder.objective,
            self.plain,
            self.progress,
            fixed=self.rules.rules,
            storage=finder.storage,
            recomputes=finder.pricer.recomputes,
            layers=self.layers,
        )

    def with_forms(self, pricing: Pricing, until: float) -> Found:
        """Find the best layout, whose forms are priced in a part of the time. Raises `NothingFits`."""
        recorded = RecordedPricing(pricing)
        given = [each for each in self.known if each[1].forms.entries]
        forms = self.finder.forms_search(recorded, until, given)
        try:
            best = forms.improved(self.without_forms(recorded, until - FORMS_SHARE * (until - monotonic())))
            return attrs.evolve(self._bounded(best, until), runner_up=forms.runner_up(best))
        except NothingFits:
            if (fitting := forms.fitting()) is not None:
                return fitting
            raise

    def _bounded(self, found: Found, until: float) -> Found:
        """Return the best layout with forms, with a bound for all layouts with regions on parts. Other forms have no bound."""
        from mtfc.compiler.search.global_layouts.global_search import bound_with_regions

        forms = found.layout.forms
        if forms != Forms(forms.regions) or not forms.entries or found.is_interrupted:
            return found
        finder = self.finder
        try:
            bound = bound_with_regions(
                finder.pricer.undistributed(),
                finder.program.function("forward"),
                self.meshes,
                finder.pricer.hardware,
                until,
                finder.objective,
                found.objective,
                fixed=self.rules.rules,
                storage=finder.storage,
                recomputes=finder.pricer.recomputes,
            )
        except KeyboardInterrupt:
            return attrs.evolve(found, is_interrupted=True)
        return attrs.evolve(found, lower_bound=bound)


def _with_value(found: Found, value: float) -> Found:
    """Return a result with the exact value of its layout."""
    return attrs.evolve(found, objective=value, lower_bound=min(found.lower_bound, value), refuted=None)


def _seconds(pricing: Pricing, mesh: Mesh, layout: Layout) -> float:
    """Return the seconds that it takes to price a layout."""
    start = monotonic()
    pricing(mesh, layout)
    return monotonic() - start


@attrs.frozen
class LayoutAnswer:
    """The best layout that a search found, the finder, and the rules of `--why-not`."""

    task: SearchTask
    finder: LayoutFinder
    result: LayoutSearchResult
    asked: AskedRules | None

    def record(self) -> dict[str, object]:
        """Return the JSON record."""
        return self.result.record()

    def report(self) -> str:
        """Return the layout, the proof, and a table of the layouts to compare with."""
        return self.result.report()

    def written(self) -> str:
        """Return the text of the file with the found layout, which allows the warnings that the check has about it.

        For a function of JAX, return the text of a plan.
        """
        from mtfc.frontend.check import check
        from mtfc.frontend.layouts.allowed_warnings import OF_LAYOUTS

        options, sources = self.task.options, self.task.sources
        if options.choice.source is not None:
            limit = limit_on(self.task.hardware) if options.recompute else None
            found = self.result.found
            return options.choice.source.plan_text(found.mesh, found.layout, limit)
        file = known_as(options.file)
        text = resized(sources.texts[file], options.choice.dims)
        found, declared = self.result.found, {case.mesh for case in self.task.selection.cases}
        name = declared_name(text, found.layout.name)
        inserted = insert_layout(text, found.mesh, found.layout, declared)
        model = options.choice.model
        warnings = check(inserted, file, None, model, name, None, sources.neighbour, layout_targets)
        codes = {each.code for each in warnings}
        allowed = [code for code in OF_LAYOUTS if code in codes]
        return insert_layout(text, found.mesh, found.layout, declared, allowed)

    def exported(self) -> str:
        """Return the question to the solver about the mesh of the result, for `mtfc solve`."""
        from mtfc.compiler.search.per_equation.per_equation_search import exported
        from mtfc.driver.loading.contest_format import write

        program, mesh = self.finder.program, self.result.found.mesh
        problem = exported(prepared(program), set(program.dims), mesh, self.finder.pricer.hardware)
        return f"{write(problem)}\n"

    def why_not(self) -> WhyNotAnswer | None:
        """Search for the best layout with the rules of `--why-not`, if any, in the time of the search."""
        if self.asked is None:
            return None
        seconds = self.task.options.budget
        if self.result.space == "tiling":
            return self._compared(self.asked, seconds, self.finder.best_per_equation, None)
        least = attrs.evolve(self.finder, objective="memory").best_global
        return self._compared(self.asked, seconds, partial(self.finder.best_global, with_forms=True), least)

    def _compared(
        self,
        asked: AskedRules,
        seconds: float,
        find: Callable[..., Found],
        find_least: Callable[..., Found] | None,
    ) -> LayoutDifference | UnfitRules:
        return best_with_rules(asked, self.result, seconds, find, find_least)


def search_global_layouts(task: SearchTask) -> SearchAnswer:
    """Search for the best global layout. Raises `NothingFits`, `CompileError` and `UsageError`."""
    asked = _asked(task)
    finder, others, known, until = finder_and_others(task, task.until)
    return answer_of(task, finder, _best_global(task, finder, known, until, True), others, asked)


def _best_global(
    task: SearchTask,
    finder: LayoutFinder,
    known: Sequence[tuple[Mesh, Layout]],
    until: float,
    with_forms: bool = False,
) -> Found:
    source = task.options.choice.source
    if source is None:
        return finder.best_global(task.meshes, until, known, progress=task.progress, with_forms=with_forms)

    def best(whole: Layout, known: Sequence[tuple[Mesh, Layout]], until: float) -> Found:
        given = [(mesh, attrs.evolve(x, rules=_joined(x.rules, whole.rules))) for mesh, x in known]
        return finder.best_global(task.meshes, until, given, whole, task.progress, with_forms)

    found = source.without_faults(best, [*known, *source.baselines(task.meshes)], until)
    if task.options.choice.mesh is not None:
        return found
    mesh = without_idle_axes(found.mesh, found.layout)
    if mesh != found.mesh:
        say(
            f"no rule uses {', '.join({*found.mesh.names} - {*mesh.names})}: the plan is for {mesh.devices} devices"
        )
    return attrs.evolve(found, mesh=mesh)


def search_forms(task: SearchTask) -> SearchAnswer:
    """Find the best forms of one layout, whose rules stay. Raises `NothingFits`, `CompileError` and `UsageError`.

    All forms are priced while there is time, and then those of loops.
    """
    options, program, case = task.options, task.selection.program, task.selection.cases[0]
    pricer = LayoutPricer.of(program, task.hardware, options.recompute)
    finder = LayoutFinder(program, pricer, cast("Objective", options.objective))
    declared = (case.mesh, case.layout)
    plain = attrs.evolve(case.layout, name="found", forms=Forms())
    recorded = RecordedPricing(pricer.pricing(finder.objective))
    price = recorded(case.mesh, plain)
    forms = finder.forms_search(recorded, task.until, [declared] if case.layout.forms.entries else [])
    start = Found(case.mesh, plain, value_of(price, finder.objective), 0.0, 1)
    if price.tiled > task.hardware.device.memory and finder.objective != "memory":
        found = forms.fitting()
        if found is None:
            least = bytes_text(min(each.tiled for each in recorded.prices.values()))
            room = bytes_text(int(task.hardware.device.memory))
            raise NothingFits(
                f"layout {case.name} fits with no forms: a device has {room}, and the least is {least}"
            )
    else:
        found = forms.improved(start)
    others = {case.name: declared} if case.layout.forms.entries else {}
    return answer_of(task, finder, finder.with_loop_forms(found), others, None)


def search_per_equation(task: SearchTask) -> SearchAnswer:
    """Search for the best layouts of single equations, starting from the best global layout, which is one of them.

    Raises `NothingFits`, `CompileError` and `UsageError`.
    """
    from mtfc.compiler.search.solver.solver_search import compile_loops

    asked = _asked(task)
    compiled = timing_compilation(compile_loops, "--budget")[1]
    finder, others, known, until = finder_and_others(task, task.until + compiled)
    if finder.objective == "bytes":
        found = finder.best_per_equation(task.meshes, until, progress=task.progress)
        return answer_of(task, finder, found, others, asked)
    start = _start(task, finder, known, until)
    if start is not None and start.is_interrupted:
        return answer_of(task, finder, attrs.evolve(start, lower_bound=0.0), others, asked)
    best = None if start is None else (start.mesh, start.layout)
    plain = [(mesh, layout) for mesh, layout in known if not layout.forms.entries]
    found = finder.best_per_equation(task.meshes, until, plain, None, task.progress, best)
    return answer_of(task, finder, found, others, asked)


def _start(
    task: SearchTask, finder: LayoutFinder, known: Sequence[tuple[Mesh, Layout]], until: float
) -> Found | None:
    """Return the best global layout that is found in a part of the time, or None if none fits into memory."""
    now = monotonic()
    with suppress(NothingFits):
        return _best_global(task, finder, known, now + STARTING * (until - now))
    return None


def search_cuts(task: SearchTask) -> SearchAnswer:
    """Search by k-cuts for layouts of single equations that send few bytes. Raises `NothingFits` and `CompileError`."""
    from mtfc.compiler.search.per_equation.k_cuts import search

    finder, others, _, until = finder_and_others(task, task.until)
    step, dims = prepared(finder.program), set(finder.program.dims)
    found, cuts = search(step, dims, task.meshes[0], until, task.progress)
    return answer_of(task, finder, found, others, None, cuts.sent)


def _joined(rules: Rules, others: Rules) -> Rules:
    return Rules((*rules.axes, *(each for each in others.axes if each[0] not in rules.by_dim)))


Others = Mapping[str, tuple[Mesh, Layout]]


def _asked(task: SearchTask) -> AskedRules | None:
    """Return the rules of `--why-not`, or None. Wrong rules raise an error before the search begins."""
    if task.options.why_not is None:
        return None
    meshes = possible_meshes(task.options, task.selection, task.meshes)
    return asked_rules(task.options, task.sources, meshes)


def finder_and_others(
    task: SearchTask, until: float
) -> tuple[LayoutFinder, Others, Sequence[tuple[Mesh, Layout]], float]:
    """Return the finder, the baselines, the layouts to start from, and the deadline of the search.

    The deadline leaves time to price the result: as long as the slowest baseline took.
    """
    options, program = task.options, task.selection.program
    pricer = LayoutPricer.of(program, task.hardware, options.recompute)
    given = task.meshes[0] if options.choice.mesh is not None else None
    others = baselines(task.selection, pricer, task.meshes[0].devices, given, until)
    known = tuple(each for each in others.values() if not each[1].pipelines)
    if options.axes_names is not None:
        known = tuple(under_names(known, task.meshes))
    longest = max((_seconds_of(pricer, *each) for each in others.values()), default=0.0)
    objective = cast("Objective", options.objective)
    return LayoutFinder(program, pricer, objective, options.storage), others, known, until - longest


def _seconds_of(pricer: LayoutPricer, mesh: Mesh, layout: Layout) -> float:
    """Return the seconds that pricing a layout takes."""
    started = monotonic()
    pricer.with_overlap(mesh, layout)
    return monotonic() - started


def answer_of(
    task: SearchTask,
    finder: LayoutFinder,
    found: Found,
    others: Others,
    asked: AskedRules | None,
    cuts: Sequence[float] = (),
) -> LayoutAnswer:
    result = LayoutSearchResult(
        task.options.space,
        found,
        finder.program,
        finder.pricer,
        others,
        task.meshes,
        finder.objective,
        monotonic() - task.started,
        tuple(cuts),
    )
    return LayoutAnswer(task, finder, result, asked)
