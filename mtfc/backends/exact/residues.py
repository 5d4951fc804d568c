"""Arrays of a program under the exact check: floats are residues, everything else is what it is.

An `ExactArray` stands for one array of a generated NumPy module or of an op's `evaluate`. Integers and truth values are kept as
they are. Floats that are made of constants, indices and random draws alone are kept as real numbers, so that decisions and
positions stay what they are. Beside each there is its residue, which follows the same arithmetic without rounding. As soon as
such a float meets a residue, a sum would round it, or a function such as `exp` takes it, the residue takes its place.

Three more values stand beside the residues: infinity, minus infinity, and `POISON` for whatever has no meaning in the field,
such as a quotient by zero. Poison sticks.

An array may carry tangents, one for each element: then the same operations compute derivatives in forward mode.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import lru_cache, partial
from typing import Any

import numpy as np
from numpy.lib.mixins import NDArrayOperatorsMixin

from mtfc.backends.exact.prime_field import PrimeField, simplest

Array = Any

INFINITY, MINUS_INFINITY, POISON = (np.uint64(2**40 + i) for i in range(3))
HUGE = 1e25
"""A constant of this magnitude stands for an infinity."""

FRACTION_BITS = 2.0**30
"""A real number that is a multiple of the inverse is a short binary fraction, and needs no search for a simple fraction."""

SUM_SCALE = 2.0**20
"""Real numbers that are multiples of the inverse are added without rounding, up to `EXACT` of them."""

EXACT = 2.0**53
"""Whole numbers up to this one are doubles."""

NO_SLOPE = "slopes without a meaning"

TWICE = 1.1283791670955126
"""2 / sqrt(pi), the slope of `erf` at 0."""


class NotExact(Exception):
    """A module calls a function that the check has no meaning for."""


class ExactArray(NDArrayOperatorsMixin):
    """An array. values: residues if `is_residue`, else real numbers. dtype: the one that the program gives the array."""

    __slots__ = ("dtype", "field", "is_residue", "shadow", "tangent", "values")
    __array_priority__ = 1000

    def __init__(
        self,
        field: PrimeField,
        values: Array,
        dtype: Any,
        is_residue: bool = False,
        tangent: Array | None = None,
        shadow: ExactArray | None = None,
    ) -> None:
        """Make an array over a field.

        tangent: the derivative along a direction, as residues; None if the array does not vary. shadow: the residues beside
        real numbers that arithmetic has made; None if they are those of the numbers.
        """
        self.field, self.values, self.dtype = field, values, np.dtype(dtype)
        self.is_residue, self.tangent, self.shadow = is_residue, tangent, shadow

    # What an array is

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(self.values.shape)

    @property
    def ndim(self) -> int:
        return int(self.values.ndim)

    @property
    def size(self) -> int:
        return int(self.values.size)

    @property
    def itemsize(self) -> int:
        return int(self.dtype.itemsize)

    @property
    def strides(self) -> tuple[int, ...]:
        return tuple(s // self.values.itemsize * self.itemsize for s in self.values.strides)

    @property
    def is_float(self) -> bool:
        return self.dtype.kind not in "biu"

    def __len__(self) -> int:
        return len(self.values)

    def __iter__(self) -> Iterator[ExactArray]:
        return (self[i] for i in range(len(self)))

    # Structure

    def mapped(self, change: Callable[[Array], Array]) -> ExactArray:
        """Apply a function that moves elements, or a linear one if there are no special values."""
        return combined(change, self)

    def __getitem__(self, index: Any) -> ExactArray:
        plain = plain_index(index)
        return self.mapped(lambda x: np.asarray(x[plain]))

    def __setitem__(self, index: Any, value: Any) -> None:
        """Write a value into part of the array, with its tangent. A value that is a residue makes the whole array residues."""
        if self.is_float and isinstance(value, ExactArray) and value.is_residue and not self.is_residue:
            self.values, self.is_residue = self.residues().values, True
        given = self._like(value)
        self.values = np.asarray(self.values)  # sums of scalars are no arrays
        if self.is_float and not self.is_residue:
            self.shadow = self.residues().copy()
            self.shadow[index] = given.residues()
        self.values[plain_index(index)] = given.values
        if self.tangent is not None or given.tangent is not None:
            self.tangent = tangent_of(self).copy()
            self.tangent[plain_index(index)] = tangent_of(given)

    def _like(self, value: Any) -> ExactArray:
        found = exact(self.field, value, self.dtype)
        return found.residues() if self.is_residue else found

    def reshape(self, *shape: Any) -> ExactArray:
        return self.mapped(lambda x: x.reshape(*shape or ((),)))

    def transpose(self, *axes: Any) -> ExactArray:
        return self.mapped(lambda x: x.transpose(*axes))

    def ravel(self) -> ExactArray:
        return self.reshape(-1)

    def copy(self) -> ExactArray:
        return self.mapped(np.copy)

    def take(self, indices: Any, axis: int | None = None) -> ExactArray:
        plain = plain_index(indices)
        return self.mapped(lambda x: np.take(x, plain, axis=axis))

    def astype(self, dtype: Any, copy: bool = True) -> ExactArray:
        """Convert to another dtype. Rounding of floats is left out; the integer part of a residue is a pseudo-random number."""
        kind = np.dtype(dtype).kind
        if kind == "b":
            return ExactArray(self.field, self.values != 0, dtype)
        if kind in "iu":
            return ExactArray(self.field, self._integers(np.dtype(dtype)), dtype)
        if self.is_float:
            return ExactArray(self.field, self.values, dtype, self.is_residue, self.tangent, self.shadow)
        return ExactArray(self.field, self.values.astype(np.float64), dtype)

    def _integers(self, dtype: Any) -> Array:
        """Return integers of a dtype.

        Small residues are truncated; others become pseudo-random numbers, which are counted.
        """
        if not self.is_residue:
            with np.errstate(all="ignore"):
                return self.values.astype(dtype)
        self.field.count("casts to integers", self.size)
        numbers, is_small = self.field.small_numbers(self.values)
        whole: Array = np.where(is_small, np.trunc(numbers), self.field.signed(self.floor().values))
        return whole.astype(dtype)

    def all(self) -> Any:
        return self.values.all()

    def tobytes(self) -> bytes:
        return bytes(self.values.tobytes())

    # Floats

    def residues(self) -> ExactArray:
        """Return the array as residues."""
        if self.is_residue:
            return self
        if self.shadow is not None:
            return ExactArray(self.field, self.shadow.values, self.dtype, True)
        if not self.is_float:
            return ExactArray(self.field, self.field.from_integers(self.values), self.dtype, True)
        return ExactArray(self.field, _residues(self.field, self.values), self.dtype, True)

    @property
    def has_special(self) -> bool:
        return self.is_residue and self.size > 0 and bool(self.values.max() >= INFINITY)

    def keys(self) -> Array:
        """Return numbers in the order of the elements."""
        if not self.is_residue:
            return self.values
        found = self.field.order(self.values)
        if self.has_special:
            found = np.where(self.values == MINUS_INFINITY, -(2.0**50), found)
            found = np.where((self.values == INFINITY) | (self.values == POISON), 2.0**50, found)
        return found

    def floor(self) -> ExactArray:
        """Return the integer parts. Those of large residues are pseudo-random numbers, which are counted."""
        if not self.is_residue:
            return ExactArray(self.field, np.floor(self.values), self.dtype)
        self.field.count("integer parts", self.size)
        drawn = self.field.hashed("floor", self.values) % np.uint64(8)
        numbers, is_small = self.field.small_numbers(self.values)
        known = self.field.from_integers(np.floor(numbers).astype(np.int64))
        return ExactArray(self.field, np.where(is_small, known, drawn), self.dtype, True)

    # Arithmetic: the operators of the mixin call functions of NumPy

    def __array_ufunc__(self, ufunc: Any, method: str, *inputs: Any, **options: Any) -> Any:
        """Take calls such as `scipy.special.erf(x)` and `array + x`."""
        if method != "__call__":
            raise NotExact(f"{ufunc.__name__}.{method}")
        return applied(ufunc.__name__, *inputs)


def plain_index(index: Any) -> Any:
    """Return an index, or indices, as NumPy takes them."""
    if isinstance(index, tuple):
        return tuple(map(plain_index, index))
    return index.values if isinstance(index, ExactArray) else index


def exact(field: PrimeField, value: Any, dtype: Any = None) -> ExactArray:
    """Return a number or array as an `ExactArray`; a Python number takes the given dtype."""
    if isinstance(value, ExactArray):
        return value
    array = np.asarray(value)
    wanted = np.dtype(dtype if dtype is not None and array.ndim == 0 else array.dtype)
    if wanted.kind in "biu":
        return ExactArray(field, array.astype(wanted), wanted)
    if array.ndim == 0:
        return ExactArray(field, np.asarray(written(float(array), wanted)), wanted)
    return ExactArray(field, array.astype(np.float64), wanted)


@lru_cache(4096)
def written(number: float, dtype: Any) -> float:
    """Return the simplest number that a constant of a dtype may stand for: 1/10 and not the float next to it."""
    if dtype == np.float64 or not np.isfinite(number):
        return number
    with np.errstate(over="ignore"):
        rounded = float(dtype.type(number))
        if not np.isfinite(rounded):
            return rounded
        bits = 7 if dtype.itemsize == 2 and dtype != np.float16 else np.finfo(dtype).nmant
        a, b = simplest(rounded, lambda x: float(dtype.type(x)), 2 ** (bits - 1))
    return a / b


def _residues(field: PrimeField, numbers: Array) -> Array:
    """Return real numbers as residues: short binary fractions as they are, others as the simplest fraction."""
    if np.abs(numbers).max(initial=0.0) < 2.0**31:
        whole = numbers.astype(np.int64)
        if (whole == numbers).all():
            return field.from_integers(whole)
    finite = np.isfinite(numbers) & (np.abs(numbers) < HUGE)
    safe = np.where(finite, numbers, 0.0)
    scaled = safe * FRACTION_BITS
    is_short = (scaled == np.floor(scaled)) & (np.abs(scaled) < 2.0**62)
    found = np.asarray(field.from_floats(np.where(is_short, safe, 0.0)))
    if not is_short.all():
        kinds, places = np.unique(safe[~is_short], return_inverse=True)
        table = np.array([field.constant(float(x)) for x in kinds], np.uint64)
        found[~is_short] = table[places]
    if not finite.all():
        with np.errstate(invalid="ignore"):
            found = np.where(numbers >= HUGE, INFINITY, found)
            found = np.where(numbers <= -HUGE, MINUS_INFINITY, found)
        found = np.where(np.isnan(numbers), POISON, found)
    return found


def tangent_of(x: ExactArray) -> Array:
    return np.zeros(x.shape, np.uint64) if x.tangent is None else x.tangent


def _pair(x: Any, y: Any) -> tuple[ExactArray, ExactArray]:
    """Return two operands of one dtype; both are residues if one is, or if both are floats and one of them is a residue."""
    known = x if isinstance(x, ExactArray) else y
    a = exact(known.field, x, known.dtype)
    b = exact(known.field, y, known.dtype)
    if a.is_residue != b.is_residue:
        return a.residues(), b.residues()
    return a, b


def real(name: str, *operands: Any, dtype: Any = None) -> ExactArray:
    """Apply a NumPy function to real numbers, in f64 for floats."""
    known = next(x for x in operands if isinstance(x, ExactArray))
    if any(isinstance(x, ExactArray) and x.is_residue for x in operands):
        raise NotExact(name)
    with np.errstate(all="ignore"):
        given = [exact(known.field, x, known.dtype).values for x in operands]
        found = np.asarray(getattr(np, name)(*given))
    if found.dtype.kind in "biu":
        return ExactArray(known.field, found, dtype or found.dtype)
    return ExactArray(known.field, found, dtype or known.dtype)


def binary(name: str, x: Any, y: Any) -> ExactArray:
    """Apply an op of two operands: on residues by its rule, on real numbers as NumPy does, with the residues as a shadow."""
    a, b = _pair(x, y)
    rule = RULES[name]
    if a.is_residue:
        return rule(a, b)
    found = real(name, a, b, dtype=a.dtype if name != "divide" or a.is_float else None)
    if found.is_float:
        found.shadow = rule(a.residues(), b.residues())
    return found


def residue_array(like: ExactArray, values: Array, tangent: Array | None = None) -> ExactArray:
    return ExactArray(like.field, values, like.dtype, True, tangent)


def without_specials(x: ExactArray) -> Array:
    """Return the residues, and 0 for special values."""
    return np.where(x.values >= INFINITY, np.uint64(0), x.values) if x.has_special else x.values


def joined_tangents(rule: Callable[..., Array], *operands: ExactArray) -> Array | None:
    """Return the tangent that a rule makes of the operands' tangents; None if no operand has one."""
    if all(x.tangent is None for x in operands):
        return None
    return rule(*map(tangent_of, operands))


