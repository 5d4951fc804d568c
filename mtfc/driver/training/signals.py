"""Stopping a training run in order: Ctrl-C, and the notice that a cluster gives before it takes a machine away (SIGTERM).

A step donates its state and returns a new one, so a run stops between two steps. Whatever else may take long, such as reading
data, runs in a thread that the run can leave behind. Python calls a signal's handler only between two lines of Python, and a step
may take minutes, so a thread of its own hears of signals.
"""

import os
import signal
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager, nullcontext, suppress
from socket import socket, socketpair
from threading import Event, Thread, current_thread, main_thread
from time import monotonic
from typing import TypeVar

import attrs

from mtfc.driver.errors import INTERRUPTED, say
from mtfc.driver.training.hosts import Peers

T = TypeVar("T")

MARGIN = 5.0
"""Seconds before the end of the time that a cluster leaves, after which nothing more is waited for."""


class Stopped(Exception):
    """The run was asked to stop while it waited."""


@attrs.define(eq=False)
class Stop:
    """A request to stop. grace: seconds from SIGTERM to the end that a cluster makes. peers: are told of the request.

    last: says which checkpoint is the last. answered: the step under way has ended. over: so has the run, whose state is saved.
    left: the thread of a call that was not waited for. is_timed: the time of grace is running.
    """

    grace: float = 30.0
    peers: Peers = attrs.field(factory=Peers)
    last: Callable[[], str] = str
    requested: Event = attrs.field(factory=Event)
    answered: Event = attrs.field(factory=Event)
    over: Event = attrs.field(factory=Event)
    waiting: set[Event] = attrs.field(factory=set)
    left: Thread | None = None
    is_timed: bool = False

    @property
    def leaves_thread(self) -> bool:
        """Return True if a call that was not waited for still runs."""
        return self.left is not None and self.left.is_alive()

    @property
    def is_requested(self) -> bool:
        return self.requested.is_set()

    def request(self, is_short: bool) -> None:
        """Ask to stop after the step under way. is_short: the process ends with the time of grace."""
        if not self.is_requested:
            self.requested.set()
            for each in list(self.waiting):
                each.set()
            with suppress(OSError, RuntimeError):
                say("stopping after this step; Ctrl-C again ends at once")
        if is_short and not self.is_timed:  # SIGTERM may come after Ctrl-C
            self.is_timed = True
            Thread(target=self._end_in_time, daemon=True).start()

    def wait(self, call: Callable[[], T], patience: float = 0.0) -> T:
        """Return the result of a call that may take long. Raises `Stopped` once the run is asked to stop.

        Then the call has `patience` seconds to end, and its result is dropped.
        """
        result: Future[T] = Future()
        woken = Event()
        self.waiting.add(woken)
        result.add_done_callback(lambda _: woken.set())
        thread = Thread(target=_fill, args=(result, call), daemon=True)
        thread.start()
        if not self.is_requested:
            woken.wait()
        self.waiting.discard(woken)
        if not result.done() and patience:
            with suppress(TimeoutError):
                result.exception(patience)
        if result.done():
            return result.result()
        self.left = thread
        raise Stopped

    def _end_in_time(self) -> None:
        """End the process before the cluster does, if the step under way takes too long; else warn if saving does."""
        due = monotonic() + max(0.0, self.grace - MARGIN)
        if not self.answered.wait(due - monotonic()):
            late = f"the step under way takes longer than {self.grace - MARGIN:.0f} s, and is not saved"
            self.peers.end(f"{late}: {self.last()}", INTERRUPTED)
        elif not self.over.wait(max(0.0, due - monotonic())):
            with suppress(OSError, RuntimeError):
                say(f"the state is not saved after {self.grace - MARGIN:.0f} s: until it is, {self.last()}")

    def listen(self, signals: socket) -> None:
        """Answer signals, which come as bytes: the first one asks to stop, a second one ends the process at once."""
        while number := signals.recv(1):
            is_short = number[0] != signal.SIGINT
            if self.is_requested and not is_short:
                os._exit(INTERRUPTED)
            self.request(is_short)
            self.peers.tell_stop(is_short)


def _fill(result: Future[T], call: Callable[[], T]) -> None:
    """Put the result of a call, or its error, into a future."""
    try:
        result.set_result(call())
    except BaseException as error:
        result.set_exception(error)


@contextmanager
def stop_by_signal(stop: Stop) -> Iterator[Stop]:
    """Let signals, and the other processes, ask to stop during the block. Only the main thread can have handlers."""
    stop.peers.on_stop = stop.request
    try:
        with _handlers(stop) if current_thread() is main_thread() else nullcontext():
            yield stop
    finally:
        stop.answered.set()
        stop.over.set()  # after the block, the time of grace ends nothing


@contextmanager
def _handlers(stop: Stop) -> Iterator[None]:
    """Let signals ask for a stop while a `with` block runs. A thread reads the numbers of the signals."""
    reading, writing = socketpair()
    writing.setblocking(False)
    before = {number: signal.signal(number, _noted) for number in _stopping()}
    waking = signal.set_wakeup_fd(writing.fileno(), warn_on_full_buffer=False)
    Thread(target=stop.listen, args=(reading,), daemon=True).start()
    try:
        yield
    finally:
        signal.set_wakeup_fd(waking)
        for number, handler in before.items():
            signal.signal(number, handler)
        writing.close()  # the thread that reads ends


def _stopping() -> list[int]:
    """Return the signals that stop a run: Ctrl-C, SIGTERM, and the end of its terminal unless `nohup` hides that."""
    hangup = [signal.SIGHUP] if hasattr(signal, "SIGHUP") else []  # not on Windows
    heard = [each for each in hangup if signal.getsignal(each) is not signal.SIG_IGN]
    return [signal.SIGINT, signal.SIGTERM, *heard]


def _noted(_: int, frame: object) -> None:
    """Do nothing: the number of the signal was written to the socket."""
