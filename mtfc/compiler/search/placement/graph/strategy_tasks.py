"""The task graph of a strategy (FlexFlow, section 5.1), in blocks: one operator's configuration decides few of them.

`block_names.py` says which blocks there are. They stand in an order in which every edge goes upward, which numbers their tasks.
`task_graph_builder.py` makes them; what it needs to know about each is said here.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import get_args

import numpy as np

from mtfc.compiler.cost.hardware import Hardware
from mtfc.compiler.ir.core import Training
from mtfc.compiler.ir.types import ITEM_BYTES
from mtfc.compiler.search.placement.graph.block_names import (
    KNOWN,
    READ,
    Bundle,
    Kind,
    Name,
    Use,
    block_names,
    touching,
)
from mtfc.compiler.search.placement.graph.device_links import links
from mtfc.compiler.search.placement.graph.task_graph_builder import built
from mtfc.compiler.search.placement.operators.cotangent_flow import Flow
from mtfc.compiler.search.placement.operators.operator_graph import Step
from mtfc.compiler.search.placement.operators.strategy import Configuration
from mtfc.compiler.search.placement.operators.strategy_space import Choices
from mtfc.compiler.search.placement.parts.block_arrays import Array, Blocks
from mtfc.compiler.search.placement.parts.flat_encoding import (
    ADDED,
    COLLECTED,
    NORM,
    RETURNED,
    TAKEN,
    Placed,
    Plan,
)
from mtfc.compiler.search.placement.parts.part_costs import states
from mtfc.compiler.search.placement.parts.part_sizes import Forms


class Tasks:
    """Makes the blocks of a graph on a machine, for any configurations."""

    def __init__(
        self,
        flow: Flow,
        hardware: Hardware,
        devices: int,
        training: Training | None,
        choices: Sequence[Choices],
    ) -> None:
        self.flow, self.graph = flow, flow.graph
        self.forms, self.links = Forms(flow, hardware.device, choices), links(hardware, devices)
        self.states, self.memory = states(training), hardware.device.memory
        self.bandwidth = hardware.device.bandwidth.peak
        self.number = {step: i for i, operator in enumerate(self.graph.operators) for step in operator.steps}
        self.clips = training is not None and training.clip is not None
        self.names = list(block_names(flow, self.clips))
        self.index = {name: i for i, name in enumerate(self.names)}
        self.touching = [np.array(blocks) for blocks in touching(self.names, self.number)]
        place = {step: i for i, step in enumerate(self.graph.steps)}
        self._steps = [[(place[step], step) for step in each.steps] for each in self.graph.operators]
        self.plan = self._plan(place)
        self.leads = leads(self.plan.blocks)
        self.room = np.array([64, 64, 4])  # of `built`

    def update_seconds(self, size: int) -> float:
        """A parameter of so many bytes, its gradient and states are read, it and the states written."""
        return size * (3 + 2 * self.states) / self.bandwidth

    def norm_seconds(self, size: int) -> float:
        """A gradient of so many bytes is read for the norm, where gradients are clipped."""
        return size / self.bandwidth if self.clips else 0.0

    def placed(self, strategy: Sequence[Configuration]) -> Placed:
        """A strategy as the compiled loops know it."""
        most = max([self.links.count, *(len(each.devices) for each in strategy)])
        found = Placed(np.empty(len(self.graph.steps), np.int64), np.zeros((len(strategy), most), np.int64))
        return self._set(found, enumerate(strategy))

    def changed(self, placed: Placed, changes: Mapping[int, Configuration]) -> Placed:
        """The same with other configurations of some operators."""
        return self._set(Placed(placed.form.copy(), placed.devices.copy()), changes.items())

    def _set(self, placed: Placed, changes: Iterable[tuple[int, Configuration]]) -> Placed:
        for operator, configuration in changes:
            for i, step in self._steps[operator]:
                placed.form[i] = self.forms.number(step, configuration.degrees)
            placed.devices[operator, : len(configuration.devices)] = configuration.devices
        return placed

    def build(self, numbers: Array, placed: Placed) -> Blocks:
        """The blocks with some numbers, in ascending order."""
        return built(numbers, self.plan, self.forms.known, placed, self.room)

    def _plan(self, place: Mapping[Step, int]) -> Plan:
        bundles: list[Bundle] = [name.of for name in self.names if name.kind in ("updated", "stored")]
        rows = np.full((len(self.names), 10), -1)
        numbers, kinds = {bundle: i for i, bundle in enumerate(bundles)}, get_args(Kind)
        for row, name in zip(rows, self.names, strict=True):
            columns = [kinds.index(name.kind), *self._columns(name, place, numbers)]
            row[: len(columns)] = columns
        users = [(place[step], self.index.get(Name("back", step), -1)) for b in bundles for step in b.steps]
        ends: list[tuple[int, ...]] = []
        parameters: list[tuple[int, ...]] = []
        places: list[int] = []
        for bundle in bundles:
            steps, first = sum(last - first for first, last, *_ in ends), len(parameters)
            for i, value in enumerate(bundle.parameters):
                parameters.append((len(value.type.dims), ITEM_BYTES[value.type.dtype], len(places)))
                places += [_place(at[i], step) for step, at in zip(bundle.steps, bundle.places, strict=True)]
            ends.append((steps, steps + len(bundle.steps), first, len(parameters)))
        return Plan(
            rows,
            np.array([self.number[step] for step in self.graph.steps], np.int64),
            np.array(ends, np.int64).reshape(-1, 4),
            np.array(users, np.int64).reshape(-1, 2),
            np.array(parameters, np.int64).reshape(-1, 3),
            np.array(places, np.int64),
            self.links.port,
            self.links.latency,
            self.links.bandwidth,
            self.links.idle,
            self.bandwidth,
            self.states,
            self.clips,
        )

    def _columns(self, name: Name, place: Mapping[Step, int], bundles: Mapping[Bundle, int]) -> list[int]:
        """What a block is made of: see `flat_encoding.Plan`."""
        if name.kind in ("taken", "returned"):
            use: Use = name.of
            value = use.value
            ends = [self._maker(use, "summed", "step"), self.index[Name("step", use.user)]]
            if name.kind == "returned":
                ends = [self.index[Name("back", use.user)], self._maker(use, "collected", "back")]
            at = [place[use.maker], use.maker.outputs.index(value), place[use.user]]
            at += [len(use.user.outputs) + use.user.inputs.index(value), value in use.maker.pending]
            return [*at, *ends, len(value.type.dims), ITEM_BYTES[value.type.dtype]]
        if name.kind in ("step", "back"):
            return [place[name.of], self.index[Name("step", name.of)]]
        if name.kind in ("summed", "collected"):
            own: Kind = "step" if name.kind == "summed" else "back"
            return [place[name.of], name.of.outputs.index(name.value), self.index[Name(own, name.of)]]
        if name.kind == "added":
            return [bundles[name.of], self.index.get(READ, -1)]
        if name.kind == "updated":
            return [bundles[name.of], self.index[KNOWN if self.clips else Name("added", name.of)]]
        if name.kind == "stored":
            return [bundles[name.of]]
        return [self.index[READ], self.index[KNOWN], ITEM_BYTES["f32"]] if name.kind == "norm" else []

    def _maker(self, use: Use, summed: Kind, plain: Kind) -> int:
        """The block that a value comes from, or its cotangent goes to."""
        is_pending = use.value in use.maker.pending
        return self.index[Name(summed, use.maker, use.value) if is_pending else Name(plain, use.maker)]


def leads(blocks: Array) -> Array:
    """For each block the one, if it is another, that edges of it may lead to; else -1."""
    column = {TAKEN: 7, RETURNED: 7, COLLECTED: 3, ADDED: 2, NORM: 2}
    return np.array([row[column[row[0]]] if row[0] in column else -1 for row in blocks.tolist()], np.int64)


def _place(argument: int | None, step: Step) -> int:
    """Which of a step's tables an argument has."""
    return -1 if argument is None else len(step.outputs) + len(step.inputs) + argument
