"""The common parts of searches: prices, the best layout so far, and the result, which has a lower bound for all other layouts."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from math import inf
from time import process_time
from typing import TYPE_CHECKING, Any, Literal, TypeVar

import attrs

from mtfc.compiler.ir.printer import bytes_text
from mtfc.compiler.ir.types import Layout, Mesh

if TYPE_CHECKING:
    from mtfc.compiler.cost.hardware import Hardware


T = TypeVar("T")

Plan = tuple[Mesh, Layout]
"""A layout on a mesh."""


@attrs.frozen
class Price:
    """The price of a step for one processor: seconds of computing, seconds of communicating, bytes of memory.

    seconds: the time of the simulated step, in which communication overlaps with independent computation. tiled: bytes as
    the machine stores them. sent: bytes that the processor sends.
    """

    compute: float
    communication: float
    memory: int
    tiled: int
    sent: int
    seconds: float

    @property
    def serial(self) -> float:
        """The seconds without overlap."""
        return self.compute + self.communication


Objective = Literal["time", "serial", "memory", "bytes"]
"""The measure to minimize: seconds of the simulated step, seconds without overlap, bytes of memory, or bytes that a processor
sends.
"""

VALUES: Mapping[Objective, Callable[[Price], float]] = {
    "time": lambda price: price.seconds,
    "serial": lambda price: price.serial,
    "memory": lambda price: price.memory,
    "bytes": lambda price: price.sent,
}

IN_BYTES: frozenset[Objective] = frozenset({"memory", "bytes"})
"""The objectives whose unit is a byte; the others are in seconds."""


def value_of(price: Price, objective: Objective) -> float:
    return VALUES[objective](price)


Pricing = Callable[[Mesh, Layout], Price]
"""Compiles the program under a layout, and returns the price of the result."""

FindPlan = Callable[[Pricing, float], "Found"]
"""A search with these prices, until a time of `process_time`."""


Ending = Literal["complete", "time", "interrupted"]
"""The reason why a search ended: it was complete, its time ended, or it was interrupted."""


@attrs.frozen
class Found:
    """A layout on a mesh. `objective` and `lower_bound` are in the unit of the search: seconds, or bytes.

    evaluated: the number of layouts that were compiled and priced. is_interrupted, is_late: True if `KeyboardInterrupt`, or the
    time, ended the search.
    refuted: a layout whose price is below its bound. That is an error of the cost model, and nothing is proven then.
    without_forms: for a layout with forms, the result of the search for layouts without, which has the bound for these.
    without_pipelines: the bound of all plans without a pipeline; None if pipelines were not searched. For the least memory it is
    the bound of layouts without forms, with the micro-batches of the result.
    runner_up: the best plan of another kind, for a function of JAX; None if none fits.
    cuts: bytes that all devices send together after each cut, for a tiling by k-cuts.
    """

    mesh: Mesh
    layout: Layout
    objective: float
    lower_bound: float
    evaluated: int
    is_interrupted: bool = False
    is_late: bool = False
    refuted: Layout | None = None
    without_forms: Found | None = None
    without_pipelines: float | None = None
    runner_up: Plan | None = None
    cuts: tuple[float, ...] = ()

    @property
    def is_optimal(self) -> bool:
        return self.refuted is None and self.objective <= self.lower_bound

    @property
    def ending(self) -> Ending:
        """The reason why the search ended; a proof completes a search."""
        if self.is_interrupted:
            return "interrupted"
        return "time" if self.is_late and not self.is_optimal else "complete"


@attrs.define
class PricedLayouts:
    """Prices the layouts that a search tries, and keeps the best one of at most `room` bytes.

    limit: the value that a layout must be below. least_memory: the fewest bytes of all layouts that were tried.
    """

    pricing: Pricing
    objective: Objective
    room: float
    limit: float = inf
    best: Plan | None = None
    least_memory: int | None = None
    evaluated: int = 0
    is_interrupted: bool = False
    is_late: bool = False

    def offer(self, mesh: Mesh, layout: Layout) -> Price:
        """Compile a layout, and keep it if it is the best so far."""
        price = self.pricing(mesh, layout)
        self.evaluated += 1
        self.least_memory = min(price.tiled, self.least_memory or price.tiled)
        if price.tiled <= self.room and value_of(price, self.objective) < self.limit:
            self.best, self.limit = (mesh, layout), value_of(price, self.objective)
        return price

    def offer_all(self, layouts: Iterable[Plan]) -> None:
        """Offer layouts until `KeyboardInterrupt`."""
        try:
            for mesh, layout in layouts:
                self.offer(mesh, layout)
        except KeyboardInterrupt:
            self.is_interrupted = True

    def found(self, lower_bound: float = 0.0, **others: Any) -> Found:
        """Return the best layout under the name `found`. Raises `KeyboardInterrupt` if an interrupt came before any."""
        if self.best is None:
            raise KeyboardInterrupt
        mesh, layout = self.best
        layout = attrs.evolve(layout, name="found")
        ended = self.is_interrupted, self.is_late
        return Found(mesh, layout, self.limit, lower_bound, self.evaluated, *ended, **others)


def descend(
    start: T,
    value: Callable[[T], tuple[float, float]],
    changes: Callable[[T], Iterable[Callable[[T], Iterable[T]]]],
    until: float,
) -> T:
    """Return a value that no single change makes better, or the best value found until a time of `process_time`.

    value: a number that grows with what does not fit, and the value to minimize. changes: those of the best at the beginning
    of a round; each yields what may take the place of the best so far. start: the first value.
    """
    best, before = start, None
    while best != before:
        before = best
        for change in changes(best):
            for each in change(best):
                if process_time() > until:
                    return best
                best = min(best, each, key=value)
    return best


def room_on(hardware: Hardware, objective: Objective) -> float:
    """Return the bytes that a layout may need: no limit where the least memory is searched."""
    return hardware.device.memory if objective != "memory" else inf


def memory_text(room: float, least: float | None) -> str:
    """Return the memory of a device, and the least that a search has seen, if any."""
    needs = "" if least is None else f", and the least that was seen is {bytes_text(int(least))}"
    return f"a device has {bytes_text(int(room))}{needs}"


class NothingFits(Exception):
    """No layout was found that fits in memory. The message has the least memory that was found, and the memory of a device."""
