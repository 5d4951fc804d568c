"""Numbers of a dtype, and arithmetic on them that is exact or not done."""

from fractions import Fraction
from math import frexp, isfinite, ldexp

from mtfc.compiler.ir.twins import on_twins

SIGNIFICANDS: dict[str, tuple[int, int, int]] = {
    "f16": (11, -13, 16),
    "bf16": (8, -125, 128),
    "f32": (24, -125, 128),
    "f64": (53, -1021, 1024),
}
"""Dtype -> the bits of its significand, and the exponents of its smallest and largest normal number, as `frexp` counts."""

INTEGER_BITS = 32


def rounded(number: float, dtype: str) -> float | None:
    """Return the number of a floating-point dtype that is next to `number`; None if it is not a normal number or 0."""
    if number == 0:
        return float(number)
    if not isfinite(number):
        return None
    bits, least, most = SIGNIFICANDS[dtype]
    fraction, exponent = frexp(number)
    found = ldexp(round(ldexp(fraction, bits)), exponent - bits)
    return found if least <= frexp(found)[1] <= most else None


@on_twins(lambda a, b, dtype: a * b)
def product(a: float, b: float, dtype: str, wide: bool = False) -> float | None:
    """Return a * b for two numbers of a dtype with few digits, or None if that is rounded or no normal number.

    wide: b is a count, which does not have to be a number of the dtype.
    """
    x, y = rounded(a, dtype), float(b) if wide else rounded(b, dtype)
    if x is None or y is None or (x * y == 0 and x and y):  # f64 numbers may underflow to 0
        return None
    if is_power_of_two(a) or is_power_of_two(b):  # scaled, an unrounded constant keeps its digits
        return a * b if rounded(a * b, dtype) is not None else None
    if not (is_short(x, dtype) and is_short(y, dtype)):
        return None
    found = rounded(x * y, dtype)
    return found if found is not None and Fraction(x) * Fraction(y) == Fraction(found) else None


@on_twins(lambda a, b, dtype: a + b)
def total(a: float, b: float, dtype: str) -> float | None:
    """Return a + b for two numbers of a dtype with few digits, or None if that is rounded or no normal number."""
    x, y = rounded(a, dtype), rounded(b, dtype)
    if x is None or y is None or (x, y) != (a, b) or not (is_short(x, dtype) and is_short(y, dtype)):
        return None
    found = rounded(x + y, dtype)
    return found if found is not None and Fraction(x) + Fraction(y) == Fraction(found) else None


def is_short(number: float, dtype: str) -> bool:
    """Return True for 0 and numbers with at most half of the bits of the dtype.

    Such a number means itself. A number with all bits, such as the one next to 1/3, means another one: what a fold of it gives
    exactly is exact by chance.
    """
    numerator = abs(number.as_integer_ratio()[0])
    odd = numerator // (numerator & -numerator) if numerator else 0
    return odd.bit_length() <= SIGNIFICANDS[dtype][0] // 2


def is_power_of_two(number: float) -> bool:
    """Return True for a power of two of either sign."""
    return isfinite(number) and abs(frexp(number)[0]) == 0.5


@on_twins(lambda number, dtype: number)
def wrapped(number: float, dtype: str) -> int:
    """Return an integer as a dtype has it after overflow."""
    found = int(number) % (1 << INTEGER_BITS)
    return found - (1 << INTEGER_BITS) if dtype == "i32" and found >> INTEGER_BITS - 1 else found
