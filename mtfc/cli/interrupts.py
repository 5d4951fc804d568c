"""Ctrl-C during training: a step that has begun ends first.

A training step gives its parameters away to what replaces them. An interrupt between the two would lose both, so it waits for
the end of the step and is raised there. Python runs the handler of a signal between its own instructions: two interrupts during
one long call of XLA arrive as one.
"""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from threading import current_thread, main_thread

from mtfc.cli.errors import say


@contextmanager
def held(message: str) -> Iterator[None]:
    """Raise `KeyboardInterrupt` at the end of the block where Ctrl-C comes during it; a second Ctrl-C ends the process at once.

    The message is shown when the first one comes. Another handler than Python's own stays in place, and other threads than the
    main one cannot have any: there nothing is held.
    """
    if current_thread() is not main_thread() or signal.getsignal(signal.SIGINT) is not DEFAULT:
        yield
        return
    came = False

    def wait(*_: object) -> None:
        nonlocal came
        came = True
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        with suppress(RuntimeError):  # a line was being written when the signal came
            say(message)

    signal.signal(signal.SIGINT, wait)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, DEFAULT)
    if came:
        raise KeyboardInterrupt


DEFAULT = signal.default_int_handler
