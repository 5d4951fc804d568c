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
from mtfc.compiler.ir.printer import bytes_text
from mtfc.compiler.ir.types import Layout, Mesh, Rules
from mtfc.compiler.search.found import Found, NothingFits, Objective, Pricing, Progress, silent, value_of
from mtfc.compiler.search.solver.network import Infeasible
from mtfc.compiler.search.solver.problem import Problem
from mtfc.compiler.search.solver.solve import NotFound
from mtfc.compiler.search.tiling.best import Tiling, Weights, best_tiling, fix, timed_network
from mtfc.compiler.search.tiling.network import Network
from mtfc.compiler.search.tiling.problem import to_problem, unit_of

AXES = 2
"""Axes of a mesh at most, where there is a choice: with three the network is ten times as large."""


WEIGHTS: Mapping[Objective, tuple[Weights, ...]] = {
    "time": (Weights(),),
    "overlap": (Weights(), Weights(gradients=0.0), Weights(communication=0.02)),
}
"""How communication counts in what the solver is asked. Where it overlaps no weights are right, and what they all lead to is
compared.
"""


def search(
    step: Function,
    splittable: Collection[str],
    meshes: Sequence[Mesh],
    hardware: Hardware,
    pricing: Pricing,
    until: float,
    objective: Objective = "time",
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
    turns = [(Topology.of(mesh, hardware), weights) for mesh in tried for weights in WEIGHTS[objective]]
    found: list[tuple[Tiling, Mesh]] = []
    bounds, is_interrupted = dict.fromkeys(tried, 0.0), False
    for number, (topology, weights) in enumerate(turns):
        mesh, deadline = topology.mesh, monotonic() + (until - monotonic()) / (len(turns) - number)
        try:
            network = timed_network(step, topology, hardware.device, splittable, weights, until)
            for name, rules in fixed.items():
                fix(network, name, without_unit_axes(rules, mesh))
            tiling = _on(network, mesh, hardware, deadline, progress)
        except Infeasible:
            bounds[mesh] = inf
        except NotFound:
            continue
        except KeyboardInterrupt:
            if not found and not known:
                raise
            is_interrupted = True
            break
        else:
            at_once = topology.at_once if objective == "overlap" else 0
            bounds[mesh] = max(bounds[mesh], tiling.lower_bound / (1 + weights.communication * at_once))
            found.append((tiling, mesh))
            if tiling.is_interrupted:
                is_interrupted = True
                break
    best = _best(found, min(bounds.values()), objective, hardware, pricing, known)
    return attrs.evolve(best, is_interrupted=is_interrupted)


def _on(network: Network, mesh: Mesh, hardware: Hardware, deadline: float, progress: Progress) -> Tiling:
    unit = unit_of(network)

    def tell(doing: str, cost: int | None, bound: int | None) -> None:
        seconds = [None if each is None else each / unit for each in (cost, bound)]
        progress(f"mesh {'x'.join(str(size) for _, size in mesh.axes)}: {doing}", *seconds)

    return best_tiling(network, hardware.device.memory, deadline, tell)


def _best(
    tilings: Sequence[tuple[Tiling, Mesh]],
    bound: float,
    objective: Objective,
    hardware: Hardware,
    pricing: Pricing,
    known: Iterable[tuple[Mesh, Layout]],
) -> Found:
    """The best tiling, or the known layout that takes less time when both are compiled. Without overlap the solver's cost says
    which tiling is best, and what it takes.
    """
    evaluated, least, found = 0, inf, None
    if objective == "time":
        tilings = sorted(tilings, key=lambda each: each[0].cost)[:1]
    for tiling, mesh in tilings:
        value = value_of(pricing(mesh, tiling.layout), objective)
        evaluated += 1
        if value < least:
            cost, least = tiling.cost if objective == "time" else value, value
            found = Found(mesh, attrs.evolve(tiling.layout, name="found"), cost, min(bound, cost), 1)
    for mesh, layout in known:
        price = pricing(mesh, layout)
        evaluated += 1
        if price.tiled <= hardware.device.memory and value_of(price, objective) < least:
            least = value_of(price, objective)
            found = Found(mesh, attrs.evolve(layout, name="found"), least, min(bound, least), 1)
    if found is None:
        room = f"a device has {bytes_text(int(hardware.device.memory))}"
        if bound == inf:
            raise NothingFits(f"no tiling's memory suffices: {room}")
        raise NothingFits(
            f"no tiling was found whose memory suffices: {room}; a larger --budget may find one"
        )
    return attrs.evolve(found, evaluated=evaluated)


def exported(step: Function, splittable: Collection[str], mesh: Mesh, hardware: Hardware) -> Problem:
    """What the solver is asked about one mesh."""
    network = timed_network(step, Topology.of(mesh, hardware), hardware.device, splittable)
    return to_problem(network, unit_of(network), hardware.device.memory, step.name)
