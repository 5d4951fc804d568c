"""The strategies of an equation: a use for each mesh axis.

An axis splits one dimension of the iteration space; or it lets a sum pass that is pending over it, if the equation is linear; or
it is unused, and all processors along it compute the same. Splitting a summed dimension leaves a pending sum. This is SoyBean's
third aligned form (arXiv:1805.04170, section 4.2.1).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from itertools import product
from math import inf

import attrs

from mtfc.compiler.cost.tables.collective_tables import in_time, orders
from mtfc.compiler.ir.core import Equation, Value
from mtfc.compiler.ir.opdef import LayoutRule
from mtfc.compiler.ir.ops import OPS
from mtfc.compiler.ir.sharding_rules import OperandGroup, operand_type, pending_groups, result_types
from mtfc.compiler.ir.types import Axes, Dim, Mesh, TensorType


@attrs.frozen
class Strategy:
    """A layout of the iteration space, and for further axes the operands through which pending sums pass."""

    layout: Mapping[str, Axes]
    passing: tuple[tuple[str, OperandGroup], ...] = ()

    @property
    def passed(self) -> Axes:
        return tuple(axis for axis, _ in self.passing)

    def operand_type(self, rule: LayoutRule, eqn: Equation, operand: int) -> TensorType:
        """Return the type that operand number `operand` must have. `eqn` has this strategy's layout."""
        pending = tuple(axis for axis, group in self.passing if operand in group)
        return operand_type(rule, eqn, operand, pending)

    def made(self, rule: LayoutRule, eqn: Equation, mesh: Mesh) -> tuple[TensorType, ...]:
        """Return the types of the results."""
        return result_types(eqn, rule, self.passed, mesh)


@attrs.frozen(eq=False)
class PlacedStrategies:
    """The strategies that equal equations share, and one equation placed by each strategy."""

    strategies: tuple[Strategy, ...]
    placed: tuple[Equation, ...]

    @classmethod
    def of(cls, eqn: Equation, strategies: Iterable[Strategy], mesh: Mesh) -> PlacedStrategies:
        rule, found = OPS[eqn.op].layout_rule(eqn), tuple(strategies)
        return cls(found, tuple(_placed(eqn, rule, each, mesh) for each in found))

    def needed(self, operand: int) -> list[TensorType]:
        """Return the type of operand number `operand` under each strategy."""
        return [eqn.operands[operand].type for eqn in self.placed]

    def made(self, result: int) -> list[TensorType]:
        """Return the type of result number `result` under each strategy."""
        return [eqn.results[result].type for eqn in self.placed]


def _placed(eqn: Equation, rule: LayoutRule, strategy: Strategy, mesh: Mesh) -> Equation:
    """Return an equation with the layout of a strategy, and with operands and results placed so."""
    own = attrs.evolve(eqn, layout=strategy.layout)
    needed = (strategy.operand_type(rule, own, i) for i in range(len(eqn.operands)))
    made = strategy.made(rule, own, mesh)
    return attrs.evolve(
        own,
        operands=tuple(Value(v.name, type) for v, type in zip(eqn.operands, needed, strict=True)),
        results=tuple(Value(v.name, type) for v, type in zip(eqn.results, made, strict=True)),
    )


def strategies(
    eqn: Equation, mesh: Mesh, splittable: Collection[str], pending: Collection[int], until: float = inf
) -> Iterator[Strategy]:
    """Yield all strategies that are legal for an equation, and in which it sends nothing itself, as a shift between devices does.

    splittable: dimensions that a layout can name. pending: operands in which sums can be pending. Raises `TimeoutError` if the
    search for strategies goes on after `until`, a time of `time.monotonic`.
    """
    rule = OPS[eqn.op].layout_rule(eqn)
    dims = [
        dim for dim in iteration_space(eqn, rule) if dim.name in splittable and dim.name not in rule.single
    ]
    groups = pending_groups(OPS[eqn.op], eqn, {eqn.operands[i] for i in pending}.__contains__)
    axes = tuple(axis for axis, size in mesh.axes if size > 1)
    roles = [(*_roles(eqn, rule, dims, axis, mesh), *groups, None) for axis in axes]
    for choice in product(*roles):
        chosen = tuple(zip(axes, choice, strict=True))
        passing = tuple((axis, role) for axis, role in chosen if isinstance(role, tuple))
        named = tuple((axis, role) for axis, role in chosen if isinstance(role, str))
        for layout in in_time(orders(named, tuple(dim.name for dim in dims)), until):
            if divides(eqn, rule, dims, layout, mesh):
                yield Strategy(layout, passing)


def iteration_space(eqn: Equation, rule: LayoutRule) -> list[Dim]:
    """Return the dimensions of the iteration space."""
    return list(dict.fromkeys((*(dim for v in eqn.results for dim in v.type.dims), *rule.reduced)))


def _roles(eqn: Equation, rule: LayoutRule, dims: Sequence[Dim], axis: str, mesh: Mesh) -> list[str]:
    """Return the dimensions that an axis can split alone."""
    return [dim.name for dim in dims if divides(eqn, rule, dims, {dim.name: (axis,)}, mesh)]


def divides(
    eqn: Equation, rule: LayoutRule, dims: Sequence[Dim], layout: Mapping[str, Axes], mesh: Mesh
) -> bool:
    """Return True if the op can be computed in these parts, and its results and operands divide evenly."""
    reduced = {dim.name for dim in rule.reduced}
    for dim in dims:
        axes = layout.get(dim.name, ())
        if dim.size % mesh.size(axes) or (dim.name not in reduced and not rule.allows(dim, axes, mesh)):
            return False
    return rule.divides(eqn.operands, layout, mesh)
