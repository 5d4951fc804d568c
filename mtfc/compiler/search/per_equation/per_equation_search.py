"""The search for a layout of each equation: SoyBean's tilings, on every mesh that is allowed or on one.

The program goes to the solver as a network of choices (`choice_network.py`). The layout that comes out has no rules but those
that name one equation, argument or loop's value each.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from functools import cache, partial
from math import inf, isclose
from time import monotonic

import attrs
import numpy as np

from mtfc.compiler.analysis.equation_names import layout_target_names
from mtfc.compiler.cost.device_models import inside_kernels
from mtfc.compiler.cost.effects.memory import memory_of
from mtfc.compiler.cost.equation_layouts import EquationTimes, least_dot_seconds
from mtfc.compiler.cost.hardware import Device, Hardware, Rate
from mtfc.compiler.cost.model import cheapest, regimes
from mtfc.compiler.cost.sizes import Numbers, whole
from mtfc.compiler.cost.tables.reshard_costs import Conversions, seconds_on
from mtfc.compiler.cost.topology import Topology
from mtfc.compiler.ir.core import Function, Value
from mtfc.compiler.ir.printer import bytes_text
from mtfc.compiler.ir.types import Layout, Mesh, Rules
from mtfc.compiler.passes.partition.layout_rules import without_unit_axes
from mtfc.compiler.search.found import Found, NothingFits, Objective, PricedLayouts, Pricing, Progress, silent
from mtfc.compiler.search.per_equation.choice_network import (
    ChoiceNetwork,
    layout_of,
    layout_of_choices,
    to_problem,
    unit_of,
)
from mtfc.compiler.search.per_equation.network_builder import NetworkBuilder
from mtfc.compiler.search.per_equation.sent_bytes import counted_network
from mtfc.compiler.search.solver.assignment_problem import (
    AssignmentProblem,
    Infeasible,
    NotFound,
)
from mtfc.compiler.search.solver.solve import Solution, solve

RELAXED = 0.6
"""The part of the time for the problem without memory."""


@attrs.frozen(eq=False)
class EquationLayouts:
    """A layout for each equation, its cost and the lower bound of all, in the unit of the network: seconds, or bytes sent.

    memory: the most bytes that one processor needs at any time, according to the network. is_interrupted: True if
    `KeyboardInterrupt` ended the search.
    """

    layout: Layout
    cost: float
    lower_bound: float
    memory: int
    is_interrupted: bool = False


@attrs.frozen
class Weights:
    """The weight of a second of communication, and a further weight for communication of gradients before the update.

    The rest of the backward pass can hide the communication of gradients.
    """

    communication: float = 1.0
    gradients: float = 1.0


def timed_network(
    function: Function,
    topology: Topology,
    device: Device,
    splittable: Collection[str],
    weights: Weights = Weights(),
    until: float = inf,
) -> ChoiceNetwork:
    """Return the choices of an undistributed function on a mesh, priced in seconds of one processor without overlap.

    splittable: dimensions that a layout can name, those of the program before it is differentiated. Raises `TimeoutError` after
    `until`, a time of `time.monotonic`.
    """
    conversions = Conversions(topology.mesh, seconds_on(topology, weights.communication), until)
    times = EquationTimes(function, topology.mesh, device)
    builder = NetworkBuilder(
        topology.mesh,
        conversions,
        splittable,
        times.seconds,
        times.copying,
        gradients=weights.gradients,
        inside=inside_kernels(topology.mesh, device),
        until=until,
    )
    return builder.network(function)


def fix(network: ChoiceNetwork, name: str, rules: Rules) -> None:
    """Fix the layout of the equation or port of this name. Raises `NothingFits` if it cannot have the layout."""
    names = layout_target_names(network.function)
    nodes = [
        node for node in network.nodes if not isinstance(node.owner, Value) and names.get(node.owner) == name
    ]
    wanted = {dim: axes for dim, axes in rules.axes if axes}
    for node in nodes:
        fits = [layout_of(option) == wanted for option in node.options]
        node.costs = np.where(fits, node.costs, inf)
    if not any(np.isfinite(node.costs).any() for node in nodes):
        raise NothingFits(f"no tiling has the layout that is asked for of `{name}`")


def best_layouts(
    network: ChoiceNetwork, memory: float | None, deadline: float, progress: Progress = silent
) -> EquationLayouts:
    """Return the best layouts that are found before `deadline`, a time of `time.monotonic`, and need at most `memory` bytes.

    Raises `Infeasible` if it is proven that there are none, `NotFound` if none were found.
    """
    unit = unit_of(network)
    problem = to_problem(network, unit, memory, network.function.name)
    found = solve_with_memory(problem, deadline, progress)
    layout = layout_of_choices(network, found.choices, "tiling")
    peak = problem.peak(found.choices)
    return EquationLayouts(layout, found.cost / unit, found.lower_bound / unit, peak, found.is_interrupted)


def solve_with_memory(problem: AssignmentProblem, deadline: float, progress: Progress = silent) -> Solution:
    """Solve a problem, first without its limit on memory.

    The problem without the limit is much easier, and its bound also holds with the limit. If the solution fits, it is the best
    with memory, too.
    """
    if problem.limit is None:
        return solve(problem, deadline, progress)
    started = monotonic()
    relaxed = attrs.evolve(problem, limit=None)
    try:
        found = solve(relaxed, started + RELAXED * (deadline - started), progress)
    except NotFound:
        return solve(problem, deadline, progress)
    if problem.is_feasible(found.choices):
        return found
    if found.is_interrupted:
        raise KeyboardInterrupt
    fitting = solve(problem, deadline, progress)
    bound = max(found.lower_bound, fitting.lower_bound)
    return attrs.evolve(fitting, lower_bound=bound, seconds=monotonic() - started)


# All meshes

AXES = 2
"""The most axes of a mesh where there is a choice: with three axes the network is ten times as large."""


WEIGHTS: Mapping[Objective, tuple[Weights, ...]] = {
    "time": (Weights(),),
    "bytes": (Weights(),),
    "overlap": (Weights(), Weights(gradients=0.0), Weights(communication=0.02)),
}
"""The weights for the solver. No weights describe communication that overlaps, so the search compares the solutions for all of
these weights.
"""

SMALL = 0.005
"""The relative difference up to which a compiled cost counts as equal to the solver's."""