def combined(function: Callable[..., Array], *arrays: ExactArray) -> ExactArray:
    """Return the array that a function makes by moving the elements of arrays, such as `np.where` with a given condition."""
    parts = [x.residues() for x in arrays] if any(x.is_residue for x in arrays) else arrays
    values, tangent = function(*(x.values for x in parts)), joined_tangents(function, *parts)
    shadow = None
    if any(x.shadow is not None for x in parts):
        shadow = combined(function, *(x.residues() for x in parts))
    like = parts[0]
    return ExactArray(like.field, values, like.dtype, like.is_residue, tangent, shadow)


def _add(a: ExactArray, b: ExactArray) -> ExactArray:
    """Return the sum of residues, with infinities as in floats."""
    field = a.field
    found = field.add(without_specials(a), without_specials(b))
    if a.has_special or b.has_special:
        found = with_infinities(found, np.stack(np.broadcast_arrays(a.values, b.values)), (0,))
    return residue_array(a, found, joined_tangents(field.add, a, b))


def with_infinities(found: Array, terms: Array, axes: tuple[int, ...], keepdims: bool = False) -> Array:
    """Return a sum over axes whose terms may be special."""
    up, down, poison = (
        (terms == each).any(axes, keepdims=keepdims) for each in (INFINITY, MINUS_INFINITY, POISON)
    )
    return _with_specials(found, up, down, poison | (up & down))


