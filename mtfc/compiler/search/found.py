"""What every search gives: the best that it found, what that costs, and what anything else costs at least."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from math import inf
from typing import Literal

import attrs

from mtfc.compiler.ir.types import Layout, Mesh


@attrs.frozen
class Price:
    """What one processor needs for a step under some layout: seconds that it computes, seconds that it communicates, bytes of
    memory. `seconds` is their sum: nothing is taken to overlap. overlapping: seconds of the step where communication overlaps
    with what does not need it; infinite where that was not asked for. tiled: bytes in the machine's memory, which may be more.
    """

    compute: float
    communication: float
    memory: int
    tiled: int
    overlapping: float = inf

    @property
    def seconds(self) -> float:
        return self.compute + self.communication


Objective = Literal["time", "overlap", "memory"]
"""What is to be least: the seconds while nothing overlaps, the seconds with overlap, or the bytes."""

VALUES: Mapping[Objective, Callable[[Price], float]] = {
    "time": lambda price: price.seconds,
    "overlap": lambda price: price.overlapping,
    "memory": lambda price: price.memory,
}


def value_of(price: Price, objective: Objective) -> float:
    return VALUES[objective](price)


Pricing = Callable[[Mesh, Layout], Price]
"""Compiles the program under a layout, and says what the result costs."""

Progress = Callable[[str, float | None, float | None], None]
"""Is told what is being done, the best cost and the best bound so far, where known."""


def silent(doing: str, cost: float | None, bound: float | None) -> None:
    """Reports nothing."""


@attrs.frozen
class Found:
    """A layout on a mesh. `objective` and `lower_bound` are in the search's unit: seconds, or bytes of memory.

    evaluated: how many layouts were compiled to be priced. is_interrupted: whether `KeyboardInterrupt` ended the search. refuted:
    a layout that costs less than the search took for certain, which is a fault of it: nothing is proven then.
    """

    mesh: Mesh
    layout: Layout
    objective: float
    lower_bound: float
    evaluated: int
    is_interrupted: bool = False
    refuted: Layout | None = None

    @property
    def is_optimal(self) -> bool:
        return self.refuted is None and self.objective <= self.lower_bound


class NothingFits(Exception):
    """No layout was found whose memory suffices: says what the least was, and what there is."""
