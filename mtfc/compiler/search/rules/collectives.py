"""What collectives take at least on a mesh, by the sets of axes that they work on: small tables over bit masks."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import TypeAlias

import attrs
import numpy as np
from numpy.typing import NDArray

from mtfc.compiler.analysis.topology import Topology
from mtfc.compiler.hardware import Hardware, Rate
from mtfc.compiler.ir.types import Mesh
from mtfc.compiler.search.rules.space import Rows, axes_of, degree

COMBINED = 4 * 2**20
"""Arrays of so many bytes are not combined with others into one collective."""

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
            attrs.evolve(link, bandwidth=Rate.constant(link.bandwidth.peak)) for link in self.hardware.links
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

    def alone(self, size: int) -> Seconds:
        """What an all-reduce of an array of so many bytes in all takes at least: [axes, those that cut it by then]."""
        key = ("alone", size, 0)
        if key not in self.tables:
            lanes = self._lanes["all_reduce"]
            self.tables[key] = np.stack([_longest(each, size / self.degrees, 0) for each in lanes])
        return self.tables[key]

    def exchanging(self, size: int) -> Seconds:
        """The same of an all-to-all, or an all-gather in its place."""
        key = ("exchange", size, 0)
        if key not in self.tables:
            self.tables[key] = np.minimum(self._steps("all_to_all", size, 0), self.gathering(size) / 2)
        return self.tables[key]

    def _steps(self, kind: str, size: int, size_alone: int) -> Seconds:
        if (kind, size, size_alone) in self.tables:
            return self.tables[kind, size, size_alone]
        local, sets = size / self.degrees, range(len(self.degrees))
        every = np.stack([_longest(lanes, local, size_alone) for lanes in self._lanes[kind]])
        found = np.zeros((len(sets), len(sets), len(sets)))
        for axes in sets[1:]:
            for split in (each for each in sets if not each & axes):
                over = [each for each in sets if each & axes == axes and not each & split]
                found[axes, split] = np.min(every[over], axis=0)
        self.tables[kind, size, size_alone] = found
        return found

    def completing(self, table: Seconds, over: Rows, own: Rows, before: Rows, halved: Rows) -> Seconds:
        """What completing an array over axes takes at least, by the best of all ways to do it in steps that `table` has.

        The axes `own` are known to split the array, and `before` are all that can by the first step. Where a use is split over
        an axis, a step is half an all-reduce, and what follows is smaller.
        """
        sets = range(len(self.degrees))
        present = [int(mask) for mask in np.unique(over)] or [0]
        least = {0: np.zeros(len(over))}
        for left in (each for each in sets[1:] if any(each & mask == each for mask in present)):
            cut = before | (halved & over & ~np.uint8(left))
            for step in (each for each in sets[1:] if each & left == each):
                seconds = table[step, own, cut] * np.where(halved & np.uint8(step), 0.5, 1.0)
                total = seconds + least[left & ~step]
                least[left] = np.minimum(least[left], total) if left in least else total
        if len(present) == 1:
            return least[present[0]]
        return np.stack([least[mask] for mask in present])[
            np.searchsorted(present, over), np.arange(len(over))
        ]


def _longest(lanes: Sequence[tuple[float, float]], bytes: Seconds, size_alone: int) -> Seconds:
    alone = bytes >= size_alone
    times = [fixed * alone + bytes * each for fixed, each in lanes]
    longest: Seconds = np.max([np.zeros_like(bytes), *times], axis=0)
    return longest
