"""Reshard plans: the cheapest chain of collectives from one placement of a tensor to another, as a shortest path.

Nodes of the graph are placements. The records of the collectives give the edges (`CollectiveDef.edges`). An edge's length is the
bytes that a processor sends, by ring algorithms; of chains with equal bytes the planner takes one with the fewest steps.
The paper's cases (section 6.1) follow: from split to unsplit leads an all-gather, from unsplit to split a slice, from one
dimension to another on the same axis an all-to-all, from a pending sum to a split one a reduce-scatter. The size of the graph
depends on the number of mesh axes, not on the number of processors.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from functools import lru_cache
from itertools import count, permutations

from mtfc.compiler.ir.collective_def import ReshardGoal, ReshardStep
from mtfc.compiler.ir.core import Equation
from mtfc.compiler.ir.ops import OPS
from mtfc.compiler.ir.ops.collectives import COLLECTIVES
from mtfc.compiler.ir.sharding_rules import operand_type
from mtfc.compiler.ir.types import Axes, Mesh, TensorType

STEPS = sorted((each for each in COLLECTIVES if each.edges), key=lambda each: each.priority)
"""The collectives that a chain may have."""


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
    """Return the bytes that a processor sends and the collectives that bring `source` to `target`, by Dijkstra's algorithm."""
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
