"""The search for the plan of a step: the layout, the storage, recomputation, a pipeline and the forms, at one price.

The spaces `rules`, `forms` and `pipelines` are the same search with less to choose: see `Freedom`.

The price is the simulated step, and a plan must fit into the memory. The layouts that anybody would try are priced first, then
branch and bound looks for a better one, and then pipelines have a part of the time. A plan is at most as slow as each layout that
the report compares it with.

The prices of resources: what more memory, a faster network, another batch or other numbers of devices would bring to a plan.

Each price is found by searching again, which begins with the found plan, in a part of the time of the search. More memory and a
faster network never make a plan slower, as the found plan still fits.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from functools import partial
from math import inf
from time import process_time
from typing import Any

import attrs

from mtfc.compiler.cost.hardware import Link, Rate
from mtfc.compiler.diagnostics import CompileError
from mtfc.compiler.ir.printer import bytes_text
from mtfc.compiler.ir.types import Layout, Mesh
from mtfc.compiler.search.forms_search import LEAST_MEMORY
from mtfc.compiler.search.found import IN_BYTES, Found, NothingFits, Plan, room_on, value_of
from mtfc.compiler.search.usual_layouts import batch_dims
from mtfc.driver.errors import UsageError
from mtfc.driver.loading.selection import select
from mtfc.driver.searching.layouts import LayoutSearch
from mtfc.driver.searching.pipelined import PipelineSearch, StagedLoop, pipelined_loops
from mtfc.driver.searching.space import SearchAnswer, SearchTask
from mtfc.frontend.layouts.layout_text import rules_text
from mtfc.reports.plan_figures import plan_record, plan_text
from mtfc.reports.search_report import LayoutSearchResult
from mtfc.reports.source_lines import aligned
from mtfc.reports.step_report import seconds_text

NUMBERS = 0.4, 0.7
"""The parts of the time after which the search for the least memory leaves the micro-batches of the file, and chooses others."""

PIPELINES = 0.4
"""The part of the time in which pipelines are priced."""


def search_plan(task: SearchTask) -> SearchAnswer:
    """Search for the best plan, and with `--what-if` for what other resources bring. Raises as `_best_plan`."""
    search, found = _best_plan(task)
    answer = search.answer(found)
    if not task.options.what_if:
        return answer
    return attrs.evolve(answer, prices=lambda: resource_prices(search.task, search.result(found), _again))


def _again(task: SearchTask) -> LayoutSearchResult:
    search, found = _best_plan(task)
    return search.result(found)


def _best_plan(task: SearchTask) -> tuple[LayoutSearch, Found]:
    """Return the search with the best number of micro-batches, and the best plan.

    Raises `NothingFits`, `CompileError` and `UsageError`.
    A plan with one micro-batch has the least bound.
    """
    search, least = LayoutSearch.of(task), inf
    if task.space.freedom.micro_batches:
        if task.options.objective == "memory":
            return _of_least_memory(search)
        search, least = _with_micro_batches(search)
    try:
        found = _searched(search)
    except NothingFits as error:
        raise NothingFits(f"{error}{_nearest(search)}") from None
    return search, attrs.evolve(found, lower_bound=min(found.lower_bound, least))


def _of_least_memory(search: LayoutSearch) -> tuple[LayoutSearch, Found]:
    """Return the plan of least memory: with the micro-batches of the file, or with the number that needs less for this plan."""
    task, now = search.task, process_time()
    first, second = (now + part * (task.until - now) for part in NUMBERS)
    found = search.best_in_form(first)
    if found.is_interrupted:
        return search, found
    forms = found.layout.forms
    again = attrs.evolve(forms, recompute=forms.recompute and LEAST_MEMORY)
    start = found.mesh, attrs.evolve(found.layout, forms=again)
    try:
        others = [*_micro_batched(attrs.evolve(task, until=second, start=start))]
        fewer = min(others, key=_usual, default=search)
        best = fewer.best_in_form(task.until) if _usual(fewer)[0] < found.objective else found
    except KeyboardInterrupt:
        return search, attrs.evolve(found, is_interrupted=True)
    if best.objective >= found.objective:
        return search, found
    return fewer, attrs.evolve(best, evaluated=found.evaluated + best.evaluated)


def _with_micro_batches(search: LayoutSearch) -> tuple[LayoutSearch, float]:
    """Return the search with the number of micro-batches whose best usual layout is the fastest, and a bound for all numbers.

    Other numbers than that of the file are tried if the file has micro-batches, or no usual layout fits. One comes first.
    """
    task, best, least, training = search.task, _usual(search), inf, search.finder.program.training
    accumulate = 1 if training is None else training.accumulate
    if accumulate > 1 or best[0] == inf:
        least = search.finder.least(task.meshes[0]) if accumulate == 1 else 0.0
        for other in _micro_batched(task):
            if process_time() > task.until and best[0] < inf:
                break
            least = least or other.finder.least(task.meshes[0])
            if (usual := _usual(other)) < best:
                search, best = other, usual
            elif best[0] < inf:
                break
    return search, least


def _nearest(search: LayoutSearch) -> str:
    """Return the priced layout that needs the least memory, and what would need less; empty if that layout fits."""
    prices, room = search.finder.pricer.known, search.task.hardware.device.memory
    if not prices or min(each.tiled for each in prices.values()) <= room:
        return ""
    mesh, layout = min(prices, key=lambda each: prices[each].tiled)
    help = "a smaller batch, more devices or a machine with more memory would help"
    return f"; the nearest is {plan_text(mesh, layout)}, and {help}"


def _usual(search: LayoutSearch) -> tuple[float, float]:
    """Return the value of the best usual layout that fits, infinite if none does, and the least memory of all."""
    finder, room = search.finder, room_on(search.finder.pricer.hardware, search.finder.objective)
    prices = [finder.quick(*each) for each in (*search.others.values(), *search.known)]
    fitting = (value_of(each, finder.objective) for each in prices if each.tiled <= room)
    return min(fitting, default=inf), min((each.tiled for each in prices), default=inf)


def _micro_batched(task: SearchTask) -> Iterator[LayoutSearch]:
    """Yield the same search with 1, 2, 4 ... micro-batches. Models with state, and functions of JAX, keep theirs.

    After the time only the most micro-batches follow that have an example for each device.
    """
    program, options = task.selection.program, task.options
    batch = batch_dims(program.function("forward"))[:1]
    if program.training is None or program.states or options.choice.source is not None or not batch:
        return
    accumulate = program.training.accumulate
    whole = batch[0].size * accumulate
    numbers = [2**i for i in range(whole.bit_length()) if whole % 2**i == 0]
    last = max((each for each in numbers if whole // each >= task.meshes[0].devices), default=1)
    for number in (each for each in numbers if each != accumulate):
        if process_time() > task.until and number != last:
            continue
        with suppress(CompileError):
            other = task.resized({batch[0].name: whole // number}, number)
            start = None if task.start is None else checked(other, *task.start)
            yield LayoutSearch.of(attrs.evolve(other, start=start))


def _searched(search: LayoutSearch) -> Found:
    """Return the best plan with the micro-batches of the search, without a pipeline and with one. Raises `NothingFits`."""
    task, loops, has_others = search.task, _loops(search), search.task.space.freedom.unstaged
    if not loops and has_others:
        return search.best_in_form(task.until)
    if not loops:
        raise NothingFits("no `repeat` of the model can run as a pipeline")
    layouts, reason = None, None
    if has_others:
        try:
            layouts = search.best_in_form(task.until - PIPELINES * (task.until - process_time()))
        except NothingFits as error:
            reason = error
    found = [] if layouts is None else [layouts]
    best = None if layouts is None else (layouts.mesh, layouts.layout)
    given = [*search.others.values(), *([] if task.start is None else [task.start])]
    given = [each for each in given if each[1].pipelines]
    pipelines = PipelineSearch(task, search.finder, loops, given, best)
    until = 0.0 if layouts is not None and layouts.is_interrupted else task.until
    try:
        found.append(search.finder.best_in_form(pipelines.best, until))
    except NothingFits as error:
        if not found:
            raise (reason or error) from None
    except KeyboardInterrupt:
        if not found:
            raise
        found = [attrs.evolve(each, is_interrupted=True) for each in found]
    return _best(search, found, layouts)


def _loops(search: LayoutSearch) -> list[StagedLoop]:
    """Return the loops that can run as pipelines; functions of JAX, one device and other objectives than time have none."""
    task, forward = search.task, search.finder.program.function("forward")
    is_open = task.space.freedom.pipelines and task.options.choice.source is None
    has_none = not is_open or task.meshes[0].devices == 1 or search.finder.objective in IN_BYTES
    return [] if has_none else [*pipelined_loops(forward)]


def _best(search: LayoutSearch, found: list[Found], layouts: Found | None) -> Found:
    """Return the best plan, with the bound of all plans."""
    return attrs.evolve(
        search.finder.bounded(min(found, key=lambda each: each.objective), 0.0),
        without_pipelines=0.0 if layouts is None else layouts.lower_bound,
        evaluated=sum(each.evaluated for each in found),
        is_interrupted=any(each.is_interrupted for each in found),
        is_late=any(each.is_late for each in found),
    )


SHARE = 0.2
"""The part of the time of a search in which one price is found."""

MORE_MEMORY = 2**30

Search = Callable[[SearchTask], LayoutSearchResult]


@attrs.frozen
class ResourcePrices:
    """The best plan for each change of what a plan runs on, None if nothing fits; and the seconds in which each was found."""

    found: LayoutSearchResult
    plans: Mapping[str, LayoutSearchResult | None]
    seconds: float

    def ratio(self, plan: LayoutSearchResult) -> float:
        """Return the time of an example, in times of that of the found plan."""
        here, there = (each.price.seconds / _examples(each) for each in (self.found, plan))
        return there / here

    def record(self) -> list[dict[str, Any]]:
        """Return the JSON record; a change has no step if nothing fits."""
        return [
            {"change": change, **(self._figures(plan) if plan is not None else {"step_seconds": None})}
            for change, plan in self.plans.items()
        ]

    def _figures(self, plan: LayoutSearchResult) -> dict[str, Any]:
        """Return the record of a plan, with its devices and its time of an example."""
        devices, ratio = plan.found.mesh.devices, self.ratio(plan)
        record = plan_record(plan.found.mesh, plan.found.layout, plan.price)
        return {"devices": devices, "seconds_per_example_ratio": ratio, **record}

    def report(self) -> str:
        """Return the table."""
        rows = [["with", "devices", "a step", "an example", "memory", "plan"]]
        for change, plan in self.plans.items():
            if plan is None:
                rows.append([change, "", "nothing fits", "", "", ""])
                continue
            mesh, price = plan.found.mesh, plan.price
            figures = [seconds_text(price.seconds), f"{self.ratio(plan):.3f}", bytes_text(price.tiled)]
            rows.append([change, str(mesh.devices), *figures, plan_text(mesh, plan.found.layout)])
        title = f"Other resources, each in a search of {self.seconds:g} s; the time of an example is 1 now:"
        return "\n".join([title, *aligned(rows, range(1, 5)), ""])


def _examples(result: LayoutSearchResult) -> int:
    return next(iter(result.figures.batch.values()), 1)


def resource_prices(task: SearchTask, found: LayoutSearchResult, search: Search) -> ResourcePrices:
    """Search again for each change of what the plan runs on, but for those that the program or the machine does not allow."""
    seconds, plans = SHARE * task.options.budget, dict[str, LayoutSearchResult | None]()
    forms = attrs.evolve(found.found.layout.forms, recompute="")
    for change, changed in _changes(task, found.found.mesh, attrs.evolve(found.found.layout, forms=forms)):
        with suppress(CompileError, UsageError):
            again, now = changed(), process_time()
            try:
                plan = search(attrs.evolve(again, started=now, until=now + seconds))
            except NothingFits:
                plan = None
            except KeyboardInterrupt:
                break
            plans[change] = plan
            if plan is not None and plan.found.is_interrupted:
                break
    return ResourcePrices(found, plans, seconds)


def _changes(task: SearchTask, mesh: Mesh, layout: Layout) -> Iterator[tuple[str, Callable[[], SearchTask]]]:
    """Yield each change by name, with the search that it needs."""
    machine, device = task.hardware, task.hardware.device
    roomy = attrs.evolve(machine, device=attrs.evolve(device, memory=device.memory + MORE_MEMORY))
    fast = attrs.evolve(machine, links=tuple(map(_faster, machine.links)))
    same = attrs.evolve(task, start=(mesh, layout))
    yield "1 GiB more memory", lambda: attrs.evolve(same, machine=roomy)
    yield "twice the network", lambda: attrs.evolve(same, machine=fast)
    yield "twice the batch", partial(_with_batch, task, mesh, layout)
    (name, size), *rest = mesh.axes
    yield (
        "twice the devices",
        partial(_on_mesh, task, attrs.evolve(mesh, axes=((name, 2 * size), *rest)), layout),
    )
    for i, (axis, number) in enumerate(mesh.axes):
        if number % 2 == 0:
            axes = (*mesh.axes[:i], (axis, number // 2), *mesh.axes[i + 1 :])
            yield "half the devices", partial(_on_mesh, task, attrs.evolve(mesh, axes=axes), layout)
            return


def _faster(link: Link) -> Link:
    """Return a link with twice the bandwidth."""

    def twice(rate: Rate) -> Rate:
        return Rate(tuple((size, 2 * each) for size, each in rate.points))

    collectives = {kind: twice(rate) for kind, rate in link.collectives.items()}
    return attrs.evolve(link, bandwidth=twice(link.bandwidth), collectives=collectives)


def _with_batch(task: SearchTask, mesh: Mesh, layout: Layout) -> SearchTask:
    """Return a search with twice the batch. Raises `CompileError` and `UsageError`."""
    batch = batch_dims(task.selection.program.function("forward"))[:1]
    if not batch or task.options.choice.source is not None:
        raise UsageError("the batch has a fixed size")
    again = task.resized({batch[0].name: 2 * batch[0].size})
    return attrs.evolve(again, start=checked(again, mesh, layout))


def _on_mesh(task: SearchTask, mesh: Mesh, layout: Layout) -> SearchTask:
    """Return a search on as many devices as a mesh has, which begins there. Raises `CompileError` and `UsageError`."""
    from mtfc.driver.searching.space import searched_meshes

    choice = attrs.evolve(task.options.choice, mesh=None)
    options = attrs.evolve(task.options, choice=choice, devices=mesh.devices)
    meshes = searched_meshes(options, task.space, task.selection, task.machine)
    again = attrs.evolve(task, options=options, meshes=meshes)
    return attrs.evolve(again, start=checked(again, mesh, layout))


def checked(task: SearchTask, mesh: Mesh, layout: Layout) -> Plan | None:
    """Return a plan if it is legal for the program of a search."""
    text, shape = f"{{ {rules_text(layout)} }}", "; ".join(f"{name}: {size}" for name, size in mesh.axes)
    choice = attrs.evolve(task.options.choice, layout=text, mesh=shape)
    try:
        case = select(task.options.file, choice, task.sources).cases[0]
    except (CompileError, UsageError):
        return None
    return case.mesh, attrs.evolve(case.layout, name=layout.name)
