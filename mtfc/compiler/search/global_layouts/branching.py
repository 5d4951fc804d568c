"""Layouts on one mesh as they are decided, dimension by dimension: blocks of rows that are worked on together.

Rows that cannot be the best are left out, by the cheapest bounds that tell so.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from time import monotonic

import attrs
import numpy as np

from mtfc.compiler.cost.topology import lie_as_one
from mtfc.compiler.ir.types import Layout, Rules
from mtfc.compiler.search.found import Objective
from mtfc.compiler.search.global_layouts.bound import BLOCK, Bound
from mtfc.compiler.search.global_layouts.collective_bounds import Seconds
from mtfc.compiler.search.global_layouts.layout_space import Integers, Rows, layout_of
from mtfc.compiler.search.global_layouts.lookup_tables import Booleans, Known

MANY = 1 << 8
"""Rows for which a full bound takes not much longer than for one: fewer wait for it until there are more, or all is decided."""

BEAM = 1 << 6
"""How many partial layouts are followed at once on the way to a whole one."""

NEVER = 1e9
"""Seconds that no step takes."""


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
        rows = np.unique(np.concatenate([row[None], *changed]), axis=0)
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