def _with_specials(found: Array, up: Array, down: Array, poison: Array) -> Array:
    found = np.where(up, INFINITY, np.where(down, MINUS_INFINITY, found))
    return np.where(poison, POISON, found)


def negative(x: ExactArray) -> ExactArray:
    """Return the opposite, also of a shadow, of special values and of a tangent."""
    if not x.is_residue:
        opposite = real("negative", x, dtype=x.dtype)
        opposite.shadow = negative(x.residues()) if x.is_float else None
        return opposite
    found = x.field.negative(without_specials(x))
    if x.has_special:
        found = _with_specials(found, x.values == MINUS_INFINITY, x.values == INFINITY, x.values == POISON)
    return residue_array(x, found, None if x.tangent is None else x.field.negative(x.tangent))


def _multiply(a: ExactArray, b: ExactArray) -> ExactArray:
    """Return the product of residues, with infinities as in floats."""
    field = a.field
    found = field.multiply(without_specials(a), without_specials(b))
    if a.has_special or b.has_special:
        found = _times_infinity(found, a, b)
    return residue_array(a, found, _tangent_of_product(field.multiply, a, b))


def _tangent_of_product(times: Callable[[Array, Array], Array], a: ExactArray, b: ExactArray) -> Array | None:
    """Return the tangent of a bilinear product by the product rule: da b + a db."""
    left, right = without_specials(a), without_specials(b)
    _count_infinite_slopes(a, b)
    return joined_tangents(lambda s, t: a.field.add(times(s, right), times(left, t)), a, b)


