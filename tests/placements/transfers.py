"""Transfers of a placement: which part sends which elements to which part, and which devices hold the same piece of a
parameter.
"""

from collections.abc import Iterator, Sequence
from itertools import pairwise
from math import prod
from typing import Any

import attrs
import numpy as np

from mtfc.compiler.ir.core import Value
from mtfc.compiler.ir.types import ITEM_BYTES
from mtfc.placements.operators.operator_graph import OperatorStep
from mtfc.placements.operators.operator_parts import OperatorParts, Region

Integers = Any
"""A NumPy array of integers."""


@attrs.frozen(eq=False)
class Transfers:
    """The bytes that a holding part and a needing part have in common, for each pair that has any.

    `sources` are groups of holders if the value is replicated, else parts.
    """

    sources: Integers
    targets: Integers
    bytes: Integers


def transfers(
    value: Value, made: OperatorParts, step: OperatorStep, used: OperatorParts, user: OperatorStep
) -> Transfers:
    """Return the transfers of a value from the step that makes it to the parts of `user`."""
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


def _ends(
    region: Region, dim: str, size: int, parts: OperatorParts, which: Integers
) -> tuple[Integers, Integers]:
    """Return the first position of some parts' regions along a dimension, and the position after the last."""
    if dim not in region:
        return np.zeros(len(which), np.int64), np.full(len(which), size)
    span = region[dim]
    at = parts.index[span.by][which]
    return span.low[at], span.high[at]


def holders(
    value: Value, made: OperatorParts, devices: Integers, found: Transfers, used: Integers
) -> Integers:
    """Return the sending part of each transfer: the holder on the target's device if there is one, else holders take turns."""
    if all(name in value.type.names for name, _ in made.degrees):
        return found.sources
    groups = made.groups(value)
    chosen = np.empty(len(found.sources), np.int64)
    for i, (group, target) in enumerate(zip(found.sources, found.targets, strict=True)):
        members = groups[group]
        here = members[devices[members] == used[target]]
        chosen[i] = here[0] if len(here) else members[target % len(members)]
    return chosen


@attrs.frozen
class ReplicatedPiece:
    """A piece of a parameter that the same devices hold: the devices (bit i: device i), its boxes, and its bytes."""

    mask: int
    boxes: tuple[tuple[tuple[int, int], ...], ...]
    bytes: int


def stored_regions(
    parameter: Value, parts: OperatorParts, step: OperatorStep, devices: Sequence[int]
) -> Iterator[tuple[tuple[tuple[int, int], ...], int]]:
    """Yield the different regions of a parameter that parts of a step use, and the mask of devices for each."""
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


def replicated_pieces(
    parameter: Value, held: set[tuple[tuple[tuple[int, int], ...], int]]
) -> list[ReplicatedPiece]:
    """Cut a parameter along the ends of all held regions, and group the pieces by the devices that hold them."""
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
        ReplicatedPiece(mask, tuple(found), item * sum(prod(b - a for a, b in piece) for piece in found))
        for mask, found in pieces.items()
    ]


def _pieces(regions: Sequence[tuple[tuple[int, int], ...]]) -> Iterator[tuple[tuple[int, int], ...]]:
    """Yield the cells of the grid that the regions' ends make."""
    grid: list[tuple[tuple[int, int], ...]] = [()]
    for ends in zip(*regions, strict=True):
        marks = sorted({mark for pair in ends for mark in pair})
        steps = list(pairwise(marks))
        grid = [(*piece, step) for piece in grid for step in steps]
    yield from grid
