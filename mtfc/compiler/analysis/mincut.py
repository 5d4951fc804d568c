"""Minimum cut of a small directed graph with capacities (Dinic's algorithm, without recursion)."""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable

Node = Hashable
INFINITE = float("inf")
SOURCE, SINK = ("source",), ("sink",)


class FlowNetwork:
    """A directed graph with capacities. The reverse of the arc at `index` is at `index ^ 1`."""

    def __init__(self) -> None:
        self._arcs: dict[Node, list[int]] = {SOURCE: [], SINK: []}
        self._head: list[Node] = []
        self._left: list[float] = []

    def arc(self, tail: Node, head: Node, capacity: float) -> None:
        for a, b, c in ((tail, head, capacity), (head, tail, 0.0)):
            self._arcs.setdefault(a, []).append(len(self._head))
            self._head.append(b)
            self._left.append(c)

    def source_side(self) -> set[Node]:
        """Return the smallest set of nodes with the source that a minimum cut separates from the sink."""
        levels = self._levels()
        while SINK in levels:
            self._block(levels)
            levels = self._levels()
        return set(levels)

    def _levels(self) -> dict[Node, int]:
        """Return the distance of each node from the source over arcs with free capacity."""
        levels: dict[Node, int] = {SOURCE: 0}
        queue: deque[Node] = deque([SOURCE])
        while queue:
            node = queue.popleft()
            for arc in self._arcs[node]:
                if self._left[arc] > 0 and self._head[arc] not in levels:
                    levels[self._head[arc]] = levels[node] + 1
                    queue.append(self._head[arc])
        return levels

    def _block(self, levels: dict[Node, int]) -> None:
        """Push flow along shortest paths until each has an arc without free capacity."""
        untried = {node: list(arcs) for node, arcs in self._arcs.items()}
        path: list[int] = []
        while True:
            node = self._head[path[-1]] if path else SOURCE
            if node == SINK:
                self._push(path)
                path = []
            elif (arc := self._next(node, levels, untried)) is not None:
                path.append(arc)
            elif path:
                untried[self._head[path.pop() ^ 1]].pop()
            else:
                return

    def _next(self, node: Node, levels: dict[Node, int], untried: dict[Node, list[int]]) -> int | None:
        """Return an arc with free capacity to the next level; arcs without are dropped."""
        while untried[node]:
            arc = untried[node][-1]
            if self._left[arc] > 0 and levels.get(self._head[arc]) == levels[node] + 1:
                return arc
            untried[node].pop()
        return None

    def _push(self, path: list[int]) -> None:
        flow = min(self._left[arc] for arc in path)
        for arc in path:
            self._left[arc] -= flow
            self._left[arc ^ 1] += flow
