"""Strategies, the space of strategies (FlexFlow, section 4), and known strategies to start from (sections 6.2 and 8.2).

The degrees of a configuration divide the sizes of its dimensions, and their product is at most the number of devices. Parts are
placed on consecutive devices in one of few orders: by number, or with the stride of a group that a link connects; in a device
graph also those of one kind or link (`DeviceGraph.orders`). The first device is a multiple of the number of parts, and any of
the split dimensions may change fastest. FlexFlow's own search also uses consecutive devices only: 10 ** 11 strategies for six
layers on four devices (section 8.4) are about 25 configurations each.
"""

from __future__ import annotations

from bisect import bisect
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import cache, cached_property, lru_cache
from itertools import accumulate, permutations
from math import prod
from random import Random

import attrs
import numpy as np

from mtfc.compiler.cost.hardware import DeviceGraph, Machine
from mtfc.compiler.ir.ops import has_trait
from mtfc.compiler.ir.types import Dim, Mesh, Rules
from mtfc.placements.operators.cotangent_flow import CotangentFlow
from mtfc.placements.operators.operator_graph import Operator, OperatorGraph, OperatorStep
from mtfc.placements.operators.operator_parts import OperatorParts, StepNeeds, Unsplittable


@attrs.frozen(cache_hash=True)
class Configuration:
    """The parallelization of one operator: a degree for each split dimension, and the device of each part."""

    degrees: tuple[tuple[str, int], ...]
    devices: tuple[int, ...]


Strategy = tuple[Configuration, ...]
"""A configuration for each operator of a graph, in its order."""


def ordered_degrees(operator: Operator, degrees: Mapping[str, int]) -> tuple[tuple[str, int], ...]:
    """Return degrees in the order of the operator's dimensions, without those that are 1."""
    return tuple((d.name, degrees[d.name]) for d in operator.dims if degrees.get(d.name, 1) > 1)


KINDS = {
    "S": "samples",
    "O": "operators, which run on different devices",
    "A": "attributes, other dimensions that split no parameter",
    "P": "parameters, dimensions that split some",
}
"""The kinds of parallelism (FlexFlow, section 4)."""

Degrees = tuple[tuple[str, int], ...]
AxisOrders = tuple[tuple[int, ...], ...]
DeviceLists = tuple[tuple[int, ...], ...]

SingleSplits = Mapping[tuple[str, int], Mapping[OperatorStep, StepNeeds]]
"""Dimension and legal degree -> needs of the parts when the operator is split in this dimension only."""


@attrs.frozen(eq=False)
class OperatorConfigurations:
    """The configurations of an operator: all degrees, each on all device lists in all orders of dimensions; or `only` one."""

    operator: Operator
    alone: SingleSplits
    degrees: tuple[Degrees, ...]
    lists: Mapping[int, DeviceLists]
    only: Configuration | None = None

    def within(
        self, allowed: Collection[str], one: bool, graph: OperatorGraph, first: int = 0
    ) -> OperatorConfigurations:
        """Restrict the degrees to dimensions of some kinds, of `KINDS`, and to one dimension at a time if `one` is set.

        Without the kind "O" all operators run on the devices from `first` on.
        """
        kinds = {dim: self.kind_of(dim, graph) for each in self.degrees for dim, _ in each}
        degrees = tuple(
            each
            for each in self.degrees
            if all(kinds[dim] in allowed for dim, _ in each) and not (one and len(each) > 1)
        )
        lists = {
            n: tuple(each for each in lists if "O" in allowed or each[0] == first)
            for n, lists in self.lists.items()
        }
        possible = tuple(each for each in degrees if lists[_size(each)])
        return attrs.evolve(self, degrees=possible, lists=lists)

    def kind_of(self, dim: str, graph: OperatorGraph) -> str:
        """Return the kind of a dimension in which the operator can be split: samples, parameters or attributes (section 4)."""
        if dim in graph.samples:
            return "S"
        needs = next(needs for (name, _), needs in self.alone.items() if name == dim)
        parameters = set(graph.parameters)
        regions = (
            region for step in needs.values() for value, region in step.values.items() if value in parameters
        )
        return "P" if any(regions) else "A"

    def restricted_to(self, asked: Configuration) -> OperatorConfigurations:
        """Return the configurations with the degrees of `asked`, and with its devices if it has any."""
        return attrs.evolve(self, degrees=(asked.degrees,), only=asked if asked.devices else None)

    @cached_property
    def count(self) -> int:
        return sum(self._weights) if self.only is None else 1

    @cached_property
    def legal(self) -> frozenset[Degrees]:
        return frozenset(self.degrees)

    @cached_property
    def _options(self) -> list[tuple[Degrees, AxisOrders, DeviceLists]]:
        """For each choice of degrees, its orders of dimensions and its device lists."""
        return [(each, _orders(len(each)), self.lists[_size(each)]) for each in self.degrees]

    @cached_property
    def _weights(self) -> list[int]:
        return [len(orders) * len(lists) for _, orders, lists in self._options]

    @cached_property
    def _bounds(self) -> list[int]:
        return list(accumulate(self._weights))

    def __iter__(self) -> Iterator[Configuration]:
        """Yield all configurations: each legal set of degrees with each order of parts on each list of devices."""
        if self.only is not None:
            yield self.only
            return
        for degrees, orders, lists in self._options:
            for order in orders:
                for devices in lists:
                    yield _configuration(degrees, order, devices)

    def draw(self, random: Random) -> Configuration:
        """Draw a configuration, all with the same probability (section 6.2)."""
        if self.only is not None:
            return self.only
        at = bisect(self._bounds, random.random() * self._bounds[-1], hi=len(self._bounds) - 1)
        degrees, orders, lists = self._options[at]
        return _configuration(degrees, random.choice(orders), random.choice(lists))


