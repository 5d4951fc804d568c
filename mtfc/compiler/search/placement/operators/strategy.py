"""Strategies: a configuration for each operator, and what follows for who has and who needs which part of each tensor.

Parts are numbered in row-major order of the operator's dimensions. A value that lacks a split dimension is held several times:
by all parts that differ along it alone. They have equal copies, or, of a pending value, terms that are added up among them
first. Whoever needs it takes it from its own device if it is there, else from one of the holders.
"""

from __future__ import annotations

from collections.abc import Container, Iterator, Mapping, Sequence
from functools import cached_property
from itertools import pairwise
from math import prod
from typing import Any

import attrs
import numpy as np

from mtfc.compiler.ir.core import Value
from mtfc.compiler.ir.types import ITEM_BYTES
from mtfc.compiler.search.placement.operators.operator_graph import Operator, OperatorGraph, Step
from mtfc.compiler.search.placement.operators.operator_parts import Box, Need, box, need
from mtfc.compiler.search.placement.operators.regions import Region

Integers = Any
"""A NumPy array of integers."""


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


@attrs.frozen(eq=False)
class Parts:
    """The parts of an operator: how many, and the index of each along every split dimension."""

    operator: Operator
    degrees: tuple[tuple[str, int], ...]

    @cached_property
    def count(self) -> int:
        return prod(degree for _, degree in self.degrees)

    @cached_property
    def all(self) -> Integers:
        return np.arange(self.count)

    def is_shared(self, value: Value) -> bool:
        """Whether several parts have the same part of a value of this operator."""
        return any(name not in value.type.names for name, _ in self.degrees)

    @cached_property
    def index(self) -> dict[str, Integers]:
        shape = [degree for _, degree in self.degrees]
        found = np.unravel_index(self.all, shape) if shape else ()
        return {name: each for (name, _), each in zip(self.degrees, found, strict=True)}

    @cached_property
    def needs(self) -> dict[Step, Need]:
        """What the parts of each step need. Raises `Unsplittable`."""
        degrees = dict(self.degrees)
        return {step: need(step, degrees, self.operator.dims) for step in self.operator.steps}

    def place(self, part: int) -> dict[str, int]:
        """Index along each split dimension."""
        return {name: int(each[part]) for name, each in self.index.items()}

    def box(self, region: Region, part: int) -> Box:
        return box(region, self.place(part))

    def group(self, value: Value) -> Integers:
        """For each part a number: parts with the same have the same part of a value of this operator."""
        return self.along(value.type.names)

    def along(self, names: Container[str]) -> Integers:
        """For each part a number: parts with the same have the same index along the split dimensions with some names."""
        found = np.zeros(self.count, np.int64)
        for name, degree in self.degrees:
            if name in names:
                found = found * degree + self.index[name]
        return found

    def groups(self, value: Value) -> list[Integers]:
        """The parts that have each part of a value, in order."""
        number = self.group(value)
        return [np.flatnonzero(number == i) for i in range(int(number.max()) + 1)]


def ordered_degrees(operator: Operator, degrees: Mapping[str, int]) -> tuple[tuple[str, int], ...]:
    """Degrees in the order of the operator's dimensions, without those that are 1."""
    return tuple((d.name, degrees[d.name]) for d in operator.dims if degrees.get(d.name, 1) > 1)


@attrs.frozen(eq=False)
class Transfers:
    """Who needs a value of whom: for each pair of a holding and a needing part, the bytes that they share.

    `sources` are groups of holders where the value is held several times, else parts.
    """

    sources: Integers
    targets: Integers
    bytes: Integers


def transfers(value: Value, made: Parts, step: Step, used: Parts, user: Step) -> Transfers:
    """What parts of `user` need of a value that `step` makes."""
    owned = made.needs[step].owned(value)
    wanted = used.needs[user].values.get(value, {})
    groups = made.group(value)
    _, first = np.unique(groups, return_index=True)
    shared = np.ones((len(first), used.count), np.int64)
    for dim in value.type.dims:
        if dim.name not in owned and dim.name not in wanted:
            shared *= dim.size
            continue
        low, high = _ends(owned, dim.name, dim.size, made, first)
        start, stop = _ends(wanted, dim.name, dim.size, used, used.all)
        overlap = np.minimum(high[:, None], stop[None]) - np.maximum(low[:, None], start[None])
        shared *= np.maximum(overlap, 0)
    sources, targets = np.nonzero(shared)
    return Transfers(sources, targets, shared[sources, targets] * ITEM_BYTES[value.type.dtype])


