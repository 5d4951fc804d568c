"""Reductions, and products of arrays, under the exact check."""

from math import prod
from typing import Any

import numpy as np

from mtfc.backends.exact.residues import (
    INFINITY,
    POISON,
    Array,
    ExactArray,
    combined,
    has_exact_sums,
    joined_tangents,
    residue_array,
    with_infinities,
    without_specials,
)


def _both(like: ExactArray, numbers: Array, shadow: ExactArray) -> ExactArray:
    """Return real numbers with the residues beside them."""
    return ExactArray(like.field, np.asarray(numbers), like.dtype, shadow=shadow)


def _has_single_terms(numbers: Array, axes: tuple[int, ...]) -> bool:
    """Return True for sums with at most one term other than 0, as of the parts of a gather."""
    return bool(np.count_nonzero(numbers, axis=axes).max(initial=0) <= 1)


def _axes(axis: Any, ndim: int) -> tuple[int, ...]:
    """Return axes as a sorted tuple of numbers from 0: None stands for all."""
    if axis is None:
        return tuple(range(ndim))
    return tuple(sorted(i % ndim for i in (axis if isinstance(axis, tuple | list | range) else (axis,))))


def total(x: ExactArray, axis: Any = None, keepdims: bool = False) -> ExactArray:
    """Sum over axes."""
    axes = _axes(axis, x.ndim)
    if not x.is_float:
        return ExactArray(x.field, np.sum(x.values, axis=axes, dtype=x.dtype, keepdims=keepdims), x.dtype)
    if not x.is_residue and (has_exact_sums(x.values) or _has_single_terms(x.values, axes)):
        return _both(x, np.sum(x.values, axis=axes, keepdims=keepdims), total(x.residues(), axis, keepdims))
    x = x.residues()
    found = x.field.total(without_specials(x), axes, keepdims)
    if x.has_special:
        found = with_infinities(found, x.values, axes, keepdims)
    return residue_array(x, found, joined_tangents(lambda t: x.field.total(t, axes, keepdims), x))


def product(x: ExactArray, axis: Any = None, keepdims: bool = False) -> ExactArray:
    """Multiply over axes, half by half."""
    axes = _axes(axis, x.ndim)
    if not x.is_float:
        return ExactArray(x.field, np.prod(x.values, axis=axes, dtype=x.dtype, keepdims=keepdims), x.dtype)
    if not x.is_residue:
        return _both(
            x, np.prod(x.values, axis=axes, keepdims=keepdims), product(x.residues(), axis, keepdims)
        )
    rest = [size for i, size in enumerate(x.shape) if i not in axes]
    x = x.mapped(lambda v: np.moveaxis(v, axes, range(len(axes))).reshape(-1, *rest))
    while len(x) > 1:
        half = len(x) // 2
        pairs = x[:half] * x[half : 2 * half]
        x = pairs if len(x) % 2 == 0 else combined(lambda *xs: np.concatenate(xs), pairs, x[2 * half :])
    found = x[0]
    return found.mapped(lambda v: np.expand_dims(v, axes)) if keepdims else found


def largest(x: ExactArray, axis: Any, keepdims: bool, sign: int = 1) -> ExactArray:
    """Return the extremum over axes, with the tangent of the first element that attains it; poison wins."""
    axes = _axes(axis, x.ndim)
    count = prod(x.shape[i] for i in axes)
    rest = [size for i, size in enumerate(x.shape) if i not in axes]
    flat = x.mapped(lambda v: np.moveaxis(v, axes, range(len(axes))).reshape(count, *rest))
    keys = sign * flat.keys() if flat.values.dtype != np.bool_ else flat.values ^ (sign < 0)
    if flat.has_special:
        keys = np.where(flat.values == POISON, 2.0**51, keys)
    place = np.argmax(keys, axis=0)[None]
    found = flat.mapped(lambda v: np.take_along_axis(v, place, 0)[0])
    return found.mapped(lambda v: np.expand_dims(v, axes)) if keepdims else found


def cumulative(x: ExactArray, axis: int) -> ExactArray:
    """Return the cumulative sum along an axis. From the first special value on, the sums are POISON."""
    if not x.is_float:
        return ExactArray(x.field, np.cumsum(x.values, axis=axis, dtype=x.dtype), x.dtype)
    if not x.is_residue and has_exact_sums(x.values):
        return _both(x, np.cumsum(x.values, axis=axis), cumulative(x.residues(), axis))
    x = x.residues()
    found = x.field.cumulative(without_specials(x), axis)
    if x.has_special:
        seen = np.logical_or.accumulate(x.values >= INFINITY, axis=axis)
        found = np.where(seen, POISON, found)
    return residue_array(x, found, joined_tangents(lambda t: x.field.cumulative(t, axis), x))


def einsum(subscripts: str, *operands: ExactArray) -> ExactArray:
    """Compute an einsum of letters, two operands at a time."""
    *terms, result = subscripts.replace("->", ",").split(",")
    parts = list(zip(operands, terms, strict=True))
    while len(parts) > 1:
        (a, left), (b, right), *rest = parts
        needed = set(result).union(*(term for _, term in rest))
        parts = [_contracted(a, left, b, right, needed), *rest]
    x, labels = _summed(*parts[0], set(result))
    return x.transpose([labels.index(label) for label in result]) if result else x.reshape(())


def _summed(x: ExactArray, labels: str, needed: set[str]) -> tuple[ExactArray, str]:
    gone = tuple(i for i, label in enumerate(labels) if label not in needed)
    return (total(x, gone), "".join(label for label in labels if label in needed)) if gone else (x, labels)


def _contracted(
    a: ExactArray, left: str, b: ExactArray, right: str, needed: set[str]
) -> tuple[ExactArray, str]:
    """Return the product of two arrays, summed over shared letters that nothing else needs, and the letters of the result.

    left, right: a letter for each dimension. needed: the letters of the other operands and of the result.
    """
    a, left = _summed(a, left, needed | set(right))
    b, right = _summed(b, right, needed | set(left))
    batch = [each for each in left if each in right and each in needed]
    inner = [each for each in left if each in right and each not in needed]
    rows = [each for each in left if each not in right]
    columns = [each for each in right if each not in left]
    a = a.transpose([left.index(each) for each in (*batch, *rows, *inner)])
    b = b.transpose([right.index(each) for each in (*batch, *inner, *columns)])
    batch_rank, inner_rank = len(batch), len(inner)
    if not (inner or a.is_residue or b.is_residue):
        wide = a.reshape(*a.shape, *[1] * len(columns))
        return wide * b.reshape(*b.shape[:batch_rank], *[1] * len(rows), *b.shape[batch_rank:]), "".join(
            (*batch, *rows, *columns)
        )
    group, height = a.shape[:batch_rank], a.shape[batch_rank : a.ndim - inner_rank]
    width, depth = b.shape[batch_rank + inner_rank :], prod(a.shape[a.ndim - inner_rank :])
    product = a.reshape(*group, prod(height), depth) @ b.reshape(*group, depth, prod(width))
    return product.reshape(*group, *height, *width), "".join((*batch, *rows, *columns))