def _size(degrees: Degrees) -> int:
    return prod(degree for _, degree in degrees)


@cache
def _orders(dims: int) -> AxisOrders:
    """Return the orders in which dimensions may change along the devices, the last one fastest."""
    return tuple(permutations(range(dims)))


def _configuration(degrees: Degrees, order: tuple[int, ...], devices: tuple[int, ...]) -> Configuration:
    """Return a configuration. order: the dimensions in the order in which devices go along them."""
    if len(order) < 2:
        return Configuration(degrees, devices)
    places = part_places(tuple(degree for _, degree in degrees), order)
    return Configuration(degrees, tuple([devices[i] for i in places]))


@lru_cache(1024)
def part_places(sizes: tuple[int, ...], order: tuple[int, ...]) -> tuple[int, ...]:
    """Return for each part its number when the dimensions change in another order, the last one fastest."""
    places = np.arange(prod(sizes)).reshape([sizes[i] for i in order]).transpose(np.argsort(order))
    return tuple(places.ravel().tolist())


def configurations(flow: CotangentFlow, machine: Machine, devices: int) -> list[OperatorConfigurations]:
    """Return the configurations of each operator. Operators that are alike share one object."""
    lists = device_lists(machine, devices)
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
    """Return the needs of an operator for each dimension and degree in which it can be split alone."""
    found = {}
    for dim in operator.dims:
        for degree in range(2, devices + 1):
            with suppress(Unsplittable):
                found[dim.name, degree] = OperatorParts(operator, ((dim.name, degree),)).needs
    return found


