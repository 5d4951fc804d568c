"""Strategies: a configuration for each operator, and what follows for who has and who needs which part of each tensor.

Parts are numbered in row-major order of the operator's dimensions. A value that lacks a split dimension is held several times:
by all parts that differ along it alone. They have equal copies, or, of a pending value, terms that are added up among them
first. Whoever needs it takes it from its own device if it is there, else from one of the holders.


The space of strategies: which configurations each operator can have (FlexFlow, section 4).

The degrees of a configuration divide the sizes of its dimensions, and their product is at most the number of devices. Parts are
put on devices that follow each other in one of few orders: by number, or by number within groups that a link connects, so that
neighbours are far apart. They begin at a multiple of how many there are, and any of the split dimensions may change fastest
along them. FlexFlow's own search, too, has consecutive devices only: 10 ** 11 strategies for a network of six layers on four
devices (section 8.4) are some 25 configurations each.


Strategies that are known: where a search starts, and what its results are compared with (FlexFlow, sections 6.2 and 8.2)."""

from __future__ import annotations

from bisect import bisect
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from functools import cache, cached_property, lru_cache
from itertools import accumulate, permutations
from math import prod
from random import Random

import attrs
import numpy as np

from mtfc.compiler.cost.hardware import Hardware
from mtfc.compiler.ir.ops import has_trait
from mtfc.compiler.ir.types import Dim
from mtfc.compiler.search.placement.operators.cotangent_flow import CotangentFlow
from mtfc.compiler.search.placement.operators.operator_graph import Operator, OperatorGraph, OperatorStep
from mtfc.compiler.search.placement.operators.operator_parts import (
    OperatorParts,
    StepNeeds,
    Unsplittable,
)


@attrs.frozen(cache_hash=True)
class Configuration:
    """How one operator is parallelized (FlexFlow, section 4): a degree for each dimension in which it is split, and the device of
    each part.
    """

    degrees: tuple[tuple[str, int], ...]
    devices: tuple[int, ...]

    @cached_property
    def by_dim(self) -> dict[str, int]:
        return dict(self.degrees)


Strategy = tuple[Configuration, ...]
"""A configuration for each operator of a graph, in its order."""


def ordered_degrees(operator: Operator, degrees: Mapping[str, int]) -> tuple[tuple[str, int], ...]:
    """Degrees in the order of the operator's dimensions, without those that are 1."""
    return tuple((d.name, degrees[d.name]) for d in operator.dims if degrees.get(d.name, 1) > 1)


Degrees = tuple[tuple[str, int], ...]
AxisOrders = tuple[tuple[int, ...], ...]
DeviceLists = tuple[tuple[int, ...], ...]

SingleSplits = Mapping[tuple[str, int], Mapping[OperatorStep, StepNeeds]]
"""A dimension and a degree that it may have -> what parts need where an operator is split in it alone."""


@attrs.frozen(eq=False)
class OperatorConfigurations:
    """The configurations of an operator and those alike: for each choice of degrees, on each of some lists of devices in each
    order of dimensions; or `only` one.
    """

    operator: Operator
    alone: SingleSplits
    degrees: tuple[Degrees, ...]
    lists: Mapping[int, DeviceLists]
    only: Configuration | None = None

    def holding(self, asked: Configuration) -> OperatorConfigurations:
        """Those with the degrees of a configuration, and with its devices, if it has some."""
        return attrs.evolve(self, degrees=(asked.degrees,), only=asked if asked.devices else None)

    @cached_property
    def count(self) -> int:
        return sum(self._weights) if self.only is None else 1

    @cached_property
    def legal(self) -> frozenset[Degrees]:
        return frozenset(self.degrees)

    @cached_property
    def _options(self) -> list[tuple[Degrees, AxisOrders, DeviceLists]]:
        """For each choice of degrees the orders and the lists that it may have."""
        return [(each, _orders(len(each)), self.lists[_size(each)]) for each in self.degrees]

    @cached_property
    def _weights(self) -> list[int]:
        return [len(orders) * len(lists) for _, orders, lists in self._options]

    @cached_property
    def _bounds(self) -> list[int]:
        return list(accumulate(self._weights))

    def __iter__(self) -> Iterator[Configuration]:
        if self.only is not None:
            yield self.only
            return
        for degrees, orders, lists in self._options:
            for order in orders:
                for devices in lists:
                    yield _configuration(degrees, order, devices)

    def draw(self, random: Random) -> Configuration:
        """One of them, all with the same probability (section 6.2)."""
        if self.only is not None:
            return self.only
        at = bisect(self._bounds, random.random() * self._bounds[-1], hi=len(self._bounds) - 1)
        degrees, orders, lists = self._options[at]
        return _configuration(degrees, random.choice(orders), random.choice(lists))


def _size(degrees: Degrees) -> int:
    return prod(degree for _, degree in degrees)


