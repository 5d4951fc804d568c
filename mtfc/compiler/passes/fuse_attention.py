"""fuse-attention: make one op of a softmax between two dots over the same dimensions.

The pass finds the softmax by its `exp`: the exponentials of logits less their maximum are summed, and divided by the sum before
or after they are multiplied with values. Between the dot of queries and keys and the softmax may stand, in this order, factors,
a soft cap, biases, and masks whose other number is a constant. Of a mask the pass separates what compares indices, such as a
causal mask or a window, and what compares the elements of two sequences, such as segment ids. Any other softmax stays as it is,
also one whose weights are used otherwise; `reasons` says why.

The op never stores its logits. Separate ops are faster where there are few keys, so a softmax over less than `least` elements
stays as it is.

Input:   %s = einsum %q, %k dims=[length, memory]; %e = exp (%s - max %s); %o = div (einsum %e, %v), (sum %e over=[memory])
Output:  %o, %largest, %total = attention %q, %k, %v memory=[memory] ...
After this pass no such softmax over `least` elements or more is left.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from math import prod
from typing import ClassVar

import attrs

from mtfc.compiler.analysis.buffer_kinds import readers_of
from mtfc.compiler.ir.builder import Builder, Names
from mtfc.compiler.ir.core import Equation, Function, Program, Value
from mtfc.compiler.ir.loops import map_regions, pairs
from mtfc.compiler.ir.opdef import Trait
from mtfc.compiler.ir.ops import has_trait
from mtfc.compiler.ir.ops.contraction import reduced_dims
from mtfc.compiler.ir.ops.creation import DIMENSION, VALUE
from mtfc.compiler.ir.ops.reductions import over
from mtfc.compiler.ir.rewrite import names_of
from mtfc.compiler.ir.types import FLOATS, Dim
from mtfc.compiler.ir.verifier import Level
from mtfc.compiler.passes.dce import live_only
from mtfc.compiler.passes.pass_base import Pass

CHANGES: tuple[Trait, ...] = ("choice", "add", "multiply", "divide")
"""Traits of the ops that may stand between the dot and the softmax, beside the soft cap."""


@attrs.frozen
class FuseAttention(Pass):
    """least: the smallest number of elements of a softmax."""

    name: ClassVar[str] = "fuse-attention"
    takes: ClassVar[tuple[Level, ...]] = ("global",)
    least: int = 1024

    def run(self, program: Program) -> Program:
        return program.map_functions(lambda function: fused(BodyScope.of(function), self.least))


class Unfused(Exception):
    """A softmax between two dots does not have the form of the op: `args[0]` says why."""


@attrs.frozen
class Reason:
    """A softmax between two dots that stays as it is, and why. eqn: the equation of its exponentials."""

    eqn: Equation
    text: str


@attrs.frozen
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
        """Return the value that a value repeats, in another order of dimensions, or as a constant for differentiation."""
        while eqn := self.definition(value, "broadcast", "transpose", "stop_gradient"):
            value = eqn.operands[0]
        return value

    def number(self, value: Value) -> float | bool | None:
        """Return the number that all elements of a value are, if it is written in the program."""
        eqn, scope = self.definition_in_scopes(value)
        if eqn is None or has_trait(eqn, "broadcast", "transpose", "stop_gradient"):
            return None if eqn is None else scope.number(eqn.operands[0])
        return VALUE.of(eqn.attrs) if has_trait(eqn, "filled") else None


def fused(scope: BodyScope, least: int) -> Function:
    """Return the function of a scope with attention as single ops, of at least `least` keys."""
    function = scope.function
    body = [
        map_regions(eqn, partial(_fused_region, loop=eqn, outer=scope, least=least)) for eqn in function.body
    ]
    found = {each.last: each for each in found_in(scope, least) if isinstance(each, Attention)}
    if not found:
        return attrs.evolve(function, body=tuple(body))
    names = names_of(function)
    replaced = [new for eqn in body for new in (found[eqn].equations(names) if eqn in found else [eqn])]
    return live_only(attrs.evolve(function, body=tuple(replaced)))


def _fused_region(region: Function, loop: Equation, outer: BodyScope, least: int) -> Function:
    return fused(BodyScope.of(region, loop, outer), least)


def reasons(program: Program, least: int = 1024) -> list[Reason]:
    """Return the softmaxes between two dots, over `least` elements or more, that stay as they are."""

    def inside(scope: BodyScope) -> Iterator[Reason]:
        yield from (each for each in found_in(scope, least) if isinstance(each, Reason))
        for eqn in scope.function.body:
            for region in eqn.regions:
                yield from inside(BodyScope.of(region, eqn, scope))

    return [each for function in program.functions for each in inside(BodyScope.of(function))]


def found_in(scope: BodyScope, least: int) -> Iterator[Attention | Reason]:
    """Yield the softmaxes between two dots of a function's own equations."""
    readers: dict[Value, list[Equation | None]] = {
        v: [*found] for v, found in readers_of(scope.function).items()
    }
    for output in scope.function.outputs:
        readers.setdefault(output.value, []).append(None)
    for eqn in scope.function.body:
        if has_trait(eqn, "exponential"):
            try:
                found = Match(scope, readers, eqn).attention(least)
            except Unfused as why:
                yield Reason(eqn, str(why))
            else:
                yield from [found] if found else []


