"""What collectives take at least on a mesh, by the sets of axes that they work on: small tables over bit masks."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import TypeAlias

import attrs
import numpy as np
from numpy.typing import NDArray

from mtfc.compiler.cost.hardware import Hardware, Rate
from mtfc.compiler.cost.topology import Topology
from mtfc.compiler.ir.types import Mesh
from mtfc.compiler.search.global_layouts.layout_space import Integers, Rows, axes_of, degree

COMBINED = 4 * 2**20
"""Arrays of so many bytes are not combined with others into one collective."""

STATES = 5
"""What an axis can be to a sum, a digit each: nothing; one to complete it over, by an all-reduce or by half of one; one that can
split it, one that does.
"""

Seconds: TypeAlias = NDArray[np.float64]


@attrs.frozen(slots=False, eq=False)
class Collectives:
    """On one mesh. degrees: the processors along each set of axes. tables: those that were asked for."""

    mesh: Mesh
    hardware: Hardware
    tables: dict[tuple[str, int, int], Seconds] = attrs.field(factory=dict)

    @cached_property
    def degrees(self) -> Seconds:
        return np.array([degree(mask, self.mesh) for mask in range(1 << len(self.mesh.axes))], np.float64)

    @cached_property
    def _topology(self) -> Topology:
        """Of links that are always as fast as they can be."""
        links = [
            attrs.evolve(link, bandwidth=Rate.constant(link.peak), collectives={})
            for link in self.hardware.links
        ]
        return Topology.of(self.mesh, attrs.evolve(self.hardware, links=tuple(links)))

    @cached_property
    def _lanes(self) -> dict[str, list[list[tuple[float, float]]]]:
        """By collective, for each set of axes and each lane that one over it works on: its latency, seconds per byte at most."""
        masks = range(len(self.degrees))
        return {kind: [self._of(kind, mask) for mask in masks] for kind in ("all_reduce", "all_to_all")}

    def _of(self, kind: str, mask: int, hops: int | None = None) -> list[tuple[float, float]]:
        axes = axes_of(mask, self.mesh)
        nothing, one = (self._topology.seconds(kind, axes, size, hops) for size in (0.0, 1.0))
        return [(nothing[lane], one[lane] - nothing[lane]) for lane in nothing]

    def shifting(self, mask: int, hops: int, local: Seconds) -> Seconds:
        """What a permute of so many bytes of each processor takes at least."""
        return _longest(self._of("permute", mask, hops), local, 0)

    def reduction(self, size: int) -> Seconds:
        """What one step of completing a sum takes at least, of an array of so many bytes in all:
        [axes, axes that split it, the same and those that cut it by then].

        It may be done with other sums, over more axes that do not split the array. Small arrays may travel with others, and add
        no latency.
        """
        return self._steps("all_reduce", size, COMBINED)

    def gathering(self, size: int) -> Seconds:
        """The same of an all-reduce that nothing else travels with, of which an all-gather is half."""
        return self._steps("all_reduce", size, 0)

    def exactly(self, size: int) -> Seconds:
        """Return a lower bound on an all-reduce of an array of `size` bytes in all: [axes, axes that split the array by then].

        Small arrays add no latency: gathers of parameters, each half an all-reduce, may travel together.
        """
        key = ("exactly", size, COMBINED)
        if key not in self.tables:
            lanes = self._lanes["all_reduce"]
            self.tables[key] = np.stack([_longest(each, size / self.degrees, COMBINED) for each in lanes])
        return self.tables[key]

    def exchanging(self, size: int) -> Seconds:
        """The same of an all-to-all, or an all-gather in its place."""
        key = ("exchange", size, 0)
        if key not in self.tables:
            self.tables[key] = np.minimum(self._steps("all_to_all", size, 0), self.gathering(size) / 2)
        return self.tables[key]

    def _steps(self, kind: str, size: int, size_alone: int) -> Seconds:
        key = (kind, size, size_alone)
        if key not in self.tables:
            self.tables[key] = self._steps_of(kind, (size,), size_alone)[..., 0]
        return self.tables[key]

    def _steps_of(self, kind: str, sizes: Sequence[int], size_alone: int) -> Seconds:
        """For each size. What is reduced or gathered over axes is not split over them, before or after."""
        local, sets = np.array(sizes) / self.degrees[:, None], range(len(self.degrees))
        every = np.stack([_longest(lanes, local, size_alone) for lanes in self._lanes[kind]])
        if kind == "all_reduce":
            masks = np.array(sets)[:, None]
            every = every[masks, masks.T & ~masks]
        found = np.zeros((len(sets), *every.shape))
        for axes in sets[1:]:
            for split in (each for each in sets if not each & axes):
                over = [each for each in sets if each & axes == axes and not each & split]
                found[axes, split] = np.min(every[over], axis=0)
        return found

    def completed(self, sizes: Sequence[int], size_alone: int = 0) -> Seconds:
        """Return a lower bound on completing sums of these bytes in all: [code, size].

        Small sums may travel with others; a sum of which a part is scattered, only if it has less than `size_alone` bytes.
        """
        whole, alone = (self._steps_of("all_reduce", sizes, size) for size in (COMBINED, size_alone))
        return self.completing(whole, *self._codes, alone)

    @cached_property
    def _codes(self) -> tuple[Rows, Rows, Rows, Rows]:
        """The arguments of `completing` for each code."""
        digits = np.indices((STATES,) * len(self.mesh.axes)).reshape(len(self.mesh.axes), -1)
        bits = 1 << np.arange(len(self.mesh.axes))[::-1, None]
        masks = ((np.isin(digits, states) * bits).sum(axis=0) for states in ((1, 2), (4,), (3, 4), (2,)))
        over, own, before, halved = (mask.astype(np.uint8) for mask in masks)
        return over, own, before, halved

    @cached_property
    def pending(self) -> Integers:
        """The part of a code that is due to [axes to complete over, those of which a step is half an all-reduce]."""
        return self._places[:, None] + self._places[None]

    @cached_property
    def splitting(self) -> Integers:
        """The part that is due to [axes that split the array, those that can]."""
        return self._places[:, None] + 3 * self._places[None]

    @cached_property
    def _places(self) -> Integers:
        """For each set of axes the sum of their places."""
        masks = np.arange(len(self.degrees))
        places = (STATES**i * (masks >> i & 1) for i in range(len(self.mesh.axes)))
        return sum(places, start=np.zeros(len(masks), np.int64))

    def completing(
        self,
        table: Seconds,
        over: Rows,
        own: Rows,
        before: Rows,
        halved: Rows,
        alone: Seconds | None = None,
    ) -> Seconds:
        """What completing an array over axes takes at least, by the best of all ways to do it in steps that `table` has.

        The axes `own` are known to split the array, and `before` are all that can by the first step. Where a use is split over
        an axis, a step is half an all-reduce, of those that `alone` has if there are two, and what follows is smaller; what is
        scattered over other axes besides is gathered again. Tables may have a further dimension, of sizes.
        """
        sets = range(len(self.degrees))
        present = [int(mask) for mask in np.unique(over)] or [0]
        least = {0: np.zeros((len(over), *table.shape[3:]))}
        for left in (each for each in sets[1:] if any(each & mask == each for mask in present)):
            cut = before | (halved & over & ~np.uint8(left))
            for step in (each for each in sets[1:] if each & left == each):
                total = self._step(step, table, alone, own, cut, halved) + least[left & ~step]
                least[left] = np.minimum(least[left], total) if left in least else total
        if len(present) == 1:
            return least[present[0]]
        return np.stack([least[mask] for mask in present])[
            np.searchsorted(present, over), np.arange(len(over))
        ]

    def _step(
        self, step: int, table: Seconds, alone: Seconds | None, own: Rows, cut: Rows, halved: Rows
    ) -> Seconds:
        """An all-reduce; or a reduce-scatter, and an all-gather over those axes that no use is split over."""
        seconds, scattering = table[step, own, cut], table if alone is None else alone
        again = np.uint8(step) & ~halved
        half = (scattering[step, own, cut] + scattering[again, own, cut | (halved & np.uint8(step))]) / 2
        least: Seconds = np.minimum(seconds, half)
        return least


def _longest(lanes: Sequence[tuple[float, float]], bytes: Seconds, size_alone: int) -> Seconds:
    alone = bytes >= size_alone
    times = [fixed * alone + bytes * each for fixed, each in lanes]
    longest: Seconds = np.max([np.zeros_like(bytes), *times], axis=0)
    return longest
