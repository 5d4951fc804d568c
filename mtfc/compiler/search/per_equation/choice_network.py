"""A program as a network of choices, and the network as a problem for the solver. `network_builder.py` makes the network.

A node is one of three: an equation with its strategies; a *port*, a value that enters a function or a loop or leaves a loop
stacked, with its placements; or a *version*. A version is a value that several equations use, which may be brought to another
placement once for all of them. An edge costs what it takes to bring a value from the placement of one node to that of another; in
a loop it counts once for each iteration. So a repeated layer is one part of the network, however often it runs.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from math import floor, log10

import attrs
import numpy as np

from mtfc.compiler.analysis.equation_names import LayoutTarget, layout_target_names
from mtfc.compiler.cost.tables.collective_tables import Numbers
from mtfc.compiler.ir.core import Argument, Equation, Function, Output, Value
from mtfc.compiler.ir.printer import shown_layout
from mtfc.compiler.ir.types import Axes, Layout, Mesh, Rules, TensorType
from mtfc.compiler.search.per_equation.equation_strategies import Strategy
from mtfc.compiler.search.solver.assignment_problem import (
    FORBIDDEN,
    AssignmentProblem,
    ChosenStrategies,
    Integers,
    Ragged,
)

Owner = Equation | Argument | Output | Value
"""The owner of a choice: an equation, the argument or output of a port, or the value of a version or port."""


@attrs.define(eq=False)
class ChoiceNode:
    """A choice: strategies of an equation, placements of a port, or of a version, whose owner is the value.

    costs: the cost of each option, for all executions together. memory: the bytes of each option during [birth, death). shared:
    the number of leading options that are not copies, because the value stays where it was made.
    """

    owner: Owner
    options: Sequence[Strategy | TensorType]
    costs: Numbers
    memory: Numbers
    birth: int
    death: int
    shared: int = 0


@attrs.frozen(eq=False)
class ChoiceEdge:
    """Costs for each pair of options, infinite for incompatible pairs. [options of `first`, options of `second`]"""

    first: int
    second: int
    costs: Numbers


@attrs.frozen(eq=False)
class ChoiceNetwork:
    """The choices of a function on a mesh. free: equations without operands. Each such equation follows a node that uses its
    result, and has the placement that the node's option needs.
    """

    function: Function
    mesh: Mesh
    nodes: Sequence[ChoiceNode]
    edges: Sequence[ChoiceEdge]
    free: Mapping[Equation, tuple[int, Sequence[TensorType]]]


FINEST = 1e12
"""The most integers per second or byte: picoseconds."""

DIGITS = 13
"""Digits of the largest cost, which leave room for sums."""


def unit_of(network: ChoiceNetwork) -> float:
    """Return the number of integers per unit of cost: a power of ten."""
    costs = [*(node.costs for node in network.nodes), *(edge.costs for edge in network.edges)]
    largest = max((float(each.max(initial=0.0, where=np.isfinite(each))) for each in costs), default=0.0)
    return min(FINEST, 10.0 ** floor(DIGITS - log10(largest))) if largest else 1.0


def to_problem(network: ChoiceNetwork, unit: float, memory: float | None, name: str) -> AssignmentProblem:
    """Return the problem with `unit` integers per unit of cost. memory: the most bytes in use at any time, if limited."""
    nodes = network.nodes
    return AssignmentProblem(
        costs=Ragged.of([_integers(node.costs, unit) for node in nodes]),
        usages=Ragged.of([node.memory.astype(np.int64) for node in nodes]),
        intervals=np.array([(node.birth, node.death) for node in nodes], np.int64).reshape(-1, 2),
        edges=np.array([(edge.first, edge.second) for edge in network.edges], np.int64).reshape(-1, 2),
        edge_costs=Ragged.of([_integers(edge.costs, unit) for edge in network.edges]),
        limit=None if memory is None else int(memory),
        name=name,
    )


def _integers(costs: Numbers, unit: float) -> Integers:
    possible = np.isfinite(costs)
    return np.where(possible, np.rint(np.where(possible, costs, 0.0) * unit), FORBIDDEN).astype(np.int64)


# Layouts


def layout_of(option: Strategy | TensorType) -> dict[str, Axes]:
    """Return the axes that split each dimension under a strategy or in a placement."""
    return dict(option.layout if isinstance(option, Strategy) else shown_layout(option))


def layout_of_choices(network: ChoiceNetwork, choices: ChosenStrategies, name: str) -> Layout:
    """Return the layout of some choices; its rules name single equations, arguments or values of loops."""
    names = layout_target_names(network.function)
    rules = {
        names[thing]: Rules(tuple(layout)) for thing, layout in _placed(network, choices) if thing in names
    }
    return Layout(name, values=tuple((name, rules[name]) for name in names.values() if name in rules))


def _placed(
    network: ChoiceNetwork, choices: ChosenStrategies
) -> Iterator[tuple[LayoutTarget, Iterable[tuple[str, Axes]]]]:
    """Yield each target of a layout with the splits that the choices give to the target."""
    for node, choice in zip(network.nodes, choices, strict=True):
        option = node.options[choice]
        if not isinstance(node.owner, Value):
            yield node.owner, layout_of(option).items()
    for eqn, (number, types) in network.free.items():
        yield eqn, shown_layout(types[choices[number]]).items()
