"""Builds the network of a function in program order, with a clock for the lifetimes of values.

A value is in memory from the equation that makes it to the last one that needs it, by the rules of `analysis/liveness.py`. A
slice, a carry and a yielded value have buffers of their own. A copy that a reshard makes for a single use is left out.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from math import inf

import attrs
import numpy as np

from mtfc.compiler.analysis.liveness import Inside, nothing_inside, takes_over, unstored
from mtfc.compiler.analysis.pending_values import may_be_pending
from mtfc.compiler.cost.tables.collective_tables import (
    Conversions,
    Indices,
    Numbers,
    TensorPlacements,
    in_time,
)
from mtfc.compiler.ir.core import Argument, Equation, Function, Output, Value
from mtfc.compiler.ir.loops import dim_of, pairs, region_of, stacked_type
from mtfc.compiler.ir.opdef import no_flops
from mtfc.compiler.ir.ops import OPS
from mtfc.compiler.ir.printer import shown_layout
from mtfc.compiler.ir.types import Axes, Mesh, TensorType
from mtfc.compiler.search.per_equation.choice_network import ChoiceEdge, ChoiceNetwork, ChoiceNode, Owner
from mtfc.compiler.search.per_equation.equation_strategies import PlacedStrategies, Strategy, strategies

Work = Callable[[Equation, Sequence[Equation]], Sequence[float]]
"""Returns the costs of one execution of an equation, for each of these placements."""


Copying = Callable[[Equation, Value, Sequence[TensorType]], Sequence[float]]
"""Returns the costs of one copy of an operand or result for an equation, for each of these placements, without sends."""


KEPT_FOREVER = 1 << 40
"""A time after all equations."""


@attrs.frozen(eq=False)
class _ValueSource:
    """The node that makes a value, and the placement of the value under each option.

    Under the last `sent` options the value may have been sent. made: the number of the placement under each option.
    """

    node: int
    placements: TensorPlacements
    made: Indices
    sent: int = 0

    def conversions(self, types: Iterable[TensorType]) -> Numbers:
        """Return the costs to bring the value into other placements: [option of the source, placement]."""
        return self.placements.costs[np.ix_(self.made, self.placements.indices(types))]

    def costs(self, use: _ValueUse) -> Numbers:
        """Return the costs of one use: [option of the source, option of the use]."""
        same = self.made[:, None] == use.needed
        same[len(self.made) - self.sent :] = False
        found: Numbers = self.placements.costs[np.ix_(self.made, use.needed)] + np.where(
            same, use.copied, 0.0
        )
        return found


@attrs.frozen(eq=False)
class _ValueUse:
    """A node that uses a value, the placement that each of its options needs, and the cost of a copy for each option.

    needed: the number of the placement for each option.
    """

    node: int
    needed: Indices
    copied: Numbers


def is_free(eqn: Equation) -> bool:
    """Return True if an equation has no operands and no FLOPs: every use can compute it."""
    return not eqn.regions and not eqn.operands and OPS[eqn.op].flops is no_flops


def _stage(node: ChoiceNode) -> str | None:
    return node.owner.stage if isinstance(node.owner, Equation) else None


def _splits(type: TensorType, names: Collection[str]) -> tuple[Axes, ...]:
    return tuple(axes for name, axes in zip(type.names, type.splits, strict=True) if name in names)


@attrs.define(eq=False)
class ValueNetwork:
    """Collects nodes and edges. For each value, it knows the node that makes the value and the nodes that use it.

    gradients: the weight of communicating gradients to the update. inside: see `liveness`. until: the time of `time.monotonic`
    after which `TimeoutError` is raised. unstored: values without memory of their own, with the values that they are read from.
    """

    mesh: Mesh
    conversions: Conversions
    gradients: float = attrs.field(default=1.0, kw_only=True)
    inside: Inside = attrs.field(default=nothing_inside, kw_only=True)
    until: float = attrs.field(default=inf, kw_only=True)
    nodes: list[ChoiceNode] = attrs.field(factory=list, init=False)
    edges: list[ChoiceEdge] = attrs.field(factory=list, init=False)
    sources: dict[Value, _ValueSource] = attrs.field(factory=dict, init=False)
    uses: dict[Value, list[_ValueUse]] = attrs.field(factory=dict, init=False)
    unstored: dict[Value, tuple[Value, ...]] = attrs.field(factory=dict, init=False)
    clock: int = attrs.field(default=0, init=False)

    def _node(self, owner: Owner, options: Sequence[Strategy | TensorType], memory: Numbers) -> int:
        self.nodes.append(ChoiceNode(owner, options, np.zeros(len(options)), memory, self.clock, self.clock))
        return len(self.nodes) - 1

    def _bytes(self, types: Iterable[TensorType]) -> Numbers:
        return np.array([type.local_bytes(self.mesh) for type in types], np.float64)

    def _comes_from(
        self, value: Value, node: int, types: Sequence[TensorType], reduction: str = "sum"
    ) -> None:
        """Note that a node makes a value, with the type of the value under each option."""
        placements = self.conversions.of(value.type, reduction)
        self.sources[value] = _ValueSource(node, placements, placements.indices(types))

    def _edge(self, first: int, second: int, costs: Numbers) -> None:
        """Add an edge with costs, unless nothing costs. Communication from the backward pass to the update is weighted.

        first, second: the numbers of both nodes.
        """
        if first == second or not costs.any():
            return
        if _stage(self.nodes[second]) == "update" != _stage(self.nodes[first]):
            costs = np.multiply(costs, self.gradients, out=costs.copy(), where=np.isfinite(costs))
        self.edges.append(ChoiceEdge(first, second, costs))

    def _kept(self, value: Value, until: int) -> None:
        """Keep a value in memory until a time. If the value is not stored, keep the arrays that it is read from."""
        for source in self.unstored.get(value, ()):
            if source in self.sources:
                self._kept(source, until)
        node = self.nodes[self.sources[value].node]
        node.death = max(node.death, until)

    def _connect(self, function: Function, times: int) -> None:
        """Add edges from each value to the equations that use the value.

        If several equations use it, the edges go through a version. times: how often the function runs in a step.
        """
        values = [argument.value for argument in function.arguments]
        values += [value for eqn in function.body for value in eqn.results]
        for value in in_time(values, self.until):
            uses = self.uses.get(value, [])
            if len(uses) > 1:
                self._version(value, self.sources[value], uses, times)
            elif uses:
                self._needs(self.sources[value], uses[0], times)

    def _needs(self, source: _ValueSource, use: _ValueUse, times: int) -> None:
        self._edge(source.node, use.node, source.costs(use) * times)

    def _version(self, value: Value, source: _ValueSource, uses: Sequence[_ValueUse], times: int) -> None:
        """Add a version: the value as it is made, or a copy in the placement of its first use, which other uses share.

        source: the node that makes the value. times: how often the value is made in a step.
        """
        first, *other_uses = uses
        needs = {int(i) for use in other_uses for i in use.needed}
        copies = np.array([i for i in np.unique(first.needed) if i in needs], np.intp)
        places, origin = source.placements, self.nodes[source.node]
        same = np.unique(source.made)
        options = [places.types[i] for i in (*same, *copies)]
        memory = np.concatenate([np.zeros(len(same)), self._bytes(places.types[i] for i in copies)])
        number = self._node(value, options, memory)
        node = self.nodes[number]
        node.birth, node.death, node.shared = origin.birth, origin.death, len(same)
        costs_of_same = np.where(source.made[:, None] == same, 0.0, np.inf)
        costs_of_copies = places.costs[np.ix_(source.made, copies)] * times
        self._edge(source.node, number, np.concatenate([costs_of_same, costs_of_copies], axis=1))
        first_use_of_same = _ValueSource(number, places, same).costs(first) * times
        first_use_of_copies = np.where(copies[:, None] == first.needed, 0.0, np.inf)
        self._edge(number, first.node, np.concatenate([first_use_of_same, first_use_of_copies]))
        version = _ValueSource(number, places, np.concatenate([same, copies]), len(copies))
        for use in other_uses:
            self._needs(version, use, times)


@attrs.define(eq=False)
class NetworkBuilder(ValueNetwork):
    """Builds the network of one function.

    splittable: dimensions that a layout can name. work, copying: costs of equations. pending: values that may hold a pending sum.
    makers: equations without operands, by their results. free: the node that such an equation follows, and the placements that
    the node's options need. choices: strategies, shared by equal equations.
    """

    splittable: Collection[str]
    work: Work
    copying: Copying
    pending: set[Value] = attrs.field(factory=set, init=False)
    makers: dict[Value, Equation] = attrs.field(factory=dict, init=False)
    free: dict[Equation, tuple[int, Sequence[TensorType]]] = attrs.field(factory=dict, init=False)
    choices: dict[object, PlacedStrategies] = attrs.field(factory=dict, init=False)

    def network(self, function: Function) -> ChoiceNetwork:
        """Return the network of a function: nodes for arguments, equations and outputs, and edges for the resharding between
        them.
        """
        self.pending = self.sums(function)
        ports = {
            argument.value.name: self._port(argument, argument.value, 0, KEPT_FOREVER)
            for argument in function.arguments
        }
        self._body(function, 1)
        for output in function.outputs:
            self._given(output, ports)
        self._connect(function, 1)
        return ChoiceNetwork(function, self.mesh, tuple(self.nodes), tuple(self.edges), self.free)

    def sums(self, function: Function) -> set[Value]:
        """Return the values that may hold a pending sum."""
        return may_be_pending(function)

    def _port(self, owner: Owner, value: Value, birth: int, death: int) -> int:
        """Add a node for a value that enters, with all its placements."""
        options = self._placements(value)
        number = self._node(owner, options, self._bytes(options))
        self.nodes[number].birth, self.nodes[number].death = birth, death
        self._comes_from(value, number, options)
        return number

    def _placements(self, value: Value) -> list[TensorType]:
        """Return the placements that a layout can ask for."""
        return [
            type
            for type in self.conversions.of(value.type).types
            if (not type.pending or value in self.pending)
            and all(
                not axes or name in self.splittable
                for name, axes in zip(type.names, type.splits, strict=True)
            )
        ]

    # Equations

    def _body(self, function: Function, times: int) -> None:
        """Add the equations of a body that runs `times` times in a step.

        The clock counts equations; memory is held between its times.
        """
        replaced = {output.value for output in function.outputs if output.updates is not None}
        self.unstored |= unstored(function, self.inside)
        for eqn in in_time(function.body, self.until):
            self.clock += 1
            if eqn.regions:
                self._loop(eqn, times)
            elif is_free(eqn):
                self.makers[eqn.result] = eqn
            else:
                self._equation(eqn, times, replaced)

    def _equation(self, eqn: Equation, times: int, replaced: Collection[Value]) -> None:
        """Add an equation. A result that replaces an argument overwrites it, and takes no further memory.

        times: how often the equation runs in a step. replaced: the results that replace arguments.
        """
        rule = OPS[eqn.op].layout_rule(eqn)
        pending = [i for i, value in enumerate(eqn.operands) if value in self.pending]
        choices = self._choices(eqn, pending)
        memory = np.zeros(len(choices.strategies))
        for i, value in enumerate(eqn.results):
            if value not in replaced and value not in self.unstored:
                memory += self._bytes(choices.made(i))
        node = self._node(eqn, choices.strategies, memory)
        self.nodes[node].costs = np.array(self.work(eqn, choices.placed), np.float64) * times
        for i, value in enumerate(eqn.operands):
            self._uses(eqn, value, node, choices.needed(i))
        for i, value in enumerate(eqn.results):
            self._comes_from(value, node, choices.made(i), rule.reduction)

    def _choices(self, eqn: Equation, pending: list[int]) -> PlacedStrategies:
        """Return the strategies of an equation; equal equations share them."""
        types = tuple(tuple(value.type for value in values) for values in (eqn.operands, eqn.results))
        key = (eqn.op, types, tuple(sorted(eqn.attrs.items())), tuple(pending))
        if key not in self.choices:
            self.choices[key] = PlacedStrategies.of(eqn, self.strategies(eqn, pending), self.mesh)
        return self.choices[key]

    def strategies(self, eqn: Equation, pending: list[int]) -> Iterator[Strategy]:
        """Return the strategies that an equation may have; sums may be pending in the operands `pending`."""
        return strategies(eqn, self.mesh, self.splittable, pending, self.until)

    def _uses(self, eqn: Equation, value: Value, node: int, types: Sequence[TensorType]) -> None:
        """Add a use of a value. The value stays in memory during the use unless a result overwrites it."""
        if self._is_free(value, node, types):
            return
        needed = self.sources[value].placements.indices(types)
        known = self.uses.setdefault(value, [])
        if not any(use.node == node and np.array_equal(use.needed, needed) for use in known):
            known.append(_ValueUse(node, needed, np.array(self.copying(eqn, value, types), np.float64)))
        over = any(takes_over(eqn, value, result, self.mesh) for result in eqn.results)
        self._kept(value, self.clock + (not over))

    def _is_free(self, value: Value, node: int, types: Sequence[TensorType]) -> bool:
        """Return True if the value's equation has no operands; it runs in the layout that its first use needs."""
        eqn = self.makers.get(value)
        if eqn is not None:
            self.free.setdefault(eqn, (node, types))
        return eqn is not None

    # Loops and outputs

    def _loop(self, eqn: Equation, times: int) -> None:
        """Add a loop that runs `times` times: nodes for the arguments of its body, the body, and the uses of what it returns.

        Operands stay in memory until the loop ends; the arrays that are carried in are replaced at its start.
        """
        region, begin = region_of(eqn), self.clock
        inner = times * dim_of(eqn).size
        ports = {a.value.name: self._port(a, a.value, begin, begin) for a in region.arguments}
        for operand, argument in pairs(eqn):
            ENTER[argument.role](self, operand, ports[argument.value.name], times)
        self._body(region, inner)
        self.clock += 1
        for operand, argument in pairs(eqn):
            if operand in self.sources:
                self._kept(operand, begin if argument.role == "carried" else self.clock)
            if argument.role == "carried":
                self._kept(argument.value, self.clock)
        for result, output in zip(eqn.results, region.outputs, strict=True):
            self._leaves(result, output, ports, begin, inner)
        self._connect(region, inner)

    def _carried(self, operand: Value, port: int, times: int) -> None:
        """Connect the first value of a carry.

        A complete value becomes a pending sum at no cost: one processor has it, and the others zeros. A pending maximum does not.
        """
        types = self._types(port)
        if self._is_free(operand, port, types):
            return
        source = self.sources[operand]
        whole, known = [attrs.evolve(type, pending=()) for type in types], source.placements.numbers.keys()
        costs = [source.conversions(each) for each in (whole, types) if known >= set(each)]
        self._edge(source.node, port, np.min(costs, axis=0) * times)

    def _invariant(self, operand: Value, port: int, times: int) -> None:
        """Connect an invariant: the operand itself, or a copy in another placement, which takes memory beside the operand."""
        node, types = self.nodes[port], self._types(port)
        node.options, node.shared = (*types, *types), len(types)
        node.costs = np.zeros(2 * len(types))
        node.memory = np.concatenate([np.zeros(len(types)), node.memory])
        argument = node.owner
        assert isinstance(argument, Argument)
        self._comes_from(argument.value, port, (*types, *types))
        if self._is_free(operand, port, (*types, *types)):
            return
        source = self.sources[operand]
        costs = source.conversions(types) * times
        same = np.where(source.made[:, None] == source.placements.indices(types), 0.0, np.inf)
        self._edge(source.node, port, np.concatenate([same, costs], axis=1))

    def _sliced(self, operand: Value, port: int, times: int) -> None:
        """Connect a sliced operand. Its own dimension becomes whole, and each slice is placed like the stack."""
        types = self._types(port)
        stacks = [operand.type.split_by(shown_layout(type)) for type in types]
        if self._is_free(operand, port, stacks):
            return
        source = self.sources[operand]
        costs = source.conversions(stacks) * times
        kept = [_splits(source.placements.types[i], types[0].names) for i in source.made]
        same = np.array([[splits == type.splits for type in types] for splits in kept])
        self._edge(source.node, port, np.where(same, costs, np.inf))

    def _types(self, node: int) -> Sequence[TensorType]:
        return self.nodes[node].options  # type: ignore[return-value]

    def _leaves(
        self, result: Value, output: Output, ports: Mapping[str, int], begin: int, times: int
    ) -> None:
        """Connect a result.

        A carry leaves with the placement that it has between iterations; a yielded value has any placement in each iteration,
        and its sum may stay pending in the stack. ports: the nodes of the loop's arguments. times: how often an iteration
        runs in a step.
        """
        source = self.sources.get(output.value)
        if output.updates is not None:
            port, types = ports[output.updates], self._types(ports[output.updates])
        else:
            slices = self._placements(output.value)
            types = [stacked_type(type, result.type.dims[0]) for type in slices]
            port = self._node(output, slices, self._bytes(types))
            self.nodes[port].birth = begin
        if source is not None:
            self._kept(output.value, self.clock)
            use = self._given_away(source, output, port)
            self._edge(source.node, port, source.costs(use) * times)
        self._comes_from(result, port, types)

    def _given_away(self, source: _ValueSource, output: Output, port: int) -> _ValueUse:
        """Return the use by an output of a loop. A value that the loop stacks may need a copy in each iteration."""
        types, maker = self._types(port), self.nodes[source.node].owner
        copied = np.zeros(len(types))
        if output.updates is None and isinstance(maker, Equation):
            copied = np.array(self.copying(maker, output.value, types), np.float64)
        return _ValueUse(port, source.placements.indices(types), copied)

    def _given(self, output: Output, ports: Mapping[str, int]) -> None:
        """Connect an output. It has the placement of the argument that it replaces; else pending sums are completed in its own
        placement.
        """
        source = self.sources.get(output.value)
        if source is None:
            return
        if output.updates is not None:
            port = ports[output.updates]
            self._edge(source.node, port, source.conversions(self._types(port)))
            return
        self._kept(output.value, KEPT_FOREVER)
        made = [source.placements.types[i] for i in source.made]
        complete = source.placements.indices(type.split_by(shown_layout(type)) for type in made)
        self.nodes[source.node].costs += source.placements.costs[source.made, complete]


ENTER: Mapping[str, Callable[[NetworkBuilder, Value, int, int], None]] = {
    "carried": NetworkBuilder._carried,
    "invariant": NetworkBuilder._invariant,
    "sliced": NetworkBuilder._sliced,
}
"""The method that connects an operand of a loop, by the role of its argument."""