def _divide(a: ExactArray, b: ExactArray) -> ExactArray:
    """Return the quotient of residues, with POISON where the divisor is 0 or infinite."""
    field = a.field
    inverse = field.inverse(without_specials(b))
    found = field.multiply(without_specials(a), inverse)
    if a.has_special:
        found = _times_infinity(found, a, b)
    _count_infinite_slopes(a, b)
    tangent = joined_tangents(
        lambda s, t: field.multiply(field.subtract(s, field.multiply(found, t)), inverse), a, b
    )
    return residue_array(a, np.where((b.values >= INFINITY) | (b.values == 0), POISON, found), tangent)


def _count_infinite_slopes(a: ExactArray, b: ExactArray) -> None:
    """Count slopes without a meaning: factors that are infinite or have no meaning, beside a factor with a tangent.

    The gradient of such a product has no meaning at these elements.
    """
    for x, other in ((a, b), (b, a)):
        if other.tangent is not None and x.has_special:
            x.field.count(NO_SLOPE, int((x.values >= INFINITY).sum()))


RULES: dict[str, Callable[[ExactArray, ExactArray], ExactArray]] = {
    "add": _add,
    "subtract": lambda a, b: _add(a, negative(b)),
    "multiply": _multiply,
    "divide": _divide,
}


