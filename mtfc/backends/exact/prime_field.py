"""Arithmetic on arrays of residues modulo a prime below 2**31.

A residue is a `uint64` from 0 to p - 1. Products of two residues fit in 62 bits, and sums of fewer than 2**32 residues in 63.
"""

from collections.abc import Callable, Iterator
from fractions import Fraction
from functools import lru_cache
from math import frexp, ldexp
from typing import Any
from zlib import crc32

import attrs
import numpy as np

PRIMES = (2147483647, 2147483629, 2147483587, 2147483579, 2147483563, 2147483549)
"""The largest primes below 2**31."""

SIMPLE = 2**50
"""Numerator times denominator of a simple fraction, of which only the odd parts count."""

SHIFTS = 12
"""Powers of two that a simple fraction may have in its numerator."""

LONGEST_POWER = 2**16
"""Exponents up to this size are taken as integers."""

DENOMINATOR = 2**12 * 3**2 * 5**2 * 7
SMALL_NUMERATOR = 2**28
"""Fractions with this denominator, or a divisor of it, and such a numerator keep their order as residues."""

INTEGERS = 2**20
"""Integers up to this one keep their order as residues."""

FEW = 48
"""Up to this number of elements, Python inverts faster than NumPy."""

LARGE_DOT = 2**15
"""Number of multiplications from which a matrix product is made of products of floats."""

LIMB = 16
"""Bits of the lower half of a residue."""

LONGEST_DOT = 2**20
"""Number of products of two halves of residues whose sum a float holds exactly."""

Array = Any


