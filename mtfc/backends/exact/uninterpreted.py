"""Functions from outside of the language under the exact check: pseudo-random functions of the residues of their operands.

Whatever a function computes, it computes the same from the same operands. So the undistributed program and a layout agree if each
element along the mapped dimensions gets the right operands, all of them and whole. But `sort` goes by the order of residues, as
other numbers would be no permutation.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

import numpy as np

from mtfc.backends.exact.prime_field import PrimeField
from mtfc.backends.exact.residues import ExactArray
from mtfc.compiler.ir.ops.calls import FUNCTIONS

INTEGERS = {"b": 2, "i": 4, "u": 4}
"""Kind of a dtype -> the number of values that results have, which may be indices."""


def uninterpreted_call(
    field: PrimeField,
    name: str,
    sizes: Sequence[int],
    places: Sequence[tuple[int, ...]],
    ranks: Sequence[int],
    arrays: Sequence[ExactArray],
) -> tuple[ExactArray, ...]:
    """Return pseudo-random results in the shapes of a called function. Arguments are those of `mapped_call`."""
    import jax

    cores = [x.shape[x.ndim - rank :] for x, rank in zip(arrays, ranks, strict=True)]
    struct: Any = jax.ShapeDtypeStruct
    structs = [struct(core, x.dtype) for x, core in zip(arrays, cores, strict=True)]
    function = FUNCTIONS[name]
    shapes = jax.eval_shape(function, *structs)
    fronts = [
        (
            *x.shape[: x.ndim - len(own) - len(core)],
            *(sizes[i] if i in own else 1 for i in range(len(sizes))),
        )
        for x, own, core in zip(arrays, places, cores, strict=True)
    ]
    lead = np.broadcast_shapes(tuple(sizes), *fronts)
    if function.keys:
        return _sorted(arrays, fronts, lead, shapes, function.keys)
    digests = [
        digest(field, x, len(core)).reshape(front)
        for x, front, core in zip(arrays, fronts, cores, strict=True)
    ]
    whole = field.hashed(name, np.zeros(lead, np.uint64), *digests)
    field.count("results of primitives of JAX", sum(prod(lead) * prod(each.shape) for each in shapes))
    return tuple(
        pseudo_random(field, f"result {i}", whole, each.shape, np.dtype(each.dtype))
        for i, each in enumerate(shapes)
    )


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
