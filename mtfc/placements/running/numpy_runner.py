"""Execution of a placement strategy on NumPy: every part of an operator on its own device, with transfers between devices.

Each device has its own store, and a part reads only the store of its device. Data of other devices is first moved there, region
by region, and the moved bytes are counted. The transfers and sums are those in the task graph of the search
(`transfers.py`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import attrs
import numpy as np

from mtfc.backends.common import random_numbers
from mtfc.compiler.ir.core import Equation, Value
from mtfc.compiler.ir.opdef import Shard
from mtfc.compiler.ir.ops import OPS
from mtfc.compiler.ir.ops.elementwise import numpy_dtype
from mtfc.placements.operators.cotangent_flow import CotangentFlow
from mtfc.placements.operators.operator_graph import Operator, OperatorStep
from mtfc.placements.operators.operator_parts import Box, OperatorParts, PartFunction
from mtfc.placements.operators.strategy import Configuration, Strategy
from mtfc.placements.operators.unroll_loops import Slices
from mtfc.placements.running.transfers import holders, replicated_pieces, stored_regions, transfers

Array = Any


@attrs.frozen(eq=False)
class Executed:
    """Outputs and parameter gradients by name, as whole arrays; and the bytes sent from device to device."""

    outputs: Mapping[str, Array]
    gradients: Mapping[str, Array]
    sent: int


@attrs.frozen(eq=False)
class Arithmetic:
    """Functions of NumPy and of random numbers, or others in their place: the exact check has some that compute on residues."""

    numpy: Any = np
    random: Any = random_numbers


def execute(
    flow: CotangentFlow,
    strategy: Strategy,
    arrays: Mapping[str, Array],
    arithmetic: Arithmetic = Arithmetic(),
) -> Executed:
    """Run the forward and backward pass of a graph under a strategy.

    arrays: the model's inputs and parameters by name. Arrays that loops slice are whole, and so are their gradients.
    """
    run = _Run(flow, strategy, arrays, arithmetic)
    for step in flow.graph.steps:
        run.forward(step)
    for step in reversed(flow.graph.steps):
        if flow.gradients[step]:
            run.backward(step)
    gradients: dict[str, Array] = {}
    for value, array in run.gradients():
        whole, at = flow.graph.slices.get(value.name, (value.name, ()))
        _put(gradients.setdefault(whole, arithmetic.numpy.zeros_like(arrays[whole])), at, array)
    outputs = {output.name: run.whole(output.value) for output in flow.graph.function.outputs}
    return Executed(outputs, gradients, run.sent)


def of_slice(array: Array, at: Slices) -> Array:
    """Return a view of an array after indexing it with several slices in turn."""
    for axis, index in at:
        array = array[(*(slice(None),) * axis, index, ...)]
    return array


def _put(array: Array, at: Slices, part: Array) -> None:
    """Write a part of an array, at the place that `of_slice` returns."""
    where: list[Any] = [slice(None)] * array.ndim
    axes = list(range(array.ndim))
    for axis, index in at:
        where[axes.pop(axis)] = index
    array[tuple(where)] = part


@attrs.frozen(eq=False)
class _Move:
    """The region that a holding part and a part that needs it have in common."""

    source: int
    target: int
    region: Box


class _Run:
    """The stores of the devices: each part's results and their cotangents, and the gradients of parameters by region."""

    def __init__(
        self, flow: CotangentFlow, strategy: Strategy, arrays: Mapping[str, Array], arithmetic: Arithmetic
    ) -> None:
        self.flow, self.graph = flow, flow.graph
        self.arithmetic, self.numpy = arithmetic, arithmetic.numpy
        self.arrays: dict[str, Array] = {}
        for argument in flow.graph.function.arguments:
            value = argument.value
            whole, at = flow.graph.slices.get(value.name, (value.name, ()))
            array = of_slice(self.numpy.asarray(arrays[whole]), at)
            self.arrays[value.name] = array.astype(numpy_dtype(np, value.type.dtype))
        operators = zip(self.graph.operators, strategy, strict=True)
        self.placed: dict[Operator, tuple[OperatorParts, Configuration]] = {
            operator: (OperatorParts(operator, each.degrees), each) for operator, each in operators
        }
        self.made: dict[tuple[Value, int], Array] = {}
        self.cotangents: dict[tuple[Value, int], Array] = {}
        self.locals: dict[tuple[OperatorStep, int], tuple[PartFunction, dict[Value, Array]]] = {}
        self.added: dict[tuple[Value, int], Array] = {}
        self.sent = 0

    def of(self, step: OperatorStep) -> tuple[OperatorParts, Sequence[int]]:
        """Return the parts of a step's operator, and their devices."""
        parts, configuration = self.placed[self.graph.operator_of[step]]
        return parts, configuration.devices

    def forward(self, step: OperatorStep) -> None:
        parts, _ = self.of(step)
        inputs = {value: self._gathered(value, step) for value in step.inputs}
        for part in range(parts.count):
            local = self.flow.local(step, parts, parts.place(part))
            known = {local.values[value]: inputs[value][part] for value in step.inputs}
            for value in step.arguments:
                box = parts.box(parts.needs[step].values.get(value, {}), part)
                known[local.values[value]] = self.arrays[value.name][_slices(value, box)]
            self._evaluate(local, local.forward, known)
            self.locals[step, part] = (local, known)
            self.made |= {(value, part): known[local.values[value]] for value in step.outputs}
        for value in step.pending:
            self._sum(value, step, self.made)

    def _gathered(self, value: Value, step: OperatorStep) -> list[Array]:
        """Return the elements of a value that each part of a step needs, on its device."""
        parts, devices = self.of(step)
        maker, givers = self.of(self.graph.makers[value])
        wanted = [parts.box(parts.needs[step].values.get(value, {}), part) for part in range(parts.count)]
        found = [self._empty(value, box) for box in wanted]
        for move in self._moves(value, step):
            own = maker.box(maker.needs[self.graph.makers[value]].owned(value), move.source)
            piece = self.made[value, move.source][_slices(value, move.region, own)]
            piece = self._moved(piece, givers[move.source], devices[move.target])
            found[move.target][_slices(value, move.region, wanted[move.target])] = piece
        return found

    def _moves(self, value: Value, step: OperatorStep) -> Iterator[_Move]:
        parts, devices = self.of(step)
        made_by = self.graph.makers[value]
        maker, givers = self.of(made_by)
        pairs = transfers(value, maker, made_by, parts, step)
        sources = holders(value, maker, np.array(givers), pairs, np.array(devices))
        for source, target in zip(sources.tolist(), pairs.targets.tolist(), strict=True):
            own = maker.box(maker.needs[made_by].owned(value), source)
            wanted = parts.box(parts.needs[step].values.get(value, {}), target)
            yield _Move(source, target, _common(value, own, wanted))

    def _moved(self, array: Array, source: int, target: int) -> Array:
        """Return an array on another device."""
        if source != target:
            self.sent += array.size * array.itemsize
        return array.copy()

    def _sum(self, value: Value, step: OperatorStep, store: dict[tuple[Value, int], Array]) -> None:
        """Add up the arrays of each part's holders: first on each device, then on the first device, which sends them to all."""
        parts, devices = self.of(step)
        for group in parts.groups(value):
            total: dict[int, Array] = {}
            for part in group.tolist():
                here = store[value, part]
                total[devices[part]] = total[devices[part]] + here if devices[part] in total else here
            first = min(total)
            result = total[first]
            for device in sorted(total.keys() - {first}):
                result = result + self._moved(total[device], device, first)
            everywhere = {device: self._moved(result, first, device) for device in total}
            store |= {(value, part): everywhere[devices[part]] for part in group.tolist()}

    def backward(self, step: OperatorStep) -> None:
        parts, _ = self.of(step)
        for value in step.outputs:
            if value in self.flow.seeds:
                self._fill(value, step)
            if value in step.pending and value in self.flow.seeds:
                self._sum(value, step, self.cotangents)
        found: list[Mapping[Value, Array]] = []
        for part in range(parts.count):
            local, known = self.locals[step, part]
            known |= {d: self.cotangents[value, part] for value, d in local.cotangents.items()}
            self._evaluate(local, local.backward, known)
            found.append({value: known[gradient] for value, gradient in local.gradients.items()})
        for value in step.inputs:
            if self.flow.returns(value, step):
                self._returned(value, step, found)
        for value in step.arguments:
            if value in self.flow.gradients[step]:
                self._kept(value, step, found)

    def _fill(self, value: Value, step: OperatorStep) -> None:
        """Set cotangents without a contribution to 0. The cotangent of the loss is 1 on one of its holders."""
        parts, _ = self.of(step)
        for part in range(parts.count):
            self.cotangents.setdefault((value, part), self.numpy.zeros_like(self.made[value, part]))
        if value is self.graph.loss:
            for group in parts.groups(value):
                self.cotangents[value, int(group[0])] += 1

    def _returned(self, value: Value, step: OperatorStep, found: Sequence[Mapping[Value, Array]]) -> None:
        """Add the parts' gradients of an input to the cotangents on the devices that made it."""
        parts, devices = self.of(step)
        made_by = self.graph.makers[value]
        maker, givers = self.of(made_by)
        for move in self._moves(value, step):
            wanted = parts.box(parts.needs[step].values.get(value, {}), move.target)
            piece = found[move.target][value][_slices(value, move.region, wanted)]
            piece = self._moved(piece, devices[move.target], givers[move.source])
            key = (value, move.source)
            total = self.cotangents.setdefault(key, self.numpy.zeros_like(self.made[key]))
            own = maker.box(maker.needs[made_by].owned(value), move.source)
            total[_slices(value, move.region, own)] += piece

    def _kept(self, value: Value, step: OperatorStep, found: Sequence[Mapping[Value, Array]]) -> None:
        """Add the parts' gradients of a parameter to those on their devices."""
        parts, devices = self.of(step)
        for part, gradients in enumerate(found):
            key = (value, devices[part])
            box = parts.box(parts.needs[step].values.get(value, {}), part)
            total = self.added.setdefault(key, self.numpy.zeros_like(self.arrays[value.name]))
            total[_slices(value, box)] += gradients[value]

    def gradients(self) -> Iterator[tuple[Value, Array]]:
        """Yield the gradient of each parameter, added up among the devices that hold the same part of it."""
        for parameter, steps in self.graph.parameter_users.items():
            own = [step for step in steps if parameter in self.flow.gradients[step]]
            held = {
                each
                for step in own
                for each in stored_regions(parameter, self.of(step)[0], step, self.of(step)[1])
            }
            if not held:
                continue
            whole = self.numpy.zeros_like(self.arrays[parameter.name])
            for cell in replicated_pieces(parameter, held):
                for box in cell.boxes:
                    where = tuple(slice(*ends) for ends in box)
                    whole[where] = self._reduced(parameter, where, cell.mask)
            yield parameter, whole

    def _reduced(self, parameter: Value, where: tuple[slice, ...], mask: int) -> Array:
        """Return the sum of the gradients of several devices in a region. One device adds them up, and sends the sum to all."""
        first, *others = [device for device in range(mask.bit_length()) if mask >> device & 1]
        total = self.added[parameter, first][where]
        for device in others:
            total = total + self._moved(self.added[parameter, device][where], device, first)
        for device in others:
            self.added[parameter, device][where] = self._moved(total, first, device)
        return total

    def whole(self, value: Value) -> Array:
        """Return a whole value. Its transfers are not counted, as a step does not need it."""
        if value not in self.graph.makers:
            return self.arrays[value.name]
        step = self.graph.makers[value]
        parts, _ = self.of(step)
        found = self._empty(value, {})
        for part in range(parts.count):
            box = parts.box(parts.needs[step].owned(value), part)
            found[_slices(value, box)] = self.made[value, part]
        return found

    def _empty(self, value: Value, box: Box) -> Array:
        """Return an array for a region of a value, whose elements are still to be set."""
        return self.numpy.zeros(_shape(value, box), numpy_dtype(np, value.type.dtype))

    def _evaluate(
        self, local: PartFunction, equations: Sequence[Equation], known: dict[Value, Array]
    ) -> None:
        """Add the results of a part's equations. Random numbers depend on an element's place in the whole tensor."""
        for eqn in equations:
            source, offsets = local.sources.get(eqn, (eqn, {}))
            shape = tuple(dim.size for dim in eqn.results[0].type.dims)
            seen = source if "stream" in eqn.attrs else eqn
            shard = Shard(self.numpy, self.arithmetic.random, seen, shape, partial(_offset, offsets))
            found = OPS[eqn.op].evaluate(shard, *(known[value] for value in eqn.operands))
            results = found if len(eqn.results) > 1 else (found,)
            known.update(zip(eqn.results, map(self.numpy.asarray, results), strict=True))


def _offset(offsets: Mapping[str, int], dim: str) -> int:
    """Return the first index of a part along a dimension of the whole tensor."""
    return offsets.get(dim, 0)


def _common(value: Value, one: Box, other: Box) -> Box:
    """Return the region that two boxes have in common."""
    found = {}
    for dim in value.type.dims:
        (a, b), (c, d) = one.get(dim.name, (0, dim.size)), other.get(dim.name, (0, dim.size))
        found[dim.name] = (max(a, c), min(b, d))
    return found


def _shape(value: Value, box: Box) -> tuple[int, ...]:
    ends = (box.get(dim.name, (0, dim.size)) for dim in value.type.dims)
    return tuple(last - first for first, last in ends)


def _slices(value: Value, region: Box, inside: Box | None = None) -> tuple[slice, ...]:
    """Return the slices of a region in an array of the whole value, or of another region."""
    found = []
    for dim in value.type.dims:
        first, last = region.get(dim.name, (0, dim.size))
        start = inside.get(dim.name, (0, dim.size))[0] if inside is not None else 0
        found.append(slice(first - start, last - start))
    return tuple(found)
