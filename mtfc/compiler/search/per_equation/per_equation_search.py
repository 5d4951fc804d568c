"""The search for tilings as the command asks for it: on every mesh that it may be, or the one that is given."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from functools import cache, partial
from math import inf, isclose
from time import monotonic

import attrs

from mtfc.compiler.cost.hardware import Device, Hardware, Rate
from mtfc.compiler.cost.memory import memory_of
from mtfc.compiler.cost.sizes import Numbers, whole
from mtfc.compiler.cost.topology import Topology
from mtfc.compiler.ir.core import Function
from mtfc.compiler.ir.printer import bytes_text
from mtfc.compiler.ir.types import Layout, Mesh, Rules
from mtfc.compiler.passes.partition.layout_rules import without_unit_axes
from mtfc.compiler.search.found import Found, NothingFits, Objective, Pricing, Progress, silent, value_of
from mtfc.compiler.search.per_equation.best_layouts import Tiling, Weights, best_tiling, fix, timed_network
from mtfc.compiler.search.per_equation.choice_network import Network
from mtfc.compiler.search.per_equation.equation_time import least_seconds
from mtfc.compiler.search.per_equation.solver_problem import to_problem, unit_of
from mtfc.compiler.search.solver.assignment_problem import AssignmentProblem, Infeasible, NotFound

AXES = 2
"""Axes of a mesh at most, where there is a choice: with three the network is ten times as large."""


WEIGHTS: Mapping[Objective, tuple[Weights, ...]] = {
    "time": (Weights(),),
    "overlap": (Weights(), Weights(gradients=0.0), Weights(communication=0.02)),
}
"""How communication counts in what the solver is asked. Where it overlaps no weights are right, and what they all lead to is
compared.
"""

SMALL = 0.005
"""The share in which what the solver says and what is compiled may differ and be taken for the same."""
TIGHTENED = 3
"""How often the solver is given less memory, where what it finds needs more than it thinks."""
ROUNDING = 1e-10
"""Seconds in which they may differ in any case: the solver counts in picoseconds."""


@attrs.frozen
class _Answer:
    """What the solver says of a machine: tilings, a bound for all meshes, and whether it was interrupted."""

    tilings: Sequence[tuple[Tiling, Mesh]]
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
) -> Found:
    """The tiling of `step`, an undistributed function, that takes least time within the device's memory, before `until`.

    `splittable` are the dimensions that a layout can name. Each mesh gets an equal part of the time that is left. A `known`
    layout is given back if it takes less time, compiled, than what was found does. `fixed` are layouts that equations, by name,
    must have. Raises `NothingFits`. `KeyboardInterrupt` ends it with the best so far, and is raised where there is none.

    What is compiled may need more memory than the solver thinks, which is then given less. Where it takes less time than the
    bound, as small collectives travel together, the solver is asked again for a machine on which that would gain nothing.
    """
    tried = of_few_axes(meshes)
    ask = partial(_ask, step, splittable, tried, until, objective, progress, fixed)
    pricing = cache(pricing)
    answers = [ask(hardware)]
    if answers[0].is_interrupted and not answers[0].tilings and not known:
        raise KeyboardInterrupt
    smaller = hardware
    for _ in range(TIGHTENED):
        excess = _excess(answers[-1], objective, hardware, pricing)
        if not excess or answers[-1].is_interrupted or monotonic() > until:
            break
        smaller = _with_memory(smaller, smaller.device.memory - excess)
        answers.append(attrs.evolve(ask(smaller), bound=answers[0].bound))
    unsplit = None if fixed else (tried[0], Layout("none"))
    best = _best(answers, objective, hardware, pricing, known, unsplit)
    may_fit = any(_may_be_resident(step, mesh, hardware.device) for mesh in tried)
    if (best.refuted or may_fit) and not best.is_interrupted:
        answers.append(ask(_unhurried(_weightless(hardware) if hardware.device.vmem else hardware)))
        best = _best(answers, objective, hardware, pricing, known, unsplit)
    if best.refuted and best.is_interrupted:
        return attrs.evolve(best, refuted=None, lower_bound=0.0)
    return best


def of_few_axes(meshes: Sequence[Mesh]) -> list[Mesh]:
    """Return the meshes with at most `AXES` axes, or else the first mesh."""
    return [mesh for mesh in meshes if len(mesh.axes) <= AXES] or [meshes[0]]


def _excess(answer: _Answer, objective: Objective, hardware: Hardware, pricing: Pricing) -> float:
    """How many bytes more than there are the tilings need at least when they are compiled; 0 where one fits, or there is none."""
    held = [pricing(mesh, tiling.layout).tiled for tiling, mesh in _promising(answer, objective)]
    return max(0.0, min(held, default=0) - hardware.device.memory)


def _with_memory(hardware: Hardware, memory: float) -> Hardware:
    return attrs.evolve(hardware, device=attrs.evolve(hardware.device, memory=max(memory, 0.0)))


def _may_be_resident(step: Function, mesh: Mesh, device: Device) -> bool:
    """Whether the program may lie in the processor's own memory, where kernels take less than the solver knows
    (`tpu/scratchpad.py`).
    """
    vmem = device.vmem
    if vmem is None or any(eqn.regions for eqn in step.body):
        return False
    return whole(memory_of(step, mesh, Numbers(mesh)).total) / mesh.devices <= vmem.bytes


def _weightless(hardware: Hardware) -> Hardware:
    return attrs.evolve(hardware, device=hardware.device.weightless)


def _unhurried(hardware: Hardware) -> Hardware:
    """The machine with links that are as fast for what is small as for what is large: no collective gains by joining others."""
    links = (
        attrs.evolve(
            link,
            latency=0.0,
            bandwidth=Rate.constant(link.bandwidth.peak),
            collectives={kind: Rate.constant(rate.peak) for kind, rate in link.collectives.items()},
        )
        for link in hardware.links
    )
    return attrs.evolve(hardware, links=tuple(links))


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
    found: list[tuple[Tiling, Mesh]] = []
    bounds = {mesh: least_seconds(step, mesh, hardware.device) for mesh in meshes}
    is_interrupted = False
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
            is_interrupted = True
            break
        else:
            at_once = topology.at_once if objective == "overlap" else 0
            bounds[mesh] = max(bounds[mesh], tiling.lower_bound / (1 + weights.communication * at_once))
            found.append((tiling, mesh))
            if tiling.is_interrupted:
                is_interrupted = True
                break
    return _Answer(found, min(bounds.values()), is_interrupted)


def _on(network: Network, mesh: Mesh, hardware: Hardware, deadline: float, progress: Progress) -> Tiling:
    unit = unit_of(network)

    def tell(doing: str, cost: int | None, bound: int | None) -> None:
        seconds = [None if each is None else each / unit for each in (cost, bound)]
        progress(f"mesh {'x'.join(str(size) for _, size in mesh.axes)}: {doing}", *seconds)

    return best_tiling(network, hardware.device.memory, deadline, tell)


def _best(
    answers: Sequence[_Answer],
    objective: Objective,
    hardware: Hardware,
    pricing: Pricing,
    known: Iterable[tuple[Mesh, Layout]],
    unsplit: tuple[Mesh, Layout] | None,
) -> Found:
    """The best tiling that fits, or the known layout that takes less time when both are compiled. Without overlap the solver's
    cost says which tiling of an answer is best, and what it takes, if that is what it takes when it is compiled. The last answer
    has the bound. `unsplit` counts as known where the time was up before there was any tiling.
    """
    bound, is_interrupted = answers[-1].bound, any(each.is_interrupted for each in answers)
    evaluated, least, found = 0, inf, None
    for tiling, mesh in (each for answer in answers for each in _promising(answer, objective)):
        price = pricing(mesh, tiling.layout)
        value = value_of(price, objective)
        evaluated += 1
        if price.tiled <= hardware.device.memory and value < least:
            agrees = objective == "time" and isclose(value, tiling.cost, rel_tol=SMALL, abs_tol=ROUNDING)
            cost, least = tiling.cost if agrees else value, value
            found = Found(mesh, attrs.evolve(tiling.layout, name="found"), cost, min(bound, cost), 1)
    others = [*known] if found or unsplit is None or bound == inf else [*known, unsplit]
    for mesh, layout in others:
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
    refuted = found.layout if least < (1 - SMALL) * bound - ROUNDING else None
    return attrs.evolve(found, evaluated=evaluated, is_interrupted=is_interrupted, refuted=refuted)


def _promising(answer: _Answer, objective: Objective) -> Sequence[tuple[Tiling, Mesh]]:
    """The tilings that are worth compiling."""
    if objective == "overlap":
        return answer.tilings
    return sorted(answer.tilings, key=lambda each: each[0].cost)[:1]


def exported(
    step: Function, splittable: Collection[str], mesh: Mesh, hardware: Hardware
) -> AssignmentProblem:
    """What the solver is asked about one mesh."""
    network = timed_network(step, Topology.of(mesh, hardware), hardware.device, splittable)
    return to_problem(network, unit_of(network), hardware.device.memory, step.name)
