"""The search for a layout of each equation: SoyBean's tilings, on every mesh that is allowed or on one.

The program goes to the solver as a network of choices (`choice_network.py`). The layout that comes out has no rules but those
that name one equation, argument or loop's value each.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from functools import cache, cached_property, partial
from math import inf, isclose
from time import monotonic

import attrs
import numpy as np

from mtfc.compiler.activity import PROGRESS, progress_to
from mtfc.compiler.analysis.equation_names import layout_target_names
from mtfc.compiler.cost.device_models import cheapest, inside_kernels, regimes
from mtfc.compiler.cost.effects.memory import memory_of
from mtfc.compiler.cost.effects.roofline import EquationTimes
from mtfc.compiler.cost.hardware import Device, Hardware, Rate
from mtfc.compiler.cost.sizes import Numbers, whole
from mtfc.compiler.cost.tables.collective_tables import Conversions, seconds_on
from mtfc.compiler.cost.topology import Topology
from mtfc.compiler.ir.core import Function, Value
from mtfc.compiler.ir.types import Layout, Mesh, Rules
from mtfc.compiler.passes.partition.layout_rules import without_unit_axes
from mtfc.compiler.search.found import (
    Found,
    NothingFits,
    Objective,
    Plan,
    PricedLayouts,
    Pricing,
    memory_text,
)
from mtfc.compiler.search.global_layouts.step_facts import StepFacts
from mtfc.compiler.search.per_equation.choice_network import (
    ChoiceNetwork,
    layout_of,
    layout_of_choices,
    to_problem,
    unit_of,
)
from mtfc.compiler.search.per_equation.network_builder import NetworkBuilder
from mtfc.compiler.search.per_equation.sent_bytes import counted_network
from mtfc.compiler.search.solver.assignment_problem import AssignmentProblem, Infeasible, NotFound
from mtfc.compiler.search.solver.solve import Solution, solve

RELAXED = 0.6
"""The part of the time for the problem without memory."""


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


def best_layouts(network: ChoiceNetwork, memory: float | None, deadline: float) -> Found:
    """Return the best layouts that are found before `deadline`, a time of `time.monotonic`, and need at most `memory` bytes.

    The cost and the bound are in the unit of the network: seconds, or bytes sent. Raises `Infeasible` if it is proven that there
    are none, and `NotFound` if none were found.
    """
    unit = unit_of(network)
    found = solve_with_memory(to_problem(network, unit, memory, network.function.name), deadline)
    layout = layout_of_choices(network, found.choices, "tiling")
    costs = found.cost / unit, found.lower_bound / unit
    return Found(network.mesh, layout, *costs, 1, found.is_interrupted, found.lower_bound < found.cost)


def solve_with_memory(problem: AssignmentProblem, deadline: float) -> Solution:
    """Solve a problem, first without its limit on memory.

    The problem without the limit is much easier, and its bound also holds with the limit. If the solution fits, it is the best
    with memory, too.
    """
    if problem.limit is None:
        return solve(problem, deadline)
    started = monotonic()
    relaxed = attrs.evolve(problem, limit=None)
    try:
        found = solve(relaxed, started + RELAXED * (deadline - started))
    except NotFound:
        return solve(problem, deadline)
    if problem.is_feasible(found.choices):
        return found
    if found.is_interrupted:
        raise KeyboardInterrupt
    fitting = solve(problem, deadline)
    bound = max(found.lower_bound, fitting.lower_bound)
    return attrs.evolve(fitting, lower_bound=bound, seconds=monotonic() - started)


# All meshes

AXES = 2
"""The most axes of a mesh where there is a choice: with three axes the network is ten times as large."""


WEIGHTS: Mapping[Objective, tuple[Weights, ...]] = {
    "serial": (Weights(),),
    "bytes": (Weights(),),
    "time": (Weights(), Weights(gradients=0.0), Weights(communication=0.02)),
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
    """The solver's answer for a machine: a solution for each mesh, and a bound for all meshes. found: the solutions."""

    found: Sequence[Found]
    bound: float
    is_interrupted: bool
    is_late: bool


