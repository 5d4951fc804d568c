"""What is known of a step in so many parts, wherever they are: flat arrays for the compiled loops of `building.py`.

A *form* is a step in some degrees; steps that differ in names alone have forms in common, as in FlexFlow (section 5.1). Of each
value that a step makes or uses a form has a *table*: the different pieces of it that parts have or need, and which of these each
part does.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

import numpy as np

from mtfc.compiler.hardware import Device
from mtfc.compiler.ir.core import Value
from mtfc.compiler.ir.types import ITEM_BYTES
from mtfc.compiler.operators.gradients import Flow
from mtfc.compiler.operators.graph import Step
from mtfc.compiler.operators.regions import Region
from mtfc.compiler.operators.strategy import Parts
from mtfc.compiler.search.soap.blocks import Array
from mtfc.compiler.search.soap.costs import cost
from mtfc.compiler.search.soap.plan import Known


class Forms:
    """The forms of the steps of a graph on a device, each made when it is asked for first."""

    def __init__(self, flow: Flow, device: Device) -> None:
        self.flow, self.device = flow, device
        self._forms, self._seconds = _Rows(3, np.int64), _Rows(2, np.float64)
        self._tables, self._pool = _Rows(4, np.int64), _Rows(1, np.int64)
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
        pool = self._pool.array.ravel()
        return Known(self._forms.array, self._seconds.array, self._tables.array, pool)

    def _add(self, step: Step, parts: Parts) -> int:
        needs, own, first = parts.needs[step], cost(self.flow, self.device, step, parts), self._tables.count
        for value in step.outputs:
            self._table(value, needs.owned(value), parts, parts.group(value))
        for value in (*step.inputs, *step.arguments):
            region = needs.values.get(value, {})
            self._table(value, region, parts, parts.along({span.by for span in region.values()}))
        self._seconds.extend([[own.forward, own.backward]])
        return self._forms.extend([[parts.count, own.kept, first]])

    def _table(self, value: Value, region: Region, parts: Parts, rows: Array) -> None:
        """Parts with the same number in `rows` have the same piece of a value."""
        part = np.empty(rows.max() + 1, np.int64)  # some part that has a piece
        part[rows] = parts.all
        bounds = np.empty((len(part), len(value.type.dims), 2), np.int64)
        for i, dim in enumerate(value.type.dims):
            bounds[:, i] = 0, dim.size
            if dim.name in region:
                span = region[dim.name]
                at = parts.index[span.by][part]
                bounds[:, i, 0], bounds[:, i, 1] = span.low[at], span.high[at]
        split = prod(degree for name, degree in parts.degrees if name in value.type.names)
        size = value.type.size * ITEM_BYTES[value.type.dtype] // split
        places = self._pool.extend(rows.reshape(-1, 1)), self._pool.extend(bounds.reshape(-1, 1))
        self._tables.extend([[len(part), size, *places]])


class _Rows:
    """An array that grows: the first `count` rows are in use."""

    def __init__(self, columns: int, dtype: type) -> None:
        self.array: Array = np.zeros((64, columns), dtype)
        self.count = 0

    def extend(self, rows: Sequence[Sequence[float]] | Array) -> int:
        """Append some; where they begin."""
        begin, end = self.count, self.count + len(rows)
        if end > len(self.array):
            self.array = np.concatenate([self.array, np.zeros((end, self.array.shape[1]), self.array.dtype)])
        self.array[begin:end] = rows
        self.count = end
        return begin
