"""The space of strategies: which configurations each operator can have (FlexFlow, section 4).

The degrees of a configuration divide the sizes of its dimensions, and their product is at most the number of devices. Parts are
put on devices that follow each other in one of few orders: by number, or by number within groups that a link connects, so that
neighbours are far apart. They begin at a multiple of how many there are, and any of the split dimensions may change fastest
along them. FlexFlow's own search, too, has consecutive devices only: 10 ** 11 strategies for a network of six layers on four
devices (section 8.4) are some 25 configurations each.
"""

from __future__ import annotations

from bisect import bisect
from collections.abc import Iterator, Mapping
from contextlib import suppress
from functools import cache, cached_property, lru_cache
from itertools import accumulate, permutations
from math import prod
from random import Random

import attrs
import numpy as np

from mtfc.compiler.cost.hardware import Hardware
from mtfc.compiler.search.placement.operators.cotangent_flow import Flow
from mtfc.compiler.search.placement.operators.operator_graph import Operator, Step
from mtfc.compiler.search.placement.operators.operator_parts import Need
from mtfc.compiler.search.placement.operators.regions import Unsplittable
from mtfc.compiler.search.placement.operators.strategy import Configuration, Parts

Degrees = tuple[tuple[str, int], ...]
Orders = tuple[tuple[int, ...], ...]
Lists = tuple[tuple[int, ...], ...]

Alone = Mapping[tuple[str, int], Mapping[Step, Need]]
"""A dimension and a degree that it may have -> what parts need where an operator is split in it alone."""


@attrs.frozen(eq=False)
class Choices:
    """The configurations of an operator and those alike: for each choice of degrees, on each of some lists of devices in each
    order of dimensions; or `only` one.
    """

    operator: Operator
    alone: Alone
    degrees: tuple[Degrees, ...]
    lists: Mapping[int, Lists]
    only: Configuration | None = None

    def holding(self, asked: Configuration) -> Choices:
        """Those with the degrees of a configuration, and with its devices, if it has some."""
        return attrs.evolve(self, degrees=(asked.degrees,), only=asked if asked.devices else None)

    @cached_property
    def count(self) -> int:
        return sum(self._weights) if self.only is None else 1

    @cached_property
    def legal(self) -> frozenset[Degrees]:
        return frozenset(self.degrees)

    @cached_property
    def _options(self) -> list[tuple[Degrees, Orders, Lists]]:
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
def _orders(dims: int) -> Orders:
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


def space(flow: Flow, hardware: Hardware, devices: int) -> list[Choices]:
    """The choices of each operator; alike operators share theirs."""
    lists = device_lists(hardware, devices)
    known: dict[object, Choices] = {}
    found = []
    for operator in flow.graph.operators:
        key = (operator.dims, *(flow.signatures[step] for step in operator.steps))
        if key not in known:
            alone = alone_splits(operator, devices)
            known[key] = Choices(operator, alone, tuple(legal_degrees(operator, alone, devices)), lists)
        found.append(known[key])
    return found


def alone_splits(operator: Operator, devices: int) -> Alone:
    """What an operator may be split in, a dimension at a time."""
    found = {}
    for dim in operator.dims:
        for degree in range(2, devices + 1):
            with suppress(Unsplittable):
                found[dim.name, degree] = Parts(operator, ((dim.name, degree),)).needs
    return found


def legal_degrees(operator: Operator, alone: Alone, devices: int) -> Iterator[Degrees]:
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


def device_lists(hardware: Hardware, devices: int) -> dict[int, Lists]:
    """For each number of parts the lists of devices that they can be on."""
    strides, inner = [1], 1
    for link in hardware.links:
        inner *= prod(link.sizes) if link.sizes else devices
        if inner < devices and devices % inner == 0:
            strides.append(inner)
    found: dict[int, Lists] = {}
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
