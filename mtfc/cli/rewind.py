"""The way back to parameters that a training step has replaced.

A step of the JAX backend gives its parameters and the optimizer's state away, so that both need memory once. A loss that is not
finite shows one step too late that they were the last good ones. Keeping every step's would take their memory twice more, so the
host keeps a copy from time to time, and the steps since that copy run again: the same computation on the same data.
"""

from __future__ import annotations

from collections.abc import Callable
from math import isfinite
from time import monotonic

import attrs

from mtfc.cli.execution import Session
from mtfc.cli.npz import Array, Arrays

SHARE = 0.03
"""Copying takes at most this part of the time."""


@attrs.frozen
class Copy:
    """What a session holds before step `step`, on the host."""

    step: int
    parameters: Arrays
    state: Arrays


@attrs.define
class Rewind:
    """Goes back in a training run. `again` runs the step of a number and gives its loss."""

    session: Session
    again: Callable[[int], float]
    proven: Copy | None = None
    new: Copy | None = None
    due: float = 0.0

    def before(self, step: int) -> None:
        """Copy what the step starts from, if enough time has passed since the last copy."""
        started = monotonic()
        if started < self.due:
            return
        session = self.session
        self.new = Copy(step, _copied(session.parameters()), _copied(session.optimizer_state()))
        self.due = monotonic() + (monotonic() - started) / SHARE

    def succeeded(self) -> None:
        """The loss of the step was finite, so its copy is worth going back to."""
        self.proven, self.new = self.new or self.proven, None

    def back(self, step: int) -> dict[str, Array] | None:
        """The parameters that `step` started from, whose loss was finite; None where nothing was.

        Where a step gives another loss the second time, as some GPUs do, and one that is not finite, those of the copy.
        """
        if self.proven is None:
            return None
        self._restore(self.proven)
        for number in range(self.proven.step, step):
            if not isfinite(self.again(number)):
                self._restore(self.proven)
                break
        return self.session.parameters()

    def _restore(self, copy: Copy) -> None:
        self.session.restore(copy.parameters, copy.state)


def _copied(arrays: Arrays) -> dict[str, Array]:
    """Arrays of their own: those of JAX on CPUs are views of a buffer that the next step may take."""
    import numpy as np

    return {name: np.array(array) for name, array in arrays.items()}
