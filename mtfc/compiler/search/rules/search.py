"""The best global layout: branch and bound over meshes, and dimension by dimension over layouts.

Partial layouts wait in a queue by their bounds, as blocks of rows that are worked on together. The block with the smallest bound
is taken: its rows get one more dimension, or, if they have all, the best of them is compiled and priced. What is priced is so
exactly what the compiler makes; once no bound is below the best price, that is proven to be the best. Bounds are tested, not
proven: where a price turns out to be below its own, nothing is proven.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import count
from time import monotonic

import attrs
import numpy as np

from mtfc.compiler.analysis.topology import lie_as_one
from mtfc.compiler.hardware import Hardware
from mtfc.compiler.ir.core import Function
from mtfc.compiler.ir.printer import bytes_text
from mtfc.compiler.ir.types import Layout, Mesh, Rules
from mtfc.compiler.search.found import (
    Found,
    NothingFits,
    Objective,
    Price,
    Pricing,
    Progress,
    silent,
    value_of,
)
from mtfc.compiler.search.rules.bound import BLOCK, Bound
from mtfc.compiler.search.rules.collectives import Seconds
from mtfc.compiler.search.rules.lookup import Booleans, Known
from mtfc.compiler.search.rules.parts import Step
from mtfc.compiler.search.rules.space import Integers, Rows, layout_of, space_of

MANY = 1 << 8
"""Rows for which a full bound takes not much longer than for one: fewer wait for it until there are more, or all is decided."""

PROVING, DESCENDING = 0.5, 0.2
"""Which part of the time branching has before good layouts are looked for otherwise, and which part that has."""

COMPILED = 6
"""How many layouts are compiled at the end of each descent."""

DIVING, BEAM = 0.2, 1 << 6
"""Where no layout is known, in which part of the time one is dived for, and how many partial ones are followed at once."""

NEVER = 1e9
"""Seconds that no step takes."""

ROUNDING = 1e-9
"""By which part a bound may be too large."""


@attrs.frozen(eq=False)
class Block:
    """Layouts on one mesh of which the first `depth` columns, in the branching order, are decided; bounds ascend.

    is_full: whether all columns are decided, and bounds are as large as can be told.
    """

    on: Branching
    depth: int
    rows: Rows
    bounds: Seconds
    is_full: bool = False

    def where(self, kept: Booleans | Integers | slice) -> Block:
        """Some of its rows."""
        return attrs.evolve(self, rows=self.rows[kept], bounds=self.bounds[kept])


@attrs.frozen(eq=False)
class Branching:
    """A mesh, its bound, and the columns in the order in which they are decided: those of the heaviest work first, storage last.

    joints: axes that could be one with the next, of a mesh that is searched too.
    """

    bound: Bound
    order: tuple[int, ...]
    joints: tuple[int, ...]
    objective: Objective

    @classmethod
    def on(cls, bound: Bound, any_shape: bool, objective: Objective) -> Branching:
        """any_shape: whether meshes of the same devices with fewer axes are searched too."""
        columns = range(len(bound.space.columns))
        heavy = dict.fromkeys([*(i for each, _ in bound.heavy for i in sorted(each)), *columns])
        pairs = range(len(bound.mesh.axes) - 1) if any_shape else ()
        joints = tuple(first for first in pairs if lie_as_one(bound.mesh, bound.hardware, first))
        order = [i for i in heavy if i not in bound.space.storing]
        for i in (i for i in heavy if i in bound.space.storing):
            base = bound.space.columns[i].base
            order += [each for each in (base, i) if each is not None and each not in order]
        return cls(bound, tuple(order), joints, objective)

    @property
    def axes(self) -> int:
        """How many the mesh has."""
        return len(self.bound.mesh.axes)

    @property
    def storage(self) -> int:
        """The depth from which on storage is decided."""
        return len(self.order) - len(self.bound.space.storing)

    def start(self) -> Block:
        rows = np.zeros((1, len(self.order)), np.uint8)
        known = self.bound.known(rows, frozenset())
        is_time = self.objective != "memory"
        return Block(self, 0, rows, self.bound.flops(known) if is_time else self.bound.memory(known))

    def children(self, block: Block, limit: float, until: float) -> Block:
        """All rows with one more column decided that may fit and be below the limit, as far as that is known `until` then."""
        column, before = self.order[block.depth], frozenset(self.order[: block.depth])
        rows, origins = self.bound.space.extended(block.rows, column, before, self.bound.mesh)
        child = attrs.evolve(block, depth=block.depth + 1, rows=rows, bounds=block.bounds[origins])
        if child.depth == len(self.order):
            child = child.where(_is_new(rows, self.joints))
        for bound in self._bounds(child, until):
            if not len(child.rows) or monotonic() > until:
                break
            found = bound(self.bound.known(child.rows, before | {column}))
            child = attrs.evolve(child, bounds=np.maximum(child.bounds, found))
            child = child.where(child.bounds < limit)
        return child

    def parts(self, block: Block) -> Iterator[Block]:
        """Not too many rows each; of whole rows those whose full bounds are found together."""
        groups = np.zeros(len(block.rows), np.int64)
        if block.depth == len(self.order):
            groups = self.bound.alike(Known(block.rows, block.rows))
        for group in np.unique(groups):
            part = block.where(groups == group)
            yield from (part.where(slice(i, i + BLOCK)) for i in range(0, len(part.rows), BLOCK))

    def full(self, block: Block, limit: float, until: float) -> Block:
        """Whole rows that are below the limit, with all that is known of them `until` then, and in this order."""
        bounds = block.bounds
        if self.objective != "memory":
            bounds = np.maximum(bounds, self.bound.seconds(Known(block.rows, block.rows), until=until))
        found = attrs.evolve(block, bounds=bounds, is_full=True).where(np.argsort(bounds, kind="stable"))
        return found.where(found.bounds < limit)

    def _bounds(self, block: Block, until: float) -> Iterator[Callable[[Known], Seconds]]:
        """What may rule rows out, the cheapest first."""
        if self.objective == "memory":
            yield self.bound.memory
            return
        yield self.bound.flops
        yield self._too_large
        if len(block.rows) >= MANY or block.depth in (self.storage, len(self.order)):
            is_open = block.depth <= self.storage < len(self.order)
            yield lambda known: self.bound.sure_seconds(known, is_open, until)
            if block.depth < len(self.order):
                yield lambda known: self._seconds(known, block.depth, is_open, until)

    def _seconds(self, known: Known, depth: int, is_open: bool, until: float) -> Seconds:
        """Full bounds, of rows that are still so many, or where storage begins: whole ones wait for theirs."""
        is_due = len(known.low) >= MANY or depth == self.storage
        return self.bound.seconds(known, is_open, until) if is_due else np.zeros(len(known.low))

    def _too_large(self, known: Known) -> Seconds:
        return np.where(self.bound.memory(known) > self.bound.hardware.device.memory, np.inf, 0.0)

    def row(self, rules: Rules) -> Rows:
        """That of a layout without storage, in which nothing is split that no rule splits, but what must be."""
        space, mesh = self.bound.space, self.bound.mesh
        row = np.zeros(len(self.order), np.uint8)
        for column, each in enumerate(space.columns):
            mask = sum(1 << mesh.names.index(axis) for axis in rules.get(each.dim.name))
            masks = space.masks(column, mesh)
            row[column] = row[each.base] if each.base is not None else mask if mask in masks else min(masks)
        return row

    def dive(self, until: float) -> Block:
        """Whole rows that may fit, of those of which the first columns are best decided so far, the best first; as far as that
        goes until then.
        """
        block = self.start()
        while block.depth < len(self.order) and monotonic() < until:
            block = self.children(block, np.inf, until)
            block = block.where(np.argsort(block.bounds, kind="stable")[:BEAM])
        return self.full(block, np.inf, until) if block.depth == len(self.order) else block

    def neighbours(self, row: Rows) -> Rows:
        """The row, and all rows in which one dimension is split otherwise; what is stored follows."""
        space, columns = self.bound.space, frozenset(range(len(row)))
        changed = [
            space.extended(row[None], column, columns - {column}, self.bound.mesh)[0]
            for column in columns - space.storing
        ]
        rows = np.unique(np.concatenate(changed), axis=0)
        for column in sorted(space.storing):
            rows[:, column] = rows[:, space.columns[column].base]
        return rows

    def scores(self, rows: Rows, until: float) -> Seconds:
        """Bounds, and more than any for rows that cannot fit, the more they lack the more; of use only before `until`."""
        known = Known(rows, rows)
        lacking = self.bound.memory(known) / self.bound.hardware.device.memory
        return np.where(lacking > 1, NEVER * lacking, self.bound.seconds(known, until=until))

    def least_memory(self, row: Rows) -> float:
        """What a layout is said to hold at least."""
        return float(self.bound.memory(Known(row[None], row[None]))[0])

    def layout(self, row: Rows) -> Layout:
        return layout_of(self.bound.space, row.tolist(), self.bound.mesh)


def _is_new(rows: Rows, joints: Sequence[int]) -> Booleans:
    """Where neighbouring axes that could be one do not split the same dimensions, as one axis of both sizes would."""
    apart = [((rows >> i ^ rows >> (i + 1)) & 1).any(axis=1) for i in joints]
    return np.logical_and.reduce(apart) if apart else np.ones(len(rows), np.bool_)


@attrs.define
class Search:
    """One search. room: bytes of memory that a processor has. until: when to stop, a time of `time.monotonic`.

    working_on: a block that is being replaced in the queue by others. waiting: meshes that no block in the queue is of yet, those
    of the fewest axes last. refuted: a layout whose price is below its bound.
    """

    pricing: Pricing
    objective: Objective
    room: float
    until: float
    progress: Progress = silent
    best: tuple[Price, Mesh, Layout] | None = None
    least_memory: int | None = None
    evaluated: int = 0
    queue: list[tuple[float, int, int, int, Block]] = attrs.field(factory=list)
    working_on: Block | None = None
    waiting: list[Branching] = attrs.field(factory=list)
    is_interrupted: bool = False
    refuted: Layout | None = None
    order: Iterator[int] = attrs.field(factory=count)

    def try_row(self, on: Branching, row: Rows, bound: float) -> None:
        """Try a layout out that was said to cost no less than `bound`."""
        mesh, layout = on.bound.mesh, on.layout(row)
        price = self.try_out(mesh, layout)
        claims = ((bound, value_of(price, self.objective)), (on.least_memory(row), price.memory))
        if any(least * (1 - ROUNDING) > actual for least, actual in claims):
            self.refuted = layout

    def try_out(self, mesh: Mesh, layout: Layout) -> Price:
        """Compile a layout and keep it if it is the best so far."""
        price = self.pricing(mesh, layout)
        self.evaluated += 1
        self.least_memory = min(price.memory, self.least_memory or price.memory)
        if price.tiled <= self.room and value_of(price, self.objective) < self.limit:
            self.best = price, mesh, layout
            self.progress("searching", self.limit, self.bound)
        return price

    @property
    def limit(self) -> float:
        """What is to be beaten."""
        return value_of(self.best[0], self.objective) if self.best else float("inf")

    @property
    def bound(self) -> float:
        """What no layout is below that was not priced yet."""
        waiting = [block for *_, block in self.queue[:1]]
        blocks = [*waiting, self.working_on] if self.working_on else waiting
        least = min((float(block.bounds[0]) for block in blocks), default=float("inf"))
        return least * (1 - ROUNDING)

    def run(self, branchings: Sequence[Branching], known: Iterable[tuple[Mesh, Layout]]) -> None:
        """Until the best is proven, time is up, or `KeyboardInterrupt`."""
        self.waiting = sorted(branchings, key=lambda on: -on.axes)
        try:
            for mesh, layout in known:
                self.try_out(mesh, layout)
            self._run(branchings)
        except KeyboardInterrupt:
            self.is_interrupted = True
            for on in self.waiting:
                self._push(on.start())

    def _run(self, branchings: Sequence[Branching]) -> None:
        """Meshes of few axes first, whose layouts leave less of the others to be looked at; and where there is no proof in a part
        of the time, good layouts before that goes on.
        """
        started, seconds = monotonic(), self.until - monotonic()
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
            until = monotonic() + DESCENDING * seconds
            for on in sorted(branchings, key=lambda on: not self._has_best(on)):
                self._descend(on, until)
        self._branch(self.until)

    def _branch(self, until: float) -> None:
        while self.bound < self.limit and monotonic() < until:
            self.working_on = self.queue[0][-1]
            heapq.heappop(self.queue)
            self._work_out(self.working_on)
            self.working_on = None

    def _dive(self, on: Branching, until: float) -> None:
        """To the layout that seems best of those on a mesh that seem to fit."""
        block = on.dive(until)
        if len(block.rows) and block.depth == len(on.order):
            self.try_row(on, block.rows[0], float(block.bounds[0]))

    def _has_best(self, on: Branching) -> bool:
        return self.best is not None and self.best[1] == on.bound.mesh

    def _descend(self, on: Branching, until: float) -> None:
        """From the best layout, where it is on this mesh, or nothing split, but what must be, to one whose bound no change of one
        dimension improves; it and the next best are compiled.
        """
        row, best = on.row(self.best[2].rules if self.best and self._has_best(on) else Rules()), float("inf")
        found: list[tuple[float, Rows]] = []
        while monotonic() < until:
            rows = on.neighbours(row)
            scores = on.scores(rows, until)
            ranked = np.argsort(scores)[:COMPILED]
            if scores[ranked[0]] >= best or monotonic() > until:
                break
            row, best = rows[ranked[0]], float(scores[ranked[0]])
            found = [(float(scores[i]), rows[i]) for i in ranked]
        for score, row in found:
            if score < self.limit and monotonic() < until:
                self.try_row(on, row, score if score < NEVER else 0.0)

    def _work_out(self, block: Block) -> None:
        """One more column; or, where all are decided, full bounds; or, where these are known, the first row."""
        if block.depth < len(block.on.order):
            children = block.on.children(block, self.limit, self.until)
            for part in block.on.parts(children.where(np.argsort(children.bounds, kind="stable"))):
                self._push(part)
        elif not block.is_full:
            self._push(block.on.full(block, self.limit, self.until))
        else:
            self.try_row(block.on, block.rows[0], float(block.bounds[0]))
            self._push(block.where(slice(1, None)))

    def _push(self, block: Block) -> None:
        if len(block.rows):
            entry = (float(block.bounds[0]), -block.depth, block.on.axes, next(self.order), block)
            heapq.heappush(self.queue, entry)

    def nothing_fits(self) -> NothingFits:
        is_open = self.queue or self.refuted
        found = "no layout was found whose memory suffices" if is_open else "no layout's memory suffices"
        has = f": a device has {bytes_text(int(self.room))}" if self.room < float("inf") else ""
        least = self.least_memory
        needs = f", and the least that was seen is {bytes_text(least)}" if least is not None else ""
        return NothingFits(f"{found}{has}{needs}; --storage may need less")


def search(
    step: Function,
    forward: Function,
    meshes: Sequence[Mesh],
    hardware: Hardware,
    pricing: Pricing,
    until: float,
    objective: Objective = "time",
    known: Iterable[tuple[Mesh, Layout]] = (),
    progress: Progress = silent,
    fixed: Rules = Rules(),  # noqa: B008
    storage: bool = False,
) -> Found:
    """The layout under which `step`, an undistributed program with the model's pass `forward`, takes least time or memory.

    `meshes` is one, or all shapes of one number of devices, those of fewer axes first. `known`
    layouts are tried first, so that nothing worse is found. Rules that are `fixed` every layout has. With `storage` it is also
    searched how parameters and the optimizer's state are stored. Raises `NothingFits`. `KeyboardInterrupt` ends it with what is
    known then, and is raised where that is nothing.
    """
    space, parts = space_of(forward, fixed, storage), Step.of(step, hardware.device)
    room = hardware.device.memory if objective != "memory" else float("inf")
    searching = Search(pricing, objective, room, until, progress)
    bounds = (Bound(space, parts, mesh, hardware, objective == "overlap") for mesh in meshes)
    searching.run([Branching.on(bound, len(meshes) > 1, objective) for bound in bounds], known)
    if searching.best is None and searching.is_interrupted:
        raise KeyboardInterrupt
    if searching.best is None:
        raise searching.nothing_fits()
    _, mesh, layout = searching.best
    bound = min(searching.bound, searching.limit) if searching.refuted is None else 0.0
    return Found(
        mesh,
        attrs.evolve(layout, name="found"),
        searching.limit,
        bound,
        searching.evaluated,
        searching.is_interrupted,
        searching.refuted,
    )
