"""Settings of the C library's allocator that keep freed memory in the process.

XLA allocates a step's intermediate values anew in each step. By default the C library returns large blocks to the system as soon
as they are freed, and the system clears them again in each step. On virtual devices of the CPU this can take longer than the step
itself. Searches that build and simulate large task graphs have the same problem.
"""

import ctypes
import sys

TRIM_THRESHOLD, MMAP_MAX, ARENA_MAX = -1, -4, -8
"""Parameters of glibc's `mallopt`, from malloc.h."""


def keep_memory() -> None:
    """Let this process reuse freed memory. Does nothing if the C library is not glibc."""
    _set(TRIM_THRESHOLD, -1)  # never give back the end of the heap
    _set(MMAP_MAX, 0)  # allocate large blocks on the heap too
    use_one_heap()


def use_one_heap() -> None:
    """Let the threads that start from now on share a heap: only the first heap can hold large blocks."""
    _set(ARENA_MAX, 1)


def _set(parameter: int, value: int) -> None:
    """Set a parameter of glibc's allocator; do nothing where there is none."""
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None) if sys.platform == "linux" else None
    if mallopt is not None:
        mallopt(parameter, value)
