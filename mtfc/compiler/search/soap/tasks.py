"""The task graph of a strategy (FlexFlow, section 5.1), in blocks: one operator's configuration decides few of them.

`names.py` says which blocks there are. They stand in an order in which every edge goes upward, which numbers their tasks.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import chain
from typing import Any

import attrs
import numpy as np

from mtfc.compiler.hardware import Hardware
from mtfc.compiler.ir.core import Training, Value
from mtfc.compiler.ir.types import ITEM_BYTES
from mtfc.compiler.operators.gradients import Flow
from mtfc.compiler.operators.graph import Step
from mtfc.compiler.operators.strategy import (
    Configuration,
    Parts,
    Transfers,
    cells,
    holders,
    regions_held,
    transfers,
)
from mtfc.compiler.search.soap.blocks import Array, Block, Reductions, edges
from mtfc.compiler.search.soap.costs import Costs, states
from mtfc.compiler.search.soap.links import links
from mtfc.compiler.search.soap.names import KNOWN, Bundle, Kind, Name, Use, block_names, touching

REMEMBERED = 2000
"""So many exchanges between steps are kept, to be used again."""


class Tasks:
    """Makes the blocks of a graph on a machine, for any configurations."""

    def __init__(self, flow: Flow, hardware: Hardware, devices: int, training: Training | None) -> None:
        self.flow, self.graph = flow, flow.graph
        self.costs, self.links = Costs(flow, hardware.device), links(hardware, devices)
        self.states, self.memory = states(training), hardware.device.memory
        self.bandwidth = hardware.device.bandwidth.peak
        self.number = {step: i for i, operator in enumerate(self.graph.operators) for step in operator.steps}
        self.clips = training is not None and training.clip is not None
        self.names = list(block_names(flow, self.clips))
        self.index = {name: i for i, name in enumerate(self.names)}
        self.bundles = [name.of for name in self.names if name.kind == "updated"]
        self.norm = next((i for i, name in enumerate(self.names) if name.kind == "norm"), -1)
        self.touching = touching(self.names, self.number)
        self.backs = {
            bundle: [self.index[Name("back", step)] for step in bundle.steps] for bundle in self.bundles
        }
        self._parts: dict[tuple[int, tuple[tuple[str, int], ...]], Parts] = {}
        self._transfers: dict[Any, Transfers] = {}
        self._exchanges: dict[Any, tuple[Block, Block]] = {}
        self._regions: dict[Any, list[tuple[Any, int]]] = {}
        self._shares: dict[Any, dict[int, int]] = {}
        self._build: dict[Kind, Callable[..., Block]] = {
            "taken": self._taken, "step": self._step, "summed": self._summed, "returned": self._returned,
            "collected": self._collected, "back": self._back, "added": self._added, "norm": self._norm,
            "known": self._known,
            "updated": self._updated,
        }  # fmt: skip

    def parts(self, operator: int, configuration: Configuration) -> Parts:
        key = (operator, configuration.degrees)
        if key not in self._parts:
            self._parts[key] = Parts(self.graph.operators[operator], configuration.degrees)
        return self._parts[key]

    def update_seconds(self, size: int) -> float:
        """A parameter of so many bytes, its gradient and states are read, it and the states written."""
        return size * (3 + 2 * self.states) / self.bandwidth

    def norm_seconds(self, size: int) -> float:
        """A gradient of so many bytes is read for the norm, where gradients are clipped."""
        return size / self.bandwidth if self.clips else 0.0

    def forget(self) -> None:
        """Drop what is remembered of blocks, so that a task graph is made from nothing; costs of parts stay."""
        self._transfers.clear()
        self._exchanges.clear()
        self._regions.clear()
        self._shares.clear()

    def build(self, block: int, strategy: Sequence[Configuration]) -> Block:
        name = self.names[block]
        return self._build[name.kind](block, name, _Placed(self, strategy))

    def _step(self, own: int, name: Name, placed: _Placed) -> Block:
        cost = self.costs.of(name.of, placed.parts(name.of))
        devices = placed.devices(name.of)
        held = np.bincount(devices, minlength=self.links.count) * float(cost.kept)
        return Block(devices, np.full(len(devices), cost.forward), _none(), 0, held)

    def _back(self, own: int, name: Name, placed: _Placed) -> Block:
        devices = placed.devices(name.of)
        cost = self.costs.of(name.of, placed.parts(name.of))
        all = np.arange(len(devices))
        after = edges(self.index[Name("step", name.of)], all, own, all)
        return Block(devices, np.full(len(devices), cost.backward), after, 0, np.zeros(self.links.count))

    def _taken(self, own: int, name: Name, placed: _Placed) -> Block:
        use: Use = name.of
        ids = [self._maker(use, "summed", "step"), own, self.index[Name("step", use.user)]]
        return _renumbered(self._exchanged(use, placed)[0], ids)

    def _returned(self, own: int, name: Name, placed: _Placed) -> Block:
        use: Use = name.of
        ids = [self.index[Name("back", use.user)], own, self._maker(use, "collected", "back")]
        return _renumbered(self._exchanged(use, placed)[1], ids)

    def _maker(self, use: Use, summed: Kind, plain: Kind) -> int:
        """The block that a value comes from, or its cotangent goes to."""
        is_pending = use.value in use.maker.pending
        return self.index[Name(summed, use.maker, use.value) if is_pending else Name(plain, use.maker)]

    def _exchanged(self, use: Use, placed: _Placed) -> tuple[Block, Block]:
        """What parts of two steps send each other, in both passes: blocks in which 0, 1 and 2 stand for the sender's, their
        own, and the receiver's. Alike uses share them.
        """
        signatures = self.flow.signatures
        positions = (use.maker.outputs.index(use.value), use.user.inputs.index(use.value))
        given, taken = placed.configuration(use.maker), placed.configuration(use.user)
        key = (signatures[use.maker], signatures[use.user], *positions, given, taken)
        if key not in self._exchanges:
            if len(self._exchanges) > REMEMBERED:
                self._exchanges.clear()
            self._exchanges[key] = self._exchange(use, placed, (key[:4], given.degrees, taken.degrees))
        return self._exchanges[key]

    def _exchange(self, use: Use, placed: _Placed, key: Any) -> tuple[Block, Block]:
        made, used = placed.parts(use.maker), placed.parts(use.user)
        if key not in self._transfers:
            self._transfers[key] = transfers(use.value, made, use.maker, used, use.user)
        sent = self._transfers[key]
        here, there = placed.devices(use.maker), placed.devices(use.user)
        source = holders(use.value, made, here, sent, there)
        starts = ends = source
        if use.value in use.maker.pending:
            sizes = np.array([_tasks(devices) for _, devices in placed.groups(use.maker, use.value)])
            ends = (np.cumsum(sizes) - 1)[sent.sources]
            starts = (np.cumsum(sizes) - sizes)[sent.sources]
        givers, takers = here[source], there[sent.targets]
        forward = self._sent((ends, givers), (sent.targets, takers), sent.bytes)
        remote = givers != takers
        held = np.bincount(takers[remote], sent.bytes[remote], minlength=self.links.count)
        backward = self._sent((sent.targets, takers), (starts, givers), sent.bytes)
        return attrs.evolve(forward, held=held), backward

    def _sent(self, source: tuple[Array, Array], target: tuple[Array, Array], size: Array) -> Block:
        """What goes from some tasks to others, (tasks, their devices) each."""
        (givers, here), (takers, there) = source, target
        far = np.flatnonzero(here != there)
        near = np.flatnonzero(here == there)
        all = np.arange(len(far))
        found = [edges(0, givers[near], 2, takers[near])]
        found += [edges(0, givers[far], 1, all), edges(1, all, 2, takers[far])]
        seconds = self.links.seconds(here[far], there[far], size[far])
        port = self.links.port[here[far], there[far]]
        return Block(port, seconds, np.hstack(found), int(size[far].sum()), np.zeros(self.links.count))

    def _summed(self, own: int, name: Name, placed: _Placed) -> Block:
        assert name.value is not None
        block, before = Reductions(own, self.links), self.index[Name("step", name.of)]
        for members, devices in placed.groups(name.of, name.value):
            block.add(devices, placed.size(name.of, name.value), [(before, members)])
        return block.block()

    def _collected(self, own: int, name: Name, placed: _Placed) -> Block:
        assert name.value is not None
        block, after = Reductions(own, self.links), self.index[Name("back", name.of)]
        for members, devices in placed.groups(name.of, name.value):
            end = block.add(devices, placed.size(name.of, name.value), [])
            block.edges.append(edges(own, end, after, members))
        return block.block()

    def _added(self, own: int, name: Name, placed: _Placed) -> Block:
        """The gradients of a bundle; before they are clipped each device reads its own, for their norm."""
        block = Reductions(own, self.links)
        before, number, device = placed.backs(name.of)
        for mask, size in placed.shares(name.of).items():
            devices = _members(mask)
            is_member = np.zeros(self.links.count, bool)
            is_member[devices] = True
            has = is_member[device]
            end = block.add(devices, size, [(before[has], number[has])])
            if self.clips:
                read = np.array([block.task(each, self.norm_seconds(size)) for each in devices])
                block.edges.append(edges(own, end, own, read))
                block.edges.append(edges(own, read, self.norm, 0))
        return block.block()

    def _norm(self, own: int, name: Name, placed: _Placed) -> Block:
        mask = 0
        for each in self.bundles:
            for shared in placed.shares(each):
                mask |= shared
        block = Reductions(own, self.links)
        end = block.add(_members(mask), ITEM_BYTES["f32"], [])
        block.edges.append(edges(own, np.array([end]), self.index[KNOWN], 0))
        return block.block()

    def _known(self, own: int, name: Name, placed: _Placed) -> Block:
        block = Reductions(own, self.links)
        block.task(self.links.ports, 0.0)
        return block.block()

    def _updated(self, own: int, name: Name, placed: _Placed) -> Block:
        """Each device's copy of the parameters of a bundle, once their gradients are added up, or the norm of all is known."""
        block, end = Reductions(own, self.links), -1
        for mask, size in placed.shares(name.of).items():
            devices = _members(mask)
            tasks = np.array([block.task(device, self.update_seconds(size)) for device in devices])
            end += _tasks(devices)
            before = (self.index[KNOWN], 0) if self.clips else (self.index[Name("added", name.of)], end)
            block.edges.append(edges(*before, own, tasks))
            block.held[devices] += size * (2 + self.states)
        return block.block()


