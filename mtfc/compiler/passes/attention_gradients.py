"""The gradient of attention where a program has its equations already, as functions of JAX do.

With exponentials e, their sum t, values v and the cotangent g of the result, the logits have the gradient

    e / t * (dw - sum(e * dw) / t)    where dw = einsum(g, v), and 0 for weights that a dropout leaves out

Programs write it in many ways: the sum may be that of g times the result, the factors may stand anywhere, the maximum may have a
gradient that cancels. So the pass compares polynomials. Each value between the exponentials and the dots that read them is a
polynomial of a few values. The sum of e over the keys is t, and sums that mean the same are the same value. A dot computes a
gradient of the op if it sums the product of an operand of the attention and the logits' gradient, up to a factor.
"""

from collections.abc import Hashable, Iterator, Mapping, Sequence
from functools import reduce
from math import isclose, prod

import attrs

from mtfc.compiler.analysis.body_scope import BodyScope
from mtfc.compiler.ir.builder import Builder
from mtfc.compiler.ir.core import Equation, Value
from mtfc.compiler.ir.opdef import Trait
from mtfc.compiler.ir.ops import OPS, has_trait
from mtfc.compiler.ir.ops.contraction import reduced_dims
from mtfc.compiler.ir.ops.reductions import over
from mtfc.compiler.ir.types import FLOATS, Dim
from mtfc.compiler.passes.attention_dropout import Dropout
from mtfc.compiler.records import define, frozen

Monomial = frozenset[tuple[Hashable, int]]
"""Pairs of a symbol and its power. A symbol is a value, a `Condition`, a `KeySum`, or the name of a dot."""

Polynomial = Mapping[Monomial, float]
"""Monomial -> its coefficient, which is not 0."""

ONE: Polynomial = {frozenset(): 1.0}
MINUS_ONE: Polynomial = {frozenset(): -1.0}
DW: Monomial = frozenset([("dw", 1)])
"""The dot of the cotangent and the values."""

MEAN: Monomial = frozenset([("mean", 1)])
"""The dot of the exponentials and the values."""

ARITHMETIC: tuple[Trait, ...] = ("add", "subtract", "multiply", "divide", "square", "negate")
LONGEST, DEEPEST = 16, 60
"""Values with more terms, or behind more equations, are symbols themselves."""


@frozen
class Condition:
    """A condition as a factor: 1 where it holds, or where it does not."""

    value: Value
    holds: bool


@frozen
class KeySum:
    """The sum of a monomial over the keys."""

    terms: Monomial


def symbol(found: Hashable) -> Polynomial:
    return {frozenset([(found, 1)]): 1.0}


def plus(a: Polynomial, b: Polynomial) -> Polynomial:
    """Return a + b without terms that cancel."""
    found = dict(a)
    for term, number in b.items():
        x, y = found.pop(term, 0.0), number
        if not isclose(x, -y, rel_tol=1e-5):
            found[term] = x + y
    return found


def _joined(a: Monomial, b: Monomial) -> Monomial:
    """Return the product of two monomials. A condition is 0 or 1, so its powers are itself."""
    powers = dict(a)
    for each, power in b:
        powers[each] = 1 if isinstance(each, Condition) else powers.get(each, 0) + power
    return frozenset((each, power) for each, power in powers.items() if power)


def times(a: Polynomial, b: Polynomial) -> Polynomial:
    """Return a * b."""
    found: Polynomial = {}
    for s, x in a.items():
        for t, y in b.items():
            found = plus(found, {_joined(s, t): x * y})
    return found


def inverse(a: Polynomial) -> Polynomial | None:
    """Return 1 / a, or None unless a has one term."""
    if len(a) != 1:
        return None
    ((term, number),) = a.items()
    return {frozenset((each, -power) for each, power in term): 1 / number} if number else None