@attrs.define
class Masks:
    """The masks of logits.

    band: row, column, and the least and the largest difference of their indices. ids: pairs of values whose equal elements count,
    and whether they are one sequence. others: masks of any other kind. fill: the number of logits that do not count.
    """

    band: tuple[Dim, Dim, int | None, int | None] | None = None
    ids: list[tuple[Value, Value, bool]] = attrs.field(factory=list)
    others: list[Value] = attrs.field(factory=list)
    fill: float = 0.0

    def add_band(self, row: Dim, column: Dim, low: int | None, high: int | None) -> bool:
        """Add a band; return False if there is one of other dimensions."""
        if self.band is None:
            self.band = (row, column, low, high)
            return True
        if self.band[:2] != (row, column):
            return False
        lows, highs = (
            [x for x in each if x is not None] for each in ((self.band[2], low), (self.band[3], high))
        )
        self.band = (row, column, max(lows, default=None), min(highs, default=None))
        return True


@attrs.frozen(eq=False)
class Attention:
    """A softmax between two dots that becomes one op.

    last: the equation whose result it is. factors: ops, and the values, that scale the logits.
    """

    last: Equation
    q: Value
    k: Value
    v: Value
    depth: tuple[Dim, ...]
    memory: tuple[Dim, ...]
    factors: Sequence[tuple[str, Value]]
    cap: float | None
    biases: Sequence[Value]
    masks: Masks

    def equations(self, names: Names) -> list[Equation]:
        """Return the equation of the op, and those that scale the queries."""
        build, q, masks = Builder(names, self.last.span, self.last.stage), self.q, self.masks
        for op, factor in self.factors:
            q = build(op, q, factor)
        roles = ["bias"] * len(self.biases) + ["mask"] * len(masks.others)
        roles += ["same_ids" if same else "ids" for _, _, same in masks.ids]
        rows, columns, low, high = _band(masks)
        limits = {name: x for name, x in (("low", low), ("high", high), ("cap", self.cap)) if x is not None}
        build.several(
            "attention",
            *(q, self.k, self.v, *self.biases, *masks.others),
            *(value for left, right, _ in masks.ids for value in (left, right)),
            names=(self.last.result.name, "largest", "total"),
            depth=self.depth,
            memory=self.memory,
            dims=self.last.result.type.dims,
            roles=" ".join(roles),
            rows=rows,
            columns=columns,
            fill=masks.fill,
            **limits,
        )
        *before, attention = build.body
        return [
            *before,
            attrs.evolve(attention, results=(self.last.result, *attention.results[1:]), path=self.last.path),
        ]


def _band(masks: Masks) -> tuple[tuple[Dim, ...], tuple[Dim, ...], int | None, int | None]:
    if masks.band is None:
        return (), (), None, None
    row, column, low, high = masks.band
    return (row,), (column,), low, high