def _ends(region: Region, dim: str, size: int, parts: Parts, which: Integers) -> tuple[Integers, Integers]:
    """First positions, and ones after the last, of some parts' regions along a dimension."""
    if dim not in region:
        return np.zeros(len(which), np.int64), np.full(len(which), size)
    span = region[dim]
    at = parts.index[span.by][which]
    return span.low[at], span.high[at]


def holders(value: Value, made: Parts, devices: Integers, found: Transfers, used: Integers) -> Integers:
    """The part that each transfer comes from: one on the target's device if there is one, else they take turns."""
    if not made.is_shared(value):
        return found.sources
    groups = made.groups(value)
    chosen = np.empty(len(found.sources), np.int64)
    for i, (group, target) in enumerate(zip(found.sources, found.targets, strict=True)):
        members = groups[group]
        here = members[devices[members] == used[target]]
        chosen[i] = here[0] if len(here) else members[target % len(members)]
    return chosen


@attrs.frozen
class Cells:
    """A part of a parameter that the same devices hold: how many bytes, on which (bit i: device i), and where it lies."""

    mask: int
    boxes: tuple[tuple[tuple[int, int], ...], ...]
    bytes: int


def users(graph: OperatorGraph) -> dict[Value, list[Step]]:
    """The steps that use each parameter."""
    found: dict[Value, list[Step]] = {value: [] for value in graph.parameters}
    for step in graph.steps:
        for value in step.arguments:
            if value in found:
                found[value].append(step)
    return found


def regions_held(
    parameter: Value, parts: Parts, step: Step, devices: Sequence[int]
) -> Iterator[tuple[tuple[tuple[int, int], ...], int]]:
    """The different parts of a parameter that parts of a step use, and on which devices."""
    region = parts.needs[step].values.get(parameter, {})
    masks: dict[tuple[tuple[int, int], ...], int] = {}
    names = {span.by for span in region.values()}
    for part in range(parts.count) if names else ():
        own = parts.box(region, part)
        key = tuple(own.get(dim.name, (0, dim.size)) for dim in parameter.type.dims)
        masks[key] = masks.get(key, 0) | 1 << devices[part]
    if not names:
        everywhere = 0
        for device in devices:
            everywhere |= 1 << device
        masks[tuple((0, dim.size) for dim in parameter.type.dims)] = everywhere
    yield from masks.items()


def cells(parameter: Value, held: set[tuple[tuple[tuple[int, int], ...], int]]) -> list[Cells]:
    """A parameter by who holds what: the coarsest parts of it that are not cut by any region held."""
    pieces: dict[int, list[tuple[tuple[int, int], ...]]] = {}
    if len({region for region, _ in held}) == 1:
        mask = 0
        for _, each in held:
            mask |= each
        pieces[mask] = [next(iter(held))[0]]
    else:
        for piece in _pieces([region for region, _ in held]):
            mask = 0
            for region, each in held:
                if all(a <= low and high <= b for (a, b), (low, high) in zip(region, piece, strict=True)):
                    mask |= each
            if mask:
                pieces.setdefault(mask, []).append(piece)
    item = ITEM_BYTES[parameter.type.dtype]
    return [
        Cells(mask, tuple(found), item * sum(prod(b - a for a, b in piece) for piece in found))
        for mask, found in pieces.items()
    ]


def _pieces(regions: Sequence[tuple[tuple[int, int], ...]]) -> Iterator[tuple[tuple[int, int], ...]]:
    """The grid that the regions' ends make."""
    grid: list[tuple[tuple[int, int], ...]] = [()]
    for ends in zip(*regions, strict=True):
        marks = sorted({mark for pair in ends for mark in pair})
        steps = list(pairwise(marks))
        grid = [(*piece, step) for piece in grid for step in steps]
    yield from grid
