"""Compare results, and tell rounding from errors."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Literal

import attrs

from mtfc.compiler.ir.core import Program, walk
from mtfc.driver.data.npz import Arrays
from mtfc.driver.data.summary import is_finite, magnitude
from mtfc.driver.selection import Case

if TYPE_CHECKING:
    from mtfc.frontend.layouts.placements import DeclaredPlacement

TOLERANCE = {"f64": 1e-9, "f32": 1e-4, "f16": 2e-2, "bf16": 1e-1}
"""The largest difference that passes for rounding, relative to the largest number of the array (or to 1)."""

DOUBTFUL = 1e-2
"""A difference in f32 up to this relative size is rounding if the same case agrees in f64."""

GROWTH = 1000 * 2.0**29
"""A difference in f32 up to this many times the difference in f64 is rounding, too: 2 ** 29 by precision, 1000 as a margin."""

HANDED_OUT = 1e-6
"""Least tolerance where `dtype` is given: the arrays are handed in and out in f32."""

Part = Literal["outputs", "gradients", "parameters", "training"]

NOUNS: Mapping[Part, str] = {
    "outputs": "output",
    "gradients": "gradient",
    "parameters": "parameter",
    "training": "training of",
}

Errors = Mapping[Part, Mapping[str, float]]
"""Part -> name -> largest absolute difference."""


@attrs.frozen
class Result:
    """The differences of a case from the undistributed program, or the reason why the case did not run.

    largest: the largest relative difference. largest_wide: the same over arrays in f64. is_doubtful: True if the wrong results
    may be rounding. in_f64: the largest difference in f64, if f64 showed that the differences are rounding. noise: the gradient
    noise that moves undistributed training as far, if noise explains the differences. not_finite: the results that have a NaN or
    an infinity in the undistributed program; agreement says little about them.
    """

    case: Case
    backend: str
    errors: Errors
    wrong: tuple[str, ...] = ()
    skipped: str | None = None
    placement: DeclaredPlacement | None = None
    largest: float = 0.0
    largest_wide: float = 0.0
    is_doubtful: bool = False
    in_f64: float | None = None
    noise: float | None = None
    not_finite: tuple[str, ...] = ()

    @property
    def is_training_alone(self) -> bool:
        """True if nothing but training steps is wrong."""
        return all(each.startswith(NOUNS["training"]) for each in self.wrong)


def judged(
    case: Case, backend: str, errors: Errors, expected: Mapping[Part, Arrays], tolerance: float
) -> Result:
    """Return the result of a case: a difference above the tolerance is wrong. Wrong drawn parameters are not doubtful."""
    relative = {
        (part, name): error / magnitude(expected[part][name])
        for part, arrays in errors.items()
        for name, error in arrays.items()
    }
    wrong = [key for key, error in relative.items() if not error <= tolerance]
    wide = (e for (part, name), e in relative.items() if expected[part][name].dtype.itemsize == 8)
    return Result(
        case,
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


def is_rounding(result: Result, again: Result) -> bool:
    """True if the differences of a doubtful result are rounding, given the result of the same case in f64."""
    return not again.wrong and result.largest <= max(DOUBTFUL, GROWTH * again.largest_wide)


def largest(errors: Errors) -> dict[Part, float]:
    """The largest difference of each part."""
    return {part: max(each.values(), default=0.0) for part, each in errors.items()}


def tolerance_of(programs: Iterable[Program], dtype: str | None) -> float:
    """Return the tolerance of the coarsest dtype in the programs; a given `dtype` replaces f32 everywhere."""
    bodies = (function.body for program in programs for function in program.functions)
    dtypes = {value.type.dtype for body in bodies for eqn in walk(body) for value in eqn.results}
    if dtype == "f64":
        dtypes.discard("f32")
    found = max((TOLERANCE[dtype] for dtype in dtypes & TOLERANCE.keys()), default=TOLERANCE["f32"])
    return max(found, HANDED_OUT) if dtype else found
