"""Reshard plans: the cheapest chain of collectives from one placement of a tensor to another, as a shortest path.

Nodes of the graph are placements. The records of the collectives give the edges (`CollectiveDef.edges`). An edge's length is the
bytes that a processor sends, by ring algorithms; of chains with equal bytes the planner takes one with the fewest steps.
The paper's cases (section 6.1) follow: from split to unsplit leads an all-gather, from unsplit to split a slice, from one
dimension to another on the same axis an all-to-all, from a pending sum to a split one a reduce-scatter. The size of the graph
depends on the number of mesh axes, not on the number of processors. Mesh axes that stay together count as one. With more than
`MOST_AXES` such groups the graph is too large, and the chain is the direct one: complete, gather, slice.
"""

import heapq
from collections.abc import Callable, Iterator
from functools import lru_cache
from itertools import count, permutations, takewhile

from mtfc.compiler.ir.core import Attr, Equation
from mtfc.compiler.ir.opdef import OVER_AXES, CollectiveDef, ReshardGoal, ReshardStep
from mtfc.compiler.ir.ops import OPS
from mtfc.compiler.ir.ops.collectives import (
    ALL_GATHER,
    ALL_REDUCE,
    COLLECTIVES,
    LOCAL_SLICE,
    UNREDUCE,
    resplit,
)
from mtfc.compiler.ir.sharding_rules import operand_type
from mtfc.compiler.ir.types import Axes, Mesh, TensorType

STEPS = sorted((each for each in COLLECTIVES if each.edges), key=lambda each: each.priority)
"""The collectives that a chain may have."""


MOST_AXES = 5
"""Groups of mesh axes up to which the cheapest chain is searched: the graph grows with the factorial of their number."""


def goal_of(target: TensorType) -> ReshardGoal:
    return ReshardGoal([list(_runs(axes)) for axes in target.splits], target.pending, target.reduction)


def needed_type(eqn: Equation, operand: int, pending: Axes = ()) -> TensorType:
    """Return the type that an operand must have under the equation's layout, or for a loop under its region's."""
    if eqn.regions:
        (region,) = eqn.regions
        return eqn.operands[operand].type.split_by(region.arguments[operand].layout or {}, pending)
    return operand_type(OPS[eqn.op].layout_rule(eqn), eqn, operand, pending)


def _runs(axes: Axes) -> Iterator[Axes]:
    """Yield every contiguous part of a dimension's axes."""
    for start in range(len(axes)):
        for stop in range(start + 1, len(axes) + 1):
            yield axes[start:stop]


def _steps(type: TensorType, goal: ReshardGoal, mesh: Mesh) -> Iterator[ReshardStep]:
    """Yield all single collectives that lead from a type towards a goal."""
    for collective in STEPS:
        assert collective.edges is not None
        for attributes, after in collective.edges(type, goal, mesh):
            yield ReshardStep(collective, attributes, type, after)


def steps_from(type: TensorType, mesh: Mesh) -> Iterator[ReshardStep]:
    """Yield every single collective that some target without pending sums may need."""
    used = [axis for axis, size in mesh.axes if size > 1]
    runs = [axes for size in range(1, len(used) + 1) for axes in permutations(used, size)]
    return _steps(type, ReshardGoal([runs] * len(type.dims), (), "sum"), mesh)


@lru_cache(maxsize=4096)
def plan(source: TensorType, target: TensorType, mesh: Mesh) -> tuple[float, tuple[ReshardStep, ...]]:
    """Return the bytes that a processor sends and the collectives that bring `source` to `target`."""
    groups = axis_groups(source, target, mesh)
    if len(groups) > MOST_AXES:
        return _direct(source, target, mesh)
    if all(len(group) == 1 for group in groups):
        return _cheapest(source, target, mesh)
    grouping = _Grouping(groups, mesh)
    sent, steps = _cheapest(grouping.joined(source), grouping.joined(target), grouping.mesh)
    return sent, tuple(map(grouping.spread, steps))


