"""The sizes and times of a step's parts, by the roofline of the device (`cost/effects/roofline.py`), or as measured.

A *form* is a step at some degrees. Steps that differ only in names share forms (FlexFlow, section 5.1). All parts of a step
count as the part in the middle, which has neighbours on all sides. For each value that a step makes or uses, a form has a
*table*: the distinct pieces of the value, and the piece that each part has or needs.

Tables follow from single splits, since a region along a dimension depends on the degree of one dimension only. Times and kept
bytes are computed for many degrees at once: the part is written as a function once, and each length in this function is
identified as a length of the step that depends on one degree (`PartSizes`). FLOPs and bytes are then arrays. The result is equal
to the last bit.

If a length is ambiguous, or the times of the device are not linear in FLOPs and bytes, `part_cost` writes the function of each
form and asks the roofline. Tests compare the two on all forms.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import reduce
from itertools import chain, islice
from math import prod
from typing import Any, NamedTuple, Protocol

import attrs
import numpy as np

from mtfc.compiler.analysis.attention_forms import is_attention
from mtfc.compiler.analysis.buffer_kinds import storage
from mtfc.compiler.cost.device_models import fusion_of
from mtfc.compiler.cost.effects.roofline import work_in
from mtfc.compiler.cost.fusion import FusionModel
from mtfc.compiler.cost.hardware import Device
from mtfc.compiler.ir.core import Equation, Function, Training, Value
from mtfc.compiler.ir.ops import OPS
from mtfc.compiler.ir.types import ITEM_BYTES, Axes, Dim, Mesh, TensorType
from mtfc.compiler.search.jit import jit, jit_internal, warm_up
from mtfc.placements.operators.cotangent_flow import CotangentFlow
from mtfc.placements.operators.operator_graph import OperatorStep
from mtfc.placements.operators.operator_parts import (
    OperatorParts,
    Region,
    SplitSpan,
    StepNeeds,
)
from mtfc.placements.operators.strategy import Degrees, OperatorConfigurations
from mtfc.placements.task_graph_builder import Array, PartTables

ONE = Mesh("one", ())
"""The mesh of a part's function, which runs on one device."""