ROUNDING = 1e-10
"""The same difference in seconds: the solver counts in picoseconds."""

TIGHTENED = 3
"""The most times that the solver runs again with less memory, if its compiled solution needs more memory than predicted."""


@attrs.frozen
class _Answer:
    """The solver's answer for a machine: a solution for each mesh, and a bound for all meshes."""

    found: Sequence[tuple[EquationLayouts, Mesh]]
    bound: float
    is_interrupted: bool


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
    best_global: tuple[Mesh, Layout] | None = None,
) -> Found:
    """Return the layouts of the equations of `step`, an undistributed function, that take least time within the device's memory.

    splittable: dimensions that a layout can name. until: the end, a time of `time.monotonic`; each mesh gets an equal part of the
    time that is left. known: layouts that are returned if they take less time when compiled. fixed: layouts that equations must
    have, by name. best_global: a layout that is known, too, and whose mesh is searched whatever its number of axes. Raises
    `NothingFits`. `KeyboardInterrupt` ends the search with the best so far; without any, it is raised.

    The compiled program may need more memory than the solver says. Then the solver is given less. The program may also take less
    time than the bound, as small collectives travel together. Then the solver is asked for a machine where that gains nothing.

    With the objective `bytes`, devices repeat no work, and each use of a value counts by itself (see `sent_bytes.py`). Known
    layouts may repeat work, so there are none.
    """
    tried = of_few_axes(meshes) if objective != "bytes" else _finest(meshes)
    if best_global is not None:
        known = (*known, best_global)
        tried = [*tried, *(mesh for mesh in [best_global[0]] if mesh not in tried)]
    ask = partial(_ask, step, splittable, tried, until, objective, progress, fixed)
    pricing = cache(pricing)
    answers = [ask(hardware)]
    if answers[0].is_interrupted and not answers[0].found and not known:
        raise KeyboardInterrupt
    smaller = hardware
    for _ in range(TIGHTENED):
        excess = _excess(answers[-1], objective, hardware, pricing)
        if not excess or answers[-1].is_interrupted or monotonic() > until:
            break
        smaller = _with_memory(smaller, smaller.device.memory - excess)
        answers.append(attrs.evolve(ask(smaller), bound=answers[0].bound))
    unsplit = None if fixed or objective == "bytes" else (tried[0], Layout("none"))
    best = _best(answers, objective, hardware, pricing, known, unsplit)
    if objective == "bytes":
        return best
    may_be_small = any(_may_be_small(step, mesh, hardware.device) for mesh in tried)
    if (best.refuted or may_be_small) and not best.is_interrupted:
        answers.append(ask(_optimistic(hardware)))
        best = _best(answers, objective, hardware, pricing, known, unsplit)
    if best.refuted and best.is_interrupted:
        return attrs.evolve(best, refuted=None, lower_bound=0.0)
    return best


