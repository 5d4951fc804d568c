"""The search for tilings as the command asks for it: on every mesh that it may be, or the one that is given."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from math import inf
from time import monotonic

import attrs

from mtfc.compiler.analysis.ruling import without_unit_axes
from mtfc.compiler.analysis.topology import Topology
from mtfc.compiler.hardware import Hardware
from mtfc.compiler.ir.core import Function
from mtfc.compiler.ir.types import Layout, Mesh, Rules
from mtfc.compiler.search.found import Found, NothingFits, Pricing, Progress, silent
from mtfc.compiler.search.solver.network import Infeasible
from mtfc.compiler.search.solver.problem import Problem
from mtfc.compiler.search.solver.solve import NotFound
from mtfc.compiler.search.tiling.best import Tiling, best_tiling, fix, timed_network
from mtfc.compiler.search.tiling.network import Network
from mtfc.compiler.search.tiling.problem import to_problem, unit_of

AXES = 2
"""Axes of a mesh at most, where there is a choice: with three the network is ten times as large."""


def search(
    step: Function,
    splittable: Collection[str],
    meshes: Sequence[Mesh],
    hardware: Hardware,
    pricing: Pricing,
    until: float,
    known: Collection[tuple[Mesh, Layout]] = (),
    progress: Progress = silent,
    fixed: Mapping[str, Rules] = {},
) -> Found:
    """The tiling of `step`, an undistributed function, that takes least time within the device's memory, before `until`.

    `splittable` are the dimensions that a layout can name. Each mesh gets an equal part of the time that is left. A `known`
    layout is given back if it takes less time, compiled, than what was found does. `fixed` are layouts that equations, by name,
    must have. Raises `NothingFits`. `KeyboardInterrupt` ends it with the best so far, and is raised where there is none.
    """
    tried = [mesh for mesh in meshes if len(mesh.axes) <= AXES] or [meshes[0]]
    best: tuple[Tiling, Mesh] | None = None
    bound = inf
    for number, mesh in enumerate(tried):
        deadline = monotonic() + (until - monotonic()) / (len(tried) - number)
        try:
            network = timed_network(step, Topology.of(mesh, hardware), hardware.device, splittable)
            for name, rules in fixed.items():
                fix(network, name, without_unit_axes(rules, mesh))
            found = _on(network, mesh, hardware, deadline, progress)
        except Infeasible:
            continue
        except NotFound:
            bound = 0.0
            continue
        except KeyboardInterrupt:
            if best is None and not known:
                raise
            bound = 0.0
            break
        bound = min(bound, found.lower_bound)
        if best is None or found.cost < best[0].cost:
            best = found, mesh
        if found.is_interrupted:
            bound = bound if mesh is tried[-1] else 0.0
            break
    return _better(best, bound, hardware, pricing, known)


def _on(network: Network, mesh: Mesh, hardware: Hardware, deadline: float, progress: Progress) -> Tiling:
    unit = unit_of(network)

    def tell(doing: str, cost: int | None, bound: int | None) -> None:
        seconds = [None if each is None else each / unit for each in (cost, bound)]
        progress(f"mesh {'x'.join(str(size) for _, size in mesh.axes)}: {doing}", *seconds)

    return best_tiling(network, hardware.device.memory, deadline, tell)


def _better(
    best: tuple[Tiling, Mesh] | None,
    bound: float,
    hardware: Hardware,
    pricing: Pricing,
    known: Iterable[tuple[Mesh, Layout]],
) -> Found:
    """The tiling, or the known layout that takes less time when both are compiled."""
    evaluated, least, found = 0, inf, None
    if best is not None:
        tiling, mesh = best
        evaluated, least = 1, pricing(mesh, tiling.layout).seconds
        found = Found(mesh, attrs.evolve(tiling.layout, name="found"), tiling.cost, bound, 1)
    for mesh, layout in known:
        price = pricing(mesh, layout)
        evaluated += 1
        if price.memory <= hardware.device.memory and price.seconds < least:
            least = price.seconds
            found = Found(mesh, attrs.evolve(layout, name="found"), least, min(bound, least), 1)
    if found is None:
        raise NothingFits(
            "no tiling was found whose memory suffices; a larger --budget or more devices may help"
        )
    return attrs.evolve(found, evaluated=evaluated)


def exported(step: Function, splittable: Collection[str], mesh: Mesh, hardware: Hardware) -> Problem:
    """What the solver is asked about one mesh."""
    network = timed_network(step, Topology.of(mesh, hardware), hardware.device, splittable)
    return to_problem(network, unit_of(network), hardware.device.memory, step.name)