def _cheapest(source: TensorType, target: TensorType, mesh: Mesh) -> tuple[float, tuple[ReshardStep, ...]]:
    """Find the cheapest chain by Dijkstra's algorithm."""
    order, goal = count(), goal_of(target)
    queue: list[tuple[float, int, int, TensorType, tuple[ReshardStep, ...]]] = [
        (0.0, 0, next(order), source, ())
    ]
    settled: set[TensorType] = set()
    while queue:
        sent, length, _, type, steps = heapq.heappop(queue)
        if type == target:
            return sent, steps
        if type in settled:
            continue
        settled.add(type)
        for step in _steps(type, goal, mesh):
            cost = sent + step.bytes_sent(mesh)
            heapq.heappush(queue, (cost, length + 1, next(order), step.after, (*steps, step)))
    raise AssertionError(f"no way from {source} to {target}")


def axis_groups(source: TensorType, target: TensorType, mesh: Mesh) -> tuple[Axes, ...]:
    """Return the axes of two types in groups: axes that stand one after the other wherever they stand."""
    lists = [*source.splits, *target.splits, source.pending, target.pending]
    after: dict[str, set[str | None]] = {}
    for axes in lists:
        for axis, following in zip(axes, (*axes[1:], None), strict=False):
            after.setdefault(axis, set()).add(following)
    places = {axis: {i for i, axes in enumerate(lists) if axis in axes} for axis in after}
    followers = {
        axis: follower
        for axis, found in after.items()
        if len(found) == 1 and (follower := next(iter(found))) and places[follower] == places[axis]
    }
    groups = []
    for axis in mesh.ordered(tuple(after)):
        if axis not in followers.values():
            group = [axis]
            while group[-1] in followers:
                group.append(followers[group[-1]])
            groups.append(tuple(group))
    return tuple(groups)


class _Grouping:
    """Replaces groups of mesh axes by their first axes, and back."""

    def __init__(self, groups: tuple[Axes, ...], mesh: Mesh) -> None:
        self.whole, self.members = mesh, {group[0]: group for group in groups}
        self.mesh = Mesh(mesh.name, tuple((group[0], mesh.size(group)) for group in groups))

    def joined(self, type: TensorType) -> TensorType:
        """Return a type in which each group of axes is its first axis."""
        return self._changed(type, lambda axes: tuple(axis for axis in axes if axis in self.members))

    def spread(self, step: ReshardStep) -> ReshardStep:
        """Return a step over joined axes as a step over all axes that these stand for."""
        axes = OVER_AXES.name, self._all(step.axes)
        attributes = tuple(axes if pair[0] == OVER_AXES.name else pair for pair in step.attrs)
        before, after = (self._changed(type, self._all) for type in (step.before, step.after))
        return ReshardStep(step.collective, attributes, before, after)

    def _all(self, axes: Axes) -> Axes:
        return tuple(member for axis in axes for member in self.members[axis])

    def _changed(self, type: TensorType, change: Callable[[Axes], Axes]) -> TensorType:
        """Return a type with other axes in its splits and its pending sum."""
        splits = tuple(map(change, type.splits))
        return TensorType(
            type.dtype, type.dims, splits, self.whole.ordered(change(type.pending)), type.reduction
        )


def _direct(source: TensorType, target: TensorType, mesh: Mesh) -> tuple[float, tuple[ReshardStep, ...]]:
    """Complete the sums that must not stay pending, gather each dimension up to where the target differs, and slice."""
    steps: list[ReshardStep] = []
    now = source

    def add(collective: CollectiveDef, after: TensorType, **attributes: Attr) -> None:
        """Append a step that changes the current type to `after`."""
        nonlocal now
        steps.append(ReshardStep(collective, tuple(attributes.items()), now, after))
        now = after

    if axes := goal_of(target).completable(now):
        add(ALL_REDUCE, resplit(now, {}, tuple(a for a in now.pending if a not in axes)), axes=axes)
    for dim, wanted in zip(target.dims, target.splits, strict=True):
        split = now.axes_of(dim.name)
        common = len(list(takewhile(lambda pair: pair[0] == pair[1], zip(split, wanted, strict=False))))
        if axes := split[common:]:
            add(ALL_GATHER, resplit(now, {dim.name: split[:common]}), dim=dim, axes=axes)
    for dim, wanted in zip(target.dims, target.splits, strict=True):
        if axes := wanted[len(now.axes_of(dim.name)) :]:
            add(LOCAL_SLICE, resplit(now, {dim.name: wanted}), dim=dim, axes=axes)
    if axes := tuple(axis for axis in target.pending if axis not in now.pending):
        add(UNREDUCE, resplit(now, {}, target.pending), axes=axes)
    return sum(step.bytes_sent(mesh) for step in steps), tuple(steps)
