"""The garbage collector of Python: how often it runs."""

import gc
from collections.abc import Iterator
from contextlib import contextmanager

OBJECTS = 1_000_000
"""The number of new objects after which Python collects garbage. Compilations make many objects, and few are in circles."""


@contextmanager
def few_collections() -> Iterator[None]:
    """Let Python collect garbage rarely, unless it does so already, or never."""
    first, *later = gc.get_threshold()
    if not 0 < first < OBJECTS:
        yield
        return
    gc.set_threshold(OBJECTS, *later)
    try:
        yield
    finally:
        gc.set_threshold(first, *later)
