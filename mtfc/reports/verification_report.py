"""Results of `mtfc verify` as text and as JSON."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, get_args

import attrs

from mtfc.compiler.ir.types import Layout, Mesh
from mtfc.reports.array_summary import finite
from mtfc.reports.table import listed

if TYPE_CHECKING:
    from mtfc.frontend.layouts.placements import DeclaredPlacement

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
class CaseResult:
    """The differences of a layout on a backend from the undistributed program, or the reason why the layout did not run.

    largest: the largest relative difference. largest_wide: the same over arrays in f64. is_doubtful: True if the wrong results
    may be rounding. in_f64: the largest difference in f64, if f64 showed that the differences are rounding. noise: the gradient
    noise that moves undistributed training as far, if noise explains the differences. not_finite: the results that have a NaN or
    an infinity in the undistributed program; agreement says little about them. placement: the placement that ran instead of a
    layout, if any.
    """

    mesh: Mesh
    layout: Layout
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


def largest(errors: Errors) -> dict[Part, float]:
    """Return the largest difference of each part."""
    return {part: max(each.values(), default=0.0) for part, each in errors.items()}


def case_text(result: CaseResult) -> str:
    """Return `hybrid      numpy  ok      outputs 1.2e-07  gradients 3.0e-07  parameters 0.0e+00  training 1.2e-07`."""
    start = f"{result.layout.name:<20} {result.backend:<6}"
    if result.skipped:
        return f"{start} skipped: {result.skipped}"
    parts = "  ".join(f"{part} {error:.1e}" for part, error in largest(result.errors).items())
    wrong = f"  in {', '.join(result.wrong)}" if result.wrong else ""
    rounded = f"  which is rounding: {result.in_f64:.1e} in f64" if result.in_f64 is not None else ""
    if result.noise is not None:
        rounded = f"  which is rounding: noise of {result.noise:.1e} in the gradients does as much"
    return f"{start} {'WRONG' if wrong else 'ok':<6} {parts}{wrong}{rounded}"


def verdict_text(results: Sequence[CaseResult]) -> str:
    """Return the number of cases that agree, and the names of results that are not finite."""
    ran = [result for result in results if result.skipped is None]
    wrong = sum(bool(result.wrong) for result in ran)
    skipped = f", {len(results) - len(ran)} skipped" if len(ran) < len(results) else ""
    agree = f"{len(ran) - wrong} of {len(ran)} cases agree with the undistributed program{skipped}"
    names = dict.fromkeys(name for result in results for name in result.not_finite)
    if not names:
        return agree
    plural = "results are" if len(names) > 1 else "result is"
    return f"{agree}; {len(names)} {plural} not finite there: {listed(names)}"


def verification_json(results: Sequence[CaseResult], ok: bool, tolerance: float) -> dict[str, Any]:
    """Return the JSON record."""
    return {"ok": ok, "tolerance": tolerance, "cases": [_case_json(result) for result in results]}


def _case_json(result: CaseResult) -> dict[str, Any]:
    errors = {
        part: {name: finite(error) for name, error in result.errors.get(part, {}).items()}
        for part in get_args(Part)
    }
    return {
        "layout": result.layout.name,
        "mesh": dict(result.mesh.axes),
        "backend": result.backend,
        "ok": not result.wrong,
        "skipped": result.skipped,
        "wrong": list(result.wrong),
        "in_f64": result.in_f64,
        "noise": result.noise,
        "not_finite": list(result.not_finite),
        **errors,
    }
