"""NumPy's functions on arrays of residues, for modules under the exact check.

A generated module and the ops' `evaluate` use few functions of NumPy. Those that move elements are NumPy's own. The others have
their meaning in `residues.py`. A function that is in neither group raises `NotExact`, so nothing is computed on residues by
accident.
"""

from collections.abc import Callable, Sequence
from math import prod
from types import SimpleNamespace
from typing import Any

import numpy as np

from mtfc.backends.exact import residues
from mtfc.backends.exact.prime_field import PrimeField
from mtfc.backends.exact.residues import (
    APPLIED,
    INFINITY,
    MINUS_INFINITY,
    POISON,
    ExactArray,
    NotExact,
    applied,
    combined,
    exact,
)
from mtfc.backends.exact.sums import cumulative, einsum, largest, product, total
from mtfc.compiler.ir.ops.calls import FUNCTIONS, fronts_of

MOVES = frozenset({
    "moveaxis", "roll", "expand_dims", "flip", "broadcast_to", "ascontiguousarray", "transpose", "reshape", "take_along_axis",
})  # fmt: skip
"""Functions that move the elements of one array."""

REDUCTIONS: dict[str, Callable[[ExactArray, Any, bool], ExactArray]] = {
    "add": total,
    "multiply": product,
    "maximum": lambda x, axis, keepdims: largest(x, axis, keepdims),
    "minimum": lambda x, axis, keepdims: largest(x, axis, keepdims, -1),
}

REDUCING = {"sum": "add", "prod": "multiply", "max": "maximum", "min": "minimum"}
"""Function of NumPy that reduces -> the elementwise function by which it does; without an axis, it reduces over all."""


def _of_dtype(x: ExactArray, dtype: Any) -> ExactArray:
    return x if dtype is None else x.astype(dtype)


class Elementwise:
    """An elementwise function of NumPy, with the methods that reduce."""

    def __init__(self, name: str) -> None:
        self.name = name

    def __call__(self, *operands: Any, **options: Any) -> Any:
        """Apply the function to arrays of residues, or to plain numbers as NumPy does."""
        if not any(isinstance(x, ExactArray) for x in operands):
            return getattr(np, self.name)(*operands, **options)
        return applied(self.name, *operands)

    def reduce(self, x: ExactArray, axis: Any = 0, dtype: Any = None, keepdims: bool = False) -> ExactArray:
        """Reduce an array over axes. Raises `NotExact` for a function without a reduction on residues."""
        if self.name not in REDUCTIONS:
            raise NotExact(f"numpy.{self.name}.reduce")
        return _of_dtype(REDUCTIONS[self.name](x, axis, keepdims), dtype)

    def reduce_all(self, x: ExactArray, axis: Any = None, dtype: Any = None) -> ExactArray:
        """Reduce over some axes, or all."""
        return self.reduce(x, axis, dtype)

    def at(self, table: ExactArray, index: Any, values: ExactArray) -> None:
        """Add values at places that may repeat."""
        if self.name != "add":
            raise NotExact(f"{self.name}.at")
        plain = residues.plain_index(index)
        if not table.is_float:
            np.add.at(table.values, plain, values.values)
            return
        whole, given = table.residues(), values.residues()
        sums = residues.without_specials(whole).copy()
        np.add.at(sums, plain, residues.without_specials(given))
        table.values, table.is_residue = sums % table.field.prime, True
        if given.has_special:
            for each in (INFINITY, MINUS_INFINITY, POISON):
                hit = np.zeros(table.shape, bool)
                np.logical_or.at(hit, plain, given.values == each)
                table.values = np.where(hit, POISON, table.values)
        if given.tangent is not None:
            slopes = np.zeros(table.shape, np.uint64)
            np.add.at(slopes, plain, given.tangent)
            table.tangent = slopes % table.field.prime


