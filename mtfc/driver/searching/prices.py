"""The prices of resources: what more memory, a faster network, another batch or other numbers of devices would bring to a plan.

Each price is found by searching again, which begins with the found plan, in a part of the time of the search. More memory and a
faster network never make a plan slower, as the found plan still fits.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from functools import partial
from time import process_time
from typing import Any

import attrs

from mtfc.compiler.cost.hardware import Link, Rate
from mtfc.compiler.diagnostics import CompileError
from mtfc.compiler.ir.printer import bytes_text
from mtfc.compiler.ir.types import Layout, Mesh
from mtfc.compiler.search.found import NothingFits, Plan
from mtfc.compiler.search.usual_layouts import batch_dims
from mtfc.driver.errors import UsageError
from mtfc.driver.loading.selection import select
from mtfc.driver.searching.space import SearchTask
from mtfc.frontend.layouts.layout_text import rules_text
from mtfc.reports.plan_figures import plan_record, plan_text
from mtfc.reports.search_report import LayoutSearchResult
from mtfc.reports.step_report import seconds_text
from mtfc.reports.source_lines import aligned

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
