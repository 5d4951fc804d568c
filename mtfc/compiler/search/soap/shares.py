"""Which devices hold the same parts of the parameters of a bundle, whose gradients they add up.

A parameter is cut wherever a part that some step uses ends; the pieces are then sorted by who holds them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from mtfc.compiler.search.soap.blocks import Array
from mtfc.compiler.search.soap.forms import Known
from mtfc.compiler.search.solver.kernels import compiled

if TYPE_CHECKING:
    from mtfc.compiler.search.soap.building import Placed, Plan


@compiled
def shares(bundle: int, plan: Plan, known: Known, placed: Placed) -> Any:
    """Sets of devices, and the bytes that they hold in common and that no others hold. [share, device], [share]"""
    members, sizes = np.zeros((1, len(plan.port)), np.bool_), np.zeros(1, np.int64)
    count = 0
    for parameter in range(plan.parameters_at[bundle], plan.parameters_at[bundle + 1]):
        bounds, holders = _regions(bundle, parameter, plan, known, placed)
        marks, steps = _marks(bounds)
        mine = np.empty(len(plan.port), np.bool_)
        for piece in range(steps.prod()):
            size = plan.item[parameter] * _piece(piece, marks, steps, bounds, holders, mine)
            if not mine.any():
                continue
            share = 0
            while share < count and (members[share] != mine).any():
                share += 1
            if share == len(members):
                members, sizes = np.concatenate((members, members)), np.concatenate((sizes, sizes))
            if share == count:
                members[share], sizes[share] = mine, 0
                count += 1
            sizes[share] += size
    return members[:count], sizes[:count]


@compiled
def _regions(bundle: int, parameter: int, plan: Plan, known: Known, placed: Placed) -> Any:
    """The different parts of a parameter that are used, and which devices do. [region, dimension, 2], [region, device]"""
    dims, first = plan.dims[parameter], plan.steps_at[bundle]
    bounds, holders = np.empty((4, dims, 2), np.int64), np.zeros((4, len(plan.port)), np.bool_)
    count = 0
    for at in range(first, plan.steps_at[bundle + 1]):
        step, place = plan.steps[at], plan.places[plan.places_at[parameter] + at - first]
        form, devices = placed.form[step], placed.devices[plan.operator[step]]
        table = known.first[form] + place
        for part in range(known.parts[form] if place >= 0 else 0):
            piece = known.rows[known.rows_at[table] + part]
            begin = known.bounds_at[table] + 2 * dims * piece
            region = _find(bounds, count, known.bounds, begin, piece)
            if region == len(bounds):
                bounds = np.concatenate((bounds, bounds))
                holders = np.concatenate((holders, np.zeros_like(holders)))
            if region == count:
                for i in range(2 * dims):
                    bounds[region, i // 2, i % 2] = known.bounds[begin + i]
                count += 1
            holders[region, devices[part]] = True
    return bounds[:count], holders[:count]


@compiled
def _find(bounds: Array, count: int, known: Array, begin: int, likely: int) -> int:
    """The number of the region that is at some place among known bounds, or else `count`."""
    for k in range(count):
        region, is_same = (likely + k) % count, True
        for i in range(2 * bounds.shape[1]):
            is_same &= bounds[region, i // 2, i % 2] == known[begin + i]
        if is_same:
            return region
    return count


@compiled
def _marks(bounds: Array) -> Any:
    """Along each dimension the ends of regions, in order, and how many intervals they make. [dimension, mark], [dimension]"""
    count, dims = bounds.shape[0], bounds.shape[1]
    marks, steps = np.zeros((dims, 2 * count), np.int64), np.empty(dims, np.int64)
    for dim in range(dims):
        found = np.unique(bounds[:, dim].copy().ravel())
        marks[dim, : len(found)] = found
        steps[dim] = len(found) - 1
    return marks, steps


@compiled
def _piece(number: int, marks: Array, steps: Array, bounds: Array, holders: Array, mine: Array) -> int:
    """How many elements a piece of the grid of marks has; `mine` becomes who has it."""
    inside, size = np.ones(len(bounds), np.bool_), 1
    for dim in range(len(steps) - 1, -1, -1):
        at = number % steps[dim]
        number //= steps[dim]
        low, high = marks[dim, at], marks[dim, at + 1]
        size *= high - low
        inside &= (bounds[:, dim, 0] <= low) & (bounds[:, dim, 1] >= high)
    mine[:] = False
    for region in np.flatnonzero(inside):
        mine |= holders[region]
    return size