def _times_infinity(found: Array, a: ExactArray, b: ExactArray) -> Array:
    """Return a product or quotient whose operands may be special. Infinity times a small number has a sign; others are
    poison.

    The compiler may multiply the numbers of a text, such as a mean's 1 / n and a mask's -1e30.

    found: the result as if no operand were special.
    """
    sign = _known_sign(a) * _known_sign(b)
    special = np.where(sign > 0, INFINITY, np.where(sign < 0, MINUS_INFINITY, POISON))
    return np.where((a.values >= INFINITY) | (b.values >= INFINITY), special, found)


def _known_sign(x: ExactArray) -> Array:
    """Return the signs of infinities and small numbers, and 0 for all other elements."""
    numbers, is_small = x.field.small_numbers(x.values)
    up, down = x.values == INFINITY, x.values == MINUS_INFINITY
    return np.where(up, 1.0, np.where(down, -1.0, np.sign(numbers) * (is_small & (x.values < INFINITY))))


def _dot_of_specials(found: Array, a: ExactArray, b: ExactArray) -> Array:
    """Return a dot some of whose products are special, each as `_times_infinity` says.

    found: the result as if no operand were special.
    """
    whole = [(_known_sign(x), (x.values < INFINITY).astype(np.float64)) for x in (a, b)]
    (left, left_plain), (right, right_plain) = whole
    special = a.shape[-1] - left_plain @ right_plain
    signed = np.abs(left) @ np.abs(right) - np.abs(left * left_plain) @ np.abs(right * right_plain)
    excess = left @ right - (left * left_plain) @ (right * right_plain)
    up, down = (signed + excess) / 2 > 0, (signed - excess) / 2 > 0
    return _with_specials(found, up, down, (special > signed) | (up & down))


def has_exact_sums(numbers: Array) -> bool:
    """Return True for real numbers whose sums have no rounding, in any order: short binary fractions that are not large."""
    scaled = np.abs(numbers) * SUM_SCALE
    return bool(scaled.sum() < EXACT and (scaled == np.floor(scaled)).all())


def has_exact_products(a: Array, b: Array) -> bool:
    """Return True for stacks of real matrices whose products have no rounding, in any order of the sums."""
    if not (has_exact_sums(a) and has_exact_sums(b)):
        return False
    return bool((np.abs(a) @ np.abs(b)).max(initial=0.0) * SUM_SCALE**2 < EXACT)


