"""A program as a network of choices: what the solver is asked about tilings. `network_builder.py` makes it.

Nodes are equations, with their strategies; *ports*, the values that enter a function or a loop, or leave a loop stacked, with
their placements; and *versions*: a value that several equations use may be brought to another placement once, for all of them.
An edge says what it costs to bring a value from where one node leaves it to where another needs it; in a loop it counts once for
each iteration. So a layer that is repeated is one part of the network, however often it runs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import attrs

from mtfc.compiler.ir.core import Argument, Equation, Function, Output, Value
from mtfc.compiler.ir.types import TensorType
from mtfc.compiler.search.per_equation.conversions import Numbers
from mtfc.compiler.search.per_equation.equation_strategies import Strategy

Owner = Equation | Argument | Output | Value
"""Whose choice it is: an equation's, a port's, or for a version the value's."""


@attrs.define(eq=False)
class Node:
    """A choice: strategies of an equation, placements of a port, or of a version, whose owner is the value.

    costs: of each option, all executions together. held: bytes of each option while [birth, death). shared: so many options, the
    first ones, are no copies: the value stays as it was made.
    """

    owner: Owner
    options: Sequence[Strategy | TensorType]
    costs: Numbers
    held: Numbers
    birth: int
    death: int
    shared: int = 0


@attrs.frozen(eq=False)
class Edge:
    """Costs for each pair of options, infinite where they do not go together. [options of `first`, options of `second`]"""

    first: int
    second: int
    costs: Numbers


@attrs.frozen(eq=False)
class Network:
    """The choices that a function leaves.

    free: equations that make something of nothing, with a node that needs it and how each of its options does; it follows that.
    """

    function: Function
    nodes: Sequence[Node]
    edges: Sequence[Edge]
    free: Mapping[Equation, tuple[int, Sequence[TensorType]]]
