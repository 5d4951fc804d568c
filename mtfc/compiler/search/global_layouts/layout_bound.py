"""The lower bound of a step under many layouts at once: all effects together.

Work is taken to be split over all axes that may split it, and communicating values over those axes alone that surely do
(`effect_bounds.py`). Programs that are small enough for another regime of the cost model have a bound of their own.

The lower bound of all layouts that complete a partial one, by elimination of columns.

The bound of a whole layout is a sum, and each of its terms depends on few columns. So each term becomes a table over the masks of
its columns. The columns are eliminated, the last of the branching order first: the tables with the column are added, and their
minimum over the column's masks is a table over the other columns (bucket elimination; Dechter, 1999). The tables that are left
when some columns are decided give the least sum of every partial layout at once. Elsewhere an open column is as if each term
could choose its masks for itself.

If a sum had too many entries, its tables are added in several parts, and each part has a minimum of its own (mini-buckets;
Dechter and Rish, 2003). A term of too many columns is bounded with some of them open. The result is then smaller, and still a
bound.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from itertools import compress
from math import inf
from time import process_time
from typing import Any

import attrs
import numpy as np

from mtfc.compiler.analysis.dimension_names import Dims
from mtfc.compiler.cost.device_models import regimes
from mtfc.compiler.cost.effects.moved_data import Halo, MovedData
from mtfc.compiler.cost.effects.pending_sums import SumRoute
from mtfc.compiler.cost.hardware import Hardware
from mtfc.compiler.cost.tables.collective_tables import Seconds
from mtfc.compiler.cost.topology import Topology
from mtfc.compiler.search.global_layouts.effect_bounds import (
    Booleans,
    EffectBounds,
    MaskRange,
    SearchSetting,
    SumBound,
)
from mtfc.compiler.search.global_layouts.layout_space import Columns, Integers, Rows, union
from mtfc.compiler.search.global_layouts.repeated_facts import canonical_form
from mtfc.compiler.search.global_layouts.step_facts import Facts, MemoryFacts, StepFacts, sharing
from mtfc.compiler.search.solver.elimination import JointCosts

BLOCK = 1 << 12
"""Layouts that are bounded between two looks at the clock."""

Alive = dict[tuple[Columns, Columns], Seconds]
"""Bytes at each point, by the columns that split them and the columns that must be whole."""


@attrs.frozen(slots=False, eq=False)
class LayoutBound(SearchSetting):
    """The bound for layouts on one mesh. sums: bounds of pending sums, and alive: live bytes, by their facts."""

    sums: dict[int, SumBound] = attrs.field(factory=dict)
    alive: dict[int, Alive] = attrs.field(factory=dict)

    @cached_property
    def at_once(self) -> int:
        """Number of lanes that work beside the processor."""
        return Topology.of(self.mesh, self.hardware).at_once if self.overlaps else 0

    @cached_property
    def heavy(self) -> list[tuple[Columns, float]]:
        """Seconds of arithmetic by the columns that may split it, most first."""
        found: dict[Columns, float] = defaultdict(float)
        for shard, times in self.step.facts(self.step.mixed).arithmetic.items():
            found[self.columns(shard.dims)] += shard.amount * times
        return sorted(found.items(), key=lambda item: -item[1])

    def known(self, rows: Rows, decided: Columns) -> MaskRange:
        """Return the masks of layouts of which only some columns are decided."""
        return MaskRange(*self.space.bounds(rows, decided, self.mesh))

    def exactly(self, rows: Rows) -> MaskRange:
        """Return the masks of layouts whose columns are all decided."""
        return self.known(rows, frozenset(range(len(self.space.columns))))

    # Memory and arithmetic

    def memory(self, known: MaskRange) -> Seconds:
        """Return the bytes of arguments and gradients, plus the most bytes of other live values, without gathered copies."""
        return self._held(known, self.step.memory)

    def memory_on_device(self, known: MaskRange) -> Seconds:
        """Return the bytes of `memory` that surely have buffers on the device."""
        return self._held(known, self.step.memory_on_device)

    def _held(self, known: MaskRange, facts: MemoryFacts) -> Seconds:
        """Return the least bytes in use on a device at the fullest point of the step, for each layout."""
        if id(facts) not in self.alive:
            self.alive[id(facts)] = self._alive(facts)
        alive, unions = self.alive[id(facts)], dict[Columns, Rows]()
        shares = np.ones((len(known.low), len(alive)))
        for i, (columns, unless) in enumerate(alive):
            for each in (columns, unless):
                if each not in unions:
                    unions[each] = union(known.high, each)
            shares[:, i] = (1 / self.degrees)[unions[columns]] * (unions[unless] == 0)
        most: Seconds = np.max(shares @ np.stack(list(alive.values())), axis=1)
        always = ((self.columns(dims), size) for dims, size in facts.always.items())
        return self._split(known, always) + most

    def _alive(self, facts: MemoryFacts) -> Alive:
        """Return the bytes that are alive at each point, by the columns that split them and the columns that must be whole."""
        found: Alive = {(frozenset(), frozenset()): np.zeros(len(facts.bytes))}
        for kind, column in zip(facts.kinds, facts.bytes.T, strict=True):
            key = self.columns(kind.dims), self.columns(kind.unless)
            found[key] = found.get(key, 0) + column
        return found

    def flops(self, known: MaskRange) -> Seconds:
        """Return the seconds of arithmetic alone."""
        return self._split(known, self.heavy)

    def _split(self, known: MaskRange, parts: Iterable[tuple[Columns, float]]) -> Seconds:
        """Return the sum of some amounts, each divided by the shards of the columns that split it."""
        total = np.zeros(len(known.low))
        for columns, amount in parts:
            total += (amount / self.degrees)[union(known.high, columns)]
        return total

    # The whole step

    def seconds(self, known: MaskRange, until: float = inf) -> Seconds:
        """Return a bound of the step; 0 for rows that are not reached `until` then.

        `until` is a time of `process_time`.
        """
        total = np.zeros(len(known.low))
        for bound, rows in self._regimes(known):
            for facts, some in bound._by_facts(known.where(rows)):
                for start in range(0, len(some), BLOCK):
                    if process_time() > until:
                        return total
                    block = rows[some[start : start + BLOCK]]
                    total[block] = bound._seconds(facts, known.where(block))
        return total

    def alike(self, known: MaskRange) -> Integers:
        """Return a number for each layout, the same for those with the same facts."""
        return self._splits(known)[1]

    def _by_facts(self, known: MaskRange) -> Iterator[tuple[Facts, Integers]]:
        """Yield the layouts that have the same facts together."""
        columns = self._mixed
        names = [
            frozenset(name for name in self.step.mixed if self.space.number.get(name) == i) for i in columns
        ]
        splits, groups = self._splits(known)
        for i, split in enumerate(splits):
            yield (
                self.step.facts(frozenset[str]().union(*compress(names, split))),
                np.flatnonzero(groups == i),
            )

    def _splits(self, known: MaskRange) -> tuple[Booleans, Integers]:
        """Return the sets of mixed columns that may be split, [set, column], and the number of each layout's set."""
        splits, groups = np.unique(known.high[:, self._mixed] != 0, axis=0, return_inverse=True)
        return splits, groups.reshape(-1)

    def mixed_split(self, known: MaskRange) -> Dims:
        """Return the mixed dimensions that one of some layouts may split."""
        may = frozenset(np.flatnonzero(known.high.any(axis=0)).tolist())
        return frozenset(name for name in self.step.mixed if self.space.number.get(name) in may)

    def _regimes(self, known: MaskRange) -> Iterator[tuple[LayoutBound, Integers]]:
        """Yield the bound for each regime of the cost model, with the layouts whose programs may be in it."""
        limits = np.array([limit for limit, _ in self._bounds])
        if len(limits) == 1:
            yield self, np.arange(len(known.low))
            return
        regime = np.searchsorted(limits, self.memory(known))
        for i, (_, bound) in enumerate(self._bounds):
            if (rows := np.flatnonzero(regime == i)).size:
                yield bound, rows

    def least_regime(self, known: MaskRange) -> tuple[float, LayoutBound]:
        """Return the first regime in which a program of these layouts may be: its most bytes, and the bound in it."""
        least = float(np.min(self.memory(known)))
        return next(each for each in self._bounds if least <= each[0])

    @cached_property
    def _bounds(self) -> list[tuple[float, LayoutBound]]:
        """The bytes up to which a regime holds, and the bound in it, in ascending order."""
        return [
            (regime.bytes, self._on(attrs.evolve(self.hardware, device=regime.device)))
            for regime in regimes(self.step.function, self.hardware.device)
        ]

    def _on(self, hardware: Hardware) -> LayoutBound:
        """Return the bound on other hardware."""
        if hardware == self.hardware:
            return self
        return LayoutBound(self.space, self.step.on(hardware.device), self.mesh, hardware, self.overlaps)

    @property
    def _mixed(self) -> list[int]:
        return sorted(self.columns(self.step.mixed))

    def _seconds(self, facts: Facts, known: MaskRange) -> Seconds:
        """Bound a step by its computation, and by each of the lanes that work at the same time."""
        each = EffectBounds(self, known)
        computing = each.total(facts.kernels)
        seconds = computing + self._sums(facts).seconds(each) + each.moved(facts.moved)
        seconds += np.sum(each.halos(), axis=0)
        if self.space.storing:
            seconds += each.stored(facts.stored)
        return np.maximum(computing, seconds / (1 + self.at_once))

    def _sums(self, facts: Facts) -> SumBound:
        """Return the bound of the pending sums of some facts, which is made once."""
        if id(facts) not in self.sums:
            self.sums[id(facts)] = SumBound(self, facts)
        return self.sums[id(facts)]


