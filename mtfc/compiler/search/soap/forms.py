"""What is known of a step in so many parts, wherever they are: flat arrays for the compiled loops of `building.py`.

A *form* is a step in some degrees; steps that differ in names alone have forms in common. Of each value that a step makes or
uses a form has a *table*: the different pieces of it that parts have or need, and which of these each part does.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any, NamedTuple

import numpy as np

from mtfc.compiler.hardware import Device
from mtfc.compiler.ir.core import Value
from mtfc.compiler.ir.types import ITEM_BYTES
from mtfc.compiler.operators.gradients import Flow
from mtfc.compiler.operators.graph import Step
from mtfc.compiler.operators.regions import Region
from mtfc.compiler.operators.strategy import Parts
from mtfc.compiler.search.soap.blocks import Array
from mtfc.compiler.search.soap.costs import Costs


class Known(NamedTuple):
    """By form: how many parts, seconds of their two passes, bytes that they keep, and the number of the first table, that of its
    first output; those of other outputs, inputs and arguments follow. By table: how many pieces, bytes of one of an output, and
    where its rows and bounds are. rows: the number of the piece of each part. bounds: of each piece, for each dimension of the
    value, the first position and the one after the last.
    """

    parts: Array
    forward: Array
    backward: Array
    kept: Array
    first: Array
    pieces: Array
    size: Array
    rows_at: Array
    bounds_at: Array
    rows: Array
    bounds: Array


class Forms:
    """The forms of the steps of a graph on a device, each made when it is asked for first."""

    def __init__(self, flow: Flow, device: Device) -> None:
        self.flow, self.costs = flow, Costs(flow, device)
        floats = {"forward", "backward"}
        self._columns = {name: _Column(np.float64 if name in floats else np.int64) for name in Known._fields}
        self._numbers: dict[tuple[int, tuple[tuple[str, int], ...]], int] = {}
        self._parts: dict[tuple[Any, ...], Parts] = {}
        self.known = self._arrays()

    def number(self, step: Step, degrees: tuple[tuple[str, int], ...]) -> int:
        """The form of a step in some degrees. Raises `Unsplittable`."""
        key = (self.flow.signatures[step], degrees)
        if key not in self._numbers:
            self._numbers[key] = self._add(step, self.parts(step, degrees))
            self.known = self._arrays()
        return self._numbers[key]

    def parts(self, step: Step, degrees: tuple[tuple[str, int], ...]) -> Parts:
        """The parts of a step's operator."""
        operator = self.flow.graph.operator_of[step]
        key = (operator, degrees)
        if key not in self._parts:
            self._parts[key] = Parts(operator, degrees)
        return self._parts[key]

    def _arrays(self) -> Known:
        return Known(*(column.array for column in self._columns.values()))

    def _add(self, step: Step, parts: Parts) -> int:
        needs, cost = parts.needs[step], self.costs.of(step, parts)
        first = self._columns["pieces"].count
        for value in step.outputs:
            self._table(value, needs.owned(value), parts, parts.group(value))
        for value in (*step.inputs, *step.arguments):
            region = needs.values.get(value, {})
            self._table(value, region, parts, parts.along({span.by for span in region.values()}))
        self._append(first=first, parts=parts.count)
        return self._append(forward=cost.forward, backward=cost.backward, kept=cost.kept)

    def _table(self, value: Value, region: Region, parts: Parts, rows: Array) -> None:
        """Parts with the same number in `rows` have the same piece of a value."""
        _, part = np.unique(rows, return_index=True)
        bounds = np.empty((len(part), len(value.type.dims), 2), np.int64)
        for i, dim in enumerate(value.type.dims):
            bounds[:, i] = 0, dim.size
            if dim.name in region:
                span = region[dim.name]
                at = parts.index[span.by][part]
                bounds[:, i, 0], bounds[:, i, 1] = span.low[at], span.high[at]
        split = prod(degree for name, degree in parts.degrees if name in value.type.names)
        size = value.type.size * ITEM_BYTES[value.type.dtype] // split
        rows_at = self._columns["rows"].extend(rows)
        bounds_at = self._columns["bounds"].extend(bounds.ravel())
        self._append(pieces=len(part), size=size, rows_at=rows_at, bounds_at=bounds_at)

    def _append(self, **values: float) -> int:
        """A number for each of some columns; how many there were before."""
        return [self._columns[name].extend([value]) for name, value in values.items()].pop()


class _Column:
    """An array that grows: the first `count` elements are in use."""

    def __init__(self, dtype: type) -> None:
        self.array: Array = np.zeros(64, dtype)
        self.count = 0

    def extend(self, values: Sequence[float] | Array) -> int:
        """Append some; where they begin."""
        begin, end = self.count, self.count + len(values)
        if end > len(self.array):
            self.array = np.concatenate([self.array, np.zeros(end, self.array.dtype)])
        self.array[begin:end] = values
        self.count = end
        return begin
