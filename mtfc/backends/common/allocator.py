"""Memory that stays with the process.

XLA allocates a step's intermediate values anew in each step. The C library gives large blocks back to the system as soon as they
are freed, so that each step pays for the system to clear them again: on virtual devices of the CPU this can take longer than the
step itself. So it can for a search that makes and simulates large task graphs.
"""

from __future__ import annotations

import ctypes
import sys

TRIM_THRESHOLD, MMAP_MAX, ARENA_MAX = -1, -4, -8
"""Parameters of glibc's `mallopt`, from malloc.h."""


def keep_memory() -> None:
    """Let freed memory be used again by this process; nothing where the C library is not glibc."""
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None) if sys.platform == "linux" else None
    if mallopt is not None:
        mallopt(TRIM_THRESHOLD, -1)  # never give back the end of the heap
        mallopt(MMAP_MAX, 0)  # no blocks of their own for what is large
        mallopt(ARENA_MAX, 1)  # a second heap cannot hold them
