"""The search for pipelines: a loop over layers runs in stages, and each stage has one rule for each other dimension.

For each number of stages, the usual rules for the other axes are compiled and priced: data parallelism, model parallelism, and
their product. What does not fit is stored in parts over the axes of data parallelism: the optimizer's state, then the parameters
too. Then one entry of the best pipeline changes at a time: the number of micro-batches, the values that a stage keeps, the chunks
of layers on each stage, the storage. The stages lie on the outermost axis of the mesh, whose links are the slowest: they send the
least.
"""

from collections.abc import Callable, Iterator, Sequence
from itertools import product, zip_longest
from time import process_time
from typing import Any

import attrs

from mtfc.compiler.activity import report_progress
from mtfc.compiler.ir.core import Equation, Function
from mtfc.compiler.ir.loops import carried, dim_of, region_of
from mtfc.compiler.ir.micro_batch_rule import MixedMicroBatches, loop_sums
from mtfc.compiler.ir.types import EVERY, Dim, Layout, Mesh, Pipeline, Rules
from mtfc.compiler.search.found import (
    Found,
    NothingFits,
    Plan,
    PricedLayouts,
    Pricing,
    descend,
    memory_text,
    value_of,
)
from mtfc.compiler.search.usual_layouts import products, usual_layouts, without_axes
from mtfc.driver.searching.layouts import LayoutFinder
from mtfc.driver.searching.space import SearchTask

ROUNDS = (4, 2, 1, 8)
"""The numbers of micro-batches that are tried, in numbers of stages; pipelines start with the first that the sizes allow."""

DESCENDING = 0.4
"""The part of the time for changes of the best start."""

CHUNKS = 4
"""The most numbers of chunks of layers on each stage that are tried, the smallest first."""

KEPT = ("", "selective", "minimal")
"""The words of `recompute` that are tried, beside `checkpoint`."""


@attrs.frozen
class StagedLoop:
    """A loop that can run as a pipeline, and the dimension that is cut into micro-batches.

    carried: the other dimensions of what layers hand on. checkpoint: True if the loop computes all values of its layers again,
    whatever a stage keeps.
    """

    loop: Dim
    batch: Dim
    carried: frozenset[str]
    checkpoint: bool


def pipelined_loops(forward: Function) -> Iterator[StagedLoop]:
    """Yield each loop of a model that can run as a pipeline, with the first dimension that can be cut."""
    for eqn in forward.body:
        if eqn.regions and carried(region_of(eqn)):
            dims = _carried_dims(eqn)
            batch = next((dim for dim in dims if _can_be_cut(eqn, dim)), None)
            if batch is not None:
                others = frozenset(dim.name for dim in dims if dim != batch)
                yield StagedLoop(dim_of(eqn), batch, others, bool(eqn.attrs["checkpoint"]))


def _carried_dims(eqn: Equation) -> dict[Dim, None]:
    return dict.fromkeys(dim for carry in carried(region_of(eqn)) for dim in carry.value.type.dims)


def _can_be_cut(eqn: Equation, batch: Dim) -> bool:
    """Return True if a loop can run on micro-batches that are cut along a dimension: nothing mixes examples."""
    try:
        loop_sums(eqn, batch)
    except MixedMicroBatches:
        return False
    return True


Fits = tuple[float, float]
"""Bytes beyond the memory, and the value of the objective: the order in which pipelines are compared."""


