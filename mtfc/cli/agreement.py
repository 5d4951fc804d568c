"""How far results may be apart: what passes for rounding, and what is wrong."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Literal

import attrs

from mtfc.cli.npz import Arrays
from mtfc.cli.selection import Case
from mtfc.cli.summary import magnitude
from mtfc.compiler.ir.core import Program, walk

if TYPE_CHECKING:
    from mtfc.frontend.placements import DeclaredPlacement

TOLERANCE = {"f64": 1e-9, "f32": 1e-4, "f16": 2e-2, "bf16": 1e-1}
"""The largest difference that passes for rounding, relative to the largest number of the array (or to 1)."""

DOUBTFUL = 1e-2
"""Up to this, relative to the same, a difference in f32 is rounding if f64 has next to none."""

GROWTH = 1000 * 2.0**29
"""Up to so many times the difference in f64 it is, too: f64 rounds 2 ** 29 times less, and not everything grows alike."""

HANDED_OUT = 1e-6
"""The same for what is computed in f64, and handed in and out in f32."""

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
    """What a case differs in, or why it did not run.

    largest, largest_wide: the largest relative difference, and that of what is handed out in f64. is_doubtful: whether what is
    wrong may be rounding. in_f64: the largest difference there, where it showed that it was. noise: the noise in gradients that
    takes the undistributed training as far, where that showed it.
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

    @property
    def is_training_alone(self) -> bool:
        """Whether all that is wrong is what training steps make of right gradients."""
        return all(each.startswith(NOUNS["training"]) for each in self.wrong)


def judged(
    case: Case, backend: str, errors: Errors, expected: Mapping[Part, Arrays], tolerance: float
) -> Result:
    """What differs by more than rounding is wrong. Parameters are drawn, and not computed: no rounding grows there."""
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
        is_doubtful=bool(wrong) and all(part != "parameters" for part, _ in wrong),
    )


def is_rounding(result: Result, again: Result) -> bool:
    """Whether a doubtful result is explained by what the same case gives in f64."""
    return not again.wrong and result.largest <= max(DOUBTFUL, GROWTH * again.largest_wide)


def largest(errors: Errors) -> dict[Part, float]:
    """The largest difference of each part."""
    return {part: max(each.values(), default=0.0) for part, each in errors.items()}


def tolerance_of(programs: Iterable[Program], dtype: str | None) -> float:
    """That of the coarsest dtype that is computed in, where everything is in `dtype` if one is given."""
    bodies = (function.body for program in programs for function in program.functions)
    dtypes = {value.type.dtype for body in bodies for eqn in walk(body) for value in eqn.results}
    if dtype == "f64":
        dtypes.discard("f32")
    found = max((TOLERANCE[dtype] for dtype in dtypes & TOLERANCE.keys()), default=TOLERANCE["f32"])
    return max(found, HANDED_OUT) if dtype else found
