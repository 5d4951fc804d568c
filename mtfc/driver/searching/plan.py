"""The search for the plan of a step: the layout, the storage, recomputation, a pipeline and the forms, at one price.

The price is the simulated step, and a plan must fit into the memory. The layouts that anybody would try are priced first, then
branch and bound looks for a better one, and then pipelines have a part of the time. A plan is at most as slow as each layout that
the report compares it with.
"""

from __future__ import annotations

from collections.abc import Iterator
from time import monotonic

import attrs

from mtfc.compiler.cost.equation_layouts import least_dot_seconds
from mtfc.compiler.search.found import IN_BYTES, Found, NothingFits, room_on, value_of
from mtfc.driver.searching.layouts import LayoutSearch
from mtfc.driver.searching.pipelined import PipelineSearch, StagedLoop, pipelined_loops
from mtfc.driver.searching.space import SearchAnswer, SearchTask

PIPELINES = 0.4
"""The part of the time in which pipelines are priced."""


def search_plan(task: SearchTask) -> SearchAnswer:
    """Search for the best plan. Raises `NothingFits`, `CompileError` and `UsageError`."""
    search = LayoutSearch.of(task, task.until)
    loops = _loops(search)
    if not loops:
        return search.answer(search.best_global(search.until, with_forms=True))
    now = monotonic()
    try:
        layouts = search.best_global(search.until - PIPELINES * (search.until - now), with_forms=True)
    except NothingFits as error:
        layouts, reason = None, error
    found = [*_given(search), *([] if layouts is None else [layouts])]
    if layouts is None or not layouts.is_interrupted:
        best = None if layouts is None else (layouts.mesh, layouts.layout)
        try:
            found.append(PipelineSearch(task, search.finder, loops).best(search.until, best))
        except NothingFits:
            if not found:
                raise reason from None
    return search.answer(_best(search, found, layouts))


def search_pipelines(task: SearchTask) -> SearchAnswer:
    """Search for the best pipeline. Raises `NothingFits`, `CompileError` and `UsageError`."""
    search = LayoutSearch.of(task, task.until)
    loops = [*pipelined_loops(search.finder.program.function("forward"))]
    if not loops:
        raise NothingFits("no `repeat` of the model can run as a pipeline")
    return search.answer(PipelineSearch(task, search.finder, loops).best(search.until))


def _loops(search: LayoutSearch) -> list[StagedLoop]:
    """Return the loops that can run as pipelines; functions of JAX, one device and other objectives than time have none."""
    devices = search.task.meshes[0].devices
    is_source = search.task.options.choice.source is not None
    if devices == 1 or is_source or search.finder.objective in IN_BYTES:
        return []
    return [*pipelined_loops(search.finder.program.function("forward"))]


def _given(search: LayoutSearch) -> Iterator[Found]:
    """Yield the pipelines of the file that fit."""
    finder = search.finder
    for mesh, layout in search.others.values():
        price = finder.pricer(mesh, layout) if layout.pipelines else None
        if price is not None and price.tiled <= room_on(finder.pricer.hardware, finder.objective):
            yield Found(mesh, attrs.evolve(layout, name="found"), value_of(price, finder.objective), 0.0, 0)


def _best(search: LayoutSearch, found: list[Found], layouts: Found | None) -> Found:
    """Return the best plan. No plan takes less time than its dots, divided among all devices."""
    best = min(found, key=lambda each: each.objective)
    finder, mesh = search.finder, search.task.meshes[0]
    dots = least_dot_seconds(finder.pricer.undistributed(), mesh, finder.pricer.hardware.device)
    without = 0.0 if layouts is None else layouts.lower_bound
    return attrs.evolve(
        best,
        lower_bound=min(dots, without or dots, best.objective),
        without_pipelines=without,
        evaluated=sum(each.evaluated for each in found),
        runner_up=None if layouts is None else layouts.runner_up,
    )
