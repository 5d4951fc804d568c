"""Errors of a gradient that processors sum in bf16 or in f32.

Each processor has a random gradient in f32, which a dot rounds to bf16. A ring all-reduce adds one term after the other and
rounds each sum to its dtype. The error is relative to the exact sum, as the norm of the difference. The terms have mean 0, as
gradients of small batches nearly have.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from benchmarks.figures import Figure

ELEMENTS = 1 << 16
PROCESSORS = (8, 16, 64, 512)
MOST_ERROR = 0.002
"""The largest error of a sum in f32 of bf16 terms: half a unit of bf16 is 2**-9."""


def figures() -> Iterator[Figure]:
    import ml_dtypes
    import numpy as np

    random = np.random.default_rng(0)
    for number in PROCESSORS:
        exact = random.standard_normal((number, ELEMENTS), np.float32)
        terms = exact.astype(ml_dtypes.bfloat16)
        for dtype, limit in ((ml_dtypes.bfloat16, None), (np.float32, MOST_ERROR)):
            name = np.dtype(dtype).name
            yield Figure(
                f"error of a gradient summed in {name} by {number}", error(terms, exact, dtype), "", limit
            )


def error(terms: Any, exact: Any, dtype: Any) -> float:
    """Return the relative error of a ring's sum, which is rounded to a dtype after each addition."""
    import numpy as np

    found = terms[0].astype(dtype)
    for term in terms[1:]:
        found = (found.astype(np.float32) + term.astype(np.float32)).astype(dtype)
    wanted = exact.sum(axis=0, dtype=np.float64)
    return float(np.linalg.norm(found.astype(np.float64) - wanted) / np.linalg.norm(wanted))
