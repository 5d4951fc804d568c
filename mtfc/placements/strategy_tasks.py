"""The task graph of any strategy (FlexFlow, section 5.1), in blocks of tasks. A configuration determines few of the blocks.

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

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Literal, get_args

import attrs
import numpy as np

from mtfc.compiler.cost.device_graph import DeviceGraph, Machine, kinds_of
from mtfc.compiler.cost.tables.device_links import device_links
from mtfc.compiler.ir.core import Training, Value
from mtfc.compiler.ir.types import ITEM_BYTES
from mtfc.placements.operators.cotangent_flow import CotangentFlow
from mtfc.placements.operators.operator_graph import OperatorGraph, OperatorStep
from mtfc.placements.operators.strategy import Configuration
from mtfc.placements.part_costs import PartTimes, StepForms, optimizer_states
from mtfc.placements.task_graph_builder import (
    Array,
    FlatGraph,
    FlatPlacement,
    FlatStrategy,
    TaskBlocks,
    build_blocks,
)

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
