"""SoyBean's k-cuts (arXiv:1805.04170), which tests compare with the best layouts of equations.

Devices are divided into groups again and again, and each cut is tiled by itself (section 4.3). A cut is a mesh axis, the first
one the outermost, on the slowest links (section 5.1). The paper cuts in two; any number of devices is cut by its prime factors.
A cut that is chosen stays for the cuts that follow. The bytes that a cut adds are the paper's `2^(k-i) delta_i` (Theorem 1),
counted as in section 4.2.1: the bytes that a device needs less the bytes that it has.

Each cut is chosen by dynamic programming over the levels of the network (section 4.2.2). A breadth-first search sorts the nodes
into levels, so that edges join nodes of one level or of two neighbouring levels. The nodes of the last level are chosen as best
for every choice of the nodes before them, and so on to the first level. Within a level nodes are taken one by one, those with the
fewest choices of neighbours first.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from itertools import chain
from math import prod

import attrs
import numpy as np

from mtfc.compiler.cost.tables.reshard_costs import Indices, Numbers
from mtfc.compiler.ir.core import Equation, Function, Value
from mtfc.compiler.ir.loops import dim_of, region_of
from mtfc.compiler.ir.opdef import LayoutRule
from mtfc.compiler.ir.ops import OPS
from mtfc.compiler.ir.ops.collectives import KIND_OF, axes_of
from mtfc.compiler.ir.types import Axes, Dim, Layout, Mesh
from mtfc.compiler.search.per_equation.choice_network import ChoiceNetwork, ChoiceNode
from mtfc.compiler.search.per_equation.equation_strategies import Strategy, divides, iteration_space
from mtfc.compiler.search.per_equation.network_builder import NetworkBuilder
from mtfc.compiler.search.per_equation.per_equation_search import layout_of_choices
from tests.search.equation_networks import sent_network

Projection = tuple[object, ...]


@attrs.frozen(eq=False)
class Cuts:
    """A tiling, and the bytes that all devices send after each cut; the last number is the total."""

    mesh: Mesh
    layout: Layout
    sent: tuple[float, ...]


def factors(number: int) -> list[int]:
    """Return the prime factors, the largest first."""
    found, rest = [], number
    for each in range(2, number + 1):
        while rest % each == 0:
            found.append(each)
            rest //= each
    return found[::-1]


def published_network(function: Function, mesh: Mesh, splittable: Collection[str]) -> ChoiceNetwork:
    """Return the choices of a global function, priced in bytes that all devices send together.

    splittable: dimensions that a layout can name.
    """
    return sent_network(function, mesh, splittable, PublishedNetwork)


class PublishedNetwork(NetworkBuilder):
    """A network with the restrictions of the paper.

    No two devices compute the same where some dimension could be split (section 4.5). Each sum is completed by the equation that
    leaves it pending.
    """

    def sums(self, function: Function) -> set[Value]:
        return set()

    def strategies(self, eqn: Equation, pending: list[int]) -> Iterator[Strategy]:
        rule = OPS[eqn.op].layout_rule(eqn)
        dims = [dim for dim in iteration_space(eqn, rule) if dim.name in self.splittable]
        for each in super().strategies(eqn, pending):
            used = {*chain.from_iterable(each.layout.values()), *each.passed}
            unused = [axis for axis, size in self.mesh.axes if size > 1 and axis not in used]
            if not any(_has_room(eqn, rule, dims, each.layout, axis, self.mesh) for axis in unused):
                yield each


def _has_room(
    eqn: Equation,
    rule: LayoutRule,
    dims: Sequence[Dim],
    layout: Mapping[str, Axes],
    axis: str,
    mesh: Mesh,
) -> bool:
    """Return True if some dimension could be split over one more axis."""
    more = ({**layout, dim.name: (*layout.get(dim.name, ()), axis)} for dim in dims)
    return any(divides(eqn, rule, dims, each, mesh) for each in more)


def k_cuts(function: Function, sizes: Sequence[int], splittable: Collection[str]) -> Cuts:
    """Return the tiling for `prod(sizes)` devices, cut into `sizes[i]` groups each time. Raises `TooWide`."""
    chosen: dict[object, Projection] = {}
    sent: list[float] = []
    for number in range(1, len(sizes) + 1):
        mesh = Mesh("cuts", tuple((f"cut{i + 1}", size) for i, size in enumerate(sizes[:number])))
        network = published_network(function, mesh, splittable)
        allowed = [_allowed(node, mesh.names[:-1], chosen) for node in network.nodes]
        choices = _best(network, allowed)
        sent.append(_cost(network, choices))
        pairs = zip(network.nodes, choices, strict=True)
        chosen = {node.owner: projection(node, choice, mesh.names) for node, choice in pairs}
    return Cuts(mesh, layout_of_choices(network, choices, "cuts"), tuple(sent))


def projection(node: ChoiceNode, option: int, axes: Axes) -> Projection:
    """Return the part of an option that concerns some axes."""
    found = node.options[option]
    if isinstance(found, Strategy):
        passing = tuple(each for each in found.passing if each[0] in axes)
        return _only(found.layout.items(), axes), passing
    splits = zip(found.names, found.splits, strict=True)
    return _only(splits, axes), tuple(a for a in found.pending if a in axes), option < node.shared


def _only(layout: Collection[tuple[str, Axes]] | Iterator[tuple[str, Axes]], axes: Axes) -> Projection:
    kept = {dim: tuple(axis for axis in split if axis in axes) for dim, split in layout}
    return tuple(sorted((dim, split) for dim, split in kept.items() if split))


def _allowed(node: ChoiceNode, axes: Axes, chosen: dict[object, Projection]) -> list[int]:
    """Return the options that keep earlier cuts."""
    wanted = chosen.get(node.owner)
    options = range(len(node.options))
    return [i for i in options if wanted is None or projection(node, i, axes) == wanted]


def _best(network: ChoiceNetwork, allowed: Sequence[Sequence[int]]) -> list[int]:
    tables = [Table((i,), node.costs[allowed[i]]) for i, node in enumerate(network.nodes)]
    for edge in network.edges:
        costs = edge.costs[np.ix_(allowed[edge.first], allowed[edge.second])]
        tables.append(Table((edge.first, edge.second), costs))
    best = best_choices([len(options) for options in allowed], tables)
    return [options[choice] for options, choice in zip(allowed, best, strict=True)]


def _cost(network: ChoiceNetwork, choices: Sequence[int]) -> float:
    nodes: Numbers = np.array(
        [node.costs[choice] for node, choice in zip(network.nodes, choices, strict=True)]
    )
    edges = sum(float(edge.costs[choices[edge.first], choices[edge.second]]) for edge in network.edges)
    return float(nodes.sum()) + edges


# Dynamic programming

LARGEST = 1 << 22
"""The most entries of a table; the size is exponential in the number of tensors of a level."""


class TooWide(Exception):
    """A level has too many choices at once."""


@attrs.frozen(eq=False)
class Table:
    """The costs of some nodes together: [choice of each of `nodes`]."""

    nodes: tuple[int, ...]
    costs: Numbers


def best_choices(sizes: Sequence[int], tables: Iterable[Table]) -> list[int]:
    """Return a choice for each node, of `sizes[i]`, with the least sum of all tables. Raises `TooWide`."""
    around: dict[int, list[Table]] = {node: [] for node in range(len(sizes))}
    for table in tables:
        for node in table.nodes:
            around[node].append(table)
    decided: list[tuple[int, tuple[int, ...], Indices]] = []
    for level in reversed(levels(around)):
        left = set(level)
        while left:
            node = min(left, key=lambda node: (_width(node, around[node], sizes), node))
            left.remove(node)
            decided.append(_eliminate(node, around, sizes))
    choices = [0] * len(sizes)
    for node, others, best in reversed(decided):
        choices[node] = int(best[tuple(choices[other] for other in others)])
    return choices


def levels(around: dict[int, list[Table]]) -> list[list[int]]:
    """Return the nodes by their distance from the first node of their component."""
    found: list[list[int]] = []
    depth: dict[int, int] = {}
    for root in around:
        if root in depth:
            continue
        depth[root], queue = 0, deque([root])
        while queue:
            node = queue.popleft()
            while len(found) <= depth[node]:
                found.append([])
            found[depth[node]].append(node)
            for other in (each for table in around[node] for each in table.nodes):
                if other not in depth:
                    depth[other] = depth[node] + 1
                    queue.append(other)
    return found


def _others(node: int, tables: Iterable[Table]) -> tuple[int, ...]:
    return tuple(sorted({each for table in tables for each in table.nodes} - {node}))


def _width(node: int, tables: Iterable[Table], sizes: Sequence[int]) -> int:
    return prod(sizes[other] for other in _others(node, tables))


def _eliminate(
    node: int, around: dict[int, list[Table]], sizes: Sequence[int]
) -> tuple[int, tuple[int, ...], Indices]:
    """Replace a node's tables by its least cost for each choice of its neighbours; return the best choices."""
    tables = around.pop(node)
    others = _others(node, tables)
    names = (*others, node)
    shape = [sizes[each] for each in names]
    if prod(shape) > LARGEST:
        raise TooWide(f"{prod(shape):,} choices at once")
    total = np.zeros(shape)
    for table in tables:
        total += _spread(table, names)
        for other in table.nodes:
            if other != node:
                around[other].remove(table)
    least = Table(others, total.min(axis=-1))
    for other in others:
        around[other].append(least)
    return node, others, total.argmin(axis=-1)


