"""SoyBean's k-cuts (arXiv:1805.04170, section 4.3): a tiling that sends few bytes, found cut by cut.

The devices are divided into groups again and again. A cut is a mesh axis, the first one the outermost, on the slowest links
(section 5.1). The paper cuts in two; any number of devices is cut by its prime factors. A cut that is chosen stays for the cuts
that follow. The bytes that a cut adds are the paper's `2^(k-i) delta_i` (Theorem 1). Each cut is the best after the cuts before
it: the solver eliminates the nodes of the network, which is the paper's dynamic program (section 4.2.2).
"""

from collections.abc import Collection, Iterator, Mapping
from math import inf, isclose
from time import monotonic

import attrs
import numpy as np

from mtfc.compiler.activity import report_progress
from mtfc.compiler.ir.core import Function
from mtfc.compiler.ir.types import Axes, Mesh
from mtfc.compiler.search.found import Found, NothingFits
from mtfc.compiler.search.per_equation.choice_network import (
    ChoiceNode,
    layout_of_choices,
    to_problem,
    unit_of,
)
from mtfc.compiler.search.per_equation.equation_strategies import Strategy
from mtfc.compiler.search.per_equation.per_equation_search import best_layouts
from mtfc.compiler.search.per_equation.sent_bytes import PublishedNetwork, counted_network
from mtfc.compiler.search.solver.assignment_problem import NotFound
from mtfc.compiler.search.solver.solve import solve

CUTTING = 0.8
"""The part of the time for the cuts; the rest is for the bound of all tilings."""

ROUNDING = 1e-9
"""The relative difference of equal numbers of bytes: the solver counts in parts of a byte."""

Projection = tuple[object, ...]


def prime_factors(number: int) -> list[int]:
    """Return the prime factors, the largest first."""
    found, rest = [], number
    for each in range(2, number + 1):
        while rest % each == 0:
            found.append(each)
            rest //= each
    return found[::-1]


def k_cuts(function: Function, mesh: Mesh, splittable: Collection[str], until: float) -> Found:
    """Return the tiling by cuts along the axes of a mesh, in their order. Its value is the bytes that one device sends.

    Each cut tiles the network over the axes up to its own, and keeps the choices of the cuts before. splittable: dimensions
    that a layout can name. Raises `NotFound`, and `TimeoutError` if some cut is not chosen at `until`, a time of
    `time.monotonic`.
    """
    chosen: dict[object, Projection] = {}
    sent: list[float] = []
    cuts = max(len(mesh.axes), 1)
    for number in range(1, cuts + 1):
        report_progress(f"cut {number} of {cuts}")
        part = attrs.evolve(mesh, axes=mesh.axes[:number])
        network = counted_network(function, part, splittable, PublishedNetwork, until)
        for node in network.nodes:
            _keep_cuts(node, part.names[:-1], chosen)
        unit = unit_of(network)
        found = solve(to_problem(network, unit, None, function.name), until)
        sent.append(found.cost / unit * part.devices)
        pairs = zip(network.nodes, found.choices, strict=True)
        chosen = {node.owner: projection(node, choice, part.names) for node, choice in pairs}
    layout = layout_of_choices(network, found.choices, "found")
    return Found(mesh, layout, sent[-1] / mesh.devices, 0.0, 1, cuts=tuple(sent))


def _keep_cuts(node: ChoiceNode, axes: Axes, chosen: Mapping[object, Projection]) -> None:
    """Forbid the options of a node that change earlier cuts."""
    wanted = chosen.get(node.owner)
    if wanted is not None:
        keeps = [projection(node, option, axes) == wanted for option in range(len(node.options))]
        node.costs = np.where(keeps, node.costs, inf)


def projection(node: ChoiceNode, option: int, axes: Axes) -> Projection:
    """Return the part of an option that concerns some axes."""
    found = node.options[option]
    if isinstance(found, Strategy):
        passing = tuple(each for each in found.passing if each[0] in axes)
        return _only(found.layout.items(), axes), passing
    splits = zip(found.names, found.splits, strict=True)
    return _only(splits, axes), tuple(a for a in found.pending if a in axes), option < node.shared


def _only(layout: Collection[tuple[str, Axes]] | Iterator[tuple[str, Axes]], axes: Axes) -> Projection:
    """Return a layout with no axes but `axes`, in an order that makes equal layouts equal."""
    kept = {dim: tuple(axis for axis in split if axis in axes) for dim, split in layout}
    return tuple(sorted((dim, split) for dim, split in kept.items() if split))


def search(step: Function, splittable: Collection[str], mesh: Mesh, until: float) -> Found:
    """Return the tiling by k-cuts of `step`, an undistributed function, with a lower bound for all tilings: bytes of one device.

    Memory does not count, as in the paper. Raises `NothingFits` if the time ends before all cuts are known, and
    `KeyboardInterrupt`.
    """
    started = monotonic()
    try:
        found = k_cuts(step, mesh, splittable, started + CUTTING * (until - started))
    except (TimeoutError, NotFound):
        raise NothingFits(
            f"the time ended before all {len(mesh.axes)} cuts were known; a larger --budget or a --mesh with fewer axes may help"
        ) from None
    bound, is_interrupted, is_late = 0.0, False, True
    try:
        best = best_layouts(counted_network(step, mesh, splittable, PublishedNetwork, until), None, until)
        bound, is_interrupted, is_late = best.lower_bound, best.is_interrupted, best.is_late
    except (TimeoutError, NotFound):
        pass
    except KeyboardInterrupt:
        is_interrupted = True
    is_least = isclose(found.objective, bound, rel_tol=ROUNDING)
    sent = bound if is_least else found.objective
    ended = attrs.evolve(found, is_interrupted=is_interrupted, is_late=is_late)
    return attrs.evolve(ended, objective=sent, lower_bound=min(bound, sent))