@attrs.frozen(slots=False)
class EquationSpace:
    """The layouts of the equations of `step`, an undistributed function, on some meshes of a machine.

    splittable: dimensions that a layout can name. fixed: layouts that equations must have, by name.
    """

    step: Function
    splittable: Collection[str]
    meshes: Sequence[Mesh]
    hardware: Hardware
    objective: Objective = "time"
    fixed: Mapping[str, Rules] = attrs.field(factory=dict)

    def best(
        self, pricing: Pricing, until: float, known: Collection[Plan] = (), best_global: Plan | None = None
    ) -> Found:
        """Return the layouts under which the step takes least time within the device's memory.

        until: the end, a time of `time.monotonic`; each mesh gets an equal part of the time that is left. known: layouts that are
        returned if they take less time when compiled. best_global: a layout that is known, too, and whose mesh is searched
        whatever its number of axes. Raises `NothingFits`. `KeyboardInterrupt` ends the search with the best so far; without any,
        it is raised.

        The compiled program may need more memory than the solver says. Then the solver is given less. The program may also take
        less time than the bound, as small collectives travel together. Then the solver is asked for a machine where that gains
        nothing.

        With the objective `bytes`, devices repeat no work, and each use of a value counts by itself (see `sent_bytes.py`). Known
        layouts may repeat work, so there are none. The first mesh of the most axes is enough: their order does not change the
        bytes, and its tilings contain those of meshes in which neighbouring axes are one.
        """
        in_bytes, hardware = self.objective == "bytes", self.hardware
        finest = max(self.meshes, key=lambda mesh: len(mesh.axes))
        meshes = [finest] if in_bytes else of_few_axes(self.meshes)
        if best_global is not None:
            known = (*known, best_global)
            meshes = [*meshes, *(mesh for mesh in [best_global[0]] if mesh not in meshes)]
        ask, pricing = partial(self._ask, meshes, until), cache(pricing)
        answers = [ask(hardware)]
        if answers[0].is_interrupted and not answers[0].found and not known:
            raise KeyboardInterrupt
        smaller = hardware
        for _ in range(TIGHTENED):
            needed = [pricing(each.mesh, each.layout).tiled for each in self._promising(answers[-1])]
            excess = max(0.0, min(needed, default=0) - hardware.device.memory)
            if not excess or answers[-1].is_interrupted or monotonic() > until:
                break
            memory = max(smaller.device.memory - excess, 0.0)
            smaller = attrs.evolve(smaller, device=attrs.evolve(smaller.device, memory=memory))
            answers.append(attrs.evolve(ask(smaller), bound=answers[0].bound))
        unsplit = None if self.fixed or in_bytes else (meshes[0], Layout("none"))
        best = self._best(answers, pricing, known, unsplit)
        if in_bytes:
            return best
        may_be_small = any(_may_be_small(self.step, mesh, hardware.device) for mesh in meshes)
        if (best.refuted or may_be_small) and not best.is_interrupted:
            answers.append(ask(_optimistic(hardware)))
            best = self._best(answers, pricing, known, unsplit)
        if best.refuted and best.is_interrupted:
            return attrs.evolve(best, refuted=None, lower_bound=0.0)
        return best

    @cached_property
    def _facts(self) -> StepFacts:
        return StepFacts.of(self.step, self.hardware.device)

    def _ask(self, meshes: Sequence[Mesh], until: float, hardware: Hardware) -> _Answer:
        """Ask the solver for the best layouts on each mesh of a machine."""
        in_bytes, weights = self.objective == "bytes", WEIGHTS[self.objective]
        turns = [(Topology.of(mesh, hardware), each) for mesh in meshes for each in weights]
        found: list[Found] = []
        bounds = {mesh: 0.0 if in_bytes else self._facts.least_seconds(mesh.devices) for mesh in meshes}
        is_interrupted = is_late = False
        for number, (topology, each) in enumerate(turns):
            mesh, deadline = topology.mesh, monotonic() + (until - monotonic()) / (len(turns) - number)
            try:
                network = self._network(topology, each, hardware, until)
                best = _solved(network, hardware, deadline)
            except Infeasible:
                bounds[mesh] = inf
                continue
            except (NotFound, TimeoutError):
                is_late = True
                continue
            except KeyboardInterrupt:
                is_interrupted = True
                break
            is_late |= best.is_late
            at_once = topology.at_once if self.objective == "time" else 0
            bounds[mesh] = max(bounds[mesh], best.lower_bound / (1 + each.communication * at_once))
            found.append(best)
            is_interrupted = best.is_interrupted
            if is_interrupted:
                break
        return _Answer(found, min(bounds.values()), is_interrupted, is_late)

    def _network(
        self, topology: Topology, weights: Weights, hardware: Hardware, until: float
    ) -> ChoiceNetwork:
        """Return the choices on a mesh, with the fixed layouts."""
        if self.objective == "bytes":
            network = counted_network(self.step, topology.mesh, self.splittable, until=until)
        else:
            network = timed_network(self.step, topology, hardware.device, self.splittable, weights, until)
        for name, rules in self.fixed.items():
            fix(network, name, without_unit_axes(rules, topology.mesh))
        return network

    def _best(
        self, answers: Sequence[_Answer], pricing: Pricing, known: Iterable[Plan], unsplit: Plan | None
    ) -> Found:
        """Return the best solution that fits, or a known layout that takes less time when both are compiled.

        Without overlap, the solver's cost picks the best solution of an answer. The result has the solver's cost if the compiled
        program agrees, and the bound of the last answer. unsplit: a layout that counts as known if the time was up before any
        solution.
        """
        bound, in_bytes, room = answers[-1].bound, self.objective == "bytes", self.hardware.device.memory
        tried = PricedLayouts(pricing, self.objective, room)
        tried.is_interrupted = any(each.is_interrupted for each in answers)
        tried.is_late = any(each.is_late for each in answers)
        costs: dict[Plan, float] = {}
        for best in (each for answer in answers for each in self._promising(answer)):
            tried.offer(best.mesh, best.layout)
            costs.setdefault((best.mesh, best.layout), best.objective)
        known_plans = [*known] if tried.best or unsplit is None or bound == inf else [*known, unsplit]
        for mesh, layout in known_plans:
            tried.offer(mesh, layout)
        if tried.best is None:
            has = f"memory suffices: {memory_text(room, None)}"
            late_reason = f"no tiling was found whose {has}; a larger --budget may find one"
            raise NothingFits(f"no tiling's {has}" if bound == inf else late_reason)
        value, cost = tried.limit, costs.get(tried.best)
        shown = value
        if cost is not None and (
            in_bytes or (self.objective == "serial" and isclose(value, cost, rel_tol=SMALL, abs_tol=ROUNDING))
        ):
            shown = cost
        result = tried.found(min(bound, shown))
        is_refuted = not in_bytes and value < (1 - SMALL) * bound - ROUNDING
        return attrs.evolve(result, objective=shown, refuted=result.layout if is_refuted else None)

    def _promising(self, answer: _Answer) -> Sequence[Found]:
        """Return the solutions that are worth compiling."""
        if self.objective == "time":
            return answer.found
        return sorted(answer.found, key=lambda each: each.objective)[:1]


def of_few_axes(meshes: Sequence[Mesh]) -> list[Mesh]:
    """Return the meshes with at most `AXES` axes, or else the first mesh."""
    return [mesh for mesh in meshes if len(mesh.axes) <= AXES] or [meshes[0]]


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


def _solved(network: ChoiceNetwork, hardware: Hardware, deadline: float) -> Found:
    """Return the best layouts of a network, and report the progress in seconds under the mesh's name."""
    unit, outer = unit_of(network), PROGRESS.get()

    def tell(doing: str, cost: float | None, bound: float | None) -> None:
        seconds = [None if each is None else each / unit for each in (cost, bound)]
        outer(f"mesh {'x'.join(str(size) for _, size in network.mesh.axes)}: {doing}", *seconds)

    with progress_to(tell):
        return best_layouts(network, hardware.device.memory, deadline)


def exported(
    step: Function, splittable: Collection[str], mesh: Mesh, hardware: Hardware
) -> AssignmentProblem:
    """Return the solver's problem for one mesh."""
    network = timed_network(step, Topology.of(mesh, hardware), hardware.device, splittable)
    return to_problem(network, unit_of(network), hardware.device.memory, step.name)