def of_few_axes(meshes: Sequence[Mesh]) -> list[Mesh]:
    """Return the meshes with at most `AXES` axes, or else the first mesh."""
    return [mesh for mesh in meshes if len(mesh.axes) <= AXES] or [meshes[0]]


def _finest(meshes: Sequence[Mesh]) -> list[Mesh]:
    """Return the first mesh with the most axes. The order of its axes does not change the bytes, and its tilings contain those of
    meshes in which neighbouring axes are one.
    """
    return [max(meshes, key=lambda mesh: len(mesh.axes))]


def _excess(answer: _Answer, objective: Objective, hardware: Hardware, pricing: Pricing) -> float:
    """Return the bytes that the smallest compiled solution needs beyond the memory; 0 if one fits, or there is none."""
    needed = [pricing(mesh, each.layout).tiled for each, mesh in _promising(answer, objective)]
    return max(0.0, min(needed, default=0) - hardware.device.memory)


def _with_memory(hardware: Hardware, memory: float) -> Hardware:
    return attrs.evolve(hardware, device=attrs.evolve(hardware.device, memory=max(memory, 0.0)))


def _may_be_small(step: Function, mesh: Mesh, device: Device) -> bool:
    """Return True if some layout may make the program small enough for a cheaper regime than the solver's."""
    smallest, *others = regimes(step, device)
    return bool(others) and whole(memory_of(step, mesh, Numbers(mesh)).total) / mesh.devices <= smallest.bytes


def _optimistic(hardware: Hardware) -> Hardware:
    """Return the machine with kernels of the cheapest regime, and links on which no collective gains by joining others."""
    links = (
        attrs.evolve(
            link,
            latency=0.0,
            bandwidth=Rate.constant(link.bandwidth.peak),
            collectives={kind: Rate.constant(rate.peak) for kind, rate in link.collectives.items()},
        )
        for link in hardware.links
    )
    return attrs.evolve(hardware, device=cheapest(hardware.device), links=tuple(links))


