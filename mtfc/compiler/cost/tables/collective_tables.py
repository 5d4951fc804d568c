"""Costs of communication as tables.

Lower bounds of collectives on one mesh, as tables over sets of mesh axes. A set of axes is a bit mask.

The costs to bring a tensor from any placement to any other: all pairs at once.

The compiler takes the chain of collectives that sends the fewest bytes, and of equal chains the shortest (`reshard_plans.py`).
Here the same chains are found for all placements of a tensor together, by the Bellman-Ford algorithm, target by target. The
chains may be priced by another measure than bytes, such as seconds.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from itertools import permutations, product
from math import inf, prod
from time import monotonic
from typing import TypeAlias, TypeVar

import attrs
import numpy as np
from numpy.typing import NDArray

from mtfc.compiler.analysis.reshard_plans import goal_of, steps_from
from mtfc.compiler.cost.hardware import Hardware
from mtfc.compiler.cost.topology import COMBINED, Topology
from mtfc.compiler.ir.core import Attr
from mtfc.compiler.ir.opdef import ReshardStep
from mtfc.compiler.ir.ops import has_trait
from mtfc.compiler.ir.types import Axes, Dim, Mesh, TensorType

STATES = 5
"""The states of an axis for a sum, one digit each.

0: not used; 1: an all-reduce completes the sum over the axis; 2: half an all-reduce completes the sum; 3: the axis may split the
sum; 4: the axis splits the sum.
"""

Seconds: TypeAlias = NDArray[np.float64]

Codes: TypeAlias = NDArray[np.int64]

Masks: TypeAlias = NDArray[np.uint8]
"""Sets of mesh axes."""


def axes_of(mask: int, mesh: Mesh) -> Axes:
    return tuple(name for i, name in enumerate(mesh.names) if mask >> i & 1)


def degree(mask: int, mesh: Mesh) -> int:
    """Return the number of processors along a set of axes."""
    return prod(size for i, (_, size) in enumerate(mesh.axes) if mask >> i & 1)


@attrs.frozen(slots=False, eq=False)
class CollectiveTables:
    """Tables of lower bounds. degrees: the processors along each set of axes. tables: the tables that were requested so far."""

    mesh: Mesh
    hardware: Hardware
    tables: dict[tuple[str, int, int], Seconds] = attrs.field(factory=dict)

    @cached_property
    def degrees(self) -> Seconds:
        """The number of shards for each set of axes, by its mask."""
        return np.array([degree(mask, self.mesh) for mask in range(1 << len(self.mesh.axes))], np.float64)

    @cached_property
    def _topology(self) -> Topology:
        return Topology.at_peak(self.mesh, self.hardware)

    @cached_property
    def _lanes(self) -> dict[str, list[list[tuple[float, float]]]]:
        """For each collective, set of axes and lane: its latency, and its seconds per byte."""
        axes = [axes_of(mask, self.mesh) for mask in range(len(self.degrees))]
        kinds = ("all_reduce", "all_to_all")
        return {kind: [self._topology.latencies(kind, each) for each in axes] for kind in kinds}

    def shifting(self, mask: int, hops: int, local: Seconds) -> Seconds:
        """Return a lower bound on a permute of `local` bytes of each processor."""
        return _longest(self._topology.latencies("permute", axes_of(mask, self.mesh), hops), local, 0)

    @cached_property
    def starting(self) -> Seconds:
        """For each axis the part that it has in the latency of an all-reduce; parts of several axes add up to no more than the
        latency of an all-reduce over all of these, and over others.
        """
        latency = [max((fixed for fixed, _ in lanes), default=0.0) for lanes in self._lanes["all_reduce"]]
        axes = range(len(self.mesh.axes))
        parts = np.zeros(len(axes))
        for axis in sorted(axes, key=lambda i: -latency[1 << i]):
            others = (
                latency[mask] - sum(parts[i] for i in axes if mask >> i & 1)
                for mask in range(len(latency))
                if mask >> axis & 1
            )
            parts[axis] = max(0.0, min(others))
        return parts

    def reduction(self, size: int) -> Seconds:
        """Return a lower bound on one step of completing a sum of `size` bytes in all.

        [axes, axes that split the array, these and axes that cut it by then]. The step may complete other sums too, and over
        further axes that do not split the array. Small arrays may travel with others, and add no latency.
        """
        return self._steps("all_reduce", size, COMBINED)

    def gathering(self, size: int) -> Seconds:
        """Return the table of `reduction` for an all-reduce that travels alone. An all-gather takes half the time."""
        return self._steps("all_reduce", size, 0)

    def exactly(self, size: int) -> Seconds:
        """Return a lower bound on an all-reduce of an array of `size` bytes in all: [axes, axes that split the array by then].

        Small arrays add no latency: gathers of parameters, each half an all-reduce, may travel together.
        """
        key = ("exactly", size, COMBINED)
        if key not in self.tables:
            lanes = self._lanes["all_reduce"]
            self.tables[key] = np.stack([_longest(each, size / self.degrees, COMBINED) for each in lanes])
        return self.tables[key]

    def exchanging(self, size: int) -> Seconds:
        """Return the same table as `gathering` for an all-to-all, or an all-gather in its place."""
        key = ("exchange", size, 0)
        if key not in self.tables:
            self.tables[key] = np.minimum(self._steps("all_to_all", size, 0), self.gathering(size) / 2)
        return self.tables[key]

    def _steps(self, kind: str, size: int, size_alone: int) -> Seconds:
        """Return the seconds of one kind of collective, which are computed once for each size."""
        key = (kind, size, size_alone)
        if key not in self.tables:
            self.tables[key] = self._steps_of(kind, (size,), size_alone)[..., 0]
        return self.tables[key]

    def _steps_of(self, kind: str, sizes: Sequence[int], size_alone: int | None) -> Seconds:
        """Return the tables of several sizes, without latencies if `size_alone` is None.

        No axis splits an array that is reduced or gathered over it.
        """
        local, sets = np.array(sizes) / self.degrees[:, None], range(len(self.degrees))
        every = np.stack(
            [
                _beyond_latency(lanes, local) if size_alone is None else _longest(lanes, local, size_alone)
                for lanes in self._lanes[kind]
            ]
        )
        if kind == "all_reduce":
            masks = np.array(sets)[:, None]
            every = every[masks, masks.T & ~masks]
        found = np.zeros((len(sets), *every.shape))
        for axes in sets[1:]:
            for split in (each for each in sets if not each & axes):
                over = [each for each in sets if each & axes == axes and not each & split]
                found[axes, split] = np.min(every[over], axis=0)
        return found

    def completed(self, sizes: Sequence[int], size_alone: int = 0) -> Seconds:
        """Return a lower bound on the time to complete sums that have `sizes` bytes in all: [code, size].

        Small sums may travel with others; a sum of which a part is scattered, only if it has less than `size_alone` bytes.
        """
        whole, alone = (self._steps_of("all_reduce", sizes, size) for size in (COMBINED, size_alone))
        return self.completing(whole, *self._codes, alone)

    def transferred(self, sizes: Sequence[int]) -> Seconds:
        """Return the table of `completed` without any latency: the time that each sum adds to a collective that runs anyway."""
        return self.completing(self._steps_of("all_reduce", sizes, None), *self._codes)

    @cached_property
    def _codes(self) -> tuple[Masks, Masks, Masks, Masks]:
        """The arguments of `completing` for each code."""
        digits = np.indices((STATES,) * len(self.mesh.axes)).reshape(len(self.mesh.axes), -1)
        bits = 1 << np.arange(len(self.mesh.axes))[::-1, None]
        masks = ((np.isin(digits, states) * bits).sum(axis=0) for states in ((1, 2), (4,), (3, 4), (2,)))
        over, own, before, halved = (mask.astype(np.uint8) for mask in masks)
        return over, own, before, halved

    @cached_property
    def pending(self) -> Codes:
        """The part of a code for [axes to complete over, the axes among these with half an all-reduce]."""
        return self._places[:, None] + self._places[None]

    @cached_property
    def splitting(self) -> Codes:
        """The part of a code for [axes that split the array, axes that may split the array]."""
        return self._places[:, None] + 3 * self._places[None]

    @cached_property
    def _places(self) -> Codes:
        """For each set of axes the code in which their states are 1."""
        masks = np.arange(len(self.degrees))
        places = (STATES**i * (masks >> i & 1) for i in range(len(self.mesh.axes)))
        return sum(places, start=np.zeros(len(masks), np.int64))

    def completing(
        self,
        table: Seconds,
        over: Masks,
        own: Masks,
        before: Masks,
        halved: Masks,
        alone: Seconds | None = None,
    ) -> Seconds:
        """Return a lower bound on completing an array over axes: the best sequence of steps of `table`.

        own: axes that are known to split the array. before: all axes that may split it by the first step. halved: axes that split
        the use. A step over such an axis is half an all-reduce, and later steps are smaller. Such steps come from `alone` if
        given. A step that scatters over another axis must gather again. Tables may have a further dimension, of sizes.
        """
        sets = range(len(self.degrees))
        present = [int(mask) for mask in np.unique(over)] or [0]
        least = {0: np.zeros((len(over), *table.shape[3:]))}
        for left in (each for each in sets[1:] if any(each & mask == each for mask in present)):
            cut = before | (halved & over & ~np.uint8(left))
            for step in (each for each in sets[1:] if each & left == each):
                total = self._step(step, table, alone, own, cut, halved) + least[left & ~step]
                least[left] = np.minimum(least[left], total) if left in least else total
        if len(present) == 1:
            return least[present[0]]
        return np.stack([least[mask] for mask in present])[
            np.searchsorted(present, over), np.arange(len(over))
        ]

    def _step(
        self, step: int, table: Seconds, alone: Seconds | None, own: Masks, cut: Masks, halved: Masks
    ) -> Seconds:
        """Return the time of an all-reduce, or of a reduce-scatter and an all-gather over the axes that split no use.

        step: the axes of the step. alone: the table for steps that travel alone. own, cut, halved: masks as in `completing`.
        """
        seconds, scattering = table[step, own, cut], table if alone is None else alone
        again = np.uint8(step) & ~halved
        half = (scattering[step, own, cut] + scattering[again, own, cut | (halved & np.uint8(step))]) / 2
        least: Seconds = np.minimum(seconds, half)
        return least


def _longest(lanes: Sequence[tuple[float, float]], bytes: Seconds, size_alone: int) -> Seconds:
    """Return the time of the slowest lane. lanes: the latency and the seconds per byte of each.

    Smaller arrays travel with others.
    """
    alone = bytes >= size_alone
    times = [fixed * alone + bytes * each for fixed, each in lanes]
    longest: Seconds = np.max([np.zeros_like(bytes), *times], axis=0)
    return longest


def _beyond_latency(lanes: Sequence[tuple[float, float]], bytes: Seconds) -> Seconds:
    """Return the time by which bytes make a collective longer than its latency. Twice the bytes add at least twice the time."""
    latency = max((fixed for fixed, _ in lanes), default=0.0)
    added: Seconds = _longest(lanes, bytes, 0) - latency
    return added


Numbers: TypeAlias = NDArray[np.float64]
Indices: TypeAlias = NDArray[np.intp]

StepPrice = Callable[[ReshardStep], float]
"""Returns the cost of one collective."""

ONE_STEP = 2.0**-10
"""The weight of each further step of a chain, in bytes."""

Item = TypeVar("Item")


def in_time(items: Iterable[Item], until: float) -> Iterator[Item]:
    """Yield the items. Raises `TimeoutError` at the first item after `until`, a time of `time.monotonic`.

    A mesh of many axes leaves too many choices to find them all.
    """
    for item in items:
        if monotonic() > until:
            raise TimeoutError("the time is over before all choices are known")
        yield item


def seconds_on(topology: Topology, weight: float = 1.0) -> StepPrice:
    """Return the function that prices a collective: its seconds alone, times a weight."""

    def price(step: ReshardStep) -> float:
        lanes = topology.seconds(step.op, step.axes, step.before.local_bytes(topology.mesh))
        return weight * max(lanes.values(), default=0.0)

    return lambda step: price(step) if has_trait(step, "sends") else 0.0


@attrs.frozen(eq=False)
class TensorPlacements:
    """All placements of one tensor, with the costs from one to another: [placement, placement]."""

    types: tuple[TensorType, ...]
    numbers: Mapping[TensorType, int]
    costs: Numbers

    def indices(self, types: Iterable[TensorType]) -> Indices:
        return np.array([self.numbers[type] for type in types], np.intp)


class Conversions:
    """The placements of tensors on one mesh. Tensors that differ only in the names of dimensions share the result."""

    def __init__(self, mesh: Mesh, price: StepPrice, until: float = inf) -> None:
        """Start with no placements found.

        _found, _alike: by dtype, dims and reduction, with dims as such and as sizes. until: the time of `time.monotonic`
        after which `TimeoutError` is raised.
        """
        self.mesh, self.price, self.until = mesh, price, until
        self._found: dict[tuple[str, tuple[Dim, ...], str], TensorPlacements] = {}
        self._alike: dict[tuple[str, tuple[int, ...], str], TensorPlacements] = {}

    def of(self, type: TensorType, reduction: str = "sum") -> TensorPlacements:
        """Return the placements of a tensor of this global type, in which a reduction of this kind may be pending."""
        key = (type.dtype, type.dims, reduction)
        if key not in self._found:
            shape = (type.dtype, tuple(dim.size for dim in type.dims), reduction)
            if shape not in self._alike:
                self._alike[shape] = self._placements(type, reduction)
            found = self._alike[shape]
            types = tuple(
                TensorType(type.dtype, type.dims, each.splits, each.pending, each.reduction)
                for each in found.types
            )
            numbers = {each: i for i, each in enumerate(types)}
            self._found[key] = TensorPlacements(types, numbers, found.costs)
        return self._found[key]

    def _placements(self, type: TensorType, reduction: str) -> TensorPlacements:
        """Return all placements of a type, with the cost of a reshard from each to each."""
        types = tuple(in_time(placements(type, self.mesh, reduction), self.until))
        numbers = {each: i for i, each in enumerate(types)}
        steps = [step for each in in_time(types, self.until) for step in steps_from(each, self.mesh)]
        graph = _StepGraph.of(steps, numbers, self.mesh, self.price, self.until)
        columns = [graph.costs_to(target) for target in in_time(types, self.until)]
        return TensorPlacements(types, numbers, np.stack(columns, axis=1))


@attrs.frozen(eq=False)
class _StepGraph:
    """Single collectives between placements, as parallel arrays. [steps]

    length: the measure by which the compiler compares chains. added: the number in `runs` of the axes that a step adds to a
    dimension; the last number where it adds none. completed: the axes over which a step completes a reduction, as bits.
    before, after: the numbers of both placements.
    """

    mesh: Mesh
    numbers: Mapping[TensorType, int]
    runs: Mapping[tuple[Attr, Axes], int]
    before: Indices
    after: Indices
    length: Numbers
    cost: Numbers
    added: Indices
    completed: Indices

    @classmethod
    def of(
        cls,
        steps: Sequence[ReshardStep],
        numbers: Mapping[TensorType, int],
        mesh: Mesh,
        price: StepPrice,
        until: float,
    ) -> _StepGraph:
        """Collect the steps, and price each of them. numbers: placement -> its number.

        Raises `TimeoutError` at the time `until`.
        """
        runs: dict[tuple[Attr, Axes], int] = {}
        added = [runs.setdefault(run, len(runs)) if (run := _added(step)) else -1 for step in steps]
        completed = [set(step.before.pending) - set(step.after.pending) for step in steps]
        return cls(
            mesh,
            numbers,
            runs,
            np.array([numbers[step.before] for step in steps], np.intp),
            np.array([numbers[step.after] for step in steps], np.intp),
            np.array([step.bytes_sent(mesh) + ONE_STEP for step in in_time(steps, until)]),
            np.array([price(step) for step in in_time(steps, until)]),
            np.array(added, np.intp),
            np.array([_bits(mesh, axes) for axes in completed], np.intp),
        )

    def costs_to(self, target: TensorType) -> Numbers:
        """Return the costs from every placement by the compiler's chains to the target; infinite where there is none."""
        wanted = np.zeros(len(self.runs) + 1, bool)
        wanted[-1] = True
        for dim, runs in zip(target.dims, goal_of(target).runs, strict=True):
            wanted[[self.runs[dim, run] for run in runs if (dim, run) in self.runs]] = True
        used = wanted[self.added] & (self.completed & _bits(self.mesh, target.pending) == 0)
        before, after = self.before[used], self.after[used]
        length, cost = self.length[used], self.cost[used]
        best = np.full(len(self.numbers), np.inf)
        costs = best.copy()
        best[self.numbers[target]] = costs[self.numbers[target]] = 0.0
        while True:
            through = length + best[after]
            order = np.lexsort((through, before))
            first = order[np.diff(before[order], prepend=-1) > 0]
            first = first[through[first] < best[before[first]]]
            if not len(first):
                return costs
            best[before[first]] = through[first]
            costs[before[first]] = cost[first] + costs[after[first]]