@attrs.frozen
class Match:
    """The search for attention around the exponentials of a softmax.

    readers: value -> the equations that read it, and None for each output.
    """

    scope: BodyScope
    readers: Mapping[Value, Sequence[Equation | None]]
    exponential: Equation

    def attention(self, least: int) -> Attention | None:
        """Return the attention; None for anything but a softmax between two dots, over `least` elements or more.

        Raises `Unfused`.
        """
        shifted = self.scope.definition(self.exponential.operands[0], "subtract")
        largest = shifted and self.scope.definition(self.scope.source(shifted.operands[1]), "largest")
        if not shifted or not largest or largest.operands[0] != shifted.operands[0]:
            return None
        logits, memory = shifted.operands[0], over(largest)
        is_softmax = any(x and has_trait(x, "sum") for x in self._readers(self.exponential.result))
        if prod(dim.size for dim in memory) < least or not is_softmax:
            return None
        if not (self._comes_from_dot(logits) and self._reaches_dot(self.exponential.result, memory)):
            return None
        last, v = self._mean(memory)
        self._only(logits, "logits", shifted, largest)
        return self._with_queries(logits, memory, last, v)

    def _readers(self, value: Value) -> Sequence[Equation | None]:
        return self.readers.get(value, ())

    def _only(self, value: Value, what: str, *wanted: Equation) -> None:
        """Raise `Unfused` if anything but these equations reads a value."""
        if any(eqn not in wanted for eqn in self._readers(value)):
            raise Unfused(f"the {what} are used otherwise, too")

    def _comes_from_dot(self, value: Value) -> bool:
        eqn = self.scope.definition(value, "dot", *CHANGES, "hyperbolic")
        if eqn is None or has_trait(eqn, "dot"):
            return eqn is not None and len(eqn.operands) == 2 and bool(reduced_dims(eqn))
        return any(map(self._comes_from_dot, self._as_large(eqn)))

    def _as_large(self, eqn: Equation) -> list[Value]:
        """Return the float operands with all dimensions of the result."""
        dims = {*eqn.result.type.dims}
        return [x for x in eqn.operands if {*x.type.dims} == dims and x.type.dtype in FLOATS]

    def _reaches_dot(self, value: Value, memory: tuple[Dim, ...]) -> bool:
        """Return True if a dot sums over `memory` what is computed element by element from a value."""
        for eqn in filter(None, self._readers(value)):
            if has_trait(eqn, "dot"):
                if {*memory} <= {*reduced_dims(eqn)}:
                    return True
            elif has_trait(eqn, *CHANGES, "cast", "mask") and self._reaches_dot(eqn.result, memory):
                return True
        return False

    # From the exponentials to the result

    def _mean(self, memory: tuple[Dim, ...]) -> tuple[Equation, Value]:
        """Return the equation of the weighted mean, and the values that it is the mean of."""
        weights, total, rest = self.exponential.result, None, []
        for eqn in self._readers(weights):
            if eqn and has_trait(eqn, "sum") and {*over(eqn)} == {*memory} and total is None:
                total = eqn.result
            else:
                rest.append(eqn)
        if total is None or len(rest) != 1 or rest[0] is None:
            raise Unfused("the weights are used otherwise, too")
        divided = self._divided(rest[0], weights, total)
        dot = self._reader(rest[0].result) if divided else rest[0]
        last = dot if divided else self._reader(dot.result)
        if not has_trait(dot, "dot") or len(dot.operands) != 2 or {*reduced_dims(dot)} != {*memory}:
            raise Unfused("the weights are changed before they are multiplied with values")
        if not divided and not self._divided(last, dot.result, total):
            raise Unfused("the sum of the exponentials is used otherwise")
        self._only(total, "sums of the exponentials", *self._divisions(total))
        source = rest[0].result if divided else weights
        (v,) = [x for x in dot.operands if x != source] or [source]
        if not {*memory} <= {*v.type.dims}:
            raise Unfused("the values lack a dimension of the softmax")
        return last, v

    def _reader(self, value: Value) -> Equation:
        """Return the only equation that reads a value."""
        found = self._readers(value)
        if len(found) != 1 or found[0] is None:
            raise Unfused("the weights are used otherwise, too")
        return found[0]

    def _divided(self, eqn: Equation, value: Value, total: Value) -> bool:
        """Return True for the equation that divides a value by the sum of the exponentials."""
        is_quotient = has_trait(eqn, "divide") and eqn.operands[0] == value
        return is_quotient and self.scope.source(eqn.operands[1]) == total

    def _divisions(self, total: Value) -> list[Equation]:
        """Return the readers of a sum that divide by it or repeat it; the match has found one division."""
        return [x for x in self._readers(total) if x and has_trait(x, "divide", "broadcast", "transpose")]

    # From the exponentials to the dot

    def _with_queries(self, logits: Value, memory: tuple[Dim, ...], last: Equation, v: Value) -> Attention:
        """Return the attention, by the equations from the logits back to the dot of queries and keys."""
        masks = Masks()
        value = self._masks(logits, masks, memory)
        biases: list[Value] = []
        while (eqn := self.scope.definition(value, "add")) is not None:
            value, bias = self._inner(eqn)
            biases += [] if self.scope.number(bias) == 0 else [bias]
        value, cap = self._cap(value)
        factors: list[tuple[str, Value]] = []
        while (eqn := self.scope.definition(value, "multiply", "divide")) is not None:
            value, factor = self._inner(eqn)
            factors.append((eqn.op, factor))
        dot = self.scope.definition(value, "dot")
        if dot is None or len(dot.operands) != 2:
            raise Unfused(
                "its logits are changed by other ops than a factor, a soft cap, biases and masks, in this order"
            )
        q, k = sorted(dot.operands, key=lambda x: not {*memory}.isdisjoint(x.type.dims))
        if not {*memory}.isdisjoint(q.type.dims) or not {*memory} <= {*k.type.dims}:
            raise Unfused("its queries have a dimension of the softmax")
        depth, logits_dims = reduced_dims(dot), {*dot.result.type.dims}
        if any({*x.type.dims} - logits_dims != {*depth} for x in (q, k)):
            raise Unfused("its queries and keys are not contracted over the same dimensions")
        if {*k.type.dims} - {*depth} != {*v.type.dims} & logits_dims:
            raise Unfused("its keys and values have different dimensions")
        if any(not {*factor.type.dims} <= {*q.type.dims} for _, factor in factors):
            raise Unfused("its logits are scaled by a factor that the queries cannot have")
        return Attention(last, q, k, v, depth, memory, factors[::-1], cap, biases[::-1], masks)

    def _inner(self, eqn: Equation) -> tuple[Value, Value]:
        """Return the operand that comes from the dot, whose only reader this is, and the other operand."""
        found = [x for x in self._as_large(eqn) if self._comes_from_dot(x)]
        if len(found) != 1 or (has_trait(eqn, "divide") and eqn.operands[0] != found[0]):
            raise Unfused("its logits come from two dots")
        self._only(found[0], "logits", eqn)
        (other,) = [x for x in eqn.operands if x != found[0]] or found
        return found[0], other

    def _cap(self, value: Value) -> tuple[Value, float | None]:
        """Return the operand of a soft cap, `cap * tanh(x / cap)`, and the cap."""
        scaled = self.scope.definition(value, "multiply")
        squashed = scaled and next(
            filter(None, (self.scope.definition(x, "hyperbolic") for x in scaled.operands)), None
        )
        if scaled is None or squashed is None:
            return value, None
        inner, cap = squashed.operands[0], self.scope.number(self._inner(scaled)[1])
        divided = self.scope.definition(inner, "divide", "multiply")
        self._only(inner, "logits", squashed)
        if divided is None or cap is None:
            raise Unfused("its soft cap is not of the form `cap * tanh(x / cap)`")
        source, number = self._inner(divided)
        factor = self.scope.number(number)
        if factor is None or cap != (factor if has_trait(divided, "divide") else factor and 1 / factor):
            raise Unfused("its soft cap is not of the form `cap * tanh(x / cap)`")
        return source, float(cap)

    def _masks(self, value: Value, masks: Masks, memory: tuple[Dim, ...]) -> Value:
        """Add the masks in front of a value, and return the logits that they mask."""
        fills = set[float]()
        while (eqn := self.scope.definition(value, "choice")) is not None:
            condition, inner, other = eqn.operands
            fill = self.scope.number(other)
            if fill is None or not self._comes_from_dot(inner):
                raise Unfused("its mask chooses between logits and values that are no constant")
            self._only(inner, "logits", eqn)
            if self.scope.number(condition) is not True:
                fills.add(float(fill))
                self._mask(condition, masks, memory)
            value = inner
        if len(fills) > 1:
            raise Unfused("its masks have different numbers")
        masks.fill = next(iter(fills), 0.0)
        return value

    def _mask(self, condition: Value, masks: Masks, memory: tuple[Dim, ...]) -> None:
        """Add a mask: the parts of a conjunction one by one."""
        value = self.scope.source(condition)
        eqn, scope = self.scope.definition_in_scopes(value)
        if scope is self.scope and eqn is not None and has_trait(eqn, "conjunction"):
            for part in eqn.operands:
                self._mask(part, masks, memory)
        elif self.scope.number(value) is not True and not self._is_band(value, masks, memory):
            pair = self._ids(value, memory)
            (masks.ids.append(pair) if pair else masks.others.append(value))

    def _is_band(self, value: Value, masks: Masks, memory: tuple[Dim, ...]) -> bool:
        """Add a mask that compares an index of `memory` with one of the queries; return False if it does anything else."""
        eqn, scope = self.scope.definition_in_scopes(value)
        while eqn is not None and has_trait(eqn, "broadcast", "transpose"):
            eqn, scope = scope.definition_in_scopes(eqn.operands[0])
        if eqn is None or not has_trait(eqn, "order"):
            return False
        left, right = (index_of(scope, x) for x in eqn.operands)
        if left is None or right is None:
            return False
        weights, constant = left.minus(right)
        if sorted(weights.values()) != [-1, 1]:
            return False
        row, column = sorted(weights, key=lambda dim: dim in memory)
        if row in memory or column not in memory:
            return False
        return masks.add_band(row, column, *limits(eqn, weights[row], constant))

    def _ids(self, value: Value, memory: tuple[Dim, ...]) -> tuple[Value, Value, bool] | None:
        """Return two values whose equal elements count, and whether they are one sequence; None for another mask."""
        eqn = self.scope.definition(value, "equality")
        if eqn is None or eqn.operands[0].type.dtype != "i32":
            return None
        left, right = sorted(
            map(self.scope.source, eqn.operands), key=lambda x: not {*memory}.isdisjoint(x.type.dims)
        )
        if not {*memory}.isdisjoint(left.type.dims) or len(memory) != 1 or memory[0] not in right.type.dims:
            return None
        return left, right, self._one_sequence(left, right)

    def _one_sequence(self, left: Value, right: Value) -> bool:
        renamed = self.scope.definition(right, "rename")
        return renamed is not None and renamed.operands[0] == left


@attrs.frozen
class Index:
    """A whole number that depends on indices: the sum of dimensions' indices times `weights`, and a constant."""

    weights: Mapping[Dim, int]
    constant: int

    def scaled(self, factor: int) -> Index:
        return Index({dim: weight * factor for dim, weight in self.weights.items()}, self.constant * factor)

    def plus(self, other: Index) -> Index:
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
    if has_trait(eqn, "broadcast", "transpose"):
        return index_of(scope, eqn.operands[0])
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


def limits(eqn: Equation, weight: int, constant: int) -> tuple[int | None, int | None]:
    """Return the least and the largest row - column where weight * (row - column) + constant compares with 0 as an op says."""
    is_above = has_trait(eqn, "above")
    if has_trait(eqn, "strict"):
        constant += -1 if is_above else 1
    if not is_above:
        weight, constant = -weight, -constant
    return (-constant, None) if weight > 0 else (None, constant)
