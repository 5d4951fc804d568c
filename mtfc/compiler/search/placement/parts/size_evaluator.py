"""Evaluates the formulas of a step (`size_formulas.py`) at some degrees, as compiled loops on flat arrays."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from mtfc.compiler.search.placement.parts.block_arrays import Array
from mtfc.compiler.search.solver.message_passing import compiled, inner


class Shape(NamedTuple):
    """What parts have and need of each value of a step: a table for each, as in `flat_encoding.Known`.

    tables [table, 3]: which axes, the first and the one after the last, and bytes of the value. follows, divides [table, dim]:
    whether parts at different indices along a dimension of the operator have different pieces, and whether the value has it.
    axes [axis, 2]: number of a span, or -1, and size. by [span]: the dimension of the operator whose index decides. at [span,
    degree]: where in `ends` the first position and the one after the last of each index begin.
    """

    tables: Array
    follows: Array
    divides: Array
    axes: Array
    by: Array
    at: Array
    ends: Array


class Template(NamedTuple):
    """What a part computes and moves, where its function is the same but for lengths.

    by [length]: the dimension of the operator whose degree decides it. lengths [length, degree]. products [product, column]: a
    coefficient, and lengths to be multiplied with it; length 0 is 1. kernels [kernel, 4]: whether it is of the backward pass,
    the product that its FLOPs are, and the first of the arrays that it moves and the one after the last. moved [array, 2]:
    where in `bytes` the
    products begin, and end, of which the least is its bytes. rates [kernel, 2]: FLOP/s, and seconds of
    overhead. kept: products that are bytes. bandwidth: bytes/s. exposed: the share of the shorter of computing and moving that
    the longer one does not hide.
    """

    by: Array
    lengths: Array
    products: Array
    kernels: Array
    moved: Array
    bytes: Array
    rates: Array
    kept: Array
    bandwidth: float
    exposed: float


@compiled
def pieces(shape: Shape, degrees: Array, begin: int) -> Any:
    """The tables of a form, and the numbers that are to be appended to those that there are already."""
    parts, count = _product(degrees), len(shape.tables)
    size = begin
    found = np.empty((count, 4), np.int64)
    for table in range(count):
        first, last, whole = shape.tables[table]
        split = 1
        found[table, 0] = 1
        for dim in range(len(degrees)):
            found[table, 0] *= degrees[dim] if shape.follows[table, dim] else 1
            split *= degrees[dim] if shape.divides[table, dim] else 1
        found[table, 1] = whole // split
        found[table, 2], found[table, 3] = size, size + parts
        size += parts + found[table, 0] * (last - first) * 2
    numbers = np.empty(size - begin, np.int64)
    for table in range(count):
        _rows(numbers[found[table, 2] - begin :], shape.follows[table], degrees, parts)
        _bounds(numbers[found[table, 3] - begin :], shape, table, degrees, found[table, 0])
    return found, numbers


@inner
def _product(degrees: Array) -> int:
    found = 1
    for degree in degrees:
        found *= degree
    return found


@inner
def _rows(rows: Array, follows: Array, degrees: Array, parts: int) -> None:
    """Which piece each part has."""
    for part in range(parts):
        inside, rest, piece = 1, part, 0
        for dim in range(len(degrees) - 1, -1, -1):
            if follows[dim]:
                piece += inside * (rest % degrees[dim])
                inside *= degrees[dim]
            rest //= degrees[dim]
        rows[part] = piece


@inner
def _bounds(bounds: Array, shape: Shape, table: int, degrees: Array, count: int) -> None:
    """Where each piece begins and ends along each dimension of the value."""
    index, i = np.zeros(len(degrees), np.int64), 0
    for piece in range(count):
        rest = piece
        for dim in range(len(degrees) - 1, -1, -1):
            if shape.follows[table, dim]:
                index[dim] = rest % degrees[dim]
                rest //= degrees[dim]
        for axis in range(shape.tables[table, 0], shape.tables[table, 1]):
            span = shape.axes[axis, 0]
            if span < 0:
                bounds[i], bounds[i + 1] = 0, shape.axes[axis, 1]
            else:
                dim = shape.by[span]
                place = shape.at[span, degrees[dim]] + 2 * index[dim]
                bounds[i], bounds[i + 1] = shape.ends[place], shape.ends[place + 1]
            i += 2


@compiled
def taken(template: Template, degrees: Array) -> tuple[float, float, int]:
    """Seconds of a part's two passes, and bytes that it keeps."""
    lengths, values = np.ones(len(template.by), np.int64), np.empty(len(template.products), np.int64)
    for i in range(1, len(lengths)):
        lengths[i] = template.lengths[i, degrees[template.by[i]]]
    for i in range(len(values)):
        values[i] = template.products[i, 0]
        for column in range(1, template.products.shape[1]):
            values[i] *= lengths[template.products[i, column]]
    seconds = np.zeros(2)
    for i in range(len(template.kernels)):
        stage, flops, first, last = template.kernels[i]
        size = 0
        for array in range(first, last):
            least = values[template.bytes[template.moved[array, 0]]]
            for each in range(template.moved[array, 0] + 1, template.moved[array, 1]):
                least = min(least, values[template.bytes[each]])
            size += least
        computing, moving = values[flops] / template.rates[i, 0], size / template.bandwidth
        longer, shorter = max(computing, moving), min(computing, moving)
        seconds[stage] += longer + template.exposed * shorter + template.rates[i, 1]
    kept = 0
    for product in template.kept:
        kept += values[product]
    return seconds[0], seconds[1], kept
