"""Other ways of rounding a program, which measure what rounding does to each of its results.

Layouts and backends may differ in three things: the order in which the terms of a sum are added, the last digit of any result
that is not exact, and numbers too small to be normal, which XLA takes for 0. `OtherRounding` evaluates the undistributed program
with other choices in these three. The results of several such runs show the rounding that the program magnifies, and to what
size. This is the discrete stochastic arithmetic of Vignes (1993), with orders of sums beside the last digit.

Equal numbers stay equal: a sum's order depends on the names of its dimensions, and a last digit on the number that has it. So
ties between equal elements, which every layout resolves alike, are no noise.

`OverflowMarks` shows the results that depend on numbers which overflow in one order of a sum and not in another.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce
from typing import Any
from zlib import crc32

import attrs
import numpy as np

from mtfc.backends.interpreter import meaning
from mtfc.compiler.ir.opdef import LayoutRule, Shard, no_flops
from mtfc.compiler.ir.ops import OPS, has_trait
from mtfc.compiler.ir.ops.elementwise import align, numpy_dtype
from mtfc.compiler.ir.types import FLOATS, Dim
from mtfc.driver.data.array_files import Array

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
        if not _is_float(shard):
            return meaning(shard, *operands)
        if self.flushes:
            operands = tuple(map(_flushed, operands))
        found = self._evaluated(shard, operands)
        return _flushed(found) if self.flushes else found

    def _evaluated(self, shard: Shard, operands: Sequence[Array]) -> Array:
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
