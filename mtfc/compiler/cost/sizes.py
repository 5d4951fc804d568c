"""Sizes on one processor, and the exact formulas that stand for them.

Exact formulas: sums of monomials in the file's own names, such as `10*batch*io*hidden/all + 3*batch*io`.

Every cost is a polynomial in the dimensions, divided by products of mesh axes. A general algebra system would take longer to
import than the compiler needs for a program, and would print names in another order. Here they stand as the file declares them,
dimensions before axes, and terms of the highest degree first.

Sizes on one processor, as numbers or as formulas.

Analyses add up the amounts of a `Scale` without asking for their kind. So a formula cannot disagree with the number that it
stands for.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from fractions import Fraction
from math import ceil, prod

import attrs

from mtfc.compiler.ir.types import ITEM_BYTES, Axes, Dim, Mesh, TensorType
from mtfc.compiler.records import frozen, sums


@frozen(order=True)
class Symbol:
    """A dimension's or a mesh axis's size. `position` orders symbols when they are printed."""

    position: int
    name: str
    is_dim: bool


Monomial = tuple[tuple[Symbol, int], ...]
"""Symbols in order, each with its power (never 0)."""


@frozen(hash=False)
class Formula:
    """The sum of `coefficient * monomial` over `terms`; no coefficient is 0."""

    terms: Mapping[Monomial, Fraction] = attrs.field(factory=dict)

    @classmethod
    def of(cls, number: int | Fraction) -> Formula:
        return cls({(): Fraction(number)} if number else {})

    @classmethod
    def symbol(cls, symbol: Symbol) -> Formula:
        return cls({((symbol, 1),): Fraction(1)})

    def __add__(self, other: Formula | int | Fraction) -> Formula:
        return _collected((*self.terms.items(), *formula(other).terms.items()))

    def __mul__(self, other: Formula | int | Fraction) -> Formula:
        return _collected(
            (_product(m, n), a * b) for m, a in self.terms.items() for n, b in formula(other).terms.items()
        )

    def __sub__(self, other: Formula | int | Fraction) -> Formula:
        return self + formula(other) * -1

    def __truediv__(self, divisor: Formula) -> Formula:
        """Division by a formula of one term. Raises `ValueError` for any other."""
        (monomial, coefficient), *more = divisor.terms.items()
        if more:
            raise ValueError(f"cannot divide by the sum {divisor}")
        return self * Formula({tuple((s, -power) for s, power in monomial): 1 / coefficient})

    def __bool__(self) -> bool:
        """True if the formula is not 0."""
        return bool(self.terms)

    __radd__ = __add__
    __rmul__ = __mul__

    def evaluate(self, sizes: Mapping[str, int]) -> Fraction:
        """The exact value when each symbol has the size given under its name."""
        total = Fraction(0)
        for monomial, coefficient in self.terms.items():
            for symbol, power in monomial:
                coefficient *= Fraction(sizes[symbol.name]) ** power
            total += coefficient
        return total

    def leading(self) -> Formula:
        """The terms that grow fastest: those whose dimensions are not part of another term's (axes don't matter)."""
        wholes = [_dims(monomial) for monomial in self.terms]
        return Formula(
            {m: a for m, a in self.terms.items() if not any(_divides(_dims(m), w) for w in wholes)}
        )

    def sorted_terms(self) -> Iterator[tuple[Monomial, Fraction]]:
        """By falling degree in the dimensions, then as the symbols are declared."""

        def rank(term: tuple[Monomial, Fraction]) -> tuple[int, list[tuple[Symbol, int]]]:
            return -sum(_dims(term[0]).values()), [(symbol, -power) for symbol, power in term[0]]

        yield from sorted(self.terms.items(), key=rank)

    def __str__(self) -> str:
        text = "".join(f" {'-' if a < 0 else '+'} {_term(m, abs(a))}" for m, a in self.sorted_terms())
        return text[3:] if text.startswith(" +") else f"-{text[3:]}" if text else "0"


def formula(number: Formula | int | Fraction) -> Formula:
    return number if isinstance(number, Formula) else Formula.of(number)


def ratio(numerator: Formula, denominator: Formula) -> str:
    """`numerator / denominator` as text, divided out where the denominator has one term."""
    if not numerator.terms:
        return "0"
    if len(denominator.terms) == 1:
        return str(numerator / denominator)
    above = str(numerator) if len(numerator.terms) == 1 else f"({numerator})"
    return f"{above}/({denominator})"


def _collected(terms: Iterable[tuple[Monomial, Fraction]]) -> Formula:
    return Formula({monomial: number for monomial, number in sums(terms).items() if number})


def _product(a: Monomial, b: Monomial) -> Monomial:
    return tuple(sorted((symbol, power) for symbol, power in sums((*a, *b)).items() if power))


def _dims(monomial: Monomial) -> dict[Symbol, int]:
    return {symbol: power for symbol, power in monomial if symbol.is_dim}


def _divides(part: dict[Symbol, int], whole: dict[Symbol, int]) -> bool:
    """True if `whole` has all factors of `part`, and more."""
    return part != whole and all(power <= whole.get(symbol, 0) for symbol, power in part.items())


def _factor(symbol: Symbol, power: int) -> str:
    return symbol.name if power == 1 else f"{symbol.name}**{power}"


def _term(monomial: Monomial, coefficient: Fraction) -> str:
    """`2*batch*io/(3*rows*cols)`; the coefficient is positive."""
    above = [_factor(symbol, power) for symbol, power in monomial if power > 0]
    below = [_factor(symbol, -power) for symbol, power in monomial if power < 0]
    if coefficient.numerator != 1 or not above:
        above.insert(0, str(coefficient.numerator))
    if coefficient.denominator != 1:
        below.insert(0, str(coefficient.denominator))
    if not below:
        return "*".join(above)
    return f"{'*'.join(above)}/{below[0] if len(below) == 1 else '(' + '*'.join(below) + ')'}"


Amount = int | Fraction | Formula
"""Elements, bytes or FLOPs on one processor."""


def whole(amount: Amount) -> int:
    """Return a number rounded up: a fraction of a byte is sent as a whole byte."""
    assert not isinstance(amount, Formula)
    return ceil(amount)


@frozen
class Numbers:
    """Sizes as integers."""

    mesh: Mesh

    def dim(self, dim: Dim, axes: Axes) -> int:
        return dim.size // self.mesh.size(axes)

    def elements(self, type: TensorType) -> int:
        return type.local_size(self.mesh)

    def group(self, axes: Axes) -> Fraction:
        """Return a fraction, so that quotients are exact."""
        return Fraction(self.mesh.size(axes))


UNDISTRIBUTED = Numbers(Mesh("one", ()))
"""Sizes of whole tensors."""


class FormulaSizes:
    """Sizes as formulas in the names of dimensions and mesh axes.

    An axis with the name of a dimension is written with its mesh's name: `line.batch`.
    """

    def __init__(self, dims: Collection[Dim], mesh: Mesh) -> None:
        """Make a symbol for each dimension and each mesh axis.

        values: the size that each symbol stands for.
        """
        self._dims = {dim.name: Symbol(i, dim.name, True) for i, dim in enumerate(dims)}
        self._axes: dict[str, Symbol] = {}
        for axis in mesh.names:
            name = f"{mesh.name}.{axis}" if axis in self._dims else axis
            self._axes[axis] = Symbol(len(self._dims) + len(self._axes), name, False)
        self.values = {dim.name: dim.size for dim in dims} | {
            self._axes[axis].name: size for axis, size in mesh.axes
        }

    def dim(self, dim: Dim, axes: Axes) -> Formula:
        return Formula.symbol(self._dims[dim.name]) / self.group(axes)

    def elements(self, type: TensorType) -> Formula:
        return prod(map(self.dim, type.dims, type.splits), start=Formula.of(1))

    def group(self, axes: Axes) -> Formula:
        return prod((Formula.symbol(self._axes[axis]) for axis in axes), start=Formula.of(1))


Scale = Numbers | FormulaSizes
"""The sizes that FLOP rules of ops use (`opdef.Sizes`), and the sizes of groups of processors."""


def bytes_of(type: TensorType, scale: Scale) -> Amount:
    """Bytes of one processor's array."""
    return scale.elements(type) * ITEM_BYTES[type.local_dtype]
