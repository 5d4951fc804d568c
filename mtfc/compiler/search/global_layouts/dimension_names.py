"""Under which names, and so by which rules, the dimensions of each value of a program may be split.

A dimension `d` is split by the rules of the computation where forward and backward pass compute, by those of parameters, here
`params.d`, where a parameter is stored, and by those of the optimizer's state, `optimizer.d`, in the update. Where no such rules
are searched for they are all the same. A rename gives a dimension another name.

A value has its `own` names where it is made. Component-wise equations may be laid out as what uses them, or as what they are
made of (the pass propagate-layouts), and what is sent may be cut for its use first: so a value may also be split as it is called
there. `names` has both.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import lru_cache

import attrs

from mtfc.compiler.ir.core import Equation, Function, Value
from mtfc.compiler.ir.loops import dim_of, is_over_micro_batches, pairs, region_of
from mtfc.compiler.ir.opdef import BY_NAME, LayoutRule
from mtfc.compiler.ir.ops import OPS

Dims = frozenset[str]

PARAMS, OPTIMIZER = "params.", "optimizer."

STORED = {"parameter": PARAMS, "state": OPTIMIZER, "step": OPTIMIZER}
"""How the dimensions of an argument are called, by its role."""


@lru_cache(maxsize=1 << 14)
def rule_of(eqn: Equation) -> LayoutRule:
    """How an equation may be laid out: asked for again and again."""
    return OPS[eqn.op].layout_rule(eqn)


def called(eqn: Equation, name: str) -> str:
    """What an equation calls a dimension of its iteration space."""
    return f"{OPTIMIZER}{name}" if eqn.stage == "update" else name


def computed(names: Dims) -> Dims:
    """The names that forward and backward pass have."""
    return frozenset(name for name in names if not name.startswith((PARAMS, OPTIMIZER)))


def iteration(eqn: Equation, rule: LayoutRule, value: Value) -> Dims:
    """What an equation calls the dimensions of an operand, those aside that it needs whole."""
    names = (rule.index.get(name, name) for name in value.type.names)
    return frozenset(called(eqn, name) for name in names if name is not None)


@attrs.frozen
class Naming:
    """stored: names of what an argument is stored under, by the argument's name."""

    own: dict[Value, Dims]
    names: dict[Value, Dims]
    stored: Mapping[str, Dims]

    @classmethod
    def of(cls, function: Function) -> Naming:
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
                    self._summed(eqn)

    def _summed(self, eqn: Equation) -> None:
        """Sums over micro-batches are kept as parameters are stored, and parameters arrive as they are stored."""
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
        """What values are called where they are used; `wanted` is what a function's results are called."""
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
        region, dim = region_of(eqn), dim_of(eqn).name
        outputs = zip(eqn.results, region.outputs, strict=True)
        wanted: dict[Value, Dims] = {}
        for result, output in outputs:
            wanted[output.value] = wanted.get(output.value, frozenset()) | _without(self.names[result], dim)
        self._backward(region, wanted)
        for operand, argument in pairs(eqn):
            self._add(operand, self.names[argument.value])

    def _forward(self, function: Function) -> None:
        """What component-wise equations of one operand are called because of it, and what leaves loops as it came in. An argument
        stays as it is stored.
        """
        stored = {argument.value: self.own[argument.value] for argument in function.arguments}
        for eqn in function.body:
            if eqn.regions:
                for operand, argument in pairs(eqn):
                    names = stored.get(operand, self.names[operand])
                    self._add(argument.value, _without(names, dim_of(eqn).name))
                self._forward(region_of(eqn))
                for result, output in zip(eqn.results, region_of(eqn).outputs, strict=True):
                    self._add(result, self.names[output.value])
            elif len(eqn.operands) == 1 and rule_of(eqn) is BY_NAME:
                (operand,) = eqn.operands
                self._add(eqn.result, stored.get(operand, self.names[operand]))


def _without(names: Dims, dim: str) -> Dims:
    return names - {dim, f"{PARAMS}{dim}", f"{OPTIMIZER}{dim}"}