def _members(mask: int) -> list[int]:
    """The devices of a mask."""
    return [device for device in range(mask.bit_length()) if mask >> device & 1]


def _tasks(devices: Sequence[int]) -> int:
    """How many tasks a sum among devices is: see `Reductions`."""
    return len(devices) + 2 if len(devices) > 1 else 2


def _renumbered(block: Block, ids: Sequence[int]) -> Block:
    """A block with the numbers of blocks in its edges replaced."""
    found = block.edges.copy()
    found[::2] = np.array(ids)[found[::2]]
    return attrs.evolve(block, edges=found)


class _Placed:
    """What a strategy says about steps."""

    def __init__(self, tasks: Tasks, strategy: Sequence[Configuration]) -> None:
        self.tasks, self.strategy = tasks, strategy

    def configuration(self, step: Step) -> Configuration:
        return self.strategy[self.tasks.number[step]]

    def parts(self, step: Step) -> Parts:
        number = self.tasks.number[step]
        return self.tasks.parts(number, self.strategy[number])

    def devices(self, step: Step) -> Array:
        return np.array(self.configuration(step).devices)

    def groups(self, step: Step, value: Value) -> list[tuple[Array, list[int]]]:
        """The parts that hold each part of a value, and on which devices."""
        devices = self.devices(step)
        return [(each, sorted(set(devices[each].tolist()))) for each in self.parts(step).groups(value)]

    def size(self, step: Step, value: Value) -> int:
        """Bytes of one part of a value."""
        split = 1
        for name, degree in self.parts(step).degrees:
            split *= degree if name in value.type.names else 1
        return value.type.size * ITEM_BYTES[value.type.dtype] // split

    def backs(self, bundle: Bundle) -> tuple[Array, Array, Array]:
        """All parts of the steps of a bundle: their blocks of the backward pass, their numbers there and their devices."""
        devices = [self.configuration(step).devices for step in bundle.steps]
        counts = [len(each) for each in devices]
        blocks = self.tasks.backs[bundle]
        number = np.arange(sum(counts)) - np.repeat(np.cumsum(counts) - counts, counts)
        return np.repeat(blocks, counts), number, np.array(list(chain.from_iterable(devices)))

    def held(self, place: int, parameter: Value, step: Step) -> list[tuple[Any, int]]:
        """The parts of a parameter, an argument of a step, that its parts use, and on which devices."""
        known, configuration = self.tasks._regions, self.configuration(step)
        key = (self.tasks.flow.signatures[step], place, configuration)
        if key not in known:
            if len(known) > REMEMBERED:
                known.clear()
            known[key] = list(regions_held(parameter, self.parts(step), step, configuration.devices))
        return known[key]

    def shares(self, bundle: Bundle) -> dict[int, int]:
        """Which devices hold how many bytes of the parameters in common: mask -> bytes."""
        known, key = self.tasks._shares, (bundle, *map(self.configuration, bundle.steps))
        if key not in known:
            if len(known) > REMEMBERED:
                known.clear()
            known[key] = self._shared(bundle)
        return known[key]

    def _shared(self, bundle: Bundle) -> dict[int, int]:
        signatures = self.tasks.flow.signatures
        alike = {
            (signatures[step], places, self.configuration(step)): step
            for step, places in zip(bundle.steps, bundle.places, strict=True)
        }
        found: dict[int, int] = {}
        for i, parameter in enumerate(bundle.parameters):
            held = set()
            for (_, places, _), step in alike.items():
                if (place := places[i]) is not None:
                    held |= set(self.held(place, parameter, step))
            for cell in cells(parameter, held):
                found[cell.mask] = found.get(cell.mask, 0) + cell.bytes
        return found


def _none() -> Array:
    return np.zeros((4, 0), np.int64)
