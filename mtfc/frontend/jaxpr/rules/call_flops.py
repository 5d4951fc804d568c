"""The FLOPs of primitives that no op stands for.

Linear algebra counts the leading terms of the usual algorithms (Golub and Van Loan, Matrix Computations, 4th ed.). Any other
primitive counts one FLOP for each element that it makes or combines.
"""

from __future__ import annotations

from math import log2, prod

from mtfc.frontend.jaxpr.flat import AppliedPrimitive

MATRIX = {
    "cholesky": 1 / 3,
    "lu": 2 / 3,
    "qr": 8 / 3,
    "geqrf": 4 / 3,
    "geqp3": 4 / 3,
    "householder_product": 4 / 3,
    "tridiagonal": 8 / 3,
    "hessenberg": 10 / 3,
    "eigh": 9,
    "svd": 22,
    "eig": 25,
    "schur": 25,
}
"""Decomposition of an m x n matrix -> its FLOPs over m n min(m, n)."""

SORTS = ("sort", "top_k", "approx_top_k")


def call_flops(step: AppliedPrimitive, mapped: int) -> int:
    """Return the FLOPs of one element along the mapped dimensions, of which there are so many."""
    return round(_all_flops(step) / mapped)


def _all_flops(step: AppliedPrimitive) -> float:
    name = step.primitive
    made: float = sum(prod(result.shape) for result in step.results)
    if not step.operands:
        return made
    first = step.operands[0].shape
    if name in MATRIX:
        return MATRIX[name] * prod(first) * min(first[-2:])
    if name == "triangular_solve":
        return prod(step.operands[1].shape) * first[-1]
    if name == "tridiagonal_solve":
        return 8 * prod(step.operands[-1].shape)
    if name == "fft":
        return 5 * made * max(1.0, log2(prod(step.params["fft_lengths"])))
    if name in SORTS:
        return prod(first) * max(1.0, log2(max(first, default=1)))
    if "window_dimensions" in step.params:
        return made * float(prod(step.params["window_dimensions"]))
    if name.startswith(("reduce", "arg")):
        return max(made, prod(first))
    return made