def legal_degrees(operator: Operator, alone: SingleSplits, devices: int) -> Iterator[Degrees]:
    """Yield the legal degrees of an operator, without dimensions that are not split."""
    names = [dim.name for dim in operator.dims]
    single = [[1, *(degree for other, degree in alone if other == name)] for name in names]

    def extend(chosen: Degrees, room: int, rest: int) -> Iterator[Degrees]:
        """Yield all degrees that begin with the chosen ones. room: the parts that may still be made.

        rest: the number of the next dimension.
        """
        if rest == len(names):
            yield chosen
            return
        for degree in single[rest]:
            if degree <= room:
                more = ((names[rest], degree),) if degree > 1 else ()
                yield from extend((*chosen, *more), room // degree, rest + 1)

    yield from extend((), devices, 0)


def device_lists(machine: Machine, devices: int) -> dict[int, DeviceLists]:
    """Return for each number of parts the lists of devices on which the parts may be placed."""
    orders = _orders_of_devices(machine, devices)
    found: dict[int, DeviceLists] = {}
    for count in range(1, devices + 1):
        lists = (
            tuple(order[start : start + count])
            for order in orders
            for start in range(0, len(order) - count + 1, count)
        )
        found[count] = tuple(dict.fromkeys(lists))
    return found


def _orders_of_devices(machine: Machine, devices: int) -> list[Sequence[int]]:
    """Return orders of the first devices, without servers, in which neighbours on the machine stand together."""
    if isinstance(machine, DeviceGraph):
        servers = machine.servers
        orders = machine.orders()
        return [[each for each in order if each < devices and each not in servers] for order in orders]
    strides, inner = [1], 1
    for link in machine.links:
        inner *= prod(link.sizes) if link.sizes else devices
        if inner < devices and devices % inner == 0:
            strides.append(inner)
    return [_strided(stride, devices) for stride in strides]


def main_devices(machine: Machine, devices: int) -> Sequence[int]:
    """Return the devices on which known strategies run: all, or the workers of the kind that computes the most."""
    if not isinstance(machine, DeviceGraph):
        return range(devices)
    kinds = machine.kind_of[:devices]
    workers = (kind for kind in dict.fromkeys(kinds) if not machine.kinds[kind].is_server)
    main = max(workers, key=lambda kind: kinds.count(kind) * machine.kinds[kind].peak)
    return [device for device, kind in enumerate(kinds) if kind == main]


def _strided(stride: int, devices: int) -> list[int]:
    """Return all devices in an order where neighbours are `stride` apart."""
    return [i * stride % devices + i * stride // devices for i in range(devices)]


def data_parallel_strategy(
    graph: OperatorGraph, choices: Sequence[OperatorConfigurations], devices: Sequence[int]
) -> Strategy:
    """Split every operator by samples, over as many devices as the samples can be divided into."""
    return tuple(
        _by(samples_of(graph, operator), legal, devices)
        for operator, legal in zip(graph.operators, choices, strict=True)
    )


def layout_strategy(
    graph: OperatorGraph, choices: Sequence[OperatorConfigurations], mesh: Mesh, rules: Rules
) -> Strategy | None:
    """Split every operator as the rules of a layout split its dimensions; None if an operator cannot be split so.

    Under the layout several devices may compute the same part. The part is on the first of them.
    """
    numbers = np.arange(mesh.devices).reshape([size for _, size in mesh.axes])
    found = []
    for operator, legal in zip(graph.operators, choices, strict=True):
        degrees = ordered_degrees(operator, {d.name: mesh.size(rules.get(d.name)) for d in operator.dims})
        axes = [axis for name, _ in degrees for axis in rules.get(name)]
        if degrees not in legal.legal or len({*axes}) < len(axes):
            return None
        kept = [axis for axis in mesh.names if axis in axes]
        first = numbers[tuple(slice(None) if axis in axes else 0 for axis in mesh.names)]
        devices = first.transpose([kept.index(axis) for axis in axes]).ravel().tolist()
        found.append(Configuration(degrees, tuple(devices)))
    return tuple(found)


def random_strategy(choices: Sequence[OperatorConfigurations], random: Random) -> Strategy:
    return tuple(each.draw(random) for each in choices)


def expert_strategy(
    graph: OperatorGraph, choices: Sequence[OperatorConfigurations], node: int, devices: Sequence[int]
) -> Strategy:
    """Return an expert's strategy (section 8.2.1) for nodes of `node` devices.

    Recurrent networks get one copy per node, and layers are placed one after the other on the GPUs of a node. In other
    networks, dense layers are split by units and all other operators by samples ("one weird trick").
    """
    if is_recurrent(graph):
        return _layer_by_layer(graph, choices, min(node, len(devices)), devices)
    return tuple(
        _by(_units(graph, operator) or samples_of(graph, operator), legal, devices)
        for operator, legal in zip(graph.operators, choices, strict=True)
    )


def node_size(machine: Machine, devices: Sequence[int]) -> int:
    """Return the number of devices that all links but the outermost connect; of a graph, all of them."""
    if isinstance(machine, DeviceGraph):
        return len(devices)
    return prod(size for link in machine.links[:-1] for size in link.sizes)


def _by(dim: Dim | None, choices: OperatorConfigurations, devices: Sequence[int]) -> Configuration:
    """Split along one dimension into one part per device, or into the largest number of parts that the dimension allows."""
    if dim is None:
        return Configuration((), (devices[0],))
    legal = (((dim.name, n),) for n in range(len(devices), 1, -1))
    degrees = next((each for each in legal if each in choices.legal), ())
    return Configuration(degrees, tuple(devices[: prod(degree for _, degree in degrees)]))


def samples_of(graph: OperatorGraph, operator: Operator) -> Dim | None:
    """Return the dimension of an operator that holds samples, if any."""
    return next((dim for dim in operator.dims if dim.name in graph.samples), None)


def _units(graph: OperatorGraph, operator: Operator) -> Dim | None:
    """Return the units of a dense layer: an operator with a dot, parameters, and one dimension besides the samples."""
    others = [dim for dim in operator.dims if dim.name not in graph.samples]
    has_dot = any(has_trait(eqn, "dot") for step in operator.steps for eqn in step.equations)
    return others[0] if len(others) == 1 and has_dot and parameters_of(graph, operator) else None


def parameters_of(graph: OperatorGraph, operator: Operator) -> tuple[str, ...]:
    """Return the names of the parameters that an operator uses."""
    own = {value for step in operator.steps for value in step.arguments}
    return tuple(value.name for value in graph.parameters if value in own)


def is_recurrent(graph: OperatorGraph) -> bool:
    """Return whether more than two operators share a parameter, as the iterations of a loop do."""
    users = Counter(name for operator in graph.operators for name in parameters_of(graph, operator))
    return max(users.values(), default=0) > 2


def layer_numbers(graph: OperatorGraph) -> list[int]:
    """Return the layer of each operator. Operators with the same parameters are one layer; an operator without parameters is
    in the last layer of its inputs.
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
    graph: OperatorGraph, choices: Sequence[OperatorConfigurations], node: int, devices: Sequence[int]
) -> Strategy:
    """Return a strategy that splits samples over one device of each node: the first layers over the first devices, and so on.

    node: the number of devices in a node.
    """
    layers = layer_numbers(graph)
    count = max(layers) + 1
    return tuple(
        _by(samples_of(graph, operator), legal, devices[layer * node // count :: node])
        for operator, legal, layer in zip(graph.operators, choices, layers, strict=True)
    )
