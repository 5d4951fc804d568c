"""What it costs to bring a tensor from any placement to any other: all pairs at once.

The compiler takes the chain of collectives that sends the fewest bytes, and of equally many the shortest
(`analysis/reshard_plans.py`).
Here the same chains are found for all placements of a tensor together (Bellman and Ford's algorithm, target by target), with
what each costs by another measure: seconds, say.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import permutations, product
from math import inf
from typing import TypeAlias

import attrs
import numpy as np
from numpy.typing import NDArray

from mtfc.compiler.analysis.reshard_plans import goal_of, steps_from
from mtfc.compiler.cost.topology import Topology
from mtfc.compiler.ir.collective_def import ReshardStep
from mtfc.compiler.ir.core import Attr
from mtfc.compiler.ir.ops import has_trait
from mtfc.compiler.ir.types import Axes, Dim, Mesh, TensorType
from mtfc.compiler.search.per_equation.clock import in_time

Numbers: TypeAlias = NDArray[np.float64]
Indices: TypeAlias = NDArray[np.intp]

Price = Callable[[ReshardStep], float]
"""What one collective costs."""

ONE_STEP = 2.0**-10
"""What a step more weighs, beside bytes."""


def seconds_on(topology: Topology, weight: float = 1.0) -> Price:
    """Seconds of a collective by itself, which count so much."""

    def price(step: ReshardStep) -> float:
        lanes = topology.seconds(step.op, step.axes, step.before.local_bytes(topology.mesh))
        return weight * max(lanes.values(), default=0.0)

    return lambda step: price(step) if has_trait(step, "sends") else 0.0


def bytes_sent(mesh: Mesh) -> Price:
    """Bytes that all processors together send, which is what SoyBean minimizes (section 4.2)."""
    return lambda step: step.bytes_sent(mesh) * mesh.devices


@attrs.frozen(eq=False)
class Placements:
    """Every placement of one tensor, by number, and what it costs from one to another. [placements, placements]"""

    types: tuple[TensorType, ...]
    numbers: Mapping[TensorType, int]
    costs: Numbers

    def indices(self, types: Iterable[TensorType]) -> Indices:
        return np.array([self.numbers[type] for type in types], np.intp)


class Conversions:
    """The placements of tensors on one mesh: those of tensors that look alike but for the names of dimensions are found once.

    until: when to give up, a time of `time.monotonic`; that raises `NotFound`.
    """

    def __init__(self, mesh: Mesh, price: Price, until: float = inf) -> None:
        self.mesh, self.price, self.until = mesh, price, until
        self._found: dict[tuple[str, tuple[Dim, ...], str], Placements] = {}
        self._alike: dict[tuple[str, tuple[int, ...], str], Placements] = {}

    def of(self, type: TensorType, reduction: str = "sum") -> Placements:
        """The placements of a tensor of this global type, in which a reduction of this kind may be pending."""
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
            self._found[key] = Placements(types, numbers, found.costs)
        return self._found[key]

    def _placements(self, type: TensorType, reduction: str) -> Placements:
        types = tuple(in_time(placements(type, self.mesh, reduction), self.until))
        numbers = {each: i for i, each in enumerate(types)}
        steps = [step for each in in_time(types, self.until) for step in steps_from(each, self.mesh)]
        graph = _Graph.of(steps, numbers, self.mesh, self.price, self.until)
        columns = [graph.costs_to(target) for target in in_time(types, self.until)]
        return Placements(types, numbers, np.stack(columns, axis=1))


@attrs.frozen(eq=False)
class _Graph:
    """Single collectives between placements, as parallel arrays. [steps]

    length: by which the compiler compares chains. added: the number in `runs` of the axes that a step adds to a dimension, the
    last one where it adds none. completed: the axes over which it completes a reduction, as bits.
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
        price: Price,
        until: float,
    ) -> _Graph:
        runs: dict[tuple[Attr, Axes], int] = {}
        added = [runs.setdefault(run, len(runs)) if (run := _added(step)) else -1 for step in steps]
        completed = [set(step.before.pending) - set(step.after.pending) for step in steps]
        return cls(
            mesh,
            numbers,
            runs,
            np.array([numbers[step.before] for step in steps], np.intp),
            np.array([numbers[step.after] for step in steps], np.intp),
            np.array([_length(step, mesh) for step in in_time(steps, until)]),
            np.array([price(step) for step in in_time(steps, until)]),
            np.array(added, np.intp),
            np.array([_bits(mesh, axes) for axes in completed], np.intp),
        )

    def costs_to(self, target: TensorType) -> Numbers:
        """From every placement, by chains of the steps that the compiler takes to the target; infinite where there are none."""
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


def _length(step: ReshardStep, mesh: Mesh) -> float:
    return step.bytes_sent(mesh) + ONE_STEP


def _added(step: ReshardStep) -> tuple[Attr, Axes] | None:
    """The dimension that a step adds axes to, and those."""
    return None if step.split_dim is None else (step.split_dim, step.axes)


def _bits(mesh: Mesh, axes: Iterable[str]) -> int:
    return sum(1 << mesh.names.index(axis) for axis in axes)


def placements(type: TensorType, mesh: Mesh, reduction: str = "sum") -> Iterator[TensorType]:
    """Every way to place a tensor: each axis splits one of its dimensions, or a reduction is pending over it, or neither."""
    axes = tuple(axis for axis, size in mesh.axes if size > 1)
    for roles in product((None, "pending", *type.names), repeat=len(axes)):
        pending = tuple(axis for axis, role in zip(axes, roles, strict=True) if role == "pending")
        for splits in orders(tuple(zip(axes, roles, strict=True)), type.names):
            if all(dim.size % mesh.size(splits.get(dim.name, ())) == 0 for dim in type.dims):
                yield type.split_by(splits, pending, reduction)


def orders(roles: tuple[tuple[str, str | None], ...], dims: tuple[str, ...]) -> Iterator[dict[str, Axes]]:
    """The splits of dimensions in which each axis has its role: several where two axes split one dimension."""
    groups = {dim: tuple(axis for axis, role in roles if role == dim) for dim in dims}
    split = {dim: group for dim, group in groups.items() if group}
    for choice in product(*(permutations(group) for group in split.values())):
        yield dict(zip(split, choice, strict=True))