def matmul(a: ExactArray, b: ExactArray) -> ExactArray:
    """Multiply stacks of matrices."""
    if not (a.is_float or a.is_residue):
        return ExactArray(a.field, (a.values @ b.values).astype(a.dtype), a.dtype)
    if not (a.is_residue or b.is_residue) and has_exact_products(a.values, b.values):
        shadow = matmul(a.residues(), b.residues())
        return ExactArray(a.field, np.asarray(a.values @ b.values), a.dtype, shadow=shadow)
    a, b = a.residues(), b.residues()
    field = a.field
    found = field.matmul(without_specials(a), without_specials(b))
    if a.has_special or b.has_special:
        found = _dot_of_specials(found, a, b)
    return residue_array(a, found, _tangent_of_product(field.matmul, a, b))


def compared(name: str, x: Any, y: Any) -> ExactArray:
    """Compare by the order of residues."""
    a, b = _pair(x, y)
    return ExactArray(a.field, np.asarray(getattr(np, name)(a.keys(), b.keys())), np.bool_)


def extremum(name: str, x: Any, y: Any) -> ExactArray:
    """Return the larger or smaller elements. Equals share the slope; beside a number, as in `relu`, it is 0."""
    a, b = _pair(x, y)
    if not a.is_float:
        return real(name, a, b, dtype=a.dtype)
    takes = compared("greater_equal" if name == "maximum" else "less_equal", a, b)
    found = chosen(takes, a, b)
    if a.has_special or b.has_special:
        found.values = np.where((a.values == POISON) | (b.values == POISON), POISON, found.values)
    if found.tangent is not None:
        share = pow(2, -1, a.field.p) if isinstance(x, ExactArray) and isinstance(y, ExactArray) else 0
        both = a.field.multiply(a.field.add(tangent_of(a), tangent_of(b)), np.uint64(share))
        found.tangent = np.where(compared("equal", a, b).values, both, found.tangent)
    return found


def chosen(condition: Any, x: Any, y: Any) -> ExactArray:
    """Return elements of x where the condition holds, else of y."""
    known = next(each for each in (x, y, condition) if isinstance(each, ExactArray))
    like = next((each.dtype for each in (x, y) if isinstance(each, ExactArray)), None)
    a, b = exact(known.field, x, like), exact(known.field, y, like)
    where = condition.values if isinstance(condition, ExactArray) else condition
    return combined(lambda s, t: np.where(where, s, t), a, b)


# Functions of one operand

POINTS: dict[str, dict[int, int]] = {
    "exp": {0: 1}, "log": {1: 0}, "tanh": {0: 0}, "erf": {0: 0}, "sin": {0: 0}, "cos": {0: 1}, "sqrt": {},
}  # fmt: skip
"""Function -> the arguments at which it has its natural value, and the values. Elsewhere it is pseudo-random."""


def transcendental(name: str, x: ExactArray) -> ExactArray:
    """Return a pseudo-random function of the elements that has the function's own slope."""
    x = x.residues()
    safe = without_specials(x)
    found = x.field.root(safe) if name == "sqrt" else x.field.hashed(name, safe)
    for argument, value in POINTS[name].items():
        found = np.where(safe == argument, np.uint64(value), found)
    if name == "log":
        found = np.where(safe == 0, POISON, found)
    if x.has_special:
        found = np.where(x.values >= INFINITY, POISON, found)
        if name == "exp":
            found = np.where(x.values == MINUS_INFINITY, np.uint64(0), found)
            found = np.where(x.values == INFINITY, INFINITY, found)
    made = residue_array(x, found)
    if x.tangent is not None:
        slope = SLOPES[name](residue_array(x, safe), residue_array(x, without_specials(made)))
        made.tangent = x.field.multiply(x.tangent, _defined(slope))
    return made


def _defined(slope: ExactArray) -> Array:
    """Return the residues of a slope, and 0 where it has no meaning, such as that of `sqrt` at 0."""
    if slope.has_special:
        slope.field.count(NO_SLOPE, int((slope.values >= INFINITY).sum()))
    return without_specials(slope)