class ExactNumpy:
    """NumPy for one draw of the check."""

    def __init__(self, field: PrimeField) -> None:
        self.field = field
        self.lib = SimpleNamespace(stride_tricks=SimpleNamespace(sliding_window_view=self._windows))

    def __getattr__(self, name: str) -> Any:
        """Return a function of NumPy for exact arrays, made at its first use; functions without a rule refuse exact arrays."""
        if name in MOVES:
            found: Any = self._move(name)
        elif name in REDUCING:
            found = Elementwise(REDUCING[name]).reduce_all
        elif name in APPLIED or isinstance(getattr(np, name), np.ufunc):
            found = Elementwise(name)
        else:
            found = self._only_real(name, getattr(np, name))
        setattr(self, name, found)
        return found

    def _move(self, name: str) -> Any:
        """Return a function of NumPy that only moves elements, for exact arrays."""

        def move(x: Any, *args: Any, **options: Any) -> Any:
            given = residues.plain_index(args)
            return exact(self.field, x).mapped(lambda v: getattr(np, name)(v, *given, **options))

        return move

    def _only_real(self, name: str, function: Any) -> Any:
        """Return a function that raises `NotExact` for exact arrays; a class or a constant as it is."""
        if isinstance(function, type) or not callable(function):
            return function

        def call(*args: Any, **options: Any) -> Any:
            if any(isinstance(x, ExactArray) for x in (*args, *options.values())):
                raise NotExact(f"numpy.{name}")
            return function(*args, **options)

        return call

    def mapped_call(
        self,
        name: str,
        sizes: Sequence[int],
        places: Sequence[tuple[int, ...]],
        ranks: Sequence[int],
        *arrays: Any,
    ) -> tuple[ExactArray, ...]:
        """Return what `ir/ops/calls.py: mapped_call` returns, of a pseudo-random function in the place of the called one.

        Whatever a function computes, it computes the same from the same operands. So the undistributed program and a layout agree
        if each element along the mapped dimensions gets the right operands, all of them and whole. But `sort` goes by the order
        of residues, as other numbers would be no permutation.
        """
        import jax

        field, given = self.field, [exact(self.field, x) for x in arrays]
        cores = [x.shape[x.ndim - rank :] for x, rank in zip(given, ranks, strict=True)]
        struct: Any = jax.ShapeDtypeStruct
        structs = [struct(core, x.dtype) for x, core in zip(given, cores, strict=True)]
        function = FUNCTIONS[name]
        shapes = jax.eval_shape(function, *structs)
        fronts = fronts_of(given, sizes, places, ranks)
        lead = np.broadcast_shapes(tuple(sizes), *fronts)
        if function.keys:
            return _sorted(given, fronts, lead, shapes, function.keys)
        triples = zip(given, fronts, cores, strict=True)
        digests = [digest(field, x, len(core)).reshape(front) for x, front, core in triples]
        whole = field.hashed(name, np.zeros(lead, np.uint64), *digests)
        field.count("results of primitives of JAX", sum(prod(lead) * prod(each.shape) for each in shapes))
        return tuple(
            pseudo_random(field, f"result {i}", whole, each.shape, np.dtype(each.dtype))
            for i, each in enumerate(shapes)
        )

    def attention_softmax(
        self, logits: ExactArray, axes: Any, part: bool
    ) -> tuple[ExactArray, ExactArray, ExactArray]:
        """Return what `ir/ops/attention.py: softmax` returns, without a shift: exp(x - y) is not exp(x) / exp(y) here."""
        e = applied("exp", logits)
        sums = total(e, axes, keepdims=True)
        whole = sums.mapped(lambda values: np.where(values == 0, 1, values)) if part else sums
        return e / whole, self.zeros(sums.shape, sums.dtype), sums

    def _windows(self, x: ExactArray, extent: int, axis: int) -> ExactArray:
        view = np.lib.stride_tricks.sliding_window_view
        return x.mapped(lambda v: view(v, extent, axis))

    def shape(self, x: Any) -> tuple[int, ...]:
        return tuple(x.shape)

    # Creation

    def _created(self, values: Any, dtype: Any) -> ExactArray:
        kind = np.dtype(dtype)
        return ExactArray(self.field, values if kind.kind in "biu" else values.astype(np.float64), kind)

    def full(self, shape: Any, value: Any, dtype: Any) -> ExactArray:
        """Return an array of equal numbers; a float is rounded as the program's text writes it."""
        kind = np.dtype(dtype)
        if kind.kind in "biu":
            return self._created(np.full(shape, value, kind), kind)
        return self._created(np.full(shape, residues.written(float(value), kind), np.float64), kind)

    def zeros(self, shape: Any, dtype: Any = np.float64) -> ExactArray:
        return self.full(shape, 0, dtype)

    def ones(self, shape: Any, dtype: Any = np.float64) -> ExactArray:
        return self.full(shape, 1, dtype)

    def zeros_like(self, x: ExactArray) -> ExactArray:
        return self.full(x.shape, 0, x.dtype)

    def arange(self, *bounds: Any, dtype: Any = np.int64) -> ExactArray:
        return self._created(np.arange(*bounds, dtype=dtype), dtype)

    def asarray(self, x: Any, dtype: Any = None) -> Any:
        return _of_dtype(exact(self.field, x, dtype), dtype)

    array = asarray

    # Several arrays

    def concatenate(self, arrays: Sequence[ExactArray], axis: int = 0) -> ExactArray:
        return combined(lambda *xs: np.concatenate(xs, axis), *(exact(self.field, x) for x in arrays))

    def stack(self, arrays: Sequence[ExactArray], axis: int = 0) -> ExactArray:
        return combined(lambda *xs: np.stack(xs, axis), *(exact(self.field, x) for x in arrays))

    def pad(self, x: ExactArray, widths: Any, constant_values: Any) -> ExactArray:
        value = exact(self.field, constant_values, x.dtype)
        return combined(lambda v, c: np.pad(v, widths, constant_values=c), x, value)

    def clip(self, x: ExactArray, low: float, high: float) -> ExactArray:
        """Limit real numbers. Residues are taken as numbers within the limits."""
        return x if x.is_residue else residues.real("clip", x, low, high, dtype=x.dtype)

    # Order

    def argmax(self, x: ExactArray, axis: int) -> ExactArray:
        return ExactArray(self.field, np.argmax(x.keys(), axis=axis), np.int64)

    def argsort(self, x: ExactArray, axis: int, kind: str) -> ExactArray:
        return ExactArray(self.field, np.argsort(x.keys(), axis=axis, kind="stable"), np.int64)

    # Reductions

    def any(self, x: ExactArray, axis: Any = None) -> ExactArray:
        return ExactArray(self.field, np.any(x.values, axis=axis), np.bool_)

    def all(self, x: ExactArray, axis: Any = None) -> ExactArray:
        return ExactArray(self.field, np.all(x.values, axis=axis), np.bool_)

    def cumsum(self, x: ExactArray, axis: int, dtype: Any = None) -> ExactArray:
        return _of_dtype(cumulative(x, axis), dtype)

    def einsum(self, subscripts: str, *operands: ExactArray, optimize: Any = None) -> ExactArray:
        return einsum(subscripts, *operands)


