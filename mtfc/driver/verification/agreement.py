"""Compare arrays with those of the undistributed program, each by a scale and a bound of its own.

The undistributed program runs several times, with sums in other orders and other last digits (`roundings.py`). The differences of
these runs are the noise of an array. A layout may differ by a multiple of the noise, or by a few units in the last place of the
array's largest number. NaN and infinities must be at the same places as in all runs, and integers equal where all runs agree.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cached_property, reduce
from typing import Any

import attrs
import numpy as np

from mtfc.compiler.ir.core import Program, walk
from mtfc.driver.data.array_files import Array
from mtfc.driver.verification.results import Comparison
from mtfc.driver.verification.roundings import limits_of

MARGIN = 8.0
"""A difference of up to this many times the largest difference among the runs is rounding."""

UNITS = 4.0
"""A difference of up to this many units in the last place of the largest number is rounding, however equal the runs are."""


@attrs.frozen
class Limits:
    """Limits of rounding.

    unit: a unit in the last place of 1. least: a difference that underflow explains. huge: numbers whose squares overflow.
    """

    unit: float = 0.0
    least: float = 0.0
    huge: float = math.inf

    @classmethod
    def of(cls, program: Program) -> Limits:
        """Return the limits of the 16-bit dtypes that a program computes in; its arguments and results may have others."""
        equations = [eqn for function in program.functions for eqn in walk(function.body)]
        read = {value for eqn in equations for value in eqn.operands}
        dtypes = {v.type.dtype for eqn in equations for v in eqn.results if v in read} & {"f16", "bf16"}
        return reduce(Limits.coarser, map(cls.of_dtype, sorted(dtypes)), cls())

    @classmethod
    def of_dtype(cls, dtype: Any) -> Limits:
        """Return the limits of a float dtype of the IR, or of NumPy. XLA takes numbers for 0 that are not normal, but in f16."""
        limits = limits_of(dtype)
        is_half = limits.dtype.name == "float16"
        least = UNITS * float(limits.smallest_subnormal if is_half else 16 * limits.tiny)
        return cls(float(limits.eps), least, math.sqrt(float(limits.max)))

    def coarser(self, other: Limits) -> Limits:
        return Limits(max(self.unit, other.unit), max(self.least, other.least), min(self.huge, other.huge))

    def for_array(self, array: Array) -> Limits:
        """Return the limits of an array in a program with these limits."""
        dtype = np.asarray(array).dtype
        return Limits() if dtype.kind in "iub" else self.coarser(Limits.of_dtype(dtype))


@attrs.frozen(slots=False, eq=False)
class Expected:
    """An array of the undistributed program in several runs; the first run rounds as usual."""

    runs: Sequence[Array]
    limits: Limits

    @property
    def plain(self) -> Array:
        return self.runs[0]

    @cached_property
    def scale(self) -> float:
        """The largest finite absolute value."""
        return _largest(_numbers(self.plain))

    @cached_property
    def bound(self) -> float:
        """The largest difference that passes for rounding."""
        plain = _numbers(self.plain)
        spread = max((_largest(_numbers(run) - plain) for run in self.runs[1:]), default=0.0)
        return MARGIN * spread + UNITS * self.limits.unit * self.scale + self.limits.least * (self.scale > 0)

    @cached_property
    def is_finite(self) -> bool:
        """True if the array holds neither NaN nor infinities."""
        return bool(np.isfinite(_numbers(self.plain)).all())

    @property
    def has_numbers(self) -> bool:
        """False for an array that is NaN or infinite wholly, and so says nothing of what it is computed from."""
        return self.plain.size == 0 or bool(np.isfinite(_numbers(self.plain)).any())

    @cached_property
    def _settled(self) -> Any:
        """True at the places where all runs agree on NaN, infinities and finite numbers.

        Where huge numbers differ by half of their size, other orders overflow.
        """
        numbers = [_numbers(run) for run in self.runs]
        agree = np.all([_kinds(each) == _kinds(numbers[0]) for each in numbers], axis=0)
        sizes = np.abs(numbers)
        apart = np.max([np.abs(each - numbers[0]) for each in numbers], axis=0)
        return agree & ~((apart > np.abs(numbers[0]) / 2) & (np.max(sizes, axis=0) > self.limits.huge))

    def compared(self, actual: Array) -> Comparison:
        """Compare an array of a layout with this one."""
        actual, expected = np.asarray(actual), np.asarray(self.plain)
        if actual.shape != expected.shape:
            return self._refused(f"has shape {actual.shape}, and not {expected.shape}")
        if actual.dtype != expected.dtype:
            return self._refused(f"is {actual.dtype.name}, and not {expected.dtype.name}")
        if expected.dtype.kind in "iub":
            return self._counted(actual)
        numbers = _numbers(actual)
        if places := self._misplaced(numbers):
            return self._refused(f"has NaN, infinities or numbers at other places: {places} of {actual.size}")
        apart = numbers - _numbers(expected)
        error = _largest(apart[self._settled & np.isfinite(apart)])
        return Comparison(error, self.scale, self.bound, None if error <= self.bound else "differs")

    def _misplaced(self, actual: Any) -> int:
        """Return the number of places with another kind of number than in the runs."""
        kinds = _kinds(_numbers(self.plain))
        wrong = self._settled & (_kinds(actual) != kinds)
        never = ~np.any([np.isfinite(_numbers(run)) for run in self.runs], axis=0)
        return int((wrong | (never & np.isfinite(actual))).sum())

    def _counted(self, actual: Any) -> Comparison:
        """Compare integers and truth values, which are equal wherever all runs agree."""
        sure = np.all([run == self.plain for run in self.runs], axis=0)
        apart = np.abs(_numbers(actual) - _numbers(self.plain)) * sure
        error = _largest(apart)
        return Comparison(error, self.scale, 0.0, "differs" if error else None)

    def _refused(self, fault: str) -> Comparison:
        return Comparison(math.inf, self.scale, self.bound, fault)


def _numbers(array: Array) -> Any:
    return np.asarray(array).astype(np.float64)


def _kinds(numbers: Any) -> Any:
    """Return 0 for a finite number, 1 for infinity, -1 for minus infinity, 2 for NaN."""
    return np.where(np.isnan(numbers), 2, np.isinf(numbers) * np.sign(numbers))


def _largest(numbers: Any) -> float:
    """Return the largest finite absolute value; 0 if there is none."""
    numbers = np.abs(numbers)
    return float(numbers[np.isfinite(numbers)].max(initial=0.0))