def ratio(a: Polynomial, b: Polynomial) -> tuple[Monomial, float] | None:
    """Return the term r with a == r * b, or None."""
    if len(a) != len(b) or not b:
        return None
    divisor, y = next(iter(b.items()))
    for term, x in a.items():
        inverted = frozenset((each, -power) for each, power in divisor if not isinstance(each, Condition))
        shared = frozenset(pair for pair in term if not isinstance(pair[0], Condition))
        factor = {_joined(shared, inverted): x / y}
        if not plus(a, times(MINUS_ONE, times(factor, b))):
            return next(iter(factor.items()))
    return None


@frozen
class FoundGradient:
    """An equation whose result is a gradient of the op, up to a factor.

    operand: the number of the op's operand that it is the gradient for.
    """

    eqn: Equation
    operand: int
    number: float
    factors: Monomial

    def value(self, build: Builder, gradient: Value) -> Value:
        """Return the equation's result from the op's."""
        found = gradient
        if not isclose(self.number, 1, rel_tol=1e-5):
            found = build("mul", found, build.like(self.number, found))
        for factor, power in self.factors:
            assert isinstance(factor, Value)
            for _ in range(abs(power)):
                found = build("mul" if power > 0 else "div", found, build.cast(factor, found.type.dtype))
        type = self.eqn.result.type
        return build.ordered(build.cast(found, type.dtype), type.dims)


@frozen
class Gradients:
    """The gradients of one attention. cotangent: of its result; None for 1. v: the values."""

    cotangent: Value | None
    v: Value
    sinks: Sequence[FoundGradient]


@frozen(eq=False)
class AttentionParts:
    """The parts of an attention that its gradient has, too.

    exponential: the equation of the exponentials. total: their sum. dot: the product of queries and keys.
    factors: ops, and the values, that scale the logits. squashed: the result of the soft cap's tanh.
    biases: values, and False if they are subtracted. conditions: tell which logits count. dropout: what becomes of the weights,
    which are then divided by their sum.
    """

    exponential: Equation
    total: Value
    dot: Equation
    q: Value
    k: Value
    v: Value | None
    memory: tuple[Dim, ...]
    factors: Sequence[tuple[str, Value]]
    squashed: Value | None
    biases: Sequence[tuple[Value, bool]]
    conditions: Sequence[Condition]
    dropout: Dropout | None = None

    @property
    def operands(self) -> dict[int, Value]:
        """Return queries, keys, values and biases by their numbers among the operands of the op."""
        values = {0: self.q, 1: self.k} | ({} if self.v is None else {2: self.v})
        return values | dict(enumerate((x for x, _ in self.biases), 3))


