"""The costs to bring a tensor from any placement to any other: all pairs at once.

The compiler takes the chain of collectives that sends the fewest bytes, and of equal chains the shortest (`reshard_plans.py`).
Here the same chains are found for all placements of a tensor together, by the Bellman-Ford algorithm, target by target. The
chains may be priced by another measure than bytes, such as seconds.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import permutations, product
from math import inf
from time import monotonic
from typing import TypeAlias, TypeVar

import attrs
import numpy as np
from numpy.typing import NDArray

from mtfc.compiler.analysis.reshard_plans import goal_of, steps_from
from mtfc.compiler.cost.topology import Topology
from mtfc.compiler.ir.core import Attr
from mtfc.compiler.ir.opdef import ReshardStep
from mtfc.compiler.ir.ops import has_trait
from mtfc.compiler.ir.types import Axes, Dim, Mesh, TensorType

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