def middle(degrees: Sequence[tuple[str, int]]) -> dict[str, int]:
    """Return the place of the part in the middle: its index along each split dimension."""
    return {name: degree // 2 for name, degree in degrees}


PartCost = tuple[float, float, int]
"""The seconds of both passes of the middle part, and the bytes that it keeps."""


def part_cost(flow: CotangentFlow, device: Device, step: OperatorStep, parts: OperatorParts) -> PartCost:
    """Return the cost of the middle part by the roofline of its function."""
    local = flow.local(step, parts, middle(parts.degrees))
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
    """The forms of the steps of a graph on each kind of device. Each form is added when it is first asked for.

    times: measured times of parts, which come before those of the roofline.
    """

    def __init__(
        self,
        flow: CotangentFlow,
        devices: Sequence[Device],
        choices: Sequence[OperatorConfigurations],
        times: PartTimes | None = None,
    ) -> None:
        self.flow, self.devices, self.times = flow, tuple(devices), times
        self._forms, self._seconds = _Rows(2 + len(devices), np.int64), _Rows(2 * len(devices), np.float64)
        self._tables, self._pool = _Rows(4, np.int64), _Rows(1, np.int64)
        self._numbers: dict[tuple[int, Degrees], int] = {}
        self.formulas = {
            (flow.signatures[step], each.operator.dims): [
                StepFormulas(flow, device, each, step) for device in self.devices
            ]
            for each in dict.fromkeys(choices)
            for step in each.operator.steps
        }
        self.tables = self._arrays()
        warm_up(self._compile)

    def number(self, step: OperatorStep, degrees: Degrees) -> int:
        """Return the form of a step at some legal degrees."""
        key = (self.flow.signatures[step], degrees)
        if key not in self._numbers:
            self._numbers[key] = self._add(step, degrees)
            self.tables = self._arrays()
        return self._numbers[key]

    def _compile(self) -> None:
        for each in chain.from_iterable(islice(self.formulas.values(), 1)):
            piece_tables(each.shape, each.degrees(()), 0)

    def _arrays(self) -> PartTables:
        pool = self._pool.array.ravel()
        return PartTables(self._forms.array, self._seconds.array, self._tables.array, pool)

    def _add(self, step: OperatorStep, degrees: Degrees) -> int:
        operator = self.flow.graph.operator_of[step]
        formulas = self.formulas[self.flow.signatures[step], operator.dims]
        costs = [each.cost(degrees) for each in formulas]
        measured = self.times and self.times.seconds(self.flow, step, OperatorParts(operator, degrees))
        seconds = [measured or (forward, backward) for forward, backward, _ in costs]
        tables, numbers = piece_tables(formulas[0].shape, formulas[0].degrees(degrees), self._pool.count)
        self._pool.extend(numbers.reshape(-1, 1))
        self._seconds.extend([[each for both in seconds for each in both]])
        count = prod(degree for _, degree in degrees)
        return self._forms.extend([[count, self._tables.extend(tables), *(kept for _, _, kept in costs)]])


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


Degree = tuple[str, int]


def shape_of(step: OperatorStep, dims: Sequence[Dim], alone: Mapping[Degree, StepNeeds]) -> PieceShape:
    """Return the shape of a step's outputs, inputs and arguments."""
    names, most = [dim.name for dim in dims], max((degree for _, degree in alone), default=1)
    spans = _Spans(names, most)
    tables, axes = [], list[list[int]]()
    values = (*step.outputs, *step.inputs, *step.arguments)
    follows = np.zeros((len(values), len(dims)), np.bool_)
    for i, value in enumerate(values):
        is_output = i < len(step.outputs)
        known = {
            key: need.owned(value) if is_output else need.values.get(value, {}) for key, need in alone.items()
        }
        tables.append(
            [len(axes), len(axes) + len(value.type.dims), value.type.size * ITEM_BYTES[value.type.dtype]]
        )
        for dim in value.type.dims:
            own = {key: region[dim.name] for key, region in known.items() if dim.name in region}
            axes.append([spans.add(dim, own) if own else -1, dim.size])
            follows[i, [names.index(name) for name, _ in own]] = True
    divides = np.array([[name in value.type.names for name in names] for value in values], np.bool_)
    divides = divides.reshape(len(values), len(dims))
    return PieceShape(rows(tables, 3), follows, divides, rows(axes, 2), *spans.arrays())


class _Spans:
    """Positions along dimensions, by the degree of one dimension of the operator."""

    def __init__(self, names: Sequence[str], most: int) -> None:
        self.names, self.most = names, most
        self.by: list[int] = []
        self.at: list[list[int]] = []
        self.ends: list[int] = []

    def add(self, dim: Dim, spans: Mapping[Degree, SplitSpan]) -> int:
        """Add the spans of a dimension; return their number."""
        at = [0, len(self.ends), *([0] * (self.most - 1))]
        self.ends += [0, dim.size]
        for (_, degree), span in spans.items():
            at[degree] = len(self.ends)
            self.ends += np.stack([span.low, span.high], axis=1).ravel().tolist()
        self.by.append(self.names.index(next(iter(spans))[0]))
        self.at.append(at)
        return len(self.by) - 1

    def arrays(self) -> tuple[Array, Array, Array]:
        return np.array(self.by, np.int64), rows(self.at, self.most + 1), np.array(self.ends, np.int64)


def rows(found: Sequence[Sequence[int]], width: int) -> Array:
    return np.array(found, np.int64).reshape(-1, width)


class PieceShape(NamedTuple):
    """The pieces of each value of a step, at any degrees. It has a table for each value, as `PartTables` has.

    tables [table, 3]: first axis, end of axes, and bytes of the value. follows, divides [table, dim]: 1 if parts at
    different indices along an operator dimension have different pieces, and if the value has the dimension. axes [axis, 2]:
    number of a span or -1, and size. by [span]: the operator dimension whose index decides. at [span, degree]: offset in
    `ends` of the first position and the position after the last, for each index.
    """

    tables: Array
    follows: Array
    divides: Array
    axes: Array
    by: Array
    at: Array
    ends: Array


@jit
def piece_tables(shape: PieceShape, degrees: Array, begin: int) -> Any:
    """Return the tables of a form, and the numbers to append to those that exist."""
    parts, count = degrees.prod(), len(shape.tables)
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


@jit_internal
def _rows(rows: Array, follows: Array, degrees: Array, parts: int) -> None:
    """Write the piece of each part."""
    for part in range(parts):
        inside, rest, piece = 1, part, 0
        for dim in range(len(degrees) - 1, -1, -1):
            if follows[dim]:
                piece += inside * (rest % degrees[dim])
                inside *= degrees[dim]
            rest //= degrees[dim]
        rows[part] = piece


@jit_internal
def _bounds(bounds: Array, shape: PieceShape, table: int, degrees: Array, count: int) -> None:
    """Write the range of each piece along each dimension of the value."""
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


Cuts = frozenset[tuple[int, str]]
"""Uses of values, by number, and dimensions, in which a part uses less than it has."""
NONE: Cuts = frozenset()


class StepFormulas:
    """The shape of a step, and the costs of its middle part at all legal degrees."""

    def __init__(
        self, flow: CotangentFlow, device: Device, choices: OperatorConfigurations, step: OperatorStep
    ) -> None:
        self.flow, self.device, self.operator, self.step = flow, device, choices.operator, step
        alone = {key: needs[step] for key, needs in choices.alone.items()}
        self.shape = shape_of(step, self.operator.dims, alone)
        self._cuts = {key: _cuts(step, need, key[1] // 2) for key, need in alone.items()}
        self._lengths = tuple(_lengths(step, alone))
        self._costs: dict[Degrees, PartCost] = {}
        self.alike: dict[tuple[Cuts, ...], list[Degrees]] = {}
        for degrees in choices.degrees if device.has_linear_times else ():
            self.alike.setdefault(self._cuts_at(degrees), []).append(degrees)
        for degrees in ((), *((each,) for each in alone)) if device.has_linear_times else ():
            self.cost(degrees)

    def degrees(self, degrees: Sequence[Degree]) -> Array:
        """Return the degrees of all dimensions of the operator."""
        of = dict(degrees)
        return np.array([of.get(dim.name, 1) for dim in self.operator.dims], np.int64)

    def cost(self, degrees: Degrees) -> PartCost:
        """Return the seconds of both passes of a part, and the bytes that it keeps."""
        if degrees not in self._costs:
            cuts = self._cuts_at(degrees)
            self._costs |= self._costs_at(self.alike.pop(cuts, []), cuts)
        if degrees not in self._costs:
            parts = OperatorParts(self.operator, degrees)
            self._costs[degrees] = part_cost(self.flow, self.device, self.step, parts)
        return self._costs[degrees]

    def _cuts_at(self, degrees: Degrees) -> tuple[Cuts, ...]:
        """Return the cuts along each dimension. Parts with the same cuts have the same equations."""
        cuts = {each[0]: self._cuts[each] for each in degrees}
        return tuple([cuts.get(dim.name, NONE) for dim in self.operator.dims])

    def _costs_at(self, wanted: Sequence[Degrees], key: Sequence[Cuts]) -> dict[Degrees, PartCost]:
        """Return the costs at some degrees, which have the same cuts; none if a length is ambiguous.

        The function is written at large degrees, where lengths differ most.
        """
        alike: dict[str, list[int]] = {}
        for dim, cuts in zip(self.operator.dims, key, strict=True):
            own = [n for (name, n), each in self._cuts.items() if name == dim.name and each == cuts]
            alike[dim.name] = [*([1] if cuts == NONE else []), *own]
        for i in range(max(map(len, alike.values()), default=1) if wanted else 0):
            chosen = {name: found[-1 - i % len(found)] for name, found in alike.items()}
            degrees = tuple((name, degree) for name, degree in chosen.items() if degree > 1)
            local = self.flow.local(self.step, OperatorParts(self.operator, degrees), middle(degrees))
            with suppress(Unclear):
                sizes = PartSizes(self._lengths, alike, chosen, wanted)
                return dict(zip(wanted, sizes.costs(local.function(), self.device), strict=True))
        return {}


def _cuts(step: OperatorStep, need: StepNeeds, index: int) -> Cuts:
    """Return the cuts of the part at some index along the only split dimension."""
    found = set()
    for number, (value, region) in enumerate(_uses(step, need)):
        have = need.values.get(value, {})
        for dim, span in region.items():
            whole = have.get(dim)
            ends = (whole.low[index], whole.high[index]) if whole is not None else None
            if ends != (span.low[index], span.high[index]):
                found.add((number, dim))
    return frozenset(found)


def _uses(step: OperatorStep, need: StepNeeds) -> Iterator[tuple[Value, Region]]:
    """Yield the values that a part uses, with the regions that it uses."""
    for eqn in step.equations:
        if eqn in need.equations or eqn.results[0] in step.pending:
            yield from zip(eqn.operands, need.used(step, eqn)[1], strict=True)
    yield from ((value, need.owned(value)) for value in step.outputs if value not in step.pending)


@attrs.frozen
class PartLength:
    """A length of dimension `name` in the middle part, for each degree of the operator's dimension `by`."""

    name: str
    by: str | None
    at: tuple[tuple[int, int], ...]

    def among(self, degrees: Sequence[int]) -> PartLength:
        """Restrict the length to some degrees."""
        found = tuple((degree, size) for degree, size in self.at if degree in degrees)
        sizes = {size for _, size in found}
        return PartLength(self.name, self.by, found) if len(sizes) > 1 else _whole(self.name, *sizes)


def _whole(name: str, size: int) -> PartLength:
    return PartLength(name, None, ((1, size),))


def _lengths(step: OperatorStep, alone: Mapping[Degree, StepNeeds]) -> set[PartLength]:
    """Return all lengths that a step has, computes or uses."""
    values = {v for eqn in step.equations for v in (*eqn.operands, *eqn.results)}.union(step.outputs)
    known: dict[tuple[str, int, Dim], dict[int, int]] = {}
    for (name, degree), need in alone.items():
        for number, dim, span in _spans_of_arrays(step, need):
            length = int(span.high[degree // 2] - span.low[degree // 2])
            known.setdefault((name, number, dim), {1: dim.size})[degree] = length
    found = {PartLength(dim.name, name, tuple(at.items())) for (name, _, dim), at in known.items()}
    return found | {_whole(dim.name, dim.size) for value in values for dim in value.type.dims}


def _spans_of_arrays(step: OperatorStep, need: StepNeeds) -> Iterator[tuple[int, Dim, SplitSpan]]:
    """Yield the spans of all arrays along their split dimensions, with the number of the array."""
    arrays = [(value.type.dims, region) for value, region in chain(need.values.items(), _uses(step, need))]
    arrays += [(eqn.results[0].type.dims, region) for eqn, region in need.equations.items()]
    for number, (dims, region) in enumerate(arrays):
        yield from ((number, dim, region[dim.name]) for dim in dims if dim.name in region)


class Unclear(Exception):
    """A length of the function may be several lengths of the step."""


class PartSizes:
    """Sizes of the middle part of a step: numbers, or arrays with an element for each of some degrees.

    alike: the degrees of each dimension at which parts have the same cuts. chosen: those at which the part's function is written.
    wanted: those of the sizes.
    """

    def __init__(
        self,
        lengths: Iterable[PartLength],
        alike: Mapping[str, Sequence[int]],
        chosen: Mapping[str, int],
        wanted: Sequence[Degrees],
    ) -> None:
        self.wanted = [dict(each) for each in wanted]
        self.known: dict[Dim, set[PartLength]] = {}
        for each in lengths:
            own = each.among(alike[each.by]) if each.by is not None else each
            size = dict(own.at)[chosen[own.by] if own.by is not None else 1]
            self.known.setdefault(Dim(each.name, size), set()).add(own)
        self._dims: dict[Dim, Any] = {}

    def dim(self, dim: Dim, axes: Axes) -> Any:
        """Return the lengths of a dimension of the function. Raises `Unclear`."""
        if dim not in self._dims:
            found = self.known.get(dim, set())
            if len(found) != 1:
                raise Unclear
            (length,) = found
            sizes, by = dict(length.at), length.by
            self._dims[dim] = (
                dim.size if by is None else np.array([sizes[each.get(by, 1)] for each in self.wanted])
            )
        return self._dims[dim]

    def elements(self, type: TensorType) -> Any:
        return prod(self.dim(dim, ()) for dim in type.dims)

    def bytes(self, type: TensorType) -> Any:
        return self.elements(type) * ITEM_BYTES[type.dtype]

    def costs(self, function: Function, device: Device) -> list[PartCost]:
        """Return the costs of a part with this function, as `part_cost` computes them. Raises `Unclear`."""
        fusion, count = fusion_of(function, ONE, device), len(self.wanted)
        seconds, kept = {"forward": np.zeros(count), "backward": np.zeros(count)}, np.zeros(count, np.int64)
        for eqn in function.body:
            made = sum(self.bytes(value.type) for value in eqn.results if value in fusion.stored)
            kept += made if eqn.stage == "forward" else 0
            if storage(eqn) in ("view", "made"):
                continue
            if device.attending and is_attention(eqn):
                raise Unclear
            dtype = (eqn.operands or eqn.results)[0].type.dtype
            computing = OPS[eqn.op].flops(eqn, self) / device.rate(dtype).peak
            moving = (sum(self._read(eqn, fusion)) + made) / device.bandwidth.peak
            longer, shorter = np.maximum(computing, moving), np.minimum(computing, moving)
            seconds[eqn.stage] += longer + (1 - device.overlap) * shorter + fusion.latency(eqn)
        return list(
            zip(seconds["forward"].tolist(), seconds["backward"].tolist(), kept.tolist(), strict=True)
        )

    def _read(self, eqn: Equation, fusion: FusionModel) -> Iterator[Any]:
        """Yield the bytes read for each operand in memory: of its views, the smallest is read."""
        for i, value in enumerate(dict.fromkeys(eqn.operands)):
            types = [each.type for each in fusion.views(value)]
            looked_up = [eqn.result.type] if i == 0 and storage(eqn) == "lookup" else []
            if types:
                yield reduce(np.minimum, [self.bytes(each) for each in (*types, *looked_up)])
