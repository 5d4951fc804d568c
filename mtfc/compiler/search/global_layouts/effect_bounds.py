"""Lower bounds of effects for many layouts at once.

A layout is a row of bit masks: the axes that split each dimension (`layout_space.py`). A shard depends on the union of the masks
of its dimensions. So each term is a small table over masks, in which all rows are looked up together. Of a dimension that is not
decided yet, the axes are known that may split it, and those that surely do (`MaskRange`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import cached_property, reduce
from itertools import combinations
from typing import TypeAlias

import attrs
import numpy as np
from numpy.typing import NDArray

from mtfc.compiler.analysis.dimension_names import Dims, Pairs
from mtfc.compiler.cost.effects.halo_exchange import Halo
from mtfc.compiler.cost.effects.moved_data import DataPath, Gate, MovedData, SpreadKeys, StoredParameter
from mtfc.compiler.cost.hardware import Hardware
from mtfc.compiler.cost.lower_bounds import Least, Most, ShardedAmount, Term, Total, Unless, Unmoved
from mtfc.compiler.cost.tables.collective_tables import CollectiveTables, Seconds
from mtfc.compiler.ir.core import Value
from mtfc.compiler.ir.types import Mesh
from mtfc.compiler.search.global_layouts.layout_space import AXES, Columns, Integers, LayoutSpace, Rows, union
from mtfc.compiler.search.global_layouts.step_facts import StepFacts

Booleans: TypeAlias = NDArray[np.bool_]

ANY = (1 << len(AXES)) - 1
"""The mask of all axes that a mesh may have."""


@attrs.frozen(eq=False)
class MaskRange:
    """Partially decided layouts: [layout, column] has the axes that surely split a dimension, and the axes that may split it."""

    low: Rows
    high: Rows

    def where(self, kept: Booleans | Integers) -> MaskRange:
        """Return the layouts that a mask or an index selects."""
        return MaskRange(self.low[kept], self.high[kept])


@attrs.frozen(slots=False, eq=False)
class SearchSetting:
    """A step, its layouts on one mesh, and the machine.

    space: the columns of the layouts. overlaps: True if communication overlaps with independent computation. numbers: the
    columns of sets of dimensions that were asked for.
    """

    space: LayoutSpace
    step: StepFacts
    mesh: Mesh
    hardware: Hardware
    overlaps: bool = False
    numbers: dict[Dims, Columns] = attrs.field(factory=dict)

    @cached_property
    def collectives(self) -> CollectiveTables:
        return CollectiveTables(self.mesh, self.hardware)

    @property
    def degrees(self) -> Seconds:
        """Return the number of shards by the mask of the axes that split a dimension, as floats."""
        return self.collectives.degrees

    def columns(self, dims: Dims) -> Columns:
        """Return the columns of the layouts that decide dimensions; some dimensions have none."""
        found = self.numbers.get(dims)
        if found is None:
            number = self.space.number
            found = self.numbers[dims] = frozenset(number[name] for name in dims if name in number)
        return found


class EffectBounds:
    """The bounds of single effects for some layouts: terms, halos, stored parameters and moved data.

    Unions of masks and values of terms are found once.
    """

    def __init__(self, setting: SearchSetting, known: MaskRange) -> None:
        """Bound the layouts `known`.

        number: how many they are. The other fields hold what was found already.
        """
        self.setting, self.known, self.number = setting, known, len(known.low)
        self._unions: tuple[dict[Columns, Rows], dict[Columns, Rows]] = ({}, {})
        self._alike: dict[Pairs, Rows] = {}
        self._terms: dict[Term, Seconds] = {}
        self._masked: dict[tuple[Dims, int], Booleans] = {}

    # Masks

    def low(self, dims: Dims) -> Rows:
        """Return the axes that surely split one of the dimensions."""
        return self._union(dims, self.known.low, self._unions[0])

    def high(self, dims: Dims) -> Rows:
        """Return all axes that may split one of the dimensions."""
        return self._union(dims, self.known.high, self._unions[1])

    def _union(self, dims: Dims, rows: Rows, found: dict[Columns, Rows]) -> Rows:
        """Return the union of the masks of dimensions, which is found once. found: the unions so far."""
        columns = self.setting.columns(dims)
        if columns not in found:
            found[columns] = union(rows, columns)
        return found[columns]

    def alike(self, pairs: Pairs) -> Rows:
        """Return all axes where both dimensions of each pair may be split alike, and none elsewhere."""
        if pairs not in self._alike:
            found = np.full(self.number, ANY, np.uint8)
            for one, other in (map(frozenset, zip(pair)) for pair in pairs):
                apart = self.low(one) & ~self.high(other) | self.low(other) & ~self.high(one)
                found[apart != 0] = 0
            self._alike[pairs] = found
        return self._alike[pairs]

    def _both(self, one: str, other: str) -> Rows:
        """Return the axes that may split both dimensions, if these may be split alike."""
        both = self.high(frozenset((one,))) & self.high(frozenset((other,)))
        return both & self.alike(frozenset(((one, other),)))

    # Terms

    def total(self, terms: Mapping[Term, int] | Mapping[ShardedAmount, int]) -> Seconds:
        """Return the sum of some terms, each multiplied by its number."""
        total = np.zeros(self.number)
        for term, times in terms.items():
            total += times * self.term(term)
        return total

    def term(self, term: Term) -> Seconds:
        """Return the values of a term."""
        if term not in self._terms:
            self._terms[term] = self._term(term)
        return self._terms[term]

    def _term(self, term: Term) -> Seconds:
        """Return the least value of a term under each partly decided layout. [layout]

        An amount is divided by as many shards as the layout may still allow.
        """
        match term:
            case ShardedAmount(amount, dims, alike):
                split = self.high(dims)
                for pair in alike:
                    split = split | self._both(*pair)
                shard: Seconds = (amount / self.setting.degrees)[split]
                return shard
            case Least(terms):
                return reduce(np.minimum, map(self._term, terms))
            case Most(terms):
                return reduce(np.maximum, map(self._term, terms))
            case Total(terms, times):
                total = reduce(np.add, map(self._term, terms)) if terms else np.zeros(self.number)
                return total if times == 1 else times * total
            case Unless(inner, pairs):
                counts = np.logical_and.reduce([self._both(*pair) == 0 for pair in pairs])
                return np.where(counts, self._term(inner), 0.0)
            case Unmoved(inner, names, beside):
                return np.where(self._moved(names, beside) == 0, self._term(inner), 0.0)

    def _moved(self, names: Iterable[tuple[str, str]], beside: Dims) -> Rows:
        """Return the axes for which an array may be moved before its use: see `Unmoved`."""
        columns = self.setting.columns
        moved = self._shared(columns(beside))
        for stored, own in ((frozenset((one,)), frozenset((other,))) for one, other in names):
            if columns(stored) != columns(own):
                moved = moved | (self.high(stored) & ~self.low(own))
        return moved

    def _shared(self, columns: Columns) -> Rows:
        """Return the axes that two of some columns may have; two dimensions of one tensor never share an axis."""
        found, space, high = np.zeros(self.number, np.uint8), self.setting.space, self.known.high
        for one, other in combinations(sorted(columns), 2):
            if other not in space.columns[one].beside:
                found |= high[:, one] & high[:, other]
        return found

    # Halos

    def halos(self, some: Mapping[int, Mapping[Halo, int]] | None = None) -> tuple[Seconds, Seconds]:
        """Return the seconds on links and the seconds of kernels for halos, if all dimensions of a region are split over the same
        axes.

        some: the halos to count, by the number of shards; all halos if None.
        """
        sent, joined = np.zeros(self.number), np.zeros(self.number)
        for mask in np.flatnonzero(self.setting.degrees > 1).tolist():
            shards = int(self.setting.degrees[mask])
            halos = self.setting.step.halos(shards) if some is None else some.get(shards, {})
            for halo, times in halos.items():
                rows = np.flatnonzero(
                    np.logical_or.reduce([self._all_are(dims, mask) for dims in halo.alike])
                )
                if len(rows):
                    others = self.high(halo.array.dims)[rows] & ~np.uint8(mask)
                    local = halo.array.bytes / self.setting.degrees[others | mask]
                    seconds = sent if halo.hops is not None else joined
                    seconds[rows] += times * halo.array.trips * self._halo(halo, mask, local)
        return sent, joined

    def _halo(self, halo: Halo, mask: int, local: Seconds) -> Seconds:
        """Return the seconds of a halo over the axes in a mask: a shift, or a kernel. local: its bytes on a device."""
        if halo.hops is not None:
            return self.setting.collectives.shifting(mask, halo.hops, local)
        device = self.setting.hardware.device
        return local / device.bandwidth.peak + device.overhead

    def _all_are(self, dims: Dims, mask: int) -> Booleans:
        """Return where all dimensions are surely split over exactly these axes; never where loops run along one."""
        key = (dims, mask)
        if key not in self._masked:
            columns = sorted(self.setting.columns(dims))
            known = (self.known.low[:, columns] == mask) & (self.known.high[:, columns] == mask)
            self._masked[key] = known.all(axis=1) & (dims <= self.setting.space.number.keys())
        return self._masked[key]

    # Stored parameters

    def stored(self, parameters: Mapping[StoredParameter, int]) -> Seconds:
        """Return the seconds to gather parameters over each axis that splits them in storage and not at their use."""
        total = np.zeros(self.number)
        for parameter, times in parameters.items():
            seconds = self._by_dims(parameter) if parameter.pairs else self._by_axes(parameter)
            total += times * parameter.array.trips * seconds
        return total

    def _by_axes(self, parameter: StoredParameter) -> Seconds:
        """Return the seconds of a stored parameter's collectives, over the axes that surely split it where it is stored and
        not where it is used.
        """
        most = self.high(parameter.used)
        over = self.low(parameter.array.dims) & ~most
        table = self.setting.collectives.reduction(parameter.array.bytes)
        return self.setting.collectives.completing(table, over, self.low(parameter.used), most, over)

    def _by_dims(self, parameter: StoredParameter) -> Seconds:
        """Gather all axes of a dimension at once, one dimension after the other; the last one when no other is split."""
        overs, mosts = [], []
        for before, after in parameter.pairs:
            one, other = frozenset((before,)), frozenset((after,))
            overs.append(self.low(one) & ~self.high(other))
            mosts.append(self.high(one) & ~self.low(other))
        total, later = np.zeros(self.number), np.full(self.number, np.inf)
        every = np.bitwise_or.reduce([total.astype(np.uint8), *overs], axis=0)
        cut = self.high(parameter.array.dims)
        for over, most in zip(overs, mosts, strict=True):
            first, last = (self._gathered(parameter, over, most, cut & ~gone) for gone in (over, every))
            total += first
            later = np.where(over != 0, np.minimum(later, last - first), later)
        return total + np.where(every != 0, later, 0)

    def _gathered(self, parameter: StoredParameter, over: Rows, most: Rows, cut: Rows) -> Seconds:
        """Return the seconds of a gather over some axes, or over more where `most` are not those."""
        size, split = parameter.array.bytes, self.low(parameter.used) & ~over
        exact = self.setting.collectives.exactly(size)[over, cut]
        least = self.setting.collectives.reduction(size)[over, split, cut]
        return np.where(over == most, exact, least) / 2

    # Moved data

    def moved(self, moved: Iterable[MovedData]) -> Seconds:
        """Return the seconds of all data that changes its placement. Data that share a path also share its cost."""
        found = [(data, [self._leaving(data, path) for path in data.paths]) for data in moved]
        sharing: dict[Value, Integers] = {}
        nothing = np.zeros(self.number, np.uint8)
        for data, masks in found:
            on: dict[Value, Rows] = {}
            for path, over in zip(data.paths, masks, strict=True):
                on.update({value: on.get(value, nothing) | over for value in path.values})
            for value, leaving in on.items():
                sharing[value] = sharing.get(value, 0) + (leaving != 0)
        total = np.zeros(self.number)
        for data, masks in found:
            paths = zip(data.paths, masks, strict=True)
            total += data.trips * np.max([self._path(path, over, sharing) for path, over in paths], axis=0)
        return total

    def _leaving(self, data: MovedData, path: DataPath) -> Rows:
        """Return the axes that split a dimension of the data, and not the same dimension at the end of the path."""
        leaving = np.zeros(self.number, np.uint8)
        for old, new, pairs in path.names:
            stays = self.high(frozenset(filter(None, (new,)))) & self.alike(pairs)
            leaving |= self.low(frozenset((old,))) & ~stays
        return leaving & ~self._shared(self.setting.columns(frozenset(data.beside)))

    def _path(self, path: DataPath, leaving: Rows, sharing: Mapping[Value, Integers]) -> Seconds:
        """Return the least seconds of the exchanges along one path of moved data, for each layout.

        leaving: the axes that data leaves the path's start with. sharing: by value, the number of paths that share its
        exchange.
        """
        seconds, rows = np.zeros(self.number), np.flatnonzero(leaving)
        if not len(rows):
            return seconds
        shared = np.max([sharing[value][rows] for value in path.values], axis=0)
        over, nothing = leaving[rows], np.zeros(len(rows), np.uint8)
        collectives = self.setting.collectives
        table, every = collectives.exchanging(path.bytes), self.high(path.dims)[rows] | over
        most = collectives.completing(table, over, nothing, every, nothing)
        if path.gates[-1].spread is not None:
            most = np.zeros(len(rows))
        for gate in path.gates:
            gone, every = over & ~self._passing(gate)[rows], self.high(gate.dims)[rows]
            table = collectives.gathering(gate.bytes)
            gathered = collectives.completing(table, gone, nothing, every & ~gone, gone)
            if gate.spread is not None:
                gathered = np.minimum(gathered, self._spread(gate, gate.spread, gone, rows))
            most = np.maximum(most, gathered)
        seconds[rows] = most / shared
        return seconds

    def _spread(self, gate: Gate, spread: SpreadKeys, gone: Rows, rows: Integers) -> Seconds:
        """Return the seconds of keys that are not gathered, where it is known which axes split their sequence."""
        collectives, nothing = self.setting.collectives, np.zeros(len(rows), np.uint8)
        table, every = collectives.exchanging(spread.exchanged), self.high(spread.dims)[rows] | gone
        exchanged = collectives.completing(table, gone, nothing, every, nothing)
        ring, degrees = np.zeros(len(rows)), self.setting.degrees
        for mask in np.unique(gone[gone != 0]).tolist():
            at = gone == mask
            local = gate.bytes / degrees[every[at]]
            ring[at] = (degrees[mask] - 1) * collectives.shifting(mask, 1, local)
        found: Seconds = np.where(self.high(spread.sequence)[rows] == gone, np.minimum(exchanged, ring), 0.0)
        return found

    def _passing(self, gate: Gate) -> Rows:
        """Return the axes that may split the data as it passes a gate."""
        found = np.zeros(self.number, np.uint8)
        for size, names, pairs in gate.carriers:
            for name in names:
                low, high = self.low(frozenset((name,))), self.high(frozenset((name,))) & self.alike(pairs)
                found |= np.where(size % self.setting.degrees[low] == 0, high, 0).astype(np.uint8)
        return found
