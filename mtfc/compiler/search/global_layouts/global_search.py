"""The best global layout: branch and bound over meshes, and dimension by dimension over layouts.

Partial layouts wait in a queue by their bounds, as blocks of rows that are worked on together. The block with the smallest bound
is taken. Its rows get one more dimension; or, if they have all, the best row is compiled and priced. Once no bound is below the
best price, the best layout is proven optimal. Bounds are tested, not proven: if a price is below its own bound, nothing is
proven.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import count
from math import inf
from time import process_time

import attrs
import numpy as np

from mtfc.compiler.activity import report_progress
from mtfc.compiler.cost.device_models import may_be_short
from mtfc.compiler.cost.hardware import Hardware
from mtfc.compiler.cost.tables.collective_tables import Seconds
from mtfc.compiler.cost.topology import lie_as_one
from mtfc.compiler.ir.core import Function
from mtfc.compiler.ir.types import Layout, Mesh, Rules
from mtfc.compiler.search.found import (
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
from mtfc.compiler.search.global_layouts.effect_bounds import Booleans, MaskRange
from mtfc.compiler.search.global_layouts.layout_bound import (
    BLOCK,
    ColumnElimination,
    ColumnEliminations,
    LayoutBound,
)
from mtfc.compiler.search.global_layouts.layout_space import Columns, Integers, Rows, layout_of, space_of
from mtfc.compiler.search.global_layouts.repeated_facts import RepeatedFacts
from mtfc.compiler.search.global_layouts.step_facts import StepFacts

PROVING, DESCENDING = 0.5, 0.2
"""The part of the time for branching before a descent to good layouts, and the part for the descent."""

COMPILED = 6
"""Layouts that are compiled at the end of each descent."""

DIVING = 0.2
"""The part of the time for a dive if no layout is known."""

ELIMINATING = 0.4
"""The part of the time in which eliminations are begun; later meshes have none."""

ROUNDING = 1e-9
"""The relative error of a bound."""


MANY = 1 << 8
"""The number of rows whose full bounds take little longer than the bound of one row. Fewer rows wait until there are more, or
until all columns are decided.
"""

BEAM = 1 << 6
"""The partial layouts that a dive follows at the same time."""

NEVER = 1e9
"""Seconds that no step takes."""


@attrs.frozen(eq=False)
class PartialLayouts:
    """Layouts on one mesh of which the first `depth` columns, in the branching order, are decided; bounds ascend.

    is_full: True if all columns are decided and bounds are as large as they get.
    """

    on: Branching
    depth: int
    rows: Rows
    bounds: Seconds
    is_full: bool = False

    def where(self, kept: Booleans | Integers | slice) -> PartialLayouts:
        """Return some of the rows."""
        return attrs.evolve(self, rows=self.rows[kept], bounds=self.bounds[kept])


@attrs.frozen(eq=False)
class Branching:
    """A mesh, its bound, and the order in which columns are decided: first those of a single choice, storage last.

    Between them are the columns with the heaviest work first, or, if columns are eliminated, those eliminated last. joints: axes
    that another searched mesh joins with the next axis.
    """

    bound: LayoutBound
    order: tuple[int, ...]
    joints: tuple[int, ...]
    objective: Objective
    closed: int = 0
    elimination: ColumnElimination | None = None

    @classmethod
    def on(
        cls,
        bound: LayoutBound,
        any_shape: bool,
        objective: Objective,
        eliminations: ColumnEliminations | None = None,
    ) -> Branching:
        """Return the branching of a mesh. any_shape: meshes of the same devices with fewer axes are searched too.

        eliminations: eliminates the columns, if it pays.
        """
        pairs = range(len(bound.mesh.axes) - 1) if any_shape else ()
        joints = tuple(first for first in pairs if lie_as_one(bound.mesh, bound.hardware, first))
        closed = bound.space.decided(bound.mesh)
        elimination = eliminations.on(bound, closed) if eliminations and objective != "memory" else None
        order = elimination.order if elimination else _heaviest_first(bound, closed)
        return cls(bound, (*sorted(closed), *order), joints, objective, len(closed), elimination)

    @property
    def axes(self) -> int:
        """The number of axes of the mesh."""
        return len(self.bound.mesh.axes)

    @property
    def storage(self) -> int:
        """The depth from which on storage is decided."""
        return len(self.order) - len(self.bound.space.storing.intersection(self.order[self.closed :]))

    def start(self) -> PartialLayouts:
        """Return the partial layouts that the search starts from, with their bounds."""
        rows = self.bound.space.start(frozenset(self.order[: self.closed]), self.bound.mesh)
        block = PartialLayouts(self, self.closed, rows, np.zeros(len(rows)))
        known = self._known(block)
        bounds = self.bound.memory(known) if self.objective == "memory" else self.bound.flops(known)
        if self.elimination:
            bounds = np.maximum(bounds, self._eliminated(known, self.closed))
        return attrs.evolve(block, bounds=bounds)

    def _known(self, block: PartialLayouts) -> MaskRange:
        return self.bound.known(block.rows, frozenset(self.order[: block.depth]))

    def _deeper(self, block: PartialLayouts) -> PartialLayouts:
        """Return the rows with one more column decided, under the bounds of the old rows."""
        column, before = self.order[block.depth], frozenset(self.order[: block.depth])
        rows, origins = self.bound.space.extended(block.rows, column, before, self.bound.mesh)
        return attrs.evolve(block, depth=block.depth + 1, rows=rows, bounds=block.bounds[origins])

    def children(self, block: PartialLayouts, limit: float, until: float) -> PartialLayouts:
        """Return the rows with one more column decided that may fit and be below the limit, as far as is known `until` then."""
        child = self._deeper(block)
        if child.depth == len(self.order):
            child = child.where(_is_new(child.rows, self.joints))
        for bound in self._bounds(child, until):
            if not len(child.rows) or process_time() > until:
                break
            found = bound(self._known(child))
            child = attrs.evolve(child, bounds=np.maximum(child.bounds, found))
            child = child.where(child.bounds < limit)
        return child

    def parts(self, block: PartialLayouts) -> Iterator[PartialLayouts]:
        """Cut a block into blocks of few rows; whole rows of one block have the same facts."""
        groups = np.zeros(len(block.rows), np.int64)
        if block.depth == len(self.order):
            groups = self.bound.alike(MaskRange(block.rows, block.rows))
        for group in np.unique(groups):
            part = block.where(groups == group)
            yield from (part.where(slice(i, i + BLOCK)) for i in range(0, len(part.rows), BLOCK))

    def full(self, block: PartialLayouts, limit: float, until: float) -> PartialLayouts:
        """Return the whole rows below the limit, with full bounds as far as these are found `until` then, in their order."""
        bounds = block.bounds
        if self.objective != "memory":
            bounds = np.maximum(bounds, self.bound.seconds(self.bound.exactly(block.rows), until=until))
        found = attrs.evolve(block, bounds=bounds, is_full=True).where(np.argsort(bounds, kind="stable"))
        return found.where(found.bounds < limit)

    def _bounds(self, block: PartialLayouts, until: float) -> Iterator[Callable[[MaskRange], Seconds]]:
        """Yield bounds that may rule rows out, the cheapest first."""
        if self.objective == "memory":
            yield self.bound.memory
            return
        if self.elimination:
            yield lambda known: self._eliminated(known, block.depth)
        else:
            yield self.bound.flops
        yield self._too_large
        if block.depth < len(self.order) and not self.elimination:
            yield lambda known: self._seconds(known, block.depth, until)

    def _seconds(self, known: MaskRange, depth: int, until: float) -> Seconds:
        """Return full bounds if there are many rows, or where storage begins; whole rows wait for theirs."""
        is_due = len(known.low) >= MANY or depth == self.storage
        return self.bound.seconds(known, until) if is_due else np.zeros(len(known.low))

    def _eliminated(self, known: MaskRange, depth: int) -> Seconds:
        assert self.elimination is not None
        return self.elimination.seconds(known.low, depth - self.closed) / (1 + self.bound.at_once)

    def _too_large(self, known: MaskRange) -> Seconds:
        return np.where(self.bound.memory_on_device(known) > self.bound.hardware.device.memory, np.inf, 0.0)

    def row(self, rules: Rules) -> Rows:
        """Return the row of some rules, without storage. No other dimension is split, but those that must be."""
        space, mesh = self.bound.space, self.bound.mesh
        row = np.zeros(len(self.order), np.uint8)
        for column, each in enumerate(space.columns):
            mask = sum(1 << mesh.names.index(axis) for axis in rules.get(each.dim.name))
            masks = space.masks(column, mesh)
            row[column] = row[each.base] if each.base is not None else mask if mask in masks else min(masks)
        return row

    def dive(self, until: float) -> PartialLayouts:
        """Return whole rows that may fit, the best first, by a beam search over columns that ends `until` then."""
        block = self.start()
        while block.depth < len(self.order) and process_time() < until:
            block = self.children(block, np.inf, until)
            block = block.where(np.argsort(block.bounds, kind="stable")[:BEAM])
        return self.full(block, np.inf, until) if block.depth == len(self.order) else block

    def least(self) -> PartialLayouts:
        """Return the whole row of the least bound by elimination, as far as the elimination is exact."""
        block = self.start()
        while block.depth < len(self.order):
            child = self._deeper(block)
            child = attrs.evolve(child, bounds=self._eliminated(self._known(child), child.depth))
            block = child.where(np.array([np.argmin(child.bounds)]))
        return attrs.evolve(block, bounds=self.bound.seconds(self.bound.exactly(block.rows)))

    def neighbours(self, row: Rows) -> Rows:
        """Return the row, and all rows that differ in the split of one dimension; storage follows the computation."""
        space, columns = self.bound.space, frozenset(range(len(row)))
        changed = [
            space.extended(row[None], column, columns - {column}, self.bound.mesh)[0]
            for column in columns - space.storing
        ]
        rows = np.unique(np.concatenate([row[None], *changed]), axis=0)
        for column in sorted(space.storing):
            rows[:, column] = rows[:, space.columns[column].base]
        return rows

    def scores(self, rows: Rows, until: float) -> Seconds:
        """Return bounds; for rows that cannot fit more than any bound, in proportion to the memory; of use only before
        `until`.
        """
        known = self.bound.exactly(rows)
        lacking = self.bound.memory_on_device(known) / self.bound.hardware.device.memory
        return np.where(lacking > 1, NEVER * lacking, self.bound.seconds(known, until=until))

    def claims(self, row: Rows, price: Price) -> list[tuple[float, float]]:
        """Return the bounds on the memory of a layout, and its memory, without a device and on the device."""
        known = self.bound.exactly(row[None])
        bounds = self.bound.memory(known), self.bound.memory_on_device(known)
        return [
            (float(least[0]), actual)
            for least, actual in zip(bounds, (price.memory, price.tiled), strict=True)
        ]

    def layout(self, row: Rows) -> Layout:
        return layout_of(self.bound.space, row.tolist(), self.bound.mesh)


def _heaviest_first(bound: LayoutBound, closed: Columns) -> tuple[int, ...]:
    """Return the columns that are not closed: those with the heaviest work first, storage last."""
    space = bound.space
    columns = dict.fromkeys(
        [*(i for each, _ in bound.heavy for i in sorted(each)), *range(len(space.columns))]
    )
    order = [i for i in columns if i not in space.storing]
    for i in (i for i in columns if i in space.storing):
        base = space.columns[i].base
        order += [each for each in (base, i) if each is not None and each not in order]
    return tuple(i for i in order if i not in closed)


def _is_new(rows: Rows, joints: Sequence[int]) -> Booleans:
    """Return False for rows in which two axes that could be one split the same dimensions: a mesh with one axis has them, too."""
    apart = [((rows >> i ^ rows >> (i + 1)) & 1).any(axis=1) for i in joints]
    return np.logical_and.reduce(apart) if apart else np.ones(len(rows), np.bool_)


@attrs.define
class BranchAndBound(PricedLayouts):
    """One search. until: its end, a time of `process_time`.

    working_on: a block that is being replaced in the queue by others. waiting: meshes without a block in the queue yet, those of
    the fewest axes last. refuted: a layout whose price is below its bound.
    """

    until: float = inf
    queue: list[tuple[float, int, int, int, PartialLayouts]] = attrs.field(factory=list)
    working_on: PartialLayouts | None = None
    waiting: list[Branching] = attrs.field(factory=list)
    refuted: Layout | None = None
    order: Iterator[int] = attrs.field(factory=count)

    def try_row(self, on: Branching, row: Rows, bound: float) -> None:
        """Price a layout whose bound is `bound`."""
        layout = on.layout(row)
        price = self.offer(on.bound.mesh, layout)
        claims = [(bound, value_of(price, self.objective)), *on.claims(row, price)]
        if any(least * (1 - ROUNDING) > actual for least, actual in claims):
            self.refuted = layout

    def offer(self, mesh: Mesh, layout: Layout) -> Price:
        """Compile a layout, and keep and report it if it is the best so far."""
        before = self.limit
        price = super().offer(mesh, layout)
        if self.limit < before:
            self._report()
        return price

    def _report(self) -> None:
        """Report the best cost, and the bound of all layouts once every mesh is in the queue."""
        bound = float("inf") if self.waiting else min(self.bound, self.limit)
        known = (each if each < float("inf") else None for each in (self.limit, bound))
        report_progress(f"{self.evaluated} layouts compiled", *known)

    @property
    def bound(self) -> float:
        """A lower bound on the cost of all layouts that were not priced yet."""
        waiting = [block for *_, block in self.queue[:1]]
        blocks = [*waiting, self.working_on] if self.working_on else waiting
        least = min((float(block.bounds[0]) for block in blocks), default=float("inf"))
        return least * (1 - ROUNDING)

    def run(self, branchings: Sequence[Branching], known: Iterable[Plan]) -> None:
        """Search until the best layout is proven, time is up, or `KeyboardInterrupt`."""
        self.waiting = sorted(branchings, key=lambda on: -on.axes)
        try:
            for mesh, layout in known:
                self.offer(mesh, layout)
            self._run(branchings)
            self.is_late = self.bound < self.limit
        except KeyboardInterrupt:
            self.is_interrupted = True
            for on in self.waiting:
                self._push(on.start())

    def _run(self, branchings: Sequence[Branching]) -> None:
        """Branch on meshes of few axes first; their layouts rule out many of the others.

        If that proves nothing in a part of the time, descend to good layouts before branching goes on.
        """
        started, seconds = process_time(), self.until - process_time()
        self._try_leasts(branchings)
        if self.best is None:
            for on in reversed(self.waiting):
                self._dive(on, started + DIVING * seconds)
        numbers = sorted({on.axes for on in branchings})
        for i, number in enumerate(numbers):
            while self.waiting and self.waiting[-1].axes == number:
                self._push(self.waiting[-1].start())
                self.waiting.pop()
            self._branch(started + PROVING * (i + 1) / len(numbers) * seconds)
        if self.bound < self.limit and self.objective != "memory":
            until = process_time() + DESCENDING * seconds
            for on in sorted(branchings, key=lambda on: not self._has_best(on)):
                self._descend(on, until)
        self._branch(self.until)
        if self.best is None and self.bound < self.limit:
            self.try_row(branchings[0], branchings[0].row(Rules()), 0.0)  # splits as little as allowed
        self._report()

    def _branch(self, until: float) -> None:
        """Work out the block with the least bound, again and again, until the bound meets the limit or the time is over."""
        while self.bound < self.limit and process_time() < until:
            self._report()
            self.working_on = self.queue[0][-1]
            heapq.heappop(self.queue)
            self._work_out(self.working_on)
            self.working_on = None

    def _try_leasts(self, branchings: Sequence[Branching]) -> None:
        """Price the layout of the least bound on each mesh whose columns are eliminated, until one is not better than before."""
        blocks = [on.least() for on in branchings if on.elimination]
        for block in sorted(blocks, key=lambda each: float(each.bounds[0])):
            before = self.limit
            if block.bounds[0] < before and process_time() < self.until:
                self.try_row(block.on, block.rows[0], float(block.bounds[0]))
            if self.limit == before:
                break

    def _dive(self, on: Branching, until: float) -> None:
        """Price the layout that seems best on a mesh among those that seem to fit."""
        block = on.dive(until)
        if len(block.rows) and block.depth == len(on.order):
            self.try_row(on, block.rows[0], float(block.bounds[0]))

    def _has_best(self, on: Branching) -> bool:
        return self.best is not None and self.best[0] == on.bound.mesh

    def _descend(self, on: Branching, until: float) -> None:
        """Change one dimension at a time until no change improves the bound, and compile the last layout and the next best.

        The descent starts at the best layout if that layout is on this mesh, else at the layout that splits as little as allowed.
        """
        row, best = on.row(self.best[1].rules if self.best and self._has_best(on) else Rules()), float("inf")
        found: list[tuple[float, Rows]] = []
        while process_time() < until:
            rows = on.neighbours(row)
            scores = on.scores(rows, until)
            ranked = np.argsort(scores)[:COMPILED]
            if scores[ranked[0]] >= best or process_time() > until:
                break
            row, best = rows[ranked[0]], float(scores[ranked[0]])
            found = [(float(scores[i]), rows[i]) for i in ranked]
        for score, row in found:
            if score < self.limit and process_time() < until:
                self.try_row(on, row, score if score < NEVER else 0.0)

    def _work_out(self, block: PartialLayouts) -> None:
        """Decide one more column of a block; or find full bounds; or, where these are known, price the first row."""
        if block.depth < len(block.on.order):
            children = block.on.children(block, self.limit, self.until)
            for part in block.on.parts(children.where(np.argsort(children.bounds, kind="stable"))):
                self._push(part)
        elif not block.is_full:
            self._push(block.on.full(block, self.limit, self.until))
        else:
            self.try_row(block.on, block.rows[0], float(block.bounds[0]))
            self._push(block.where(slice(1, None)))

    def _push(self, block: PartialLayouts) -> None:
        """Put a block into the queue. The least bound comes first, and of equal ones the deepest."""
        if len(block.rows):
            entry = (float(block.bounds[0]), -block.depth, block.on.axes, next(self.order), block)
            heapq.heappush(self.queue, entry)


@attrs.frozen
class GlobalSpace:
    """The global layouts of a model on some meshes of a machine.

    step: the undistributed function of the model `forward`. meshes: one, or all shapes of one number of devices, those of fewer
    axes first. fixed: rules that every layout has. storage: search how parameters and the optimizer's state are stored, too.
    recomputes: True if prices are of programs that compute values again where the memory does not suffice. layers: steps with
    fewer of the repeated layers of `step`, and the number of its layers: see `RepeatedFacts`.
    """

    step: Function
    forward: Function
    meshes: Sequence[Mesh]
    hardware: Hardware
    objective: Objective = "time"
    fixed: Rules = Rules()  # noqa: RUF009
    storage: bool = False
    recomputes: bool = False
    layers: tuple[Sequence[Function], int] | None = None

    def best(self, pricing: Pricing, until: float, known: Iterable[Plan] = ()) -> Found:
        """Return the layout under which the step takes least time or memory, as far as is found `until` then.

        known: layouts that are tried first, so that nothing worse is found. Raises `NothingFits`. `KeyboardInterrupt` ends the
        search with the best layout so far; without any, it is raised.
        """
        room = room_on(self.hardware, self.objective)
        searching = BranchAndBound(pricing, self.objective, room, until=until)
        searching.run([*self._branchings(until)], known)
        if searching.best is None and not searching.is_interrupted:
            raise self._nothing_fits(searching)
        bound = min(searching.bound, searching.limit) if searching.refuted is None else 0.0
        return searching.found(bound, refuted=searching.refuted)

    def _branchings(self, until: float) -> Iterator[Branching]:
        """Yield the branching of each mesh. Columns are eliminated in a part of the time `until` then."""
        space = space_of(self.forward, self.fixed, self.storage)
        facts = StepFacts.of(
            self.step, self.hardware.device, self.recomputes and may_be_short(self.step, self.hardware.device)
        )
        if self.layers is not None:
            facts = RepeatedFacts.of_layers(facts, *self.layers, space.split)
        eliminations, eliminating = (
            ColumnEliminations(),
            process_time() + ELIMINATING * (until - process_time()),
        )
        for mesh in self.meshes:
            bound = LayoutBound(space, facts, mesh, self.hardware, self.objective == "time")
            usual = eliminations if process_time() < eliminating else None
            yield Branching.on(bound, len(self.meshes) > 1, self.objective, usual)

    def _nothing_fits(self, searching: BranchAndBound) -> NothingFits:
        """Return the error of a search without a result."""
        is_open = searching.queue or searching.refuted
        found = "no layout was found whose memory suffices" if is_open else "no layout's memory suffices"
        has = f": {memory_text(searching.room, searching.least_memory)}" if searching.room < inf else ""
        others = [*["--storage"] * (not self.storage), *["--recompute"] * (not self.recomputes)]
        remedy = f"; {' or '.join(others)} may need less" if others else ""
        return NothingFits(f"{found}{has}{remedy}")