SLOPES: dict[str, Callable[[ExactArray, ExactArray], ExactArray]] = {
    "exp": lambda x, y: y,
    "log": lambda x, y: 1.0 / x,
    "tanh": lambda x, y: 1.0 - y * y,
    "sqrt": lambda x, y: 0.5 / y,
    "sin": lambda x, y: transcendental("cos", x),
    "cos": lambda x, y: -transcendental("sin", x),
    "erf": lambda x, y: TWICE * transcendental("exp", -(x * x)),
}
"""Function -> its derivative, in terms of the operand and the result."""


def power(x: Any, y: Any) -> ExactArray:
    """Return x to the power y, with the slopes that the gradients of `pow` have: see `PrimeField.real_power`."""
    known = x if isinstance(x, ExactArray) else y
    a, b = exact(known.field, x, known.dtype), exact(known.field, y, known.dtype)
    if not a.is_residue and not b.is_residue and (b.values == np.floor(b.values)).all():
        found = real("power", a, b, dtype=a.dtype)
        found.shadow = power(a.residues(), b)
        return found
    positive = compared("greater", _untangled(a), 0.0)
    a, b = a.residues(), b.residues()
    base, exponent = np.broadcast_arrays(without_specials(a), without_specials(b))
    values, is_defined = a.field.real_power(base, exponent)
    bad = (a.values >= INFINITY) | (b.values >= INFINITY) | ~is_defined
    found = residue_array(a, np.where(bad, POISON, values))
    slopes = []
    if a.tangent is not None:
        slopes.append(power(_untangled(a), _untangled(b) - 1.0) * _untangled(b) * residue_array(a, a.tangent))
    if b.tangent is not None:
        log = transcendental("log", chosen(positive, _untangled(a), 1.0))
        slopes.append(_untangled(found) * log * residue_array(b, b.tangent))
    if slopes:
        found.tangent = _defined(slopes[0] if len(slopes) == 1 else slopes[0] + slopes[1])
    return found


def _untangled(x: ExactArray) -> ExactArray:
    return ExactArray(x.field, x.values, x.dtype, x.is_residue)


def sign(x: ExactArray) -> ExactArray:
    """Return -1, 0 or 1, by the same order as comparisons."""
    if not x.is_residue:
        return real("sign", x, dtype=x.dtype)
    above, below = (compared(name, x, 0.0).values.astype(np.int64) for name in ("greater", "less"))
    return ExactArray(x.field, x.field.from_integers(above - below), x.dtype, True)


def absolute(x: ExactArray) -> ExactArray:
    """Return the larger of x and -x, by the same order as comparisons. The tangent is 0 at 0."""
    if not x.is_residue:
        return chosen(compared("less", x, 0.0), -x, x) if x.is_float else real("abs", x, dtype=x.dtype)
    zero = residue_array(x, np.zeros(x.shape, np.uint64))
    return chosen(compared("less", x, 0.0), -x, chosen(compared("equal", x, 0.0), zero, x))


APPLIED: dict[str, Callable[..., ExactArray]] = {
    **{name: partial(binary, name) for name in RULES},
    **{name: partial(transcendental, name) for name in POINTS},
    **{
        name: partial(compared, name)
        for name in ("less", "less_equal", "greater", "greater_equal", "equal", "not_equal")
    },
    "negative": negative,
    "matmul": matmul,
    "sign": sign,
    "abs": absolute,
    "absolute": absolute,
    "floor": lambda x: x.floor(),
    "square": lambda x: x * x,
    "power": power,
    "maximum": lambda x, y: extremum("maximum", x, y),
    "minimum": lambda x, y: extremum("minimum", x, y),
    "where": chosen,
    "isnan": lambda x: (
        ExactArray(x.field, x.values == POISON, np.bool_) if x.is_residue else real("isnan", x)
    ),
}  # fmt: skip
"""Name of an elementwise function of NumPy -> its meaning on arrays of the check."""


def applied(name: str, *operands: Any) -> ExactArray:
    """Apply an elementwise function."""
    return APPLIED[name](*operands) if name in APPLIED else real(name, *operands)
