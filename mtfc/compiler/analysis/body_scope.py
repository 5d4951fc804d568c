"""The values of a function as numbers, repetitions of other values, and sums of indices. A loop's region sees those around it."""

from __future__ import annotations

from collections.abc import Mapping

from mtfc.compiler.ir.attributes import fitted
from mtfc.compiler.ir.core import Equation, Function, Value
from mtfc.compiler.ir.loops import pairs
from mtfc.compiler.ir.opdef import Trait
from mtfc.compiler.ir.ops import has_trait
from mtfc.compiler.ir.ops.creation import DIMENSION, VALUE
from mtfc.compiler.ir.ops.structure import renaming
from mtfc.compiler.ir.types import FLOATS, Dim
from mtfc.compiler.records import frozen


def repeats(eqn: Equation) -> bool:
    """Return True if a result is the operand, in another order of dimensions, another dtype of floats, or as a constant."""
    is_cast = has_trait(eqn, "cast") and {eqn.result.type.dtype, eqn.operands[0].type.dtype} <= FLOATS
    return is_cast or has_trait(eqn, "broadcast", "transpose", "stop_gradient")


@frozen
class BodyScope:
    """The equations of a function. inherited: invariant argument of a loop -> the operand, a value of the function around it."""

    function: Function
    makers: Mapping[Value, Equation]
    inherited: Mapping[Value, Value]
    outer: BodyScope | None

    @classmethod
    def of(
        cls, function: Function, loop: Equation | None = None, outer: BodyScope | None = None
    ) -> BodyScope:
        """Return the scope of a function, or of the region of a loop. outer: the scope around the loop."""
        makers = {value: eqn for eqn in function.body for value in eqn.results}
        given = pairs(loop) if loop else ()
        return cls(function, makers, {a.value: v for v, a in given if a.role == "invariant"}, outer)

    def definition(self, value: Value, *traits: Trait) -> Equation | None:
        """Return the equation of this function that defines a value, if its op has one of the traits."""
        eqn = self.makers.get(value)
        return eqn if eqn is not None and has_trait(eqn, *traits) else None

    def definition_in_scopes(self, value: Value) -> tuple[Equation | None, BodyScope]:
        """Return the equation that defines a value, which may stand outside of the loop, and its scope."""
        if value in self.inherited and self.outer is not None:
            return self.outer.definition_in_scopes(self.inherited[value])
        return self.makers.get(value), self

    def source(self, value: Value) -> Value:
        """Return the value that a value repeats: in another order of dimensions, in another dtype of floats, or as a constant."""
        while (eqn := self.makers.get(value)) is not None and repeats(eqn):
            value = eqn.operands[0]
        return value

    def uncast(self, value: Value) -> Value:
        """Follow casts between dtypes of floats back to the value that was cast first."""
        while (eqn := self.definition(value, "cast")) is not None and repeats(eqn):
            value = eqn.operands[0]
        return value

    def number(self, value: Value) -> float | bool | None:
        """Return the number that all elements of a value are, if it is written in the program."""
        eqn, scope = self.definition_in_scopes(value)
        is_cast = eqn is not None and has_trait(eqn, "cast") and value.type.dtype in FLOATS
        if eqn is None or not (is_cast or repeats(eqn)):
            return VALUE.of(eqn.attrs) if eqn is not None and has_trait(eqn, "filled") else None
        number = scope.number(eqn.operands[0])
        return None if number is None else fitted(number, value.type.dtype)


@frozen
class Index:
    """A whole number that depends on indices: the sum of dimensions' indices times `weights`, and a constant."""

    weights: Mapping[Dim, int]
    constant: int

    def scaled(self, factor: int) -> Index:
        return Index({dim: weight * factor for dim, weight in self.weights.items()}, self.constant * factor)

    def plus(self, other: Index) -> Index:
        """Return the sum of two indices."""
        dims = dict.fromkeys((*self.weights, *other.weights))
        weights = {dim: self.weights.get(dim, 0) + other.weights.get(dim, 0) for dim in dims}
        return Index({dim: x for dim, x in weights.items() if x}, self.constant + other.constant)

    def minus(self, other: Index) -> tuple[Mapping[Dim, int], int]:
        found = self.plus(other.scaled(-1))
        return found.weights, found.constant


def index_of(scope: BodyScope, value: Value) -> Index | None:
    """Return an integer as sums and multiples of indices, or None."""
    number = scope.number(value)
    if number is not None:
        return Index({}, int(number)) if value.type.dtype == "i32" else None
    eqn, scope = scope.definition_in_scopes(value)
    if eqn is None or value.type.dtype != "i32":
        return None
    if has_trait(eqn, "indices"):
        return Index({DIMENSION.of(eqn.attrs): 1}, 0)
    if has_trait(eqn, "broadcast", "transpose", "rename"):
        inner, new = index_of(scope, eqn.operands[0]), renaming(eqn.attrs) if has_trait(eqn, "rename") else {}
        return inner and Index({new.get(dim, dim): x for dim, x in inner.weights.items()}, inner.constant)
    if not has_trait(eqn, "add", "subtract", "multiply"):
        return None
    left, right = (index_of(scope, x) for x in eqn.operands)
    if left is None or right is None:
        return None
    if has_trait(eqn, "multiply"):
        constants = [x for x in (left, right) if not x.weights]
        other = right if constants and constants[0] is left else left
        return other.scaled(constants[0].constant) if constants else None
    return left.plus(right if has_trait(eqn, "add") else right.scaled(-1))


def differences(eqn: Equation, weight: int, constant: int) -> tuple[int | None, int | None]:
    """Return the least and the largest row - column where weight * (row - column) + constant compares with 0 as an op says."""
    is_above = has_trait(eqn, "above")
    if has_trait(eqn, "strict"):
        constant += -1 if is_above else 1
    if not is_above:
        weight, constant = -weight, -constant
    return (-constant, None) if weight > 0 else (None, constant)
