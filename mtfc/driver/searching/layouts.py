"""Searches for global layouts and for per-equation layouts: the request, the baselines and the answer."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from math import inf
from time import process_time
from typing import cast

import attrs

from mtfc.compiler.garbage import few_collections
from mtfc.compiler.ir.core import Program
from mtfc.compiler.ir.types import Forms, Layout, Mesh, Rules
from mtfc.compiler.search.forms_search import LEAST_MEMORY, FormsSearch, forms_of, with_loop_forms
from mtfc.compiler.search.found import (
    IN_BYTES,
    FindPlan,
    Found,
    NothingFits,
    Objective,
    Plan,
    Price,
    PricedLayouts,
    Pricing,
    memory_text,
    room_on,
    value_of,
)
from mtfc.compiler.search.global_layouts.global_search import ROUNDING, GlobalSpace
from mtfc.compiler.search.pricer import LayersPricer, LayoutPricer
from mtfc.compiler.search.usual_layouts import joined, products, usual_layouts, without_idle_axes
from mtfc.driver.errors import say
from mtfc.driver.loading.choice import BestLayout
from mtfc.driver.loading.layout_targets import layout_targets, prepared
from mtfc.driver.loading.memory_limit import written_limit
from mtfc.driver.loading.sources import known_as
from mtfc.driver.searching.compilation_time import timing_compilation
from mtfc.driver.searching.space import SearchAnswer, SearchTask, on_clock, possible_meshes, under_names
from mtfc.driver.searching.why_not import AskedRules, asked_rules, best_with_rules
from mtfc.driver.searching.written import declared_name, insert_layout
from mtfc.reports.search_report import LayoutSearchResult
from mtfc.reports.why_not_report import WhyNot

STARTING = 0.25
"""The part of the time of a search of tilings for the best global layout."""

EXACT, NEAREST = 1.5, 2
"""The time that is left to price a layout of a model with repeated layers exactly, in expected times; and the number of given
layouts, the best ones by the prices of layers, that are priced exactly.
"""

COMPARING = 0.5
"""The part of the time in which the layouts of the table are priced, if prices of repeated layers can take their place."""


@attrs.frozen
class LayoutFinder:
    """A search of one space of layouts for a program on a machine, ready for any meshes and rules.

    objective: the quantity to minimize. storage: True to choose also how parameters and optimizer state are stored. seen: the
    prices of the layouts that were tried.
    """

    program: Program
    pricer: LayoutPricer
    objective: Objective
    storage: bool = False
    seen: dict[Plan, Price] = attrs.field(factory=dict)

    @property
    def trains(self) -> bool:
        """True if the program has a training step."""
        return self.program.training is not None or self.program.has_function("step")

    def best_global(
        self,
        meshes: Sequence[Mesh],
        until: float,
        known: Sequence[Plan] = (),
        rules: Layout | None = None,
        with_forms: bool = False,
    ) -> Found:
        """Find the best global layout until a time of `process_time`. Raises `NothingFits`.

        known: layouts to start from. rules: rules that the layout must have. Repeated layers are priced once, and at the end the
        best layout is priced exactly. with_forms: choose also the forms of the layout, in a part of the time.
        """
        layers, short = self.pricer.layers
        fixed = Rules() if rules is None else rules.rules
        space = GlobalSpace(
            self.pricer.undistributed(),
            self.program.function("forward"),
            meshes,
            self.pricer.hardware,
            self.objective,
            fixed,
            self.storage,
            self.pricer.recomputes,
            short,
        )
        plain = [*dict.fromkeys((mesh, attrs.evolve(layout, forms=Forms())) for mesh, layout in known)]
        find: FindPlan = partial(space.best, known=plain)
        if with_forms:
            given = [each for each in known if each[1].forms.entries]
            find = partial(self._with_forms, find, given)
        with few_collections():
            if layers is None:
                found = find(self.pricer, until)
            else:
                unsplit = [(mesh, rules or Layout("")) for mesh in meshes]
                found = self._by_layers(find, layers, until, plain or unsplit[:1])
        best = self.with_loop_forms(found, until) if with_forms else found
        return best if best.refuted else self.bounded(best, best.lower_bound)

    def _by_layers(self, find: FindPlan, layers: LayersPricer, until: float, given: Sequence[Plan]) -> Found:
        """Find the best layout by the prices of repeated layers, and price it exactly, as the nearest that are given."""
        pricing = layers.pricing(self.objective)
        pricing(*given[0])
        seconds = EXACT * max([layers.seconds, *self.pricer.spent])
        found = find(pricing, until - NEAREST * seconds)
        ranked = sorted(given, key=lambda each: value_of(pricing(*each), self.objective))
        best = self._exact(found)
        for mesh, layout in [each for each in given if each in self.pricer.known] + ranked[:NEAREST]:
            is_known, is_late = (mesh, layout) in self.pricer.known, process_time() + seconds > until
            if is_known or best.objective == inf or not is_late:
                other = self._exact(attrs.evolve(found, mesh=mesh, layout=layout, without_forms=None))
                best = min(best, other, key=lambda each: each.objective)
        return best if best.objective < inf else find(self.pricer, until)

    def _exact(self, found: Found) -> Found:
        """Return a result with its exact price, which is infinite if it does not fit."""
        plain, price = found.without_forms, self.pricer(found.mesh, found.layout)
        fits = price.tiled <= room_on(self.pricer.hardware, self.objective)
        value = value_of(price, self.objective) if fits else inf
        return attrs.evolve(
            found,
            layout=attrs.evolve(found.layout, name="found"),
            objective=value,
            lower_bound=min(found.lower_bound, value),
            refuted=None,
            without_forms=None if plain is None else self._exact(plain),
        )

    def best_in_form(self, find: FindPlan, until: float, given: Sequence[Plan] = ()) -> Found:
        """Return what a search finds until a time of `process_time`, in its best forms. Raises `NothingFits`.

        given: layouts with forms that are tried, too.
        """
        return self.with_loop_forms(self._with_forms(find, given, self.pricer, until), until)

    def _with_forms(self, find: FindPlan, given: Sequence[Plan], pricing: Pricing, until: float) -> Found:
        """Find the best layout, whose forms are priced in a part of the time. Raises `NothingFits`."""
        (function,) = self.pricer.program.functions
        hardware = self.pricer.hardware
        recomputes = self.pricer.recomputes and self.trains and self.objective == "memory"
        tried = forms_of(hardware.device, function, recomputes)
        search = FormsSearch(pricing, self.objective, hardware, tried, until, given)
        try:
            return search.best(find)
        finally:
            self.seen.update(search.prices)

    def least(self, mesh: Mesh) -> float:
        """Return a bound of all plans for the devices of a mesh; 0 where memory is minimized."""
        return 0.0 if self.objective in IN_BYTES else self.pricer.least_seconds(mesh.devices)

    def bounded(self, found: Found, lower_bound: float) -> Found:
        """Return a result with a lower bound, or with the bound of all plans if that is larger."""
        least = self.least(found.mesh)
        if found.objective < (1 - ROUNDING) * least:
            return attrs.evolve(found, lower_bound=0.0, refuted=found.layout)
        return attrs.evolve(found, lower_bound=min(max(lower_bound, least), found.objective))

    def without_faults(
        self,
        meshes: Sequence[Mesh],
        known: Sequence[Plan],
        until: float,
        avoiding: Callable[[BestLayout, Sequence[Plan], float], Found] | None = None,
        with_forms: bool = True,
    ) -> Found:
        """Find the best global layout. Raises `NothingFits`.

        known: layouts to start from. avoiding: for a function of JAX, searches for a layout whose plan meets no known fault of
        XLA: it calls `best` again with rules that leave dimensions whole. with_forms: choose also the forms of the layout.
        """

        def best(rules: Layout, known: Sequence[Plan], until: float) -> Found:
            given = [(mesh, attrs.evolve(x, rules=joined(x.rules, rules.rules))) for mesh, x in known]
            return self.best_global(meshes, until, given, rules=rules, with_forms=with_forms)

        return best(Layout(""), known, until) if avoiding is None else avoiding(best, known, until)

    @property
    def quick(self) -> Pricing:
        """The prices of repeated layers if the program has many, else the prices of the program."""
        layers, _ = self.pricer.layers
        return self.pricer if layers is None else layers.pricing(self.objective)

    def in_time(
        self, layouts: Iterable[Plan], pricing: Pricing, until: float, late: float = inf
    ) -> Iterator[Plan]:
        """Yield priced layouts until a time of `process_time`, or at most until `late` if none fits into the memory by then."""
        room = room_on(self.pricer.hardware, self.objective)
        fits = any(each.tiled <= room for each in self.pricer.known.values())
        for mesh, layout in layouts:
            now = process_time()
            if now > late or (now > until and fits):
                return
            fits |= pricing(mesh, layout).tiled <= room
            yield mesh, layout

    def with_loop_forms(self, found: Found, until: float) -> Found:
        """Return the found layout with the forms of loops that shorten the step, if its time counts."""
        (function,) = self.pricer.program.functions
        has_loops = any(eqn.regions for eqn in function.body)
        is_over = found.is_interrupted or process_time() > until
        if self.objective == "memory" and self.pricer.recomputes and (has_loops or self.trains):
            return self._limited(found)
        if not has_loops or is_over or self.objective in IN_BYTES:
            return found
        memory = self.pricer.hardware.device.memory
        return with_loop_forms(found, self.pricer, self.objective, memory)

    def _limited(self, found: Found) -> Found:
        """Return the layout of least memory with this memory as its limit, and no bound of plans that the search left out."""
        layout, proven = found.layout, None if found.without_forms else found.lower_bound or None
        if layout.forms.recompute == LEAST_MEMORY:
            limit = self.pricer(found.mesh, layout).memory
            layout = attrs.evolve(layout, forms=attrs.evolve(layout.forms, recompute=limit))
        value = self.pricer(found.mesh, layout).memory
        return attrs.evolve(found, layout=layout, objective=value, lower_bound=0.0, without_pipelines=proven)

    def best_per_equation(
        self,
        meshes: Sequence[Mesh],
        until: float,
        known: Sequence[Plan] = (),
        rules: Layout | None = None,
        best_global: Plan | None = None,
    ) -> Found:
        """Find the best layouts of single equations until a time of `process_time`. The rest is as in `best_global`."""
        from mtfc.compiler.search.per_equation.per_equation_search import EquationSpace

        step, dims, fixed = prepared(self.program), set(self.program.dims), (rules or Layout("")).value_rules
        space = EquationSpace(step, dims, meshes, self.pricer.hardware, self.objective, fixed)
        return space.best(self.pricer, on_clock(until), known, best_global)


@attrs.frozen
class LayoutSearch:
    """A search for layouts, ready to begin.

    others: the layouts to compare with. known: layouts to start from. asked: the rules of `--why-not`.
    """

    task: SearchTask
    finder: LayoutFinder
    others: Mapping[str, Plan]
    known: Sequence[Plan] = ()
    asked: AskedRules | None = None

    @classmethod
    def of(cls, task: SearchTask) -> LayoutSearch:
        """Price the layouts to compare with in time. Wrong rules of `--why-not` raise an error before."""
        options, selection = task.options, task.selection
        if task.space.has_one_layout:
            own = [(each.mesh, each.layout) for each in selection.cases[:1]]
            named = {layout.name: (mesh, layout) for mesh, layout in own if layout.forms.entries}
            return cls(task, finder_of(task), named, own)
        asked = None
        if options.why_not is not None:
            asked = asked_rules(task, options.why_not, possible_meshes(options, selection, task.meshes))
        finder = finder_of(task)
        others = _compared(task, finder)
        given = [*others.values(), *([] if task.start is None else [task.start])]
        known = [each for each in given if not each[1].pipelines]
        if not task.space.freedom.unstaged:
            return cls(task, finder, others, known, asked)
        usual: Iterable[Plan] = products(finder.program.function("forward"), task.meshes, finder.trains)
        if options.axes_names is not None:
            known, usual = [*under_names(known, task.meshes)], under_names([*usual], task.meshes)
        return cls(
            task, finder, others, [*known, *finder.in_time(usual, finder.quick, task.until, task.late)], asked
        )

    def best_in_form(self, until: float) -> Found:
        """Find the best global layout, or the rules that stay, in the best forms. Raises `NothingFits`."""
        if not self.task.space.has_one_layout:
            return self.best_global(until, with_forms=True)
        ((mesh, layout),) = self.known
        given = [*self.others.values()]
        plain = attrs.evolve(layout, name="found", forms=Forms())
        return self.finder.best_in_form(partial(self._priced, mesh, plain), until, given)

    def _priced(self, mesh: Mesh, layout: Layout, pricing: Pricing, until: float) -> Found:
        """Return a layout with its price. Raises `NothingFits`."""
        objective = self.finder.objective
        tried = PricedLayouts(pricing, objective, room_on(self.task.hardware, objective))
        tried.offer(mesh, layout)
        if tried.best is None:
            raise NothingFits(f"the layout fits with no forms: {memory_text(tried.room, tried.least_memory)}")
        return tried.found()

    def best_global(self, until: float, with_forms: bool = False) -> Found:
        """Find the best global layout; for a function of JAX the best whose plan meets no known fault. Raises `NothingFits`."""
        task, choice = self.task, self.task.options.choice
        avoiding = None if choice.source is None or task.start is not None else choice.source.without_faults
        found = self.finder.without_faults(task.meshes, self.known, until, avoiding, with_forms)
        if avoiding is None or choice.mesh is not None:
            return found
        mesh = without_idle_axes(found.mesh, found.layout)
        if mesh != found.mesh:
            unused = ", ".join({*found.mesh.names} - {*mesh.names})
            say(f"no rule uses {unused}: the plan is for {mesh.devices} devices")
        return attrs.evolve(found, mesh=mesh)

    def result(self, found: Found) -> LayoutSearchResult:
        """Return the result with the layout that was found, which says if values are computed again."""
        limit = written_limit(self.task.hardware, self.task.selection.hardware)
        layout = self.finder.pricer.recomputed(found.mesh, found.layout, limit)
        return LayoutSearchResult(
            self.task.options.space,
            attrs.evolve(found, layout=layout),
            self.finder.program,
            self.finder.pricer,
            self.others,
            self.task.meshes,
            self.finder.objective,
            process_time() - self.task.started,
        )

    def answer(self, found: Found) -> SearchAnswer:
        """Return the answer of the search with the layout that it found."""
        result = self.result(found)
        return SearchAnswer(
            result,
            partial(self._written, result),
            partial(self._why_not, result),
            partial(self._exported, found.mesh),
        )

    def _written(self, result: LayoutSearchResult) -> str:
        """Return the text of the file with the found layout, which allows the warnings that the check has about it.

        For a function of JAX, return the text of a plan.
        """
        from mtfc.frontend.check import check
        from mtfc.frontend.layouts.allowed_warnings import OF_LAYOUTS

        options, sources, found = self.task.options, self.task.sources, result.found
        if options.choice.source is not None:
            return options.choice.source.plan_text(found.mesh, found.layout)
        text, declared = self.task.text, {case.mesh for case in self.task.selection.cases}
        name, model = declared_name(text, found.layout.name), options.choice.model
        inserted = insert_layout(text, found.mesh, found.layout, declared)
        file = known_as(options.file)
        warnings = check(inserted, file, None, model, name, None, sources.neighbour, layout_targets)
        codes = {each.code for each in warnings}
        allowed = [code for code in OF_LAYOUTS if code in codes]
        return insert_layout(text, found.mesh, found.layout, declared, allowed)

    def _exported(self, mesh: Mesh) -> str:
        """Return the question to the solver about a mesh, for `mtfc solve`."""
        from mtfc.compiler.search.per_equation.per_equation_search import exported
        from mtfc.driver.loading.other_files import write

        program = self.finder.program
        problem = exported(prepared(program), set(program.dims), mesh, self.finder.pricer.hardware)
        return f"{write(problem)}\n"

    def _why_not(self, result: LayoutSearchResult) -> WhyNot | None:
        """Search for the best layout with the rules of `--why-not`, if any, in the time of the search."""
        if self.asked is None:
            return None
        seconds = self.task.options.budget
        if result.space == "tiling":
            return best_with_rules(self.asked, result, seconds, self.finder.best_per_equation, None)
        find = partial(self.finder.best_global, with_forms=True)
        least = attrs.evolve(self.finder, objective="memory").best_global
        return best_with_rules(self.asked, result, seconds, find, least)


def _compared(task: SearchTask, finder: LayoutFinder) -> dict[str, Plan]:
    """Return the layouts to compare with, by name: those of the file, and the usual ones under names that the file leaves free.

    The usual ones are on the given mesh, or on a mesh of a single axis. The better one of two for model parallelism has its name.
    A usual layout with the price of one of the file is left out; so are those for which there is no time, but `nothing_split`.
    """
    devices = task.meshes[0].devices
    declared = {
        case.name: (case.mesh, case.layout) for case in task.selection.cases if case.mesh.devices == devices
    }
    if devices == 1:
        return declared
    line = task.meshes[0] if task.options.choice.mesh is not None else Mesh("line", (("all", devices),))
    usual = {
        name: (line, each)
        for name, each in usual_layouts(finder.program.function("forward"), line, finder.trains).items()
    }
    prices = [finder.pricer(*each) for each in (*declared.values(), usual["nothing_split"])][: len(declared)]
    has_layers = finder.pricer.layers[0] is not None
    comparing = task.until - (1 - COMPARING) * (task.until - process_time()) * has_layers
    in_time = {*finder.in_time(usual.values(), finder.pricer, comparing), usual["nothing_split"]}
    priced = {name: each for name, each in usual.items() if each in in_time}
    if (other := priced.pop("model_parallel_2", None)) is not None:
        two = priced["model_parallel"], (line, attrs.evolve(other[1], name="model_parallel"))
        priced["model_parallel"] = min(two, key=lambda each: value_of(finder.pricer(*each), finder.objective))
    others = {name: each for name, each in priced.items() if finder.pricer(*each) not in prices}
    return {**others, **declared}


def finder_of(task: SearchTask) -> LayoutFinder:
    """Return the finder of the task's program."""
    options, program = task.options, task.selection.program
    freedom = task.space.freedom
    pricer = LayoutPricer.of(program, task.hardware, freedom.recompute or options.recompute)
    storage = freedom.storage or options.storage
    return LayoutFinder(program, pricer, cast("Objective", options.objective), storage)


