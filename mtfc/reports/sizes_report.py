"""Results of the exact check for every size, as text and as JSON."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import attrs


@attrs.frozen
class SizeClaim:
    """The sizes of a dimension or mesh axis that a check speaks for: multiples of `multiple`. small: the checked sizes."""

    size: int
    multiple: int
    small: tuple[int, ...]

    @property
    def is_fixed(self) -> bool:
        """True if the check speaks for the size in the program alone, where that is larger than the small sizes of others."""
        return all(each == self.size for each in self.small)


@attrs.frozen
class SizesCase:
    """The exact check of a layout for every size.

    wrong: the results that differ at small sizes. unproven: why there is no check. elements: the number of compared elements;
    not_judged: those without a meaning on residues. sizes: dimension or mesh axis -> the sizes that the check speaks for.
    """

    layout: str
    model: str
    wrong: tuple[str, ...] = ()
    elements: int = 0
    not_judged: int = 0
    sizes: Mapping[str, SizeClaim] = attrs.field(factory=dict)
    unproven: str | None = None

    @property
    def ok(self) -> bool:
        return not self.wrong and self.unproven is None and self.elements > self.not_judged


def sizes_text(case: SizesCase) -> str:
    """Return a line with the result, and below it the sizes that it speaks for."""
    start = f"{case.layout:<20} all sizes "
    if case.unproven:
        return f"{start} UNPROVEN  {case.unproven}"
    if case.wrong:
        return f"{start} WRONG  results that differ at small sizes: {', '.join(case.wrong)}"
    if not case.ok:
        return f"{start} UNPROVEN  no result has a meaning on residues"
    judged = case.elements - case.not_judged
    which = "all" if judged == case.elements else f"{judged:,} of"
    lines = [f"{start} ok     {which} {case.elements:,} elements are equal at two choices of small sizes"]
    free: dict[str, list[str]] = {}
    for name, claim in case.sizes.items():
        free.setdefault(_which(claim), []).append(name)
    lines += [f"  {sizes}: {', '.join(names)}" for sizes, names in free.items()]
    return "\n".join(lines)


def _which(claim: SizeClaim) -> str:
    if claim.is_fixed:
        return f"only {claim.size}"
    least = min(each for each in claim.small)
    if claim.multiple > 1:
        return f"multiples of {claim.multiple}"
    return f"from {least} on"


def sizes_json(case: SizesCase) -> dict[str, Any]:
    """Return the JSON record."""
    return {
        "layout": case.layout,
        "model": case.model,
        "ok": case.ok,
        "wrong": list(case.wrong),
        "unproven": case.unproven,
        "elements": case.elements,
        "not_judged": case.not_judged,
        "sizes": {
            name: {"size": claim.size, "multiple": claim.multiple, "small": list(claim.small)}
            for name, claim in case.sizes.items()
        },
    }
