"""A queue of tasks that are ready, the first by (when, number) in front: a binary heap in two arrays, compiled."""

from __future__ import annotations

import numpy as np

from mtfc.compiler.search.soap.blocks import Array
from mtfc.compiler.search.solver.kernels import tight


@tight
def push(times: Array, numbers: Array, size: int, time: float, number: int) -> int:
    """Add one; the new size."""
    _rise(times, numbers, size, time, number)
    return size + 1


@tight
def pop(times: Array, numbers: Array, size: int) -> int:
    """Take the first away; the new size.

    The gap sinks to the bottom, and the last one rises from there, mostly not far: so it is compared less often, and which way
    the gap sinks is computed, as no processor could guess it.
    """
    size -= 1
    time, number, at, below = times[size], numbers[size], 0, 1
    times[size] = np.inf
    while below < size:
        a, b = times[below], times[below + 1]
        below += (b < a) | ((a == b) & (numbers[below + 1] < numbers[below]))
        times[at], numbers[at] = times[below], numbers[below]
        at = below
        below = 2 * at + 1
    _rise(times, numbers, at, time, number)
    return size


@tight
def _rise(times: Array, numbers: Array, at: int, time: float, number: int) -> None:
    """Fill a gap at the bottom."""
    while at > 0:
        above = (at - 1) >> 1
        if times[above] < time or (times[above] == time and numbers[above] < number):
            break
        times[at], numbers[at] = times[above], numbers[above]
        at = above
    times[at], numbers[at] = time, number
