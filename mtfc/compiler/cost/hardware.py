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
"""Kernels with rates of their own.

pool: a reduction of windows. unpool: its gradient. convolution: a dot of windows, or a dot whose windows `fold` sums. transposed and
reordered: what is transposed or reordered for a dot (`analysis/dot_operand_layout.py`). clear and round: what a TPU clears or rounds for a
loop (`cost/tpu/tpu_fusion.py`).
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
    """The memory on the chip of a TPU (VMEM, on v4 also CMEM).

    latency: seconds before a dot starts whose operands and result lie there. Rates are in bytes/s, None for those of the main memory:
    `reads` and `writes` of elementwise kernels and reductions, `factors` and `results` of dots.
    """

    bytes: float
    latency: float = 0.0
    reads: float | None = None
    writes: float | None = None
    factors: float | None = None
    results: float | None = None


@attrs.frozen
class Device:
    """One processor.

    flops: FLOP/s by dtype, each by the FLOPs of one kernel. memory: bytes. bandwidth: bytes/s of memory, by the bytes that one kernel reads
    and writes. overhead: seconds to start a kernel. ops: elements/s of ops and `KERNELS` that take longer than their bytes; elements are
    those of the largest array read or written, of a table those that indices point at. overlap: how much of the shorter of computing and
    moving the longer one hides: 1 if a kernel loads while it computes. loop: seconds of an iteration besides its kernels.

    TPUs only: mxu_size is the number of rows and of columns of a matrix unit. scratchpad is the memory on the chip.
    """

    flops: Mapping[str, Rate]
    memory: float
    bandwidth: Rate
    overhead: float = 0.0
    ops: Mapping[str, float] = attrs.field(factory=dict)
    overlap: float = 1.0
    mxu_size: int | None = None
    loop: float = 0.0
    scratchpad: Scratchpad | None = None

    @property
    def vmem(self) -> Scratchpad | None:
        """The scratchpad of a TPU."""
        return self.scratchpad if self.mxu_size is not None else None

    @property
    def weightless(self) -> Device:
        """The same device with infinite bandwidth and without overhead."""
        return attrs.evolve(self, bandwidth=Rate.constant(inf), overhead=0.0, scratchpad=None)

    @property
    def has_linear_times(self) -> bool:
        """True if the time of a kernel is proportional to its FLOPs and to its bytes."""
        rates = (*self.flops.values(), self.bandwidth)
        return self.mxu_size is None and not self.ops and all(len(rate.points) == 1 for rate in rates)

    def rated(self, dtype: str) -> str:
        """Return the dtype whose rate counts for a dtype: the dtype itself, else f32, else the slowest dtype."""
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
