"""Strategies that are known: where a search starts, and what its results are compared with (FlexFlow, sections 6.2 and 8.2)."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from random import Random

from mtfc.compiler.cost.hardware import Hardware
from mtfc.compiler.ir.ops import has_trait
from mtfc.compiler.ir.types import Dim
from mtfc.compiler.search.placement.operators.operator_graph import Operator, OperatorGraph, Step
from mtfc.compiler.search.placement.operators.strategy import Configuration, Strategy
from mtfc.compiler.search.placement.operators.strategy_space import Choices


def data_parallel(graph: OperatorGraph, choices: Sequence[Choices], devices: int) -> Strategy:
    """Every operator by samples, over as many devices as these can be divided into."""
    return tuple(
        _by(_samples(graph, operator), legal, range(devices))
        for operator, legal in zip(graph.operators, choices, strict=True)
    )


def random_strategy(choices: Sequence[Choices], random: Random) -> Strategy:
    return tuple(each.draw(random) for each in choices)


def expert(graph: OperatorGraph, choices: Sequence[Choices], hardware: Hardware, devices: int) -> Strategy:
    """What experts do (section 8.2.1): of a network in which operators share parameters, as recurrent ones do, a copy on each
    node, and layer by layer on the GPUs of one; of others, dense layers by units and the rest by samples ("one weird trick").
    """
    if is_recurrent(graph):
        return _layer_by_layer(graph, choices, min(node_size(hardware), devices), devices)
    return tuple(
        _by(_units(graph, operator) or _samples(graph, operator), legal, range(devices))
        for operator, legal in zip(graph.operators, choices, strict=True)
    )


def node_size(hardware: Hardware) -> int:
    """How many devices everything but the outermost link connects."""
    size = 1
    for link in hardware.links[:-1]:
        for each in link.sizes:
            size *= each
    return size


def _by(dim: Dim | None, choices: Choices, devices: range) -> Configuration:
    """As many parts along one dimension as there are devices, or as it can be divided into."""
    if dim is None:
        return Configuration((), (devices[0],))
    legal = (((dim.name, n),) for n in range(len(devices), 1, -1))
    degrees = next((each for each in legal if each in choices.legal), ())
    return Configuration(degrees, tuple(devices[: prod(degree for _, degree in degrees)]))


def _samples(graph: OperatorGraph, operator: Operator) -> Dim | None:
    return next((dim for dim in operator.dims if dim.name in graph.samples), None)


def _units(graph: OperatorGraph, operator: Operator) -> Dim | None:
    """The units of a dense layer: an operator with parameters and one dimension besides the samples'."""
    others = [dim for dim in operator.dims if dim.name not in graph.samples]
    has_product = any(has_trait(eqn, "dot") for step in operator.steps for eqn in step.equations)
    return others[0] if len(others) == 1 and has_product and parameters_of(graph, operator) else None


def parameters_of(graph: OperatorGraph, operator: Operator) -> tuple[str, ...]:
    """Names of the parameters that an operator uses."""
    own = {value for step in operator.steps for value in step.arguments}
    return tuple(value.name for value in graph.parameters if value in own)


def is_recurrent(graph: OperatorGraph) -> bool:
    """Whether operators are steps of a loop, and so share parameters; two may for other reasons."""
    users: dict[str, int] = {}
    for operator in graph.operators:
        for name in parameters_of(graph, operator):
            users[name] = users.get(name, 0) + 1
    return max(users.values(), default=0) > 2


def layer_numbers(graph: OperatorGraph) -> list[int]:
    """For each operator the number of its layer: operators with the same parameters are one; without any, that of the last
    input.
    """
    known: dict[tuple[str, ...], int] = {}
    of: dict[Step, int] = {}
    found = []
    for operator in graph.operators:
        own = parameters_of(graph, operator)
        inputs = [of[graph.makers[v]] for s in operator.steps for v in s.inputs if graph.makers[v] in of]
        layer = known.setdefault(own, len(known)) if own else max(inputs, default=0)
        of.update(dict.fromkeys(operator.steps, layer))
        found.append(layer)
    return found


def _layer_by_layer(graph: OperatorGraph, choices: Sequence[Choices], node: int, devices: int) -> Strategy:
    layers = layer_numbers(graph)
    count = max(layers) + 1
    return tuple(
        _by(_samples(graph, operator), legal, range(layer * node // count, devices, node))
        for operator, legal, layer in zip(graph.operators, choices, layers, strict=True)
    )
