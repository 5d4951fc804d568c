"""Names under which the dimensions of each value may be split, for statements about all global layouts at once.

A layout has three sets of rules: for the computation, for stored parameters and for the optimizer's state. A dimension `d` is
called `d` in the forward and the backward pass, `params.d` where a parameter is stored, and `optimizer.d` in the update. Where a
search does not choose how arrays are stored, the three names follow the same rule. The `rename` op gives a dimension another
name.

A value has its `own` names where it is computed. An elementwise equation may also run in the layout of its uses or of its operand
(pass propagate-layouts), and a value may be cut for its use before it is sent. So a value may also be split under the names that
its uses have; `names` holds these and its own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import lru_cache

from mtfc.compiler.ir.core import Equation, Function, Value
from mtfc.compiler.ir.loops import dim_of, is_over_micro_batches, outputs_of, pairs, region_of
from mtfc.compiler.ir.opdef import BY_NAME, Bridge, LayoutRule
from mtfc.compiler.ir.ops import OPS
from mtfc.compiler.ir.types import Mesh
from mtfc.compiler.records import frozen

SINGLE = Mesh("single", ())
"""One processor, on which every array is whole."""

Dims = frozenset[str]

Pairs = frozenset[tuple[str, str]]
"""Pairs of dimensions, before and after an equation that mixes their positions."""

IsCommon = Callable[[Equation], bool]
"""Tells whether an equation is in the program under every layout in question."""

PARAMS, OPTIMIZER = "params.", "optimizer."

STORED = {"parameter": PARAMS, "state": OPTIMIZER, "step": OPTIMIZER}
"""The prefix of the dimensions of an argument, by its role."""


@lru_cache(maxsize=1 << 14)
def rule_of(eqn: Equation) -> LayoutRule:
    """Return the layout rule of an equation, from a cache."""
    return OPS[eqn.op].layout_rule(eqn)


def called(eqn: Equation, name: str) -> str:
    """Return the name that an equation has for a dimension of its iteration space."""
    return f"{OPTIMIZER}{name}" if eqn.stage == "update" else name


def computed(names: Dims) -> Dims:
    """Return the names that belong to the forward or the backward pass."""
    return frozenset(name for name in names if not name.startswith((PARAMS, OPTIMIZER)))


def iteration(eqn: Equation, rule: LayoutRule, value: Value) -> Dims:
    """Return an equation's names for the dimensions of an operand, but for dimensions that it needs whole."""
    names = (rule.index.get(name, name) for name in value.type.names)
    return frozenset(called(eqn, name) for name in names if name is not None)


def own_dims(eqn: Equation, rule: LayoutRule) -> Dims:
    """Return an equation's names for the dimensions of its iteration space that can be computed in parts."""
    kept = {dim.name for value in eqn.results for dim in value.type.dims} - rule.whole
    return frozenset(called(eqn, name) for name in (*kept, *(dim.name for dim in rule.reduced)))


def bridge_of(eqn: Equation) -> Bridge | None:
    """Return the two dimensions that an equation mixes, if any; nothing for loops and for the update."""
    return None if eqn.regions or eqn.stage == "update" else rule_of(eqn).bridge


def pairs_of(bridge: Bridge | None) -> Pairs:
    return frozenset(((bridge.source, bridge.target),)) if bridge else frozenset()


def after(eqn: Equation, name: str) -> tuple[str | None, Pairs]:
    """Return the name of an operand's dimension after an equation, and the pairs that must be split alike for it."""
    bridge = bridge_of(eqn)
    if bridge and name == bridge.source:
        return bridge.target, pairs_of(bridge)
    return rule_of(eqn).index.get(name, name), frozenset()


