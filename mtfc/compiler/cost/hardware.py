"""What programs run on: devices, and the links between them.

A machine is described as far as a prediction needs: how fast one device computes and reads its memory, and how fast it sends to
its neighbours. Rates may depend on the size of what is computed or sent, as small things take longer than their size says
(`Rate`). Links nest: the first connects devices, the next connects what the first one connects, and so on.

Units are those of the SI: FLOP/s, bytes, bytes/s, seconds.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import exp, inf, log, prod
from typing import Literal

import attrs

Kind = Literal["switch", "ring", "torus", "memory"]
KINDS: tuple[Kind, ...] = ("switch", "ring", "torus", "memory")
NEIGHBOURING: tuple[Kind, ...] = ("ring", "torus")
KERNELS = ("pool", "unpool", "convolution", "transposed", "reordered", "clear", "round")
"""Kernels that are several ops: a reduction of windows, its gradient, and a product with windows or of the gradients of such. And
those that are a part of an op: what is transposed or reordered for a product (`analysis/dot_operand_layout.py`), and what is cleared, or rounded,
for a loop on a TPU (`cost/loop_kernels.py`).
"""


@attrs.frozen
class Rate:
    """Something per second, by size: (size, rate) in ascending order of sizes; a plain number is one pair.

    Between two sizes the rate is interpolated on logarithmic scales, beyond the first and last it stays.
    """

    points: tuple[tuple[float, float], ...]

    @classmethod
    def constant(cls, rate: float) -> Rate:
        return cls(((1.0, rate),))

    @property
    def peak(self) -> float:
        return max(rate for _, rate in self.points)

    def at(self, size: float) -> float:
        """The rate at which `size` FLOPs or bytes are worked off."""
        above = next((i for i, (each, _) in enumerate(self.points) if each >= size), len(self.points))
        if above in (0, len(self.points)):
            return self.points[min(above, len(self.points) - 1)][1]
        (low, slow), (high, fast) = self.points[above - 1 : above + 1]
        share = log(size / low) / log(high / low)
        return exp(log(slow) + share * log(fast / slow))


@attrs.frozen
class Scratchpad:
    """Memory of the processor's own, on a TPU: so many bytes, the seconds that a product waits where all that it reads or writes
    is there, and bytes/s: what is component-wise reads and writes there, and products read as factors and write as results. None:
    as elsewhere.
    """

    bytes: float
    wait: float = 0.0
    reads: float | None = None
    writes: float | None = None
    factors: float | None = None
    results: float | None = None


@attrs.frozen
class Device:
    """One processor: FLOP/s by dtype and by the FLOPs of one kernel, memory in bytes, its bandwidth in bytes/s by the bytes that
    one kernel reads and writes, and the seconds that starting a kernel costs.

    ops: of those that take longer than their bytes, elements/s of the largest array that they read or write (of a table: of what
    indices point at), by the names of ops and of `KERNELS`. overlap: the share of the shorter of computing and moving bytes that
    the longer one hides: 1 where a kernel loads while it computes. matrix: of a TPU, rows and columns of its matrix units; its
    kernels are those of XLA's compiler for TPUs. loop: what an iteration of a loop costs besides.
    scratchpad: where small programs lie, and what all iterations of a loop multiply with. loading: rows that a matrix unit is
    loaded with while one row goes through it, for the gradient of a convolution's images.
    """

    flops: Mapping[str, Rate]
    memory: float
    bandwidth: Rate
    overhead: float = 0.0
    ops: Mapping[str, float] = attrs.field(factory=dict)
    overlap: float = 1.0
    matrix: int | None = None
    loop: float = 0.0
    scratchpad: Scratchpad | None = None
    loading: float = 1.0

    @property
    def own(self) -> Scratchpad | None:
        """The scratchpad of a TPU."""
        return self.scratchpad if self.matrix is not None else None

    @property
    def weightless(self) -> Device:
        """A device whose memory and kernels cost nothing."""
        return attrs.evolve(self, bandwidth=Rate.constant(inf), overhead=0.0, scratchpad=None)

    @property
    def keeps_results(self) -> bool:
        """Whether products leave there what they compute."""
        return self.own is not None and self.own.results is not None

    def rated(self, dtype: str) -> str:
        """The dtype whose rate a dtype has: its own, or else that of f32, or else of the slowest that is given."""
        given = [each for each in (dtype, "f32") if each in self.flops]
        return given[0] if given else min(self.flops, key=lambda each: self.flops[each].peak)

    def rate(self, dtype: str) -> Rate:
        """FLOP/s of a dtype."""
        return self.flops[self.rated(dtype)]


@attrs.frozen
class Link:
    """What connects `sizes` neighbours: one number, or the sides of a torus with the last side innermost. As a `memory`, what
    they share: each copies there what it needs of the others, and computes nothing meanwhile.

    bandwidth: bytes/s that a device sends in one direction, by the bytes of the whole array that is communicated; of a ring or
    torus along one dimension to one neighbour. latency: seconds from one neighbour to the next. shared: so many neighbouring
    devices have this bandwidth together. wraps: a part of a ring or side is a ring itself, with neighbours on both sides, where
    its length is a multiple of this and no fewer devices are in use than a block with such sides has, and else a line; None:
    only a whole side is. collectives: bandwidths of kinds of collectives that have their own, a permute's by the bytes of one
    device. `sizes` is empty for an outermost switch that has room for any number.
    """

    name: str
    kind: Kind
    sizes: tuple[int, ...]
    bandwidth: Rate
    latency: float
    shared: int = 1
    wraps: int | None = None
    collectives: Mapping[str, Rate] = attrs.field(factory=dict)

    def rate(self, kind: str) -> Rate:
        """The bandwidth in a collective of this kind."""
        return self.collectives.get(kind, self.bandwidth)

    @property
    def peak(self) -> float:
        """The bandwidth at its best, in any collective."""
        return max(rate.peak for rate in (self.bandwidth, *self.collectives.values()))

    @property
    def has_neighbours(self) -> bool:
        """Whether what is sent to a far member passes through others."""
        return self.kind in NEIGHBOURING


@attrs.frozen
class Hardware:
    """A machine, the innermost link first."""

    name: str
    device: Device
    links: tuple[Link, ...]

    @property
    def devices(self) -> int | None:
        """How many there are; None for any number."""
        if any(not link.sizes for link in self.links):
            return None
        return prod(size for link in self.links for size in link.sizes)

    @property
    def has_peak_figures(self) -> bool:
        """True if the machine has peak figures only: kernels start in no time, and run at one rate, whatever their size."""
        rates = (*self.device.flops.values(), self.device.bandwidth)
        return not self.device.overhead and all(len(rate.points) == 1 for rate in rates)

    @property
    def caveat(self) -> tuple[str, ...]:
        """Return a line about predictions from peak figures; nothing for a machine with other figures."""
        if not self.has_peak_figures:
            return ()
        text = f"{self.name} has peak figures: real steps take longer, small ones many times"
        return (f"  note: {text} (mtfc calibrate measures a machine)",)
