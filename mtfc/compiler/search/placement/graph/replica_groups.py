"""Which devices hold the same parts of the parameters of a bundle, whose gradients they add up.

A parameter is cut wherever a part that some step uses ends; the pieces are then sorted by who holds them.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from mtfc.compiler.search.placement.parts.block_arrays import Array
from mtfc.compiler.search.placement.parts.flat_encoding import (
    ADDED,
    BOUNDS,
    FIRST,
    PARTS,
    PIECES,
    ROWS,
    STORED,
    UPDATED,
    Known,
    Placed,
    Plan,
    Shares,
)
from mtfc.compiler.search.solver.message_passing import inner


@inner
def share(numbers: Array, plan: Plan, known: Known, placed: Placed, found: Shares) -> bool:
    """Find the shares of the bundles that some blocks belong to; whether there was room for them."""
    wanted = np.zeros(len(plan.bundles), np.bool_)
    for block in numbers:
        if plan.blocks[block, 0] in (ADDED, UPDATED, STORED):
            wanted[plan.blocks[block, 1]] = True
    found.at[0] = 0
    for bundle in range(len(wanted)):
        found.at[bundle + 1] = found.at[bundle]
        first, last = plan.bundles[bundle, 2], plan.bundles[bundle, 3]
        for parameter in range(first, last if wanted[bundle] else first):
            if not _share(bundle, parameter, plan, known, placed, found):
                return False
    return True


@inner
def _share(bundle: int, parameter: int, plan: Plan, known: Known, placed: Placed, found: Shares) -> bool:
    """Add those of a parameter."""
    bounds, holders = _regions(bundle, parameter, plan, known, placed)
    marks, steps = _marks(bounds)
    pieces = 1
    for step in steps:
        pieces *= step
    mine = np.empty(len(plan.port), np.bool_)
    for piece in range(pieces):
        size = plan.parameters[parameter, 1] * _piece(piece, marks, steps, bounds, holders, mine)
        if size and not _put(bundle, mine, size, found):
            return False
    return True


@inner
def _put(bundle: int, mine: Array, size: int, found: Shares) -> bool:
    """Add bytes that some devices have; whether there is room."""
    last = found.at[bundle + 1]
    for at in range(found.at[bundle], last):
        is_same = True
        for device in range(len(mine)):
            is_same &= found.members[at, device] == mine[device]
        if is_same:
            found.sizes[at] += size
            return True
    if last == len(found.sizes):
        return False
    for device in range(len(mine)):
        found.members[last, device] = mine[device]
    found.sizes[last] = size
    found.at[bundle + 1] += 1
    return True


@inner
def _regions(bundle: int, parameter: int, plan: Plan, known: Known, placed: Placed) -> Any:
    """The different parts of a parameter that are used, and which devices do. [region, 2 * dimension], [region, device]"""
    first, last, places = plan.bundles[bundle, 0], plan.bundles[bundle, 1], plan.parameters[parameter, 2]
    most = 0
    for i in range(last - first):
        if plan.places[places + i] >= 0:
            form = placed.form[plan.users[first + i, 0]]
            most += known.tables[known.forms[form, FIRST] + plan.places[places + i], PIECES]
    bounds = np.empty((most, 2 * plan.parameters[parameter, 0]), np.int64)
    holders, count = np.zeros((most, len(plan.port)), np.bool_), 0
    for i in range(last - first):
        step = plan.users[first + i, 0]
        form, operator = placed.form[step], plan.operator[step]
        table = known.tables[known.forms[form, FIRST] + max(plan.places[places + i], 0)]
        for part in range(known.forms[form, PARTS] if plan.places[places + i] >= 0 else 0):
            piece = known.numbers[table[ROWS] + part]
            begin = table[BOUNDS] + bounds.shape[1] * piece
            region = _find(bounds, count, known.numbers, begin, piece)
            if region == count:
                for end in range(bounds.shape[1]):
                    bounds[region, end] = known.numbers[begin + end]
                count += 1
            holders[region, placed.devices[operator, part]] = True
    return bounds[:count], holders[:count]


@inner
def _find(bounds: Array, count: int, numbers: Array, begin: int, likely: int) -> int:
    """The number of the region whose bounds begin at some place among numbers, or else `count`."""
    for k in range(count):
        region = (likely + k) % count
        is_same = True
        for end in range(bounds.shape[1]):
            is_same &= bounds[region, end] == numbers[begin + end]
        if is_same:
            return region
    return count


@inner
def _marks(bounds: Array) -> Any:
    """Along each dimension the ends of regions, in order, and how many intervals they make. [dimension, mark], [dimension]"""
    count, dims = len(bounds), bounds.shape[1] // 2
    marks, steps = np.zeros((dims, 2 * count), np.int64), np.full(dims, -1)
    for dim in range(dims):
        for i in range(2 * count):
            mark, at = bounds[i // 2, 2 * dim + i % 2], 0
            while at <= steps[dim] and marks[dim, at] < mark:
                at += 1
            if at <= steps[dim] and marks[dim, at] == mark:
                continue
            steps[dim] += 1
            for other in range(steps[dim], at, -1):
                marks[dim, other] = marks[dim, other - 1]
            marks[dim, at] = mark
    return marks, steps


@inner
def _piece(number: int, marks: Array, steps: Array, bounds: Array, holders: Array, mine: Array) -> int:
    """How many elements a piece of the grid of marks has, or 0 where nobody does; `mine` becomes who has it."""
    inside, size, is_held = np.ones(len(bounds), np.bool_), 1, False
    for dim in range(len(steps) - 1, -1, -1):
        at = number % steps[dim]
        number //= steps[dim]
        low, high = marks[dim, at], marks[dim, at + 1]
        size *= high - low
        for region in range(len(bounds)):
            inside[region] &= bounds[region, 2 * dim] <= low and bounds[region, 2 * dim + 1] >= high
    for device in range(len(mine)):
        mine[device] = False
        for region in range(len(bounds)):
            mine[device] |= inside[region] and holders[region, device]
        is_held |= mine[device]
    return size if is_held else 0
