"""Compare arrays, and distinguish rounding from errors."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping

from mtfc.compiler.ir.core import Program, walk
from mtfc.driver.data.array_files import Array, Arrays
from mtfc.driver.loading.selection import LayoutOnMesh
from mtfc.reports.verification_report import NOUNS, CaseResult, Errors, Part

TOLERANCE = {"f64": 1e-9, "f32": 1e-4, "f16": 2e-2, "bf16": 1e-1}
"""The largest difference that passes for rounding, relative to the largest number of the array (or to 1)."""

DOUBTFUL = 1e-2
"""A difference in f32 up to this relative size is rounding if the same case agrees in f64."""

GROWTH = 1000 * 2.0**29
"""A difference in f32 up to this many times the difference in f64 is rounding: 2**29 by precision, times a margin of 1000."""

HANDED_OUT = 1e-6
"""Least tolerance if `dtype` is given: the arrays are handed in and out in f32."""


def judged(
    case: LayoutOnMesh, backend: str, errors: Errors, expected: Mapping[Part, Arrays], tolerance: float
) -> CaseResult:
    """Return the result of a layout: a difference above the tolerance is wrong. Wrong drawn parameters are not doubtful."""
    relative = {
        (part, name): error / magnitude(expected[part][name])
        for part, arrays in errors.items()
        for name, error in arrays.items()
    }
    wrong = [key for key, error in relative.items() if not error <= tolerance]
    wide = (e for (part, name), e in relative.items() if expected[part][name].dtype.itemsize == 8)
    return CaseResult(
        case.mesh,
        case.layout,
        backend,
        errors,
        wrong=tuple(f"{NOUNS[part]} {name}" for part, name in wrong),
        largest=max(relative.values(), default=0.0),
        largest_wide=max(wide, default=0.0),
        not_finite=tuple(
            f"{NOUNS[part]} {name}" for part, name in relative if not is_finite(expected[part][name])
        ),
        is_doubtful=bool(wrong) and all(part != "parameters" for part, _ in wrong),
    )


def is_rounding(result: CaseResult, again: CaseResult) -> bool:
    """True if the differences of a doubtful result are rounding, given the result of the same case in f64."""
    return not again.wrong and result.largest <= max(DOUBTFUL, GROWTH * again.largest_wide)


def tolerance_of(programs: Iterable[Program], dtype: str | None) -> float:
    """Return the tolerance of the coarsest dtype in the programs; a given `dtype` replaces f32 everywhere."""
    bodies = (function.body for program in programs for function in program.functions)
    dtypes = {value.type.dtype for body in bodies for eqn in walk(body) for value in eqn.results}
    if dtype == "f64":
        dtypes.discard("f32")
    found = max((TOLERANCE[dtype] for dtype in dtypes & TOLERANCE.keys()), default=TOLERANCE["f32"])
    return max(found, HANDED_OUT) if dtype else found


def difference(actual: Array, expected: Array) -> float:
    """Return the largest absolute difference of two arrays; infinite if only one of them has a number at some place."""
    import numpy as np

    a, b = (np.asarray(array).astype(np.float64) for array in (actual, expected))
    if a.shape != b.shape:
        return math.inf
    same = (a == b) | (np.isnan(a) & np.isnan(b))
    with np.errstate(invalid="ignore"):
        apart = np.where(same, 0.0, np.abs(a - b))
    return float(np.where(np.isnan(apart), math.inf, apart).max(initial=0.0))


def is_finite(array: Array) -> bool:
    """True if an array holds neither NaN nor infinities."""
    import numpy as np

    return bool(np.isfinite(np.asarray(array).astype(np.float64)).all())


def magnitude(array: Array) -> float:
    """Return the largest finite absolute value, and at least 1: relative differences are relative to this number."""
    import numpy as np

    numbers = np.abs(np.asarray(array).astype(np.float64))
    return float(numbers[np.isfinite(numbers)].max(initial=1.0))
