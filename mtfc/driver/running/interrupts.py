"""Delay Ctrl-C during training until the running step ends.

A training step donates its parameters and returns new ones. An interrupt in between would lose both, so the interrupt waits for
the end of the step. Python runs a signal handler between its own instructions: two interrupts during one long call of XLA
arrive as one.
"""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from threading import current_thread, main_thread

from mtfc.driver.errors import say


@contextmanager
def delayed_interrupt(message: str) -> Iterator[None]:
    """Raise `KeyboardInterrupt` at the end of the block if Ctrl-C comes during the block; a second Ctrl-C ends the process at
    once.

    The first Ctrl-C shows the message. A handler other than Python's own stays in place. Only the main thread can have a
    handler: other threads delay nothing.
    """
    if current_thread() is not main_thread() or signal.getsignal(signal.SIGINT) is not DEFAULT:
        yield
        return
    came = False

    def note(*_: object) -> None:
        nonlocal came
        came = True
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        with suppress(RuntimeError):  # a line was being written when the signal came
            say(message)

    signal.signal(signal.SIGINT, note)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, DEFAULT)
    if came:
        raise KeyboardInterrupt


DEFAULT = signal.default_int_handler
