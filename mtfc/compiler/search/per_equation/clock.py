"""The clock of building a network: on a mesh of many axes there are so many choices that to find them all takes minutes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from time import monotonic
from typing import TypeVar

from mtfc.compiler.search.solver.assignment_problem import NotFound

Item = TypeVar("Item")


def in_time(items: Iterable[Item], until: float) -> Iterator[Item]:
    """The items. Raises `NotFound` when one is asked for later than `until`, a time of `time.monotonic`."""
    for item in items:
        if monotonic() > until:
            raise NotFound("the time is over before all choices are known")
        yield item
