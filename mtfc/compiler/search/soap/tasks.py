"""The task graph of a strategy (FlexFlow, section 5.1), in blocks: one operator's configuration decides few of them.

    taken      what the parts of a step take of a value: a transfer for each pair of parts on different devices that share some
    of it step       the forward pass of a step: a task for each part summed     the terms of a pending value, added up among
    those that hold it returned, collected, back    the same for the cotangents, from the users to the makers updated
    parameters: gradients added up among the devices that hold the same part of one, and the update on each

Blocks stand in an order in which every edge goes upward, which numbers their tasks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import cached_property
from itertools import chain
from typing import Any, Literal

import attrs
import numpy as np

from mtfc.compiler.hardware import Hardware
from mtfc.compiler.ir.core import Training, Value
from mtfc.compiler.ir.types import ITEM_BYTES
from mtfc.compiler.operators.gradients import Flow
from mtfc.compiler.operators.graph import OperatorGraph, Step
from mtfc.compiler.operators.strategy import (
    Configuration,
    Parts,
    Transfers,
    cells,
    holders,
    regions_held,
    transfers,
    users,
)
from mtfc.compiler.search.soap.blocks import Array, Block, Reductions, edges
from mtfc.compiler.search.soap.costs import Costs, states
from mtfc.compiler.search.soap.links import links

REMEMBERED = 2000
"""So many exchanges between steps are kept, to be used again."""

Kind = Literal["taken", "step", "summed", "returned", "collected", "back", "updated"]


@attrs.frozen
class Use:
    """A value that a step makes and another uses."""

    value: Value
    maker: Step
    user: Step


@attrs.frozen(eq=False)
class Bundle:
    """Parameters that the same operators use: their gradients are complete at the same time."""

    parameters: tuple[Value, ...]
    steps: tuple[Step, ...]

    @cached_property
    def places(self) -> list[tuple[int | None, ...]]:
        """Of each step: which of its arguments the parameters are, None for those that it does not use."""
        found = [{value: i for i, value in enumerate(step.arguments)} for step in self.steps]
        return [tuple(each.get(value) for value in self.parameters) for each in found]


@attrs.frozen
class Name:
    """Which block: its kind, and the step, the value of a step, the use or the bundle that it belongs to."""

    kind: Kind
    of: Any
    value: Value | None = None


class Tasks:
    """Makes the blocks of a graph on a machine, for any configurations."""

    def __init__(self, flow: Flow, hardware: Hardware, devices: int, training: Training | None) -> None:
        self.flow, self.graph = flow, flow.graph
        self.costs, self.links = Costs(flow, hardware.device), links(hardware, devices)
        self.states, self.memory = states(training), hardware.device.memory
        self.bandwidth = hardware.device.bandwidth.peak
        self.number = {step: i for i, operator in enumerate(self.graph.operators) for step in operator.steps}
        self.names = list(_names(flow))
        self.index = {name: i for i, name in enumerate(self.names)}
        self.touching = _touching(self.names, self.number)
        self.backs = {
            name.of: [self.index[Name("back", step)] for step in name.of.steps]
            for name in self.names
            if name.kind == "updated"
        }
        self._parts: dict[tuple[int, tuple[tuple[str, int], ...]], Parts] = {}
        self._transfers: dict[Any, Transfers] = {}
        self._exchanges: dict[Any, tuple[Block, Block]] = {}
        self._regions: dict[Any, list[tuple[Any, int]]] = {}
        self._build: dict[Kind, Callable[..., Block]] = {
            "taken": self._taken, "step": self._step, "summed": self._summed, "returned": self._returned,
            "collected": self._collected, "back": self._back, "updated": self._updated,
        }  # fmt: skip

    def parts(self, operator: int, configuration: Configuration) -> Parts:
        key = (operator, configuration.degrees)
        if key not in self._parts:
            self._parts[key] = Parts(self.graph.operators[operator], configuration.degrees)
        return self._parts[key]

    def update_seconds(self, size: int) -> float:
        """A parameter of so many bytes, its gradient and states are read, it and the states written."""
        return size * (3 + 2 * self.states) / self.bandwidth

    def forget(self) -> None:
        """Drop what is remembered of blocks, so that a task graph is made from nothing; costs of parts stay."""
        self._transfers.clear()
        self._exchanges.clear()
        self._regions.clear()

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

    def _updated(self, own: int, name: Name, placed: _Placed) -> Block:
        bundle: Bundle = name.of
        block = Reductions(own, self.links)
        before, number, device = placed.backs(bundle)
        for mask, size in placed.shares(bundle).items():
            devices = [device for device in range(self.links.count) if mask >> device & 1]
            is_member = np.zeros(self.links.count, bool)
            is_member[devices] = True
            has = is_member[device]
            end = block.add(devices, size, [(before[has], number[has])])
            tasks = [block.task(device, self.update_seconds(size)) for device in devices]
            block.edges.append(edges(own, end, own, np.array(tasks)))
            block.held[devices] += size * (2 + self.states)
        return block.block()


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


def _names(flow: Flow) -> Iterator[Name]:
    """All blocks, in an order in which every edge goes upward."""
    graph = flow.graph
    uses: dict[Step, list[Use]] = {step: [] for step in graph.steps}
    for step in graph.steps:
        for value in step.inputs:
            use = Use(value, graph.makers[value], step)
            uses[use.maker].append(use)
            yield Name("taken", use)
        yield Name("step", step)
        yield from (Name("summed", step, value) for value in step.outputs if value in step.pending)
    for step in reversed(graph.steps):
        if not flow.gradients[step]:
            continue
        for use in uses[step]:
            if use.value in flow.gradients[use.user]:
                yield Name("returned", use)
        for value in step.outputs:
            if value in step.pending and value in flow.seeds:
                yield Name("collected", step, value)
        yield Name("back", step)
    yield from (Name("updated", bundle) for bundle in _bundles(flow))


def _bundles(flow: Flow) -> Iterator[Bundle]:
    graph: OperatorGraph = flow.graph
    together: dict[tuple[int, ...], tuple[list[Value], dict[Step, None]]] = {}
    number = {step: i for i, operator in enumerate(graph.operators) for step in operator.steps}
    for parameter, steps in users(graph).items():
        own = [step for step in steps if parameter in flow.gradients[step]]
        key = tuple(sorted({number[step] for step in own}))
        parameters, all = together.setdefault(key, ([], {}))
        parameters.append(parameter)
        all.update(dict.fromkeys(own))
    for key, (parameters, all) in together.items():
        if key:
            yield Bundle(tuple(parameters), tuple(all))


def _touching(names: Sequence[Name], number: dict[Step, int]) -> list[list[int]]:
    """For each operator the blocks that its configuration decides."""
    found: list[list[int]] = [[] for _ in range(max(number.values()) + 1)]
    for i, name in enumerate(names):
        if isinstance(name.of, Use):
            steps: tuple[Step, ...] = (name.of.maker, name.of.user)
        else:
            steps = name.of.steps if isinstance(name.of, Bundle) else (name.of,)
        for operator in {number[step] for step in steps}:
            found[operator].append(i)
    return found
