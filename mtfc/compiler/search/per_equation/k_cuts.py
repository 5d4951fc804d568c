"""SoyBean's k-cuts: divide the devices into groups again and again, and choose the tiling between the groups of each cut by
itself (arXiv:1805.04170, section 4.3).

A cut is a mesh axis, the first one the outermost, on the slowest links (section 5.1); each is chosen by dynamic programming
(`level_programming.py`) so that fewest bytes are sent, and stays as it is for the cuts that follow, which tile what it left. The paper
cuts in two; any number of devices is cut by its prime factors. What a cut adds to the bytes sent by all devices together is the
paper's `2^(k-i) delta_i` (Theorem 1): sent bytes are counted as in section 4.2.1, what a device needs less what it has.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence

import attrs
import numpy as np

from mtfc.compiler.ir.core import Function
from mtfc.compiler.ir.types import Axes, Layout, Mesh
from mtfc.compiler.search.per_equation.best_layouts import tiling
from mtfc.compiler.search.per_equation.choice_network import Network, Node
from mtfc.compiler.search.per_equation.conversions import Conversions, Numbers, bytes_sent
from mtfc.compiler.search.per_equation.equation_strategies import Strategy
from mtfc.compiler.search.per_equation.level_programming import Table, best_choices
from mtfc.compiler.search.per_equation.network_builder import NetworkBuilder, no_work

Projection = tuple[object, ...]


@attrs.frozen(eq=False)
class Cuts:
    """The tiling, and the bytes that all devices send after each cut, the last of which is the whole."""

    mesh: Mesh
    layout: Layout
    sent: tuple[float, ...]


def factors(number: int) -> list[int]:
    """The prime factors, the largest first."""
    found, rest = [], number
    for each in range(2, number + 1):
        while rest % each == 0:
            found.append(each)
            rest //= each
    return found[::-1]


def sent_network(function: Function, mesh: Mesh, splittable: Collection[str]) -> Network:
    """The choices of a global function, priced in bytes that all devices send together.

    As in the paper no two devices compute the same, where that can be helped, and each sum is completed by the equation that
    leaves it pending. `splittable` are the dimensions that a layout can name.
    """
    conversions = Conversions(mesh, bytes_sent(mesh))
    builder = NetworkBuilder(mesh, conversions, splittable, no_work, published=True)
    return builder.network(function)


def k_cuts(function: Function, sizes: Sequence[int], splittable: Collection[str]) -> Cuts:
    """The tiling for `prod(sizes)` devices, cut into so many groups each time. Raises `TooWide`."""
    chosen: dict[object, Projection] = {}
    sent: list[float] = []
    for number in range(1, len(sizes) + 1):
        mesh = Mesh("cuts", tuple((f"cut{i + 1}", size) for i, size in enumerate(sizes[:number])))
        network = sent_network(function, mesh, splittable)
        allowed = [_allowed(node, mesh.names[:-1], chosen) for node in network.nodes]
        choices = _best(network, allowed)
        sent.append(_cost(network, choices))
        pairs = zip(network.nodes, choices, strict=True)
        chosen = {node.owner: projection(node, choice, mesh.names) for node, choice in pairs}
    return Cuts(mesh, tiling(network, choices, "cuts"), tuple(sent))


def projection(node: Node, option: int, axes: Axes) -> Projection:
    """What an option says about some of the axes."""
    found = node.options[option]
    if isinstance(found, Strategy):
        passing = tuple(each for each in found.passing if each[0] in axes)
        return _only(found.layout.items(), axes), passing
    splits = zip(found.names, found.splits, strict=True)
    return _only(splits, axes), tuple(a for a in found.pending if a in axes), option < node.shared


def _only(layout: Collection[tuple[str, Axes]] | Iterator[tuple[str, Axes]], axes: Axes) -> Projection:
    kept = {dim: tuple(axis for axis in split if axis in axes) for dim, split in layout}
    return tuple(sorted((dim, split) for dim, split in kept.items() if split))


def _allowed(node: Node, axes: Axes, chosen: dict[object, Projection]) -> list[int]:
    """The options that leave earlier cuts as they are."""
    wanted = chosen.get(node.owner)
    options = range(len(node.options))
    return [i for i in options if wanted is None or projection(node, i, axes) == wanted]


def _best(network: Network, allowed: Sequence[Sequence[int]]) -> list[int]:
    tables = [Table((i,), node.costs[allowed[i]]) for i, node in enumerate(network.nodes)]
    for edge in network.edges:
        costs = edge.costs[np.ix_(allowed[edge.first], allowed[edge.second])]
        tables.append(Table((edge.first, edge.second), costs))
    best = best_choices([len(options) for options in allowed], tables)
    return [options[choice] for options, choice in zip(allowed, best, strict=True)]


def _cost(network: Network, choices: Sequence[int]) -> float:
    nodes: Numbers = np.array(
        [node.costs[choice] for node, choice in zip(network.nodes, choices, strict=True)]
    )
    edges = sum(float(edge.costs[choices[edge.first], choices[edge.second]]) for edge in network.edges)
    return float(nodes.sum()) + edges