def search_per_equation(task: SearchTask) -> SearchAnswer:
    """Search for the best layouts of single equations, starting from the best global layout, which is one of them.

    The global search has a part of the time. Raises `NothingFits`, `CompileError` and `UsageError`.
    """
    from mtfc.compiler.search.solver.solver_search import compile_loops

    search = LayoutSearch.of(task)
    until = task.until + timing_compilation(compile_loops, "--budget")[1]
    find = partial(search.finder.best_per_equation, task.meshes, until)
    if search.finder.objective == "bytes":
        return search.answer(find())
    best, now = None, process_time()
    with suppress(NothingFits):
        start = search.best_global(now + STARTING * (until - now))
        if start.is_interrupted:
            return search.answer(attrs.evolve(start, lower_bound=0.0))
        best = start.mesh, start.layout
    plain = [each for each in search.known if not each[1].forms.entries]
    return search.answer(find(plain, None, best))


def search_cuts(task: SearchTask) -> SearchAnswer:
    """Search by k-cuts for layouts of single equations that send few bytes. Raises `NothingFits` and `CompileError`."""
    from mtfc.compiler.search.per_equation import k_cuts

    search = LayoutSearch.of(task)
    program = search.finder.program
    step, dims = prepared(program), set(program.dims)
    return search.answer(k_cuts.search(step, dims, task.meshes[0], on_clock(task.until)))
