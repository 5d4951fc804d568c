"""Compare arrays with those of the undistributed program, each by a scale and a bound of its own.

The undistributed program runs several times, with sums in other orders and other last digits. The differences of these runs are
the noise of an array. A layout may differ by a multiple of the noise, or by a few units in the last place of the array's largest
number. NaN and infinities must be at the same places as in all runs, and integers equal where all runs agree.

Layouts and backends may differ in three things: the order in which the terms of a sum are added, the last digit of any result
that is not exact, and numbers too small to be normal, which XLA takes for 0. `OtherRounding` evaluates the undistributed program
with other choices in these three. The results of several such runs show the rounding that the program magnifies, and to what
size. This is the discrete stochastic arithmetic of Vignes (1993), with orders of sums beside the last digit.

Equal numbers stay equal: a sum's order depends on the names of its dimensions, and a last digit on the number that has it. So
ties between equal elements, which every layout resolves alike, are no noise.

`OverflowMarks` shows the results that depend on numbers which overflow in one order of a sum and not in another.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cached_property, reduce
from typing import Any
from zlib import crc32

import attrs
import numpy as np

from mtfc.backends.interpreter import meaning
from mtfc.compiler.ir.core import Program, walk
from mtfc.compiler.ir.opdef import LayoutRule, Shard, no_flops
from mtfc.compiler.ir.ops import OPS, has_trait
from mtfc.compiler.ir.ops.elementwise import align, numpy_dtype
from mtfc.compiler.ir.types import FLOATS, Dim
from mtfc.driver.data.array_files import Array
from mtfc.driver.verification.results import Comparison

BLOCKS = 8
"""The most blocks that a sum is computed in."""


@attrs.frozen
class OtherRounding:
    """Evaluates ops with sums in an order of its own, and last digits up to `units` higher or lower.

    flushes: take numbers too small to be normal for 0, and -0 for 0.
    adds_in_order: add the terms of a sum one after the other, as XLA may. NumPy adds pairs, and rounds less.
    """

    seed: int
    units: int = 1
    flushes: bool = False
    adds_in_order: bool = False

    def __call__(self, shard: Shard, *operands: Array) -> Any:
        """Evaluate an equation of floats as another processor may. Other equations have one result, which is returned."""
        if not _is_float(shard):
            return meaning(shard, *operands)
        if self.flushes:
            operands = tuple(map(_flushed, operands))
        found = self._evaluated(shard, operands)
        return _flushed(found) if self.flushes else found

    def _evaluated(self, shard: Shard, operands: Sequence[Array]) -> Array:
        """Return the result of an op on a shard, moved within its error: sums in another order, and rounded results a little
        off.
        """
        eqn = shard.eqn
        rule = OPS[eqn.op].layout_rule(eqn)
        if adds_terms(shard):
            if self.adds_in_order and OPS[eqn.op].storage == "reduced":
                return self._in_order(shard, operands[0])
            return self._in_blocks(shard, rule, operands)
        if (dim := _mixed_dim(shard, rule)) is not None:
            return self._in_two_parts(shard, dim, operands[0])
        found = np.asarray(meaning(shard, *operands))
        return self._moved(found, _is_exact(shard, found, operands)) if _rounds(shard, rule) else found

    def _in_blocks(self, shard: Shard, rule: LayoutRule, operands: Sequence[Array]) -> Array:
        """Permute the terms, add up blocks of them, and then the blocks."""
        orders = {dim: self._random(dim.name).permutation(dim.size) for dim in rule.reduced}
        longest = max(rule.reduced, key=lambda dim: dim.size)
        count = int(self._random(longest.name, 1).integers(2, BLOCKS + 1))
        parts = []
        for block in np.array_split(orders[longest], min(count, longest.size)):
            chosen = {**orders, longest: block}
            taken = (
                _taken(x, v.type.dims, chosen) for x, v in zip(operands, shard.eqn.operands, strict=True)
            )
            parts.append(_as_sent(shard, meaning(shard, *map(_wide, taken))))
        return reduce(np.add, parts).astype(_dtype(shard))

    def _in_order(self, shard: Shard, terms: Array) -> Array:
        """Add the terms of a sum one after the other, in an order of its own."""
        kept, dims = shard.eqn.result.type.names, shard.eqn.operands[0].type.names
        reduced = sorted({*dims} - {*kept})
        moved = np.transpose(terms, [dims.index(name) for name in (*kept, *reduced)])
        flat = moved.reshape(*moved.shape[: len(kept)], -1)
        order = self._random(" ".join(reduced)).permutation(flat.shape[-1])
        return np.add.accumulate(_wide(flat[..., order]), axis=-1)[..., -1].astype(_dtype(shard))

    def _in_two_parts(self, shard: Shard, dim: Dim, operand: Array) -> Array:
        """Add the results for two halves of the elements, with zeros in the place of the others."""
        dims = shard.eqn.operands[0].type.names
        half = self._random(dim.name).permutation(dim.size) < dim.size // 2
        chosen = align(half, (dim.name,), dims)
        wide = _wide(operand)
        parts = [meaning(shard, np.where(mask, wide, wide.dtype.type(0))) for mask in (chosen, ~chosen)]
        return (parts[0] + parts[1]).astype(_dtype(shard))

    def _moved(self, found: Array, is_exact: Array) -> Array:
        """Move last digits by a number of units that depends on the number alone."""
        whole = np.uint64(8 * found.dtype.itemsize - 1)
        kind = {2: np.uint16, 4: np.uint32, 8: np.uint64}[found.dtype.itemsize]
        bits = np.ascontiguousarray(found).reshape(found.shape).view(kind)
        magnitude = bits.astype(np.uint64) & ((np.uint64(1) << whole) - np.uint64(1))
        with np.errstate(all="ignore"):
            mixed = (magnitude + np.uint64(self.seed + 1)) * np.uint64(0x9E3779B97F4A7C15)
            mixed = (mixed ^ (mixed >> np.uint64(29))) * np.uint64(0xBF58476D1CE4E5B9)
            units = (mixed >> np.uint64(40)) % np.uint64(2 * self.units + 1)
            numbers = np.abs(found.astype(np.float64))
            largest = float(limits_of(found.dtype).max) / 2
            fits = (numbers > float(limits_of(found.dtype).tiny) * 4) & (numbers < largest) & ~is_exact
            moved = (bits + units.astype(kind)) - kind(self.units)
        return np.where(fits, moved, bits).astype(kind).view(found.dtype)

    def _random(self, name: str, purpose: int = 0) -> Any:
        return np.random.default_rng([self.seed, crc32(name.encode()), purpose])


@attrs.frozen
class OverflowMarks:
    """Evaluates ops with a mark where finite numbers overflow.

    Where the magnitudes of finite terms add up to infinity, the result of a sum depends on the order of the terms. Where a wider
    dtype holds a result, the next op may take the result from a wider register, or before a constant factor. Results that differ
    between two marks depend on such numbers.
    """

    mark: float

    def __call__(self, shard: Shard, *operands: Array) -> Any:
        """Return the result of an op, with `mark` where an overflow depends on the order of a sum or on the width of the
        numbers.
        """
        found = meaning(shard, *operands)
        if not _is_float(shard):
            return found
        found = np.asarray(found)
        with np.errstate(all="ignore"):
            marked = np.zeros(found.shape, np.bool_)
            if adds_terms(shard) or _mixed_dim(shard, OPS[shard.eqn.op].layout_rule(shard.eqn)) is not None:
                marked |= np.isinf(meaning(shard, *(_magnitudes(_wide(x)) for x in operands)))
            if operands and np.isinf(found).any():
                marked |= np.isinf(found) & _fits_wider(shard, operands)
            return np.where(marked, found.dtype.type(self.mark), found)


@attrs.frozen
class InfinityMarks:
    """Evaluates ops with NaN in the place of every infinity that they compute: a layout may give either (`docs/language.md`).

    Results that differ without the marks depend on the choice.
    """

    def __call__(self, shard: Shard, *operands: Array) -> Any:
        """Evaluate an equation; a NaN takes the place of each infinity that arithmetic makes."""
        found = meaning(shard, *operands)
        if not _is_float(shard) or OPS[shard.eqn.op].flops is no_flops:
            return found
        found = np.asarray(found)
        return np.where(np.isinf(found), found.dtype.type(np.nan), found)


def _is_float(shard: Shard) -> bool:
    """True for an op with one result, which is a float."""
    return len(shard.eqn.results) == 1 and shard.eqn.result.type.dtype in FLOATS


def _fits_wider(shard: Shard, operands: Sequence[Array]) -> Array:
    """True where the result of an op is finite in a wider dtype."""
    if has_trait(shard.eqn, "cast"):
        return np.isfinite(operands[0])
    wider = {2: np.float32, 4: np.float64, 8: np.longdouble}
    floats = [v.type.dtype in FLOATS for v in shard.eqn.operands]
    wide = (x.astype(wider[x.dtype.itemsize]) if f else x for x, f in zip(operands, floats, strict=True))
    return np.isfinite(np.asarray(meaning(shard, *wide)))


def adds_terms(shard: Shard) -> bool:
    """True for an op that sums over dimensions. `gather` is one, too, but has a single term that is not 0."""
    eqn = shard.eqn
    rule = OPS[eqn.op].layout_rule(eqn)
    reads_one = has_trait(eqn, "indexes") and not has_trait(eqn, "scatter")
    return rule.reduction == "sum" and any(dim.size > 1 for dim in rule.reduced) and not reads_one


def _mixed_dim(shard: Shard, rule: LayoutRule) -> Dim | None:
    """Return the last dimension along which an op adds without reducing it, as `cumsum` does; None for other ops."""
    eqn = shard.eqn
    opdef = OPS[eqn.op]
    if opdef.storage != "kernel" or opdef.flops is no_flops or opdef.linear(eqn) != ((0,),) or rule.reduced:
        return None
    dims = [dim for dim in eqn.operands[0].type.dims if rule.index.get(dim.name, dim.name) is None]
    return next((dim for dim in reversed(dims) if dim.size > 1), None)


def _rounds(shard: Shard, rule: LayoutRule) -> bool:
    """True for an op that computes each element by itself, and for `prod`."""
    opdef = OPS[shard.eqn.op]
    if has_trait(shard.eqn, "random", "filled", "constant"):
        return False
    is_product = opdef.storage == "reduced" and not rule.reduced
    return has_trait(shard.eqn, "cast") or (
        opdef.flops is not no_flops and (opdef.storage == "fused" or is_product)
    )


def _is_exact(shard: Shard, found: Array, operands: Sequence[Array]) -> Array:
    """True for whole numbers, and for elements that equal an operand but for the sign: they are seldom rounded."""
    names = shard.eqn.result.type.names
    numbers = np.abs(_wide(found))
    exact = numbers == np.rint(numbers)
    for operand, value in zip(operands, shard.eqn.operands, strict=True):
        if value.type.dtype in FLOATS and set(value.type.names) <= set(names):
            exact |= numbers == np.abs(_wide(align(operand, value.type.names, names)))
    return exact


def _taken(array: Array, dims: Sequence[Dim], chosen: dict[Dim, Array]) -> Array:
    """Return the chosen elements along each dimension that the array has."""
    for axis, dim in enumerate(dims):
        if dim in chosen:
            array = array.take(chosen[dim], axis)
    return array


def _as_sent(shard: Shard, part: Array) -> Array:
    """Round a partial sum as layouts round it: bf16 to its own dtype, f16 to f32."""
    is_bf16 = shard.eqn.result.type.dtype == "bf16"
    return part.astype(_dtype(shard)).astype(part.dtype) if is_bf16 else part


def _wide(array: Array) -> Array:
    """Return floats of 16 bits in 32 bits, in which sums accumulate; other arrays as they are."""
    is_narrow = array.dtype.itemsize == 2
    return array.astype(np.float32) if is_narrow else array


def _magnitudes(array: Array) -> Array:
    return array if array.dtype.kind in "iub" else np.where(np.isfinite(array), np.abs(array), 0)


def _flushed(array: Array) -> Array:
    """Return an array with 0 in the place of -0 and of numbers that are too small to be normal.

    XLA computes f16 in f32, where all numbers of f16 are normal.
    """
    if array.dtype.kind in "iubc":
        return array
    least = 0.0 if array.dtype == np.float16 else float(limits_of(array.dtype).tiny)
    return np.where(np.abs(array) < least, array.dtype.type(0), array) + array.dtype.type(0)


def _dtype(shard: Shard) -> Any:
    return numpy_dtype(np, shard.eqn.result.type.dtype)


def limits_of(dtype: Any) -> Any:
    """Return `finfo` of a float dtype, of the IR or of NumPy."""
    import ml_dtypes

    return ml_dtypes.finfo(numpy_dtype(np, dtype) if isinstance(dtype, str) else dtype)  # type: ignore[no-untyped-call]


# Comparison

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