def _spread(table: Table, names: tuple[int, ...]) -> Numbers:
    """Return a table's costs with an axis for each of `names`."""
    order = sorted(range(len(table.nodes)), key=lambda i: names.index(table.nodes[i]))
    present = [each in table.nodes for each in names]
    sizes = iter(table.costs.transpose(order).shape)
    return table.costs.transpose(order).reshape([next(sizes) if here else 1 for here in present])


# Bytes as in the paper's example

COUNTED: Mapping[str, Callable[[int], int]] = {
    "all_gather": lambda n: n,
    "reduce_scatter": lambda n: 1,
    "all_reduce": lambda n: 2,
    "all_to_all": lambda n: 1,
    "permute": lambda n: 1,
}
"""Multiples of one device's operand, among n devices."""


def counted_bytes(body: Iterable[Equation], mesh: Mesh) -> int:
    """Return the bytes that all devices exchange in a lowered function, as in the example of section 2.2."""
    total = 0
    for eqn in body:
        if eqn.regions:
            total += dim_of(eqn).size * counted_bytes(region_of(eqn).body, mesh)
        elif eqn.op in KIND_OF:
            size = sum(value.type.local_bytes(mesh) for value in eqn.operands)
            total += size * COUNTED[KIND_OF[eqn.op]](mesh.size(axes_of(eqn))) * mesh.devices
    return total
