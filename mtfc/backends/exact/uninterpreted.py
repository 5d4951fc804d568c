"""Functions from outside of the language under the exact check: pseudo-random functions of the residues of their operands.

Whatever a function computes, it computes the same from the same operands. So the undistributed program and a layout agree if each
element along the mapped dimensions gets the right operands, all of them and whole.
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
    shapes = jax.eval_shape(FUNCTIONS[name], *structs)
    digests = []
    for x, own, core in zip(arrays, places, cores, strict=True):
        front = x.shape[: x.ndim - len(own) - len(core)]
        middle = tuple(sizes[i] if i in own else 1 for i in range(len(sizes)))
        digests.append(_digest(field, x, len(core)).reshape((*front, *middle)))
    lead = np.broadcast_shapes(tuple(sizes), *(each.shape for each in digests))
    digest = field.hashed(name, np.zeros(lead, np.uint64), *digests)
    field.count("results of primitives of JAX", sum(prod(lead) * prod(each.shape) for each in shapes))
    return tuple(_result(field, f"result {i}", digest, each) for i, each in enumerate(shapes))


def _digest(field: PrimeField, x: ExactArray, rank: int) -> Any:
    """Return a number for each element along the mapped axes, which depends on all elements along the last axes."""
    values = x.residues().values if x.is_float else field.from_integers(x.values)
    lead, core = x.shape[: x.ndim - rank], x.shape[x.ndim - rank :]
    flat = values.reshape((*lead, prod(core)))
    positions = np.arange(flat.shape[-1], dtype=np.uint64)
    return field.total(field.hashed("element", flat, np.broadcast_to(positions, flat.shape)), -1)


def _result(field: PrimeField, name: str, digest: Any, shape: Any) -> ExactArray:
    positions = np.arange(prod(shape.shape), dtype=np.uint64)
    spread = np.broadcast_to(digest[..., None], (*digest.shape, positions.size))
    drawn = field.hashed(name, spread, np.broadcast_to(positions, spread.shape))
    drawn = drawn.reshape((*digest.shape, *shape.shape))
    dtype = np.dtype(shape.dtype)
    if dtype.kind not in INTEGERS:
        return ExactArray(field, drawn, dtype, True)
    return ExactArray(field, (drawn % np.uint64(INTEGERS[dtype.kind])).astype(dtype), dtype)
