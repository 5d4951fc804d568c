"""The axes of all arrays of a flat function: rules say for each primitive which axes are the same.

The linker visits the steps in order. A rule gives the results their axes, and fits the operands to the axes that it wants them
to have. Where an array would have a factor twice, such as queries against keys of one sequence, `fit` renames the axis of an
operand at this use. That is the only place where a layout of the import may have to send data that the user's program does not
show, so the rules let small operands be renamed, and `renames.py` then looks for fewer bytes in all steps together.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import attrs

from mtfc.compiler.ir.core import Value
from mtfc.frontend.jaxpr.factors import Axis, Factor, alternate, axis, leaves, register, unite
from mtfc.frontend.jaxpr.flat import AppliedPrimitive, Body, Var

Axes = tuple[Axis, ...]


@attrs.frozen
class PrimitiveRule:
    """A primitive's rule. link: gives the results their axes. emit: makes the results' values from the operands.

    accepts: says if the rule knows a step; a step that no rule knows becomes a call of the primitive itself. takes_keys: True if
    the rule knows random keys. moves: True if the rule moves elements of any dtype, or casts them.
    """

    link: Callable[[Linker, AppliedPrimitive], None]
    emit: Callable[[Any, AppliedPrimitive], Sequence[Value]]
    accepts: Callable[[AppliedPrimitive], bool] = lambda step: True
    takes_keys: bool = False
    moves: bool = False


@attrs.define
class Linker:
    """Gives all arrays their axes. rules: primitive -> rule. other: the rule of all other primitives."""

    rules: Mapping[str, PrimitiveRule]
    other: PrimitiveRule
    spaces: int = 10**9

    def rule(self, step: AppliedPrimitive) -> PrimitiveRule:
        rule = self.rules.get(step.primitive)
        if rule is None or step.is_opaque or (step.has_keys and not rule.takes_keys):
            return self.other
        if step.has_carried and not rule.moves:
            return self.other
        return rule if rule.accepts(step) else self.other

    def arguments(self, variables: Iterable[Var]) -> None:
        """Give variables new axes."""
        for var in variables:
            self.give(var, tuple(map(axis, var.shape)))

    def body(self, body: Body) -> None:
        for step in body.steps:
            for result in step.results:
                result.is_backward = step.stage == "backward"
            self.rule(step).link(self, step)

    def give(self, var: Var, axes: Axes) -> None:
        """Give a variable its axes."""
        var.axes = axes
        register((f for each in axes for f in each), var.number)

    def keep(self, step: AppliedPrimitive, order: Sequence[int]) -> None:
        """Give the result axes of the first operand, in an order."""
        x, (result,) = step.operands[0], step.results
        self.give(result, tuple(x.axes[j] for j in order))
        result.repeated = frozenset(i for i, j in enumerate(order) if j in x.repeated)

    def fit(
        self, step: AppliedPrimitive, i: int, wanted: Sequence[Axis | None], used: Iterable[Factor] = ()
    ) -> Axes:
        """Let an operand have the wanted axes at this use, and return its axes.

        An axis that is None may be any, but no factor of `used`, now and when other operands are fitted.
        """
        used = tuple(used)
        found = self.fitted(step.operands[i].axes, wanted, used)
        self.space(used, *found)
        pairs = zip(found, step.operands[i].axes, strict=True)
        if any(a != b and leaves(a) != leaves(b) for a, b in pairs):
            step.renamed[i] = found
        return found

    def fitted(self, axes: Axes, wanted: Sequence[Axis | None], used: Iterable[Factor] = ()) -> Axes:
        """Unite axes with the wanted ones. Where that is refused, the wanted axis takes the place of the axis."""
        pairs = [*zip(axes, wanted, strict=True)]
        found = [a if target is None or unite(a, target) else target for a, target in pairs]
        taken = {f for _, target in pairs if target is not None for f in leaves(target)} | {*leaves(used)}
        for j, (a, target) in enumerate(pairs):
            if target is None:
                if not taken.isdisjoint(leaves(a)):
                    found[j] = self.instead(a, taken)
                taken |= {*leaves(found[j])}
        return tuple(found)

    def instead(self, factors: Axis, taken: set[Factor]) -> Axis:
        """Return an axis for the place of one whose factors are taken."""
        found = alternate(factors)
        if taken.isdisjoint(leaves(found)):
            return found
        return tuple(Factor(f.size) for f in leaves(factors))

    def space(self, *axes: Iterable[Factor]) -> None:
        """Say that factors belong to one iteration space, and so must stay different."""
        self.spaces += 1
        register((f for each in axes for f in each), self.spaces)
