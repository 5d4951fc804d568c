"""The result of every search: the best layout that was found, its price, and a lower bound for all others."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from math import inf
from typing import Literal

import attrs

from mtfc.compiler.ir.types import Layout, Mesh


@attrs.frozen
class Price:
    """The price of a step for one processor: seconds of computing, seconds of communicating, bytes of memory.

    `seconds` is the time without overlap. tiled: bytes as the machine stores them. sent: bytes that the processor
    sends. overlapping: seconds of the step if communication overlaps with independent computation; infinite unless it was asked
    for.
    """

    compute: float
    communication: float
    memory: int
    tiled: int
    sent: int
    overlapping: float = inf

    @property
    def seconds(self) -> float:
        return self.compute + self.communication


Objective = Literal["time", "overlap", "memory", "bytes"]
"""The measure to minimize: seconds without overlap, seconds with overlap, bytes of memory, or bytes that a processor sends."""

VALUES: Mapping[Objective, Callable[[Price], float]] = {
    "time": lambda price: price.seconds,
    "overlap": lambda price: price.overlapping,
    "memory": lambda price: price.memory,
    "bytes": lambda price: price.sent,
}

IN_BYTES: frozenset[Objective] = frozenset({"memory", "bytes"})
"""The objectives whose unit is a byte; the others are in seconds."""


def value_of(price: Price, objective: Objective) -> float:
    return VALUES[objective](price)


Pricing = Callable[[Mesh, Layout], Price]
"""Compiles the program under a layout, and returns the price of the result."""

Progress = Callable[[str, float | None, float | None], None]
"""Receives the present activity, and the best cost and bound so far where these are known."""


def silent(doing: str, cost: float | None, bound: float | None) -> None:
    """Reports nothing."""


@attrs.frozen
class Found:
    """A layout on a mesh. `objective` and `lower_bound` are in the unit of the search: seconds, or bytes.

    evaluated: the number of layouts that were compiled and priced. is_interrupted: True if `KeyboardInterrupt` ended the search.
    refuted: a layout whose price is below its bound. That is an error of the cost model, and nothing is proven then.
    without_forms: for a layout with forms, the result of the search for layouts without, which has the bound for these.
    runner_up: the next best of the layouts that were priced with forms, which splits something else; None if none fits.
    """

    mesh: Mesh
    layout: Layout
    objective: float
    lower_bound: float
    evaluated: int
    is_interrupted: bool = False
    refuted: Layout | None = None
    without_forms: Found | None = None
    runner_up: tuple[Mesh, Layout] | None = None

    @property
    def is_optimal(self) -> bool:
        return self.refuted is None and self.objective <= self.lower_bound


class NothingFits(Exception):
    """No layout was found that fits in memory. The message has the least memory that was found, and the memory of a device."""
