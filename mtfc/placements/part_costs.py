"""The sizes and times of a step's parts, by the roofline of the device (`cost/effects/roofline.py`), or as measured.

A *form* is a step at some degrees. Steps that differ only in names share forms (FlexFlow, section 5.1). All parts of a step
count as the part in the middle, which has neighbours on all sides: its function is written, and the roofline tells its time. For
each value that a step makes or uses, a form has a *table*: the distinct pieces of the value, and the piece that each part has or
needs.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Protocol

import numpy as np

from mtfc.compiler.cost.device_models import fusion_of
from mtfc.compiler.cost.effects.roofline import work_in
from mtfc.compiler.cost.hardware import Device
from mtfc.compiler.ir.core import Training, Value
from mtfc.compiler.ir.types import ITEM_BYTES, Mesh
from mtfc.placements.operators.cotangent_flow import CotangentFlow
from mtfc.placements.operators.operator_graph import OperatorStep
from mtfc.placements.operators.operator_parts import OperatorParts, PartFunction, Region
from mtfc.placements.operators.strategy import Degrees
from mtfc.placements.task_graph_builder import Array, PartTables

ONE = Mesh("one", ())
"""The mesh of a part's function, which runs on one device."""


def middle(degrees: Sequence[tuple[str, int]]) -> dict[str, int]:
    """Return the place of the part in the middle: its index along each split dimension."""
    return {name: degree // 2 for name, degree in degrees}


PartCost = tuple[float, float, int]
"""The seconds of both passes of a part, and the bytes that it keeps."""


def part_cost(local: PartFunction, device: Device) -> PartCost:
    """Return the cost of a part by the roofline of its function."""
    function = local.function()
    fusion, seconds = fusion_of(function, ONE, device), {"forward": 0.0, "backward": 0.0}
    for eqn, each in zip(function.body, work_in(function, fusion), strict=True):
        seconds[eqn.stage] += each.seconds
    made = {value for eqn in local.forward for value in eqn.results}
    kept = sum(value.type.local_bytes(ONE) for value in fusion.stored if value in made)
    return seconds["forward"], seconds["backward"], kept


def optimizer_states(training: Training | None) -> int:
    """Return the largest number of optimizer states of a parameter."""
    updates = training.updates if training is not None else ()
    kept = (sum(argument.role == "state" for argument in update.function.arguments) for update in updates)
    average = 1 if training is not None and training.average is not None else 0
    return max(kept, default=0) + average


class PartTimes(Protocol):
    """Measured times. transfer: the latency of a transfer between two devices, and bytes per second; None if not measured."""

    transfer: tuple[float, float] | None

    def seconds(
        self, flow: CotangentFlow, step: OperatorStep, parts: OperatorParts
    ) -> tuple[float, float] | None:
        """Return the seconds of both passes of the middle part; None if they are not known."""


class StepForms:
    """The forms of the steps of a graph on each kind of device. Each form is added when it is first asked for."""

    def __init__(
        self, flow: CotangentFlow, devices: Sequence[Device], times: PartTimes | None = None
    ) -> None:
        """Start without forms.

        times: measured times of parts, which come before those of the roofline. tables: all forms as arrays for compiled
        code, the others as tables that grow.

        `_forms` has a row for each form: the number of parts, the number of its first array, and the bytes kept on each kind
        of device. `_seconds`: the forward and backward seconds on each kind. `_tables` has a row for each array: pieces,
        bytes of a piece, and the places in `_pool` of its piece numbers and bounds. `_numbers`: signature and degrees -> row
        of the form.
        """
        self.flow, self.devices, self.times = flow, tuple(devices), times
        self._forms, self._seconds = _Rows(2 + len(devices), np.int64), _Rows(2 * len(devices), np.float64)
        self._tables, self._pool = _Rows(4, np.int64), _Rows(1, np.int64)
        self._numbers: dict[tuple[int, Degrees], int] = {}
        self.tables = self._arrays()

    def number(self, step: OperatorStep, degrees: Degrees) -> int:
        """Return the form of a step at some legal degrees."""
        key = (self.flow.signatures[step], degrees)
        if key not in self._numbers:
            self._numbers[key] = self._add(step, OperatorParts(self.flow.graph.operator_of[step], degrees))
            self.tables = self._arrays()
        return self._numbers[key]

    def _arrays(self) -> PartTables:
        pool = self._pool.array.ravel()
        return PartTables(self._forms.array, self._seconds.array, self._tables.array, pool)

    def _add(self, step: OperatorStep, parts: OperatorParts) -> int:
        """Append the form of a step with these parts, and return its row. Each form costs what its middle part costs."""
        local = self.flow.local(step, parts, middle(parts.degrees))
        costs = [part_cost(local, device) for device in self.devices]
        measured = self.times and self.times.seconds(self.flow, step, parts)
        seconds = [measured or (forward, backward) for forward, backward, _ in costs]
        self._seconds.extend([[each for both in seconds for each in both]])
        first = self._tables.count
        for value, region in _regions(step, parts):
            self._add_table(value, region, parts)
        return self._forms.extend([[parts.count, first, *(kept for _, _, kept in costs)]])

    def _add_table(self, value: Value, region: Region, parts: OperatorParts) -> None:
        """Append the pieces of a value, of which each part has or needs a region."""
        piece = parts.numbers({span.by for span in region.values()})
        _, first = np.unique(piece, return_index=True)
        bounds = [np.zeros((len(first), 0), np.int64)]
        for dim in value.type.dims:
            span = region.get(dim.name)
            place = 0 if span is None else parts.index[span.by][first]
            ends = (0, dim.size) if span is None else (span.low[place], span.high[place])
            bounds += [np.broadcast_to(end, len(first))[:, None] for end in ends]
        size = value.type.size * ITEM_BYTES[value.type.dtype] // len(np.unique(parts.group(value)))
        rows = self._pool.extend(piece.reshape(-1, 1))
        places = self._pool.extend(np.concatenate(bounds, axis=1).reshape(-1, 1))
        self._tables.extend([[len(first), size, rows, places]])


def _regions(step: OperatorStep, parts: OperatorParts) -> Iterator[tuple[Value, Region]]:
    """Yield the outputs of a step with the regions that parts own, then its inputs and arguments with those that parts need."""
    need = parts.needs[step]
    yield from ((value, need.owned(value)) for value in step.outputs)
    yield from ((value, need.values.get(value, {})) for value in (*step.inputs, *step.arguments))


class _Rows:
    """An array that grows: the first `count` rows are in use."""

    def __init__(self, columns: int, dtype: type) -> None:
        self.array: Array = np.zeros((64, columns), dtype)
        self.count = 0

    def extend(self, rows: Sequence[Sequence[float]] | Array) -> int:
        """Append rows; return the index of the first."""
        begin, end = self.count, self.count + len(rows)
        if end > len(self.array):
            self.array = np.concatenate([self.array, np.zeros((end, self.array.shape[1]), self.array.dtype)])
        self.array[begin:end] = rows
        self.count = end
        return begin
