"""The task graph of any strategy, and the sizes and times of its parts.

The sizes and times of a step's parts, by the roofline of the device (`cost/effects/roofline.py`), or as measured.

A *form* is a step at some degrees. Steps that differ only in names share forms (FlexFlow, section 5.1). All parts of a step
count as the part in the middle, which has neighbours on all sides: its function is written, and the roofline tells its time. For
each value that a step makes or uses, a form has a *table*: the distinct pieces of the value, and the piece that each part has or
needs.

The task graph of any strategy (FlexFlow, section 5.1), in blocks of tasks. A configuration determines few of the blocks.

- taken: transfers of a value from its maker's parts to its user's parts, for each pair on different devices with common
  elements
- step: the forward pass of a step, a task for each part
- summed: the all-reduce of the terms of a pending value
- returned, collected, back: the same for cotangents, from users to makers
- added: the all-reduce of parameter gradients, among the devices that hold the same piece
- read, norm, known: where gradients are clipped, all gradients have been read; the all-reduce of their norm; the norm is known,
  and updates may begin
- updated: the parameter updates on each device
- stored: parameters that are not trained; no tasks, only bytes

Blocks are ordered so that every edge leads upward, and their tasks are numbered in this order. `task_graph_builder.py` makes
the tasks of blocks from the flat arrays that are written here.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Literal, Protocol, get_args

import attrs
import numpy as np

from mtfc.compiler.cost.device_models import fusion_of
from mtfc.compiler.cost.effects.roofline import work_in
from mtfc.compiler.cost.hardware import Device, DeviceGraph, Machine, kinds_of
from mtfc.compiler.cost.tables.device_links import device_links
from mtfc.compiler.ir.core import Training, Value
from mtfc.compiler.ir.types import ITEM_BYTES, Mesh
from mtfc.placements.operators.cotangent_flow import CotangentFlow
from mtfc.placements.operators.operator_graph import OperatorGraph, OperatorStep
from mtfc.placements.operators.operator_parts import OperatorParts, PartFunction, Region
from mtfc.placements.operators.strategy import Configuration, Degrees
from mtfc.placements.task_graph_builder import (
    Array,
    FlatGraph,
    FlatPlacement,
    FlatStrategy,
    PartTables,
    TaskBlocks,
    build_blocks,
)

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


BlockKind = Literal[
    "taken", "step", "summed", "returned", "collected", "back", "added", "read", "norm", "known", "updated",
    "stored",
]  # fmt: skip


@attrs.frozen
class ValueUse:
    """A value that one step makes and another step uses."""

    value: Value
    maker: OperatorStep
    user: OperatorStep


@attrs.frozen(eq=False)
class ParameterBundle:
    """Parameters with the same users. Their gradients are complete at the same time. steps: the users."""

    parameters: tuple[Value, ...]
    steps: tuple[OperatorStep, ...]


@attrs.frozen
class BlockName:
    """The identity of a block: its kind, and the step, the value of a step, the use or the bundle that it belongs to."""

    kind: BlockKind
    of: Any
    value: Value | None = None

    @property
    def steps(self) -> tuple[OperatorStep, ...]:
        """The steps whose operators determine the block; the user of a value is the last one."""
        if isinstance(self.of, ValueUse):
            return self.of.maker, self.of.user
        if isinstance(self.of, ParameterBundle):
            return self.of.steps
        return () if self.of is None else (self.of,)


READ, KNOWN = BlockName("read", None), BlockName("known", None)
"""Blocks of one task each, which end when all gradients have been read, and when their norm is known."""


def block_names(flow: CotangentFlow, clips: bool) -> Iterator[BlockName]:
    """Yield all blocks, in an order in which every edge leads upward."""
    graph = flow.graph
    uses: dict[OperatorStep, list[ValueUse]] = {step: [] for step in graph.steps}
    for step in graph.steps:
        for value in step.inputs:
            use = ValueUse(value, graph.makers[value], step)
            uses[use.maker].append(use)
            yield BlockName("taken", use)
        yield BlockName("step", step)
        yield from (BlockName("summed", step, value) for value in step.outputs if value in step.pending)
    for step in reversed(graph.steps):
        if not flow.gradients[step]:
            continue
        for use in uses[step]:
            if flow.returns(use.value, use.user):
                yield BlockName("returned", use)
        for value in step.outputs:
            if value in step.pending and value in flow.seeds:
                yield BlockName("collected", step, value)
        yield BlockName("back", step)
    bundles = list(_bundles(flow))
    yield from (BlockName("added", bundle) for bundle in bundles)
    if clips and bundles:
        yield READ
        yield BlockName("norm", _all(bundles))
        yield KNOWN
    yield from (BlockName("updated", bundle) for bundle in bundles)
    yield from (BlockName("stored", bundle) for bundle in _bundles(flow, trained=False))


def _bundles(flow: CotangentFlow, trained: bool = True) -> Iterator[ParameterBundle]:
    """Yield the bundles of the parameters that get a gradient, or else of those that get none."""
    graph: OperatorGraph = flow.graph
    together: dict[tuple[int, ...], tuple[list[Value], dict[OperatorStep, None]]] = {}
    number = {step: i for i, operator in enumerate(graph.operators) for step in operator.steps}
    for parameter, steps in graph.parameter_users.items():
        own = [step for step in steps if parameter in flow.gradients[step]]
        if trained != bool(own):
            continue
        own = own or steps
        key = tuple(sorted({number[step] for step in own}))
        parameters, all = together.setdefault(key, ([], {}))
        parameters.append(parameter)
        all.update(dict.fromkeys(own))
    for key, (parameters, all) in together.items():
        if key:
            yield ParameterBundle(tuple(parameters), tuple(all))


def _all(bundles: Sequence[ParameterBundle]) -> ParameterBundle:
    """Return all bundles as one."""
    parameters = tuple(value for bundle in bundles for value in bundle.parameters)
    return ParameterBundle(parameters, tuple({step: None for bundle in bundles for step in bundle.steps}))


def blocks_of_operators(names: Sequence[BlockName], number: dict[OperatorStep, int]) -> list[list[int]]:
    """Return for each operator the blocks that its configuration determines."""
    found: list[list[int]] = [[] for _ in range(max(number.values(), default=-1) + 1)]
    for i, name in enumerate(names):
        for operator in {number[step] for step in name.steps}:
            found[operator].append(i)
    return found


class StrategyTasks:
    """Makes the blocks of a graph on the first devices of a machine, for any strategy.

    kind, room, capacity [device]: the kind of a device, bytes of its memory, and bytes that strategies may use there.
    """

    def __init__(
        self,
        flow: CotangentFlow,
        machine: Machine,
        devices: int,
        training: Training | None,
        times: PartTimes | None = None,
        is_limited: bool = True,
    ) -> None:
        """Find the blocks of a graph's tasks, and flatten graph and machine to arrays for compiled code.

        is_limited: a strategy must fit into the devices' memory.
        """
        self.flow, self.graph, self.machine = flow, flow.graph, machine
        kinds = [each.device for each in kinds_of(machine)]
        of = machine.kind_of if isinstance(machine, DeviceGraph) else [0] * devices
        self.kind = np.array(of[:devices], np.int64)
        servers = machine.servers if isinstance(machine, DeviceGraph) else ()
        self.servers = np.array([each for each in servers if each < devices], np.int64)
        self.forms = StepForms(flow, kinds, times)
        self.links = device_links(machine, devices)
        if times is not None and times.transfer is not None:
            self.links = self.links.measured(*times.transfer)
        self.states = optimizer_states(training)
        self.room = np.array([each.memory for each in kinds])[self.kind]
        self.capacity = self.room if is_limited else np.full(devices, np.inf)
        self.bandwidth = np.array([each.bandwidth.peak for each in kinds])[self.kind]
        self.number = {step: i for i, operator in enumerate(self.graph.operators) for step in operator.steps}
        self.clips = training is not None and training.clip is not None
        self.names = list(block_names(flow, self.clips))
        self.index = {name: i for i, name in enumerate(self.names)}
        self.touching = [np.array(blocks) for blocks in blocks_of_operators(self.names, self.number)]
        place = {step: i for i, step in enumerate(self.graph.steps)}
        self._steps = [[(place[step], step) for step in each.steps] for each in self.graph.operators]
        self.flat_graph = self._flat_graph(place)
        self.buffers = np.array([64, 64, 4])  # of `build`

    def update_seconds(self, size: int) -> float:
        """Return the least seconds of an update: it reads the parameter, its gradient and states, and writes the parameter and
        its states.
        """
        return size * (3 + 2 * self.states) / float(self.bandwidth.max())

    def norm_seconds(self, size: int) -> float:
        """Return the least seconds of reading a gradient for the norm; 0 if gradients are not clipped."""
        return size / float(self.bandwidth.max()) if self.clips else 0.0

    def placed(self, strategy: Sequence[Configuration]) -> FlatStrategy:
        """Encode a strategy for the compiled loops."""
        most = max([self.links.count, *(len(each.devices) for each in strategy)])
        found = FlatStrategy(
            np.empty(len(self.graph.steps), np.int64), np.zeros((len(strategy), most), np.int64)
        )
        return self._set(found, enumerate(strategy))

    def changed(self, placed: FlatStrategy, changes: Mapping[int, Configuration]) -> FlatStrategy:
        """Return an encoded strategy with other configurations of some operators."""
        return self._set(FlatStrategy(placed.form.copy(), placed.devices.copy()), changes.items())

    def _set(self, placed: FlatStrategy, changes: Iterable[tuple[int, Configuration]]) -> FlatStrategy:
        """Write the configurations of some operators into a flat strategy, and return it."""
        for operator, configuration in changes:
            for i, step in self._steps[operator]:
                placed.form[i] = self.forms.number(step, configuration.degrees)
            placed.devices[operator, : len(configuration.devices)] = configuration.devices
        return placed

    def build(self, numbers: Array, placed: FlatStrategy) -> TaskBlocks:
        """Make the blocks with some numbers, which are ascending."""
        return build_blocks(numbers, FlatPlacement(self.flat_graph, self.forms.tables, placed), self.buffers)

    def _flat_graph(self, place: Mapping[OperatorStep, int]) -> FlatGraph:
        """Return the graph as arrays of numbers for `task_graph_builder.py`: a row for each block, bundle of parameters and
        user of one.

        place: step -> its number.
        """
        bundles: list[ParameterBundle] = [
            name.of for name in self.names if name.kind in ("updated", "stored")
        ]
        rows = np.full((len(self.names), 10), -1)
        numbers, kinds = {bundle: i for i, bundle in enumerate(bundles)}, get_args(BlockKind)
        for row, name in zip(rows, self.names, strict=True):
            columns = [kinds.index(name.kind), *self._columns(name, place, numbers)]
            row[: len(columns)] = columns
        users = [
            (place[step], self.index.get(BlockName("back", step), -1)) for b in bundles for step in b.steps
        ]
        ends: list[tuple[int, ...]] = []
        parameters: list[tuple[int, ...]] = []
        places: list[int] = []
        for bundle in bundles:
            steps, first = sum(last - first for first, last, *_ in ends), len(parameters)
            for value in bundle.parameters:
                parameters.append((len(value.type.dims), ITEM_BYTES[value.type.dtype], len(places)))
                for step in bundle.steps:
                    own = (*step.outputs, *step.inputs, *step.arguments)
                    places.append(own.index(value) if value in own else -1)
            ends.append((steps, steps + len(bundle.steps), first, len(parameters)))
        return FlatGraph(
            rows,
            np.array([self.number[step] for step in self.graph.steps], np.int64),
            np.array(ends, np.int64).reshape(-1, 4),
            np.array(users, np.int64).reshape(-1, 2),
            np.array(parameters, np.int64).reshape(-1, 3),
            np.array(places, np.int64),
            self.links.port,
            self.links.rate,
            self.links.latency,
            self.links.bandwidth,
            self.links.idle,
            self.kind,
            self.bandwidth,
            self.servers,
            self.states,
            self.clips,
        )

    def _columns(
        self, name: BlockName, place: Mapping[OperatorStep, int], bundles: Mapping[ParameterBundle, int]
    ) -> list[int]:
        """Return the columns of a block after its kind; see `FlatGraph`."""
        if name.kind in ("taken", "returned"):
            use: ValueUse = name.of
            value = use.value
            ends = [self._maker(use, "summed", "step"), self.index[BlockName("step", use.user)]]
            if name.kind == "returned":
                ends = [self.index[BlockName("back", use.user)], self._maker(use, "collected", "back")]
            at = [place[use.maker], use.maker.outputs.index(value), place[use.user]]
            at += [len(use.user.outputs) + use.user.inputs.index(value), value in use.maker.pending]
            return [*at, *ends, len(value.type.dims), ITEM_BYTES[value.type.dtype]]
        if name.kind in ("step", "back"):
            return [place[name.of], self.index[BlockName("step", name.of)]]
        if name.kind in ("summed", "collected"):
            own: BlockKind = "step" if name.kind == "summed" else "back"
            return [place[name.of], name.of.outputs.index(name.value), self.index[BlockName(own, name.of)]]
        if name.kind == "added":
            return [bundles[name.of], self.index.get(READ, -1)]
        if name.kind == "updated":
            return [bundles[name.of], self.index[KNOWN if self.clips else BlockName("added", name.of)]]
        if name.kind == "stored":
            return [bundles[name.of]]
        return [self.index[READ], self.index[KNOWN], ITEM_BYTES["f32"]] if name.kind == "norm" else []

    def _maker(self, use: ValueUse, summed: BlockKind, plain: BlockKind) -> int:
        """Return the block that a value comes from, or that its cotangent goes to."""
        is_pending = use.value in use.maker.pending
        return self.index[
            BlockName(summed, use.maker, use.value) if is_pending else BlockName(plain, use.maker)
        ]
