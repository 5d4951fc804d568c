"""The best tiling of a program: a layout for each equation, with a proof of how good it is.

The program goes to the solver as a network of choices. First memory is left aside: that is much easier, and what is found is
the best with memory, too, if it fits. The layout that comes out has no rules but those that name one equation, argument or
loop's value each.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from math import inf
from time import monotonic

import attrs
import numpy as np

from mtfc.compiler.analysis.equation_names import Placeable, placeable_names
from mtfc.compiler.cost.hardware import Device
from mtfc.compiler.cost.topology import Topology
from mtfc.compiler.ir.core import Function, Value
from mtfc.compiler.ir.printer import shown_layout
from mtfc.compiler.ir.types import Axes, Layout, Rules, TensorType
from mtfc.compiler.search.found import NothingFits
from mtfc.compiler.search.per_equation.choice_network import Network
from mtfc.compiler.search.per_equation.conversions import Conversions, seconds_on
from mtfc.compiler.search.per_equation.equation_strategies import Strategy
from mtfc.compiler.search.per_equation.equation_time import Roofline
from mtfc.compiler.search.per_equation.network_builder import NetworkBuilder
from mtfc.compiler.search.per_equation.solver_problem import to_problem, unit_of
from mtfc.compiler.search.solver.assignment_problem import AssignmentProblem, ChosenStrategies, NotFound
from mtfc.compiler.search.solver.solve import Progress, Solution, silent, solve

RELAXED = 0.6
"""The part of the time that may go without memory."""


@attrs.frozen(eq=False)
class Tiling:
    """A layout, what it costs and what every tiling costs at least, in the network's measure: seconds, or bytes sent.

    memory: bytes that the solver thinks one processor holds at most. is_interrupted: whether
    `KeyboardInterrupt` ended the search.
    """

    layout: Layout
    cost: float
    lower_bound: float
    memory: int
    is_interrupted: bool = False

    @property
    def gap(self) -> float:
        return (self.cost - self.lower_bound) / self.cost if self.cost else 0.0


@attrs.frozen
class Weights:
    """How much seconds of communication count, beside those of computation; and how much of that where gradients go to the
    update, which the rest of the backward pass can hide.
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
) -> Network:
    """The choices that a global function leaves on a mesh, priced in seconds of one processor, nothing overlapping.

    `splittable` are the dimensions that a layout can name: those that the program has before it is differentiated.
    Raises `NotFound` where that is not done `until`, a time of `time.monotonic`.
    """
    conversions = Conversions(topology.mesh, seconds_on(topology, weights.communication), until)
    work = Roofline(function, topology.mesh, device)
    builder = NetworkBuilder(
        topology.mesh,
        conversions,
        splittable,
        work.seconds,
        work.copying,
        gradients=weights.gradients,
        until=until,
    )
    return builder.network(function)


def fix(network: Network, name: str, rules: Rules) -> None:
    """Leave to what has this name no choice but the layout that the rules spell out. Raises `NothingFits` where it has none."""
    names = placeable_names(network.function)
    nodes = [
        node for node in network.nodes if not isinstance(node.owner, Value) and names.get(node.owner) == name
    ]
    wanted = {dim: axes for dim, axes in rules.axes if axes}
    for node in nodes:
        fits = [layout_of(option) == wanted for option in node.options]
        node.costs = np.where(fits, node.costs, inf)
    if not any(np.isfinite(node.costs).any() for node in nodes):
        raise NothingFits(f"no tiling has the layout that is asked for of `{name}`")


def layout_of(option: Strategy | TensorType) -> dict[str, Axes]:
    """How dimensions are split by a strategy, or by a placement."""
    return dict(option.layout if isinstance(option, Strategy) else shown_layout(option))


def best_tiling(
    network: Network, memory: float | None, deadline: float, progress: Progress = silent
) -> Tiling:
    """The best tiling that is found before `deadline`, a time of `time.monotonic`, and needs no more than `memory` bytes.

    Raises `Infeasible` where it is proven that there is none, `NotFound` where none was found.
    """
    unit = unit_of(network)
    problem = to_problem(network, unit, memory, network.function.name)
    found = solve_with_memory(problem, deadline, progress)
    layout = tiling(network, found.choices, "tiling")
    peak = problem.peak(found.choices)
    return Tiling(layout, found.cost / unit, found.lower_bound / unit, peak, found.is_interrupted)


def solve_with_memory(problem: AssignmentProblem, deadline: float, progress: Progress = silent) -> Solution:
    """`solve`, first without the limit on memory: a bound for that is one with it, and often what is found fits."""
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


def tiling(network: Network, choices: ChosenStrategies, name: str) -> Layout:
    """The layout that the choices mean."""
    names = placeable_names(network.function)
    rules = {
        names[thing]: Rules(tuple(layout)) for thing, layout in _placed(network, choices) if thing in names
    }
    return Layout(name, values=tuple((name, rules[name]) for name in names.values() if name in rules))


def _placed(
    network: Network, choices: ChosenStrategies
) -> Iterator[tuple[Placeable, Iterable[tuple[str, Axes]]]]:
    for node, choice in zip(network.nodes, choices, strict=True):
        option = node.options[choice]
        if not isinstance(node.owner, Value):
            yield node.owner, layout_of(option).items()
    for eqn, (number, types) in network.free.items():
        yield eqn, shown_layout(types[choices[number]]).items()