@cache
def _orders(dims: int) -> AxisOrders:
    """The orders in which dimensions may change along the devices, the last one fastest."""
    return tuple(permutations(range(dims)))


def _configuration(degrees: Degrees, order: tuple[int, ...], devices: tuple[int, ...]) -> Configuration:
    if len(order) < 2:
        return Configuration(degrees, devices)
    places = _places(tuple(degree for _, degree in degrees), order)
    return Configuration(degrees, tuple([devices[i] for i in places]))


@lru_cache(1024)
def _places(sizes: tuple[int, ...], order: tuple[int, ...]) -> tuple[int, ...]:
    """Which of the devices, in an order of dimensions, each part is on."""
    places = np.arange(prod(sizes)).reshape([sizes[i] for i in order]).transpose(np.argsort(order))
    return tuple(places.ravel().tolist())


def configurations(flow: CotangentFlow, hardware: Hardware, devices: int) -> list[OperatorConfigurations]:
    """The choices of each operator; alike operators share theirs."""
    lists = device_lists(hardware, devices)
    known: dict[object, OperatorConfigurations] = {}
    found = []
    for operator in flow.graph.operators:
        key = (operator.dims, *(flow.signatures[step] for step in operator.steps))
        if key not in known:
            alone = single_splits(operator, devices)
            known[key] = OperatorConfigurations(
                operator, alone, tuple(legal_degrees(operator, alone, devices)), lists
            )
        found.append(known[key])
    return found


def single_splits(operator: Operator, devices: int) -> SingleSplits:
    """What an operator may be split in, a dimension at a time."""
    found = {}
    for dim in operator.dims:
        for degree in range(2, devices + 1):
            with suppress(Unsplittable):
                found[dim.name, degree] = OperatorParts(operator, ((dim.name, degree),)).needs
    return found


def legal_degrees(operator: Operator, alone: SingleSplits, devices: int) -> Iterator[Degrees]:
    """The degrees that an operator may have, those of undivided dimensions left out."""
    names = [dim.name for dim in operator.dims]
    single = [[1, *(degree for other, degree in alone if other == name)] for name in names]

    def extend(chosen: Degrees, room: int, rest: int) -> Iterator[Degrees]:
        if rest == len(names):
            yield chosen
            return
        for degree in single[rest]:
            if degree <= room:
                more = ((names[rest], degree),) if degree > 1 else ()
                yield from extend((*chosen, *more), room // degree, rest + 1)

    yield from extend((), devices, 0)


def device_lists(hardware: Hardware, devices: int) -> dict[int, DeviceLists]:
    """For each number of parts the lists of devices that they can be on."""
    strides, inner = [1], 1
    for link in hardware.links:
        inner *= prod(link.sizes) if link.sizes else devices
        if inner < devices and devices % inner == 0:
            strides.append(inner)
    found: dict[int, DeviceLists] = {}
    for count in range(1, devices + 1):
        lists = (
            tuple(order[start : start + count])
            for order in (_strided(stride, devices) for stride in strides)
            for start in range(0, devices - count + 1, count)
        )
        found[count] = tuple(dict.fromkeys(lists))
    return found


def _strided(stride: int, devices: int) -> list[int]:
    """All devices, each so far behind the one before it."""
    return [i * stride % devices + i * stride // devices for i in range(devices)]


def data_parallel_strategy(
    graph: OperatorGraph, choices: Sequence[OperatorConfigurations], devices: int
) -> Strategy:
    """Every operator by samples, over as many devices as these can be divided into."""
    return tuple(
        _by(_samples(graph, operator), legal, range(devices))
        for operator, legal in zip(graph.operators, choices, strict=True)
    )


def random_strategy(choices: Sequence[OperatorConfigurations], random: Random) -> Strategy:
    return tuple(each.draw(random) for each in choices)


def expert_strategy(
    graph: OperatorGraph, choices: Sequence[OperatorConfigurations], hardware: Hardware, devices: int
) -> Strategy:
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


def _by(dim: Dim | None, choices: OperatorConfigurations, devices: range) -> Configuration:
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
    of: dict[OperatorStep, int] = {}
    found = []
    for operator in graph.operators:
        own = parameters_of(graph, operator)
        inputs = [of[graph.makers[v]] for s in operator.steps for v in s.inputs if graph.makers[v] in of]
        layer = known.setdefault(own, len(known)) if own else max(inputs, default=0)
        of.update(dict.fromkeys(operator.steps, layer))
        found.append(layer)
    return found


def _layer_by_layer(
    graph: OperatorGraph, choices: Sequence[OperatorConfigurations], node: int, devices: int
) -> Strategy:
    layers = layer_numbers(graph)
    count = max(layers) + 1
    return tuple(
        _by(_samples(graph, operator), legal, range(layer * node // count, devices, node))
        for operator, legal, layer in zip(graph.operators, choices, layers, strict=True)
    )