BITS = 18
"""The size of the largest table of an elimination: 2 to the power of this."""

TERM_BITS = 15
"""The size of the largest table of a term, which takes more time for each entry."""

MANY_COLUMNS = 24
"""With fewer columns, branching is faster than an elimination."""


@attrs.frozen(eq=False)
class ColumnElimination:
    """The bounds of partial layouts by the number of decided columns in `order`, which has those with a choice.

    A table has seconds by the masks of some columns, in ascending order of their depth. Illegal masks take infinitely long.
    """

    order: tuple[int, ...]
    tables: Sequence[Sequence[JointCosts]]

    @classmethod
    def of(cls, tables: Iterable[JointCosts], order: Sequence[int], axes: int) -> ColumnElimination:
        """Eliminate columns from tables. axes: the number of axes of the mesh."""
        depth = {column: i for i, column in enumerate(order)}
        decided = [list[JointCosts]() for _ in range(len(order) + 1)]
        """The tables whose last column has the depth before; the first are constants."""
        for table in tables:
            decided[1 + depth[table.nodes[-1]] if table.nodes else 0].append(table)
        found = [list[JointCosts]() for _ in range(len(order) + 1)]
        found[-1] = [each for some in decided for each in some]
        for i in reversed(range(len(order))):
            buckets, lost = _minibuckets(decided[i + 1], depth, axes), set(map(id, decided[i + 1]))
            messages = [JointCosts(each.nodes[:-1], each.costs.min(axis=-1)) for each in buckets]
            for each in messages:
                decided[1 + depth[each.nodes[-1]] if each.nodes else 0].append(each)
            found[i] = [each for each in found[i + 1] if id(each) not in lost] + messages
        return cls(tuple(order), found)

    def seconds(self, rows: Rows, depth: int) -> Seconds:
        """Return the bounds of rows of which the first columns of the order, and those of a single choice, are decided."""
        total = np.zeros(len(rows))
        for table in self.tables[depth]:
            total += table.costs[tuple(rows[:, column] for column in table.nodes)]
        return total


