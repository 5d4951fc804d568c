"""Recover parameters that a training step has replaced.

A step of the JAX backend donates parameters and optimizer state, so that both need memory once. A loss that is not finite shows
one step too late which parameters were the last good ones. Keeping the arrays of every step would take their memory twice more.
So the host keeps a copy from time to time. To recover, the steps since that copy run again: the same computation on the same
data.
"""

from __future__ import annotations

from collections.abc import Callable
from math import isfinite
from time import monotonic

import attrs

from mtfc.driver.data.array_files import Array, Arrays
from mtfc.driver.running.execution import Session

SHARE = 0.03
"""Copying takes at most this share of the time."""


@attrs.frozen
class Copy:
    """The parameters and the optimizer state before step `step`, on the host."""

    step: int
    parameters: Arrays
    state: Arrays


@attrs.define
class Rewind:
    """Goes back in a training run. `again` runs the step of a given number and returns its loss."""

    session: Session
    again: Callable[[int], float]
    proven: Copy | None = None
    new: Copy | None = None
    due: float = 0.0

    def before(self, step: int) -> None:
        """Copy parameters and state before the step, if enough time has passed since the last copy."""
        started = monotonic()
        if started < self.due:
            return
        session = self.session
        self.new = Copy(step, _copied(session.parameters()), _copied(session.optimizer_state()))
        self.due = monotonic() + (monotonic() - started) / SHARE

    def succeeded(self) -> None:
        """Accept the new copy, if any: the loss of the step was finite."""
        self.proven, self.new = self.new or self.proven, None

    def back(self, step: int) -> dict[str, Array] | None:
        """Return the parameters that `step` started from; None if no copy has been accepted.

        On some GPUs a repeated step gives another loss. If that loss is not finite, return the parameters of the copy.
        """
        if self.proven is None:
            return None
        self._restore(self.proven)
        for number in range(self.proven.step, step):
            if not isfinite(self.again(number)):
                self._restore(self.proven)
                break
        return self.session.parameters()

    def start_of_failure(self, step: int, is_finite: Callable[[Arrays], bool]) -> Copy:
        """Return the start of the step that made numbers which are not finite, `step` or an earlier one since the last copy.

        is_finite: tells if parameters are finite.
        """
        copy = self.proven or self.new
        assert copy is not None, "a copy is taken before the first step"
        self._restore(copy)
        while copy.step < step:
            self.again(copy.step)
            after = _copied(self.session.parameters())
            if not is_finite(after):
                break
            copy = Copy(copy.step + 1, after, _copied(self.session.optimizer_state()))
        return copy

    def _restore(self, copy: Copy) -> None:
        self.session.restore(copy.parameters, copy.state)


def _copied(arrays: Arrays) -> dict[str, Array]:
    """Copy the arrays: JAX arrays on CPUs are views of a buffer that the next step may overwrite."""
    import numpy as np

    return {name: np.array(array) for name, array in arrays.items()}
