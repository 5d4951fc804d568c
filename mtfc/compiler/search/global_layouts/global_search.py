"""The best global layout: branch and bound over meshes, and dimension by dimension over layouts.

Partial layouts wait in a queue by their bounds, as blocks of rows that are worked on together. The block with the smallest bound
is taken: its rows get one more dimension, or, if they have all, the best of them is compiled and priced. What is priced is so
exactly what the compiler makes; once no bound is below the best price, that is proven to be the best. Bounds are tested, not
proven: where a price turns out to be below its own, nothing is proven.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Iterator, Sequence
from itertools import count
from time import monotonic

import attrs
import numpy as np

from mtfc.compiler.cost.hardware import Hardware
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
from mtfc.compiler.search.global_layouts.bound import Bound
from mtfc.compiler.search.global_layouts.branching import NEVER, Block, Branching
from mtfc.compiler.search.global_layouts.layout_space import Rows, space_of
from mtfc.compiler.search.global_layouts.step_parts import Step

PROVING, DESCENDING = 0.5, 0.2
"""Which part of the time branching has before good layouts are looked for otherwise, and which part that has."""

COMPILED = 6
"""How many layouts are compiled at the end of each descent."""

DIVING = 0.2
"""Where no layout is known, in which part of the time one is dived for."""

ROUNDING = 1e-9
"""By which part a bound may be too large."""


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
        if self.best is None and self.bound < self.limit:
            self._split_nothing(branchings[0])

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

    def _split_nothing(self, on: Branching) -> None:
        """For want of time to find anything: nothing split but what must be."""
        self.try_row(on, on.row(Rules()), 0.0)

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
