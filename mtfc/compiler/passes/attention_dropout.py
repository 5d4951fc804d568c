"""Dropout of the weights of attention: `where(keep, weights * factor, 0)`, perhaps under a flag such as `training`.

Flax writes `weights * (cast(keep) / rate)` instead: the truth values are a factor, too.

The op leaves out weights by an operand, and the factor scales its result. So numbers are those of separate ops, by global index
under every layout, and of the weights only the truth values are stored.
"""

from collections.abc import Sequence

import attrs

from mtfc.compiler.analysis.body_scope import BodyScope
from mtfc.compiler.ir.builder import Builder
from mtfc.compiler.ir.core import Value
from mtfc.compiler.ir.ops import has_trait
from mtfc.compiler.records import frozen


@frozen
class Dropout:
    """The dropout of attention's weights. keep: tells which weights stay. factor: the factor of the weights that stay.

    flag: False in a run without dropout, where all weights stay as they are; None if every run has dropout.
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
        return _dropout(weights, *_product(scope, value, weights))
    condition, chosen, *others = eqn.operands
    if not others or scope.number(others[0]) == 0:
        factors, number = _product(scope, chosen, weights)
        return _dropout(weights, [*factors, condition], number)
    if condition.type.dims or scope.source(others[0]) != scope.source(weights):
        return None
    found = dropout_of(scope, chosen, weights)
    return attrs.evolve(found, flag=condition) if found and found.flag is None else None


def _dropout(weights: Value, factors: Sequence[Value], number: float) -> Dropout | None:
    """Return the dropout that multiplies weights by truth values and a number, or None for other factors."""
    keep = [x for x in factors if x.type.dtype == "bool" and {*x.type.dims} <= {*weights.type.dims}]
    is_dropout = len(keep) == 1 and len(factors) == 2 and weights in factors
    return Dropout(keep[0], number) if is_dropout and number else None


def _product(scope: BodyScope, value: Value, weights: Value) -> tuple[list[Value], float]:
    """Return the factors of a product, among them the weights and truth values, and the product of its numbers.

    A divisor that is no number is no factor: then the product is not that of dropout, and the number is 0.
    """
    value = scope.source(value)
    eqn, number = scope.definition(value, "multiply", "divide", "cast"), scope.number(value)
    if number is not None:
        return [], float(number)
    if eqn is None or value == scope.source(weights):
        return [weights if value == scope.source(weights) else value], 1.0
    if has_trait(eqn, "cast"):
        return [eqn.operands[0]], 1.0
    (left, first), (right, second) = (_product(scope, x, weights) for x in eqn.operands)
    if not has_trait(eqn, "divide"):
        return [*left, *right], first * second
    return left, first / second if second and not right else 0.0