@frozen
class DimensionNames:
    """The names of all values of a function: see the module.

    stored: names under which an argument is stored, by the argument's name. own: the names where the value is computed.
    names: those and the names of all uses.
    """

    own: dict[Value, Dims]
    names: dict[Value, Dims]
    stored: Mapping[str, Dims]

    @classmethod
    def of(cls, function: Function) -> DimensionNames:
        """Return the names of all dimensions of a function's values.

        Names are passed backwards from the outputs and uses, then forwards from the operands.
        """
        stored = {
            argument.value.name: frozenset(
                f"{STORED.get(argument.role, '')}{name}" for name in argument.value.type.names
            )
            for argument in function.arguments
        }
        found = cls({}, {}, stored)
        for argument in function.arguments:
            found.own[argument.value] = stored[argument.value.name]
        found._own(function)
        wanted = {output.value: stored.get(output.updates or "", frozenset()) for output in function.outputs}
        found._backward(function, wanted)
        found._forward(function)
        return found

    def _own(self, function: Function) -> None:
        """Note the names that the dimensions of each value have where the value is computed.

        A slice lacks the loop's dimension.
        """
        for eqn in function.body:
            for value in eqn.results:
                self.own[value] = frozenset(called(eqn, name) for name in value.type.names)
            if eqn.regions:
                for operand, argument in pairs(eqn):
                    names = frozenset(argument.value.type.names)
                    is_sliced = argument.role == "sliced"
                    self.own[argument.value] = (
                        _without(self.own[operand], dim_of(eqn).name) if is_sliced else names
                    )
                self._own(region_of(eqn))
                if is_over_micro_batches(eqn):
                    self._own_of_micro_batches(eqn)

    def _own_of_micro_batches(self, eqn: Equation) -> None:
        """Add the names of sums over micro-batches and of parameters, which are placed as parameters are stored."""
        region = region_of(eqn)
        for operand, argument in pairs(eqn):
            if argument.role == "invariant":
                self.own[argument.value] = self.own[operand]
        sums = [
            value for each in pairs(eqn) if each[1].role == "carried" for value in (each[0], each[1].value)
        ]
        outputs = [output.value for output in region.outputs if output.updates]
        for value in (*sums, *outputs, *eqn.results):
            self.own[value] |= {f"{PARAMS}{name}" for name in value.type.names}

    def _add(self, value: Value, names: Iterable[str]) -> None:
        self.names[value] = self.names.get(value, self.own[value]) | frozenset(names)

    def _backward(self, function: Function, wanted: Mapping[Value, Dims]) -> None:
        """Add the names that uses have for their operands. `wanted`: names that the caller has for the function's results."""
        for argument in function.arguments:
            self._add(argument.value, ())
        for value in (*(v for eqn in function.body for v in eqn.results), *wanted):
            self._add(value, wanted.get(value, ()))
        for eqn in reversed(function.body):
            if eqn.regions:
                self._loop(eqn)
                continue
            rule = rule_of(eqn)
            further = frozenset[str]().union(*(self.names[value] - self.own[value] for value in eqn.results))
            for value in eqn.operands:
                self._add(value, iteration(eqn, rule, value))
                self._add(value, () if rule.reduced else further)

    def _loop(self, eqn: Equation) -> None:
        """Pass names backwards through a loop: from its results into its body, and from its arguments to its operands."""
        region, dim = region_of(eqn), dim_of(eqn).name
        wanted: dict[Value, Dims] = {}
        for result, output in outputs_of(eqn):
            wanted[output.value] = wanted.get(output.value, frozenset()) | _without(self.names[result], dim)
        self._backward(region, wanted)
        for operand, argument in pairs(eqn):
            self._add(operand, self.names[argument.value])

    def _forward(self, function: Function) -> None:
        """Add the names that elementwise equations take from their only operand, and loops from their region.

        An argument stays as it is stored.
        """
        stored = {argument.value: self.own[argument.value] for argument in function.arguments}
        for eqn in function.body:
            if eqn.regions:
                for operand, argument in pairs(eqn):
                    names = stored.get(operand, self.names[operand])
                    self._add(argument.value, _without(names, dim_of(eqn).name))
                self._forward(region_of(eqn))
                for result, output in outputs_of(eqn):
                    self._add(result, self.names[output.value])
            elif len(eqn.operands) == 1 and rule_of(eqn) is BY_NAME:
                (operand,) = eqn.operands
                self._add(eqn.result, stored.get(operand, self.names[operand]))


def _without(names: Dims, dim: str) -> Dims:
    return names - {dim, f"{PARAMS}{dim}", f"{OPTIMIZER}{dim}"}
