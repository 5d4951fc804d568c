"""The search for pipelines: a loop over layers runs in stages, and each stage has one rule for each other dimension.

For each number of stages, the best global layout of a stage's devices is searched without regard to memory: it splits the work of
a stage. Then each number of micro-batches is compiled and priced with it, with and without `checkpoint`, and with one chunk of
layers on each stage or several. In the last part of the time the forms of the best pipelines are priced. The stages lie on the
outermost axis of the mesh, whose links are the slowest: they send the least.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import product
from math import inf
from time import monotonic
from typing import TYPE_CHECKING

import attrs

from mtfc.compiler.activity import progress_to, report_progress, silent
from mtfc.compiler.ir.core import Equation, Function
from mtfc.compiler.ir.loops import carried, dim_of, region_of
from mtfc.compiler.ir.micro_batch_rule import MixedMicroBatches, loop_sums
from mtfc.compiler.ir.types import Dim, Layout, Mesh, Pipeline, Rules
from mtfc.compiler.search.forms_search import RecordedPricing
from mtfc.compiler.search.found import Found, NothingFits, PricedLayouts, memory_text
from mtfc.driver.searching.layouts import FORMS_SHARE, LayoutFinder, LayoutSearch
from mtfc.driver.searching.space import SearchAnswer, SearchTask

if TYPE_CHECKING:
    from mtfc.compiler.cost.hardware import Hardware

STAGES = 2 / 3
"""The part of the time in which layouts of the stages are searched."""

ROUNDS = (1, 2, 4, 8)
"""The numbers of micro-batches that are tried, in numbers of stages."""

CHUNKS = (1, 2, 4)
"""The numbers of chunks of layers on each stage that are tried."""


@attrs.frozen
class StagedLoop:
    """A loop that can run as a pipeline, and the dimension that is cut into micro-batches."""

    loop: Dim
    batch: Dim


def pipelined_loops(forward: Function) -> Iterator[StagedLoop]:
    """Yield each loop of a model that can run as a pipeline, with the first dimension that can be cut."""
    for eqn in forward.body:
        if eqn.regions and carried(region_of(eqn)):
            batch = next((dim for dim in _carried_dims(eqn) if _can_be_cut(eqn, dim)), None)
            if batch is not None:
                yield StagedLoop(dim_of(eqn), batch)


def _carried_dims(eqn: Equation) -> dict[Dim, None]:
    return dict.fromkeys(dim for carry in carried(region_of(eqn)) for dim in carry.value.type.dims)


def _can_be_cut(eqn: Equation, batch: Dim) -> bool:
    try:
        loop_sums(eqn, batch)
    except MixedMicroBatches:
        return False
    return True


@attrs.frozen
class PipelineSearch:
    """A search for pipelines. until: its end, a time of `monotonic`."""

    task: SearchTask
    finder: LayoutFinder
    until: float

    def best(self) -> Found:
        """Return the best pipeline that is found. Raises `NothingFits`, and `KeyboardInterrupt` if nothing was found."""
        loops = list(pipelined_loops(self.finder.program.function("forward")))
        if not loops:
            raise NothingFits("no `repeat` of the model can run as a pipeline")
        pricing = RecordedPricing(self.finder.pricer.pricing(self.finder.objective))
        tried = PricedLayouts(pricing, self.finder.objective, self._hardware.device.memory)
        tried.offer_all(self._until_found(tried, self._candidates(loops)))
        if tried.best is None and tried.least_memory is None and not tried.is_interrupted:
            raise NothingFits(
                "no axis of a mesh divides the layers into stages, or the batch into micro-batches"
            )
        if tried.best is None and not tried.is_interrupted:
            seen = memory_text(tried.room, tried.least_memory)
            raise NothingFits(f"no pipeline was found whose memory suffices: {seen}")
        best = self.finder.forms_search(pricing, self.until).improved(tried.found())
        return self.finder.with_loop_forms(attrs.evolve(best, without_forms=None))

    def _until_found(
        self, tried: PricedLayouts, candidates: Iterable[tuple[Mesh, Layout]]
    ) -> Iterator[tuple[Mesh, Layout]]:
        """Yield candidates, after some time only until one fits, and report each that was compiled."""
        until = self.until - FORMS_SHARE * (self.until - monotonic())
        for each in candidates:
            yield each
            best = None if tried.best is None else tried.limit
            report_progress(f"{tried.evaluated} pipelines compiled", best)
            if tried.best is not None and monotonic() > until:
                return

    @property
    def _hardware(self) -> Hardware:
        return self.finder.pricer.hardware

    def _candidates(self, loops: Sequence[StagedLoop]) -> Iterator[tuple[Mesh, Layout]]:
        """Yield pipelines, for each number of stages those that follow from the best layout of a stage."""
        given = self.task.options.choice.mesh is not None
        for found in loops:
            stages: dict[tuple[str, int], list[Mesh]] = {}
            for mesh in self.task.meshes:
                for axis, size in mesh.axes if given else mesh.axes[:1]:
                    if size > 1 and found.loop.size % size == 0:
                        stages.setdefault((axis, size), []).append(mesh)
            seconds = STAGES * (self.until - monotonic()) / max(1, len(stages)) / len(loops)
            for (axis, _), meshes in stages.items():
                mesh, rules = self._stage(found, axis, meshes, monotonic() + seconds)
                yield from ((mesh, layout) for layout in self._pipelines(found, mesh, axis, rules))

    def _stage(
        self, found: StagedLoop, axis: str, meshes: Sequence[Mesh], until: float
    ) -> tuple[Mesh, Rules]:
        """Return the mesh, and the best rules for its axes beside that of the stages."""
        whole = {_without(mesh, axis): mesh for mesh in meshes if len(mesh.axes) > 1}
        if not whole:
            return meshes[0], Rules()
        hardware = attrs.evolve(self._hardware, device=attrs.evolve(self._hardware.device, memory=inf))
        pricer = attrs.evolve(self.finder.pricer, hardware=hardware, recomputes=False, known={}, alike={})
        finder = attrs.evolve(self.finder, pricer=pricer, objective="time", storage=False)
        fixed = Layout("", Rules(((found.loop.name, ()),)))
        with progress_to(silent):
            best = finder.best_global(list(whole), until, rules=fixed)
        return whole[best.mesh], best.layout.rules

    def _pipelines(self, found: StagedLoop, mesh: Mesh, axis: str, rules: Rules) -> Iterator[Layout]:
        """Yield pipelines along an axis. Where it can, the axis splits the batch outside of the loop."""
        loop, batch, inner, stages = found.loop, found.batch, rules.get(found.batch.name), mesh.sizes[axis]
        outer = (*inner, axis) if self._may_split(found, mesh.size((*inner, axis))) else inner
        split = {name: axes for name, axes in rules.axes if axes}
        whole = Rules(tuple({loop.name: (axis,), **split, **({batch.name: outer} if outer else {})}.items()))
        for chunks, rounds, checkpoint in product(CHUNKS, ROUNDS, (False, True)):
            number = rounds * stages
            is_even = batch.size % number == 0 and batch.size // number % mesh.size(inner) == 0
            if is_even and loop.size % (stages * chunks) == 0:
                pipeline = Pipeline(loop.name, batch.name, number, checkpoint, chunks)
                yield Layout("found", whole, pipelines=(pipeline,))

    def _may_split(self, found: StagedLoop, parts: int) -> bool:
        """Return True if the batch is divisible, and no tensor outside of loops has both the loop's dimension and the batch."""
        forward = self.finder.program.function("forward")
        values = (*(a.value for a in forward.arguments), *(v for eqn in forward.body for v in eqn.results))
        both = {found.loop, found.batch}
        return found.batch.size % parts == 0 and not any(both <= {*value.type.dims} for value in values)


def search_pipelines(task: SearchTask) -> SearchAnswer:
    """Search for the best pipeline. Raises `NothingFits`, `CompileError` and `UsageError`."""
    search = LayoutSearch.of(task, task.until)
    return search.answer(PipelineSearch(task, search.finder, search.until).best())


def _without(mesh: Mesh, axis: str) -> Mesh:
    return attrs.evolve(mesh, axes=tuple(each for each in mesh.axes if each[0] != axis))
