"""The search for the plan of a step: the layout, the storage, recomputation, a pipeline and the forms, at one price.

The spaces `rules`, `forms` and `pipelines` are the same search with less to choose: see `Freedom`.

The price is the simulated step, and a plan must fit into the memory. The layouts that anybody would try are priced first, then
branch and bound looks for a better one, and then pipelines have a part of the time. A plan is at most as slow as each layout that
the report compares it with.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from math import inf
from time import process_time

import attrs

from mtfc.compiler.diagnostics import CompileError
from mtfc.compiler.search.forms_search import LEAST_MEMORY
from mtfc.compiler.search.found import IN_BYTES, Found, NothingFits, room_on, value_of
from mtfc.compiler.search.usual_layouts import batch_dims
from mtfc.driver.searching.layouts import LayoutSearch
from mtfc.driver.searching.pipelined import PipelineSearch, StagedLoop, pipelined_loops
from mtfc.driver.searching.prices import checked, resource_prices
from mtfc.driver.searching.space import SearchAnswer, SearchTask
from mtfc.reports.plan_figures import plan_text
from mtfc.reports.search_report import LayoutSearchResult

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