@attrs.frozen
class PipelineSearch:
    """A search for pipelines. loops: those that can run as a pipeline. given: pipelines that are priced in any case.

    best_layout: the best layout without a pipeline; None if there is none that fits.
    """

    task: SearchTask
    finder: LayoutFinder
    loops: Sequence[StagedLoop]
    given: Sequence[Plan] = ()
    best_layout: Plan | None = None

    def best(self, pricing: Pricing, until: float) -> Found:
        """Return the best pipeline without forms that is found until a time of `process_time`. Raises `NothingFits`.

        It raises `KeyboardInterrupt` only if nothing was found.
        """
        tried = PricedLayouts(pricing, self.finder.objective, self.finder.pricer.hardware.device.memory)
        try:
            self._try(tried, until)
        except KeyboardInterrupt:
            tried.is_interrupted = True
        if tried.least_memory is None and not tried.is_interrupted:
            none = "no axis of a mesh divides the layers into stages, or the batch into micro-batches"
            raise NothingFits("the time ended before any pipeline was priced" if tried.is_late else none)
        if tried.best is None and not tried.is_interrupted:
            seen = memory_text(tried.room, tried.least_memory)
            raise NothingFits(f"no pipeline was found whose memory suffices: {seen}")
        return tried.found()

    def _try(self, tried: PricedLayouts, until: float) -> None:
        """Price pipelines, and change one entry of the best at a time, until no change is better or the time is over."""
        known: dict[Plan, Fits] = {}

        def fits(plan: Plan) -> Fits:
            """Return the bytes that a plan has too many, and its value; each plan is compiled once."""
            if plan not in known:
                price = tried.offer(*plan)
                known[plan] = max(0.0, price.tiled - tried.room), value_of(price, tried.objective)
                report_progress(
                    f"{tried.evaluated} pipelines compiled", *[tried.limit] * (tried.best is not None)
                )
            return known[plan]

        for plan in self.given:
            fits(plan)
        starting = until - DESCENDING * (until - process_time())
        for mesh, layout in self._starts():
            for storage in self._first_storage(layout):
                is_needed = tried.best is None and self.best_layout is None
                if process_time() > (self.task.late if is_needed else starting):
                    tried.is_late = True
                    break
                if not fits((mesh, attrs.evolve(layout, **storage)))[0]:
                    break
        if known:
            descend(min(known, key=known.__getitem__), fits, self._changes, until)
        tried.is_late |= process_time() > until

    def _starts(self) -> list[Plan]:
        """Return pipelines with usual rules on the axes beside that of the stages, and with those of the best layout.

        Meshes take turns.
        """
        turns = zip_longest(*(self._starts_on(*each) for each in product(self.loops, self.task.meshes)))
        return [each for turn in turns for each in turn if each is not None]

    def _starts_on(self, found: StagedLoop, mesh: Mesh) -> Iterator[Plan]:
        """Yield the first plans for a loop whose stages lie along one axis of a mesh.

        The likeliest rules for the other axes come first.
        """
        given = self.task.options.choice.mesh is not None
        for axis, size in mesh.axes if given else mesh.axes[:1]:
            if size > 1 and found.loop.size % size == 0:
                every = [*self._rules(without_axes(mesh, (axis,)))]
                if self.best_layout is not None and self.best_layout[0] == mesh:
                    own = (
                        (dim, tuple(x for x in axes if x != axis))
                        for dim, axes in self.best_layout[1].rules.axes
                    )
                    every.append(Rules(tuple(own)))
                for rules in sorted(every, key=lambda each: self._unlikeness(found, each)):
                    yield from self._first(found, mesh, axis, rules)

    def _unlikeness(self, found: StagedLoop, rules: Rules) -> int:
        """Return how many dimensions rules split that the best layout does not, or that layers hand on, if there is none."""
        best = None if self.best_layout is None else self.best_layout[1].rules.by_dim.keys()
        return len(rules.by_dim.keys() & found.carried if best is None else rules.by_dim.keys() - best)

    def _rules(self, mesh: Mesh) -> Iterator[Rules]:
        """Yield the usual rules on the mesh of a stage: data and model parallelism, and their product."""
        forward = self.finder.program.function("forward")
        if not mesh.axes:
            yield Rules()
        elif len(mesh.axes) == 1:
            yield from (
                each.rules for each in usual_layouts(forward, mesh, trains=False).values() if each.rules.axes
            )
        else:
            yield from (layout.rules for _, layout in products(forward, [mesh], trains=False))

    def _first(self, found: StagedLoop, mesh: Mesh, axis: str, rules: Rules) -> Iterator[Plan]:
        """Yield the pipeline with the first possible number of micro-batches."""
        for rounds in ROUNDS:
            pipeline = Pipeline(found.loop.name, found.batch.name, rounds * mesh.sizes[axis], False, 1)
            if self._is_possible(mesh, rules, pipeline, axis):
                yield mesh, self._layout(found, mesh, axis, rules, pipeline)
                return

    def _layout(self, found: StagedLoop, mesh: Mesh, axis: str, rules: Rules, pipeline: Pipeline) -> Layout:
        """Return the layout of a pipeline. Where it can, the axis of the stages splits the batch outside of the loop."""
        inner = rules.get(found.batch.name)
        outer = (*inner, axis) if self._may_split(found, mesh.size((*inner, axis))) else inner
        split = {name: axes for name, axes in rules.axes if axes}
        every = {found.loop.name: (axis,), **split, **({found.batch.name: outer} if outer else {})}
        return Layout("found", Rules(tuple(every.items())), pipelines=(pipeline,))

    def _is_possible(self, mesh: Mesh, rules: Rules, pipeline: Pipeline, axis: str) -> bool:
        """Return True if the batch divides into micro-batches and their splits, and the layers into stages and chunks."""
        dims, inner = self.finder.program.dims, [x for x in rules.get(pipeline.batch) if x != axis]
        micro, rest = divmod(dims[pipeline.batch].size, pipeline.micro_batches)
        stages = mesh.sizes[axis] * pipeline.chunks
        return not rest and micro % mesh.size(inner) == 0 and dims[pipeline.loop].size % stages == 0

    def _changes(self, plan: Plan) -> Sequence[Callable[[Plan], Iterator[Plan]]]:
        """Return the changes of one entry: of the pipeline, of the storage, and of what a stage keeps.

        Pipelines of a file with stages on several axes stay as they are.
        """
        axes = [plan[1].rules.get(each.loop) for each in plan[1].pipelines]
        is_simple = len(axes) == 1 and len(axes[0]) == 1
        return (self._with_entries, self._with_storage, self._with_kept) if is_simple else ()

    def _with_entries(self, plan: Plan) -> Iterator[Plan]:
        """Yield pipelines with other micro-batches or chunks."""
        (mesh, layout), (pipeline,) = plan, plan[1].pipelines
        (axis,) = layout.rules.get(pipeline.loop)
        stages = mesh.sizes[axis]
        layers = self.finder.program.dims[pipeline.loop].size // stages
        chunks = [number for number in range(1, layers + 1) if layers % number == 0][:CHUNKS]
        changed = [attrs.evolve(pipeline, micro_batches=rounds * stages) for rounds in ROUNDS]
        for other in (*changed, *(attrs.evolve(pipeline, chunks=number) for number in chunks)):
            if other != pipeline and self._is_possible(mesh, layout.rules, other, axis):
                yield mesh, attrs.evolve(layout, pipelines=(other,))

    def _with_storage(self, plan: Plan) -> Iterator[Plan]:
        mesh, layout = plan
        return ((mesh, attrs.evolve(layout, **each)) for each in self._storage(layout))

    def _with_kept(self, plan: Plan) -> Iterator[Plan]:
        """Yield pipelines whose stages keep other values, unless the loop itself computes all of them again."""
        (mesh, layout), (pipeline,) = plan, plan[1].pipelines
        if not self.finder.trains or any(
            each.checkpoint and each.loop.name == pipeline.loop for each in self.loops
        ):
            return
        for word, checkpoint in (*((word, False) for word in KEPT), ("", True)):
            forms, other = (
                attrs.evolve(layout.forms, recompute=word),
                attrs.evolve(pipeline, checkpoint=checkpoint),
            )
            yield mesh, attrs.evolve(layout, pipelines=(other,), forms=forms)

    def _first_storage(self, layout: Layout) -> list[dict[str, Any]]:
        """Return the storage to begin with: parts of parameters where the best layout stores parts."""
        is_split = self.best_layout is not None and bool(self.best_layout[1].params.axes)
        return self._storage(layout)[2 * is_split :] or self._storage(layout)

    def _storage(self, layout: Layout) -> list[dict[str, Any]]:
        """Return ways to store parameters and the optimizer's state: whole, as ZeRO-1, as FSDP, and also over the stages."""
        (pipeline,) = layout.pipelines
        (axis,) = layout.rules.get(pipeline.loop)
        data = tuple(x for x in layout.rules.get(pipeline.batch) if x != axis)
        found: list[dict[str, Any]] = [{"params": Rules(), "optimizer": Rules()}]
        if data and self.finder.trains:
            split, over_stages = (Rules(((EVERY, axes),)) for axes in (data, (*data, axis)))
            found += [
                {"params": Rules(), "optimizer": split},
                *({"params": each, "optimizer": Rules()} for each in (split, over_stages)),
            ]
        return found

    def _may_split(self, found: StagedLoop, parts: int) -> bool:
        """Return True if the batch is divisible, and no tensor outside of loops has both the loop's dimension and the batch."""
        forward = self.finder.program.function("forward")
        values = (*(a.value for a in forward.arguments), *(v for eqn in forward.body for v in eqn.results))
        both = {found.loop, found.batch}
        return found.batch.size % parts == 0 and not any(both <= {*value.type.dims} for value in values)
