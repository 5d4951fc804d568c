"""What checks of layouts ask of others: which warnings are meant, and which change would make a step faster."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property

import attrs

from mtfc.compiler.ir.core import Equation, Program
from mtfc.compiler.ir.types import Layout, Mesh
from mtfc.frontend.allowed import Allowed

MACHINE = "h100"
"""The machine of the library on which steps are predicted where no other is given."""

LEAST = 1.05
"""A change is advised where it makes a step at least so many times as fast."""

Faster = Callable[[Program, Equation, Mesh, Layout, Sequence[Layout]], Sequence[float] | None]
"""How many times as fast a program is under each of the other layouts, which differ in what one of its equations does; None where
that takes too long to find out, or the machine has no room for the mesh.
"""


def unpredicted(
    program: Program, eqn: Equation, mesh: Mesh, layout: Layout, others: Sequence[Layout]
) -> None:
    """Where there is no simulator."""


def no_predictions() -> Faster:
    return unpredicted


@attrs.frozen(slots=False)
class Advice:
    """The comments of the file, whether it has several models, and how to make a prediction, when one is needed."""

    allowed: Allowed = attrs.field(factory=Allowed)
    several: bool = False
    predictor: Callable[[], Faster] = no_predictions

    @cached_property
    def faster(self) -> Faster:
        return self.predictor()
