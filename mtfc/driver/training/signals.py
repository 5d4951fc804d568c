"""Stopping a training run in order: Ctrl-C, and the notice that a cluster gives before it takes a machine away (SIGTERM).

A step donates its state and returns a new one, so a run stops between two steps. Several processes must stop after the same step:
JAX's preemption service makes them agree, and Ctrl-C in one process counts as a notice.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from threading import current_thread, main_thread

import attrs

from mtfc.driver.errors import say


@attrs.define
class Stop:
    """A request to stop. agreed: several processes stop after the same step."""

    agreed: bool
    is_requested: bool = False

    def after(self, step: int) -> bool:
        """Return True if the run stops after this step. With several processes every one must call this after every step."""
        if not self.agreed:
            return self.is_requested
        from jax.experimental import multihost_utils

        return bool(multihost_utils.reached_preemption_sync_point(step))

    def request(self, number: int, _: object) -> None:
        """Handle a signal: the first one asks to stop, a second one ends the process at once."""
        self.is_requested = True
        signal.signal(number, signal.SIG_DFL)
        with suppress(RuntimeError):  # a line was being written when the signal came
            say("stopping after this step; Ctrl-C again ends at once")
        if self.agreed:
            os.kill(os.getpid(), signal.SIGTERM)


@contextmanager
def stop_by_signal(agreed: bool) -> Iterator[Stop]:
    """Return a request that signals set during the block. Only the main thread can have handlers."""
    stop = Stop(agreed)
    signals = (signal.SIGINT,) if agreed else (signal.SIGINT, signal.SIGTERM)
    if current_thread() is not main_thread():
        yield stop
        return
    before = {number: signal.signal(number, stop.request) for number in signals}
    try:
        yield stop
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
