"""Dropout of the weights of attention: `where(keep, weights * factor, 0)`, perhaps under a flag such as `training`.

The op leaves out weights by an operand, and the factor scales its result. So numbers are those of separate ops, by global index
under every layout, and of the weights only the truth values are stored.
"""

from __future__ import annotations

import attrs

from mtfc.compiler.ir.builder import Builder
from mtfc.compiler.ir.core import Value
from mtfc.compiler.ir.ops import has_trait
from mtfc.compiler.passes.body_scope import BodyScope
from mtfc.compiler.records import frozen


@frozen
class Dropout:
    """Weights that become 0. keep: tells which stay. factor: of those that stay.

    flag: without it all weights stay as they are; None if they never do.
    """

    keep: Value
    factor: float
    flag: Value | None = None

    def keeps(self, build: Builder) -> Value:
        return self.keep if self.flag is None else build("or", build("not", self.flag), self.keep)

    def scaled(self, build: Builder, result: Value) -> Value:
        """Return attention's result times the factor."""
        factor = build.like(self.factor, result)
        if self.flag is not None:
            factor = build("where", self.flag, factor, build.like(1.0, result))
        return build("mul", result, factor)


def dropout_of(scope: BodyScope, value: Value, weights: Value) -> Dropout | None:
    """Return the dropout by which a value comes from weights, or None."""
    eqn = scope.definition(scope.source(value), "choice", "mask")
    if eqn is None:
        return None
    condition, chosen, *others = eqn.operands
    if not others or scope.number(others[0]) == 0:
        factor = _factor(scope, chosen, weights)
        is_mask = {*condition.type.dims} <= {*weights.type.dims}
        return Dropout(condition, factor) if factor is not None and is_mask else None
    if condition.type.dims or scope.source(others[0]) != scope.source(weights):
        return None
    found = dropout_of(scope, chosen, weights)
    return attrs.evolve(found, flag=condition) if found and found.flag is None else None


def _factor(scope: BodyScope, value: Value, weights: Value) -> float | None:
    """Return the number by which weights are multiplied, or None."""
    value, weights = scope.source(value), scope.source(weights)
    eqn = scope.definition(value, "multiply", "divide")
    if value == weights or eqn is None:
        return 1.0 if value == weights else None
    left, right = (scope.source(x) for x in eqn.operands)
    number = scope.number(eqn.operands[1 if left == weights else 0])
    if not number or weights not in (left, right):
        return None
    if has_trait(eqn, "divide"):
        return 1 / number if left == weights else None
    return float(number)
