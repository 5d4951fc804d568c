"""Advice for checks of layouts: the warnings that a file allows, and predictions of faster layouts."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property

import attrs

from mtfc.compiler.ir.core import Equation, Program
from mtfc.compiler.ir.types import Layout, Mesh
from mtfc.frontend.layouts.allowed import Allowed

MACHINE = "h100"
"""The library's machine on which steps are predicted."""

LEAST = 1.05
"""Least speedup of a step for which a change is advised."""

Faster = Callable[[Program, Equation, Mesh, Layout, Sequence[Layout]], Sequence[float] | None]
"""Predicts the speedup of a program under each of the other layouts, which differ in the layout of one of its equations. None
if the prediction takes too long, or the machine has no room for the mesh.
"""


def unpredicted(
    program: Program, eqn: Equation, mesh: Mesh, layout: Layout, others: Sequence[Layout]
) -> None:
    """Predict nothing: there is no simulator."""


def no_predictions() -> Faster:
    return unpredicted


@attrs.frozen(slots=False)
class Advice:
    """The warnings that the file allows, True if the file has several models, and a maker of the predictor, called on demand."""

    allowed: Allowed = attrs.field(factory=Allowed)
    several: bool = False
    predictor: Callable[[], Faster] = no_predictions

    @cached_property
    def faster(self) -> Faster:
        return self.predictor()
