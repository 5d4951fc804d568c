"""The problem: choose a strategy for each node, so that nodes and edges cost little in total and memory suffices at all times.

This is the intra-operator parallelism problem of the ASPLOS 2025 contest (google/iopddl): a pairwise graphical model with one
resource. All quantities are integers of 64 bits, and sums are exact.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from itertools import accumulate
from typing import TypeAlias

import attrs
import numpy as np
from numpy.typing import NDArray

Integers: TypeAlias = NDArray[np.int64]

Booleans: TypeAlias = NDArray[np.bool_]
ChosenStrategies: TypeAlias = Sequence[int] | Integers


class Infeasible(Exception):
    """It is proven that every choice has an impossible part or exceeds the memory."""


class NotFound(Exception):
    """The search ended without a choice that fits. There may be one."""


FORBIDDEN = 10**18
"""A strategy, or a pair of strategies, with at least this cost is impossible."""


@attrs.frozen(eq=False)
class Ragged:
    """Rows of different lengths, one after the other: row r is `values[offsets[r] : offsets[r + 1]]`."""

    values: Integers
    offsets: Integers

    @classmethod
    def of(cls, rows: Sequence[Sequence[int] | Integers]) -> Ragged:
        """Return the rows of a list of lists."""
        values = [np.asarray(row, np.int64).ravel() for row in rows]
        offsets = np.cumsum([0, *map(len, values)], dtype=np.int64)
        return cls(np.concatenate([np.zeros(0, np.int64), *values]), offsets)

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def __getitem__(self, row: int) -> Integers:
        return self.values[self.offsets[row] : self.offsets[row + 1]]

    @property
    def lengths(self) -> Integers:
        return np.diff(self.offsets)


@attrs.frozen(eq=False)
class AssignmentProblem:
    """Strategy s of node i costs `costs[i][s]` and holds `usages[i][s]` bytes during `intervals[i]`, half-open.

    `edges[e]` are the two different nodes of edge e, and `edge_costs[e]` is its table, row-major over their strategies.
    Parallel edges add up. Without `limit`, memory does not count. Costs and usages are at least 0.
    """

    costs: Ragged
    usages: Ragged
    intervals: Integers
    edges: Integers
    edge_costs: Ragged
    limit: int | None = None
    name: str = ""

    @property
    def nodes(self) -> int:
        return len(self.costs)

    def table(self, edge: int) -> Integers:
        """Return the costs of an edge. [strategies of its first node, strategies of its second node]"""
        first = int(self.edges[edge, 0])
        return self.edge_costs[edge].reshape(len(self.costs[first]), -1)

    def cost(self, choices: ChosenStrategies) -> int:
        """Return the total cost of a choice, FORBIDDEN or more if a part of it is impossible."""
        chosen = np.asarray(choices, np.int64)
        first, second = self.edges.T
        places = chosen[first] * self.costs.lengths[second] + chosen[second]
        nodes = self.costs.values[self.costs.offsets[:-1] + chosen]
        edges = self.edge_costs.values[self.edge_costs.offsets[:-1] + places]
        return _total(nodes) + _total(edges)

    def peak(self, choices: ChosenStrategies) -> int:
        """Return the most bytes that a choice holds at any time."""
        used = self.usages.values[self.usages.offsets[:-1] + np.asarray(choices, np.int64)]
        return max(
            accumulate(change for _, change in changes(self.intervals.tolist(), used.tolist())), default=0
        )

    def is_feasible(self, choices: ChosenStrategies) -> bool:
        fits = self.limit is None or self.peak(choices) <= self.limit
        return fits and self.cost(choices) < FORBIDDEN


def changes(intervals: Iterable[Sequence[int]], used: Iterable[int]) -> list[tuple[int, int]]:
    """Return the times at which memory changes, and by how many bytes, in order.

    used: the bytes in use during each interval.
    """
    found: dict[int, int] = defaultdict(int)
    for (start, end), bytes in zip(intervals, used, strict=True):
        if start < end:
            found[start] += bytes
            found[end] -= bytes
    return sorted(found.items())


def _total(values: Integers) -> int:
    """Return an exact sum. The two halves of each number cannot overflow."""
    low = values & 0xFFFFFFFF
    return int(low.sum()) + (int((values >> 32).sum()) << 32)