def _added(step: ReshardStep) -> tuple[Attr, Axes] | None:
    """Return the dimension that a step adds axes to, and the axes."""
    return None if step.split_dim is None else (step.split_dim, step.axes)


def _bits(mesh: Mesh, axes: Iterable[str]) -> int:
    return sum(1 << mesh.names.index(axis) for axis in axes)


def placements(type: TensorType, mesh: Mesh, reduction: str = "sum") -> Iterator[TensorType]:
    """Yield all placements: each axis splits one dimension, or a reduction is pending over it, or neither."""
    axes = tuple(axis for axis, size in mesh.axes if size > 1)
    for roles in product((None, "pending", *type.names), repeat=len(axes)):
        pending = tuple(axis for axis, role in zip(axes, roles, strict=True) if role == "pending")
        for splits in orders(tuple(zip(axes, roles, strict=True)), type.names):
            if all(dim.size % mesh.size(splits.get(dim.name, ())) == 0 for dim in type.dims):
                yield type.split_by(splits, pending, reduction)


def orders(roles: tuple[tuple[str, str | None], ...], dims: tuple[str, ...]) -> Iterator[dict[str, Axes]]:
    """Yield the splits in which each axis has its role: several splits if two axes split one dimension."""
    groups = {dim: tuple(axis for axis, role in roles if role == dim) for dim in dims}
    split = {dim: group for dim, group in groups.items() if group}
    for choice in product(*(permutations(group) for group in split.values())):
        yield dict(zip(split, choice, strict=True))