def _minibuckets(tables: Iterable[JointCosts], depth: Mapping[int, int], axes: int) -> list[JointCosts]:
    """Add tables that end with the same column, as far as the sums are not too large."""
    found: list[JointCosts] = []
    for table in sorted(tables, key=lambda each: -len(each.nodes)):
        for i, other in enumerate(found):
            columns = tuple(sorted({*table.nodes, *other.nodes}, key=depth.__getitem__))
            if len(columns) * axes <= BITS:
                found[i] = JointCosts(columns, other.spread(columns) + table.spread(columns))
                break
        else:
            found.append(table)
    return found


@attrs.frozen(eq=False)
class ColumnEliminations:
    """The eliminations of one step.

    terms: the terms of the step, by the mixed dimensions that layouts may split and by regime.
    """

    terms: dict[tuple[Dims, float], StepTerms] = attrs.field(factory=dict)

    def on(self, bound: LayoutBound, closed: Columns) -> ColumnElimination | None:
        """Return the elimination of all columns that are not closed, or None if they are few."""
        if len(bound.space.columns) - len(closed) < MANY_COLUMNS:
            return None
        start = bound.space.start(closed, bound.mesh)
        possible = bound.known(start, closed)
        limit, bound = bound.least_regime(possible)
        split = bound.mixed_split(possible)
        if (split, limit) not in self.terms:
            shards = (n for n in range(2, bound.mesh.devices + 1) if bound.mesh.devices % n == 0)
            self.terms[split, limit] = StepTerms.of(bound.step, split, shards)
        columns = frozenset(range(len(bound.space.columns))) - closed
        return ColumnTerms.of(bound, self.terms[split, limit], columns).eliminated(start, closed)