# Pseudo-random functions

INTEGERS = {"b": 2, "i": 4, "u": 4}
"""Kind of a dtype -> the number of values that results have, which may be indices."""


def _sorted(
    arrays: Sequence[ExactArray],
    fronts: Sequence[tuple[int, ...]],
    lead: tuple[int, ...],
    shapes: Sequence[Any],
    keys: int,
) -> tuple[ExactArray, ...]:
    """Return the arrays sorted by the first ones along the axes that are not mapped; equal elements keep their order.

    fronts: the other axes of each array, and lead: those of the results.
    """
    number = prod(shapes[0].shape)

    def spread(values: Any, front: tuple[int, ...]) -> Any:
        return np.broadcast_to(values.reshape((*front, number)), (*lead, number))

    found = [spread(x.keys(), front) for x, front in zip(arrays[:keys], fronts, strict=False)]
    order = np.lexsort(found[::-1], -1)

    def result(x: ExactArray, front: tuple[int, ...], shape: Any) -> ExactArray:
        return x.mapped(
            lambda values: np.take_along_axis(spread(values, front), order, -1).reshape((*lead, *shape.shape))
        )

    return tuple(result(*each) for each in zip(arrays, fronts, shapes, strict=True))


def digest(field: PrimeField, x: ExactArray, rank: int) -> Any:
    """Return a number for each element along the mapped axes, which depends on all elements along the last axes."""
    values = x.residues().values if x.is_float else field.from_integers(x.values)
    lead, core = x.shape[: x.ndim - rank], x.shape[x.ndim - rank :]
    flat = values.reshape((*lead, prod(core)))
    positions = np.arange(flat.shape[-1], dtype=np.uint64)
    return field.total(field.hashed("element", flat, np.broadcast_to(positions, flat.shape)), -1)


def pseudo_random(
    field: PrimeField, name: str, digests: Any, shape: tuple[int, ...], dtype: np.dtype[Any]
) -> ExactArray:
    """Return numbers in a shape for each digest, which depend on the digest and on the place alone."""
    positions = np.arange(prod(shape), dtype=np.uint64)
    spread = np.broadcast_to(digests[..., None], (*digests.shape, positions.size))
    drawn = field.hashed(name, spread, np.broadcast_to(positions, spread.shape))
    drawn = drawn.reshape((*digests.shape, *shape))
    if dtype.kind not in INTEGERS:
        return ExactArray(field, drawn, dtype, True)
    return ExactArray(field, (drawn % np.uint64(INTEGERS[dtype.kind])).astype(dtype), dtype)
