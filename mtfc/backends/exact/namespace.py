"""What `np` is in a module under the exact check: NumPy's functions on arrays of residues.

A generated module and the ops' `evaluate` use few functions of NumPy. Those that move elements are NumPy's own. The others have
their meaning in `residues.py`. A function that is in neither group raises `NotExact`, so nothing is computed on residues by
accident.
"""

from __future__ import annotations

from collections.abc import Sequence
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
    Exact,
    NotExact,
    applied,
    cumulative,
    einsum,
    exact,
    largest,
    product,
    total,
)

MOVES = frozenset(
    {"moveaxis", "roll", "expand_dims", "flip", "broadcast_to", "ascontiguousarray", "transpose", "reshape"}
)
"""Functions that move the elements of one array."""

REDUCTIONS = {
    "add": total,
    "multiply": product,
    "maximum": lambda x, axis, keepdims: largest(x, axis, keepdims),
    "minimum": lambda x, axis, keepdims: largest(x, axis, keepdims, -1),
}


class Function:
    """An elementwise function of NumPy, with the methods that reduce."""

    def __init__(self, name: str) -> None:
        self.name = name

    def __call__(self, *operands: Any, **options: Any) -> Any:
        if not any(isinstance(x, Exact) for x in operands):
            return getattr(np, self.name)(*operands, **options)
        return applied(self.name, *operands)

    def reduce(self, x: Exact, axis: Any = 0, dtype: Any = None, keepdims: bool = False) -> Exact:
        found = REDUCTIONS[self.name](x, axis, keepdims)
        return found if dtype is None else found.astype(dtype)

    def at(self, table: Exact, index: Any, values: Exact) -> None:
        """Add values at places that may repeat."""
        if self.name != "add":
            raise NotExact(f"{self.name}.at")
        plain = residues._plain(index)
        if not table.is_float:
            np.add.at(table.values, plain, values.values)
            return
        whole, given = table.residues(), values.residues()
        sums = residues._safe(whole).copy()
        np.add.at(sums, plain, residues._safe(given))
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