def _ask(
    step: Function,
    splittable: Collection[str],
    meshes: Sequence[Mesh],
    until: float,
    objective: Objective,
    progress: Progress,
    fixed: Mapping[str, Rules],
    hardware: Hardware,
) -> _Answer:
    turns = [(Topology.of(mesh, hardware), weights) for mesh in meshes for weights in WEIGHTS[objective]]
    found: list[tuple[EquationLayouts, Mesh]] = []
    bounds = {
        mesh: 0.0 if objective == "bytes" else least_dot_seconds(step, mesh, hardware.device)
        for mesh in meshes
    }
    is_interrupted = False
    for number, (topology, weights) in enumerate(turns):
        mesh, deadline = topology.mesh, monotonic() + (until - monotonic()) / (len(turns) - number)
        try:
            network = (
                counted_network(step, mesh, splittable, until=until)
                if objective == "bytes"
                else timed_network(step, topology, hardware.device, splittable, weights, until)
            )
            for name, rules in fixed.items():
                fix(network, name, without_unit_axes(rules, mesh))
            best = _on(network, mesh, hardware, deadline, progress)
        except Infeasible:
            bounds[mesh] = inf
        except (NotFound, TimeoutError):
            continue
        except KeyboardInterrupt:
            is_interrupted = True
            break
        else:
            at_once = topology.at_once if objective == "overlap" else 0
            bounds[mesh] = max(bounds[mesh], best.lower_bound / (1 + weights.communication * at_once))
            found.append((best, mesh))
            if best.is_interrupted:
                is_interrupted = True
                break
    return _Answer(found, min(bounds.values()), is_interrupted)


def _on(
    network: ChoiceNetwork, mesh: Mesh, hardware: Hardware, deadline: float, progress: Progress
) -> EquationLayouts:
    unit = unit_of(network)

    def tell(doing: str, cost: float | None, bound: float | None) -> None:
        seconds = [None if each is None else each / unit for each in (cost, bound)]
        progress(f"mesh {'x'.join(str(size) for _, size in mesh.axes)}: {doing}", *seconds)

    return best_layouts(network, hardware.device.memory, deadline, tell)


def _best(
    answers: Sequence[_Answer],
    objective: Objective,
    hardware: Hardware,
    pricing: Pricing,
    known: Iterable[tuple[Mesh, Layout]],
    unsplit: tuple[Mesh, Layout] | None,
) -> Found:
    """Return the best solution that fits, or a known layout that takes less time when both are compiled.

    Without overlap, the solver's cost picks the best solution of an answer. The result has the solver's cost if the compiled
    program agrees, and the bound of the last answer. unsplit: a layout that counts as known if the time was up before any
    solution.
    """
    bound = answers[-1].bound
    tried = PricedLayouts(pricing, objective, hardware.device.memory)
    tried.is_interrupted = any(each.is_interrupted for each in answers)
    costs: dict[tuple[Mesh, Layout], float] = {}
    for best, mesh in (each for answer in answers for each in _promising(answer, objective)):
        tried.offer(mesh, best.layout)
        costs.setdefault((mesh, best.layout), best.cost)
    others = [*known] if tried.best or unsplit is None or bound == inf else [*known, unsplit]
    for mesh, layout in others:
        tried.offer(mesh, layout)
    if tried.best is None:
        room = f"a device has {bytes_text(int(hardware.device.memory))}"
        if bound == inf:
            raise NothingFits(f"no tiling's memory suffices: {room}")
        raise NothingFits(
            f"no tiling was found whose memory suffices: {room}; a larger --budget may find one"
        )
    value, cost = tried.limit, costs.get(tried.best)
    agrees = (
        objective == "time" and cost is not None and isclose(value, cost, rel_tol=SMALL, abs_tol=ROUNDING)
    )
    shown = cost if cost is not None and (agrees or objective == "bytes") else value
    is_refuted = objective != "bytes" and value < (1 - SMALL) * bound - ROUNDING
    found = tried.found(min(bound, shown))
    return attrs.evolve(found, objective=shown, refuted=found.layout if is_refuted else None)


def _promising(answer: _Answer, objective: Objective) -> Sequence[tuple[EquationLayouts, Mesh]]:
    """Return the solutions that are worth compiling."""
    if objective == "overlap":
        return answer.found
    return sorted(answer.found, key=lambda each: each[0].cost)[:1]


def exported(
    step: Function, splittable: Collection[str], mesh: Mesh, hardware: Hardware
) -> AssignmentProblem:
    """Return the solver's problem for one mesh."""
    network = timed_network(step, Topology.of(mesh, hardware), hardware.device, splittable)
    return to_problem(network, unit_of(network), hardware.device.memory, step.name)
