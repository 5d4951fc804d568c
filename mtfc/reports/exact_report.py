"""Results of the exact check as text and as JSON."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import attrs


@attrs.frozen
class ExactCase:
    """The exact comparison of a layout, or of the gradients of the undistributed program.

    wrong: the results that differ. wrong_gradients: the arguments whose gradients differ from forward mode. elements: the number
    of compared elements; not_judged: those without a meaning on residues. unsure: what was replaced by pseudo-random numbers ->
    the number of elements, of the `computed` elements of the undistributed program. cut_loops: the number of loops whose first
    iterations are compared, because their condition did not fail on residues. failed: why the check did not end. unjudged:
    results of which no element is judged.
    """

    layout: str
    model: str
    wrong: tuple[str, ...] = ()
    wrong_gradients: tuple[str, ...] = ()
    elements: int = 0
    not_judged: int = 0
    unsure: Mapping[str, int] = attrs.field(factory=dict)
    computed: int = 0
    skipped: str | None = None
    failed: str | None = None
    cut_loops: int = 0
    unjudged: tuple[str, ...] = ()

    @property
    def ok(self) -> bool:
        return not self.wrong and not self.wrong_gradients and not self.failed

    @property
    def share_not_judged(self) -> float:
        """The share of the compared elements that is not judged."""
        return self.not_judged / self.elements if self.elements else 0.0


def exact_text(case: ExactCase) -> str:
    """Return `hybrid               exact  ok     all 15,366 elements are equal`."""
    start = f"{case.layout:<20} exact "
    if case.skipped or case.failed:
        return f"{start} skipped: {case.skipped}" if case.skipped else f"{start} FAILED {case.failed}"
    if case.wrong_gradients:
        return f"{start} WRONG  gradients that differ from forward mode: {', '.join(case.wrong_gradients)}"
    if case.wrong:
        return f"{start} WRONG  results that differ: {', '.join(case.wrong)}"
    if not case.elements:
        return f"{start} ok     the gradients agree with forward mode"
    judged = case.elements - case.not_judged
    which = "all" if judged == case.elements else f"{judged:,} of"
    unsure = "".join(f"; {what}: {n:,} elements are not judged" for what, n in case.unsure.items())
    cut = "; of some loops only the first iterations are compared" if case.cut_loops else ""
    none = f"; no element of {', '.join(case.unjudged)} is judged" if case.unjudged else ""
    return f"{start} ok     {which} {case.elements:,} elements are equal{unsure}{cut}{none}"


def exact_json(cases: Sequence[ExactCase]) -> list[dict[str, Any]]:
    """Return the JSON records."""
    return [
        {
            "layout": case.layout,
            "model": case.model,
            "ok": case.ok,
            "skipped": case.skipped,
            "failed": case.failed,
            "wrong": list(case.wrong),
            "wrong_gradients": list(case.wrong_gradients),
            "elements": case.elements,
            "not_judged": case.not_judged,
            "unsure": dict(case.unsure),
            "computed": case.computed,
            "cut_loops": case.cut_loops,
            "unjudged": list(case.unjudged),
        }
        for case in cases
    ]