# The terms


@attrs.frozen(eq=False)
class _Terms:
    """Terms that depend on the same columns, each with its number; sums and moved data with all that share values with them."""

    kernels: Counter[Any] = attrs.field(factory=Counter)
    stored: Counter[Any] = attrs.field(factory=Counter)
    routes: list[SumRoute] = attrs.field(factory=list)
    moved: list[MovedData] = attrs.field(factory=list)
    halos: dict[int, dict[Halo, int]] = attrs.field(factory=lambda: defaultdict(dict))

    def seconds(self, each: EffectBounds, step: StepTerms) -> Seconds:
        """Return the seconds of all terms."""
        sums = attrs.evolve(step.facts, routes=tuple(self.routes), preceding=())
        total = SumBound(each.setting, sums).seconds(each) + each.moved(self.moved)
        total += each.total(self.kernels) + each.stored(self.stored)
        sent, joined = each.halos(self.halos)
        return total + sent + joined


@attrs.frozen(eq=False)
class StepTerms:
    """The terms of a step by the names that they depend on, for layouts that split the same of its mixed dimensions."""

    facts: Facts
    terms: Mapping[Dims, _Terms]

    @classmethod
    def of(cls, step: StepFacts, split: Dims, shards: Iterable[int]) -> StepTerms:
        """Group the terms of a step by the names of dimensions that they depend on. split: the mixed dimensions that layouts
        split.

        shards: numbers of shards, each of which has halos of its own.
        """
        facts = step.facts(split)
        found: dict[Dims, _Terms] = defaultdict(_Terms)
        for term, times in facts.kernels.items():
            found[_names(term)].kernels[term] += times
        for parameter, times in facts.stored.items():
            found[_names(parameter)].stored[parameter] += times
        for routes in sharing(facts.routes):
            stops = (stop for route in routes for stop in route.stops)
            longer = tuple(tuple(facts.completing.get(stop.value, ())) for stop in stops)
            found[_names(routes, longer)].routes.extend(routes)
        for moved in sharing(facts.moved):
            found[_names(moved)].moved.extend(moved)
        for number in shards:
            for halo, times in step.halos(number).items():
                found[_names(halo)].halos[number][halo] = times
        return cls(facts, found)