class Namespace:
    """NumPy for one draw of the check."""

    def __init__(self, field: PrimeField) -> None:
        self.field = field
        self.lib = SimpleNamespace(stride_tricks=SimpleNamespace(sliding_window_view=self._windows))

    def __getattr__(self, name: str) -> Any:
        if name in MOVES:
            found: Any = self._move(name)
        elif name in APPLIED or isinstance(getattr(np, name), np.ufunc):
            found = Function(name)
        else:
            found = self._only_real(name, getattr(np, name))
        setattr(self, name, found)
        return found

    def _move(self, name: str) -> Any:
        def move(x: Any, *args: Any, **options: Any) -> Any:
            given = residues._plain(args)
            return exact(self.field, x).mapped(lambda v: getattr(np, name)(v, *given, **options))

        return move

    def _only_real(self, name: str, function: Any) -> Any:
        if isinstance(function, type) or not callable(function):
            return function

        def call(*args: Any, **options: Any) -> Any:
            if any(isinstance(x, Exact) for x in (*args, *options.values())):
                raise NotExact(f"numpy.{name}")
            return function(*args, **options)

        return call

    def _windows(self, x: Exact, extent: int, axis: int) -> Exact:
        view = np.lib.stride_tricks.sliding_window_view
        return x.mapped(lambda v: view(v, extent, axis))

    def shape(self, x: Any) -> tuple[int, ...]:
        return tuple(x.shape)

    # Creation

    def _created(self, values: Any, dtype: Any) -> Exact:
        kind = np.dtype(dtype)
        return Exact(self.field, values if kind.kind in "biu" else values.astype(np.float64), kind)

    def full(self, shape: Any, value: Any, dtype: Any) -> Exact:
        kind = np.dtype(dtype)
        if kind.kind in "biu":
            return self._created(np.full(shape, value, kind), kind)
        return self._created(np.full(shape, residues.written(float(value), kind), np.float64), kind)

    def zeros(self, shape: Any, dtype: Any = np.float64) -> Exact:
        return self.full(shape, 0, dtype)

    def ones(self, shape: Any, dtype: Any = np.float64) -> Exact:
        return self.full(shape, 1, dtype)

    def zeros_like(self, x: Exact) -> Exact:
        return self.full(x.shape, 0, x.dtype)

    def arange(self, *bounds: Any, dtype: Any = np.int64) -> Exact:
        return self._created(np.arange(*bounds, dtype=dtype), dtype)

    def asarray(self, x: Any, dtype: Any = None) -> Any:
        found = exact(self.field, x, dtype)
        return found if dtype is None else found.astype(dtype)

    array = asarray

    # Several arrays

    def concatenate(self, arrays: Sequence[Exact], axis: int = 0) -> Exact:
        return self._together(np.concatenate, arrays, axis)

    def stack(self, arrays: Sequence[Exact], axis: int = 0) -> Exact:
        return self._together(np.stack, arrays, axis)

    def _together(self, function: Any, arrays: Sequence[Exact], axis: int) -> Exact:
        parts = [exact(self.field, x) for x in arrays]
        if any(part.is_residue for part in parts):
            parts = [part.residues() for part in parts]
        tangent = None
        if any(part.tangent is not None for part in parts):
            tangent = function([residues._tangent(part) for part in parts], axis=axis)
        values = function([part.values for part in parts], axis=axis)
        shadow = None
        if any(part.shadow is not None for part in parts):
            shadow = self._together(function, [part.residues() for part in parts], axis)
        return Exact(self.field, values, parts[0].dtype, parts[0].is_residue, tangent, shadow)

    def take_along_axis(self, x: Exact, indices: Exact, axis: int) -> Exact:
        return x.mapped(lambda v: np.take_along_axis(v, indices.values, axis))

    def pad(self, x: Exact, widths: Any, constant_values: Any) -> Exact:
        value = exact(self.field, constant_values, x.dtype)
        if value.is_residue or x.is_residue or x.is_float:
            x, value = x.residues(), value.residues()
        tangent = None if x.tangent is None else np.pad(x.tangent, widths)
        padded = np.pad(x.values, widths, constant_values=value.values)
        return Exact(self.field, padded, x.dtype, x.is_residue, tangent)

    # Order

    def argmax(self, x: Exact, axis: int) -> Exact:
        return Exact(self.field, np.argmax(x.keys(), axis=axis), np.int64)

    def argsort(self, x: Exact, axis: int, kind: str) -> Exact:
        return Exact(self.field, np.argsort(x.keys(), axis=axis, kind="stable"), np.int64)

    # Reductions

    def sum(self, x: Exact, axis: Any = None, dtype: Any = None) -> Exact:
        return self.add.reduce(x, axis, dtype)  # type: ignore[no-any-return]

    def prod(self, x: Exact, axis: Any = None, dtype: Any = None) -> Exact:
        return self.multiply.reduce(x, axis, dtype)  # type: ignore[no-any-return]

    def max(self, x: Exact, axis: Any = None) -> Exact:
        return self.maximum.reduce(x, axis)  # type: ignore[no-any-return]

    def min(self, x: Exact, axis: Any = None) -> Exact:
        return self.minimum.reduce(x, axis)  # type: ignore[no-any-return]

    def any(self, x: Exact, axis: Any = None) -> Exact:
        return Exact(self.field, np.any(x.values, axis=axis), np.bool_)

    def all(self, x: Exact, axis: Any = None) -> Exact:
        return Exact(self.field, np.all(x.values, axis=axis), np.bool_)

    def cumsum(self, x: Exact, axis: int, dtype: Any = None) -> Exact:
        found = cumulative(x, axis)
        return found if dtype is None else found.astype(dtype)

    def einsum(self, subscripts: str, *operands: Exact, optimize: Any = None) -> Exact:
        return einsum(subscripts, *operands)