@define
class GradientMatch:
    """The search for the gradients of one attention.

    candidates: the dots and sums of what is computed element by element from the exponentials.
    """

    forward: AttentionParts
    candidates: Sequence[Equation]
    scope: BodyScope
    v: Value | None = None
    cotangent: Value | None = None
    _known: dict[Value, Polynomial] = attrs.field(factory=dict)
    _depth: int = 0

    @property
    def logits(self) -> set[Dim]:
        return {*self.forward.dot.result.type.dims}

    def gradients(self) -> Gradients | None:
        """Return the gradients of the attention that the function has; None if it has none."""
        for dot in self._dots_of_cotangents():
            for v, other in self._pairs(dot):
                self.v, self.cotangent = v, None
                if other is not None:
                    self._known = self._symbols()
                    self.cotangent = self._without_total(other, {*v.type.dims} - self.logits)
                self._known = self._symbols()
                wanted = self._wanted()
                found = [sink for eqn in self.candidates if (sink := self._sink(eqn, wanted)) is not None]
                if found:
                    return Gradients(self.cotangent, v, found)
        return None

    def _symbols(self) -> dict[Value, Polynomial]:
        """Return the values that are symbols, and are not computed from others."""
        given = [
            self.forward.exponential.result,
            self.forward.total,
            self.cotangent,
            self.forward.squashed,
            self.v,
        ]
        values = [*given, *self.forward.operands.values()]
        return {x: symbol(x) for x in map(self.scope.source, filter(None, values))}

    # The equations that may belong to a gradient

    def _dots_of_cotangents(self) -> Iterator[Equation]:
        """Yield the dots over the values' own dimensions that candidates read, other than the one of queries and keys."""
        work = [x for eqn in self.candidates for x in eqn.operands]
        seen = {self.forward.exponential.result}
        while work:
            value = self.scope.source(work.pop())
            eqn = None if value in seen else self.scope.makers.get(value)
            seen.add(value)
            if eqn is None or not {*self.forward.memory} <= {*value.type.dims}:
                continue
            if has_trait(eqn, "dot"):
                if eqn is not self.forward.dot and {*value.type.dims} <= self.logits:
                    yield eqn
            elif has_trait(eqn, *ARITHMETIC, "choice", "mask"):
                work += eqn.operands

    def _pairs(self, dot: Equation) -> Iterator[tuple[Value, Value | None]]:
        """Yield the values that a dot may have as an operand, and its other operand."""
        known_values = self.forward.operands.get(2)
        summed, memory = {*reduced_dims(dot)}, {*self.forward.memory}
        for i, v in enumerate(dot.operands):
            if known_values is not None and self.scope.source(v) != self.scope.source(known_values):
                continue
            own = {*v.type.dims} - self.logits
            if not memory <= {*v.type.dims} or not own or own != summed or len(dot.operands) > 2:
                continue
            others = [*dot.operands[:i], *dot.operands[i + 1 :]]
            if any(not memory.isdisjoint(x.type.dims) for x in others):
                continue
            yield v, others[0] if others else None

    def _without_total(self, value: Value, own: set[Dim]) -> Value:
        """Return a value without factors that the sum of the exponentials is part of.

        own: the dims that the factors lack.
        """
        value = self.scope.source(value)
        eqn = self.scope.makers.get(value)
        if eqn is None or not has_trait(eqn, "multiply", "divide"):
            return value
        for i in (0,) if has_trait(eqn, "divide") else (0, 1):
            x, factor = eqn.operands[i], eqn.operands[1 - i]
            symbols = {each for term in self.polynomial(factor) for each, _ in term}
            if own.isdisjoint(factor.type.dims) and self.forward.total in symbols:
                return self._without_total(x, own)
        return value

    # Polynomials

    def polynomial(self, value: Value) -> Polynomial:
        """Return a value as a polynomial."""
        value = self.scope.source(value)
        if value not in self._known:
            self._depth += 1
            found = self._computed(value) if self._depth < DEEPEST else None
            self._depth -= 1
            self._known[value] = symbol(value) if found is None or len(found) > LONGEST else found
        return self._known[value]

    def _computed(self, value: Value) -> Polynomial | None:
        """Return the polynomial of what computes a value, or None."""
        number = self.scope.number(value)
        if number is not None:
            return {frozenset(): float(number)} if number else {}
        eqn = self.scope.makers.get(value)
        if eqn is None or value.type.dtype not in FLOATS:
            return None
        if has_trait(eqn, "sum"):
            return self._sum(self.polynomial(eqn.operands[0]), over(eqn))
        if has_trait(eqn, "dot"):
            return self._dot(eqn)
        if has_trait(eqn, "choice", "mask"):
            return self._choice(eqn)
        if has_trait(eqn, "cast") and eqn.operands[0].type.dtype == "bool":
            return symbol(Condition(self.scope.source(eqn.operands[0]), True))
        if not has_trait(eqn, *ARITHMETIC):
            return None
        return _combined(eqn, [self.polynomial(x) for x in eqn.operands])

    def _choice(self, eqn: Equation) -> Polynomial | None:
        """Return the polynomial of a choice between a value and 0."""
        condition, *others = eqn.operands
        zeros = [self.scope.number(x) == 0 for x in others] if len(others) == 2 else [False, True]
        if zeros.count(True) != 1:
            return {} if all(zeros) else None
        factor = Condition(self.scope.source(condition), zeros[1])
        return times(symbol(factor), self.polynomial(others[int(zeros[0])]))

    def _sum(self, terms: Polynomial, dims: Sequence[Dim]) -> Polynomial | None:
        """Return the sum of a polynomial over the keys, or over the values' own dimensions."""
        if {*dims} == {*self.forward.memory}:
            return self._over_keys(terms)
        assert self.v is not None
        if {*dims} == {*self.v.type.dims} - self.logits:
            return self._over_values(terms)
        return None

    def _over_keys(self, terms: Polynomial) -> Polynomial:
        """Take factors that do not depend on the keys out of the sum. The sum of the exponentials is known."""
        found: Polynomial = {}
        for term, number in terms.items():
            inner, outer = self._parted(term, self.forward.memory)
            if inner == frozenset([(self.forward.exponential.result, 1)]):
                total: Polynomial = symbol(self.forward.total)
            else:
                count = float(prod(dim.size for dim in self.forward.memory))
                total = symbol(KeySum(inner)) if inner else {frozenset(): count}
            found = plus(found, times({outer: number}, total))
        return found

    def _over_values(self, terms: Polynomial) -> Polynomial | None:
        """Sum over the values' dimensions: the result times its cotangent is a sum over the keys."""
        assert self.v is not None
        polynomial: Polynomial = {}
        needed_factors, key_sum = _joined(MEAN, self._given), KeySum(_joined(self._kept, DW))
        for term, number in terms.items():
            inner, _ = self._parted(term, [dim for dim in self.v.type.dims if dim not in self.logits])
            if not (needed_factors <= term and inner <= needed_factors):
                return None
            polynomial = plus(polynomial, times({term - needed_factors: number}, symbol(key_sum)))
        return polynomial

    def _parted(self, term: Monomial, dims: Sequence[Dim]) -> tuple[Monomial, Monomial]:
        """Return the factors that have one of the dimensions, and the others."""
        inner = frozenset(pair for pair in term if not {*dims}.isdisjoint(self._dims(pair[0])))
        return inner, term - inner

    def _dims(self, found: Hashable) -> set[Dim]:
        """Return the dimensions of a part of a gradient: a value, a condition, a sum over keys, or the name of a product."""
        if isinstance(found, Value):
            return {*found.type.dims}
        if isinstance(found, Condition):
            return {*found.value.type.dims}
        if isinstance(found, KeySum):
            dims = (self._dims(each) for each, _ in found.terms)
            return {dim for each in dims for dim in each} - {*self.forward.memory}
        if found == "dw":
            return self.logits
        assert self.v is not None
        return (self.logits | {*self.v.type.dims}) - {*self.forward.memory}

    @property
    def _weight(self) -> Monomial:
        return frozenset([(self.forward.exponential.result, 1)])

    @property
    def _kept(self) -> Monomial:
        """The exponentials that a dropout keeps."""
        dropout = self.forward.dropout
        keep = () if dropout is None else [(Condition(self.scope.source(dropout.keep), True), 1)]
        return _joined(self._weight, frozenset(keep))

    @property
    def _given(self) -> Monomial:
        return frozenset() if self.cotangent is None else frozenset([(self.scope.source(self.cotangent), 1)])

    def _dot(self, eqn: Equation) -> Polynomial | None:
        """Return the polynomial of the dot of the values with the cotangent, or with exponentials, or of a sum of products."""
        assert self.v is not None
        v, summed = self.scope.source(self.v), {*reduced_dims(eqn)}
        others = [x for x in eqn.operands if self.scope.source(x) != v]
        if summed == {*self.v.type.dims} - self.logits:
            needed_factors, symbol_of = self._given, DW
        elif summed == {*self.forward.memory}:
            needed_factors, symbol_of = self._kept, MEAN
        else:
            return None
        if len(others) == len(eqn.operands):
            return self._sum(reduce(times, map(self.polynomial, others)), [*summed])
        if len(others) + 1 != len(eqn.operands) or len(others) > 1:
            return None
        polynomial: Polynomial = {}
        for term, number in (self.polynomial(others[0]) if others else ONE).items():
            inner, _ = self._parted(term, [*summed])
            if not needed_factors <= term or not inner <= needed_factors:
                return None
            polynomial = plus(polynomial, {_joined(symbol_of, term - needed_factors): number})
        return polynomial

    # Gradients

    def _sink(self, eqn: Equation, wanted: Mapping[int, tuple[Polynomial, Value]]) -> FoundGradient | None:
        """Return the gradient that an equation computes, or None. wanted: see `_wanted`."""
        if eqn.result == self.forward.total or eqn.result.type.dtype not in FLOATS:
            return None
        product = reduce(times, (self.polynomial(x) for x in eqn.operands))
        for operand, (terms, x) in wanted.items():
            if {*x.type.dims} != {*eqn.result.type.dims}:
                continue
            found = ratio(product, terms)
            if found is not None and self._is_factor(found[0], eqn):
                return FoundGradient(eqn, operand, found[1], found[0])
        return None

    def _is_factor(self, factors: Monomial, eqn: Equation) -> bool:
        """Return True if all factors are values that the result of an equation can be multiplied with afterwards."""
        return all(
            isinstance(each, Value)
            and each != self.forward.total
            and {*each.type.dims} <= {*eqn.result.type.dims}
            for each, _ in factors
        )

    def _wanted(self) -> dict[int, tuple[Polynomial, Value]]:
        """Return for each operand of attention, by number, the polynomial that its gradient is a sum of, and the operand."""
        forward = self.forward
        q, k = (forward.operands[i] for i in (0, 1))
        assert self.v is not None
        total: Polynomial = {frozenset([(forward.total, -1)]): 1.0}
        weight, kept = (times({each: 1.0}, total) for each in (self._weight, self._kept))
        mean = times(symbol(KeySum(_joined(self._kept, DW))), total)
        logits = plus(times(kept, {DW: 1.0}), times(MINUS_ONE, times(weight, mean)))
        for condition in forward.conditions:
            logits = times(logits, symbol(condition))
        squashed = forward.squashed
        slope: Polynomial = ONE if squashed is None else plus(ONE, {frozenset([(squashed, 2)]): -1.0})
        scaled, inner = self.polynomial(q), times(logits, slope)
        for op, factor in forward.factors:
            own = self.polynomial(factor)
            inverted: Polynomial = inverse(own) or {frozenset([(self.scope.source(factor), -1)]): 1.0}
            scaled = times(scaled, own if "multiply" in OPS[op].traits else inverted)
        biases = {i: (logits, x) for i, x in forward.operands.items() if i > 2}
        return {
            0: (times(inner, self.polynomial(k)), q),
            1: (times(inner, scaled), k),
            2: (times(kept, {self._given: 1.0}), self.v),
            **biases,
        }


def _combined(eqn: Equation, terms: Sequence[Polynomial]) -> Polynomial | None:
    """Return the polynomial of an elementwise equation from the polynomials of its operands."""
    if has_trait(eqn, "square"):
        return times(terms[0], terms[0])
    if has_trait(eqn, "negate"):
        return times(MINUS_ONE, terms[0])
    left, right = terms
    if has_trait(eqn, "multiply"):
        return times(left, right)
    if has_trait(eqn, "divide") and left:
        inverted = inverse(right)
        return None if inverted is None else times(left, inverted)
    if not left and has_trait(eqn, "divide"):
        return left
    return plus(left, right if has_trait(eqn, "add") else times(MINUS_ONE, right))