@attrs.frozen(eq=False)
class ColumnTerms:
    """The terms of a step on a mesh by the columns that they depend on, among those with a choice."""

    bound: LayoutBound
    step: StepTerms
    terms: Mapping[Columns, Sequence[_Terms]]

    @classmethod
    def of(cls, bound: LayoutBound, step: StepTerms, columns: Columns) -> ColumnTerms:
        """Group the terms of a step by the columns that they depend on."""
        found: dict[Columns, list[_Terms]] = defaultdict(list)
        for names, terms in step.terms.items():
            found[bound.columns(names) & columns].append(terms)
        return cls(bound, step, found)

    def order(self, columns: Iterable[int]) -> list[int]:
        """Return columns in an order for branching. The last one has the fewest columns beside it in terms, and is eliminated
        first. Columns of storage follow their bases, and are the last.
        """
        around: dict[int, set[int]] = defaultdict(set)
        for some in self.terms:
            for column in some:
                around[column] |= some
        storing, bases = self.bound.space.storing, [column.base for column in self.bound.space.columns]
        order, left = list[int](), sorted(columns, reverse=True)
        while left:
            below = {bases[column] for column in left}
            free = [i for i in left if i not in below and (i in storing or storing.isdisjoint(left))]
            column = min(free, key=lambda each: len(around[each]))
            left.remove(column)
            order.append(column)
            others = around.pop(column, set()) - {column}
            for other in others:
                around[other] = (around[other] | others) - {column}
        return order[::-1]

    def eliminated(self, start: Rows, closed: Columns) -> ColumnElimination:
        """Return the elimination of all columns but those that are decided in `start`, the only row."""
        order = self.order(frozenset(range(len(self.bound.space.columns))) - closed)
        return ColumnElimination.of(self._tables(start, closed, order), order, len(self.bound.mesh.axes))

    def _tables(self, start: Rows, closed: Columns, order: Sequence[int]) -> Iterator[JointCosts]:
        """Yield a table for each set of columns."""
        bound, axes = self.bound, len(self.bound.mesh.axes)
        often = Counter(column for columns in self.terms for column in columns)
        for every, terms in self.terms.items():
            columns = every.union(*(bound.space.below[column] for column in every)) - closed
            while len(columns) * axes > TERM_BITS:
                bases = frozenset[int]().union(*(bound.space.below[column] for column in columns))
                columns -= {min(columns - bases, key=often.__getitem__)}
            scope, is_whole = tuple(each for each in order if each in columns), every <= columns
            yield self._table(start, closed, scope, is_whole, terms)

    def _table(
        self, rows: Rows, closed: Columns, scope: tuple[int, ...], is_whole: bool, terms: Sequence[_Terms]
    ) -> JointCosts:
        """Return the least cost of some terms for each choice of the columns in `scope`. closed: columns that are decided
        already.

        is_whole: True if the rows decide all columns that the terms depend on.
        """
        decided = closed
        for column in scope:
            rows, _ = self.bound.space.extended(rows, column, decided, self.bound.mesh)
            decided |= {column}
        known = MaskRange(rows, rows) if is_whole else self.bound.known(rows, decided)
        each = EffectBounds(self.bound, known)
        found = sum((some.seconds(each, self.step) for some in terms), np.zeros(len(rows)))
        seconds = np.full([1 << len(self.bound.mesh.axes)] * len(scope), np.inf)
        seconds[tuple(rows[:, column] for column in scope)] = found if scope else found[0]
        return JointCosts(scope, seconds)


def _names(*facts: Any) -> Dims:
    """Return all names in facts."""
    found: set[str] = set()

    def noted(name: str) -> str:
        found.add(name)
        return name

    canonical_form(facts, noted, {})
    return frozenset(found)