@attrs.define(eq=False)
class PrimeField:
    """The residues modulo `p`. `key` selects the pseudo-random functions that stand for `exp` and its like.

    cut_loops: the number of loops that were left before their condition failed.
    """

    p: int = attrs.field(on_setattr=attrs.setters.frozen)
    key: int = attrs.field(default=0, on_setattr=attrs.setters.frozen)
    counts: dict[str, int] = attrs.field(factory=dict, eq=False)
    cut_loops: int = 0

    def count(self, what: str, elements: int) -> None:
        """Count elements that are computed, but not judged."""
        self.counts[what] = self.counts.get(what, 0) + elements

    @property
    def half(self) -> int:
        """The largest residue that stands for a positive number."""
        return self.p // 2

    @property
    def prime(self) -> np.uint64:
        return np.uint64(self.p)

    def add(self, a: Array, b: Array) -> Array:
        """Return the sum modulo the prime. Less the prime, a sum that is smaller than the prime wraps around to a huge number."""
        total = a + b
        return np.minimum(
            total, np.subtract(total, self.prime)
        )  # the function wraps around silently, also for scalars

    def subtract(self, a: Array, b: Array) -> Array:
        """Return the difference modulo the prime.

        A difference below 0 wraps around to a huge number, so that the minimum takes the number with the prime added.
        """
        difference = np.subtract(a, b)
        return np.minimum(difference, np.add(difference, self.prime))

    def negative(self, a: Array) -> Array:
        """Return the negative numbers modulo the prime; that of 0 is 0."""
        return np.minimum(np.subtract(self.prime, a), np.subtract(np.uint64(0), a))

    def multiply(self, a: Array, b: Array) -> Array:
        return a * b % self.prime

    def total(self, a: Array, axis: Any, keepdims: bool = False) -> Array:
        return np.asarray(np.sum(a, axis=axis, keepdims=keepdims) % self.prime)

    def cumulative(self, a: Array, axis: int) -> Array:
        return np.cumsum(a, axis=axis) % self.prime

    def inverse(self, a: Array) -> Array:
        """Return 1 / a, and 0 for 0: the power p - 2, as Fermat's little theorem says."""
        if a.size <= FEW:
            return np.array([pow(int(x), self.p - 2, self.p) for x in a.flat], np.uint64).reshape(a.shape)
        return self.power(a, np.uint64(self.p - 2))

    def real_power(self, a: Array, exponent: Array) -> tuple[Array, Array]:
        """Return a to the power of residues, and where this has a meaning: not for 0 to a negative power.

        a**(n + f) is a**n R(a, f), for an integer n and a fraction f below 1: R(a, 0) is 1, R(a, 1/2) the root of a, and the
        others are functions of their own. a**-e is 1 / a**e. So a**1.5 is a sqrt(a), and a**-0.5 is 1 / sqrt(a). An exponent
        that is no small fraction is all fraction.
        """
        number, parts = self.signed(exponent), self.signed(self.multiply(exponent, np.uint64(DENOMINATOR)))
        is_whole, is_small = np.abs(number) <= LONGEST_POWER, np.abs(parts) <= SMALL_NUMERATOR
        whole, rest = np.divmod(np.abs(parts), DENOMINATOR)
        whole = np.where(is_whole, np.abs(number), np.where(is_small, whole, 0))
        rest = np.where(is_whole, 0, np.where(is_small, rest, DENOMINATOR + np.abs(number)))
        roots: Array = np.where(a < 2, a, self.hashed("power", a, rest.astype(np.uint64)))
        roots = np.where(rest == DENOMINATOR // 2, self.root(a), np.where(rest == 0, np.uint64(1), roots))
        found = self.multiply(self.power(a, whole), roots)
        is_negative = (is_small & (parts < 0)) | (~is_small & (number < 0))
        if is_negative.any():
            found = np.where(is_negative, self.inverse(found), found)
        return found, ~is_negative | (a != 0)

    def root(self, a: Array) -> Array:
        """Return pseudo-random square roots, which are natural at 0 and 1."""
        return np.where(a < 2, a, self.hashed("sqrt", a))

    def power(self, a: Array, exponent: Array) -> Array:
        """Return a to the power of integers that are not negative."""
        a, exponent = np.broadcast_arrays(a, exponent)
        result = np.ones(a.shape, np.uint64)
        while exponent.size and exponent.any():
            result = np.where(exponent & 1, self.multiply(result, a), result)
            a, exponent = self.multiply(a, a), exponent >> 1
        return result

    def matmul(self, a: Array, b: Array) -> Array:
        """Multiply stacks of matrices."""
        if a.size * b.shape[-1] < LARGE_DOT:
            high, low = a >> np.uint64(LIMB), a & np.uint64(2**LIMB - 1)
            return (((high @ b % self.prime) << np.uint64(LIMB)) + low @ b) % self.prime
        starts = range(0, a.shape[-1], LONGEST_DOT)
        parts = (
            self._float_matmul(a[..., i : i + LONGEST_DOT], b[..., i : i + LONGEST_DOT, :]) for i in starts
        )
        total = next(parts)
        for part in parts:
            total = self.add(total, part)
        return total

    def _float_matmul(self, a: Array, b: Array) -> Array:
        """Multiply halves of residues as doubles, which BLAS does: each sum of products is below 2**53."""
        (high, low), (above, below) = _halves(a), _halves(b)
        top = self._residues(high @ above)
        middle = self._residues(high @ below + low @ above)
        bottom = self._residues(low @ below)
        shift = np.uint64(LIMB)
        return ((((top << shift) + middle) % self.prime << shift) + bottom) % self.prime

    def _residues(self, whole: Array) -> Array:
        return whole.astype(np.uint64) % self.prime

    def signed(self, a: Array) -> Array:
        """Return the representatives from -p/2 to p/2."""
        number = a.astype(np.int64)
        return np.where(number > self.half, number - self.p, number)

    def order(self, a: Array) -> Array:
        """Return a number for each residue, by which residues are ordered. Different residues have different numbers.

        It is the residue's own number for small fractions such as 1/2 or -3/10, and for integers. So a residue that must be
        such a number, as the 0 that a mask gives, compares as the number does. All others lie between -8 and 8, by their
        signed representatives: half of them between the bounds of `clip(x, -4, 4)`. They are odd multiples of 2**-28, which
        no small fraction is.
        """
        numbers, is_small = self.small_numbers(a)
        return np.where(is_small, numbers, (2 * self.signed(a) + 1) * 2.0**-28)

    def small_numbers(self, a: Array) -> tuple[Array, Array]:
        """Return the small fractions and integers that residues stand for, and where they do."""
        signed, numerators = self.signed(a), self.signed(self.multiply(a, np.uint64(DENOMINATOR)))
        is_fraction = np.abs(numerators) <= SMALL_NUMERATOR
        return np.where(is_fraction, numerators / DENOMINATOR, signed), is_fraction | (
            np.abs(signed) <= INTEGERS
        )

    def from_integers(self, numbers: Array) -> Array:
        """Return the residues of integers or truth values."""
        if numbers.dtype.kind in "bu":
            return numbers.astype(np.uint64) % self.prime
        return (numbers.astype(np.int64) % self.p).astype(np.uint64)

    def from_floats(self, numbers: Array) -> Array:
        """Return the residues of finite doubles, each taken as the fraction that it is exactly; 0 for the others."""
        fraction, exponent = np.frexp(np.where(np.isfinite(numbers), numbers, 0.0))
        whole = self.from_integers(np.asarray(fraction * 2.0**53).astype(np.int64))
        powers = np.asarray(exponent.astype(np.int64) - 53)
        two = np.where(powers < 0, np.uint64(pow(2, -1, self.p)), np.uint64(2))
        return self.multiply(whole, self.power(two, np.abs(powers)))

    def constant(self, number: float) -> int:
        """Return the residue of a finite number of the program's text."""
        numerator, denominator = fraction_of(number)
        return numerator * pow(denominator, -1, self.p) % self.p

    def hashed(self, name: str, *arrays: Array) -> Array:
        """Return a pseudo-random function of residues."""
        mixed = np.uint64(crc32(name.encode()) | self.key << 32)
        with np.errstate(over="ignore"):
            for a in arrays:
                mixed = (a ^ mixed) * np.uint64(0x9E3779B97F4A7C15)
                mixed = (mixed ^ mixed >> np.uint64(29)) * np.uint64(0xBF58476D1CE4E5B9)
                mixed = mixed ^ mixed >> np.uint64(32)
        return mixed % self.prime


def _halves(a: Array) -> tuple[Array, Array]:
    return (a >> np.uint64(LIMB)).astype(np.float64), (a & np.uint64(2**LIMB - 1)).astype(np.float64)


@lru_cache(4096)
def fraction_of(number: float) -> tuple[int, int]:
    """Return the simple fraction that rounds to the double: 1/10 for 0.1. Without one, return the double's exact value."""
    return simplest(number, float, SIMPLE)


def simplest(number: float, rounded: Callable[[float], float], bound: int) -> tuple[int, int]:
    """Return the simplest fraction that rounds to `number`, or its exact value if no simple fraction does.

    A fraction is simple if the product of the odd parts of its numerator and denominator is below `bound`: no other is as simple.
    Powers of two do not count: the fraction of twice a number is twice its fraction. rounded: rounds to the dtype.
    """
    fraction, exponent = frexp(number)
    best, least = Fraction(fraction), bound
    for shift in range(SHIFTS):
        for a, b in _convergents(Fraction(fraction) * 2**shift, bound):
            size = abs(_odd(a)) * _odd(b)
            if size < least and rounded(ldexp(a / b, exponent - shift)) == number:
                best, least = Fraction(a, b * 2**shift), size
    whole = best * Fraction(2) ** exponent
    return whole.numerator, whole.denominator


def _convergents(number: Fraction, bound: int) -> Iterator[tuple[int, int]]:
    """Yield the best fractions for a number, numerator and denominator, as far as they are simple."""
    a, b, rest = (1, 0), (0, 1), number
    while True:
        whole = rest.numerator // rest.denominator
        a, b = (whole * a[0] + a[1], a[0]), (whole * b[0] + b[1], b[0])
        if abs(a[0]) * b[0] > bound << 2 * SHIFTS:
            return
        yield a[0], b[0]
        if rest == whole:
            return
        rest = 1 / (rest - whole)


def _odd(number: int) -> int:
    """Return the odd part of an integer."""
    return number // (number & -number) if number else 0
