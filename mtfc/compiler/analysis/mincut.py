"""Minimum cut of a directed graph with capacities, by paths to the sink that are searched depth first.

Dinic's algorithm takes shortest paths first. In a deep network of equal layers the paths have as many lengths as there are
layers, and each length costs a pass over the graph. Here a pass takes paths of all lengths, and a few passes suffice.
"""

from collections.abc import Callable, Hashable, Sequence

Node = Hashable
INFINITE = float("inf")
SOURCE, SINK = ("source",), ("sink",)

Arc = tuple[Node, Node, float]
"""Two nodes, and the bytes that a cut between them costs."""


class FlowNetwork:
    """A directed graph with capacities. The reverse of the arc at `index` is at `index ^ 1`."""

    def __init__(self) -> None:
        """Start with the source and the sink.

        _arcs: the arcs from each node. _head, _left: target and free capacity of each arc.
        """
        self._number: dict[Node, int] = {SOURCE: 0, SINK: 1}
        self._nodes: list[Node] = [SOURCE, SINK]
        self._arcs: list[list[int]] = [[], []]
        self._head: list[int] = []
        self._left: list[float] = []

    def arc(self, tail: Node, head: Node, capacity: float) -> None:
        """Add an arc, and its reverse without capacity."""
        a, b = self._numbered(tail), self._numbered(head)
        for start, end, free in ((a, b, capacity), (b, a, 0.0)):
            self._arcs[start].append(len(self._head))
            self._head.append(end)
            self._left.append(free)

    def source_side(self, open: Callable[[Node], bool] = lambda node: False) -> set[Node]:
        """Return the smallest set of nodes with the source that a minimum cut separates from the sink.

        open: adds the arcs of a node of the set, if it has none yet, and returns True if it added any. So large networks are made
        only as far as the source's side goes.
        """
        while True:
            while self._pass():
                pass
            reached, is_complete = self._reached(open)
            if is_complete:
                return reached

    def _numbered(self, node: Node) -> int:
        """Return the number of a node; a new node gets the next number."""
        number = self._number.setdefault(node, len(self._arcs))
        if number == len(self._arcs):
            self._arcs.append([])
            self._nodes.append(node)
        return number

    def _pass(self) -> bool:
        """Push flow along paths until no node is left to try; return whether there was a path.

        A node is not tried again where all of its arcs led nowhere.
        """
        head, left = self._head, self._left
        untried = [list(arcs) for arcs in self._arcs]
        is_closed = bytearray(len(untried))
        is_closed[0] = 1
        path: list[int] = []
        node, found = 0, False
        while True:
            arcs = untried[node]
            while arcs and (not left[arcs[-1]] > 0 or is_closed[head[arcs[-1]]]):
                arcs.pop()
            if arcs:
                path.append(arcs[-1])
                node = head[arcs[-1]]
                is_closed[node] = 1
                if node == 1:
                    found, node = True, self._push(path, is_closed)
            elif path:
                node = head[path.pop() ^ 1]
            else:
                return found

    def _push(self, path: list[int], is_closed: bytearray) -> int:
        """Fill a path, shorten it to the part before its first full arc, and return the node at its end."""
        head, left = self._head, self._left
        flow = min(left[arc] for arc in path)
        for arc in path:
            left[arc] -= flow
            left[arc ^ 1] += flow
        full = next(i for i, arc in enumerate(path) if not left[arc] > 0)
        for arc in path[full:]:
            is_closed[head[arc]] = 0
        node = head[path[full] ^ 1]
        del path[full:]
        return node

    def _reached(self, open: Callable[[Node], bool]) -> tuple[set[Node], bool]:
        """Return the nodes that arcs with free capacity lead to, and True if all of them had their arcs before."""
        reached, stack, is_complete = {0}, [0], True
        while stack:
            number = stack.pop()
            is_complete &= not open(self._nodes[number])
            for arc in self._arcs[number]:
                if self._left[arc] > 0 and self._head[arc] not in reached:
                    reached.add(self._head[arc])
                    stack.append(self._head[arc])
        return {self._nodes[number] for number in reached}, is_complete


def minimum_cut(arcs: Sequence[Arc]) -> tuple[float, set[Node]]:
    """Return the cost of a minimum cut, and the nodes on the source's side."""
    network = FlowNetwork()
    for arc in arcs:
        network.arc(*arc)
    side = network.source_side()
    return sum(size for tail, head, size in arcs if tail in side and head not in side), side
